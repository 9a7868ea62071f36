"""What a worker tells of itself as it happens, and the run that several workers have told of."""

from __future__ import annotations

import dataclasses
import json
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from poc.machine import processes
from poc.records.noise import Norms
from poc.records.record import COMPLETED, FAILED, Breakdown, CheckpointNote, Evaluation, Exchanged, Memory, Record
from poc.records.record import Worker as WorkerRecord
from poc.records.timing import Clock, Window
from poc.values import from_plain, value

_LISTED = {
    "window": "windows",
    "evaluation": "evaluations",
    "norms": "norms",
    "resumed": "resumed",
    "unsaved": "unsaved",
}


@value
class Told:
    """What one worker told; all but the lists and the outcome is there only where it told of its end."""

    outcome: str
    reason: str = ""
    windows: tuple[Window, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    norms: tuple[Norms, ...] = ()
    resumed: tuple[CheckpointNote, ...] = ()
    unsaved: tuple[CheckpointNote, ...] = ()
    dataset: str | None = None
    parameters: int | None = None
    parts: dict[str, float] = dataclasses.field(default_factory=dict)
    wall: float | None = None
    host_peak_bytes: int | None = None
    device_peak_bytes: int | None = None
    peak_flops: float | None = None
    exchanged: Exchanged | None = None
    detail: Breakdown | None = None


def used(clock: Clock) -> dict[str, Any]:
    """The fields of a worker's end that say what it has used so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"parts": clock.parts, "wall": clock.elapsed(), "host_peak_bytes": usage.ru_maxrss * 1024}


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
    # The first to fail says why; those that were stopped for its sake only say that they were.
    ended = [worker for worker in told if worker.wall is not None]
    blamed = [worker for worker in ended or told if worker.outcome != COMPLETED]
    slowest = max(ended or told, key=lambda worker: worker.wall or 0.0)
    host = [worker.host_peak_bytes for worker in ended if worker.host_peak_bytes is not None]
    device = [worker.device_peak_bytes for worker in ended if worker.device_peak_bytes is not None]
    peaks = [worker.peak_flops for worker in told if worker.peak_flops is not None]
    shared = {declared.name for declared in dataclasses.fields(Told)} & {f.name for f in dataclasses.fields(Record)}
    kept = {name: getattr(slowest, name) for name in shared if getattr(slowest, name) is not None}
    return dataclasses.replace(
        blank,
        **{
            **kept,
            "outcome": (blamed[0] if blamed else slowest).outcome,
            "reason": (blamed[0] if blamed else slowest).reason,
            "windows": tuple(map(_window, zip(*(worker.windows for worker in told)))),
            "evaluations": tuple(map(_evaluation, zip(*(worker.evaluations for worker in told)))),
            "memory": Memory(
                host_peak_bytes=sum(host) if host else None, device_peak_bytes=max(device) if device else None
            ),
            "peak_flops": sum(peaks) if len(peaks) == len(told) else None,
            "workers": tuple(map(_worker, range(len(told)), told)) if len(told) > 1 else (),
        },
    )


def _worker(number: int, told: Told) -> WorkerRecord:
    return WorkerRecord(worker=number, windows=told.windows, parts=told.parts, wall=told.wall, exchanged=told.exchanged)


def _window(windows: tuple[Window, ...]) -> Window:
    """One stretch of steps of all workers: the samples of all, in the time of the slowest."""
    losses = [window.loss for window in windows if window.loss is not None]
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
