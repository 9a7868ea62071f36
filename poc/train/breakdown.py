"""A pass after the training that takes a step apart: computation, communication, waiting for one another.

The synchronisation that this takes would disturb the run that it explains, so it is a pass of its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any, Callable

from poc.data import Batch
from poc.engines import Session
from poc.recipe import Independent
from poc.records.timing import spread
from poc.run import Run

ROUNDS = 7
_STEPS_A_WINDOW = 4


def steps_of(rounds: int) -> int:
    """Batches that `measure` takes: each round has a window of whole steps and one of independent steps."""
    return rounds * 2 * _STEPS_A_WINDOW


def measure(
    session: Session,
    batches: Iterator[Batch],
    run: Run,
    rounds: int = ROUNDS,
    now: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Seconds a step, each a median over windows that take turns, after which the replicas no longer agree.

    The first of the `rounds` is warm-up.

    `whole_step_seconds`: with the exchange. `independent_step_seconds`: computation and update alone.
    `exchange_seconds`: the exchange of the network's own gradients alone, and `bus_bytes_per_second` what that is as
    bus bandwidth (n bytes x 2 (devices - 1) / devices / t, as NCCL's tests define it). `sums_right`: whether it gave
    every replica the sum, None where there is nothing to exchange. `synchronisation_seconds`: what this worker waits a
    step for the others when nothing is exchanged, None with one worker. `data_seconds`: what it waits for data.
    `efficiency`: what an independent step and the wait for the others after it are of a whole step, the median over
    pairs of neighbouring windows, with its spread (1.4826 x median absolute deviation) and the number of `pairs`.
    """
    seconds: dict[str, list[float]] = {"whole": [], "independent": [], "exchange": [], "barrier": [], "data": []}

    def steps(exchange: bool) -> tuple[float, float]:
        session.barrier()
        start, waited = now(), 0.0
        for _ in range(_STEPS_A_WINDOW):
            asked = now()
            batch = next(batches)
            waited += now() - asked
            session.step(batch, run.learning_rate, exchange=exchange)
        session.drain()
        return (now() - start) / _STEPS_A_WINDOW, waited / _STEPS_A_WINDOW

    several = run.devices > 1 and not isinstance(run.exchange, Independent) and not run.virtual
    right = session.exchange_is_right() if several else None
    ratios = []
    for number in range(rounds):
        whole, waited = steps(True)
        alone, _ = steps(False)
        start = now()
        session.barrier()
        barrier = (now() - start) / _STEPS_A_WINDOW
        start = now()
        for _ in range(_STEPS_A_WINDOW):
            session.exchange()
        session.drain()
        exchange = (now() - start) / _STEPS_A_WINDOW
        if number > 0:
            ratios.append((alone + barrier) / whole)
            for name, value in zip(seconds, (whole, alone, exchange, barrier, waited)):
                seconds[name].append(value)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    size = session.gradient_bytes
    efficiency = statistics.median(ratios)
    return {
        "steps": (rounds - 1) * _STEPS_A_WINDOW,
        "efficiency": efficiency if several else None,
        "efficiency_spread": spread(ratios) if several else None,
        "pairs": len(ratios),
        "whole_step_seconds": median["whole"],
        "independent_step_seconds": median["independent"],
        "exchange_seconds": median["exchange"] if several else 0.0,
        "exchange_bytes": size,
        "bus_bytes_per_second": (size * 2 * (run.devices - 1) / run.devices / median["exchange"] if several else None),
        "sums_right": right,
        "synchronisation_seconds": median["barrier"] if run.workers > 1 else None,
        "data_seconds": median["data"],
    }
