"""One run from start to record: a fresh process for each, and the training loop, the same for every engine."""

from __future__ import annotations

import datetime
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from poc import clock, data, engines, hardware, journal
from poc.engines import Session
from poc.plan import Planned, Run
from poc.progress import Progress
from poc.schedule import learning_rate
from poc.values import value

EVALUATION_BATCH = 250

Tell = Callable[[dict[str, Any]], None]


@value
class Place:
    """Where runs find their data and leave what they make."""

    source: Path | None
    """Folder or file with the data set, where the user named one."""
    cache: Path
    checkpoints: Path | None = None
    """Folder for the parameters after every epoch; None keeps none."""


def execute(run: Run, place: Place, machine: hardware.Hardware, infrastructure: str) -> journal.Record:
    """Trains `run` in a process of its own and returns its record, whatever became of it."""
    record = _blank(run, machine, infrastructure)
    began, busy = time.monotonic(), hardware.busy_seconds()
    with tempfile.TemporaryDirectory(prefix="poc-") as folder:
        events = Path(folder) / "events.jsonl"
        request = {
            "run": run.to_json(),
            "source": str(place.source) if place.source else None,
            "cache": str(place.cache),
            "checkpoints": str(place.checkpoints) if place.checkpoints else None,
            "events": str(events),
            "began": began,
        }
        environment = {**os.environ, **engines.load(run.engine).environment(run, machine.cores)}
        process = subprocess.Popen(
            [sys.executable, "-m", "poc.run"], stdin=subprocess.PIPE, env=environment, text=True, cwd=_home()
        )
        try:
            process.communicate(json.dumps(request))
        except KeyboardInterrupt:
            # The terminal sent it to the child too, which is given the time to end by itself.
            process.wait()
            record.update(_outcome(events, process.returncode), outcome="failed", reason="interrupted")
            record["interrupted"] = True
            return record
        record.update(_outcome(events, process.returncode))
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    record["memory"]["host_peak_bytes"] = record["memory"]["host_peak_bytes"] or children.ru_maxrss * 1024
    if record["cpu_seconds"] is not None:
        others = hardware.busy_seconds() - busy - record["cpu_seconds"]
        record["others_busy_cores"] = round(max(0.0, others) / (time.monotonic() - began), 3)
    return record


def skipped(planned: Planned, machine: hardware.Hardware, infrastructure: str) -> journal.Record:
    """The record of a run that this machine cannot do."""
    return {**_blank(planned.run, machine, infrastructure), "outcome": "skipped", "reason": planned.skip}


def train(
    run: Run,
    session: Session,
    dataset: data.Dataset,
    batches: Iterator[data.Batch],
    watch: clock.Clock,
    tell: Tell,
    checkpoint: Path | None = None,
) -> tuple[str, str]:
    """Trains for `run.steps` steps and tells of every window and evaluation; returns the outcome and its reason.

    The clock is read only where everything enqueued is drained, and nothing is fetched in between.
    """
    step = 0
    for epoch in range(1, run.epochs + 1):
        last = min(epoch * run.steps_per_epoch, run.steps)
        while step < last:
            steps = min(run.window, last - step)
            start, waited, samples = watch.elapsed(), 0.0, 0
            for _ in range(steps):
                asked = watch.elapsed()
                batch = next(batches)
                waited += watch.elapsed() - asked
                rate = learning_rate(
                    step, target=run.learning_rate, start=run.warmup_from, warmup_steps=run.warmup_steps
                )
                session.step(batch, rate)
                step += 1
                samples += len(batch)
            loss = session.drain()
            tell(
                {
                    "event": "window",
                    "epoch": epoch,
                    "start": start,
                    "steps": steps,
                    "samples": samples,
                    "seconds": watch.elapsed() - start,
                    "waited": waited,
                    "loss": loss if math.isfinite(loss) else None,
                }
            )
            if not math.isfinite(loss):
                return "diverged", f"the training loss was {loss} after step {step}"
        if run.evaluate:
            at = watch.elapsed()
            with watch.part("evaluate"):
                found = session.evaluate(data.validation_batches(dataset, run.data, batch=EVALUATION_BATCH))
            tell(
                {
                    "event": "evaluation",
                    "epoch": epoch,
                    "at": at,
                    "seconds": watch.elapsed() - at,
                    "accuracy": found.correct / found.samples,
                    "samples": found.samples,
                    "loss": found.loss if math.isfinite(found.loss) else None,
                }
            )
        if checkpoint is not None:
            with watch.part("checkpoint"):
                session.save(checkpoint)
    return "completed", ""


def _child(request: dict[str, Any]) -> None:
    """What the process of one run does: reads a request from stdin, appends events to the file that it names."""
    run = Run.from_json(request["run"])
    watch = clock.Clock(start=request["began"])
    progress = Progress(run)
    with Path(request["events"]).open("a") as file:

        def tell(event: dict[str, Any]) -> None:
            file.write(json.dumps(event, allow_nan=False) + "\n")
            file.flush()
            progress.show(event)

        try:
            with watch.part("initialise"):
                source = Path(request["source"]) if request["source"] else None
                dataset = data.load(run.data, source=source, cache=Path(request["cache"]))
                session = engines.load(run.engine).open_session(run)
            tell({"event": "ready", "dataset": dataset.name, "parameters": session.parameters})
            stream = data.training_batches(
                dataset, run.data, total_batch=run.total_batch, seed=run.seed, steps=run.steps
            )
            # As deep as a window: while one is drained the next one's batches are made, so that a wait is a real one.
            with data.Prefetch(stream, depth=run.window) as batches:
                checkpoint = _checkpoint(run, request["checkpoints"])
                outcome, reason = train(run, session, dataset, batches, watch, tell, checkpoint)
            device_peak = session.peak_device_bytes()
        except Exception as error:  # whatever it is, it belongs in the record
            outcome, reason, device_peak = "failed", f"{type(error).__name__}: {_first_line(error)}", None
        usage = resource.getrusage(resource.RUSAGE_SELF)
        tell(
            {
                "event": "end",
                "outcome": outcome,
                "reason": reason,
                "parts": watch.parts,
                "host_peak_bytes": usage.ru_maxrss * 1024,
                "device_peak_bytes": device_peak,
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
                "wall": watch.elapsed(),
            }
        )
        progress.close()


def _outcome(events: Path, status: int) -> dict[str, Any]:
    """What the events of a run's process say of it; a process that told of no end has failed."""
    found: dict[str, Any] = {"windows": [], "evaluations": []}
    for line in events.read_text().splitlines() if events.exists() else []:
        try:
            event = json.loads(line)
        except ValueError:  # torn by a crash; what came before it stands
            continue
        kind = event.pop("event")
        if kind in ("window", "evaluation"):
            found[kind + "s"].append(event)
        elif kind == "ready":
            found.update(event)
        else:
            memory = {name: event.pop(name) for name in ("host_peak_bytes", "device_peak_bytes")}
            found.update(event, memory=memory)
    if "outcome" not in found:
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        hint = "; the kernel kills a process when memory runs out" if status == -9 else ""
        found.update(outcome="failed", reason=f"its process ended early with {how}{hint}")
    return found


def _blank(run: Run, machine: hardware.Hardware, infrastructure: str) -> journal.Record:
    return {
        "schema": journal.SCHEMA,
        "run_id": run.id,
        "run": run.to_json(),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "infrastructure": infrastructure,
        "hardware": machine.to_json(),
        "versions": {**hardware.versions(), **engines.load(run.engine).versions()},
        "commit": hardware.commit(),
        "outcome": "",
        "reason": "",
        "dataset": run.data.name,
        "parameters": None,
        "windows": [],
        "evaluations": [],
        "parts": {},
        "wall": None,
        "memory": {"host_peak_bytes": None, "device_peak_bytes": None},
        "cpu_seconds": None,
        "others_busy_cores": None,
    }


def _checkpoint(run: Run, folder: str | None) -> Path | None:
    if folder is None:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) / f"{run.id}.params"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # MXNet puts the line that says what is wrong after those of its C++ stack.
    named = [line for line in lines if "Error" in line or "Check failed" in line]
    return (named or lines or [""])[-1 if named else 0]


def _home() -> Path:
    return Path(__file__).resolve().parent.parent


if __name__ == "__main__":
    _child(json.load(sys.stdin))
