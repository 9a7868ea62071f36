"""The step-time breakdown: computation, synchronisation and waiting, measured in a pass after the training.

The barriers that this needs would disturb the run that it explains, so it is a pass of its own.
"""

import statistics
import time
from collections.abc import Iterator

from poc.config import NoSync
from poc.config.run import Run
from poc.data import Batch
from poc.frameworks import Session
from poc.frameworks.session import WrongSumError
from poc.records.record import Breakdown

ROUNDS = 7
_WINDOW_STEPS = 4


def steps_of(rounds: int) -> int:
    """Return the batches that `measure` uses: each round has a window of whole steps and one of independent steps."""
    return rounds * 2 * _WINDOW_STEPS


def check_sums(session: Session) -> None:
    """Raise WrongSumError if the gradient synchronisation does not give the sum of all devices' gradients."""
    if session.sync_is_correct() is False:
        raise WrongSumError


def measure(session: Session, batches: Iterator[Batch], run: Run, rounds: int) -> Breakdown:
    """Measure the parts of a step in alternating windows, after which the replicas no longer agree.

    Raises WrongSumError if the gradient synchronisation does not give the sum of all devices' gradients.

    The first of the `rounds` is warm-up. Bus bandwidth is n bytes x 2 (devices - 1) / devices / t, as NCCL's tests
    define it.
    """
    synchronises = run.synchronises and not isinstance(run.kvstore, NoSync)
    check_sums(session)
    _, *measured = [_round(session, batches, run.learning_rate) for _ in range(rounds)]
    step, independent, barrier, sync, issue = map(statistics.median, zip(*measured))
    bus_bytes = session.gradient_bytes * 2 * (run.devices - 1) / run.devices
    return Breakdown(
        whole_step_seconds=step,
        independent_step_seconds=independent,
        exchange_seconds=sync if synchronises else 0.0,
        bus_bytes_per_second=bus_bytes / sync if synchronises else None,
        synchronisation_seconds=barrier if run.workers > 1 else None,
        issue_seconds=None if run.straggler or run.emulated else issue,
    )


def _round(session: Session, batches: Iterator[Batch], learning_rate: float) -> list[float]:
    """Return mean seconds over a window of a whole step, an independent step, and of other parts.

    The parts are the wait for other workers after independent steps, the synchronisation alone, and the call that
    enqueues a step.
    """
    step, issue = _steps(session, batches, learning_rate)
    with session.without_sync():
        independent, _ = _steps(session, batches, learning_rate)
    start = time.monotonic()
    session.barrier()
    arrived = time.monotonic()
    for _ in range(_WINDOW_STEPS):
        session.all_reduce_alone()
    session.drain()
    seconds = (step, independent, arrived - start, time.monotonic() - arrived)
    return [*(part / _WINDOW_STEPS for part in seconds), issue]


def _steps(session: Session, batches: Iterator[Batch], learning_rate: float) -> tuple[float, float]:
    """Return the seconds of a window of steps, and of the call of the first step.

    The devices are idle when that begins, so it does not wait for room in their queue.
    """
    session.barrier()
    start, first_call = time.monotonic(), 0.0
    for number in range(_WINDOW_STEPS):
        batch = next(batches)
        arrived = time.monotonic()
        session.step(batch, learning_rate)
        if number == 0:
            first_call = time.monotonic() - arrived
    session.drain()
    return time.monotonic() - start, first_call
