"""A row of rows.csv, of a published study and of every table: one field a column, with its unit and how it is shown."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
from collections.abc import Iterable, Sequence
from typing import Any, Union

from poc.recipe.datasets import DataId
from poc.records.timing import Window
from poc.run import Run

MEASURED, PUBLISHED, PREDICTED = "measured", "published", "predicted"
WEAK, STRONG = "weak", "strong"
"""Series over devices, by what they hold fixed: the batch per device, or the global batch."""

# None where unknown. `Any` lets arithmetic follow a check that the type checker cannot see, in another function.
Count = Union[int, Any]
Measure = Union[float, Any]


def _number(about: str, default: Any = None, **shown: Any) -> Any:
    return dataclasses.field(default=default, metadata={"about": about, **shown})


_text = functools.partial(_number, default="")
_flag = functools.partial(_number, default=False)
_seconds = functools.partial(_number, unit="s", digits=1)
_per_5120 = functools.partial(_number, unit="s", digits=2)


@dataclasses.dataclass(eq=False)
class Row:
    """One run: measured here, or printed by a study. The order of the fields is that of the columns in rows.csv.

    Each field's metadata has what it is (`about`), its `unit`, the decimals of a measured figure in a table (`digits`;
    None: as many as it has), its `title` there, and whether the file of a study may have it (`printed`): where it may
    be zero (`zero`), and the `most` that it may be.
    """

    origin: str = _text("measured here, published by a study, or predicted before it was measured here", title="origin")
    study: str = _text("name of the study")
    run_id: str = _text("hash of what the run computes", title="id")
    machine: str = _text("the machine, as its user or the source calls it", printed=True)
    hardware: str = _text("what the machine is", printed=True)
    framework: str = _text("what trained, with its version", title="framework", printed=True)
    model: str = _text("name of the network", printed=True)
    parameters: Count = _number("trainable parameters", digits=0, title="parameters", printed=True)
    dataset: str = _text("what it trained on", title="data", printed=True)
    input_shape: str = _text("of an image, channels first", title="input", printed=True)
    batch_per_device: Count = _number("samples", digits=0, title="batch per device", printed=True)
    global_batch: Count = _number("samples of all devices", digits=0, title="global batch", printed=True)
    lr: Measure = _number("after the warm-up", title="learning rate", printed=True)
    lr_rule: str = _text("how the learning rate follows from the batch")
    devices: Count = _number(
        "replicas of the network; 0 for a published CPU", digits=0, title="devices", printed=True, zero=True
    )
    emulated: bool = _flag("one device played all in turn")
    workers: Count = _number("processes that the devices are divided over")
    kvstore: str = _text("how gradients travel", title="kvstore", printed=True)
    dtype: str = _text("precision of the layers' arithmetic", title="precision", printed=True)
    layout: str = _text("of images in memory", title="layout", printed=True)
    epochs: Count = _number("whole ones", digits=0, title="epochs", printed=True)
    steps: Count = _number("optimizer steps done", digits=0)
    seed: Count = _number("of every random number")
    outcome: str = _text("completed, diverged, out of memory, failed or skipped", title="outcome")
    accuracy: Measure = _number("validation accuracy at the end", digits=4, title="accuracy", printed=True, most=1)
    seconds_per_epoch: Measure = _seconds(
        "training and waiting for data, median over whole epochs", title="s/epoch", printed=True
    )
    samples_per_second: Measure = _number(
        "median over windows after warm-up", unit="samples/s", digits=1, title="samples/s", printed=True
    )
    spread: Measure = _number(
        "1.4826 x median absolute deviation over windows",
        unit="samples/s",
        digits=1,
        title="spread",
        printed=True,
        zero=True,
    )
    windows: Count = _number("behind the median", digits=0, title="windows", printed=True)
    utilisation: Measure = _number("of the devices, a fraction", printed=True, zero=True, most=1)
    wall_seconds: Measure = _seconds("from the start of its process to its end")
    initialise_seconds: Measure = _seconds("part of the wall time")
    warmup_seconds: Measure = _seconds("part of the wall time")
    train_seconds: Measure = _seconds("part of the wall time")
    data_seconds: Measure = _seconds("part of the wall time")
    evaluate_seconds: Measure = _seconds("part of the wall time")
    checkpoint_seconds: Measure = _seconds("part of the wall time")
    rest_seconds: Measure = _seconds("wall time that no other part claims: start of the process, between windows")
    speedup_throughput: Measure = _number("against one device, by throughput", printed=True)
    speedup_wall: Measure = _number("against one device, by wall time", printed=True)
    efficiency_throughput: Measure = _number("speed-up by throughput / devices", printed=True, most=2)
    efficiency_wall: Measure = _number("speed-up by wall time / devices", printed=True, most=2)
    note: str = _text("what the other columns do not say", title="note", printed=True)

    scaling: str = _text(
        "what its series over devices holds fixed: weak the batch per device, strong the global batch",
        title="scaling",
        printed=True,
    )
    speedup_without_sync: Measure = _number("by seconds of training and communication")
    flag: str = _text("which of a published row's figures contradict each other")
    printed: str = _text("the source's own text, which finds the row again", title="the source's text", printed=True)
    kind: str = _text("what plays the devices, gpu or cpu")
    cores_per_worker: Count = _number("CPU cores that each worker is bound to")
    hosts: Count = _number("machines that the devices are divided over", digits=0, title="hosts", printed=True)
    setting: str = _text("what the rows of a series over devices share, as a hash")
    recipe: str = _text("name of the recipe")
    started: str = _text("UTC")
    quick: bool = _flag("a first look, cut short")
    accuracy_last4: Measure = _number("mean of the last four epochs", digits=4, title="mean of last 4 epochs")
    dropped_windows: Count = _number("of the warm-up")
    samples_trained: Count = _number("in all windows")
    host_peak_bytes: Count = _number("most memory of all workers", unit="bytes")
    device_peak_bytes: Count = _number("most memory of one device", unit="bytes")
    others_busy_cores: Measure = _number("cores that other processes kept busy meanwhile")
    stolen_cores: Measure = _number("cores that the hypervisor gave to other machines meanwhile")
    usable_cores: Count = _number("which both of these are of; of earlier versions unknown")
    joules_per_sample: Measure = _number("of all devices, in the windows after warm-up", unit="J", digits=4)
    train_seconds_per_5120: Measure = _per_5120("training for 5,120 images", title="train (s/5,120)", printed=True)
    communication_seconds_per_5120: Measure = _per_5120(
        "communication for 5,120 images", title="communication (s/5,120)", printed=True, zero=True
    )
    sync_seconds_per_5120: Measure = _per_5120(
        "waiting for slower workers for 5,120 images", title="sync (s/5,120)", printed=True, zero=True
    )
    data_seconds_per_5120: Measure = _per_5120("waiting for data for 5,120 images")
    computes: str = _text("the run's id as it would be today")
    repeat: Count = _number(
        "which one of its run on this machine and data, by when it started", digits=0, title="repeat"
    )
    multiply_adds: Measure = _number("of one image's forward pass")
    flops: Measure = _number("arithmetic of training at the throughput", unit="FLOP/s")
    peak_flops: Measure = _number("most of a large matrix product on such devices there, of all repeats", unit="FLOP/s")
    peak_share: Measure = _number("flops / peak_flops")
    fixed: bool = _flag("one fixed batch was trained on")
    disturbed: bool = _flag("other processes, or other machines on the same hardware, took time")
    engine_choice: str = _text("why its framework")
    seconds_to_075: Measure = _seconds("training, until the accuracy was first 0.75 at an epoch's end")
    dollars_per_hour: Measure = _number("price of the devices in use", unit="$")
    price_from: str = _text("where and when that was the price")
    accuracy_on: str = _text("held-out, where the accuracy is of training images that a search held out")
    target_accuracy: Measure = _number("at which the run was to end")
    contradicts: str = _text("the columns that `flag` is about")
    cores: Count = _number("CPU cores that the run could use")
    threads: Count = _number("OpenMP threads of each worker")
    environment: str = _text("inherited environment variables that change speed")
    data_checksum: str = _text("of the images and labels that it trained on; empty for synthetic ones and earlier runs")

    run: Run | Any = None
    """What was run; None where it was published."""
    fewer_threads: int | None = None
    """As in `Record`."""
    timed: Sequence[Window] = ()
    """The windows behind its samples/s."""
    speed_withdrawn: bool = False
    """Whether it has no speed because that was withdrawn (`Record.speed_withdrawn`)."""

    @property
    def measured(self) -> bool:
        """Whether it was measured here, and not published."""
        return self.origin == MEASURED

    @property
    def data_id(self) -> DataId:
        """The identity of its images, as far as the source tells."""
        return DataId(self.dataset, self.data_checksum)

    @property
    def held_fixed(self) -> Count:
        """The batch that its series over devices holds fixed."""
        return self.global_batch if self.scaling == STRONG else self.batch_per_device

    def doubtful(self, *columns: str) -> bool:
        """Whether the source's own figures disagree about any of these columns."""
        return not set(columns).isdisjoint(self.contradicts.split())


def rate(row: Row) -> float | None:
    """Samples/s of `row`: as printed or measured, else of its seconds for 5,120 images, synchronisation included."""
    parts = (row.train_seconds_per_5120, row.communication_seconds_per_5120, row.sync_seconds_per_5120)
    if row.samples_per_second is not None or not parts[0]:
        return row.samples_per_second
    return 5120 / sum(filter(None, parts))


COLUMNS = {field.name: field for field in dataclasses.fields(Row) if field.metadata}


def to_csv(rows: Iterable[Row]) -> str:
    """The text of rows.csv: measures to ten digits, empty where unknown."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(getattr(row, name), str(COLUMNS[name].type)) for name in COLUMNS} for row in rows)
    return text.getvalue()


def _cell(held: Any, kind: str) -> str:
    if held is None:
        return ""
    return f"{held:.10g}" if kind == "Measure" else str(held)
