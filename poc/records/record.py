"""Record of a run, successful or not: its configuration, machine, timings, accuracy and outcome."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from poc.config.datasets import DataId
from poc.config.run import Run
from poc.host.hardware import Hardware
from poc.host.monitor import DeviceUse, Monitored
from poc.records import noise
from poc.records.noise import Norms
from poc.records.timing import Window, split, throughput, warmup
from poc.search import Result
from poc.values import to_plain, value

SCHEMA = 3  # version of the records in journals
COMPLETED, DIVERGED, FAILED, SKIPPED = "completed", "diverged", "failed", "skipped"
OUT_OF_MEMORY = "out of memory"
INTERRUPTED = "interrupted"  # reason of a run that its user, or the end of its time, stopped
LOST = ": lost ("  # part of the reason of a run that failed because a node of a cluster was lost
DONE = (COMPLETED, DIVERGED)  # outcomes of a training that came to its end
SETTLED = (*DONE, OUT_OF_MEMORY)  # outcomes after which a run need not be repeated
LAUNCH_BOUND_SHARE = 0.9  # a run on GPUs is launch-bound if the host takes this share of a step's time to enqueue it
BUSY_SHARE = 0.05  # a run is noisy if others took more than this share of the cores that it could use
# Sensors are slow, and the windows of a shorter run lie between other work that they also measure.
LEAST_SECONDS_OF_ENERGY = 10.0
_LEAST_NORMS = 10  # measurements from which the gradient noise scale and its interval are computed


@value
class Evaluation:
    """One pass over the whole validation set."""

    epoch: int
    at: float  # seconds since the run began
    seconds: float
    accuracy: float
    samples: int
    loss: float | None = None  # mean cross-entropy per sample, in nats; None if it was not finite


@value
class Memory:
    """Peak memory, in bytes."""

    host_peak_bytes: int | None = None  # sum over all workers
    device_peak_bytes: int | None = None  # maximum over the devices, PyTorch's of its tensors; None if unknown
    device_reserved_bytes: int | None = None  # reserved by PyTorch's allocator, CUDA graphs included


@value
class SyncStats:
    """Statistics of bounded staleness."""

    staleness: dict[str, int]  # number of steps at which this worker was so many steps ahead of the slowest
    stale_wait_seconds: float


@value
class Worker:
    """Measurements of one worker that a record keeps for each of several."""

    windows: tuple[Window, ...] = ()
    parts: dict[str, float] = dataclasses.field(default_factory=dict)  # seconds by phase (`poc.records.timing.PARTS`)
    wall: float | None = None  # seconds from the start of its process to its end; None if it was lost
    sync_stats: SyncStats | None = None


@value
class Breakdown:
    """Step-time breakdown, from a pass after the training: medians, in seconds per step (`poc/run/step_profile.py`)."""

    whole_step_seconds: float  # with gradient synchronisation
    independent_step_seconds: float  # computation and update only
    exchange_seconds: float  # synchronisation of the model's gradients only
    bus_bytes_per_second: float | None
    synchronisation_seconds: float | None  # wait of a worker for others, without synchronisation; None with one worker
    issue_seconds: float | None = None  # of the host, to enqueue a step on idle devices; None if that blocks


@value
class CheckpointNote:
    """A step after which the run resumed from a checkpoint, or could not write one."""

    step: int
    why: str
    at: float = 0.0  # seconds since the run began


@value
class WorkerResult(Worker):
    """Measurements of one worker of a run, or of all of them together."""

    outcome: str = ""  # `COMPLETED`, `DIVERGED`, `OUT_OF_MEMORY`, `FAILED` or `SKIPPED`
    reason: str = ""
    dataset: str = ""  # name of the images (`DataId.name`)
    data_checksum: str = ""  # their checksum (`DataId.checksum`)
    parameters: int | None = None
    threads: int | None = None  # OpenMP threads of each worker; None if unknown
    evaluations: tuple[Evaluation, ...] = ()
    memory: Memory = Memory()
    peak_flops: float | None = None  # per second, of a large matrix product on the same devices, after the training
    detail: Breakdown | None = None
    norms: tuple[Norms, ...] = ()
    resumed: tuple[CheckpointNote, ...] = ()
    unsaved: tuple[CheckpointNote, ...] = ()

    @property
    def data_id(self) -> DataId:
        return DataId(self.dataset, self.data_checksum)

    @property
    def last_windows(self) -> tuple[Window, ...]:
        """The windows since the run was last resumed: its threads, sensors and use of cores are those of that time."""
        since = self.resumed[-1].at if self.resumed else 0.0
        return tuple(window for window in self.windows if window.start >= since)


@value
class Record(WorkerResult):
    """Configuration, machine and results of one run."""

    run_id: str  # the same as `run.id`
    run: Run
    started: str  # UTC, in ISO 8601
    infrastructure: str  # the user's name of the machine
    hardware: Hardware
    versions: dict[str, str]
    commit: str
    environment: dict[str, str] | None = None  # `poc.host.environment.speed_variables`; None if unknown
    others_busy_cores: float | None = None  # of `usable_cores` (None: of all), kept busy by other processes
    stolen_cores: float | None = None  # of the same, given to other machines although there was work for them
    usable_cores: int | None = None  # cores that the run's processes could use, on the noisiest host
    gpus_in_use: str = ""  # memory of its GPUs that others used before or after it: "3 GiB of GPU 0"; empty if idle
    monitor: Monitored | None = None
    framework_choice: str = ""  # reason for its framework, if the plan chose it
    price_per_hour: float | None = None  # dollars, set by the user; published prices are looked up when pages are made
    workers: tuple[Worker, ...] = ()  # in their order; empty for a single worker

    def to_json(self) -> dict[str, Any]:
        """Return nested plain values, from which `from_plain` makes the record again."""
        return {"schema": SCHEMA, **to_plain(self)}

    @property
    def timed(self) -> list[Window]:
        """Windows that its throughput is computed from; none of a run that was paused."""
        return [] if self.run.pause_after else list(self.last_windows)

    @property
    def result(self) -> Result | None:
        """Its result as a candidate of a search; None if it was interrupted, skipped or lost with its machine."""
        if self.outcome == SKIPPED or self.reason == INTERRUPTED or LOST in self.reason:
            return None
        if self.outcome != COMPLETED or not self.evaluations:
            return Result(completed=False)
        last = self.evaluations[-1]
        return Result(completed=True, accuracy=last.accuracy, loss=math.inf if last.loss is None else last.loss)

    @property
    def fewer_threads(self) -> int | None:
        """Threads of a training on the whole CPU that had fewer threads than cores; None for any other training."""
        whole_cpu = self.run.kind == "cpu" and self.run.workers == 1 and not self.run.cores_per_worker
        return self.threads if whole_cpu and self.threads and self.threads < self.hardware.cores else None

    @property
    def at_chance(self) -> bool:
        """True if a training of whole epochs is not more accurate than guessing, by three standard errors."""
        if not self.run.whole_epochs or not self.evaluations or self.evaluations[-1].samples < 1:  # it is damaged
            return False
        last, guess = self.evaluations[-1], 1 / self.run.data.classes
        return last.accuracy <= guess + 3 * math.sqrt(guess * (1 - guess) / last.samples)

    @property
    def steps(self) -> int:
        return sum(window.steps for window in self.windows)

    @property
    def devices(self) -> tuple[DeviceUse, ...]:
        """Use of its devices; empty if they were not monitored."""
        return self.monitor.devices if self.monitor else ()

    @property
    def is_noisy(self) -> bool:
        """True if others used more than `BUSY_SHARE` of the cores that the run could use, or memory of its GPUs."""
        busy = (self.others_busy_cores or 0.0) + (self.stolen_cores or 0.0)
        return bool(self.gpus_in_use) or busy > BUSY_SHARE * (self.usable_cores or self.hardware.cores)

    @property
    def joules_per_sample(self) -> float | None:
        """Energy of all devices after warm-up; None without a counter, or in less than `LEAST_SECONDS_OF_ENERGY`."""
        devices, timed = self.devices, self.last_windows[warmup(self.last_windows) :]
        seconds = _seconds(timed)
        if seconds < LEAST_SECONDS_OF_ENERGY or not devices or any(device.joules is None for device in devices):
            return None
        watts = sum(device.joules / device.seconds for device in devices if device.joules and device.seconds)
        return watts * seconds / sum(window.samples for window in timed)

    @property
    def steps_ahead(self) -> list[int]:
        """Steps that a worker was ahead of the slowest, once per step and worker, under bounded staleness."""
        counts = [pair for worker in self.workers if worker.sync_stats for pair in worker.sync_stats.staleness.items()]
        return [int(ahead) for ahead, count in counts for _ in range(count)]

    @property
    def speeds(self) -> dict[str, float | None]:
        """Columns of rows.csv from the windows: epochs and steps, and after warm-up speed and arithmetic."""
        run, steps = self.run, self.steps
        if not steps:
            return {}
        values: dict[str, float | None] = {"epochs": steps // run.steps_per_epoch, "steps": steps}
        values["samples_trained"] = sum(window.samples for window in self.windows)
        speed = throughput(self.timed)
        if speed is None:
            return values
        timed = self.timed[speed.dropped :]
        epochs = [list(group) for _, group in itertools.groupby(self.timed, key=lambda window: window.epoch)]
        complete = [each for each in epochs if sum(window.steps for window in each) == run.steps_per_epoch]
        multiply_adds = run.network.multiply_adds(run.data.crop) or None
        return {
            **values,
            "seconds_per_epoch": statistics.median(map(_seconds, complete)) if complete else None,
            "samples_per_second": speed.median,
            "spread": speed.spread,
            "windows": speed.windows,
            "data_wait": sum(window.waited for window in timed) / _seconds(timed),
            "multiply_adds": multiply_adds,
            "flops": 6 * multiply_adds * speed.median if multiply_adds else None,
        }

    @property
    def breakdown(self) -> dict[str, float | None]:
        """Step-time breakdown by columns of rows.csv, also as the Theano-MPI study's seconds per 5,120 images."""
        detail = self.detail
        if detail is None:
            return {}
        step, compute = detail.whole_step_seconds, detail.independent_step_seconds
        waiting, per_5120 = detail.synchronisation_seconds, 5120 / self.run.global_batch
        has_exchange = self.run.devices > 1
        return {
            "step_seconds": step,
            "issue_seconds": detail.issue_seconds,
            "compute_seconds": compute,
            "sync_seconds": detail.exchange_seconds,
            "bus_bytes_per_second": detail.bus_bytes_per_second,
            "train_seconds_per_5120": (compute if has_exchange else step) * per_5120,
            # Noise can make this slightly negative.
            "communication_seconds_per_5120": (step - compute - (waiting or 0.0)) * per_5120 if has_exchange else None,
            "sync_seconds_per_5120": None if waiting is None else waiting * per_5120,
        }

    @property
    def notes(self) -> list[str]:
        """Remarks on how the run went, for readers of its row."""
        notes = []
        if self.outcome == COMPLETED and self.steps % self.run.steps_per_epoch:
            notes.append(f"stopped after {self.steps} steps")
        if self.resumed:
            times = "once" if len(self.resumed) == 1 else f"{len(self.resumed)} times"
            notes.append(f"resumed from a checkpoint {times}")
        shares = [pair for device in self.devices for pair in device.throttled.items()]
        for reason in dict(shares):
            share = max(share for name, share in shares if name == reason)
            if share > BUSY_SHARE:
                notes.append(f"clocks reduced by {reason} for {share:.0%} of the time")
        if self.detail and is_launch_bound(self.run.kind, self.detail.issue_seconds, self.detail.whole_step_seconds):
            notes.append(f"launch-bound: the host takes {LAUNCH_BOUND_SHARE:.0%} or more of a step to enqueue it")
        return notes

    def split(self) -> dict[str, float] | None:
        """Split its wall time into parts (`timing.split`); None if the worker was lost.

        All parts are of the slowest worker: windows of all workers together take longer than those of any of them.
        """
        if self.wall is None:
            return None
        windows = next((worker.windows for worker in self.workers if worker.wall == self.wall), self.windows)
        return split(self.wall, self.parts, windows, warmup(self.windows))

    @property
    def noise(self) -> dict[str, float | None]:
        """Columns of rows.csv: the gradient noise scale in the second half of the training, with its interval."""
        norms = [each for each in self.norms if 2 * each.step >= self.steps]
        small, large = self.run.batch_per_device, self.run.global_batch
        scale = noise.scale(norms, small_batch=small, large_batch=large)
        if scale is None or len(norms) < _LEAST_NORMS:
            return {}
        low, high = noise.interval(norms, small_batch=small, large_batch=large)
        return {"noise_scale": scale, "noise_low": low, "noise_high": high if math.isfinite(high) else None}


def _seconds(windows: Iterable[Window]) -> float:
    return sum(window.seconds for window in windows)


def last_result(records: Sequence[Record]) -> Result | None:
    """Return the latest result of a candidate of a search; a failure is one only if no repeat came to its end."""
    settled = [record for record in records if record.outcome in SETTLED]
    return next((result for record in reversed(settled or records) if (result := record.result)), None)


def is_launch_bound(kind: str, issue_seconds: float | None, step_seconds: float) -> bool:
    """Return whether GPUs wait for the host, which takes most of a step to enqueue it; False if unknown (None, NaN)."""
    return kind == "gpu" and issue_seconds is not None and issue_seconds >= LAUNCH_BOUND_SHARE * step_seconds
