"""Every row that results.md draws on, measured and published, in one table."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from poc import engines
from poc.recipe import SGD, networks
from poc.recipe.datasets import HELD_OUT
from poc.records import timing
from poc.records.record import COMPLETED, FAILED, SKIPPED, Record
from poc.records.timing import Window
from poc.report import compare
from poc.report.measurements import WAITED, grouped, waited
from poc.run import Run
from poc.studies import Study
from poc.studies.prices import GIVEN, Price, Prices
from poc.studies.row import MEASURED, PREDICTED, Row
from poc.values import words

FLOPS_RULE = "6 x multiply-adds x samples/s: two operations each, once forward and twice backward"
USUAL_ENGINE = engines.ENGINES[0]
"""What trained is said only of others; of two in one comparison it is the reference."""
BUSY = 0.05
"""Share of the usable cores that other processes and machines may take before a row's note says so."""

TARGET = 0.75
"""The accuracy whose time and price are told."""

# What a row has as the run or the record has it.
_OF_RUN = (
    *("global_batch", "batch_per_device", "lr_rule", "devices", "emulated", "workers", "dtype"),
    *("layout", "seed", "kind", "cores_per_worker", "recipe", "quick", "target_accuracy"),
)
_OF_RECORD = (
    *("run_id", "parameters", "dataset", "outcome", "started", "engine_choice"),
    *("others_busy_cores", "stolen_cores", "usable_cores", "data_checksum", "threads", "fewer_threads"),
)
# What may differ within a series over devices, or only says how a run was cut.
_VARIED = (
    *("devices", "emulated", "batch_per_device", "global_batch", "learning_rate", "lr_rule", "seed", "kvstore"),
    *("workers", "warmup_steps", "steps", "steps_per_epoch", "epochs", "window", "quick", "straggler", "seconds"),
)


def collect(records: Sequence[Record], published: Iterable[Study], prices: Prices | None = None) -> list[Row]:
    """One row for each record that is `shown`, in their order, then every published row, in that of its source.

    Speed-ups are worked out (`poc.report.compare`) where a source prints none; a row in a weak and in a strong series
    shows the weak one's.
    """
    records, peaks = shown(records), best_peaks(records)
    measured = [from_record(record, peaks.get(_devices(record))) for record in records]
    _add_takes(measured)
    table = [*measured, *(dataclasses.replace(row) for study in published for row in study.rows)]
    _add_speedups(table)
    if prices is not None:
        _add_prices(table, prices, records)
    return table


def predicted(table: Iterable[Row], records: Sequence[Record]) -> list[Row]:
    """A row for each prediction that the `records` hold, which lead the `table` as `collect` made it."""
    same = (
        *("machine", "hardware", "framework", "model", "dataset", "input_shape", "batch_per_device", "run_id"),
        *("global_batch", "devices", "workers", "kvstore", "dtype", "layout", "kind", "cores_per_worker", "computes"),
        *("setting", "recipe", "started", "repeat", "data_checksum"),
    )
    return [
        Row(
            origin=PREDICTED,
            **{name: getattr(row, name) for name in same},
            samples_per_second=record.predicted.rate,
            note=str(record.predicted),
        )
        for row, record in zip(table, records)
        if record.predicted
    ]


def shown(records: Sequence[Record]) -> list[Record]:
    """All records but those of failed and skipped runs that completed later on the same machine and images.

    Where these were not opened, as for a skipped run, on any.
    """

    def run(record: Record, checksum: str) -> tuple[str, ...]:
        return record.infrastructure, record.hardware.describe(), record.run.id, checksum

    done = sorted((record for record in records if record.outcome == COMPLETED), key=lambda record: record.started)
    last = {run(record, checksum): record.started for record in done for checksum in ("", record.data_checksum)}
    lost = (FAILED, SKIPPED)
    return [
        record
        for record in records
        if record.outcome not in lost or record.started > last.get(run(record, record.data_checksum), "")
    ]


def best_peaks(records: Iterable[Record]) -> dict[tuple[Any, ...], float]:
    """Operations a second of a large matrix product: the most that any record has, by devices (`_devices`).

    A machine that is shared can be slower than its best, and not faster: what training reached is held against that.
    """
    groups = grouped(records, _devices)
    return {devices: max(record.peak_flops or 0.0 for record in group) for devices, group in groups.items()}


def _devices(record: Record) -> tuple[Any, ...]:
    """What records share that were measured on as many of the same cores or cards, in the same precision."""
    run, machine = record.run, record.hardware
    if run.kind == "cpu":
        used = machine.cpu, run.workers * (run.cores_per_worker or record.fewer_threads or machine.cores)
    else:
        used = machine.describe(), 1 if run.emulated else run.devices
    return (record.infrastructure, run.kind, run.dtype, *used)


def ordered(records: Sequence[Record]) -> list[Record]:
    """Records in an order that does not depend on which journal they came from: by machine, then by what was run."""
    names = ("model", "global_batch", "batch_per_device", "learning_rate", "devices", "emulated", "quick", "seed")

    def place(record: Record) -> tuple[Any, ...]:
        run = (getattr(record.run, name) for name in names)
        return (record.infrastructure, *run, record.started, record.run_id, json.dumps(record.to_json()))

    return sorted(records, key=place)


def from_record(record: Record, peak_flops: float | None = None) -> Row:
    """The row of one record, without what it takes other rows to know; `peak_flops` are those of its devices."""
    run, told = record.run, _of_windows(record, peak_flops)
    parts: dict[str, Any] = {f"{part}_seconds": seconds for part, seconds in (record.split() or {}).items()}
    accuracies = [evaluation.accuracy for evaluation in record.evaluations]
    devices = record.monitor.devices if record.monitor else ()
    used = [device.utilisation for device in devices if device.utilisation is not None]
    return Row(
        origin=MEASURED,
        run=run,
        **{name: getattr(run, name) for name in _OF_RUN},
        **{name: getattr(record, name) for name in _OF_RECORD},
        **parts,
        **told,
        **_of_detail(record),
        computes=run.id,
        framework=framework(record),
        machine=record.infrastructure,
        model=run.model,
        lr=run.learning_rate,
        input_shape="x".join(map(str, run.data.input_shape)),
        kvstore=run.kvstore_label if run.devices > 1 else "",
        setting=_setting(run),
        fixed=run.data.fixed,
        hardware=record.hardware.describe(),
        cores=record.hardware.cores,
        environment=" ".join(f"{name}={given}" for name, given in (record.environment or {}).items()),
        accuracy=accuracies[-1] if accuracies else None,
        accuracy_last4=statistics.fmean(accuracies[-4:]) if len(accuracies) >= 4 else None,
        wall_seconds=record.wall,
        accuracy_on=HELD_OUT * run.searches,
        seconds_to_075=None if run.searches or record.speed_withdrawn else _seconds_to(TARGET, record),
        note=_note(record, told.get("timed", ())),
        disturbed=disturbed(record),
        speed_withdrawn=bool(record.speed_withdrawn),
        host_peak_bytes=record.memory.host_peak_bytes,
        device_peak_bytes=record.memory.device_peak_bytes,
        utilisation=statistics.fmean(used) if used else None,
        joules_per_sample=_joules_per_sample(record),
    )


def _seconds_to(accuracy: float, record: Record) -> float | None:
    """Of training to the end of the first epoch after which it was reached; None where it never was."""
    epoch = next((seen.epoch for seen in record.evaluations if seen.accuracy >= accuracy), None)
    return None if epoch is None else trained_by(epoch, record)


def trained_by(epoch: int, record: Record) -> float:
    """Seconds of training up to the end of an epoch, evaluation not counted."""
    return sum(window.seconds for window in record.windows if window.epoch <= epoch)


def _of_windows(record: Record, peak_flops: float | None) -> dict[str, Any]:
    run, windows = record.run, record.windows
    if not windows:
        return {}
    steps, network = sum(window.steps for window in windows), networks.NETWORKS.get(run.model)
    samples = sum(window.samples for window in windows)
    trained = {"epochs": steps // run.steps_per_epoch, "steps": steps, "samples_trained": samples}
    throughput = timing.throughput(record.timed)
    if throughput is None:
        return trained
    multiply_adds = network.multiply_adds(run.data.crop) if network else None
    flops = None if multiply_adds is None else 6 * multiply_adds * throughput.median
    epochs = grouped(record.timed, lambda window: window.epoch).values()
    whole = [epoch for epoch in epochs if sum(window.steps for window in epoch) == run.steps_per_epoch]
    seconds = [sum(window.seconds for window in epoch) for epoch in whole]
    return {
        **trained,
        "seconds_per_epoch": statistics.median(seconds) if seconds else None,
        "samples_per_second": throughput.median,
        "timed": record.timed[throughput.dropped :],
        "spread": throughput.spread,
        "windows": throughput.windows,
        "dropped_windows": throughput.dropped,
        "multiply_adds": multiply_adds,
        "flops": flops,
        "peak_flops": peak_flops or None,
        "peak_share": flops / peak_flops if flops and peak_flops else None,
    }


def _joules_per_sample(record: Record) -> float | None:
    """Of all devices, in the windows after warm-up; None where one of them has no such counter.

    Of the whole process in records of versions that sampled no windows by themselves.
    """
    monitor = record.monitor
    devices = monitor.devices if monitor else ()
    drawn = [device.joules for device in devices if device.joules is not None]
    if not monitor or not record.windows or not drawn or len(drawn) < len(devices):
        return None
    if monitor.of_windows:
        kept = record.windows[timing.warmup(record.windows) :]
        if not kept:
            return None
        watts = sum(device.joules / device.seconds for device in devices if device.joules and device.seconds)
        return watts * sum(window.seconds for window in kept) / sum(window.samples for window in kept)
    return sum(drawn) / sum(window.samples for window in record.windows)


def _of_detail(record: Record) -> dict[str, Any]:
    """Seconds for 5,120 images in the Theano study's terms; those of training, communication and sync add up to a step.

    Training is a step without any exchange, synchronisation the wait for slower workers, and communication what else
    the exchange adds to a step; it can be slightly negative, by noise.
    """
    detail = record.detail
    if detail is None:
        return {}
    steps, alone = 5120 / record.run.global_batch, record.run.devices == 1
    sync, train, whole = detail.synchronisation_seconds, detail.independent_step_seconds, detail.whole_step_seconds
    return {
        "train_seconds_per_5120": (whole if alone else train) * steps,
        "communication_seconds_per_5120": None if alone else (whole - train - (sync or 0.0)) * steps,
        "sync_seconds_per_5120": None if alone or sync is None else sync * steps,
        "data_seconds_per_5120": detail.data_seconds * steps,
    }


def framework(record: Record) -> str:
    """Label and version of the framework that trained it; its name where its folder is not here."""
    name = record.run.framework
    if name not in engines.ENGINES:
        return name
    engine = engines.load(name)
    versions = [record.versions[package] for package in engine.PACKAGES if package in record.versions]
    return " ".join([engine.LABEL, *versions[:1]])


def _setting(run: Run) -> str:
    """A name for all of a run that is neither a size of a series over devices nor a repetition."""
    kept = json.loads(run.key(*_VARIED))
    kept["data"] = {name: held for name, held in kept["data"].items() if held}
    # Runs cut short by steps are for throughput; how short does not matter to it.
    kept["length"] = run.epochs if run.steps == run.epochs * run.steps_per_epoch else "cut"
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:10]


def _note(record: Record, timed: Sequence[Window]) -> str:
    run, said = record.run, words(record.run)
    steps, times = sum(window.steps for window in record.windows), len(record.resumed)
    notes = [
        f"{record.outcome}: {record.reason}" if record.outcome != COMPLETED else "",
        "quick: a first look, not a result" * run.quick,
        "synthetic data: its accuracy says nothing of CIFAR-10"
        * (record.dataset == "synthetic" and bool(record.evaluations)),
        framework(record) + ", channels-last" * (run.layout == "NHWC") if run.framework != USUAL_ENGINE else "",
        *(said.get(name, "") for name in ("compile", "dtype")),
        f"optimizer {run.optimizer.name}" if not isinstance(run.optimizer, SGD) else "",
        *(said.get(name, "") for name in ("decay", "label_smoothing", "averaged_views")),
        f"emulated: one device played all {run.devices}; its throughput is not that of {run.devices}" * run.emulated,
        f"speed withdrawn: {record.speed_withdrawn}" if record.speed_withdrawn else "",
        "too short to time: no window after warm-up"
        if record.outcome == COMPLETED and not timed and not record.speed_withdrawn
        else "",
        f"stopped after {steps} steps" if record.outcome == COMPLETED and steps % run.steps_per_epoch else "",
        "resumed from a checkpoint" * bool(times) + f" {times} times" * (times > 1),
        f"{waited(timed):.0%} of the timed windows went by in waiting for batches" * (waited(timed) > WAITED),
        *(f"clocks held back by {reason} for {share:.0%} of the time" for reason, share in _throttled(record).items()),
    ]
    if record.at_chance:
        notes.append("its accuracy is no better than chance")
    if disturbed(record):
        # Of how many, earlier versions did not tell.
        cores = f"of {record.usable_cores} cores" if record.usable_cores else "cores"
        stolen = f", and {record.stolen_cores:.2g} were stolen" if record.stolen_cores else ""
        notes.append(f"disturbed: other processes kept {record.others_busy_cores:.2g} {cores} busy meanwhile{stolen}")
    return "; ".join(filter(None, notes))


def _throttled(record: Record) -> dict[str, float]:
    """What held the clocks of a device back, and the largest share of its time; without what hardly did."""
    held: dict[str, float] = {}
    for device in record.monitor.devices if record.monitor else ():
        for reason, share in device.throttled.items():
            held[reason] = max(share, held.get(reason, BUSY))
    return {reason: share for reason, share in held.items() if share > BUSY}


def disturbed(record: Record) -> bool:
    """Whether others took more than `BUSY` of the cores that the run could use, on which they get in its way.

    Of earlier versions, which counted what went on on any core, it may be said of a run that had only some of them.
    """
    taken = (record.others_busy_cores or 0.0) + (record.stolen_cores or 0.0)
    return taken > BUSY * (record.usable_cores or record.hardware.cores)


def _add_takes(rows: Sequence[Row]) -> None:
    begun = sorted(rows, key=lambda row: row.started)
    for takes in grouped(begun, lambda row: (row.machine, row.hardware, row.computes, row.data_id)).values():
        for number, row in enumerate(takes, start=1):
            row.repeat = number


def _add_prices(rows: Sequence[Row], prices: Prices, records: Sequence[Record]) -> None:
    """What the devices in use cost an hour: what the run's user said of the machine, else what is known of it.

    The rows of `records` are the first, in their order.
    """
    for row, record in itertools.zip_longest(rows, records):
        known = prices.of(row.machine, row.hardware)
        if record and record.price_per_hour is not None and (known is None or known.source != GIVEN):
            known = Price(machine="", dollars_per_hour=record.price_per_hour, source=GIVEN)
        if known is not None:
            cards = known.devices or (len(record.hardware.gpus) if record else None)
            used = 1 if row.emulated else row.devices
            share = used / cards if cards and used and row.kind == "gpu" else 1.0
            row.dollars_per_hour = known.dollars_per_hour * min(share, 1.0)
            row.price_from = f"{known.machine}, {known.date}" if known.date else known.source


def _add_speedups(rows: Sequence[Row]) -> None:
    """Fills in speed-ups and efficiencies, and which kind of series they are of, where the source prints none."""

    def fill(row: Row, name: str, figure: float | None) -> None:
        if getattr(row, name) is None:
            setattr(row, name, figure)

    # The last one wins: strong series come after weak ones, and a weak one is to be shown.
    shown = {row: series for series in reversed(compare.series(rows)) for row in (*series.alone, *series.rows)}
    for row, series in shown.items():
        row.scaling = series.kind
        alone = compare.beside(series.alone, [row])
        fill(row, "speedup_throughput", compare.by_throughput(alone, row))
        fill(row, "speedup_wall", compare.by_wall(alone, row))
        fill(row, "speedup_without_sync", compare.without_sync(alone, row))
    for row in rows:
        for kind in ("throughput", "wall"):
            speedup = getattr(row, f"speedup_{kind}")
            fill(row, f"efficiency_{kind}", speedup / row.devices if speedup is not None and row.devices else None)
