"""Optimizers and what else keeps the accuracy at a large batch, against formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from poc import LARS, SGD, Muon, Synthetic, engines
from poc.engines.gluon import compatibility
from poc.run import Run
from tests.engine_worker import batches, parameters, planned

compatibility.prepare()
import mxnet as mx  # noqa: E402

from poc.engines.gluon import arrays, optimizers, session  # noqa: E402

RATES = [0.1, 0.3, 0.2, 0.02]


def run_of(**fields: Any) -> Run:
    return planned("gluon", **{"lr": 0.05, **fields}).run


def followed(run: Run, weight: Any, gradients: Any) -> Any:
    """The weight after one update by each of the gradients, at the rates above."""
    parameter = mx.gluon.Parameter("weight", shape=weight.shape)
    parameter.initialize()
    parameter.set_data(mx.nd.array(weight))
    (array,) = arrays.lay([parameter])
    optimizer = optimizers.make(run, array, 0)
    for rate, gradient in zip(RATES, gradients):
        parameter.grad()[:] = run.total_batch * gradient
        optimizer.update(rate)
    return parameter.data().asnumpy()


@pytest.fixture
def drawn() -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(5, 3)).astype(np.float32), generator.normal(size=(4, 5, 3)).astype(np.float32)


def corrected(weight: Any, velocity: Any, gradient: Any, rate: float) -> Any:
    velocity = 0.9 * velocity + gradient
    return weight - rate * velocity, velocity


def nesterov(weight: Any, velocity: Any, gradient: Any, rate: float) -> Any:
    velocity = 0.9 * velocity - rate * gradient
    return weight + 0.9 * velocity - rate * gradient, velocity


@pytest.mark.parametrize(
    ("optimizer", "formula"),
    [(SGD(momentum_correction=True), corrected), ("nesterov", nesterov)],
    ids=["SGD", "Nesterov"],
)
def test_a_velocity_is_that_of_the_formula(optimizer: Any, formula: Any, drawn: tuple[Any, Any]) -> None:
    weight, gradients = drawn
    expected, velocity = weight.astype(float), np.zeros_like(weight, dtype=float)
    for rate, gradient in zip(RATES, gradients):
        expected, velocity = formula(expected, velocity, gradient + 1e-4 * expected, rate)
    np.testing.assert_allclose(followed(run_of(optimizer=optimizer), weight, gradients), expected, rtol=1e-4)
    assert np.abs(followed(run_of(), weight, gradients) - expected).max() > 0.01


def test_parameters_lie_on_256_bytes_and_those_of_one_shape_are_stacked() -> None:
    shapes = [(16, 3, 3, 3), (10, 4, 1, 1), (16, 3, 3, 3), (4, 5, 3, 3), (10, 4, 1, 1)]
    parameters = [mx.gluon.Parameter(f"weight{number}", shape=shape) for number, shape in enumerate(shapes)]
    for number, parameter in enumerate(parameters, start=1):
        parameter.initialize(mx.init.Constant(number))
    (array,) = arrays.lay(parameters)
    (flat,) = array.values
    stacks = list(array.stacks(flat))
    assert [stack.shape for stack in stacks] == [(1, 4, 5, 3, 3), (2, 10, 4, 1, 1), (2, 16, 3, 3, 3)]
    assert sorted(int(each[0, 0, 0, 0].asscalar()) for stack in stacks for each in stack) == [1, 2, 3, 4, 5]
    assert np.array_equal(array.joined(stacks).asnumpy(), flat.asnumpy())
    flat += 10
    for number, parameter in enumerate(parameters, start=1):
        assert (parameter.data().asnumpy() == 10 + number).all()
        assert np.flatnonzero(flat.asnumpy() == 10 + number)[0] % 64 == 0


@pytest.mark.parametrize("shape", [(16, 16, 3, 3), (64, 16, 3, 3), (256, 64, 1, 1), (10, 90, 1, 1)])
def test_singular_values_come_near_to_one(shape: tuple[int, ...]) -> None:
    direction = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    matrix = optimizers.orthogonalised(mx.nd.array(direction[None])).asnumpy().reshape(shape[0], -1)
    scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
    values = np.linalg.svd(matrix / scale, compute_uv=False)
    # What the five steps are made for: between about 0.7 and 1.2, not exactly one.
    assert values.min() > 0.5
    assert values.max() < 1.3
    # The singular vectors stay: the nearest orthogonal matrix is nearly the same direction.
    left, _, right = np.linalg.svd(direction.reshape(shape[0], -1), full_matrices=False)
    nearest = left @ right
    cosine = (nearest * matrix).sum() / np.linalg.norm(nearest) / np.linalg.norm(matrix)
    assert cosine > 0.95


def test_muon_moves_convolutions_by_its_own_rate_and_the_rest_as_nesterov_does(drawn: tuple[Any, Any]) -> None:
    weight, gradients = drawn
    plain = followed(run_of(optimizer="nesterov"), weight, gradients[:1])
    np.testing.assert_allclose(followed(run_of(optimizer=Muon(0.5)), weight, gradients[:1]), plain, rtol=1e-5)
    convolution = np.random.default_rng(2).normal(size=(8, 4, 3, 3)).astype(np.float32)
    moved = followed(run_of(optimizer=Muon(rate=0.5, weight_decay=0.0)), convolution, convolution[None])
    step = optimizers.orthogonalised(mx.nd.array(1.9 * convolution[None]))[0].asnumpy()
    # The first rate is 0.1, twice the full one of the rest, 0.05; so is that of the convolutions.
    np.testing.assert_allclose(convolution - moved, 2 * 0.5 * step, rtol=1e-3, atol=1e-5)


def test_a_smoothed_label_is_spread_over_all_classes() -> None:
    scores = np.array([[2.0, 0.0, -1.0], [0.5, 0.5, 0.5]], np.float32)
    labels = np.array([0, 2], np.float32)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    spread = np.full((2, 3), 0.1 / 3)
    spread[[0, 1], [0, 2]] += 0.9
    found = session._Smoothed(0.1)(mx.nd.array(scores), mx.nd.array(labels)).asnumpy()
    np.testing.assert_allclose(found, -(spread * logs).sum(axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("model", "units", "ends"),
    [("cifar_resnet20_v2", 9, "weight"), ("cifar_resnet20_v1", 9, "gamma"), ("cifar_lenet", 0, "")],
)
def test_residual_units_may_start_from_nothing_and_all_of_them_learn(model: str, units: int, ends: str) -> None:
    data = Synthetic(size=32, crop=32, train=640, validation=70)
    run = run_of(model=model, data=data, zero_gamma=True, steps=2)
    made: Any = engines.open_session(run)

    def nothing() -> list[str]:
        held = {name: p.data().asnumpy() for name, p in made._net.collect_params().items()}
        return [name for name, array in held.items() if name.endswith(("weight", "gamma")) and not array.any()]

    assert len(nothing()) == units
    assert all(name.endswith(ends) for name in nothing())
    for batch in batches(run):
        made.step(batch, 0.05)
    assert nothing() == []
    made = engines.open_session(run_of(model=model, data=data))
    assert nothing() == []


@pytest.mark.parametrize("decay_gammas", [True, False])
def test_the_penalty_is_on_weights_and_gammas_or_spares_them(decay_gammas: bool) -> None:
    made: Any = engines.open_session(run_of(optimizer=SGD(decay_gammas=decay_gammas)))
    decayed, spared = (
        {parameter.name.rsplit("_", 1)[-1] for parameter in made._trained if bool(parameter.wd_mult) is decays}
        for decays in (True, False)
    )
    assert decayed == ({"weight", "gamma"} if decay_gammas else {"weight"})
    assert spared == {"weight", "gamma", "beta", "bias"} - decayed


def test_lars_scales_the_rates_of_weights_and_spares_those_of_betas_and_gammas() -> None:
    # Without momentum and decay a step of SGD at rate 1 subtracts the gradient.
    moved = {}
    for optimizer in (LARS(), SGD(momentum=0.0, weight_decay=0.0)):
        run = run_of(optimizer=optimizer, batch_per_device=64)
        made = engines.open_session(run)
        before = parameters(made)
        made.step(next(batches(run)), 1.0)
        moved[optimizer.name] = {name: before[name] - array for name, array in parameters(made).items()}
    for name, gradient in moved["sgd"].items():
        weight, decay = before[name], 0.0 if name.endswith(("beta/0", "bias/0")) else LARS().weight_decay
        expected = gradient + decay * weight
        if name.endswith("weight/0"):
            size = np.linalg.norm(weight)
            expected *= 0.001 * size / (np.linalg.norm(gradient) + decay * size)
        if gradient.any() and "running" not in name:
            tolerance = 1e-3 * float(np.abs(expected).max())
            np.testing.assert_allclose(moved["lars"][name], expected, atol=tolerance, err_msg=name)
    assert {name.rsplit(".")[-1] for name in before} >= {"weight/0", "gamma/0", "beta/0", "bias/0"}
