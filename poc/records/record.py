"""What came out of a run, whatever became of it: its configuration, machine, timings, accuracy and outcome."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from poc.config import CIFAR10, Synthetic, networks
from poc.config.datasets import DataId
from poc.config.run import Run
from poc.host.hardware import Hardware
from poc.host.monitor import Monitored
from poc.records.noise import Noise, Norms, estimate, interval
from poc.records.timing import WARMUP_STEPS, Window, split, throughput, warmup
from poc.values import from_plain, to_plain, value

SCHEMA = 2
"""Of the records that are written; those of 1 have no checksum."""
COMPLETED, DIVERGED, FAILED, SKIPPED = "completed", "diverged", "failed", "skipped"
OUT_OF_MEMORY = "out of memory"
DONE = (COMPLETED, DIVERGED)
"""Outcomes of a training that came to its end."""
SETTLED = (*DONE, OUT_OF_MEMORY)
"""Outcomes after which a run need not be repeated."""
BUSY_SHARE = 0.05
"""A run is noisy if other processes or machines took more than this share of the cores that it could use."""
T = TypeVar("T")


@value
class Evaluation:
    """One pass over the whole validation set."""

    epoch: int
    at: float
    """Seconds since the run began."""
    seconds: float
    accuracy: float
    samples: int
    loss: float | None = None
    """Mean cross-entropy of a sample, in nats; None where it was not finite."""


@value
class Memory:
    """Memory at its peak, in bytes."""

    host_peak_bytes: int | None = None
    """Of all its workers."""
    device_peak_bytes: int | None = None
    """Of the device that took most; None where the framework cannot tell."""


@value
class Exchanged:
    """What bounded staleness told of its exchanges."""

    staleness: dict[str, int]
    """How often this worker was so many steps ahead of the slowest."""
    stale_wait_seconds: float


@value
class Worker:
    """What one worker of several told; one that was lost has no wall time."""

    worker: int
    windows: tuple[Window, ...]
    parts: dict[str, float] = dataclasses.field(default_factory=dict)
    wall: float | None = None
    exchanged: Exchanged | None = None


@value
class Breakdown:
    """A step taken apart, in a pass after the training: medians, in seconds a step (`poc/run/step_profile.py`)."""

    steps: int
    whole_step_seconds: float
    """With the exchange."""
    independent_step_seconds: float
    """Computation and update alone."""
    exchange_seconds: float
    """The exchange of the network's own gradients alone."""
    exchange_bytes: int
    bus_bytes_per_second: float | None
    sums_right: bool | None
    """Whether the exchange gave every replica the sum; None where there was nothing to exchange."""
    synchronisation_seconds: float | None
    """What a worker waits for the others when nothing is exchanged; None with one worker."""
    data_seconds: float
    """What it waits for data."""
    efficiency: float | None = None
    """What an independent step and the wait for the others are of a whole step: the median over `pairs`."""
    efficiency_spread: float | None = None
    pairs: int | None = None
    pipeline_seconds: float | None = None
    """In which every worker's input pipeline makes a batch, while nothing is trained."""
    issue_seconds: float | None = None
    """CPU time of a worker's main thread until a step is issued."""


@value
class CheckpointNote:
    """A step after which the run went on from a checkpoint, or could not write one."""

    step: int
    why: str
    at: float = 0.0
    """Seconds of the run that had gone by."""


@value
class WorkerResult:
    """What one worker told of a run, or all of them together."""

    outcome: str = ""
    """`COMPLETED`, `DIVERGED`, `OUT_OF_MEMORY`, `FAILED` or `SKIPPED`."""
    reason: str = ""
    dataset: str = ""
    """Name of the images (`DataId.name`)."""
    data_checksum: str = ""
    """Their checksum (`DataId.checksum`)."""
    parameters: int | None = None
    threads: int | None = None
    """OpenMP threads of each worker; None where it is not known."""
    windows: tuple[Window, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    parts: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds of wall time by what they went to (`poc.records.timing.PARTS`)."""
    wall: float | None = None
    """Seconds from the start of its process to its end; None where that was lost."""
    memory: Memory = Memory()
    peak_flops: float | None = None
    """Operations a second of a large matrix product on the same devices, right after."""
    exchanged: Exchanged | None = None
    short_spin_seconds: float = 0.0
    """Of the training, in which other processes kept cores busy, so that waiting threads hardly spun."""
    detail: Breakdown | None = None
    norms: tuple[Norms, ...] = ()
    resumed: tuple[CheckpointNote, ...] = ()
    unsaved: tuple[CheckpointNote, ...] = ()

    @property
    def data_id(self) -> DataId:
        """The identity of the images."""
        return DataId(self.dataset, self.data_checksum)


@value
class Record(WorkerResult):
    """What came out of one run."""

    run_id: str
    """Of the version that wrote it; `run.id` is what it would be today."""
    run: Run
    started: str
    """UTC, in ISO 8601."""
    infrastructure: str
    """What its user calls the machine."""
    hardware: Hardware
    versions: dict[str, str]
    commit: str
    environment: dict[str, str] | None = None
    """The inherited environment variables that change speed (`poc.host.environment`); None where not known."""
    cpu_seconds: float | None = None
    others_busy_cores: float | None = None
    """Cores that other processes kept busy meanwhile, of `usable_cores`; in earlier versions of all the machine's."""
    stolen_cores: float | None = None
    """Of these cores, those that the hypervisor gave to other machines although there was work for them."""
    usable_cores: int | None = None
    """Cores that the run's processes could use, on the host that was disturbed most."""
    monitor: Monitored | None = None
    engine_choice: str = ""
    """Why its framework, where the plan chose it."""
    price_per_hour: float | None = None
    """Dollars, as its user gave it; known prices are looked up when pages are made."""
    workers: tuple[Worker, ...] = ()
    """Where there were several."""
    speed_withdrawn: str = ""
    """Why its times are not to be shown, e.g. a defect of the version that measured them; empty where they may be."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes the same record."""
        fields = {declared.name: to_plain(getattr(self, declared.name)) for declared in dataclasses.fields(self)}
        return {"schema": SCHEMA, **fields}

    @property
    def timed(self) -> list[Window]:
        """Windows that its throughput is computed from."""
        return [] if self.speed_withdrawn else list(self.windows)

    @property
    def fewer_threads(self) -> int | None:
        """The threads of a training on the whole CPU that had fewer than there are cores; None for any other."""
        whole_cpu = self.run.kind == "cpu" and self.run.workers == 1 and not self.run.cores_per_worker
        return self.threads if whole_cpu and self.threads and self.threads < self.hardware.cores else None

    @property
    def at_chance(self) -> bool:
        """Whether a training of whole epochs ended no more accurate than guessing is, by three standard errors."""
        if not self.run.whole_epochs or not self.evaluations:
            return False
        last, guess = self.evaluations[-1], 1 / self.run.data.classes
        return last.accuracy <= guess + 3 * math.sqrt(guess * (1 - guess) / last.samples)

    @property
    def stood_in(self) -> bool:
        """Whether made-up images stood in for CIFAR-10."""
        return isinstance(self.run.data, CIFAR10) and self.dataset == Synthetic.name

    @property
    def is_noisy(self) -> bool:
        """Whether other processes or machines took more than `BUSY_SHARE` of the cores that the run could use."""
        busy = (self.others_busy_cores or 0.0) + (self.stolen_cores or 0.0)
        return busy > BUSY_SHARE * (self.usable_cores or self.hardware.cores)

    @property
    def joules_per_sample(self) -> float | None:
        """Energy of all devices in the windows after warm-up; None if a device has no energy counter."""
        devices = self.monitor.devices if self.monitor and self.monitor.of_windows else ()
        timed = self.windows[warmup(self.windows) :]
        if not timed or not devices or any(device.joules is None for device in devices):
            return None
        watts = sum(device.joules / device.seconds for device in devices if device.joules and device.seconds)
        return watts * sum(window.seconds for window in timed) / sum(window.samples for window in timed)

    @property
    def steps_ahead(self) -> list[int]:
        """How many steps a worker was ahead of the slowest, once per step and worker, under bounded staleness."""
        seen = [worker.exchanged.staleness for worker in self.workers if worker.exchanged]
        return [int(ahead) for staleness in seen for ahead, count in staleness.items() for _ in range(count)]

    @property
    def speeds(self) -> dict[str, float | None]:
        """What the windows show, by columns of rows.csv: epochs and steps, and after warm-up speed and arithmetic."""
        run, windows = self.run, self.windows
        if not windows:
            return {}
        steps = sum(window.steps for window in windows)
        values: dict[str, float | None] = {"epochs": steps // run.steps_per_epoch, "steps": steps}
        values["samples_trained"] = sum(window.samples for window in windows)
        speed = throughput(self.timed)
        if speed is None:
            return values
        timed = self.timed[speed.dropped :]
        epochs = [list(group) for _, group in itertools.groupby(self.timed, key=lambda window: window.epoch)]
        complete = [each for each in epochs if sum(window.steps for window in each) == run.steps_per_epoch]
        seconds = [sum(window.seconds for window in each) for each in complete]
        model = networks.NETWORKS.get(run.model)
        multiply_adds = model.multiply_adds(run.data.crop) if model else None
        return {
            **values,
            "seconds_per_epoch": statistics.median(seconds) if seconds else None,
            "samples_per_second": speed.median,
            "spread": speed.spread,
            "windows": speed.windows,
            "dropped_windows": speed.dropped,
            "data_wait": sum(window.waited for window in timed) / sum(window.seconds for window in timed),
            "multiply_adds": multiply_adds,
            "flops": 6 * multiply_adds * speed.median if multiply_adds else None,
        }

    @property
    def breakdown(self) -> dict[str, float | None]:
        """Step-time breakdown by columns of rows.csv, also as the Theano-MPI study's seconds per 5,120 images."""
        detail = self.detail
        if detail is None:
            return {}
        whole, compute, waiting = (
            detail.whole_step_seconds,
            detail.independent_step_seconds,
            detail.synchronisation_seconds,
        )
        per_5120 = 5120 / self.run.global_batch
        values = {
            "step_seconds": whole,
            "compute_seconds": compute,
            "sync_seconds": detail.exchange_seconds,
            "bus_bytes_per_second": detail.bus_bytes_per_second,
            "data_seconds_per_5120": detail.data_seconds * per_5120,
            "train_seconds_per_5120": whole * per_5120,
        }
        if self.run.devices == 1:
            return values
        return {
            **values,
            "train_seconds_per_5120": compute * per_5120,
            # Noise can make this slightly negative.
            "communication_seconds_per_5120": (whole - compute - (waiting or 0.0)) * per_5120,
            "sync_seconds_per_5120": None if waiting is None else waiting * per_5120,
        }

    @property
    def notes(self) -> list[str]:
        """Remarks on how the run went, for readers of its row."""
        notes = []
        steps = sum(window.steps for window in self.windows)
        if self.outcome == COMPLETED and steps % self.run.steps_per_epoch:
            notes.append(f"stopped after {steps} steps")
        if self.resumed:
            notes.append(f"resumed from a checkpoint {len(self.resumed)} times")
        throttled: dict[str, float] = {}
        for device in self.monitor.devices if self.monitor else ():
            for reason, share in device.throttled.items():
                throttled[reason] = max(share, throttled.get(reason, BUSY_SHARE))
        slow = [(reason, share) for reason, share in throttled.items() if share > BUSY_SHARE]
        notes += [f"clocks reduced by {reason} for {share:.0%} of the time" for reason, share in slow]
        if self.speed_withdrawn:
            notes.append(f"speed withdrawn: {self.speed_withdrawn}")
        return notes

    def in_words(self) -> str:
        """Its outcome, why, and what was measured, in a line."""
        said = [self.outcome + (f": {self.reason}" if self.reason else "")]
        rate = throughput(self.timed)
        if rate is not None:
            said.append(f"{rate.median:.1f} samples/s (spread {rate.spread:.1f}, n = {rate.windows} windows)")
        elif self.windows:
            said.append(f"too short for a throughput: no window after the first {WARMUP_STEPS} steps")
        if self.evaluations:
            chance = " (no better than chance)" if self.at_chance else ""
            said.append(f"accuracy {self.evaluations[-1].accuracy:.4f}{chance}")
        if self.wall is not None:
            said.append(f"{self.wall:.0f} s")
        return ", ".join(said)

    def split(self) -> dict[str, float] | None:
        """Its wall time in parts (`timing.split`); None where that was lost.

        All parts are of one and the same worker, the slowest: windows of all workers together take longer than those of
        any of them.
        """
        if self.wall is None:
            return None
        windows = next((worker.windows for worker in self.workers if worker.wall == self.wall), self.windows)
        return split(self.wall, self.parts, windows, warmup(self.windows))

    def without_speed(self) -> Record:
        """Return this record with its accuracies, losses and steps, and with every time and speed missing or NaN."""
        nan = math.nan
        return dataclasses.replace(
            self,
            windows=tuple(dataclasses.replace(window, start=nan, seconds=nan, waited=nan) for window in self.windows),
            evaluations=tuple(dataclasses.replace(scored, at=nan, seconds=nan) for scored in self.evaluations),
            wall=None,
            parts={},
            workers=(),
            detail=None,
            exchanged=None,
            monitor=None,
            peak_flops=None,
            cpu_seconds=None,
            short_spin_seconds=0.0,
        )

    def noise(self, first: float = 0.0, last: float = 1.0) -> Noise | None:
        """The gradient's noise in the part of the training from share `first` to share `last` of its steps."""
        run = self.run
        chosen = self._norms(first, last)
        return estimate(chosen, small_batch=run.batch_per_device, large_batch=run.global_batch)

    def noise_interval(self, first: float = 0.0, last: float = 1.0) -> tuple[float, float | None] | None:
        """90% of what the noise scale may be there (`poc.records.noise.interval`)."""
        run = self.run
        chosen = self._norms(first, last)
        return interval(chosen, small_batch=run.batch_per_device, large_batch=run.global_batch)

    def _norms(self, first: float, last: float) -> list[Norms]:
        steps = self.run.steps
        return [norms for norms in self.norms if first * steps <= norms.step <= last * steps]

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Record:
        """The record that a line of a journal holds, of this or an earlier schema.

        What an earlier version did not know has its default. Raises UserError, KeyError, TypeError or ValueError for
        anything else.
        """
        dropped = ("schema", "predicted", "advice")  # the last two are of earlier versions
        held = {name: given for name, given in fields.items() if name not in dropped and given is not None}
        held.update(run=Run.from_json(held["run"]), hardware=Hardware.from_json(held["hardware"]))
        return from_plain(Record, held)


def merged(blank: Record, told: Sequence[WorkerResult]) -> Record:
    """The record of a run of which all its workers have told: samples of all of them in the time of the slowest."""
    ended = [worker for worker in told if worker.wall is not None] or told
    slowest = max(ended, key=lambda worker: worker.wall or 0.0)
    # The first to fail says why; those that were stopped for its sake only say that they were. Who had no memory left
    # may be found gone by others that say so first, and so may who found the loss too large.
    unlike = sorted(ended, key=lambda worker: worker.outcome not in (OUT_OF_MEMORY, DIVERGED))
    blamed = next((worker for worker in unlike if worker.outcome != COMPLETED), slowest)
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
