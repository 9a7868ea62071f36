"""One run from start to record: its workers, here or on other hosts, started again where one is lost."""

from __future__ import annotations

import dataclasses
import datetime
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

from poc.config.run import Run
from poc.host import processes
from poc.host.monitor import Monitored
from poc.plan import estimate
from poc.records.record import (
    COMPLETED,
    DIVERGED,
    FAILED,
    OUT_OF_MEMORY,
    Evaluation,
    Memory,
    Record,
    Worker,
    WorkerResult,
)
from poc.records.timing import Window
from poc.run.launcher import HostResult, LocalLauncher, RunContext, software
from poc.run.progress import label

T = TypeVar("T")
_CHECKPOINT_SECONDS = 180.0


class Launcher(Protocol):
    """Do a run on this host (`LocalLauncher`), or on others of one node type (`poc.cluster.team.RayLauncher`)."""

    def steps(self, run: Run, conditions: dict[str, Any]) -> set[int]:
        """The steps after which every worker has a whole checkpoint, made under these conditions."""

    def attempt(self, run: Run, request: dict[str, Any]) -> tuple[list[HostResult], str]:
        """Trains `run` once, each worker told `request`; what each host did, and why it failed, empty where not."""

    def renewed(self) -> bool:
        """Another takes the place of each host that was lost; False where there is none."""

    def forget(self, run: Run) -> None:
        """The record of `run` is safe: its checkpoints are no longer needed."""


def execute(
    run: Run, place: RunContext, hosts: Launcher | None = None, *, detail: int = 0, pace: float = 1.0, title: str = ""
) -> tuple[Record, bool]:
    """Trains `run` in processes of its own, one a worker; returns its record, and whether the user interrupted it.

    Where it was cut off before it goes on from its last checkpoint; where a process is lost it does so `run.restarts`
    times. `detail` adds a pass of so many rounds that takes computation and communication apart. `hosts` do it, None:
    this one alone. `pace` is what such runs took of their estimates. `title` is for its progress line.
    """
    hosts = hosts or LocalLauncher(place)
    record = new_record(run, place, price_per_hour=place.price_per_hour)
    conditions = {
        "versions": record.versions,
        "commit": record.commit,
        "environment": record.environment,
        "machine": place.machine.describe(),
        "images": list(place.images_of(run)),
        "workers_here": run.workers // (place.machine.hosts if run.workers > 1 else 1),
    }
    why = "the run was interrupted"
    for left in range(run.restarts, -1, -1):
        request = {
            "run": run.to_json(),
            "first_step": max((step for step in hosts.steps(run, conditions) if step < run.steps), default=0),
            "why": why,
            "conditions": conditions,
            "checkpoint_every": math.ceil(_CHECKPOINT_SECONDS * run.steps / (pace * estimate(run, place.machine))),
            "detail": detail,
            "images": conditions["images"],
            "title": title or label(run),
        }
        shares, reason = hosts.attempt(run, request)
        workers = [worker for share in shares for worker in share.workers]
        interrupted = any(share.interrupted for share in shares)
        killed_for_memory = reason.endswith(processes.KILLED_FOR_MEMORY)
        if any(worker.outcome in (OUT_OF_MEMORY, DIVERGED) for worker in workers):
            reason = ""  # it would do so again, and is told, whatever it did to other workers
        if not reason or interrupted or killed_for_memory or not left or not hosts.renewed():
            break
        why = reason
        print(f"  {why}; restarting ({left - 1} of {run.restarts} restarts left)", file=sys.stderr)
    reason = "interrupted" if interrupted else reason
    if workers:
        record = dataclasses.replace(record, **merge_workers(workers))
        uses = [share.core_use for share in shares]
        noisiest = max(uses, key=lambda use: (use.others_busy_cores + use.stolen_cores) / max(1, use.usable_cores))
        core_use = {**vars(noisiest), "cpu_seconds": sum(use.cpu_seconds for use in uses)}
        record = dataclasses.replace(record, monitor=_monitored(shares), **core_use)
    if reason:
        outcome = OUT_OF_MEMORY if killed_for_memory and not interrupted else FAILED
        record = dataclasses.replace(record, outcome=outcome, reason=reason)
    return record, interrupted


def new_record(run: Run, place: RunContext, **fields: Any) -> Record:
    """The record of a run of which nothing is known yet but `fields`."""
    return Record(
        run_id=run.id,
        run=run,
        started=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        infrastructure=place.infrastructure,
        hardware=place.machine,
        **(place.software[run.framework] if place.software else software(run.framework)),
        dataset=place.images_of(run).name,
        data_checksum=place.images_of(run).checksum,
        **fields,
    )


def _monitored(shares: Sequence[HostResult]) -> Monitored | None:
    """What the hardware of all hosts did, as one summary; devices of the first host keep their names."""
    first = shares[0].monitor
    devices = [
        dataclasses.replace(device, device=f"host {host} {device.device}") if host else device
        for host, share in enumerate(shares)
        for device in (share.monitor.devices if share.monitor else ())
    ]
    return first and dataclasses.replace(first, devices=tuple(devices))


def merge_workers(results: Sequence[WorkerResult]) -> dict[str, Any]:
    """Merge what the workers measured into fields of a record: samples of all of them in the time of the slowest."""
    ended = [worker for worker in results if worker.wall is not None] or results
    slowest = max(ended, key=lambda worker: worker.wall or 0.0)
    # The first to fail says why; those that were stopped for its sake only say that they were. Who had no memory left
    # may be found gone by others that say so first, and so may who found the loss too large.
    unlike = sorted(ended, key=lambda worker: worker.outcome not in (OUT_OF_MEMORY, DIVERGED))
    blamed = next((worker for worker in unlike if worker.outcome != COMPLETED), slowest)
    peaks = _known(worker.peak_flops for worker in results)
    workers = [
        Worker(worker=number, windows=own.windows, parts=own.parts, wall=own.wall, exchanged=own.exchanged)
        for number, own in enumerate(results)
    ]
    fields = {name: held for name, held in vars(slowest).items() if held not in (None, "")}
    fields.update(
        outcome=blamed.outcome,
        reason=blamed.reason,
        windows=tuple(map(_window, zip(*(worker.windows for worker in results)))),
        evaluations=tuple(map(_evaluation, zip(*(worker.evaluations for worker in results)))),
        memory=Memory(
            host_peak_bytes=sum(_known(worker.memory.host_peak_bytes for worker in results)) or None,
            device_peak_bytes=max(_known(worker.memory.device_peak_bytes for worker in results), default=None),
        ),
        peak_flops=sum(peaks) if len(peaks) == len(results) else None,
        workers=tuple(workers) if len(results) > 1 else (),
    )
    return fields


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
