"""Exchanges between workers: real processes and sockets, a small network, held to what one process does."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import DistAsync, DistSync, Horovod, Recipe, Stale, Synthetic, engines
from poc.engines import gluon
from poc.machine.hardware import Hardware
from poc.plan import plan
from poc.recipe import Exchange
from poc.run import Run
from tests import exchange_worker

pytestmark = pytest.mark.slow

HOME = Path(__file__).parent.parent
CPU = Hardware(cpu="Test CPU", cores=4, memory_bytes=2**34, cpu_flops=2e11)


def run_of(**fields: Any) -> Run:
    """Five steps of a small network, with momentum, weight decay and a rate that rises over four of them."""
    base: dict[str, Any] = {
        "model": "cifar_resnet8_v2",
        "data": Synthetic(size=16, crop=16, train=640, validation=70),
        "kind": "cpu",
        "lr": 0.01,  # a larger one amplifies the rounding of sums in another order within five steps
        "batch_per_device": 8,
        "steps": 5,
    }
    (planned,) = plan("", Recipe(**{**base, **fields}), CPU)
    return dataclasses.replace(planned.run, warmup_steps=4, warmup_from=0.002)


def workers(run: Run, folder: Path, what: str) -> list[dict[str, np.ndarray]]:
    """What each worker of `run`, in a process of its own, found out."""
    files = [folder / f"{worker}.npz" for worker in range(run.workers)]
    # As many threads as this process has: with another number, sums round differently, which training amplifies.
    with gluon.cluster(run, int(os.environ["OMP_NUM_THREADS"])) as cluster:
        processes = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.exchange_worker", str(worker), fields, str(file), what],
                cwd=HOME,
                env={**os.environ, **environment},
            )
            for worker, (file, environment) in enumerate(zip(files, cluster.environments))
            for fields in [json.dumps(run.to_json())]
        ]
        try:
            assert [process.wait(timeout=100) for process in processes] == [0] * run.workers
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return [dict(np.load(file)) for file in files]


def alone(run: Run, seed: int = 0) -> dict[str, np.ndarray]:
    """The parameters that one process reaches."""
    return exchange_worker.trained(engines.load("gluon").open_session(dataclasses.replace(run, seed=seed)), run)


def distance(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> float:
    """The largest relative difference of any parameter, each measured against its own size."""
    assert left.keys() == right.keys()
    return max(
        float(np.linalg.norm(left[name] - right[name]) / max(np.linalg.norm(right[name]), 1e-6))
        for name in left
        if name != "samples evaluated"
    )


needs_horovod = pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed")


@pytest.mark.parametrize(
    "fields",
    [
        {"exchange": "dist_sync"},
        {"exchange": DistSync(servers=2)},
        {"exchange": "dist_device_sync"},
        # One step: four gradients are added in another order than by one process, which more steps would amplify.
        {"exchange": "dist_sync", "devices": 4, "steps": 1},
        pytest.param({"exchange": "horovod"}, marks=needs_horovod),
        pytest.param({"exchange": "horovod", "devices": 4, "steps": 1}, marks=needs_horovod),
    ],
    ids=[
        *("one server", "two servers", "dist_device_sync", "two devices each", "horovod"),
        "horovod, two devices each",
    ],
)
def test_two_workers_end_with_the_parameters_of_one_process(fields: dict[str, Any], tmp_path: Path) -> None:
    run = run_of(**{"devices": 2, "workers": 2, **fields})
    one, other = workers(run, tmp_path, "trained")
    assert distance(one, other) < 1e-5
    # Which worker registers first, and so gives the weights, is a matter of chance.
    whole = run_of(devices=run.devices, steps=run.steps)
    assert min(distance(one, alone(whole, seed)) for seed in exchange_worker.SEEDS) < 1e-5
    assert one["samples evaluated"] + other["samples evaluated"] == 70


def test_dist_async_with_one_worker_equals_local(tmp_path: Path) -> None:
    run = dataclasses.replace(run_of(), exchange=DistAsync())
    (found,) = workers(run, tmp_path, "trained")
    assert distance(found, alone(run_of(), exchange_worker.SEEDS[0])) < 1e-5


def test_workers_of_dist_async_agree_when_they_are_evaluated(tmp_path: Path) -> None:
    one, other = workers(run_of(devices=2, workers=2, exchange="dist_async"), tmp_path, "trained")
    assert distance(one, other) == 0


@pytest.mark.parametrize("bound", [0, 2, None])
def test_no_worker_is_further_ahead_than_the_bound(bound: int | None, tmp_path: Path) -> None:
    run = run_of(devices=2, workers=2, exchange=Stale(bound), straggler=5.0, steps=8)
    ahead = []
    for found in workers(run, tmp_path, "clocks"):
        own = found["seen"][:, found["rank"]]
        assert own.tolist() == list(range(1, run.steps + 1))
        ahead.append(int((own - found["seen"].min(axis=1)).max()))
    # The slow one is never ahead; the other goes as far as it may.
    assert min(ahead) <= 1
    assert max(ahead) == bound if bound is not None else max(ahead) > 2


def test_two_bits_lose_no_more_than_the_threshold_of_each_worker(tmp_path: Path) -> None:
    run = run_of(devices=2, workers=2, exchange=DistSync(two_bit=1.0))
    one, other = workers(run, tmp_path, "sums")
    assert np.array_equal(one["received"], other["received"])
    error = np.abs(one["received"] - exchange_worker.EXCHANGES * (one["sent"] + other["sent"]))
    assert 0.5 < error.max() <= 2 * 1.0 + 1e-4


@pytest.mark.parametrize(
    "exchange", [DistSync(gradient_bits=16), pytest.param(Horovod(gradient_bits=16), marks=needs_horovod)], ids=str
)
def test_sixteen_bits_keep_eleven_of_them(exchange: Exchange, tmp_path: Path) -> None:
    one, other = workers(run_of(devices=2, workers=2, exchange=exchange), tmp_path, "sums")
    assert np.array_equal(one["received"], other["received"])
    error = np.abs(one["received"] / exchange_worker.EXCHANGES - (one["sent"] + other["sent"]))
    # Each of two values of up to 1 and a sum of up to 2 is rounded to 11 binary digits.
    assert 1e-5 < error.max() <= 2 * 2**-12 + 2**-11


def test_workers_that_exchange_nothing_go_their_own_ways_from_one_start(tmp_path: Path) -> None:
    run = run_of(devices=2, workers=2, exchange="independent")
    start = [dict(found) for found in workers(dataclasses.replace(run, steps=0), tmp_path, "trained")]
    assert distance(*start) == 0
    assert distance(*workers(run, tmp_path, "trained")) > 1e-3
