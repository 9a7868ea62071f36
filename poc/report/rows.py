"""Every row that results.md draws on, measured and published, in one tidy table."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from poc.recipe import networks
from poc.records import timing
from poc.records.row import MEASURED, PUBLISHED, Row
from poc.report import compare
from poc.run import Run, exchange_label
from poc.studies import Study

Record = dict[str, Any]
"""In the form of `poc.records.record.Record.to_json`."""
FLOPS_RULE = "6 x multiply-adds x samples/s: two operations each, once forward and twice backward"

# Fields of a run that may differ within a series over devices, or that only say how it was cut or asked for.
_VARIED = (
    *("recipe", "devices", "virtual", "batch_per_device", "total_batch", "learning_rate", "lr_rule", "seed"),
    *("exchange", "workers", "warmup_steps", "steps", "steps_per_epoch", "epochs", "window", "quick"),
    *("staleness", "two_bit", "gradient_bits", "servers", "slowed", "restarts", "seconds"),
)
_ALIKE = (
    *("infrastructure", "hardware", "framework", "dataset", "setting", "devices", "workers", "virtual", "quick"),
    *("batch_per_device", "total_batch", "learning_rate", "lr_rule", "exchange", "steps"),
)
BUSY = 0.05
"""Share of a machine's cores that other processes may keep busy before a row's note says so."""


def collect(records: Sequence[Record], published: Iterable[Study]) -> list[Row]:
    """One row a record, in the order of `ordered`, then every published row, in that of its source.

    Speed-ups are worked out (`poc.report.compare`) where the source prints none; a row in a weak and in a strong series
    shows the weak one's. A superseded row, which no table but that of the takes shows, has none.
    """
    standing = {id(record) for record in last_takes(records)}
    measured = [from_record(record, superseded=id(record) not in standing) for record in ordered(records)]
    printed = [dataclasses.replace(row) for study in published for row in study.rows]
    shown = [row for row in measured if not row.superseded]
    _add_repeats(shown)
    _add_speedups([*shown, *printed])
    return [*measured, *printed]


def main_study(rows: Iterable[Row]) -> str:
    """The name of the study that comes first; empty where nothing is published."""
    return next((row.study for row in rows if row.origin == PUBLISHED), "")


def last_takes(records: Sequence[Record]) -> list[Record]:
    """The records that stand, in the order of `ordered`: of each run on a machine the last that completed.

    Of a run that never completed it is the last. Runs on different data are different runs.
    """
    completed: dict[tuple[str, ...], Record] = {}
    last: dict[tuple[str, ...], Record] = {}
    for record in sorted(ordered(records), key=lambda record: str(record["started"])):
        last[_key(record)] = record
        if record["outcome"] == "completed":
            completed[(*_key(record), record["dataset"])] = record
    succeeded = {key[:-1] for key in completed}
    standing = {id(record) for record in completed.values()}
    standing |= {id(record) for key, record in last.items() if key not in succeeded}
    return [record for record in ordered(records) if id(record) in standing]


def _key(record: Record) -> tuple[str, ...]:
    return (record["infrastructure"], record["hardware"]["description"], _computes(record))


def _computes(record: Record) -> str:
    """The id of what was computed: one replica exchanges nothing, though earlier plans named what it would have."""
    return Run.from_json(record["run"]).id


def ordered(records: Sequence[Record]) -> list[Record]:
    """Records in an order that does not depend on which journal they came from: by machine, then by what was run."""

    def place(record: Record) -> tuple[Any, ...]:
        run = record["run"]
        names = ("model", "total_batch", "batch_per_device", "learning_rate", "devices", "virtual", "quick", "seed")
        started = (record["started"], record["run_id"], json.dumps(record, sort_keys=True))
        return (record["infrastructure"], *(run[name] for name in names), *started)

    return sorted(records, key=place)


def workers(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Where each worker's time went, for runs of several: run_id, infrastructure, worker, wall_seconds, its parts.

    The parts are named as in the rows. Only workers that told of their end.
    """
    return [
        {
            "run_id": record["run_id"],
            "infrastructure": record["infrastructure"],
            "worker": worker["worker"],
            "wall_seconds": worker["wall"],
            **_split(worker["wall"], worker["parts"], timing.windows_from(worker)),
        }
        for record in ordered(records)
        for worker in record.get("workers") or []
        if "wall" in worker
    ]


def from_record(record: Record, *, superseded: bool = False) -> Row:
    """The row of one record, without what it takes other rows to know."""
    run, hardware = record["run"], record["hardware"]
    windows = timing.windows_from(record)
    rate = timing.throughput(windows)
    steps = sum(window.steps for window in windows)
    accuracies = [one["accuracy"] for one in record["evaluations"]]
    monitored = (record.get("monitor") or {}).get("devices", [])
    memory = record["memory"]
    row = Row(
        origin=MEASURED,
        run_id=record["run_id"],
        infrastructure=record["infrastructure"],
        hardware=hardware["description"],
        framework=framework(record),
        network=run["model"],
        parameters=record["parameters"],
        dataset=record["dataset"],
        input_shape="3x{0}x{0}".format(run["data"]["crop"]),
        batch_per_device=run["batch_per_device"],
        total_batch=run["total_batch"],
        learning_rate=run["learning_rate"],
        lr_rule=run["lr_rule"],
        devices=run["devices"],
        virtual=run["virtual"],
        workers=run.get("workers", 1),
        exchange=exchange_label(run) if run["devices"] > 1 else "",
        dtype=run.get("dtype", "float32"),
        layout=run.get("layout", "NCHW"),
        epochs=steps // run["steps_per_epoch"] if windows else None,
        steps=steps if windows else None,
        seed=run["seed"],
        outcome=record["outcome"],
        accuracy=accuracies[-1] if accuracies else None,
        seconds_per_epoch=_epoch_seconds(windows, run["steps_per_epoch"]),
        utilisation=_mean([one.get("utilisation") for one in monitored]),
        wall_seconds=record["wall"],
        note=_note(record, steps),
        kind=run["kind"],
        cores_per_worker=run.get("cores_per_worker"),
        setting=_setting(run),
        recipe=run["recipe"],
        computes=_computes(record),
        started=record["started"],
        quick=run["quick"],
        fixed=bool(run["data"].get("fixed")),
        disturbed=_disturbed(record),
        accuracy_last4=statistics.fmean(accuracies[-4:]) if len(accuracies) >= 4 else None,
        samples_trained=sum(window.samples for window in windows) if windows else None,
        host_peak_bytes=memory["host_peak_bytes"],
        device_peak_bytes=memory["device_peak_bytes"],
        others_busy_cores=record["others_busy_cores"],
        superseded=superseded,
        **_detail(record),
    )
    if record["wall"] is not None:
        _fill(row, _split(record["wall"], record["parts"], windows))
    joules = [device.get("joules") for device in monitored]
    if joules and None not in joules and windows:
        row.joules_per_sample = sum(joules) / row.samples_trained
    if rate is not None:
        kept = windows[rate.dropped :]
        row.samples_per_second, row.spread, row.windows = rate.median, rate.spread, rate.windows
        row.dropped_windows = rate.dropped
        row.warmup_samples = sum(window.samples for window in windows[: rate.dropped])
        row.usual_wait_per_sample = statistics.median(window.waited / window.samples for window in kept)
        _fill(row, _arithmetic(record, rate.median))
    return row


def _fill(row: Row, figures: Mapping[str, float | None]) -> None:
    for name, figure in figures.items():
        setattr(row, name, figure)


def _arithmetic(record: Record, samples_per_second: float) -> dict[str, float | None]:
    """How much the devices computed, by `FLOPS_RULE`, and how much of what they can."""
    run = record["run"]
    network = networks.NETWORKS.get(run["model"])
    if network is None:  # of a later version
        return {}
    multiply_adds = network.multiply_adds(run["data"]["crop"])
    flops, peak = 6 * multiply_adds * samples_per_second, record.get("peak_flops")
    share = flops / peak if peak else None
    return {"multiply_adds": multiply_adds, "flops": flops, "peak_flops": peak, "peak_share": share}


def framework(record: Record) -> str:
    """Name and version of what trained it."""
    names = {"mxnet": "MXNet", "mxnet-cu112": "MXNet", "torch": "PyTorch"}
    found = (f"{names[package]} {version}" for package, version in record["versions"].items() if package in names)
    return next(found, "MXNet")


def _setting(run: dict[str, Any]) -> str:
    """A name for all of a run that is neither a size of a series over devices nor a repetition."""
    kept = json.loads(Run.from_json(run).key(*_VARIED))
    kept["data"] = {name: field for name, field in kept["data"].items() if field}
    whole = run["steps"] == run["epochs"] * run["steps_per_epoch"]
    # Runs cut short by steps are for throughput; how short does not matter to it.
    kept["length"] = run["epochs"] if whole else "cut"
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:10]


def _note(record: Record, steps: int) -> str:
    run = record["run"]
    words = []
    if record["outcome"] != "completed":
        words.append(f"{record['outcome']}: {record['reason']}")
    if run["quick"]:
        words.append("quick: a first look, not a result")
    if record["dataset"] == "synthetic" and record["evaluations"]:
        words.append("synthetic data: its accuracy says nothing of CIFAR-10")
    trained_by = framework(record)
    if not trained_by.startswith("MXNet"):
        words.append(trained_by + (", channels-last" if run.get("layout") == "NHWC" else ""))
    if run.get("compile"):
        words.append("compiled")
    if run.get("dtype", "float32") != "float32":
        words.append(f"precision {run['dtype']}")
    if run.get("optimizer", "sgd") != "sgd":
        words.append(f"optimizer {run['optimizer']}")
    if run.get("decay", "constant") != "constant":
        words.append(f"decay {run['decay']}")
    if run.get("label_smoothing"):
        words.append(f"label smoothing {run['label_smoothing']:g}")
    if run["virtual"]:
        words.append(f"virtual: one device played all {run['devices']}; its throughput is not that of {run['devices']}")
    if record["outcome"] == "completed" and steps % run["steps_per_epoch"]:
        words.append(f"stopped after {steps} steps")
    resumed = len(record.get("resumed") or [])
    if resumed:
        words.append("resumed from a checkpoint" + (f" {resumed} times" if resumed > 1 else ""))
    if _disturbed(record):
        busy, cores = record["others_busy_cores"], record["hardware"]["cores"]
        words.append(f"disturbed: other processes kept {busy:.2g} of {cores} cores busy meanwhile")
    return "; ".join(words)


def _disturbed(record: Record) -> bool:
    busy = record["others_busy_cores"]
    return busy is not None and bool(busy > BUSY * record["hardware"]["cores"])


def _epoch_seconds(windows: Sequence[timing.Window], steps_per_epoch: int) -> float | None:
    """Median over whole epochs of the seconds of their windows: training and waiting for data, no evaluation."""
    epochs: dict[int, list[timing.Window]] = {}
    for window in windows:
        epochs.setdefault(window.epoch, []).append(window)
    whole = [
        sum(window.seconds for window in found)
        for found in epochs.values()
        if sum(window.steps for window in found) == steps_per_epoch
    ]
    return statistics.median(whole) if whole else None


def _split(wall: float, parts: dict[str, float], windows: Sequence[timing.Window]) -> dict[str, float]:
    return {f"{part}_seconds": seconds for part, seconds in timing.split(wall, parts, windows).items()}


def _detail(record: Record) -> dict[str, Any]:
    """Seconds for 5,120 images in the Theano study's terms; those of training, communication and sync add up to a step.

    Training is a step without any exchange, synchronisation the wait for slower workers, and communication what else
    the exchange adds to a step; it can be slightly negative, by noise.
    """
    detail = record.get("detail")
    if not detail:
        return {}
    steps = 5120 / record["run"]["total_batch"]
    sync = detail["synchronisation_seconds"]
    train, whole = detail["independent_step_seconds"], detail["whole_step_seconds"]
    alone = record["run"]["devices"] == 1
    return {
        "train_seconds_per_5120": (whole if alone else train) * steps,
        "communication_seconds_per_5120": None if alone else (whole - train - (sync or 0.0)) * steps,
        "sync_seconds_per_5120": None if alone or sync is None else sync * steps,
        "data_seconds_per_5120": detail["data_seconds"] * steps,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return statistics.fmean(found) if found else None


def _add_repeats(rows: Sequence[Row]) -> None:
    """Mean, standard deviation and number over the seeds of runs that are otherwise equal, in each of their rows."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.outcome == "completed":
            groups.setdefault(tuple(getattr(row, name) for name in _ALIKE), []).append(row)
    for group in groups.values():
        if len(group) < 2:
            continue
        accuracies = [row.accuracy for row in group]
        rates = [row.samples_per_second for row in group]
        for row in group:
            row.repeats = len(group)
            if None not in accuracies:
                row.accuracy_mean, row.accuracy_spread = statistics.fmean(accuracies), statistics.stdev(accuracies)
            if None not in rates:
                row.throughput_mean, row.throughput_spread = statistics.fmean(rates), statistics.stdev(rates)


def _add_speedups(rows: Sequence[Row]) -> None:
    """Fills in speed-ups and efficiencies, and which kind of series they are of, where the source prints none."""

    def fill(row: Row, name: str, figure: float | None) -> None:
        if getattr(row, name) is None:
            setattr(row, name, figure)

    # The last one wins: strong series come after weak ones, and a weak one is to be shown.
    shown: dict[Row, compare.Series] = {}
    for series in reversed(compare.series(rows)):
        for row in (*series.alone, *series.rows):
            shown[row] = series
    for row, series in shown.items():
        row.scaling = series.kind
        fill(row, "speedup_throughput", compare.by_throughput(series.alone, row))
        fill(row, "speedup_wall", compare.by_wall(series.alone, row))
        fill(row, "speedup_without_sync", compare.without_sync(series.alone, row))
    for row in rows:
        for kind in ("throughput", "wall"):
            speedup = getattr(row, f"speedup_{kind}")
            fill(row, f"efficiency_{kind}", compare.efficiency(speedup, row.devices or 0))
