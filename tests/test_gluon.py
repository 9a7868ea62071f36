"""What is MXNet's alone: its operators and precisions, its optimizers against formulas, gradients in long arrays, and
exchanges between workers that promise something else than sums."""

from __future__ import annotations

import dataclasses
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import LARS, SGD, SSP, DistAsync, DistSync, Horovod, Muon, Synthetic, frameworks
from poc.config.kvstores import KVStore
from poc.config.run import Run
from poc.frameworks import loss_scale
from poc.frameworks.mxnet import compatibility
from poc.host.hardware import detect
from tests import fake_gpus
from tests.builders import MACHINE
from tests.extras import needs_horovod
from tests.framework_worker import (
    PLAIN,
    SUMS,
    Arrays,
    batches,
    distance,
    gradients,
    parameters,
    planned,
    trained,
    workers,
)
from tests.launch import python

compatibility.prepare()
import mxnet as mx  # noqa: E402

from poc.frameworks.mxnet import flat_buffers, networks, optimizers, session, trainer  # noqa: E402


@pytest.mark.slow
def test_batch_norm_and_relu_in_one_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def after(steps: int) -> Arrays:
        run = planned("mxnet", lr=0.05, steps=steps).run
        return trained(frameworks.open_session(run), run)

    fused = after(5)
    assert networks.can_fuse() or pytest.skip("this CPU has no fused operator")
    monkeypatch.setattr(session, "can_fuse", lambda: False)
    assert distance(after(5), fused) < 1e-5
    assert distance(after(1), fused) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cifar_resnet20_v2_no_norm", "cifar_resnet8_v2"])
def test_batch_norm_is_what_sets_four_devices_apart_from_one(model: str) -> None:
    runs = (
        planned("mxnet", model=model, devices=devices, batch_per_device=128 // devices, lr=1e-5).run
        for devices in (1, 4)
    )
    one, four = (trained(frameworks.open_session(run), run) for run in runs)
    assert (distance(one, four) < 1e-5) == model.endswith("no_norm")


def issuing(optimizer: object, devices: int) -> float:
    """Milliseconds of CPU time that a step of ResNet-50 at batch 1 costs the main thread, the median."""
    fields = {"model": "cifar_resnet50_v2", "batch_per_device": 1, "optimizer": optimizer, "devices": devices}
    run, taken = planned("mxnet", **fields).run, []
    opened, (batch,) = frameworks.open_session(run), batches(run, steps=1)
    for _ in range(8):
        start = time.thread_time()
        opened.step(batch, run.learning_rate)
        taken.append(1e3 * (time.thread_time() - start))
        opened.drain()
    return statistics.median(taken[3:])


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", Muon(lr=0.02)], ids=str)
def test_a_step_on_eight_devices_costs_the_main_thread_at_most_twice_that_on_one(optimizer: object) -> None:
    # 9 times as long where it issued all devices' work itself. Milliseconds of CPU time.
    alone, together = (issuing(optimizer, devices) for devices in (1, 8))
    assert together < min(2 * alone, 16)


def test_batches_are_put_on_a_cpu_while_it_computes_what_was_asked_of_it_before() -> None:
    run = planned("mxnet").run
    opened, batch, matrix = frameworks.open_session(run), next(batches(run)), mx.nd.ones((128, 1 << 16))
    mx.nd.waitall()
    products = [mx.nd.dot(matrix, matrix, transpose_b=True) for _ in range(100)]
    start = time.monotonic()
    opened.placed(batch)
    put = time.monotonic() - start
    mx.nd.waitall()
    assert len(products) == 100
    assert put < (time.monotonic() - start) / 20


@pytest.mark.parametrize(
    ("machine", "fusion"), [("8 P100", "0"), ("4 V100, old driver", "0"), ("4 A10G", "None"), ("no driver", "None")]
)
def test_operators_are_fused_only_where_the_driver_can_read_the_code(machine: str, fusion: str) -> None:
    code = "import os; from poc.frameworks.mxnet import compatibility; compatibility.prepare(); "
    code += "print(os.environ.get('MXNET_USE_FUSION'))"
    assert python(code, **fake_gpus.environment(machine)).stdout.split() == [fusion]


@pytest.mark.parametrize("dtype", ["float32", "float16", "tf32"])
def test_products_are_rounded_to_tf32_only_where_that_is_asked_for(dtype: str) -> None:
    run = dataclasses.replace(planned("mxnet").run, dtype=dtype)
    with frameworks.load("mxnet").cluster(run, 1) as cluster:
        (environment,) = cluster.environments
    assert environment.get("NVIDIA_TF32_OVERRIDE") == (None if dtype == "tf32" else "0")


def test_the_most_memory_that_a_card_has_given_is_read_at_the_edges_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = frameworks.open_session(planned("mxnet", devices=2).run)
    session.drain()
    assert session.peak_device_bytes() is None
    session._run = dataclasses.replace(session._run, kind="gpu")
    for free in ({0: 7, 1: 9}, {0: 8, 1: 4}, {0: 8, 1: 8}):
        monkeypatch.setattr("mxnet.context.gpu_memory_info", lambda device, free=free: (free[device], 10))
        session.drain()
    assert session.peak_device_bytes() == 6


def test_a_checkpoint_has_what_all_devices_have_alike_once() -> None:
    shared, apart = (
        frameworks.open_session(planned("mxnet", devices=2, kvstore=exchange).run).state()
        for exchange in ("device", "none")
    )
    assert shared.keys() < apart.keys()
    assert all(name.endswith(("running_mean/1", "running_var/1")) for name in shared if name.endswith("/1"))
    assert {name[:-1] for name in apart if name.endswith("/1")} == {name[:-1] for name in shared}


@pytest.mark.slow
@pytest.mark.skipif(not detect().bfloat16, reason="this CPU has no AVX-512 bf16")
@pytest.mark.parametrize("devices", [1, 2])
def test_bfloat16_gives_every_parameter_a_gradient_of_right_direction_and_size(devices: int, tmp_path: Path) -> None:
    # With the fused norm of float32 the first weights got a wrong one, and with emulated devices all weights a zero.
    shared: Any = {"devices": devices, "emulated": devices > 1, "batch_per_device": 64 // devices}
    run = planned("mxnet", data=Synthetic(size=28, crop=28, train=256), optimizer=PLAIN, steps=1, **shared).run
    wide = gradients(frameworks.open_session(run), run)
    # Its casts change MXNet for good: a process of its own.
    (narrow,) = workers(dataclasses.replace(run, dtype="bfloat16"), tmp_path, "gradients")
    assert wide.keys() == narrow.keys(), "parameters stay in float32"
    norm, differences = np.linalg.norm, []
    for name, left in wide.items():
        if left.any():
            right = narrow[name]
            assert (left * right).sum() / (norm(left) * norm(right) + 1e-30) > 0.8, name
            assert norm(right) / norm(left) > 0.8, name
            differences.append(norm(right - left) / norm(left))
    assert max(differences) > 1e-4


# Optimizers, and what else keeps the accuracy at a large batch, against formulas


RATES = [0.1, 0.3, 0.2, 0.02]


def run_of(**fields: Any) -> Run:
    return planned("mxnet", **{"lr": 0.05, **fields}).run


def followed(run: Run, weight: Any, gradients: Any) -> Any:
    """The weight after one update by each of the gradients, at the rates above."""
    parameter = mx.gluon.Parameter("weight", shape=weight.shape)
    parameter.initialize()
    parameter.set_data(mx.nd.array(weight))
    (array,) = flat_buffers.flatten([parameter])
    optimizer = optimizers.make(run, array, 0)
    for rate, gradient in zip(RATES, gradients):
        parameter.grad()[:] = run.global_batch * gradient
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
    (array,) = flat_buffers.flatten(parameters)
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


TWO_DEVICES_AT_ONCE = """
from poc.frameworks.mxnet import compatibility
compatibility.prepare()
import mxnet as mx
from poc import Muon
from poc.frameworks.mxnet import flat_buffers, trainer, optimizers
from tests.framework_worker import planned

parameter = mx.gluon.Parameter("weight", shape=(512, 512, 3, 3))
parameter.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
(array,) = flat_buffers.flatten([parameter])
for gradient in array.gradients:
    gradient[:] = mx.nd.random.normal(shape=gradient.shape, ctx=gradient.context)
both = [optimizers.make(planned("mxnet", optimizer=Muon(0.02)).run, array, device) for device in (0, 1)]
for _ in range(4):
    list(trainer._threads(2).map(lambda optimizer: optimizer.update(0.01), both))
mx.nd.waitall()
"""


def test_devices_of_one_process_multiply_matrices_one_after_the_other() -> None:
    """Two at once hang, where matrices are as wide as VGG's: six times of six within four updates."""
    done = python(TWO_DEVICES_AT_ONCE, OMP_NUM_THREADS="2")
    assert done.returncode == 0, done.stderr


def test_muon_moves_convolutions_by_its_own_rate_and_the_rest_as_nesterov_does(drawn: tuple[Any, Any]) -> None:
    weight, gradients = drawn
    plain = followed(run_of(optimizer="nesterov"), weight, gradients[:1])
    np.testing.assert_allclose(followed(run_of(optimizer=Muon(0.5)), weight, gradients[:1]), plain, rtol=1e-5)
    convolution = np.random.default_rng(2).normal(size=(8, 4, 3, 3)).astype(np.float32)
    moved = followed(run_of(optimizer=Muon(lr=0.5, weight_decay=0.0)), convolution, convolution[None])
    step = optimizers.orthogonalised(mx.nd.array(1.9 * convolution[None]))[0].asnumpy()
    # The first rate is 0.1, twice the full one of the rest, 0.05; so is that of the convolutions.
    np.testing.assert_allclose(convolution - moved, 2 * 0.5 * step, rtol=1e-3, atol=1e-5)


def test_muon_keeps_convolutions_at_the_size_of_orthogonal_ones(drawn: tuple[Any, Any]) -> None:
    weight, gradients = drawn
    convolution = np.random.default_rng(2).normal(size=(8, 4, 3, 3)).astype(np.float32)
    plain, unit = (Muon(lr=0.5, weight_decay=0.0, unit_weights=unit) for unit in (False, True))
    scaled = convolution * np.float32(8**0.5 / np.linalg.norm(convolution))
    expected = followed(run_of(optimizer=plain), scaled, convolution[None])
    moved = followed(run_of(optimizer=unit), convolution, convolution[None])
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-5)
    # All else is as it was, and a convolution of zeros stays one of numbers.
    others = [followed(run_of(optimizer=optimizer), weight, gradients) for optimizer in (plain, unit)]
    np.testing.assert_array_equal(*others)
    assert np.isfinite(followed(run_of(optimizer=unit), 0 * convolution, convolution[None])).all()


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
    run = run_of(model=model, zero_init_gamma=True, steps=2)
    made: Any = frameworks.open_session(run)

    def nothing() -> list[str]:
        held = {name: p.data().asnumpy() for name, p in made._net.collect_params().items()}
        return [name for name, array in held.items() if name.endswith(("weight", "gamma")) and not array.any()]

    assert len(nothing()) == units
    assert all(name.endswith(ends) for name in nothing())
    for batch in batches(run):
        made.step(batch, 0.05)
    assert nothing() == []
    made = frameworks.open_session(run_of(model=model))
    assert nothing() == []


@pytest.mark.parametrize("decay_gammas", [True, False])
def test_lars_scales_the_rates_of_weights_and_the_penalty_spares_betas_and_biases(decay_gammas: bool) -> None:
    lars = LARS(weight_decay=0.1, decay_gammas=decay_gammas)
    run = run_of(optimizer=lars, batch_per_device=64)
    made = frameworks.open_session(run)
    weights, moves = parameters(made), gradients(made, run)
    plain = dataclasses.replace(run, optimizer=PLAIN)
    for name, gradient in gradients(frameworks.open_session(plain), plain).items():
        scaled = name.endswith("weight/0")
        decay = lars.weight_decay * (scaled or (decay_gammas and name.endswith("gamma/0")))
        expected = gradient + decay * weights[name]
        if scaled:
            size = np.linalg.norm(weights[name])
            expected *= 0.001 * size / (np.linalg.norm(gradient) + decay * size)
        if gradient.any():
            tolerance = 1e-3 * float(np.abs(expected).max())
            np.testing.assert_allclose(moves[name], expected, atol=tolerance, err_msg=name)
    assert {name.rsplit(".")[-1] for name in moves} >= {"weight/0", "gamma/0", "beta/0", "bias/0"}


# Several devices of one process: where long arrays are updated, float16's scale


DEVICES = 3


def connected(dtype: str = "float32", **fields: Any) -> trainer.InProcess:
    """Three devices with four arrays, of 4, 3, 2 and 1 dimensions, of ones."""
    run = dataclasses.replace(planned("mxnet", devices=DEVICES, **fields).run, dtype=dtype)
    parameters = [mx.gluon.Parameter(f"weight{n}", shape=(2,) * n) for n in (1, 2, 3, 4)]
    for parameter in parameters:
        parameter.initialize(mx.init.One(), ctx=[mx.cpu(device) for device in range(DEVICES)])
    return trainer.connect(run, parameters, [])


def fill(made: trainer.InProcess, value: float) -> None:
    for array in made.trained:
        for flat in array.gradients:
            flat[:] = value


def held(made: trainer.InProcess) -> np.ndarray:
    """The first values of all arrays, (arrays, devices)."""
    return np.array([[values.asnumpy()[0] for values in array.values] for array in made.trained])


@pytest.mark.parametrize("name", ["device", "local"])
def test_arrays_are_updated_once_on_the_devices_in_turn(name: str) -> None:
    made = connected(kvstore=name)
    fill(made, 1.0)
    made.step(0.1)
    assert sorted(made._optimizers) == [(0, 0), (1, 1), (2, 2), (3, 0)]
    assert len(set(held(made).ravel())) == 1
    assert {name for name in made.state() if name.endswith("momentum")} == {
        f"optimizer/{number}/{number % DEVICES}/momentum" for number in range(4)
    }


@pytest.mark.parametrize("name", ["device", "nccl", "none"])
def test_a_step_that_overflows_on_one_device_is_skipped_on_all_and_halves_the_scale(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = mx.kv.create
    monkeypatch.setattr(mx.kv, "create", lambda name: create("device" if name == "nccl" else name))
    made, plain = connected("float16", kvstore=name), connected(kvstore=name)
    assert made.loss_scale
    assert not plain.loss_scale

    def step(value: float, overflow: bool = False) -> None:
        fill(made, value * made.loss_scale.state()[0])
        if overflow:
            made.trained[1].gradients[2][0] = np.inf
        made.step(0.1)
        if not overflow:
            fill(plain, value)
            plain.step(0.1)
        mx.nd.waitall()
        assert np.array_equal(held(made), held(plain))

    for overflow, scale, good in ((False, 1024, 1), (True, 512, 0), (True, 256, 0), (False, 256, 1), (False, 256, 2)):
        step(1.0, overflow)
        assert made.loss_scale.state().tolist() == [scale, good]
    again = connected("float16", kvstore=name)
    again.load_state(made.state())
    assert again.state().keys() == made.state().keys()
    assert all(np.array_equal(array, again.state()[key]) for key, array in made.state().items())


def test_the_scale_doubles_after_two_thousand_good_steps_in_a_row() -> None:
    scale, good = 8.0, 0.0
    seen = []
    for step in range(1, 4100):
        scale, good = loss_scale.following(scale, good, float(step != 50))
        if not seen or scale != seen[-1][1]:
            seen.append((step, scale))
    assert seen == [(1, 8.0), (50, 4.0), (2050, 8.0), (4050, 16.0)]


# Between workers: real processes and sockets


def between_workers(test: Any) -> Any:
    return pytest.mark.slow(pytest.mark.skipif(MACHINE.cores < 2, reason="two workers need two cores")(test))


def between_two(exchange: KVStore, **fields: object) -> Run:
    return planned("mxnet", devices=2, workers=2, kvstore=exchange, **fields).run


@between_workers
def test_dist_async_with_one_worker_equals_local(tmp_path: Path) -> None:
    local = planned("mxnet").run
    (seen,) = workers(dataclasses.replace(local, kvstore=DistAsync()), tmp_path)
    assert distance(seen, trained(frameworks.open_session(local), local)) < 1e-5


@between_workers
def test_workers_of_dist_async_agree_when_they_are_evaluated(tmp_path: Path) -> None:
    seen = workers(between_two(DistAsync()), tmp_path, seeds=(1, 2))
    assert distance(*seen) == 0
    assert sum(worker["evaluated"][1] for worker in seen) == 70
    assert {str(worker["sums right"]) for worker in seen} == {"None"}


@between_workers
@pytest.mark.parametrize("bound", [0, 2, None])
def test_no_worker_is_further_ahead_than_the_bound(bound: int | None, tmp_path: Path) -> None:
    run = between_two(SSP(bound), straggler=5.0, steps=8)
    ahead = {}
    for seen in workers(run, tmp_path, "clocks"):
        rank = int(seen["rank"])
        own = seen["seen"][:, rank]
        assert own.tolist() == list(range(1, run.steps + 1))
        ahead[rank] = int((own - seen["seen"].min(axis=1)).max())
    # The slow one is never ahead by more than the step that it has just done; the other goes as far as it may.
    assert ahead[1] <= 1
    assert ahead[0] == (run.steps if bound is None else bound)


@between_workers
def test_the_sum_of_two_bits_is_that_of_the_workers_each_of_which_sends_its_devices_sum(tmp_path: Path) -> None:
    run = dataclasses.replace(between_two(DistSync(two_bit=0.5), steps=1), devices=4)
    assert {str(seen["sums right"]) for seen in workers(run, tmp_path)} == {"True"}


@between_workers
@pytest.mark.parametrize(
    "exchange",
    [DistSync(two_bit=1.0), DistSync(gradient_bits=16), pytest.param(Horovod(gradient_bits=16), marks=needs_horovod)],
    ids=str,
)
def test_what_fewer_bits_lose_is_bounded(exchange: KVStore, tmp_path: Path) -> None:
    left, right = workers(between_two(exchange), tmp_path, "sums")
    assert np.array_equal(left["received"], right["received"])
    error = np.abs(left["received"] - SUMS * (left["sent"] + right["sent"]))
    if getattr(exchange, "two_bit", None):
        # What each worker keeps back for the next exchange is less than the threshold.
        assert 0.5 < error.max() <= 2 * 1.0 + 1e-4
    else:
        # Each of two values of up to 1 and a sum of up to 2 is rounded to 11 binary digits.
        assert 1e-5 < error.max() / SUMS <= 2 * 2**-12 + 2**-11
