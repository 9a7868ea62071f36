"""One run from start to record: its workers, on this host or on others, restarted if one is lost."""

import dataclasses
import math
import sys
import uuid
from collections.abc import Sequence
from typing import Any

from poc.config.run import Run
from poc.host import processes
from poc.plan import estimate
from poc.records import last_run
from poc.records.record import (
    COMPLETED,
    DIVERGED,
    FAILED,
    INTERRUPTED,
    OUT_OF_MEMORY,
    Evaluation,
    Memory,
    Record,
    Worker,
    WorkerResult,
)
from poc.records.timing import Window
from poc.run.launcher import HostResult, Launcher, LocalLauncher, RunContext
from poc.run.loop import CHECKPOINT_SECONDS
from poc.run.progress import label
from poc.values import to_plain


def execute(
    run: Run,
    context: RunContext,
    launcher: Launcher | None = None,
    *,
    detail: int = 0,
    pace: float = 1.0,
    title: str = "",
    **fields: Any,
) -> tuple[Record, bool]:
    """Train `run`, one process per worker; return its record with these `fields`, and whether the user interrupted it.

    It continues from its last checkpoint if it was interrupted before, and up to `run.restarts` times if a process is
    lost. `detail` is the number of rounds of the step-time breakdown, `pace` the measured over the estimated time of
    such runs, and `title` is for its progress line. The default launcher is this host.
    """
    launcher = launcher or LocalLauncher(context)
    record = new_record(run, context, price_per_hour=context.price_per_hour, **fields)
    conditions = context.conditions_of(run)
    why = "the run was paused or interrupted" if run.search else "the run was interrupted"

    def is_usable(step: int) -> bool:
        # One at the pause is of this run, whose record got lost. One at the end of a whole run is of an earlier repeat.
        return step <= run.last_step if run.pause_after else step < run.steps

    for restarts_left in range(run.restarts, -1, -1):
        request = {
            "run": to_plain(run),
            "first_step": max(filter(is_usable, (step for step, _ in launcher.steps(run, conditions))), default=0),
            "attempt": uuid.uuid4().hex,
            "why": why,
            "conditions": conditions,
            "checkpoint_every": math.ceil(CHECKPOINT_SECONDS * run.last_step / estimate(run, context.machine, pace)),
            "detail": 0 if run.pause_after else detail,
            "title": title or label(run),
        }
        hosts, reason = launcher.attempt(run, request)
        workers = [worker for host in hosts for worker in host.workers]
        interrupted = any(host.interrupted for host in hosts)
        killed_for_memory = reason.endswith(processes.KILLED_FOR_MEMORY)
        if any(worker.outcome in (OUT_OF_MEMORY, DIVERGED) for worker in workers):
            reason = ""  # it would happen again, whatever it did to other workers
        if not reason or interrupted or killed_for_memory or not restarts_left or not launcher.renewed():
            break
        why = reason
        print(f"  {why}; restarting ({restarts_left - 1} of {run.restarts} restarts left)", file=sys.stderr)
    measured = {**merge_workers(workers), **_merge_hosts(hosts)} if workers else {}
    occupied = ", ".join(filter(None, (host.occupied for host in hosts)))
    measured.update(gpus_in_use=occupied)
    if interrupted and measured.get("outcome") != COMPLETED:  # it may have been in its trace
        measured.update(outcome=FAILED, reason=INTERRUPTED)
    elif occupied and measured.get("outcome") == OUT_OF_MEMORY:  # the next command may find more
        measured.update(outcome=FAILED, reason=f"{OUT_OF_MEMORY} while others used {occupied}")
    elif reason:
        measured.update(outcome=OUT_OF_MEMORY if killed_for_memory else FAILED, reason=reason)
    return dataclasses.replace(record, **measured), interrupted


def new_record(run: Run, context: RunContext, **fields: Any) -> Record:
    """Return the record of a run of which only `fields` are known, and what is known before a run."""
    return Record(
        run_id=run.id,
        run=run,
        started=last_run.now(),
        infrastructure=context.infrastructure,
        hardware=context.machine,
        **context.software_of(run.framework),
        dataset=context.images_of(run).name,
        data_checksum=context.images_of(run).checksum,
        **fields,
    )


def _merge_hosts(hosts: Sequence[HostResult]) -> dict[str, Any]:
    """Return fields of a record: cores of the noisiest one, and devices of all."""
    uses = [host.core_use for host in hosts]
    noisiest = max(uses, key=lambda use: (use["others_busy_cores"] + use["stolen_cores"]) / max(1, use["usable_cores"]))
    monitored = hosts[0].monitor
    if monitored:  # devices of the first host keep their names
        devices = [
            dataclasses.replace(device, device=f"host {number} {device.device}") if number else device
            for number, host in enumerate(hosts)
            for device in (host.monitor.devices if host.monitor else ())
        ]
        monitored = dataclasses.replace(monitored, devices=tuple(devices))
    return {**noisiest, "monitor": monitored}


def merge_workers(results: Sequence[WorkerResult]) -> dict[str, Any]:
    """Return fields of a record: the samples of all workers in the time of the slowest."""
    ended = [worker for worker in results if worker.wall is not None] or results
    slowest = max(ended, key=lambda worker: worker.wall or 0.0)
    # Out of memory and divergence come first: other workers that miss such a worker may report that earlier. Then the
    # first failure: workers that were stopped because of it only report that.
    ordered = sorted(ended, key=lambda worker: worker.outcome not in (OUT_OF_MEMORY, DIVERGED))
    decisive = next((worker for worker in ordered if worker.outcome != COMPLETED), slowest)
    names = [field.name for field in dataclasses.fields(Worker)]
    of_each = [Worker(**{name: getattr(result, name) for name in names}) for result in results]

    def peaks(name: str) -> list[int]:
        return [getattr(worker.memory, name) or 0 for worker in results]  # 0: unknown

    return {
        **{name: value for name, value in vars(slowest).items() if value not in (None, "")},
        "outcome": decisive.outcome,
        "reason": decisive.reason,
        "windows": tuple(map(_merge_windows, zip(*(worker.windows for worker in results)))),
        "evaluations": tuple(map(_merge_evaluations, zip(*(worker.evaluations for worker in results)))),
        "memory": Memory(
            host_peak_bytes=sum(peaks("host_peak_bytes")) or None,
            device_peak_bytes=max(peaks("device_peak_bytes")) or None,
            device_reserved_bytes=max(peaks("device_reserved_bytes")) or None,
        ),
        "peak_flops": _total([worker.peak_flops for worker in results]),
        "workers": tuple(of_each) if len(results) > 1 else (),
    }


def _total(values: Sequence[float | None]) -> float | None:
    """Return the sum of the values; None if one is unknown."""
    present = [value for value in values if value is not None]
    return sum(present) if len(present) == len(values) else None


def _merge_windows(windows: Sequence[Window]) -> Window:
    """Merge a window of all workers: all samples, in the time of the slowest."""
    loss = _total([window.loss for window in windows])
    return dataclasses.replace(
        max(windows, key=lambda window: window.seconds),
        start=min(window.start for window in windows),
        samples=sum(window.samples for window in windows),
        loss=None if loss is None else loss / len(windows),
    )


def _merge_evaluations(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Merge the evaluations of all workers, each of its part of the validation set."""
    samples = sum(evaluation.samples for evaluation in evaluations)
    correct = sum(round(evaluation.accuracy * evaluation.samples) for evaluation in evaluations)
    loss = _total([each.loss and each.loss * each.samples for each in evaluations])
    return dataclasses.replace(
        max(evaluations, key=lambda evaluation: evaluation.seconds),
        samples=samples,
        accuracy=correct / samples,
        loss=None if loss is None else loss / samples,
    )
