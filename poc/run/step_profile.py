"""A pass after the training that takes a step apart: computation, communication, waiting for one another.

The synchronisation that this takes would disturb the run that it explains, so it is a pass of its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Callable

from poc.config import NoSync
from poc.config.run import Run
from poc.data import Batch
from poc.frameworks import Session
from poc.records.record import Breakdown
from poc.records.timing import spread

ROUNDS = 7
_STEPS_A_WINDOW = 4
_BATCHES_ALONE = 100_000  # more than can be made in that time
_SECONDS_ALONE = 2.0


class WrongSumError(Exception):
    """What the run trained is nothing."""


def steps_of(rounds: int) -> int:
    """Batches that `measure` takes: each round has a window of whole steps and one of independent steps."""
    return rounds * 2 * _STEPS_A_WINDOW


def measure(
    session: Session, batches: Iterator[Batch], run: Run, rounds: int, alone: Callable[[int], Iterator[Batch]]
) -> Breakdown:
    """Takes a step apart by windows that take turns, after which the replicas no longer agree.

    Raises WrongSumError where the exchange does not give the sum of all devices' gradients.

    `alone(n)` makes n of this worker's batches anew, and nothing ahead.

    The first of the `rounds` is warm-up. Bus bandwidth is n bytes x 2 (devices - 1) / devices / t, as NCCL's tests
    define it.
    """
    several = run.synchronises and not isinstance(run.kvstore, NoSync)
    sums_right = session.sync_is_correct() if several else None
    if sums_right is False:
        raise WrongSumError("the gradient synchronisation does not give the sum of all devices' gradients")
    _, *kept = [_round(session, batches, run.learning_rate) for _ in range(rounds)]
    whole, independent, barrier, exchange, data, issuing = map(statistics.median, zip(*kept))
    efficiencies = [(alone + waiting) / together for together, alone, waiting, *_ in kept]
    moved = session.gradient_bytes * 2 * (run.devices - 1) / run.devices
    return Breakdown(
        steps=len(kept) * _STEPS_A_WINDOW,
        efficiency=statistics.median(efficiencies) if several else None,
        efficiency_spread=spread(efficiencies) if several else None,
        pairs=len(kept),
        whole_step_seconds=whole,
        independent_step_seconds=independent,
        exchange_seconds=exchange if several else 0.0,
        exchange_bytes=session.gradient_bytes,
        bus_bytes_per_second=moved / exchange if several else None,
        sums_right=sums_right,
        synchronisation_seconds=barrier if run.workers > 1 else None,
        data_seconds=data,
        pipeline_seconds=_pipeline(session, alone),
        issue_seconds=issuing,
    )


def _pipeline(session: Session, alone: Callable[[int], Iterator[Batch]]) -> float:
    """Seconds in which all workers make a batch each while nothing is trained, from the start: threads make several at
    once, so that after the first of them others are ready."""
    session.barrier()
    count, start = 0, time.monotonic()
    for _ in alone(_BATCHES_ALONE):
        count, seconds = count + 1, time.monotonic() - start
        if seconds > _SECONDS_ALONE:
            break
    return seconds / count


def _round(session: Session, batches: Iterator[Batch], rate: float) -> list[float]:
    """Seconds a step, each over a window.

    With the exchange; without it; waiting for the other workers after that; the exchange alone; waiting for data; the
    CPU time in which the main thread issues a step.
    """
    whole, waited, issuing = _steps(session, batches, rate, session.step)
    independent, *_ = _steps(session, batches, rate, session.step_without_sync)
    start = time.monotonic()
    session.barrier()
    arrived = time.monotonic()
    for _ in range(_STEPS_A_WINDOW):
        session.all_reduce_gradients()
    session.drain()
    seconds = (whole, independent, arrived - start, time.monotonic() - arrived, waited, issuing)
    return [part / _STEPS_A_WINDOW for part in seconds]


def _steps(
    session: Session, batches: Iterator[Batch], rate: float, step: Callable[[Batch, float], None]
) -> tuple[float, float, float]:
    """Seconds of a window of steps, those of waiting for data, and this thread's CPU time until it drains."""
    session.barrier()
    start, waited, issuing = time.monotonic(), 0.0, time.thread_time()
    for _ in range(_STEPS_A_WINDOW):
        asked = time.monotonic()
        batch = next(batches)
        waited += time.monotonic() - asked
        step(batch, rate)
    issuing = time.thread_time() - issuing
    session.drain()
    return time.monotonic() - start, waited, issuing
