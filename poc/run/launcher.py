"""One host's part of a run: its workers are started, watched until they have ended, and their results gathered."""

import collections
import contextlib
import dataclasses
import itertools
import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from poc import frameworks
from poc.config.datasets import DataId
from poc.config.run import Run
from poc.host import hardware, monitor, nvml, processes
from poc.host.environment import speed_variables
from poc.host.hardware import GPU, Hardware
from poc.host.monitor import Monitor, Monitored
from poc.host.waiting import chosen_threads, free_cores
from poc.records import provenance
from poc.records.record import COMPLETED, FAILED, WorkerResult
from poc.records.timing import warmup
from poc.run import checkpoint
from poc.values import UserError, from_plain, value

_INTERRUPTED_SECONDS = 60.0
_RELEASE_SECONDS = 3.0
_COMPILER_PATIENCE = 4
# The fields that gather the events of which there can be several.
_LISTS = dict(window="windows", evaluation="evaluations", norms="norms", resumed="resumed", unsaved="unsaved")
_GPUS_HINT = "; if its GPUs cannot copy to each other: MXNET_ENABLE_GPU_P2P=0 (MXNet) or NCCL_P2P_DISABLE=1"
_GPUS_HINT += "; with PyTorch also try graphs=False"
_HOSTS_HINT = "; if its hosts cannot reach each other: open all TCP ports between them"


@value
class RunContext:
    """The machine that does runs, its folders, and the options of all runs."""

    machine: Hardware
    infrastructure: str  # the machine's name in results
    source: Path | None  # folder or file with the data set, if the user named one
    cache: Path
    checkpoints: Path | None = None  # folder that keeps the last ones; None: in the cache until a run has ended
    journal: str = ""  # its `identity`, as the runs of several journals may share the folder of checkpoints
    price_per_hour: float | None = None  # in dollars
    images: Mapping[str, DataId] = dataclasses.field(default_factory=dict)  # those that were opened, by `Data.key`
    patience: float = 300.0  # seconds without a step after which a run is ended
    trace_steps: int = 0  # length of the traced pass after each run; 0: none
    traces: Path = Path("traces")  # folder of the traces
    until: float = math.inf  # when a run is interrupted, on the monotonic clock
    settled: collections.Counter[tuple[str, DataId]] = dataclasses.field(default_factory=collections.Counter)
    """Number of repeats in the journal that came to an end, by id of the run and its images."""
    software: dict[str, Any] = dataclasses.field(default_factory=dict)  # `software` by framework, from the plan

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables on the machine that change speed."""
        return next(iter(self.software.values()))["environment"] if self.software else speed_variables()

    def software_of(self, framework: str) -> dict[str, Any]:
        """Return the fields of a record that describe code and environment of the machine."""
        return self.software.get(framework) or software(framework)

    def conditions_of(self, run: Run) -> dict[str, Any]:
        """Return what must be the same for `run` to continue from a checkpoint."""
        software = self.software_of(run.framework)
        return {
            "environment": software["environment"],
            "versions": {name: version for name, version in software["versions"].items() if name != "system"},
            "machine": self.machine.describe(),
            "images": list(self.images_of(run)),
            # A checkpoint of an earlier repeat may still be there: its command was killed before it removed that.
            "repeats_before": self.settled[_unpaused(run).id, self.images_of(run)],
            "workers_here": run.workers // (self.machine.hosts if run.workers > 1 else 1),
        }

    def check_writable(self) -> None:
        """Make the folder of checkpoints, if there is one; raises UserError if no file can be written in it."""
        if self.checkpoints:
            try:
                self.checkpoints.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=self.checkpoints).close()
            except OSError as error:
                raise UserError(f"--checkpoints: cannot write in {self.checkpoints} ({error.strerror})") from error

    def images_of(self, run: Run) -> DataId:
        """Return the identity of the images that `run` trains on; without a checksum if they were not opened."""
        return self.images.get(run.data.key) or DataId(run.data.name)

    def checkpoints_of(self, run: Run) -> Path:
        """Return the folder for the checkpoints of `run` on these images."""
        name = "-".join(filter(None, (self.journal, _unpaused(run).id, self.images_of(run).checksum)))
        return (self.checkpoints or self.cache / "checkpoints") / name


def _unpaused(run: Run) -> Run:
    """Return the whole run, which goes on from the checkpoint of a pause."""
    return dataclasses.replace(run, pause_after=None)


@value
class HostResult:
    """The results of one host's workers."""

    workers: tuple[WorkerResult, ...]
    failure: processes.Lost | None
    interrupted: bool
    monitor: Monitored | None
    core_use: dict[str, float]  # fields of a record (`core_use`)
    occupied: str = ""  # memory of its GPUs that others used before or after the run, if they were not idle


class Launcher(Protocol):
    """Do runs on this host (`LocalLauncher`), or on others of one node type (`poc.cluster.launcher.RayLauncher`)."""

    def steps(self, run: Run, conditions: dict[str, Any]) -> set[tuple[int, str]]:
        """Return the steps after which every worker has a complete checkpoint, as `poc.run.checkpoint.steps`.

        Raises UserError if code or packages are no longer those of the `conditions`.
        """

    def attempt(self, run: Run, request: dict[str, Any]) -> tuple[list[HostResult], str]:
        """Train `run` once, each worker by `request`; return each host's result, and why the run failed, if it did."""

    def renewed(self) -> bool:
        """Replace each host that was lost; return False if there is no replacement."""

    def forget(self, run: Run) -> None:
        """Remove the checkpoints of a run that is recorded."""


def core_seconds() -> tuple[float, float, float, float]:
    """Return seconds of a clock, of ended child processes, and of usable cores that were busy, and stolen."""
    times, (_, busy, stolen) = os.times(), hardware.core_times()
    return time.monotonic(), times.children_user + times.children_system, busy, stolen


def core_use(before: tuple[float, float, float, float]) -> dict[str, float]:
    """Return fields of a record: the use of this host's cores since `core_seconds` returned `before`."""
    seconds, children, busy, stolen = (now - then for now, then in zip(core_seconds(), before))
    return {
        "usable_cores": hardware.core_times()[0],
        "others_busy_cores": round(max(0.0, busy - children) / seconds, 3),
        "stolen_cores": round(stolen / seconds, 3),
    }


def software(framework: str) -> dict[str, Any]:
    """Return the fields of a record that describe code and environment."""
    versions = {**provenance.versions(), "poc": provenance.code_hash(), **frameworks.installed_versions(framework)}
    return {"versions": versions, "commit": provenance.commit(), "environment": speed_variables()}


class LocalLauncher:
    """Do runs on this host alone, or its part of runs on several hosts: `open` on the first one, `train`, `close`.

    A run that reaches the bound of time is interrupted.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._before = core_seconds()
        self._services = contextlib.ExitStack()
        self._helpers: dict[str, subprocess.Popen[str]] = {}

    def steps(self, run: Run, conditions: dict[str, Any], workers: Iterable[int] | None = None) -> set[tuple[int, str]]:
        now = dataclasses.replace(self._context, software={}).conditions_of(run)
        if now["versions"] != conditions["versions"]:  # workers would use the new ones, and this process has the old
            raise UserError("code or packages changed during this command; start it again")
        return checkpoint.steps(self._context.checkpoints_of(run), workers or range(run.workers), conditions)

    def open(self, run: Run, addresses: Sequence[str] = ("127.0.0.1",)) -> tuple[dict[str, str], ...]:
        """Start the processes that serve the workers of all hosts; return the environment of each worker."""
        threads = _threads(run, self._context.machine.cores * len(addresses))
        cluster = self._services.enter_context(frameworks.load(run.framework).cluster(run, threads, addresses))
        self._helpers = cluster.helpers
        return tuple(cluster.environments)

    def train(self, request: dict[str, Any], first: int, environments: Sequence[dict[str, str]]) -> HostResult:
        """Train this host's workers by `request` to their end, or until `_failure_elsewhere`; gather their results.

        `first` is the number of the first one. Workers that are interrupted report what they have measured.
        """
        run, machine = from_plain(Run, request["run"]), self._context.machine
        cards = own_gpus(run, machine, len(environments))
        cores, occupied = own_cores(run, cards), _occupied(cards)
        # A compiler gives no sign of life.
        patience = self._context.patience * (_COMPILER_PATIENCE if run.compile else 1)
        workers: dict[str, subprocess.Popen[str]] = {}
        watcher: Monitor | None = None
        failure: processes.Lost | None = None
        interrupted = False
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="poc-") as folder:
            numbers = range(first, first + len(cards))
            events = {f"worker {number}": Path(folder, f"worker{number}.jsonl") for number in numbers}

            def has_completed(name: str) -> bool:
                return name in events and _result(events[name]).outcome == COMPLETED

            try:
                for index, (name, path) in enumerate(events.items()):
                    variables = dict(environments[index])
                    if run.kind == "gpu":
                        variables |= _gpu_variables(run, cards[index], len(cores[index]), variables)
                    fields = {"worker": first + index, "cores": cores[index], "events": str(path), "began": began}
                    workers[name] = self._start(run, {**request, **fields}, variables)
                with _monitor(run, machine, [process.pid for process in workers.values()], cards) as watcher:
                    failure = processes.watch(
                        workers, self._helpers, [*events.values()], patience, self._failure_elsewhere, has_completed
                    )
                if failure and failure[1].startswith(processes.STALLED):
                    hint = _GPUS_HINT if run.kind == "gpu" and run.devices > 1 else ""
                    hint += _HOSTS_HINT if len(environments) < run.workers else ""
                    failure = failure[0], failure[1] + hint
            except KeyboardInterrupt:
                # Each has time to finish its window and to report what it has measured.
                for process in workers.values():
                    process.send_signal(signal.SIGINT)
                with contextlib.suppress(KeyboardInterrupt):
                    processes.settle(workers.values(), _INTERRUPTED_SECONDS)
                interrupted = True
            finally:
                processes.stop(workers.values())
            ends = {name: process.returncode for name, process in workers.items()}  # None: it cannot be killed
            results = {name: _result(events[name], -9 if end is None else end) for name, end in ends.items()}
        if None not in ends.values():
            occupied = occupied or _occupied(cards)
        if failure and failure[0] in results and results[failure[0]].wall is not None:
            failure = failure[0], results[failure[0]].reason  # in its own words
        return HostResult(
            workers=tuple(results.values()),
            failure=failure,
            interrupted=interrupted,
            monitor=watcher.summary(_timed_spans(next(iter(results.values())), began)) if watcher else None,
            core_use=core_use(self._before),
            occupied=occupied,
        )

    def _start(self, run: Run, request: dict[str, Any], environment: dict[str, str]) -> subprocess.Popen[str]:
        """Start a worker, which reads its request from a file next to that of its events."""
        context = self._context
        request = {
            **request,
            "source": context.source and str(context.source),
            "cache": str(context.cache),
            "checkpoints": str(context.checkpoints_of(run)),
            "keep": context.checkpoints is not None,
            "patience": context.patience,
            "trace_steps": 0 if run.pause_after else context.trace_steps,
            "trace": str(context.traces / f"{run.id}_worker{request['worker']}.json"),
        }
        path = Path(request["events"]).with_suffix(".json")
        path.write_text(json.dumps(request))
        with path.open() as stdin:
            python = frameworks.interpreter(run.framework)
            return processes.start("poc.run.worker", environment, python=python, stdin=stdin)

    def _failure_elsewhere(self) -> processes.Lost | None:
        """Return what failed on another host, if anything; raises KeyboardInterrupt to interrupt the run."""
        if time.monotonic() >= self._context.until:
            raise KeyboardInterrupt  # as if its user had stopped it
        return None

    def close(self) -> dict[str, float]:
        """End what `open` started; return the use of cores since the launcher was made."""
        self._services.close()
        self._helpers = {}
        return core_use(self._before)

    def attempt(self, run: Run, request: dict[str, Any]) -> tuple[list[HostResult], str]:
        # On a cluster the nodes of a run may share the folder.
        with checkpoint.claimed(self._context.checkpoints_of(run)), self._services:
            result = self.train(request, 0, self.open(run))
        # All attempts and the helpers count.
        result = dataclasses.replace(result, core_use=self.close())
        process, reason = result.failure or ("", "")
        return [result], f"{process}: {reason}" if process and run.workers > 1 else reason

    def renewed(self) -> bool:
        return True

    def forget(self, run: Run) -> None:
        # The last one stays in a folder that the user named.
        checkpoint.remove(self._context.checkpoints_of(run), but=run.steps if self._context.checkpoints else None)


def _threads(run: Run, cores: int) -> int:
    """Return the OpenMP threads of each worker, on hosts with so many `cores` together.

    The only worker on a CPU leaves the cores that other processes keep busy, unless POC_THREADS is set.
    """
    if run.kind == "gpu" or run.cores_per_worker or run.workers > 1:
        return run.cores_per_worker or max(1, cores // run.workers)
    return chosen_threads() or free_cores(cores)


def _gpu_variables(run: Run, cards: Sequence[GPU], cores: int, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a worker on these GPUs that is bound to so many cores; it has `variables`."""
    return {
        **frameworks.library_path(run.framework),
        "CUDA_VISIBLE_DEVICES": nvml.cuda_setting([card.index for card in cards]),
        # More threads than cores that it is bound to would wait for each other.
        "OMP_NUM_THREADS": str(min(cores, int(variables.get("OMP_NUM_THREADS", cores)))),
    }


def _occupied(cards: Sequence[Sequence[GPU]]) -> str:
    """Say how much memory is in use on each of these GPUs that is not idle.

    They are asked again after some seconds: for a moment the memory of a process that has ended may count.
    """
    for seconds in (_RELEASE_SECONDS, 0.0):
        occupied = []
        for card in itertools.chain(*cards):
            with contextlib.suppress(nvml.NoAnswerError):  # the run will say why
                memory = nvml.query("nvmlDeviceGetMemoryInfo", card.index)
                if memory and memory.used > nvml.IDLE_BYTES:
                    occupied.append(f"{memory.used / 2**30:.0f} GiB of GPU {card.index}")
        if not occupied:
            return ""
        time.sleep(seconds)
    return ", ".join(occupied)


def _result(events: Path, status: int = 0) -> WorkerResult:
    """Read a worker's file of events; without an `end` event it crashed with the exit code `status`."""
    fields: dict[str, Any] = {name: [] for name in _LISTS.values()}
    for line in events.read_text().splitlines() if events.exists() else []:
        try:
            event = json.loads(line)
        except ValueError:  # torn by a crash
            continue
        kind = event.pop("event")
        if kind in _LISTS:
            fields[_LISTS[kind]].append(event)
        else:
            fields.update(event)
    if "outcome" not in fields:
        fields.update(outcome=FAILED, reason=processes.ended_early(status))
    return from_plain(WorkerResult, fields)


def _timed_spans(result: WorkerResult, began: float) -> list[tuple[float, float]]:
    """Return start and end of the windows after warm-up, on the clock on which the worker's process `began`."""
    start = began - (result.resumed[-1].at if result.resumed else 0.0)
    windows = result.last_windows[warmup(result.last_windows) :]
    return [(start + window.start, start + window.start + window.seconds) for window in windows]


def _monitor(run: Run, machine: Hardware, pids: Sequence[int], cards: Sequence[Sequence[GPU]]) -> Monitor:
    if run.kind == "gpu":
        return Monitor(monitor.gpus([card.index for own in cards for card in own]), monitor.GPU_INTERVAL)
    return Monitor(monitor.processes(pids, (run.cores_per_worker or machine.cores) * len(pids)))


def own_cores(run: Run, cards: Sequence[Sequence[GPU]]) -> list[list[int]]:
    """Return the cores that each of this host's workers is bound to: by default all, on GPUs those of their NUMA nodes.

    Another node's cores would enqueue work, and read pinned memory, across the link between the processors.
    """
    nodes, usable = hardware.numa_nodes(), sorted(os.sched_getaffinity(0))
    # A quota is time on any core: the kernel chooses better than two containers that both take the first ones.
    if run.cores_per_worker and hardware.usable_cores() == len(usable):
        near = [worker_cards[0].numa_node for worker_cards in cards] if run.kind == "gpu" else None
        return hardware.core_groups(nodes, len(cards), run.cores_per_worker, near)
    numbers = [[-1 if card.numa_node is None else card.numa_node for card in own] for own in cards]
    return [sorted({core for node in own for core in nodes.get(node, usable)}) or usable for own in numbers]


def own_gpus(run: Run, machine: Hardware, workers: int) -> list[list[GPU]]:
    """Return the GPUs of each of this host's workers: the first ones that its framework can use."""
    if run.kind == "cpu":
        return [[]] * workers
    count = 1 if run.emulated else run.devices // run.workers
    usable = frameworks.usable(run.framework, machine)
    return [usable[index * count : (index + 1) * count] for index in range(workers)]
