"""What a worker tells of itself as it happens, and the run that several workers have told of."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from poc.machine import processes
from poc.records.record import COMPLETED, FAILED, Evaluation, Memory, Record, Told, Worker
from poc.records.timing import Window
from poc.values import from_plain

# The events of which there may be several, and the fields that they are gathered in.
_LISTED = dict(window="windows", evaluation="evaluations", norms="norms", resumed="resumed", unsaved="unsaved")
T = TypeVar("T")


def read(events: Path, status: int) -> Told:
    """What the worker told whose file of `events` this is; one that told of no end has failed with exit `status`."""
    found: dict[str, Any] = {name: [] for name in _LISTED.values()}
    for line in events.read_text().splitlines() if events.exists() else []:
        try:
            event = json.loads(line)
        except ValueError:  # torn by a crash; what came before it stands
            continue
        kind = event.pop("event")
        if kind in _LISTED:
            found[_LISTED[kind]].append(event)
        else:
            found.update(event)
    if "outcome" not in found:
        found.update(outcome=FAILED, reason=processes.ended_early(status))
    return from_plain(Told, found)


def merged(blank: Record, told: Sequence[Told]) -> Record:
    """The record of a run of which all its workers have told: samples of all of them in the time of the slowest."""
    ended = [worker for worker in told if worker.wall is not None] or told
    slowest = max(ended, key=lambda worker: worker.wall or 0.0)
    # The first to fail says why; those that were stopped for its sake only say that they were.
    blamed = next((worker for worker in ended if worker.outcome != COMPLETED), slowest)
    peaks = _known(worker.peak_flops for worker in told)
    workers = [
        Worker(worker=number, windows=own.windows, parts=own.parts, wall=own.wall, exchanged=own.exchanged)
        for number, own in enumerate(told)
    ]
    fields = {name: held for name, held in vars(slowest).items() if held not in (None, "")}
    fields.update(
        outcome=blamed.outcome,
        reason=blamed.reason,
        windows=tuple(map(_window, zip(*(worker.windows for worker in told)))),
        evaluations=tuple(map(_evaluation, zip(*(worker.evaluations for worker in told)))),
        memory=Memory(
            host_peak_bytes=sum(_known(worker.memory.host_peak_bytes for worker in told)) or None,
            device_peak_bytes=max(_known(worker.memory.device_peak_bytes for worker in told), default=None),
        ),
        peak_flops=sum(peaks) if len(peaks) == len(told) else None,
        workers=tuple(workers) if len(told) > 1 else (),
    )
    return dataclasses.replace(blank, **fields)


def _known(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]


def _window(windows: tuple[Window, ...]) -> Window:
    """One stretch of steps of all workers: the samples of all, in the time of the slowest."""
    losses = _known(window.loss for window in windows)
    return dataclasses.replace(
        max(windows, key=lambda window: window.seconds),
        start=min(window.start for window in windows),
        samples=sum(window.samples for window in windows),
        loss=sum(losses) / len(losses) if len(losses) == len(windows) else None,
    )


def _evaluation(evaluations: tuple[Evaluation, ...]) -> Evaluation:
    """One evaluation of all workers, each of which had its share of the validation set."""
    samples = sum(evaluation.samples for evaluation in evaluations)
    losses = [evaluation.loss * evaluation.samples for evaluation in evaluations if evaluation.loss is not None]
    correct = sum(round(evaluation.accuracy * evaluation.samples) for evaluation in evaluations)
    return dataclasses.replace(
        max(evaluations, key=lambda evaluation: evaluation.seconds),
        samples=samples,
        accuracy=correct / samples,
        loss=sum(losses) / samples if len(losses) == len(evaluations) else None,
    )
