"""MXNet alone: its operators and precisions, its optimizers against formulas, flat buffers, and kvstores that promise
something else than sums."""

import dataclasses
import json
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import LARS, SGD, SSP, DistAsync, DistSync, Horovod, Synthetic, frameworks
from poc.config.kvstores import KVStore
from poc.config.run import Run
from poc.frameworks.mxnet import prepare
from poc.frameworks.session import LossScale
from poc.host.hardware import detect
from tests import fake_gpus
from tests.builders import MACHINE
from tests.conftest import needs_horovod
from tests.framework_worker import (
    BOUNDS,
    PLAIN,
    SUMS,
    batches,
    distance,
    gradients,
    parameters,
    planned,
    trained,
    workers,
)
from tests.launch import DEADLINE_SECONDS, python

prepare()
import mxnet as mx  # noqa: E402

from poc.frameworks.mxnet import distributed, networks, optimizers  # noqa: E402
from poc.frameworks.mxnet.session import MXNetSession  # noqa: E402


def run_of(**fields: Any) -> Run:
    return planned("mxnet", **fields).run


def test_batches_are_placed_on_a_cpu_while_it_computes() -> None:
    opened, batch, matrix = frameworks.open_session(run_of()), next(batches(run_of())), mx.nd.ones((128, 1 << 16))

    def share_of_placing() -> float:
        mx.nd.waitall()
        products = [mx.nd.dot(matrix, matrix, transpose_b=True) for _ in range(20)]
        start = time.monotonic()
        opened.place(batch)
        placed = time.monotonic() - start
        mx.nd.waitall()
        share = placed / (time.monotonic() - start)
        assert products[-1][0, 0].asscalar() == 1 << 16
        return share

    # Others may need the core while a batch is placed.
    assert any(share_of_placing() < 0.5 for _ in range(20))


@pytest.fixture
def session_on_gpus(monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Any]:
    """A session of two GPUs, whose contexts are the CPU's."""
    monkeypatch.setattr(mx, "gpu", mx.cpu)
    monkeypatch.setattr(mx.context, "gpu_memory_info", lambda device: (14 * 2**30, 16 * 2**30))
    run = dataclasses.replace(run_of(devices=2, steps=8), kind="gpu")
    return run, frameworks.open_session(run)


def test_a_batch_is_copied_to_all_gpus_at_the_same_time(
    session_on_gpus: tuple[Run, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, session = session_on_gpus
    batch, both, copy = next(batches(run)), threading.Barrier(2), session._array

    def copy_with_the_other(values: np.ndarray, context: Any) -> Any:
        both.wait(DEADLINE_SECONDS)
        return copy(values, context)

    monkeypatch.setattr(session, "_array", copy_with_the_other)
    (parts,) = session.place(batch).uploaded
    assert [labels.context for _, labels in parts] == [mx.cpu(0), mx.cpu(1)]
    np.testing.assert_array_equal(np.concatenate([labels.asnumpy() for _, labels in parts]), batch.labels)


def test_each_gpu_draws_masks_in_a_thread_of_its_own_by_the_seed_of_the_step(
    session_on_gpus: tuple[Run, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, session = session_on_gpus
    threads: dict[Any, set[int]] = {context: set() for context in session._contexts}
    seeds = []

    def seeded(seed: int, ctx: Any) -> None:
        threads[ctx].add(threading.get_ident())
        seeds.append(seed)

    monkeypatch.setattr(mx.random, "seed", seeded)
    for seed in range(0, 80, 4):
        session._seed_dropout(seed)
        list(session._map_devices(lambda context: threads[context].add(threading.get_ident()), session._contexts))
    (first,), (second,) = threads.values()
    assert len({first, second, threading.get_ident()}) == 3
    assert len(set(seeds)) == len(seeds) == 40


def test_few_steps_are_enqueued_on_gpus_before_they_are_done(
    session_on_gpus: tuple[Run, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, session = session_on_gpus
    first, *more = batches(run)
    monkeypatch.setattr(mx.nd.NDArray, "wait_to_read", lambda array: waited.append(array))
    waited: list[Any] = []
    session.step(first, 0.01)
    losses = [*session._losses.values()]
    for number, batch in enumerate(more[:4], start=1):
        assert (not waited) == (number <= 4)
        session.step(batch, 0.01)
    assert len(losses) == 2
    assert all(seen is loss for seen, loss in zip(waited, losses, strict=True))


@pytest.mark.parametrize(
    ("machine", "fusion"), [("8 P100", "0"), ("4 V100, old driver", "0"), ("4 A10G", "None"), ("no driver", "None")]
)
def test_operators_are_fused_only_if_the_driver_can_read_the_code(machine: str, fusion: str) -> None:
    code = "import os; from poc.frameworks.mxnet import prepare; prepare(); "
    code += "print(os.environ.get('MXNET_USE_FUSION'))"
    assert python(code, **fake_gpus.environment(machine)).stdout.split() == [fusion]


def test_peak_memory_of_a_card_is_read_at_the_edges_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = frameworks.open_session(run_of(devices=2))
    session.drain()
    assert session.peak_device_bytes() is None
    session._run = dataclasses.replace(session._run, kind="gpu")
    for free in ({0: 7, 1: 9}, {0: 8, 1: 4}, {0: 8, 1: 8}):
        monkeypatch.setattr("mxnet.context.gpu_memory_info", lambda device, free=free: (free[device], 10))
        session.drain()
    assert session.peak_device_bytes() == 6


@pytest.mark.slow
@pytest.mark.skipif(not detect().bfloat16, reason="this CPU has no AVX-512 bf16")
@pytest.mark.parametrize("devices", [1, 2])
def test_bfloat16_gives_every_parameter_a_gradient_of_right_direction_and_size(devices: int, tmp_path: Path) -> None:
    # With the fused norm of float32 the first weights got a wrong one, and with emulated devices all weights a zero.
    shared: Any = {"devices": devices, "emulated": devices > 1, "batch_per_device": 64 // devices}
    run = run_of(data=Synthetic(size=28, crop=28, train=256), optimizer=PLAIN, steps=1, **shared)
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


# Optimizers


@pytest.mark.parametrize("decay_gammas", [True, False])
def test_lars_scales_the_rates_of_weights_and_betas_and_biases_have_no_decay(decay_gammas: bool) -> None:
    lars = LARS(weight_decay=0.1, decay_gammas=decay_gammas)
    run = run_of(optimizer=lars, batch_per_device=64)
    opened = frameworks.open_session(run)
    weights, moves = parameters(opened), gradients(opened, run)
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


@pytest.mark.parametrize("shape", [(16, 16, 3, 3), (64, 16, 3, 3), (256, 64, 1, 1), (10, 90, 1, 1)])
def test_orthogonalised_singular_values_are_near_to_one(shape: tuple[int, ...]) -> None:
    direction = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    matrix = optimizers.orthogonalised(mx.nd.array(direction[None])).asnumpy().reshape(shape[0], -1)
    scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
    values = np.linalg.svd(matrix / scale, compute_uv=False)
    # The five steps are made for about 0.7 to 1.2, not for exactly one.
    assert values.min() > 0.5
    assert values.max() < 1.3
    # The singular vectors stay: the nearest orthogonal matrix is nearly the same direction.
    left, _, right = np.linalg.svd(direction.reshape(shape[0], -1), full_matrices=False)
    nearest = left @ right
    assert (nearest * matrix).sum() / np.linalg.norm(nearest) / np.linalg.norm(matrix) > 0.95


@pytest.mark.parametrize(
    ("model", "units", "ends"),
    [("cifar_resnet20_v2", 9, "weight"), ("cifar_resnet20_v1", 9, "gamma"), ("cifar_lenet", 0, "")],
)
def test_residual_units_can_start_as_identities_and_all_of_them_learn(model: str, units: int, ends: str) -> None:
    run = run_of(lr=0.05, model=model, zero_init_gamma=True, steps=2)

    def zeros(opened: Any) -> list[str]:
        arrays = {name: p.data().asnumpy() for name, p in opened._net.collect_params().items()}
        return [name for name, array in arrays.items() if name.endswith(("weight", "gamma")) and not array.any()]

    opened = frameworks.open_session(run)
    assert len(zeros(opened)) == units
    assert all(name.endswith(ends) for name in zeros(opened))
    for batch in batches(run):
        opened.step(batch, 0.05)
    assert zeros(opened) == []
    assert zeros(frameworks.open_session(dataclasses.replace(run, zero_init_gamma=False))) == []


@pytest.mark.parametrize("fields", [{}, {"kvstore": "local"}], ids=str)
def test_devices_of_one_process_share_sums_and_updates_equally(fields: dict[str, Any]) -> None:
    session = MXNetSession(run_of(model="cifar_resnet50_v2", devices=4, **fields))
    sizes, owners = [buffer.values[0].size for buffer in session._buffers], np.array(session._owners)[:, 0]
    shares = np.bincount(owners, weights=sizes, minlength=4) / sum(sizes)
    assert (len(sizes) < 12, shares.max() < 0.35, shares.min() > 0.15) == (True, True, True), (sizes, shares)
    assert len(MXNetSession(run_of(model="cifar_resnet50_v2"))._buffers) == 4


# The scale of float16 on several devices of one process

DEVICES = 3


def connected(dtype: str = "float32", **fields: Any) -> MXNetSession:
    """Return a session of three devices with four buffers, of 4, 3, 2 and 1 dimensions, of ones."""
    run = run_of(model="cifar_mlp", devices=DEVICES, **fields)
    session = MXNetSession(run)
    session._trained = [mx.gluon.Parameter(f"weight{n}", shape=(2,) * n) for n in (1, 2, 3, 4)]
    for parameter in session._trained:
        parameter.initialize(mx.init.One(), ctx=session._contexts)
    session._run = dataclasses.replace(run, dtype=dtype)
    session._prepare_sync()
    return session


def train(session: MXNetSession, gradient: float, overflow: bool = False, rate: float = 0.1) -> np.ndarray:
    """Take a step with the same gradients everywhere; return the first value of each buffer on each device."""
    for buffer in session._buffers:
        for flat in buffer.gradients:
            flat[:] = gradient
    if overflow:
        session._buffers[1].gradients[2][0] = np.inf
    session.sync_gradients()
    session.apply_update(rate)
    session.wait()
    return np.array([[values.asnumpy()[0] for values in buffer.values] for buffer in session._buffers])


@pytest.mark.parametrize("fields", [{}, {"kvstore": "nccl"}, {"kvstore": "none"}, {"optimizer": "adamw"}], ids=str)
def test_a_step_that_overflows_on_one_device_is_skipped_on_all_and_halves_the_scale(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    create = mx.kv.create
    monkeypatch.setattr(mx.kv, "create", lambda name: create("device" if name == "nccl" else name))
    scaled, plain = connected("float16", **fields), connected(**fields)
    expected = np.ones((4, DEVICES))
    for overflow, scale, good in ((True, 512, 0), (False, 512, 1), (True, 256, 0), (False, 256, 1), (False, 256, 2)):
        seen = train(scaled, scaled.state()["loss_scale"][0], overflow)
        expected = train(plain, 1.0) if not overflow else expected
        assert np.array_equal(seen, expected)
        assert scaled.state()["loss_scale"].tolist() == [scale, good]
    resumed = connected("float16", **fields)
    resumed._load_optimizers(scaled.state())
    expected_state = {name: array for name, array in scaled.state().items() if not name.startswith("parameter/")}
    assert all(np.array_equal(array, resumed.state()[name]) for name, array in expected_state.items())


def test_the_momentum_is_corrected_for_a_learning_rate_whose_step_overflows() -> None:
    scaled, plain = (connected(dtype, optimizer=SGD(momentum_correction=True)) for dtype in ("float16", "float32"))
    for overflow, rate in ((False, 0.1), (True, 0.2), (False, 0.4)):
        seen = train(scaled, scaled.state()["loss_scale"][0], overflow, rate)
        if not overflow:
            np.testing.assert_allclose(seen, train(plain, 1.0, rate=rate), rtol=1e-6)


@pytest.mark.parametrize(("batch", "scale"), [(32, 1024), (128, 512)])
def test_a_device_s_loss_is_scaled_at_first_as_that_of_64_samples_at_most(batch: int, scale: float) -> None:
    assert connected("float16", batch_per_device=batch).state()["loss_scale"].tolist() == [scale, 0]


def test_the_scale_doubles_after_two_thousand_finite_steps_in_a_row() -> None:
    scaler = LossScale(8.0)
    seen = [(0, 8.0)]
    for step in range(1, 4100):
        scaler.update(float(step != 50))
        if scaler.scale != seen[-1][1]:
            seen.append((step, scaler.scale))
    assert seen == [(0, 8.0), (50, 4.0), (2050, 8.0), (4050, 16.0)]


# Between workers: real processes and sockets


def between_workers(test: Any) -> Any:
    return pytest.mark.slow(pytest.mark.skipif(MACHINE.cores < 2, reason="two workers need two cores")(test))


def run_of_two(kvstore: KVStore, **fields: object) -> Run:
    return run_of(devices=2, workers=2, kvstore=kvstore, **fields)


@between_workers
def test_dist_async_with_one_worker_equals_local(tmp_path: Path) -> None:
    local = run_of()
    (seen,) = workers(dataclasses.replace(local, kvstore=DistAsync()), tmp_path)
    assert distance(seen, trained(frameworks.open_session(local), local)) < 1e-5


@between_workers
def test_no_worker_is_further_ahead_than_the_staleness_bound_and_all_agree_at_the_end(tmp_path: Path) -> None:
    run = run_of_two(SSP(BOUNDS[0]), steps=8)
    made = workers(run, tmp_path, "clocks")
    ahead: dict[int, Any] = {}
    for seen in made:
        own, slowest = seen["seen"][:, seen["rank"]], seen["seen"].min(axis=1)
        assert own.tolist() == list(range(1, len(BOUNDS) * run.steps + 1))
        ahead[int(seen["rank"])] = np.split(own - slowest, len(BOUNDS))
    # The slow one is never ahead by more than the step that it has just done; the other goes as far as it may.
    assert max(map(max, ahead[1])) <= 1
    assert [max(steps) for steps in ahead[0]] == [run.steps if bound is None else bound for bound in BOUNDS]
    assert distance(*made) == 0
    assert sum(seen["evaluated"] for seen in made) == 70
    assert {str(seen["sums right"]) for seen in made} == {"None"}


@between_workers
@pytest.mark.parametrize(
    "kvstore",
    [DistSync(two_bit=1.0), DistSync(gradient_bits=16), pytest.param(Horovod(gradient_bits=16), marks=needs_horovod)],
    ids=str,
)
def test_the_error_of_fewer_bits_is_bounded(kvstore: KVStore, tmp_path: Path) -> None:
    left, right = workers(run_of_two(kvstore), tmp_path, "sums")
    assert np.array_equal(left["received"], right["received"])
    error = np.abs(left["received"] - SUMS * (left["sent"] + right["sent"]))
    if getattr(kvstore, "two_bit", None):
        # Each worker keeps less than the threshold for the next synchronisation.
        assert 0.5 < error.max() <= 2 * 1.0 + 1e-4
    else:
        # Each of two values of up to 1 and a sum of up to 2 is rounded to 11 binary digits.
        assert 1e-5 < error.max() / SUMS <= 2 * 2**-12 + 2**-11


@pytest.mark.parametrize("resolved", ["127.0.1.1", "192.168.1.5"])  # the first as on Debian
def test_horovod_reports_a_host_name_of_another_interface(monkeypatch: pytest.MonkeyPatch, resolved: str) -> None:
    interfaces = {"127.0.0.1": "lo", "127.0.1.1": "lo", "192.168.1.5": "eth1", "10.77.0.1": "eth0"}
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (resolved, 0))])
    monkeypatch.setattr("poc.host.processes.interface", interfaces.__getitem__)
    for name in ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HOROVOD_HOSTNAME", "10.77.0.1")
    with pytest.raises(OSError, match=rf"^host \S+ \(10\.77\.0\.1\): .*{re.escape(resolved)}"):
        distributed.HorovodSession._open_store(object())  # type: ignore[arg-type]
    monkeypatch.setenv("HOROVOD_HOSTNAME", "127.0.0.1")
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(ImportError, match="horovod"):
        distributed.HorovodSession._open_store(object())  # type: ignore[arg-type]


@needs_horovod
def test_between_gpus_horovod_needs_nccl() -> None:
    # In a process of its own: PyTorch crashes when it is imported after Horovod.
    code = (
        "from types import SimpleNamespace as Fake; from poc.frameworks.mxnet import prepare; prepare(); "
        "from poc.frameworks.mxnet.distributed import HorovodSession; "
        "HorovodSession._open_store(Fake(_run=Fake(kind='gpu')))"
    )
    done = python(code, HOROVOD_HOSTNAME="127.0.0.1")
    assert "OSError: Horovod was built without NCCL" in done.stderr.splitlines()[-1]


def test_drop_out_on_a_gpu_draws_from_the_generators_that_are_seeded() -> None:
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dropout(0.5), mx.gluon.nn.Dropout(0.25, axes=(1,)))
    net.apply(networks.draw_by_mxnet)
    layers = json.loads(net(mx.sym.var("images")).tojson())["nodes"][1:]
    options = [(layer["attrs"]["p"], layer["attrs"]["axes"], layer["attrs"]["cudnn_off"]) for layer in layers]
    assert options == [("0.5", "()", "True"), ("0.25", "(1,)", "True")]
