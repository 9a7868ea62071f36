"""This host's share of a run: its workers started, watched until they have ended, and heard."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from poc import frameworks
from poc.config.datasets import DataId
from poc.config.run import Run
from poc.host import hardware, monitor, nvml, processes, topology
from poc.host.environment import speed_variables
from poc.host.hardware import GPU
from poc.host.monitor import Monitor, Monitored, Source
from poc.host.waiting import chosen_threads, free_cores
from poc.records.record import COMPLETED, FAILED, WorkerResult
from poc.records.timing import warmup
from poc.run import checkpoint
from poc.values import from_plain, value

_INTERRUPTED_SECONDS = 60.0
_COMPILER_PATIENCE = 4
# The events of which there may be several, and the fields that they are gathered in.
_LISTED = dict(window="windows", evaluation="evaluations", norms="norms", resumed="resumed", unsaved="unsaved")


@value
class RunContext:
    """Where runs are done: this machine, where it finds their data and leaves what they make."""

    machine: hardware.Hardware
    infrastructure: str
    """What results call it."""
    source: Path | None
    """Folder or file with the data set, where the user named one."""
    cache: Path
    checkpoints: Path | None = None
    """Folder for checkpoints, where a completed run leaves its last one; None: in the cache, until it has completed."""
    subfolder: str = ""
    """A folder in that one, for what several machines do at a time."""
    price_per_hour: float | None = None
    """Dollars."""
    images: Mapping[str, DataId] = dataclasses.field(default_factory=dict)
    """Identity of each real data set that was opened, by its name in a recipe; that of the synthetic set for CIFAR-10
    where this is to be had nowhere."""
    patience: float = 300.0
    """Seconds without a step after which a run is ended."""
    verbose: bool = False
    """Whether a run prints a line per epoch where standard error is no terminal."""
    until: float = math.inf
    """On the monotonic clock: a run that still goes on then is interrupted."""
    software: dict[str, Any] | None = None
    """What `software` gives for each framework on another machine; None: runs are done on this one."""

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables there that change speed."""
        elsewhere = next(iter((self.software or {}).values()), None)
        return elsewhere["environment"] if elsewhere else speed_variables()

    def images_of(self, run: Run) -> DataId:
        """Return the identity of the images that `run` trains on; without a checksum where they were not opened."""
        return self.images.get(run.data.name) or DataId(run.data.name)

    def checkpoints_of(self, run: Run) -> Path:
        """Folder for the checkpoints of `run` on these images; those on others have folders of their own beside it."""
        name = "-".join(filter(None, (run.id, self.images_of(run).checksum)))
        return (self.checkpoints or self.cache / "checkpoints") / self.subfolder / name


@value
class WorkerGroup:
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
class CoreUse:
    """What the cores that one host's processes may use did during a run."""

    usable_cores: int
    cpu_seconds: float
    """CPU seconds of the run's processes."""
    others_busy_cores: float
    """Cores that all other processes kept busy, on average."""
    stolen_cores: float
    """Cores that the hypervisor gave to other machines although there was work for them, on average."""


@value
class HostResult:
    """What one host did of a run."""

    workers: tuple[WorkerResult, ...]
    failure: tuple[str, str] | None
    """Which process is to blame, and why."""
    interrupted: bool
    monitor: Monitored | None
    core_use: CoreUse


def failure_reason(failure: processes.Lost, *, single: bool) -> str:
    """Return why a run failed, with the process to blame unless it is the `single` one."""
    return failure[1] if single else ": ".join(failure)


def core_seconds() -> tuple[float, float, float, float]:
    """Seconds of a clock, of processes that this one waited for, and of usable cores that were busy, or stolen."""
    times, (_, busy, stolen) = os.times(), hardware.core_times()
    return time.monotonic(), times.children_user + times.children_system, busy, stolen


def core_use(before: tuple[float, float, float, float]) -> CoreUse:
    """Since `core_seconds` were as `before`."""
    seconds, own, busy, stolen = (now - then for now, then in zip(core_seconds(), before))
    others, cores = max(0.0, busy - own), hardware.core_times()[0]
    return CoreUse(
        usable_cores=cores,
        cpu_seconds=own,
        others_busy_cores=round(others / seconds, 3),
        stolen_cores=round(stolen / seconds, 3),
    )


def software(framework: str) -> dict[str, Any]:
    """What results of a framework depend on beside the run: fields of a record."""
    versions = {**hardware.versions(), **frameworks.versions(framework)}
    return {"versions": versions, "commit": hardware.commit(), "environment": speed_variables()}


def cache() -> Path:
    """Where this machine keeps data sets, and checkpoints for which no other folder is named: POC_CACHE.

    By default it is in the user's cache, or in the folder for temporary files where the user has none to write in.
    """
    if given := os.environ.get("POC_CACHE"):
        return Path(given).absolute()
    usual = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "poc-mxnet")
    there = next(folder for folder in (usual, *usual.parents) if os.path.exists(folder))
    if usual.is_absolute() and (there == usual or os.access(there, os.W_OK)):
        return usual
    return Path(tempfile.gettempdir(), f"poc-mxnet-{os.getuid()}")


class LocalLauncher:
    """This host, which does a run alone."""

    def __init__(self, place: RunContext) -> None:
        self._place = place
        self._before = core_seconds()

    def steps(self, run: Run, conditions: dict[str, Any]) -> set[int]:
        """The steps after which every worker has a whole checkpoint."""
        return set(checkpoint.steps(self._place.checkpoints_of(run), range(run.workers), conditions))

    def attempt(self, run: Run, request: dict[str, Any]) -> tuple[list[HostResult], str]:
        """Trains `run` once; what was done, and why it failed. Raises KeyboardInterrupt when its user ends it."""

        def until(_: Path) -> None:
            if time.monotonic() >= self._place.until:
                raise KeyboardInterrupt  # as if its user had stopped it

        with frameworks.load(run.framework).cluster(run, threads(run, self._place.machine.cores)) as around:
            task = WorkerGroup(request=request, first=0, environments=tuple(around.environments))
            share = train_here(task, self._place, around.helpers, until)
        # What all attempts used, and what served the workers.
        share = dataclasses.replace(share, core_use=core_use(self._before))
        return [share], failure_reason(share.failure, single=run.workers == 1) if share.failure else ""

    def renewed(self) -> bool:
        """It is here still."""
        return True

    def forget(self, run: Run) -> None:
        """The record of `run` is safe: its checkpoints go, but for the last one where they have a folder."""
        checkpoint.remove(self._place.checkpoints_of(run), but=run.steps if self._place.checkpoints else None)


def threads(run: Run, cores: int, hosts: int = 1) -> int:
    """OpenMP threads of each worker, on hosts with so many `cores` each.

    The only worker on a CPU, bound to no cores, has as many as `waiting.chosen_threads` gives.
    """
    if run.kind == "gpu" or run.cores_per_worker or run.workers > 1:
        return run.cores_per_worker or max(1, cores * hosts // run.workers)
    return chosen_threads() or free_cores(cores)


def train_here(
    task: WorkerGroup,
    place: RunContext,
    helpers: Mapping[str, subprocess.Popen[str]],
    elsewhere: Callable[[Path], processes.Lost | None],
) -> HostResult:
    """Starts this host's workers of a run, waits for their end, and gathers what they told.

    `elsewhere` is given the file of the first one's events, and says what of the run is lost on another host, or raises
    KeyboardInterrupt, for which each worker tells what it has.
    """
    before, run = core_seconds(), task.run
    cards = own_gpus(run, place.machine, len(task.environments))
    cores = _cores(run, cards)
    common = {
        **task.request,
        "source": place.source and str(place.source),
        "cache": str(place.cache),
        "checkpoints": str(place.checkpoints_of(run)),
        "keep": place.checkpoints is not None,
        "patience": place.patience,
        "verbose": place.verbose,
        "began": time.monotonic(),
    }
    # A compiler gives no sign of life.
    patience = place.patience * (_COMPILER_PATIENCE if run.compile else 1)
    workers: dict[str, subprocess.Popen[str]] = {}
    watcher: Monitor | None = None
    lost: processes.Lost | None = None
    interrupted = False
    with processes.scratch() as folder:
        events = [folder / f"worker{task.first + here}.jsonl" for here in range(len(task.environments))]

        def done(name: str) -> bool:
            return name in workers and _told(events[[*workers].index(name)]).outcome == COMPLETED

        try:
            for here, environment in enumerate(task.environments):
                number = task.first + here
                request = {**common, "worker": number, "cores": cores[here], "events": str(events[here])}
                if run.kind == "gpu":
                    environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(card.index) for card in cards[here])
                workers[f"worker {number}"] = _started(run, request, environment)
            with Monitor(_sensors(run, place.machine, workers, cards)) as watcher:
                lost = processes.watch(workers, helpers, events, patience, lambda: elsewhere(events[0]), done)
        except KeyboardInterrupt:
            # Each is given the time to finish its window and to tell what it has.
            for process in workers.values():
                process.send_signal(signal.SIGINT)
            with contextlib.suppress(KeyboardInterrupt):
                processes.settle(workers.values(), _INTERRUPTED_SECONDS)
            interrupted = True
        finally:
            processes.stop(workers.values())
        heard = [_told(path, process.returncode) for path, process in zip(events, workers.values())]
    for name, worker in zip(workers, heard):
        if lost and lost[0] == name and worker.wall is not None:
            lost = name, worker.reason  # in its own words, where it had the time for some
    summary = watcher.summary(_kept(heard[0], common["began"])) if watcher else None
    return HostResult(
        workers=tuple(heard), failure=lost, interrupted=interrupted, monitor=summary, core_use=core_use(before)
    )


def _started(run: Run, request: Mapping[str, Any], environment: dict[str, str]) -> subprocess.Popen[str]:
    """A worker that reads its `request` from a file beside that of its events."""
    asked = Path(request["events"]).with_suffix(".json")
    asked.write_text(json.dumps(request))
    with asked.open() as stdin:
        python = frameworks.interpreter(run.framework)
        return processes.start("poc.run.worker", environment, python=python, stdin=stdin)


def _told(events: Path, status: int = 0) -> WorkerResult:
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
    return from_plain(WorkerResult, found)


def _kept(told: WorkerResult, began: float) -> list[tuple[float, float]]:
    """Start and end of the windows after warm-up, on the clock on which the worker's process `began`."""
    start = began - (told.resumed[-1].at if told.resumed else 0.0)
    windows = told.windows[warmup(told.windows) :]
    return [(start + window.start, start + window.start + window.seconds) for window in windows]


def _sensors(
    run: Run, machine: hardware.Hardware, workers: Mapping[str, subprocess.Popen[str]], cards: Sequence[Sequence[GPU]]
) -> Source:
    if run.kind == "gpu":
        return monitor.gpus([card.index for own in cards for card in own])
    cores = (run.cores_per_worker or machine.cores) * len(workers)
    return monitor.processes([process.pid for process in workers.values()], cores)


def _cores(run: Run, cards: Sequence[Sequence[GPU]]) -> list[list[int]]:
    """The cores that each of this host's workers is bound to."""
    if not run.cores_per_worker:
        return [sorted(os.sched_getaffinity(0))] * len(cards)
    near = [own[0].numa_node for own in cards] if run.kind == "gpu" else None
    return hardware.core_groups(hardware.nodes(), len(cards), run.cores_per_worker, near)


def own_gpus(run: Run, machine: hardware.Hardware, workers: int) -> list[list[GPU]]:
    """The cards of each of this host's workers, none on a CPU: the best connected ones that its framework can use."""
    if run.kind == "cpu":
        return [[]] * workers
    each = 1 if run.emulated else run.devices // run.workers
    usable = frameworks.usable(run.framework, machine)
    with contextlib.suppress(nvml.NoAnswer):  # a card that is lost is the run's to find, and to tell of
        best = topology.best_group(topology.detect(usable), each * workers)
        usable = [card for card in usable if card.index in best]
    return [usable[here * each : (here + 1) * each] for here in range(workers)]
