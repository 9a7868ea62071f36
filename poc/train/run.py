"""One run from start to record: a fresh process for each, and the training loop, the same for every engine."""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, TypedDict

from poc import data, engines
from poc.engines import Session
from poc.machine import hardware, monitor, processes, topology
from poc.plan import Planned, estimate
from poc.recipe import CIFAR10
from poc.records import journal, timing
from poc.run import Run
from poc.train import checkpoint, measuring
from poc.train.hosts import Link, LinkError
from poc.train.progress import Progress
from poc.values import value

EVALUATION_BATCH = 250
DONE = ("completed", "diverged")
"""Outcomes after which a run need not be repeated."""
EXPLODED = 1e4
"""Mean training loss of a window, in nats, from which no run comes back."""
_INTERRUPTED_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_CHECKPOINT_SECONDS = 180.0

Tell = Callable[[dict[str, Any]], None]


@value
class Place:
    """Where runs find their data and leave what they make."""

    source: Path | None
    """Folder or file with the data set, where the user named one."""
    cache: Path
    checkpoints: Path | None = None
    """Folder for checkpoints, where a completed run leaves its last one; None: in the cache, until it has completed."""
    stand_in: bool = False
    """No CIFAR-10 is to be had: the synthetic set takes its place."""
    patience: float = 300.0
    """Seconds after which a run in which nothing goes on is ended."""

    def checkpoints_of(self, run: Run) -> Path:
        """Folder for the checkpoints of `run`."""
        return (self.checkpoints or self.cache / "checkpoints") / run.id


def execute(
    run: Run,
    place: Place,
    machine: hardware.Hardware,
    infrastructure: str,
    *,
    detail: int = 0,
    others: Sequence[Link] = (),
) -> journal.Record:
    """Trains `run` in processes of its own, one a worker, and returns its record, whatever became of it.

    Where it was cut off before it goes on from its last checkpoint; where a process is lost it does so `run.restarts`
    times. `detail` adds a pass of so many rounds that takes computation and communication apart. Several workers are
    shared with the `others`, hosts that follow this one.
    """
    record, use = _blank(run, machine, infrastructure), _Use()
    team = list(others) if run.workers > 1 else []
    conditions = {name: record[name] for name in ("versions", "commit")}
    conditions.update(cpu=machine.cpu, stand_in=place.stand_in, workers_here=run.workers // (1 + len(team)))
    left, why = run.restarts, "the run was cut off"
    while True:
        try:
            first_step = _resumed_from(run, place, team, conditions)
        except LinkError as error:  # a host is gone: the attempt says which
            first_step, why = 0, str(error)
        request = {
            "run": run.to_json(),
            "first_step": first_step,
            "why": why,
            "conditions": conditions,
            "checkpoint_every": math.ceil(_CHECKPOINT_SECONDS * run.steps / estimate(run, machine)),
            "detail": detail,
            "stand_in": place.stand_in,
        }
        everyone, lost = _attempt(run, request, place, machine, team)
        told = [one for share in everyone for one in share["told"]]
        named = {f"worker {worker}": one for worker, one in enumerate(told)} if len(everyone) > len(team) else {}
        reason = "" if lost is None else _blame(*lost, named, run.workers)
        if lost is None or everyone[0]["interrupted"] or left == 0:
            break
        left, why = left - 1, reason
        print(f"  {reason}; starting again ({left} of {run.restarts} restarts left)", file=sys.stderr)
    record.update(_merged(told), monitor=_monitored(everyone))
    everyone[0]["use"] = use.so_far()  # its servers', too
    record["cpu_seconds"] = sum(share["use"]["cpu_seconds"] for share in everyone)
    record["others_busy_cores"] = max(share["use"]["others_busy_cores"] for share in everyone)
    trained_on = sorted({one["dataset"] for one in told if "dataset" in one})
    if lost is not None:
        record.update(outcome="failed", reason=reason)
    elif len(trained_on) > 1:
        record.update(outcome="failed", reason=f"the hosts trained on different data: {', '.join(trained_on)}")
    if everyone[0]["interrupted"]:
        record.update(outcome="failed", reason="interrupted", interrupted=True)
    return record


def forget(run: Run, place: Place) -> None:
    """Removes this host's checkpoints of a run whose record is safe, but for the last one where they have a folder."""
    checkpoint.remove(place.checkpoints_of(run), but=run.steps if place.checkpoints else None)


def _resumed_from(run: Run, place: Place, team: Sequence[Link], conditions: dict[str, Any]) -> int:
    """The last step after which every worker, on every host, has a checkpoint; 0 for none. Raises LinkError."""
    each = run.workers // (1 + len(team))
    common = set(checkpoint.steps(place.checkpoints_of(run), range(each), conditions))
    for number, link in enumerate(team, start=1):
        asked = {"run": run.to_json(), "workers": list(range(number * each, (number + 1) * each))}
        link.send({"steps": {**asked, "conditions": conditions}})
        message: dict[str, Any] = {}
        while "have" not in message:
            message = link.receive()
        common &= set(message["have"])
    return max((step for step in common if step < run.steps), default=0)


def _attempt(
    run: Run, request: dict[str, Any], place: Place, machine: hardware.Hardware, team: Sequence[Link]
) -> tuple[list[Share], processes.Lost | None]:
    """Trains `run` once, on this host and the `team`; returns what each host did, this one first, and what was lost."""
    addresses = [team[0].here, *(link.there for link in team)] if team else ["127.0.0.1"]
    each = run.workers // len(addresses)
    shares: dict[str, Share] = {}

    def elsewhere() -> processes.Lost | None:
        for link in team:
            if link.name not in shares:
                lost = _hear(link, shares)
                if lost is not None:
                    return lost
        return None

    cluster = engines.load(run.engine).cluster(run, run.cores_per_worker or machine.cores, addresses)
    with cluster as around:
        tasks = [
            Task(request=request, first=first, environments=around.environments[first : first + each])
            for first in range(0, run.workers, each)
        ]
        for link, task in zip(team, tasks[1:]):
            with contextlib.suppress(LinkError):  # `elsewhere` finds out
                link.send({"task": task})
        own = _train_here(tasks[0], place, machine, around.helpers, elsewhere)
        lost = own["lost"]
        while lost is None and not own["interrupted"] and len(shares) < len(team):
            lost = elsewhere()
            time.sleep(_LOOK_SECONDS)
        for link in team:
            if link.name not in shares:
                with contextlib.suppress(LinkError):
                    link.send({"stop": True})
                    while _hear(link, shares) is None and link.name not in shares:
                        time.sleep(_LOOK_SECONDS)
    return [own, *(shares[link.name] for link in team if link.name in shares)], lost


def follow(leader: Link, place: Place, machine: hardware.Hardware) -> None:
    """Does this host's share of each run that the first host names, until it says that there are no more.

    Raises LinkError where that host is lost.
    """

    def elsewhere() -> processes.Lost | None:
        try:
            stopped = any("stop" in message for message in leader.poll())
        except LinkError as error:
            return leader.name, str(error)
        return (leader.name, "it ended the run") if stopped else None

    while True:
        message = leader.receive()
        if "end" in message:
            return
        if "steps" in message:
            asked = message["steps"]
            folder = place.checkpoints_of(Run.from_json(asked["run"]))
            leader.send({"have": checkpoint.steps(folder, asked["workers"], asked["conditions"])})
        if "task" in message:
            share = _train_here(message["task"], place, machine, {}, elsewhere)
            leader.send({"share": share})
            if all(one["outcome"] in DONE for one in share["told"]):
                forget(Run.from_json(message["task"]["request"]["run"]), place)


class Task(TypedDict):
    """What one host is to do of a run."""

    request: dict[str, Any]
    """What every worker of the run is told."""
    first: int
    """Number of the first worker here."""
    environments: list[dict[str, str]]
    """Each worker's."""


class Share(TypedDict):
    """What one host did of a run."""

    told: list[dict[str, Any]]
    """By each of its workers."""
    lost: processes.Lost | None
    interrupted: bool
    monitor: dict[str, Any] | None
    use: dict[str, float]
    """`cpu_seconds` of this run's processes, and `others_busy_cores`."""


def _hear(link: Link, shares: dict[str, Share]) -> processes.Lost | None:
    """Puts the share of a run that has come over `link` into `shares`; returns what was lost there, or the link."""
    try:
        found = [message["share"] for message in link.poll() if "share" in message]
    except LinkError as error:
        return link.name, str(error)
    for share in found:
        shares[link.name] = share
        if share["lost"] is not None:
            return tuple(share["lost"])
        if share["interrupted"]:
            return link.name, "interrupted"
    return None


def _train_here(
    task: Task,
    place: Place,
    machine: hardware.Hardware,
    helpers: Mapping[str, subprocess.Popen[str]],
    elsewhere: Callable[[], processes.Lost | None],
) -> Share:
    """Starts this host's workers of a run, waits for their end, and gathers what they told."""
    run = Run.from_json(task["request"]["run"])
    began, use = time.monotonic(), _Use()
    each = run.cores_per_worker or machine.cores
    cores = _cores(run, machine, len(task["environments"]))
    checkpoints = place.checkpoints_of(run)
    workers: dict[str, subprocess.Popen[str]] = {}
    watcher: monitor.Monitor | None = None
    lost: processes.Lost | None = None
    interrupted = False
    with processes.scratch() as folder:
        events = [folder / f"worker{task['first'] + here}.jsonl" for here in range(len(task["environments"]))]
        try:
            for here, environment in enumerate(task["environments"]):
                request = {
                    **task["request"],
                    "worker": task["first"] + here,
                    "cores": cores[here],
                    "source": str(place.source) if place.source else None,
                    "cache": str(place.cache),
                    "checkpoints": str(checkpoints),
                    "keep": place.checkpoints is not None,
                    "events": str(events[here]),
                    "began": began,
                }
                workers[f"worker {request['worker']}"] = _start(request, {**environment, **_own_gpus(run, here)})
            pids = [process.pid for process in workers.values()]
            devices = 1 if run.virtual else run.devices // run.workers * len(workers)
            sensors = monitor.gpus(devices) if run.kind == "gpu" else monitor.processes(pids, each * len(workers))
            with monitor.Monitor(sensors) as watcher:
                lost = processes.watch(workers, helpers, events, place.patience, elsewhere)
        except KeyboardInterrupt:
            # Each is given the time to finish its window and to tell what it has.
            for process in workers.values():
                process.send_signal(signal.SIGINT)
            with contextlib.suppress(KeyboardInterrupt):
                processes.settle(workers.values(), _INTERRUPTED_SECONDS)
            interrupted = True
        finally:
            processes.stop(workers.values())
        told = [_told(path, process.returncode) for path, process in zip(events, workers.values())]
    return Share(
        told=told,
        lost=lost,
        interrupted=interrupted,
        monitor=watcher.summary() if watcher else None,
        use=use.so_far(),
    )


def _cores(run: Run, machine: hardware.Hardware, workers: int) -> list[list[int]]:
    """The cores that each of this host's workers is bound to."""
    if not run.cores_per_worker:
        return [sorted(os.sched_getaffinity(0))] * workers
    near = None
    if run.kind == "gpu":
        each = run.devices // run.workers
        near = [machine.gpus[here * each].numa_node for here in range(workers)]
    return topology.core_groups(topology.numa_nodes(), workers, run.cores_per_worker, near)


def _own_gpus(run: Run, here: int) -> dict[str, str]:
    """The cards of worker number `here` of this host, where several workers share them."""
    if run.kind != "gpu" or run.workers == 1:
        return {}
    each = run.devices // run.workers
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    cards = visible.split(",") if visible else [str(card) for card in range(run.devices)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(cards[here * each : (here + 1) * each])}


def _monitored(shares: Sequence[Share]) -> dict[str, Any] | None:
    """What the hardware of all hosts did, as one summary; devices of the first host keep their names."""
    found = [share["monitor"] for share in shares]
    if found[0] is None:
        return None
    devices = [
        {**device, "device": f"host {host} {device['device']}" if host else device["device"]}
        for host, one in enumerate(found)
        for device in (one or {"devices": []})["devices"]
    ]
    return {**found[0], "devices": devices}


class _Use:
    """Who uses this machine's cores, from the making of this object on."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), hardware.busy_seconds(), self._children_seconds()

    def so_far(self) -> dict[str, float]:
        own = self._children_seconds() - self._own
        others = hardware.busy_seconds() - self._busy - own
        share = max(0.0, others) / (time.monotonic() - self._began)
        return {"cpu_seconds": own, "others_busy_cores": round(share, 3)}

    @staticmethod
    def _children_seconds() -> float:
        """Of all processes that this one has started and waited for: workers and what served them."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime


def _start(request: dict[str, Any], environment: dict[str, str]) -> subprocess.Popen[str]:
    process = processes.start("poc.train.run", environment, stdin=subprocess.PIPE)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once: `_told` says so
        process.stdin.write(json.dumps(request))
        process.stdin.close()
    return process


def _blame(who: str, why: str, told: dict[str, dict[str, Any]], workers: int) -> str:
    """The reason of a failed run: which process was lost, and why, in its own words where it had the time for some."""
    if who in told and "parts" in told[who]:
        why = told[who]["reason"]
    return why if workers == 1 else f"{who}: {why}"


def skipped(planned: Planned, machine: hardware.Hardware, infrastructure: str) -> journal.Record:
    """The record of a run that this machine cannot do."""
    return {**_blank(planned.run, machine, infrastructure), "outcome": "skipped", "reason": planned.skip}


def train(
    run: Run,
    session: Session,
    batches: Iterator[data.Batch],
    validation: Callable[[], Iterable[data.Batch]],
    watch: timing.Clock,
    tell: Tell,
    save: Callable[[int], None] = lambda step: None,
    *,
    first_step: int = 0,
    save_every: int | None = None,
) -> tuple[str, str]:
    """Trains up to step `run.steps` and tells of every window and evaluation; returns the outcome and its reason.

    The clock is read only where everything enqueued is drained, and nothing is fetched in between. `save` is given the
    steps done after every epoch, and within one after `save_every` steps.
    """
    schedule = run.schedule
    step = saved = first_step
    out_of_time = False
    for epoch in range(1, run.epochs + 1):
        last = min(epoch * run.steps_per_epoch, run.steps)
        if last <= first_step:
            continue
        while step < last:
            steps = min(run.window, last - step)
            start, waited, samples = watch.elapsed(), 0.0, 0
            looked_at: list[int] = []
            for _ in range(steps):
                asked = watch.elapsed()
                batch = next(batches)
                waited += watch.elapsed() - asked
                looked = run.gradient_noise is not None and step % run.gradient_noise == 0
                session.step(batch, schedule.rate(step), **({"norms": True} if looked else {}))
                looked_at += [step] if looked else []
                step += 1
                samples += len(batch)
            loss = session.drain()
            trained = watch.elapsed() - sum(watch.parts.values())
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
            if looked_at:
                for one, (small, large) in zip(looked_at, session.gradient_norms()):
                    if math.isfinite(small + large):
                        tell({"event": "norms", "step": one, "small": small, "large": large})
            if not loss < EXPLODED:  # nan, too
                return "diverged", f"the training loss was {loss:.6g} after step {step}"
            out_of_time = run.seconds is not None and trained >= run.seconds
            if out_of_time:
                break
            if save_every is not None and step - saved >= save_every and step < last:
                with watch.part("checkpoint"):
                    save(step)
                saved = step
        if run.evaluate:
            at = watch.elapsed()
            with watch.part("evaluate"):
                found = session.evaluate(validation())
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
        with watch.part("checkpoint"):
            save(step)
        saved = step
        if out_of_time:
            break
    return "completed", ""


def _work(request: dict[str, Any]) -> None:
    """What the process of one worker does; appends events to the file that the request names; exit code 1: failed."""
    run = Run.from_json(request["run"])
    worker = request["worker"]
    os.sched_setaffinity(0, request["cores"])
    watch = timing.Clock(start=request["began"])
    progress = Progress(run, shown=worker == 0)
    first_step, folder = request["first_step"], Path(request["checkpoints"])
    told: list[dict[str, Any]] = []
    with Path(request["events"]).open("a") as file:

        def tell(event: dict[str, Any]) -> None:
            told.append(event)
            file.write(json.dumps(event, allow_nan=False) + "\n")
            file.flush()
            progress.show(event)

        def save(step: int) -> None:
            if step == run.steps and not request["keep"]:
                return
            story = {"conditions": request["conditions"], "events": told, "clock": [watch.elapsed(), watch.parts]}
            try:
                checkpoint.write(folder, worker, checkpoint.Checkpoint(step=step, arrays=session.state(), story=story))
            except OSError as error:  # a full disk is no reason to stop; the run is only less safe
                tell({"event": "unsaved", "step": step, "why": str(error)})

        end: dict[str, Any] = {"event": "end"}
        try:
            with watch.part("initialise"):
                dataset = _dataset(run, request)
                state = None
                if first_step:
                    before = checkpoint.read(folder, worker, first_step)
                    state = before.arrays
                    for event in before.story["events"]:
                        tell(event)
                    watch.resume(*before.story["clock"])
                    tell({"event": "resumed", "step": first_step, "why": request["why"]})
                session = engines.load(run.engine).open_session(run, first_step=first_step, state=state)
                images = data.held(dataset, run.data)
                if images is not None:
                    session.hold(images)
                session.barrier()
            tell({"event": "ready", "dataset": dataset.name, "parameters": session.parameters})
            stream = data.training_batches(
                dataset,
                run.data,
                total_batch=run.total_batch,
                seed=run.seed,
                first_step=first_step,
                steps=run.steps - first_step + measuring.steps_of(request["detail"]),
                worker=worker,
                workers=run.workers,
            )
            # As deep as a window: while one is drained the next one's batches are made, so that a wait is a real one.
            with data.Prefetch(stream, depth=run.window) as batches:
                validation = functools.partial(
                    data.validation_batches,
                    dataset,
                    run.data,
                    batch=EVALUATION_BATCH,
                    worker=worker,
                    workers=run.workers,
                )
                outcome, reason = train(
                    run,
                    session,
                    batches,
                    validation,
                    watch,
                    tell,
                    save,
                    first_step=first_step,
                    save_every=request["checkpoint_every"],
                )
                end.update(outcome=outcome, reason=reason, **_used(watch))
                if outcome == "completed":
                    end["peak_flops"] = session.peak_flops()
                exchanged = session.exchanged()
                if exchanged:
                    end["exchanged"] = exchanged
                if request["detail"] and outcome == "completed":
                    end["detail"] = measuring.measure(session, batches, run, request["detail"])
            end["device_peak_bytes"] = session.peak_device_bytes()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's comes twice: from it, and from the parent
            end.update(outcome="failed", reason="interrupted", **_used(watch))
        except Exception as error:  # whatever it is, it belongs in the record
            end.update(outcome="failed", reason=f"{type(error).__name__}: {_first_line(error)}", **_used(watch))
        tell(end)
        progress.close()
    if end["outcome"] == "failed":
        # At once: as it is taken down, a distributed kvstore waits for the other workers, which may wait for this one.
        sys.stderr.flush()
        os._exit(1)


def _dataset(run: Run, request: dict[str, Any]) -> data.Dataset:
    if request["stand_in"] and isinstance(run.data, CIFAR10):
        return data.stand_in()
    source = Path(request["source"]) if request["source"] else None
    return data.load(run.data, source=source, cache=Path(request["cache"]))


def _used(watch: timing.Clock) -> dict[str, Any]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "parts": watch.parts,
        "wall": watch.elapsed(),
        "host_peak_bytes": usage.ru_maxrss * 1024,
    }


def _told(events: Path, status: int) -> dict[str, Any]:
    """What one worker told of itself; one that told of no end has failed."""
    found: dict[str, Any] = {"windows": [], "evaluations": []}
    for line in events.read_text().splitlines() if events.exists() else []:
        try:
            event = json.loads(line)
        except ValueError:  # torn by a crash; what came before it stands
            continue
        kind = event.pop("event")
        if kind in ("window", "evaluation"):
            found[kind + "s"].append(event)
        elif kind in ("resumed", "unsaved", "norms"):
            found.setdefault(kind, []).append(event)
        else:
            found.update(event)
    if "outcome" not in found:
        found.update(outcome="failed", reason=processes.ended_early(status))
    return found


def _merged(told: list[dict[str, Any]]) -> dict[str, Any]:
    """What all workers told, as the run's: samples of all of them in the time of the slowest."""
    # The first to fail says why; those that were stopped for its sake only say that they were.
    told_of = [one for one in told if "parts" in one]
    blamed = [one for one in told_of or told if one["outcome"] != "completed"]
    slowest = max(told_of or told, key=lambda one: one.get("wall", 0.0))
    merged = {**slowest, **({"outcome": blamed[0]["outcome"], "reason": blamed[0]["reason"]} if blamed else {})}
    merged["windows"] = [_merged_window(each) for each in zip(*(one["windows"] for one in told))]
    merged["evaluations"] = [_merged_evaluation(each) for each in zip(*(one["evaluations"] for one in told))]
    host = [one.pop("host_peak_bytes") for one in told_of]
    device = [one.pop("device_peak_bytes", None) for one in told_of]
    for name in ("host_peak_bytes", "device_peak_bytes"):
        merged.pop(name, None)
    merged["memory"] = {
        "host_peak_bytes": sum(host) if host else None,
        "device_peak_bytes": max((peak for peak in device if peak is not None), default=None),
    }
    peaks = [one.get("peak_flops") for one in told]
    merged["peak_flops"] = None if None in peaks else sum(peaks)
    if len(told) > 1:
        kept = ("windows", "parts", "wall", "exchanged")
        merged["workers"] = [
            {"worker": worker, **{name: one[name] for name in kept if name in one}} for worker, one in enumerate(told)
        ]
    return merged


def _merged_window(windows: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    slowest = max(windows, key=lambda one: one["seconds"])
    losses = [one["loss"] for one in windows]
    return {
        **slowest,
        "start": min(one["start"] for one in windows),
        "samples": sum(one["samples"] for one in windows),
        "loss": None if None in losses else sum(losses) / len(losses),
    }


def _merged_evaluation(evaluations: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    samples = sum(one["samples"] for one in evaluations)

    losses = [one["loss"] for one in evaluations]
    mean = None if None in losses else sum(one["loss"] * one["samples"] for one in evaluations) / samples
    slowest = max(evaluations, key=lambda one: one["seconds"])
    correct = sum(round(one["accuracy"] * one["samples"]) for one in evaluations)
    return {**slowest, "samples": samples, "accuracy": correct / samples, "loss": mean}


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


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # MXNet puts the line that says what is wrong after those of its C++ stack.
    named = [line for line in lines if "Error" in line or "Check failed" in line]
    return (named or lines or [""])[-1 if named else 0]


if __name__ == "__main__":
    _work(json.load(sys.stdin))
