"""This host's share of a run: its workers started, watched until they have ended, and heard."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from poc.machine import hardware, monitor, processes
from poc.machine.monitor import Monitor, Monitored, Source
from poc.run import Run
from poc.train import told
from poc.train.told import Told
from poc.values import value

_INTERRUPTED_SECONDS = 60.0


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


@value
class Task:
    """What one host is to do of a run."""

    request: dict[str, Any]
    """What every worker of the run is told."""
    first: int
    """Number of the first worker here."""
    environments: tuple[dict[str, str], ...]
    """Each worker's."""

    @property
    def run(self) -> Run:
        """The run."""
        return Run.from_json(self.request["run"])


@value
class Share:
    """What one host did of a run."""

    told: tuple[Told, ...]
    """By each of its workers."""
    lost: tuple[str, str] | None
    """Which process is to blame, and why."""
    interrupted: bool
    monitor: Monitored | None
    core_use: tuple[float, float]
    """As `core_use` gives it."""


def core_seconds() -> tuple[float, float, float]:
    """Seconds of a clock, of cores that were busy, and of these the ones with processes that this one waited for."""
    times = os.times()
    return time.monotonic(), hardware.busy_seconds(), times.children_user + times.children_system


def core_use(before: tuple[float, float, float]) -> tuple[float, float]:
    """Since `core_seconds` were as `before`: CPU seconds of the run's processes, and cores kept busy by all others."""
    seconds, busy, own = (now - then for now, then in zip(core_seconds(), before))
    return own, round(max(0.0, busy - own) / seconds, 3)


def train_here(
    task: Task,
    place: Place,
    machine: hardware.Hardware,
    helpers: Mapping[str, subprocess.Popen[str]],
    elsewhere: Callable[[], processes.Lost | None],
) -> Share:
    """Starts this host's workers of a run, waits for their end, and gathers what they told.

    `elsewhere` says what of the run is lost on another host.
    """
    before, run = core_seconds(), task.run
    workers: dict[str, subprocess.Popen[str]] = {}
    watcher: Monitor | None = None
    lost: processes.Lost | None = None
    interrupted = False
    with processes.scratch() as folder:
        requests = _requests(task, place, machine, folder)
        events = [Path(request["events"]) for request in requests]
        try:
            for here, (request, environment) in enumerate(zip(requests, task.environments)):
                workers[f"worker {request['worker']}"] = _start(request, {**environment, **own_gpus(run, here)})
            with Monitor(_sensors(run, machine, workers)) as watcher:
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
        heard = tuple(told.read(path, process.returncode) for path, process in zip(events, workers.values()))
    summary = watcher.summary() if watcher else None
    return Share(told=heard, lost=lost, interrupted=interrupted, monitor=summary, core_use=core_use(before))


def _requests(task: Task, place: Place, machine: hardware.Hardware, folder: Path) -> list[dict[str, Any]]:
    """What each worker of this host is asked to do; its events go to a file in `folder`."""
    common = {
        **task.request,
        "source": place.source and str(place.source),
        "cache": str(place.cache),
        "checkpoints": str(place.checkpoints_of(task.run)),
        "keep": place.checkpoints is not None,
        "began": time.monotonic(),
    }
    cores = _cores(task.run, machine, len(task.environments))
    return [
        {**common, "worker": number, "cores": own, "events": str(folder / f"worker{number}.jsonl")}
        for number, own in enumerate(cores, start=task.first)
    ]


def _start(request: dict[str, Any], environment: dict[str, str]) -> subprocess.Popen[str]:
    process = processes.start("poc.train.worker", environment, stdin=subprocess.PIPE)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once: what it told says so
        process.stdin.write(json.dumps(request))
        process.stdin.close()
    return process


def _sensors(run: Run, machine: hardware.Hardware, workers: Mapping[str, subprocess.Popen[str]]) -> Source:
    if run.kind == "gpu":
        return monitor.gpus(1 if run.virtual else run.devices // run.workers * len(workers))
    cores = (run.cores_per_worker or machine.cores) * len(workers)
    return monitor.processes([process.pid for process in workers.values()], cores)


def _cores(run: Run, machine: hardware.Hardware, workers: int) -> list[list[int]]:
    """The cores that each of this host's workers is bound to."""
    if not run.cores_per_worker:
        return [sorted(os.sched_getaffinity(0))] * workers
    cards = machine.gpus[:: run.devices // run.workers][:workers]  # the first of each worker's
    near = [card.numa_node for card in cards] if run.kind == "gpu" else None
    return hardware.core_groups(hardware.nodes(), workers, run.cores_per_worker, near)


def own_gpus(run: Run, here: int) -> dict[str, str]:
    """The cards of worker number `here` of this host, where several workers share them."""
    if run.kind != "gpu" or run.workers == 1:
        return {}
    each = run.devices // run.workers
    cards = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(run.devices)))).split(",")
    return {"CUDA_VISIBLE_DEVICES": ",".join(cards[here * each : (here + 1) * each])}
