"""MXNet's exchanges between workers that promise something else than sums: real processes and sockets."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from poc import DistAsync, DistSync, Horovod, Stale, engines
from poc.recipe.exchanges import Exchange
from poc.run import Run
from tests.engine_worker import CORES, SUMS, distance, planned, trained, workers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CORES < 2, reason="two workers need two cores"),
]
needs_horovod = pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed")


def between_two(exchange: Exchange, **fields: object) -> Run:
    return planned("gluon", devices=2, workers=2, exchange=exchange, **fields).run


def test_dist_async_with_one_worker_equals_local(tmp_path: Path) -> None:
    local = planned("gluon").run
    (seen,) = workers(dataclasses.replace(local, exchange=DistAsync()), tmp_path)
    assert distance(seen, trained(engines.open_session(local), local)) < 1e-5


def test_workers_of_dist_async_agree_when_they_are_evaluated(tmp_path: Path) -> None:
    seen = workers(between_two(DistAsync()), tmp_path, seeds=(1, 2))
    assert distance(*seen) == 0
    assert sum(worker["evaluated"][1] for worker in seen) == 70
    assert {str(worker["sums right"]) for worker in seen} == {"None"}


@pytest.mark.parametrize("bound", [0, 2, None])
def test_no_worker_is_further_ahead_than_the_bound(bound: int | None, tmp_path: Path) -> None:
    run = between_two(Stale(bound), straggler=5.0, steps=8)
    ahead = {}
    for seen in workers(run, tmp_path, "clocks"):
        rank = int(seen["rank"])
        own = seen["seen"][:, rank]
        assert own.tolist() == list(range(1, run.steps + 1))
        ahead[rank] = int((own - seen["seen"].min(axis=1)).max())
    # The slow one is never ahead by more than the step that it has just done; the other goes as far as it may.
    assert ahead[1] <= 1
    assert ahead[0] == (run.steps if bound is None else bound)


@pytest.mark.parametrize(
    "exchange",
    [DistSync(two_bit=1.0), DistSync(gradient_bits=16), pytest.param(Horovod(gradient_bits=16), marks=needs_horovod)],
    ids=str,
)
def test_what_fewer_bits_lose_is_bounded(exchange: Exchange, tmp_path: Path) -> None:
    left, right = workers(between_two(exchange), tmp_path, "sums")
    assert np.array_equal(left["received"], right["received"])
    error = np.abs(left["received"] - SUMS * (left["sent"] + right["sent"]))
    if getattr(exchange, "two_bit", None):
        # What each worker keeps back for the next exchange is less than the threshold.
        assert 0.5 < error.max() <= 2 * 1.0 + 1e-4
    else:
        # Each of two values of up to 1 and a sum of up to 2 is rounded to 11 binary digits.
        assert 1e-5 < error.max() / SUMS <= 2 * 2**-12 + 2**-11
