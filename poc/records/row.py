"""The columns of rows.csv and of a study's file: name, type, meaning and unit."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Union

MEASURED, PUBLISHED = "measured", "published"
WEAK, STRONG = "weak", "strong"
"""What a scaling series keeps: the batch per device, or the global batch."""

# None if unknown. `Any` lets arithmetic follow a check that the type checker cannot see, in another function.
Count = Union[int, Any]
Measure = Union[float, Any]


def _number(about: str, default: Any = None, **metadata: Any) -> Any:
    return dataclasses.field(default=default, metadata={"about": about, **metadata})


_text = functools.partial(_number, default="")
_flag = functools.partial(_number, default=False)
_time = functools.partial(_number, time=True)
_seconds = functools.partial(_time, unit="s")


@dataclasses.dataclass(eq=False)
class Row:
    """One row of rows.csv: a measured run, or a result that a study printed. Fields are in the order of the columns.

    Metadata of a field: its meaning (`about`), its `unit`, its `title` in tables if that is not the name, whether it is
    a `time` or speed, and whether a study's file may have it (`printed`), with `zero` allowed or not and up to `most`.
    """

    origin: str = _text("measured, or published by a study")
    study: str = _text("name of the study")
    run_id: str = _text("hash of what the run computes", title="id")
    machine: str = _text("name of the machine, by its user or the source", printed=True)
    hardware: str = _text("what the machine is", printed=True)
    framework: str = _text("framework with its version", printed=True)
    model: str = _text("name of the model", printed=True)
    parameters: Count = _number("trainable parameters", printed=True)
    dataset: str = _text("data set that it was trained on", title="data", printed=True)
    input_shape: str = _text("shape of an image, channels first", title="input", printed=True)
    batch_per_device: Count = _number("samples per device and step", printed=True)
    global_batch: Count = _number("samples of all devices per step", printed=True)
    lr: Measure = _number("learning rate after the warm-up", title="learning rate", printed=True)
    lr_rule: str = _text("rule by which the learning rate follows from the global batch")
    devices: Count = _number("replicas over all workers; 0 for a published CPU", printed=True, zero=True)
    emulated: bool = _flag("one device computed the micro-batches of all")
    workers: Count = _number("processes that the devices are divided over")
    kvstore: str = _text("how gradients are synchronised", printed=True)
    dtype: str = _text("precision of the layers' arithmetic", title="precision", printed=True)
    layout: str = _text("layout of images in memory", printed=True)
    epochs: Count = _number("whole epochs", printed=True)
    steps: Count = _number("optimizer steps")
    seed: Count = _number("seed of every random number")
    outcome: str = _text("completed, diverged, out of memory, failed or skipped")
    accuracy: Measure = _number("accuracy after the last epoch", printed=True, most=1)
    seconds_per_epoch: Measure = _seconds("median over whole epochs, without evaluation", title="s/epoch", printed=True)
    samples_per_second: Measure = _time(
        "median over windows after warm-up", unit="samples/s", title="samples/s", printed=True
    )
    spread: Measure = _time(
        "1.4826 x median absolute deviation over windows", unit="samples/s", printed=True, zero=True
    )
    windows: Count = _number("windows behind the median", printed=True)
    utilisation: Measure = _number("mean use of the devices, a fraction", printed=True, zero=True, most=1)
    wall_seconds: Measure = _seconds("from the start of the process to its end")
    initialise_seconds: Measure = _seconds("part of the wall time")
    warmup_seconds: Measure = _seconds("part of the wall time")
    train_seconds: Measure = _seconds("part of the wall time")
    data_seconds: Measure = _seconds("part of the wall time: waiting for data")
    evaluate_seconds: Measure = _seconds("part of the wall time")
    checkpoint_seconds: Measure = _seconds("part of the wall time")
    rest_seconds: Measure = _seconds("part of the wall time: process start, and between windows")
    speedup_throughput: Measure = _time("samples/s over those of one device", printed=True)
    speedup_wall: Measure = _time("wall time per sample of one device over this one's", printed=True)
    efficiency_throughput: Measure = _time("speed-up by throughput / devices", printed=True, most=2)
    efficiency_wall: Measure = _time("speed-up by wall time / devices", printed=True, most=2)
    note: str = _text("remarks on the run, or of the source", printed=True)

    scaling: str = _text("scaling series: weak keeps the batch per device, strong the global batch", printed=True)
    speedup_without_sync: Measure = _time("speed-up by seconds of training and communication")
    flag: str = _text("figures of a published row that contradict each other, in words")
    contradicts: str = _text("columns that `flag` is about")
    printed: str = _text("text of the source, by which the row is found", title="the source's text", printed=True)
    kind: str = _text("kind of the devices: gpu or cpu")
    cores_per_worker: Count = _number("CPU cores that each worker is bound to")
    hosts: Count = _number("hosts that the devices are divided over", printed=True)
    setting: str = _text("hash of all but the seed; rows of one setting are repeats")
    workload: str = _text("hash of machine, data, model and optimizer: what a scaling series shares")
    length: str = _text("training: whole epochs; burst: cut by steps or seconds, for throughput")
    baseline: bool = _flag("whether optimizer and augmentation are the main study's")
    training_recipe: str = _text("optimizer, schedule and augmentation in words")
    schedule: str = _text("schedule of the learning rate; empty: constant")
    recipe: str = _text("name of the recipe")
    started: str = _text("start in UTC, ISO 8601")
    repeat: Count = _number("number of the repeat among those of its setting, by start")
    quick: bool = _flag("cut short for a first look")
    reason: str = _text("reason of an outcome other than completed")
    accuracy_on: str = _text("test set or validation split")
    accuracy_last4: Measure = _number("mean accuracy of the last four epochs", title="mean of last 4 epochs")
    accuracy_by_epoch: str = _text("epoch:accuracy of each evaluation")
    seconds_by_epoch: str = _text("epoch:seconds of training until its end, for each evaluation")
    target_accuracy: Measure = _number("accuracy at which the run was to end")
    at_chance: bool = _flag("accuracy no better than guessing")
    noisy: bool = _flag("other processes or machines took more than 5% of the cores that it could use")
    speed_withdrawn: str = _text("reason why no time or speed of the run is shown")
    dropped_windows: Count = _number("windows of the warm-up")
    data_wait: Measure = _number("share of the timed windows spent waiting for data")
    samples_trained: Count = _number("samples in all windows")
    host_peak_bytes: Count = _number("peak memory of all workers", unit="bytes")
    device_peak_bytes: Count = _number("peak memory of one device", unit="bytes")
    others_busy_cores: Measure = _number("cores that other processes kept busy during the run", unit="cores")
    stolen_cores: Measure = _number("cores that the hypervisor gave to other machines during the run", unit="cores")
    usable_cores: Count = _number("cores that the run could use", unit="cores")
    joules_per_sample: Measure = _time("energy of all devices in the windows after warm-up", unit="J")
    step_seconds: Measure = _time("step-time breakdown: a whole step", unit="s")
    compute_seconds: Measure = _time("step-time breakdown: a step without synchronisation", unit="s")
    sync_seconds: Measure = _time("step-time breakdown: the synchronisation alone", unit="s")
    bus_bytes_per_second: Measure = _time("step-time breakdown: bus bandwidth of an all-reduce", unit="bytes/s")
    train_seconds_per_5120: Measure = _seconds("training for 5,120 images", title="train (s/5,120)", printed=True)
    communication_seconds_per_5120: Measure = _seconds(
        "communication for 5,120 images", title="communication (s/5,120)", printed=True, zero=True
    )
    sync_seconds_per_5120: Measure = _seconds(
        "waiting for slower workers for 5,120 images", title="sync (s/5,120)", printed=True, zero=True
    )
    data_seconds_per_5120: Measure = _seconds("waiting for data for 5,120 images")
    multiply_adds: Measure = _number("multiply-adds of one image's forward pass")
    flops: Measure = _time("arithmetic of training at the samples/s", unit="FLOP/s")
    peak_flops: Measure = _time("best large matrix product on these devices", unit="FLOP/s")
    mfu: Measure = _time("model FLOPs utilisation: flops / peak_flops")
    noise_scale: Measure = _number("gradient noise scale in the second half of the training", unit="samples")
    noise_low: Measure = _number("lower end of its 90% interval", unit="samples")
    noise_high: Measure = _number("upper end of its 90% interval", unit="samples")
    straggler: Measure = _number("share by which the last worker was slowed on purpose", default=0.0)
    staleness_mean: Measure = _number("steps that a worker was ahead of the slowest, mean", unit="steps")
    staleness_max: Measure = _number("steps that a worker was ahead of the slowest, maximum", unit="steps")
    fixed: bool = _flag("one batch in device memory was trained on over and over")
    cpu: str = _text("model of the CPU")
    cores: Count = _number("CPU cores of the machine that a run could use")
    driver: str = _text("version of the NVIDIA driver")
    threads: Count = _number("OpenMP threads of each worker")
    fewer_threads: Count = _number("threads of a training on the whole CPU that had fewer than there are cores")
    environment: str = _text("inherited environment variables that change speed")
    data_checksum: str = _text("checksum of images and labels; empty for synthetic ones")
    commit: str = _text("commit of this project that measured it")
    given_dollars_per_hour: Measure = _number("price of the instance that the user gave with the run", unit="$")
    dollars_per_hour: Measure = _number("price of the whole instance", unit="$")
    price_source: str = _text("source and date of the price")
    dollars_per_run: Measure = _time("price of the whole instance for the run's wall time", unit="$")

    @property
    def held_fixed(self) -> Count:
        """Return the batch that its scaling series keeps."""
        return self.global_batch if self.scaling == STRONG else self.batch_per_device

    def doubtful(self, *columns: str) -> bool:
        """Return whether the source's own figures disagree about any of these columns."""
        return not set(columns).isdisjoint(self.contradicts.split())


def rate(row: Row) -> float | None:
    """Return the printed samples/s, else those of the seconds per 5,120 images, synchronisation included."""
    parts = (row.train_seconds_per_5120, row.communication_seconds_per_5120, row.sync_seconds_per_5120)
    if row.samples_per_second is not None or not parts[0]:
        return row.samples_per_second
    return 5120 / sum(filter(None, parts))


COLUMNS = {field.name: field for field in dataclasses.fields(Row)}
COUNTS = tuple(name for name, column in COLUMNS.items() if column.type == "Count")
NUMBERS = tuple(name for name, column in COLUMNS.items() if column.type in ("Count", "Measure"))
TITLES = {name: str(column.metadata.get("title") or name.replace("_", " ")) for name, column in COLUMNS.items()}
"""Columns as tables and messages call them."""
