"""What is MXNet's alone: its operators and precisions, and the cards that it runs on."""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import Any

import pytest

from poc import Muon, engines
from poc.machine.hardware import detect
from poc.run import Run
from tests import stand_in
from tests.engine_worker import Arrays, batches, distance, planned, trained
from tests.launch import python


def after(run: Run) -> Arrays:
    return trained(engines.open_session(run), run)


@pytest.mark.slow
def test_batch_norm_and_relu_in_one_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    run = planned("gluon", lr=0.05).run
    fused = after(run)
    from poc.engines.gluon import networks, session

    assert networks.can_fuse() or pytest.skip("this CPU has no fused operator")
    monkeypatch.setattr(session, "can_fuse", lambda: False)
    assert distance(after(run), fused) < 1e-5
    assert distance(after(planned("gluon", lr=0.05, steps=1).run), fused) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cifar_resnet20_v2_no_norm", "cifar_resnet8_v2"])
def test_batch_norm_is_what_sets_four_devices_apart_from_one(model: str) -> None:
    one, four = (
        after(planned("gluon", model=model, devices=devices, batch_per_device=128 // devices, lr=1e-5).run)
        for devices in (1, 4)
    )
    assert (distance(one, four) < 1e-5) == model.endswith("no_norm")


def issuing(optimizer: object, devices: int, steps: int = 5) -> float:
    """CPU seconds a step of ResNet-50 at batch 1 costs the thread that issues it; MXNet computes in others."""
    fields = {"model": "cifar_resnet50_v2", "batch_per_device": 1, "optimizer": optimizer, "devices": devices}
    run = planned("gluon", **fields).run
    session = engines.open_session(run)
    (batch,) = batches(run, steps=1)
    taken = []
    for _ in range(3 + steps):
        start = time.thread_time()
        session.step(batch, run.learning_rate)
        taken.append(time.thread_time() - start)
        session.drain()
    return statistics.median(taken[3:])


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", Muon(rate=0.02)], ids=str)
def test_a_step_on_eight_devices_costs_the_main_thread_at_most_twice_that_on_one(optimizer: object) -> None:
    # 9 times as long where it issued all devices' work itself.
    alone, together = (issuing(optimizer, devices) for devices in (1, 8))
    assert together < min(2 * alone, 0.016)


@pytest.mark.parametrize(
    ("machine", "fusion"), [("8 P100", "0"), ("4 V100, old driver", "0"), ("4 A10G", "None"), ("no driver", "None")]
)
def test_operators_are_fused_only_where_the_driver_can_read_the_code(machine: str, fusion: str) -> None:
    code = "import os; from poc.engines.gluon import compatibility; compatibility.prepare(); "
    code += "print(os.environ.get('MXNET_USE_FUSION'))"
    assert python(code, **stand_in.environment(machine)).stdout.split() == [fusion]


@pytest.mark.parametrize("dtype", ["float32", "float16", "tf32"])
def test_products_are_rounded_to_tf32_only_where_that_is_asked_for(dtype: str) -> None:
    run = dataclasses.replace(planned("gluon").run, dtype=dtype)
    with engines.load("gluon").cluster(run, 1) as cluster:
        (environment,) = cluster.environments
    assert environment.get("NVIDIA_TF32_OVERRIDE") == (None if dtype == "tf32" else "0")


def test_the_most_memory_that_a_card_has_given_is_read_at_the_edges_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = engines.open_session(planned("gluon", devices=2).run)
    session.drain()
    assert session.peak_device_bytes() is None
    session._run = dataclasses.replace(session._run, kind="gpu")
    for free in ({0: 7, 1: 9}, {0: 8, 1: 4}, {0: 8, 1: 8}):
        monkeypatch.setattr("mxnet.context.gpu_memory_info", lambda device, free=free: (free[device], 10))
        session.drain()
    assert session.peak_device_bytes() == 6


def test_a_checkpoint_has_what_all_devices_have_alike_once() -> None:
    shared, apart = (
        engines.open_session(planned("gluon", devices=2, exchange=exchange).run).state()
        for exchange in ("device", "independent")
    )
    assert shared.keys() < apart.keys()
    assert all(name.endswith(("running_mean/1", "running_var/1")) for name in shared if name.endswith("/1"))
    assert {name[:-1] for name in apart if name.endswith("/1")} == {name[:-1] for name in shared}


# What one step from the same weights adds to each: the learning rate times its gradient.
BFLOAT16 = """
import numpy as np
from poc import SGD, Synthetic, engines
from tests.engine_worker import batches, parameters, planned
def gradients(dtype, fields):
    run = planned("gluon", data=Synthetic(size=28, crop=28, train=256), batch_per_device=64 // fields.get("devices", 1),
                  optimizer=SGD(weight_decay=0.0, momentum=0.0), dtype=dtype, steps=1, **fields).run
    session = engines.open_session(run)
    before = parameters(session)
    for batch in batches(run):
        session.step(batch, 1.0)
    after = parameters(session)
    return {name: (before[name] - after[name]).ravel() for name in before if "running" not in name}
ways = ({}, {"devices": 2, "virtual": True})
# All in float32 first: the casts stay.
both = [[gradients(dtype, fields) for fields in ways] for dtype in ("float32", "bfloat16")]
norm = np.linalg.norm
for wide, narrow in zip(*both):
    assert wide.keys() == narrow.keys(), "parameters stay in float32"
    pairs = [(wide[name], narrow[name]) for name in wide if wide[name].any()]
    print(min(float(left @ right / (norm(left) * norm(right) + 1e-30)) for left, right in pairs),
          min(float(norm(right) / norm(left)) for left, right in pairs),
          max(float(norm(right - left) / norm(left)) for left, right in pairs))
"""


@pytest.mark.slow
@pytest.mark.skipif(not detect().bfloat16, reason="this CPU has no AVX-512 bf16")
def test_bfloat16_gives_every_parameter_a_gradient_of_the_right_direction_and_size() -> None:
    # With the fused norm of float32 the first weights got a wrong one, and with virtual devices all weights a zero. Its
    # casts change MXNet for good: a process of its own.
    done = python(BFLOAT16)
    assert done.returncode == 0, done.stderr
    figures = [[float(word) for word in line.split()] for line in done.stdout.splitlines()[-2:]]
    for cosine, size, difference in figures:
        assert min(cosine, size) > 0.8, figures
        assert difference > 1e-4, figures
