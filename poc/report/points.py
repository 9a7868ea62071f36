"""The data of each figure of results.md: pure functions of rows and records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from statistics import fmean, median
from typing import Any, Callable

from poc.recipe import networks
from poc.recipe.exchanges import Stale
from poc.records import timing
from poc.records.record import COMPLETED, DIVERGED, DONE, Evaluation, Record
from poc.report import compare, ways
from poc.report.cells import MAIN_NETWORKS, network_label
from poc.report.chart import Bar, Point, Series
from poc.report.rows import USUAL_ENGINE, from_record, main_study
from poc.studies.row import PUBLISHED, Row

MAIN_EPOCHS = 12
"""Epochs of every run of the main study: an accuracy after more of them is no match for its accuracies."""


def accuracy_throughput(rows: Sequence[Row]) -> list[Series]:
    """Accuracy against samples/s of the main study's network after its epochs: one series a machine and engine.

    Quick runs and those on synthetic data are left out. Text marks the best and the worst accuracy of a published
    series, and every measured point.
    """
    groups: dict[str, list[Row]] = {}
    for row in _comparable(rows):
        if (
            row.network == MAIN_NETWORKS[0]
            and str(row.dataset).startswith("cifar10")
            and row.epochs == MAIN_EPOCHS
            and row.accuracy is not None
            and row.samples_per_second is not None
        ):
            groups.setdefault(", ".join(filter(None, [_machine(row), _engine(row)])), []).append(row)
    series = []
    for label, members in groups.items():
        accuracies = [row.accuracy for row in members]
        ends = (min(accuracies), max(accuracies))
        points = [
            Point(
                x=row.samples_per_second,
                y=row.accuracy,
                text=_batch(row) if row.measured or row.accuracy in ends else "",
                virtual=row.virtual,
                contradictory=bool(row.flag),
            )
            for row in members
        ]
        looks: dict[str, Any] = {"machine": _machine(members[0]), "measured": members[0].measured}
        series.append(Series(label=label, points=tuple(points), **looks))
    return series


def learning_curves(records: Sequence[Record]) -> tuple[str, list[Series]]:
    """What all curves have in common, and accuracy against epoch for every measured run that was evaluated twice."""
    return _curves(records, lambda evaluation: float(evaluation.epoch))


def accuracy_time(records: Sequence[Record]) -> tuple[str, list[Series]]:
    """What all curves have in common, and accuracy against seconds of wall time since the run began."""
    return _curves(records, lambda evaluation: float(evaluation.at))


def throughput_devices(rows: Sequence[Row]) -> tuple[str, dict[str, list[Series]]]:
    """What all series have in common, and their "throughput" and "efficiency" against real devices.

    Samples/s of every series in which the batch per device was held fixed, and its efficiency by throughput where it
    has a row on one device. Of measured ones that differ in how gradients are exchanged, the fastest.
    """
    scaled = _fastest(_over_devices(_comparable(rows)))

    def described(row: Row) -> list[str]:
        words = [network_label(row.network), _machine(row), f"{row.batch_per_device:g} a device"]
        return [*words, _engine(row), _exchange(row), _cores(row), _made_up(row)]

    common, labels = _distinguish([described(last) for _, (*_, last) in scaled])
    panels: dict[str, list[Series]] = {"throughput": [], "efficiency": []}
    for label, (alone, others) in zip(labels, scaled):
        looks: dict[str, Any] = {"label": label, "machine": _machine(others[0]), "measured": others[0].measured}
        panels["throughput"].append(Series(points=_rates([*alone, *others]), **looks))
        if alone:
            panels["efficiency"].append(Series(points=_efficiencies(alone, others), **looks))
    return common, panels


def _efficiencies(alone: Sequence[Row], others: Sequence[Row]) -> tuple[Point, ...]:
    """Crossed where a row on one device, which all are held against, contradicts itself."""

    def efficiency(row: Row) -> float | None:
        return compare.efficiency(compare.by_throughput(alone, row), row.devices)

    return _line([*alone, *others], efficiency, contradictory=any(row.flag for row in alone))


def throughput_batch(rows: Sequence[Row]) -> dict[str, list[Series]]:
    """Samples/s against batch size on one device, by network: those that some machine ran at two batch sizes.

    A measured line is of runs that differ in batch and rate only; a run alone is left out beside measured lines.
    """
    panels: dict[str, dict[tuple[Any, ...], list[Row]]] = {}
    for row in _comparable(rows):
        known = None not in (row.devices, row.batch_per_device, row.samples_per_second)
        if known and row.devices <= 1 and not row.fixed:
            words = (_machine(row), _engine(row), _cores(row), _precision(row), _made_up(row))
            panels.setdefault(row.network, {}).setdefault((*words, row.setting), []).append(row)
    order = list(networks.NETWORKS)
    ranked = sorted(panels.items(), key=lambda panel: order.index(panel[0]) if panel[0] in order else len(order))
    drawn: dict[str, list[Series]] = {}
    for network, groups in ranked:
        lines = {key for key, members in groups.items() if len({row.batch_per_device for row in members}) > 1}
        if not lines:
            continue
        measured = any(groups[key][0].measured for key in lines)
        alone = {key for key in groups.keys() - lines if measured and groups[key][0].measured}
        shown = {key: members for key, members in groups.items() if key not in alone}
        labels = _numbered(", ".join(filter(None, key[:-1])) for key in shown)
        drawn[network_label(network)] = [
            Series(
                label=label,
                machine=key[0],
                points=_rates(members, across="batch_per_device"),
                measured=members[0].measured,
            )
            for label, (key, members) in zip(labels, shown.items())
        ]
    return drawn


def roofline(rows: Sequence[Row]) -> tuple[list[Series], dict[str, float]]:
    """Samples/s of every network on one device against multiply-adds of one image's forward pass, by machine.

    And for each of them the operations a second of a large matrix product there: the median over its runs, which
    limits samples/s to that over six times the multiply-adds. Disturbed runs only where all are.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in calm(measured_rows(rows)):
        if row.devices == 1 and row.peak_share is not None:
            words = [_machine(row), _engine(row), _cores(row), _precision(row) or "float32"]
            groups.setdefault((", ".join(filter(None, words)), _machine(row)), []).append(row)
    series, peaks = [], {}
    for (label, machine), members in groups.items():
        fastest: dict[str, Row] = {}
        for row in sorted(members, key=lambda row: row.samples_per_second):
            fastest[row.network] = row
        points = [
            Point(x=row.multiply_adds, y=row.samples_per_second, spread=row.spread or 0.0, text=network_label(name))
            for name, row in fastest.items()
        ]
        series.append(
            Series(label=label, machine=machine, points=tuple(sorted(points, key=lambda p: p.x)), measured=True)
        )
        peaks[label] = median(row.peak_flops for row in members)
    return series, peaks


def speedup_workers(rows: Sequence[Row]) -> dict[str, list[Series]]:
    """Speed-up against workers, "without synchronisation" and "with synchronisation", batch per device held fixed.

    The published series are those with seconds for 5,120 images, as the Theano study has them (its run without
    processor binding left out, as in its own figure). The measured ones are by throughput, in which all waiting is;
    without synchronisation they take runs whose steps were measured in parts.
    """
    printed = [row for row in rows if row.origin == PUBLISHED and row.train_seconds_per_5120 is not None]
    published = compare.series(row for row in printed if "no-bind" not in row.printed)
    measured = [series for series in compare.series(measured_rows(rows)) if series.kind == compare.WEAK]
    panels = {"without synchronisation": compare.without_sync, "with synchronisation": compare.by_throughput}
    return {title: [*_speedups(published, speedup), *_speedups(measured, speedup)] for title, speedup in panels.items()}


def speedup_reconciled(rows: Sequence[Row]) -> tuple[str, list[Bar]]:
    """What all bars have in common, and what each part of `timing.PARTS` takes from a measured speed-up by throughput.

    One bar a row of several devices. Its parts add up to the speed-up by throughput less the one by wall time; one that
    adds to the speed-up is negative.
    """
    explained = [
        (series.kind, row, reconciled)
        for series in compare.series(measured_rows(rows))
        for row in series.rows
        for reconciled in [compare.reconcile(series.alone, row)]
        if reconciled is not None
    ]
    common, labels = _distinguish([[f"{kind} scaling", *_description(row)] for kind, row, _ in explained])
    return common, [
        Bar(
            label=", ".join(filter(None, [label, f"{both.by_throughput:.3f} less {both.by_wall:.3f}"])),
            parts=both.parts,
        )
        for label, (_, _, both) in zip(labels, explained)
    ]


def time_split(rows: Sequence[Row]) -> tuple[str, list[Bar]]:
    """What all bars have in common, and the seconds of each part of `timing.PARTS` for every measured run.

    Runs that completed at least one whole epoch; disturbed ones, whose time was partly others', only where all are.
    """
    members = calm(over_epochs(rows))
    common, labels = _distinguish([_description(row) for row in members])
    return common, [
        Bar(label=label, parts={part: getattr(row, f"{part}_seconds") or 0.0 for part in timing.PARTS})
        for label, row in zip(labels, members)
    ]


def staleness(records: Sequence[Record]) -> tuple[str, dict[str, list[Series]]]:
    """What all runs of exchange `stale` have in common, and their accuracy against "steps" and against "minutes"."""
    members = [record for record in records if _is_stale(record)]
    common, steps = _accuracies(members, lambda record, at: float(at.epoch * record.run.steps_per_epoch))
    return common, {"steps": steps, "minutes": _accuracies(members, lambda record, at: at.at / 60)[1]}


def accuracy_batch(rows: Sequence[Row], records: Sequence[Record]) -> tuple[str, list[Series]]:
    """Of the first comparison of ways: what it is of, and the best accuracy at each total batch, published and here."""
    compared = ways.comparisons(records)
    if not compared:
        return "", []
    comparison = compared[0]
    series = []
    rows = ways.printed(rows, comparison.network, comparison.epochs)
    for machine in dict.fromkeys(row.hardware for row in rows if row.accuracy is not None):
        points = [
            Point(x=batch, y=max(row.accuracy for row in rows if _printed_at(row, machine, batch)))
            for batch in sorted({row.total_batch for row in rows if _printed_at(row, machine, row.total_batch)})
        ]
        series.append(Series(label=f"published, {machine}", machine=machine, points=tuple(points)))
    for source, label in ((True, "the study's way, here"), (False, "the best way found")):
        trainings = [comparison.best(batch, source=source) for batch in comparison.batches()]
        points = [
            Point(x=best.total_batch, y=best.accuracy) for best in trainings if best and best.accuracy is not None
        ]
        if points:
            series.append(Series(label=label, machine=label, points=tuple(points), measured=True))
    return f"{network_label(comparison.network)}, {comparison.epochs} epochs of {comparison.dataset}", series


def _printed_at(row: Row, machine: str, batch: float) -> bool:
    return row.hardware == machine and row.total_batch == batch and row.accuracy is not None


def accuracy_worth(rows: Sequence[Row], records: Sequence[Record]) -> tuple[str, list[Series]]:
    """Accuracy against the published throughput at each total batch: as it was printed, and by the best way found.

    The throughput is that of the most accurate printed setting with that total batch.
    """
    compared = ways.comparisons(records)
    if not compared:
        return "", []
    comparison = compared[0]
    rows = [
        row
        for row in ways.printed(rows, comparison.network, comparison.epochs)
        if row.samples_per_second and row.devices and not row.doubtful("samples_per_second", "devices")
    ]
    series = []
    for machine in dict.fromkeys(row.hardware for row in rows):
        settings: dict[int, Row] = {}
        for row in sorted(
            (row for row in rows if row.hardware == machine and row.accuracy), key=lambda row: -row.accuracy
        ):
            settings.setdefault(row.total_batch, row)
        best = {batch: comparison.best(batch, source=False) for batch in settings}
        lines: dict[str, dict[int, Any]] = {
            "as published": {batch: row.accuracy for batch, row in settings.items()},
            "by the best way found": {batch: training.accuracy for batch, training in best.items() if training},
        }
        for name, accuracies in lines.items():
            points = tuple(
                Point(x=settings[batch].samples_per_second, y=accuracies[batch], text=_batch(settings[batch]))
                for batch in sorted(accuracies)
            )
            if points:
                own = name != "as published"
                series.append(Series(label=f"{machine}, {name}", machine=machine, points=points, measured=own))
    return f"{network_label(comparison.network)}, {comparison.epochs} epochs", series if any(
        line.measured for line in series
    ) else []


def noise_scale(records: Sequence[Record]) -> tuple[str, list[Series]]:
    """Of the first comparison of ways: what it is of, and the gradient noise scale over the epochs of each run."""
    compared = ways.comparisons(records)
    if not compared:
        return "", []
    comparison = compared[0]
    series = []
    for training in comparison.trainings:
        points = tuple(Point(x=epoch, y=scale) for epoch, scale in ways.noise_scales(training))
        if points:
            name = "the study's way" if training.source else f"{training.way.split(',')[0]}"
            label = f"batch {training.total_batch}, {name}, lr {training.record.run.learning_rate:g}"
            series.append(Series(label=label, machine=label, points=points, measured=True))
    return f"{network_label(comparison.network)}, {comparison.epochs} epochs of {comparison.dataset}", series


def _comparable(rows: Sequence[Row]) -> list[Row]:
    """The main study's rows, which so have the same colours on every page, and after them the measured ones."""
    main = main_study(rows)
    printed = [row for row in rows if row.origin == PUBLISHED and row.study == main]
    return [*printed, *measured_rows(rows)]


def measured_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows of measured runs that were completed and are no quick look."""
    return [row for row in rows if row.measured and row.outcome == COMPLETED and not row.quick]


def over_epochs(rows: Sequence[Row]) -> list[Row]:
    """Measured rows of runs that completed a whole epoch."""
    return [row for row in measured_rows(rows) if row.seconds_per_epoch is not None and row.wall_seconds is not None]


def calm(rows: Sequence[Row]) -> list[Row]:
    """Those of which other processes took no time; all where there are none."""
    return [row for row in rows if not row.disturbed] or list(rows)


def _machine(row: Row) -> str:
    """What a legend calls the machine: a source's hardware, or the name that its user gave to it."""
    named, hardware = row.infrastructure, row.hardware
    if not row.measured:
        return hardware
    words = named if hardware == named else f"{named}: {hardware}"
    return f"{words}, its CPU" if row.kind == "cpu" and not hardware.startswith("CPU") else words


def _batch(row: Row) -> str:
    """The batch as the main study writes it: "128x4", or "128" on one device."""
    if row.batch_per_device is None:
        return f"{row.total_batch:g}" if row.total_batch is not None else ""
    devices = row.devices or 1
    return f"{row.batch_per_device:g}" + (f"x{devices:g}" if devices > 1 else "")


def _made_up(row: Row) -> str:
    return "synthetic data" if row.dataset == "synthetic" else ""


def _cores(row: Row) -> str:
    """Runs on some of a machine's cores are no match for those on all of them."""
    cores = row.cores_per_worker
    return f"{cores:g} core{'s' * (cores > 1)} each" if cores else ""


def _precision(row: Row) -> str:
    return "" if row.dtype in ("float32", "", None) else str(row.dtype)


def _engine(row: Row) -> str:
    """Empty for the usual engine, and for what was published."""
    return row.framework if row.run is not None and row.run.engine != USUAL_ENGINE else ""


def _exchange(row: Row) -> str:
    """Empty where nothing is exchanged: on one device, and on one that plays several."""
    exchanged = row.exchange and (row.devices or 1) > 1 and not row.virtual
    return f"exchange {row.exchange}" if exchanged else ""


def _description(row: Row) -> list[str]:
    """What tells one measured run from another, in words."""
    batch = "batch " + _batch(row) + (" (virtual)" if row.virtual else "")
    words = [network_label(row.network), batch, f"lr {row.learning_rate:g}", row.dataset, _engine(row)]
    return [*words, _precision(row), _exchange(row), _cores(row), _machine(row), f"seed {row.seed:g}"]


def _distinguish(descriptions: Sequence[Sequence[str]]) -> tuple[str, list[str]]:
    """What all descriptions have in common, and for each what it has not; those that are alike are numbered."""
    shared = [len(set(words)) == 1 for words in zip(*descriptions)]
    common = ", ".join(word for word, same in zip(descriptions[0], shared) if same and word) if descriptions else ""
    labels = [", ".join(word for word, same in zip(words, shared) if word and not same) for words in descriptions]
    return common, _numbered(labels)


def _numbered(labels: Iterable[str]) -> list[str]:
    """Labels of which those that are alike end in (2), (3) and so on."""
    seen: Counter[str] = Counter()
    numbered = []
    for label in labels:
        seen[label] += 1
        numbered.append(f"{label} ({seen[label]})".strip() if seen[label] > 1 else label)
    return numbered


def _rates(rows: Iterable[Row], *, across: str = "devices") -> tuple[Point, ...]:
    """Samples/s over the column `across`."""
    return _line(rows, lambda row: row.samples_per_second, across=across, spread=lambda row: row.spread or 0.0)


def _line(
    rows: Iterable[Row],
    height: Callable[[Row], float | None],
    *,
    across: str = "devices",
    spread: Callable[[Row], float] = lambda row: 0.0,
    contradictory: bool = False,
) -> tuple[Point, ...]:
    """Points over the column `across`, one for each of its values: the mean height where several rows share one."""
    members: dict[float, list[tuple[Row, float]]] = {}
    for row in rows:
        y = height(row)
        if y is not None:
            members.setdefault(float(getattr(row, across)), []).append((row, y))
    return tuple(
        Point(
            x=x,
            y=fmean(y for _, y in members[x]),
            spread=max(spread(row) for row, _ in members[x]),
            contradictory=contradictory or any(bool(row.flag) for row, _ in members[x]),
        )
        for x in sorted(members)
    )


def _evaluated(record: Record) -> bool:
    """Whether its accuracies make a curve."""
    return record.outcome in DONE and not record.run.quick and len(record.evaluations) > 1


def _is_stale(record: Record) -> bool:
    """Whether it is a run of the staleness figure, which the other curves leave to it."""
    return _evaluated(record) and isinstance(record.run.exchange, Stale)


def _curves(records: Sequence[Record], when: Callable[[Evaluation], float]) -> tuple[str, list[Series]]:
    # Other ways to train have figures of their own.
    compared = ways.comparisons(records)
    elsewhere = {
        id(training.record) for comparison in compared for training in comparison.trainings if not training.source
    }
    chosen = [record for record in records if _evaluated(record) and not _is_stale(record)]
    return _accuracies([record for record in chosen if id(record) not in elsewhere], lambda _, at: when(at))


def _accuracies(records: Sequence[Record], when: Callable[[Record, Evaluation], float]) -> tuple[str, list[Series]]:
    """What all records have in common, and the accuracies of each over what `when` says."""
    common, labels = _distinguish([_description(from_record(record)) for record in records])
    return common, [
        Series(
            label=", ".join(filter(None, [label, "diverged" * (record.outcome == DIVERGED)])),
            machine=label,
            points=tuple(Point(x=when(record, at), y=at.accuracy) for at in record.evaluations),
            measured=True,
        )
        for label, record in zip(labels, records)
    ]


def _over_devices(members: list[Row]) -> list[tuple[list[Row], list[Row]]]:
    """Rows that differ in the number of devices only, batch per device held fixed: those on one device, and the others.

    Beside the series of `poc.report.compare`, those of at least two numbers of devices that have no row on one.
    """
    scaled = [
        (list(series.alone), list(series.rows)) for series in compare.series(members) if series.kind == compare.WEAK
    ]
    placed = {(row.network, _machine(row), row.batch_per_device) for _, others in scaled for row in others}
    rest: dict[tuple[Any, ...], list[Row]] = {}
    for row in members:
        key = (row.network, _machine(row), row.batch_per_device)
        if (row.devices or 0) > 1 and not row.virtual and None not in key and key not in placed:
            setting = (_exchange(row), row.setting, _made_up(row))
            if row.samples_per_second is not None:
                rest.setdefault((*key, *setting), []).append(row)
    scaled += [([], others) for others in rest.values() if len({row.devices for row in others}) > 1]
    machines = list(dict.fromkeys(map(_machine, members)))
    return sorted(scaled, key=lambda pair: (machines.index(_machine(pair[1][0])), pair[1][0].batch_per_device))


def _fastest(scaled: list[tuple[list[Row], list[Row]]]) -> list[tuple[list[Row], list[Row]]]:
    """Without the measured series of which another way to exchange gradients is faster on the most devices."""
    groups: dict[tuple[Any, ...], list[tuple[list[Row], list[Row]]]] = {}
    for number, pair in enumerate(scaled):
        row = pair[1][-1]
        alone = number if not row.measured or row.exchange == "independent" else None
        how = (_engine(row), _precision(row), _made_up(row))
        key = (row.network, _machine(row), row.batch_per_device, *how, alone)
        groups.setdefault(key, []).append(pair)

    def speed(pair: tuple[list[Row], list[Row]]) -> tuple[Any, ...]:
        return pair[1][-1].devices, pair[1][-1].samples_per_second or 0.0

    return [max(group, key=speed) for group in groups.values()]


def _speedups(scaled: Sequence[compare.Series], speedup: Callable[[Sequence[Row], Row], float | None]) -> list[Series]:
    """A line for each series that has the speed-up; it begins with the 1 of one device."""
    lines = []
    for series in scaled:
        points = _line(series.rows, partial(speedup, series.alone))
        if points:
            row = series.rows[0]
            words = [f"{row.batch_per_device:g} a device"]
            if row.measured:
                words += [_engine(row), _exchange(row), _cores(row), _made_up(row), _machine(row)]
            label = ", ".join([network_label(row.network) if row.measured else row.network, *filter(None, words)])
            points = (Point(x=1.0, y=1.0), *points)
            lines.append(Series(label=label, machine=label, points=points, measured=row.measured))
    return lines
