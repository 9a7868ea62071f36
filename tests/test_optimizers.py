"""Optimizers and what else keeps the accuracy at a large batch, against formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import SGD, Fixed, Muon, Recipe, Synthetic, data, engines
from poc.engines.gluon import compatibility
from poc.machine.hardware import Hardware
from poc.plan import plan
from poc.run import Run

compatibility.prepare()
import mxnet as mx  # noqa: E402

from poc.engines.gluon import optimizers, session  # noqa: E402

CPU = Hardware(cpu="Test CPU", cores=2, memory_bytes=2**34, cpu_flops=2e11)
DATA = Synthetic(size=16, crop=16, train=640, validation=70)
RATES = [0.1, 0.3, 0.2, 0.02]


def run_of(**fields: Any) -> Run:
    base: dict[str, Any] = {"model": "cifar_resnet8_v2", "data": DATA, "kind": "cpu", "lr": 0.05, "batch_per_device": 8}
    return plan("", Recipe(**{**base, **fields}), CPU)[0].run


def followed(run: Run, weight: Any, gradients: Any) -> Any:
    """The weight after one update by each of the gradients, at the rates above."""
    optimizer = optimizers.make(run, [])
    updater = mx.optimizer.get_updater(optimizer)
    held = mx.nd.array(weight)
    for rate, gradient in zip(RATES, gradients):
        optimizer.set_learning_rate(rate)
        if isinstance(optimizer, optimizers.CorrectedSGD):
            optimizer.follow(rate)
        updater(0, mx.nd.array(gradient), held)
    return held.asnumpy()


@pytest.fixture
def drawn() -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(5, 3)).astype(np.float32), generator.normal(size=(4, 5, 3)).astype(np.float32)


def test_a_corrected_velocity_has_no_rate_in_it(drawn: tuple[Any, Any]) -> None:
    weight, gradients = drawn
    expected, velocity = weight.astype(float), np.zeros_like(weight, dtype=float)
    for rate, gradient in zip(RATES, gradients):
        velocity = 0.9 * velocity + gradient + 1e-4 * expected
        expected = expected - rate * velocity
    corrected = followed(run_of(optimizer=SGD(momentum_correction=True)), weight, gradients)
    np.testing.assert_allclose(corrected, expected, rtol=1e-5)
    assert np.abs(followed(run_of(), weight, gradients) - expected).max() > 0.01


def test_nesterov_looks_ahead(drawn: tuple[Any, Any]) -> None:
    weight, gradients = drawn
    expected, velocity = weight.astype(float), np.zeros_like(weight, dtype=float)
    for rate, gradient in zip(RATES, gradients):
        gradient = gradient + 1e-4 * expected
        velocity = 0.9 * velocity - rate * gradient
        expected = expected + 0.9 * velocity - rate * gradient
    np.testing.assert_allclose(followed(run_of(optimizer="nesterov"), weight, gradients), expected, rtol=1e-4)


def test_matrices_of_several_shapes_at_once_are_what_each_is_alone() -> None:
    generator = np.random.default_rng(2)
    shapes = [(16, 16, 3, 3), (32, 16, 1, 1), (16, 16, 3, 3), (64, 32, 3, 3), (32, 16, 1, 1)]
    directions = [mx.nd.array(generator.normal(size=shape)) for shape in shapes]
    together = optimizers.orthogonalised(directions)
    for direction, found in zip(directions, together):
        assert found.shape == direction.shape
        (alone,) = optimizers.orthogonalised([direction])
        np.testing.assert_allclose(found.asnumpy(), alone.asnumpy(), atol=1e-5)


@pytest.mark.parametrize("shape", [(16, 16, 3, 3), (64, 16, 3, 3), (256, 64, 1, 1), (10, 90, 1, 1)])
def test_singular_values_come_near_to_one(shape: tuple[int, ...]) -> None:
    direction = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    matrix = optimizers.orthogonalised([mx.nd.array(direction)])[0].asnumpy().reshape(shape[0], -1)
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
    step = optimizers.orthogonalised([mx.nd.array(1.9 * convolution)])[0].asnumpy()
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
def test_residual_units_may_start_from_nothing_and_all_of_them_learn(
    model: str, units: int, ends: str, tmp_path: Path
) -> None:
    run = run_of(model=model, data=Synthetic(size=32, crop=32, train=640, validation=70), zero_gamma=True)
    made: Any = engines.load("gluon").open_session(run)

    def nothing() -> list[str]:
        held = {name: p.data().asnumpy() for name, p in made._net.collect_params().items()}
        return [name for name, array in held.items() if name.endswith(("weight", "gamma")) and not array.any()]

    assert len(nothing()) == units
    assert all(name.endswith(ends) for name in nothing())
    dataset = data.load(run.data, source=None, cache=tmp_path)
    for batch in data.training_batches(dataset, run.data, total_batch=run.total_batch, seed=0, steps=2):
        made.step(batch, 0.05)
    assert nothing() == []
    made = engines.load("gluon").open_session(run_of(model=model, data=run.data))
    assert nothing() == []


def test_the_penalty_may_spare_gammas() -> None:
    made: Any = engines.load("gluon").open_session(run_of(optimizer=SGD(decay_gammas=False)))
    assert {p.name.rsplit("_", 1)[-1] for p in made._trained if p.wd_mult > 0} == {"weight"}


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": "nesterov"},
        {"optimizer": "lars", "lr": 1.0},
        {"optimizer": Muon(0.05)},
        {"optimizer": SGD(momentum_correction=True), "lr": Fixed(base=0.05, warmup_epochs=0.1, decay="linear")},
        {"label_smoothing": 0.1, "zero_gamma": True, "optimizer": SGD(decay_gammas=False)},
    ],
    ids=["nesterov", "lars", "muon", "momentum correction", "smoothed"],
)
def test_it_learns_and_two_devices_are_one_with_two_in_turn(fields: dict[str, Any], tmp_path: Path) -> None:
    found = []
    for played in ({"virtual": True}, {"virtual": False}):
        run = run_of(**{"devices": 2, "kind": "cpu", "batch_per_device": 32, **played, **fields})
        made: Any = engines.load("gluon").open_session(run)
        dataset = data.load(run.data, source=None, cache=tmp_path)
        losses = []
        for step, batch in enumerate(
            data.training_batches(dataset, run.data, total_batch=run.total_batch, seed=0, steps=12)
        ):
            made.step(batch, run.schedule.rate(step))
            losses.append(made.drain())
        found.append(losses)
    assert found[0][-1] < found[0][0]
    assert found[0][:3] == pytest.approx(found[1][:3], rel=1e-3)
