"""The figures of results.md, as SVG: a pure function returns the data of each, and another one draws them.

They are made to be read 800 pixels wide, in grey and by the colour-blind: markers, line styles and hatches differ where
colours do. The same rows and records give the same bytes.
"""

from __future__ import annotations

import dataclasses
import io
import math
import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, Callable, Optional

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from poc.recipe import networks
from poc.records import timing
from poc.records.row import MEASURED, PUBLISHED, Row
from poc.report import compare, ways
from poc.report.rows import Record, from_record, main_study
from poc.values import value

MAIN_NETWORK = "cifar_resnet50_v2"
MAIN_EPOCHS = 12
"""Epochs of every run of the main study: an accuracy after more of them is no match for its accuracies."""

Drawn = Optional[tuple[Figure, str]]

# Okabe and Ito's palette for the colour-blind, without its yellow, which is lost on white.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
_DASHES = ("-", "--", "-.", ":")
_GREY = "#777777"

_STYLE: dict[str, Any] = {
    "svg.hashsalt": "poc",  # else every run of the program gives its clip paths new names
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # matplotlib lays out in the first; the second is as wide
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.markersize": 5.5,
}
_WIDTH = 8.0  # inches, which are 768 pixels in a browser
_LABEL_CHARACTERS = 40
_MOST_TICKS = 6
_NAME_ROOM = (1.2, 0.28)  # decades of each axis that the name of a point takes
_LABEL_LINE = 0.16  # inches


@value
class Point:
    """One point of a figure, in the units of its axes."""

    x: float
    y: float
    spread: float = 0.0
    """Of y, as in the rows: 1.4826 x the median absolute deviation; 0 where unknown."""
    text: str = ""
    """What stands beside the point; empty for most."""
    virtual: bool = False
    contradictory: bool = False
    """Its source's own figures disagree about it."""


@value
class Series:
    """Points that belong together, in the order in which a line joins them."""

    label: str
    machine: str
    """Series of one machine share a colour."""
    points: tuple[Point, ...]
    measured: bool = False


@value
class Bar:
    """One stacked bar: its parts by name, in the order in which they are stacked."""

    label: str
    parts: dict[str, float]


def draw(rows: Sequence[Row], records: list[Record], folder: Path) -> dict[str, tuple[Path, str]]:
    """Writes each figure that has data to `folder` and returns its path and caption by name.

    `rows` are those of results.md, `records` those of the journal in the same order. A figure of an earlier call that
    has no data any more is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = build(rows, records)
    for name in FIGURES:
        if name not in made:
            (folder / f"{name}.svg").unlink(missing_ok=True)
    drawn = {}
    for name, (figure, caption) in made.items():
        drawn[name] = (folder / f"{name}.svg", caption)
        _save(figure, folder / f"{name}.svg")
    return drawn


def build(rows: Sequence[Row], records: list[Record]) -> dict[str, tuple[Figure, str]]:
    """The figures that have data, by name, each with its caption."""
    with matplotlib.rc_context():
        _set_style()
        made = {name: figure(rows, records) for name, figure in FIGURES.items()}
    return {name: found for name, found in made.items() if found is not None}


def accuracy_throughput(rows: Sequence[Row]) -> list[Series]:
    """Accuracy against samples/s of the main study's network after its epochs: one series a machine and engine.

    Quick runs and those on synthetic data are left out. Text marks the best and the worst accuracy of a published
    series, and every measured point.
    """
    found: dict[str, list[Row]] = {}
    for row in _comparable(rows):
        if (
            row.network == MAIN_NETWORK
            and str(row.dataset).startswith("cifar10")
            and row.epochs == MAIN_EPOCHS
            and row.accuracy is not None
            and row.samples_per_second is not None
        ):
            found.setdefault(", ".join(filter(None, [_machine(row), _engine(row)])), []).append(row)
    series = []
    for label, members in found.items():
        accuracies = [row.accuracy for row in members]
        ends = (min(accuracies), max(accuracies))
        points = [
            Point(
                x=row.samples_per_second,
                y=row.accuracy,
                text=_batch(row) if _is_measured(row) or row.accuracy in ends else "",
                virtual=bool(row.virtual),
                contradictory=bool(row.flag),
            )
            for row in members
        ]
        looks: dict[str, Any] = {"machine": _machine(members[0]), "measured": _is_measured(members[0])}
        series.append(Series(label=label, points=tuple(points), **looks))
    return series


def learning_curves(records: list[Record]) -> tuple[str, list[Series]]:
    """What all curves have in common, and accuracy against epoch for every measured run that was evaluated twice."""
    return _curves(records, lambda evaluation: float(evaluation["epoch"]))


def accuracy_time(records: list[Record]) -> tuple[str, list[Series]]:
    """What all curves have in common, and accuracy against seconds of wall time since the run began."""
    return _curves(records, lambda evaluation: float(evaluation["at"]))


def throughput_devices(rows: Sequence[Row]) -> tuple[str, dict[str, list[Series]]]:
    """What all series have in common, and their "throughput" and "efficiency" against real devices.

    Samples/s of every series in which the batch per device was held fixed, and its efficiency by throughput where it
    has a row on one device. Of measured ones that differ in how gradients are exchanged, the fastest.
    """
    found = _fastest(_over_devices(_comparable(rows)))
    common, labels = _distinguish(
        [
            [
                _network(last.network),
                _machine(last),
                f"{last.batch_per_device:g} a device",
                _engine(last),
                _exchange(last),
                _cores(last),
                _made_up(last),
            ]
            for _, (*_, last) in found
        ]
    )
    panels: dict[str, list[Series]] = {"throughput": [], "efficiency": []}
    for label, (alone, others) in zip(labels, found):
        looks: dict[str, Any] = {"label": label, "machine": _machine(others[0]), "measured": _is_measured(others[0])}
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
        if (
            row.devices is not None
            and row.devices <= 1
            and not row.fixed
            and row.batch_per_device is not None
            and row.samples_per_second is not None
        ):
            words = (_machine(row), _engine(row), _cores(row), _precision(row), _made_up(row))
            panels.setdefault(row.network, {}).setdefault((*words, row.setting), []).append(row)
    known = list(networks.NETWORKS)
    ranked = sorted(panels.items(), key=lambda panel: known.index(panel[0]) if panel[0] in known else len(known))
    drawn: dict[str, list[Series]] = {}
    for network, found in ranked:
        lines = {key for key, members in found.items() if len({row.batch_per_device for row in members}) > 1}
        if not lines:
            continue
        measured = any(_is_measured(found[key][0]) for key in lines)
        shown = {
            key: members
            for key, members in found.items()
            if key in lines or not (measured and _is_measured(members[0]))
        }
        labels = _numbered(", ".join(filter(None, key[:-1])) for key in shown)
        drawn[_network(network)] = [
            Series(
                label=label,
                machine=key[0],
                points=_rates(members, across="batch_per_device"),
                measured=_is_measured(members[0]),
            )
            for label, (key, members) in zip(labels, shown.items())
        ]
    return drawn


def roofline(rows: Sequence[Row]) -> tuple[list[Series], dict[str, float]]:
    """Samples/s of every network on one device against multiply-adds of one image's forward pass, by machine.

    And for each of them the operations a second of a large matrix product there: the median over its runs, which
    limits samples/s to that over six times the multiply-adds. Disturbed runs only where all are.
    """
    found: dict[tuple[str, str], list[Row]] = {}
    for row in _calm(_measured(rows)):
        if row.devices == 1 and row.peak_share is not None:
            words = [_machine(row), _engine(row), _cores(row), _precision(row) or "float32"]
            found.setdefault((", ".join(filter(None, words)), _machine(row)), []).append(row)
    series, peaks = [], {}
    for (label, machine), members in found.items():
        fastest: dict[str, Row] = {}
        for row in sorted(members, key=lambda row: row.samples_per_second):
            fastest[row.network] = row
        points = [
            Point(x=row.multiply_adds, y=row.samples_per_second, spread=row.spread or 0.0, text=_network(name))
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
    measured = [series for series in compare.series(_measured(rows)) if series.kind == compare.WEAK]
    panels = {"without synchronisation": compare.without_sync, "with synchronisation": compare.by_throughput}
    return {title: [*_speedups(published, speedup), *_speedups(measured, speedup)] for title, speedup in panels.items()}


def speedup_reconciled(rows: Sequence[Row]) -> tuple[str, list[Bar]]:
    """What all bars have in common, and what each part of `timing.PARTS` takes from a measured speed-up by throughput.

    One bar a row of several devices. Its parts add up to the speed-up by throughput less the one by wall time; one that
    adds to the speed-up is negative.
    """
    found = [
        (series.kind, row, reconciled)
        for series in compare.series(_measured(rows))
        for row in series.rows
        for reconciled in [compare.reconcile(series.alone, row)]
        if reconciled is not None
    ]
    common, labels = _distinguish([[f"{kind} scaling", *_description(row)] for kind, row, _ in found])
    return common, [
        Bar(
            label=", ".join(filter(None, [label, f"{both.by_throughput:.3f} less {both.by_wall:.3f}"])),
            parts=both.parts,
        )
        for label, (_, _, both) in zip(labels, found)
    ]


def time_split(rows: Sequence[Row]) -> tuple[str, list[Bar]]:
    """What all bars have in common, and the seconds of each part of `timing.PARTS` for every measured run.

    Runs that completed at least one whole epoch; disturbed ones, whose time was partly others', only where all are.
    """
    members = _calm(_over_epochs(rows))
    common, labels = _distinguish([_description(row) for row in members])
    return common, [
        Bar(label=label, parts={part: getattr(row, f"{part}_seconds") or 0.0 for part in timing.PARTS})
        for label, row in zip(labels, members)
    ]


# --- rows and records -----------------------------------------------------------------------------------------------


def _comparable(rows: Sequence[Row]) -> list[Row]:
    """The main study's rows, which so have the same colours on every page, and after them the measured ones."""
    main = main_study(rows)
    printed = [row for row in rows if row.origin == PUBLISHED and row.study == main]
    return [*printed, *_measured(rows)]


def _measured(rows: Sequence[Row]) -> list[Row]:
    """Rows of measured runs that were completed and are no quick look."""
    return [row for row in rows if _is_measured(row) and row.outcome == "completed" and not row.quick]


def _over_epochs(rows: Sequence[Row]) -> list[Row]:
    """Measured rows of runs that completed a whole epoch."""
    return [row for row in _measured(rows) if row.seconds_per_epoch is not None and row.wall_seconds is not None]


def _calm(rows: Sequence[Row]) -> list[Row]:
    """Those of which other processes took no time; all where there are none."""
    return [row for row in rows if not row.disturbed] or list(rows)


def _without_disturbed(rows: Sequence[Row]) -> str:
    """What the caption says of a figure of `_calm(rows)`."""
    return " Runs disturbed by other processes are left out." if len(_calm(rows)) < len(rows) else ""


def _is_measured(row: Row) -> bool:
    return bool(row.origin == MEASURED)


def _machine(row: Row) -> str:
    """What a legend calls the machine: a source's hardware, or the name that its user gave to it."""
    if not _is_measured(row):
        return str(row.hardware)
    named, hardware = str(row.infrastructure), str(row.hardware)
    words = named if hardware == named else f"{named}: {hardware}"
    return f"{words}, its CPU" if row.kind == "cpu" and not hardware.startswith("CPU") else words


def _network(name: str) -> str:
    return networks.NETWORKS[name].label if name in networks.NETWORKS else name


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
    """Empty for MXNet, with which the main study and most runs are."""
    return "" if str(row.framework).startswith("MXNet") else str(row.framework)


def _exchange(row: Row) -> str:
    """Empty where nothing is exchanged: on one device, and on one that plays several."""
    exchanged = row.exchange and (row.devices or 1) > 1 and not row.virtual
    return f"exchange {row.exchange}" if exchanged else ""


def _description(row: Row) -> list[str]:
    """What tells one measured run from another, in words."""
    return [
        _network(row.network),
        "batch " + _batch(row) + (" (virtual)" if row.virtual else ""),
        f"lr {row.learning_rate:g}",
        str(row.dataset),
        _engine(row),
        _precision(row),
        _exchange(row),
        _cores(row),
        _machine(row),
        f"seed {row.seed:g}",
    ]


def _of(common: str) -> str:
    """What all lines of a figure share, at the end of a caption's sentence; nothing where that is nothing."""
    return f": {common}" if common else ""


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


def staleness(records: list[Record]) -> tuple[str, dict[str, list[Series]]]:
    """What all runs of exchange `stale` have in common, and their accuracy against "steps" and against "minutes"."""
    members = [record for record in records if _is_stale(record)]
    common, labels = _distinguish([_description(from_record(record)) for record in members])
    axes: dict[str, Callable[[Record, dict[str, Any]], float]] = {
        "steps": lambda record, one: float(one["epoch"] * record["run"]["steps_per_epoch"]),
        "minutes": lambda record, one: one["at"] / 60,
    }
    return common, {
        name: [
            Series(
                label=label,
                machine=label,
                points=tuple(Point(x=place(record, one), y=one["accuracy"]) for one in record["evaluations"]),
                measured=True,
            )
            for label, record in zip(labels, members)
        ]
        for name, place in axes.items()
    }


def accuracy_batch(rows: Sequence[Row], records: list[Record]) -> tuple[str, list[Series]]:
    """Of the first comparison of ways: what it is of, and the best accuracy at each total batch, published and here."""
    compared = ways.comparisons(records)
    if not compared:
        return "", []
    one = compared[0]
    series = []
    rows = ways.printed(rows, one.network, one.epochs)
    for machine in dict.fromkeys(row.hardware for row in rows if row.accuracy is not None):
        points = [
            Point(x=batch, y=max(row.accuracy for row in rows if _printed_at(row, machine, batch)))
            for batch in sorted({row.total_batch for row in rows if _printed_at(row, machine, row.total_batch)})
        ]
        series.append(Series(label=f"published, {machine}", machine=machine, points=tuple(points)))
    for source, label in ((True, "the study's way, here"), (False, "the best way found")):
        found = [one.best(batch, source=source) for batch in one.batches()]
        points = [Point(x=best.total_batch, y=best.accuracy) for best in found if best and best.accuracy is not None]
        if points:
            series.append(Series(label=label, machine=label, points=tuple(points), measured=True))
    return f"{_network(one.network)}, {one.epochs} epochs of {one.dataset}", series


def _printed_at(row: Row, machine: str, batch: float) -> bool:
    return row.hardware == machine and row.total_batch == batch and row.accuracy is not None


def accuracy_worth(rows: Sequence[Row], records: list[Record]) -> tuple[str, list[Series]]:
    """Accuracy against the published throughput at each total batch: as it was printed, and by the best way found.

    The throughput is that of the most accurate printed setting with that total batch.
    """
    compared = ways.comparisons(records)
    if not compared:
        return "", []
    one = compared[0]
    rows = [
        row
        for row in ways.printed(rows, one.network, one.epochs)
        if row.samples_per_second and row.devices and not row.doubtful("samples_per_second", "devices")
    ]
    series = []
    for machine in dict.fromkeys(row.hardware for row in rows):
        settings: dict[int, Row] = {}
        for row in rows:
            batch = row.total_batch
            if row.hardware == machine and row.accuracy is not None:
                known = settings.get(batch)
                if known is None or row.accuracy > known.accuracy:
                    settings[batch] = row
        found = {batch: one.best(batch, source=False) for batch in settings}
        lines = {
            "as published": {batch: row.accuracy for batch, row in settings.items()},
            "by the best way found": {
                batch: best.accuracy for batch, best in found.items() if best is not None and best.accuracy is not None
            },
        }
        for name, accuracies in lines.items():
            points = [
                Point(x=settings[batch].samples_per_second, y=accuracies[batch], text=f"{_batch(settings[batch])}")
                for batch in sorted(accuracies)
            ]
            if points:
                label = f"{machine}, {name}"
                series.append(
                    Series(label=label, machine=machine, points=tuple(points), measured=name != "as published")
                )
    return f"{_network(one.network)}, {one.epochs} epochs", series if any(line.measured for line in series) else []


def noise_scale(records: list[Record]) -> tuple[str, list[Series]]:
    """Of the first comparison of ways: what it is of, and the gradient noise scale over the epochs of each run."""
    compared = ways.comparisons(records)
    if not compared:
        return "", []
    one = compared[0]
    series = []
    for training in one.trainings:
        points = tuple(Point(x=epoch, y=scale) for epoch, scale in ways.noise_scales(training))
        if points:
            name = "the study's way" if training.source else f"{training.way.split(',')[0]}"
            label = f"batch {training.total_batch}, {name}, lr {training.record['run']['learning_rate']:g}"
            series.append(Series(label=label, machine=label, points=points, measured=True))
    return f"{_network(one.network)}, {one.epochs} epochs of {one.dataset}", series


def _is_stale(record: Record) -> bool:
    """Whether it is a run of the staleness figure, which the other curves leave to it."""
    usable = record["outcome"] in ("completed", "diverged") and not record["run"]["quick"]
    return usable and record["run"]["exchange"] == "stale" and len(record["evaluations"]) > 1


def _curves(records: list[Record], when: Callable[[dict[str, Any]], float]) -> tuple[str, list[Series]]:
    # Other ways to train have figures of their own.
    compared = ways.comparisons(records)
    elsewhere = {id(one.record) for found in compared for one in found.trainings if not one.source}
    members = [
        record
        for record in records
        if record["outcome"] in ("completed", "diverged")
        and not record["run"]["quick"]
        and len(record["evaluations"]) > 1
        and not _is_stale(record)
        and id(record) not in elsewhere
    ]
    common, labels = _distinguish([_description(from_record(record)) for record in members])
    return common, [
        Series(
            label=", ".join(filter(None, [label, "diverged" * (record["outcome"] == "diverged")])),
            machine=label,
            points=tuple(Point(x=when(one), y=one["accuracy"]) for one in record["evaluations"]),
            measured=True,
        )
        for label, record in zip(labels, members)
    ]


def _over_devices(members: list[Row]) -> list[tuple[list[Row], list[Row]]]:
    """Rows that differ in the number of devices only, batch per device held fixed: those on one device, and the others.

    Beside the series of `poc.report.scaling`, those of at least two numbers of devices that have no row on one.
    """
    found = [
        (list(series.alone), list(series.rows)) for series in compare.series(members) if series.kind == compare.WEAK
    ]
    placed = {(row.network, _machine(row), row.batch_per_device) for _, others in found for row in others}
    rest: dict[tuple[Any, ...], list[Row]] = {}
    for row in members:
        key = (row.network, _machine(row), row.batch_per_device)
        if (row.devices or 0) > 1 and not row.virtual and None not in key and key not in placed:
            setting = (_exchange(row), row.setting, _made_up(row))
            if row.samples_per_second is not None:
                rest.setdefault((*key, *setting), []).append(row)
    found += [([], others) for others in rest.values() if len({row.devices for row in others}) > 1]
    machines = list(dict.fromkeys(map(_machine, members)))
    return sorted(found, key=lambda one: (machines.index(_machine(one[1][0])), one[1][0].batch_per_device))


def _fastest(found: list[tuple[list[Row], list[Row]]]) -> list[tuple[list[Row], list[Row]]]:
    """Without the measured series of which another way to exchange gradients is faster on the most devices."""
    groups: dict[tuple[Any, ...], list[tuple[list[Row], list[Row]]]] = {}
    for number, one in enumerate(found):
        row = one[1][-1]
        alone = number if not _is_measured(row) or row.exchange == "independent" else None
        how = (_engine(row), _precision(row), _made_up(row))
        key = (row.network, _machine(row), row.batch_per_device, *how, alone)
        groups.setdefault(key, []).append(one)

    def speed(one: tuple[list[Row], list[Row]]) -> tuple[Any, ...]:
        return one[1][-1].devices, one[1][-1].samples_per_second or 0.0

    return [max(group, key=speed) for group in groups.values()]


def _speedups(found: Sequence[compare.Series], speedup: Callable[[Sequence[Row], Row], float | None]) -> list[Series]:
    """A line for each series that has the speed-up; it begins with the 1 of one device."""
    lines = []
    for series in found:
        points = _line(series.rows, partial(speedup, series.alone))
        if points:
            row = series.rows[0]
            words = [f"{row.batch_per_device:g} a device"]
            if _is_measured(row):
                words += [_engine(row), _exchange(row), _cores(row), _made_up(row), _machine(row)]
            label = ", ".join([_network(row.network) if _is_measured(row) else row.network, *filter(None, words)])
            points = (Point(x=1.0, y=1.0), *points)
            lines.append(Series(label=label, machine=label, points=points, measured=_is_measured(row)))
    return lines


# --- drawing --------------------------------------------------------------------------------------------------------


def _draw_accuracy_throughput(rows: Sequence[Row], records: list[Record]) -> Drawn:
    series = accuracy_throughput(rows)
    if not series:
        return None
    figure, axes = _figure(height=4.0)
    styles = _styles(series)
    for one in series:
        _scatter(axes, one, {**styles[one.label], "linestyle": "none"})
        texts: list[Point] = []
        for point in filter(lambda point: point.text, one.points):
            # Two runs of one setting lie so close that one text serves both.
            if not any(point.text == other.text and abs(point.y - other.y) < 0.03 for other in texts):
                axes.annotate(point.text, (point.x, point.y), (6, 3), textcoords="offset points", fontsize=8)
                texts.append(point)
    axes.margins(x=0.09, y=0.08)
    axes.set_xscale("log")
    _one_two_five(axes.xaxis)
    axes.set_xlabel("training throughput (samples/s)")
    axes.set_ylabel("validation accuracy (fraction)")
    _legend(figure, series, styles, joined=False)
    caption = (
        f"Validation accuracy after {MAIN_EPOCHS} epochs against training throughput, {_network(MAIN_NETWORK)} on "
        f"CIFAR-10, one point a run. Beside some points: batch per device x devices."
    )
    return figure, caption + _marks(series)


def _draw_learning_curves(rows: Sequence[Row], records: list[Record]) -> Drawn:
    common, series = learning_curves(records)
    if not series:
        return None
    figure = _curve_figure(common, series, xlabel="epoch (passes over the training images)", per=1.0)
    return figure, f"Validation accuracy after each epoch, one line a measured run{_of(common)}."


def _draw_accuracy_time(rows: Sequence[Row], records: list[Record]) -> Drawn:
    common, series = accuracy_time(records)
    if not series:
        return None
    per, unit = _time_unit(max(one.points[-1].x for one in series))
    figure = _curve_figure(common, series, xlabel=f"wall time since the run began ({unit})", per=per)
    virtual = any("(virtual)" in one.label for one in series) or "(virtual)" in common
    caption = f"The same validation accuracies against wall time, start and earlier evaluations included{_of(common)}."
    return figure, caption + " A run on virtual devices takes the time of the one that plays them." * virtual


def _curve_figure(common: str, series: list[Series], *, xlabel: str, per: float) -> Figure:
    labels = {one.label: _wrapped(one.label) for one in series}
    needed = {label: _LABEL_LINE * (text.count("\n") + 1) for label, text in labels.items()}
    height = max(3.8, 1.0 + sum(needed.values()))
    figure, axes = _figure(height=height)
    styles = _styles(series)
    for one in series:
        xs, ys = [point.x / per for point in one.points], [point.y for point in one.points]
        axes.plot(xs, ys, **{**styles[one.label], "markersize": 3.5, "linewidth": 1.4})
    _title(figure, common)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("validation accuracy (fraction)")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.autoscale(False)
    low, high = axes.get_ylim()
    ends = sorted((one for one in series if one.label), key=lambda one: one.points[-1].y)
    heights = _apart(
        [(one.points[-1].y - low) / (high - low) for one in ends],
        sizes=[needed[one.label] / (height - 1.0) for one in ends],
    )
    for one, at in zip(ends, heights):
        axes.annotate(
            labels[one.label],
            (one.points[-1].x / per, one.points[-1].y),
            (1.02, at),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": _GREY,
                "linewidth": 0.5,
                "relpos": (0.0, 0.5),
                "shrinkA": 0,
                "shrinkB": 4,
            },
        )
    return figure


def _draw_throughput_devices(rows: Sequence[Row], records: list[Record]) -> Drawn:
    common, found = throughput_devices(rows)
    series, efficiencies = found["throughput"], found["efficiency"]
    if not series:
        return None
    figure = Figure(figsize=(_WIDTH, 3.9), layout="constrained")
    panels = figure.subplots(1, 2 if efficiencies else 1, squeeze=False)[0]
    styles = _styles(series)
    for one in series:
        _scatter(panels[0], one, styles[one.label])
    panels[0].set_yscale("log", base=2)
    panels[0].yaxis.set_major_locator(FixedLocator([1000.0 * 2**power for power in range(-6, 9)]))
    panels[0].yaxis.set_minor_locator(NullLocator())
    panels[0].yaxis.set_major_formatter(_plain_number)
    _title(figure, common)
    panels[0].set_ylabel("training throughput (samples/s)")
    if efficiencies:
        for one in efficiencies:
            _scatter(panels[1], one, styles[one.label])
        panels[1].axhline(1.0, color=_GREY, linewidth=0.8)
        panels[1].set_ylim(bottom=0)
        panels[1].set_ylabel("efficiency by throughput (1 is ideal)")
    for axes in panels:
        _log2(axes, [point.x for one in series for point in one.points])
        axes.set_xlabel("devices (count)")
    _legend(figure, series, styles)
    caption = f"Training throughput against real devices, batch per device held fixed (weak scaling){_of(common)}."
    if any(one.measured for one in series):
        caption += " Of several measured ways to exchange gradients the fastest."
    if efficiencies:
        caption += " Right: speed-up by throughput / devices, for series that have a row on one device."
    return figure, caption + _marks(series)


def _draw_throughput_batch(rows: Sequence[Row], records: list[Record]) -> Drawn:
    panels = throughput_batch(rows)
    if not panels:
        return None
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(_WIDTH, 0.4 + 3.2 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    everything = [one for series in panels.values() for one in series]
    styles = _styles(everything)
    for place, (axes, (network, series)) in enumerate(zip(grid, panels.items())):
        for one in series:
            _scatter(axes, one, styles[one.label])
        _log2(axes, [point.x for one in series for point in one.points])
        axes.set_title(network)
        axes.set_xlabel("batch on the device (samples)")
        if place % across == 0:
            axes.set_ylabel("training throughput (samples/s)")
    for axes in grid[len(panels) :]:
        axes.remove()
    grid[0].set_yscale("log")
    _one_two_five(grid[0].yaxis)
    _legend(figure, everything, styles)
    caption = "Training throughput of one device (or CPU) against the batch size; the mean where a batch was run twice."
    return figure, caption + _marks(everything)


def _draw_roofline(rows: Sequence[Row], records: list[Record]) -> Drawn:
    series, peaks = roofline(rows)
    if not series:
        return None
    figure, axes = _figure(height=5.4)
    styles = _styles(series)
    ends = [point.x for one in series for point in one.points]
    reach = (min(ends) / 20, max(ends) * 2)  # names stand on the left of their points
    for one in series:
        limit = [peaks[one.label] / (6 * x) for x in reach]
        axes.plot(reach, limit, **{**{k: styles[one.label][k] for k in ("color", "linestyle")}, "linewidth": 1.0})
        _scatter(axes, one, {**styles[one.label], "linestyle": "none"})
    for point in _readable([point for one in series for point in one.points]):
        axes.annotate(
            point.text, (point.x, point.y), (-5, -5), textcoords="offset points", fontsize=7, ha="right", va="top"
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*reach)
    axes.set_xlabel("multiply-adds of one image's forward pass (count)")
    axes.set_ylabel("training throughput (samples/s)")
    _legend(figure, series, styles, joined=False)
    caption = (
        "Training throughput of every network on one device against what an image costs. The line is as fast as the "
        "device could be if all were large matrix products: their operations a second / (6 x multiply-adds). Where "
        "points crowd, only some are named; the table has all."
    )
    return figure, caption + _without_disturbed(_measured(rows)) + _marks(series)


def _readable(points: Sequence[Point]) -> list[Point]:
    """Points whose names do not run into one another on logarithmic axes: the slow for their arithmetic first."""
    chosen: list[Point] = []
    for point in sorted(points, key=lambda point: (point.x * point.y, point.text)):
        apart = [(math.log10(point.x / other.x), math.log10(point.y / other.y)) for other in chosen]
        if all(abs(x) > _NAME_ROOM[0] or abs(y) > _NAME_ROOM[1] for x, y in apart):
            chosen.append(point)
    return chosen


def _draw_speedup_workers(rows: Sequence[Row], records: list[Record]) -> Drawn:
    panels = {title: series for title, series in speedup_workers(rows).items() if series}
    if not panels:
        return None
    figure = Figure(figsize=(_WIDTH, 3.8), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    everything = [one for series in panels.values() for one in series]
    styles = _styles(everything)
    counts = sorted({point.x for one in everything for point in one.points})
    for axes, (title, series) in zip(grid, panels.items()):
        # Straight between the counts, as the others are, so that it is only crossed where it was beaten.
        axes.plot(counts, counts, color=_GREY, linewidth=0.8)
        axes.annotate("ideal", (counts[-1], counts[-1]), (-8, 0), textcoords="offset points", ha="right", color=_GREY)
        for one in series:
            _scatter(axes, one, styles[one.label])
        _log2(axes, counts)
        axes.set_ylim(bottom=0)
        axes.set_title(title)
        axes.set_xlabel("workers, one device each (count)")
    grid[0].set_ylabel("speed-up (times one worker)")
    _legend(figure, everything, styles)
    caption = (
        "Speed-up against workers, batch per device held fixed (weak scaling). Published: the Theano study, redrawn "
        "from its seconds for 5,120 images; it printed the left side, which leaves out the time that workers wait "
        "for each other."
    )
    if any(one.measured for one in everything):
        caption += " Thick lines: measured, by throughput."
    return figure, caption + _marks(everything)


def _draw_staleness(rows: Sequence[Row], records: list[Record]) -> Drawn:
    common, panels = staleness(records)
    series = panels["steps"]
    if not series:
        return None
    figure = Figure(figsize=(_WIDTH, 4.2), layout="constrained")
    grid = figure.subplots(1, 2, sharey=True)
    styles = _styles(series)
    xlabels = {"steps": "optimizer steps of each worker (count)", "minutes": "wall time since the run began (minutes)"}
    for axes, (name, found) in zip(grid, panels.items()):
        for one in found:
            _scatter(axes, one, {**styles[one.label], "linewidth": 1.4})
        axes.set_xlim(left=0)
        axes.set_xlabel(xlabels[name])
    grid[0].set_ylabel("validation accuracy (fraction)")
    _title(figure, common)
    _legend(figure, series, styles)
    return figure, (
        f"Validation accuracy against steps and against wall time under bounded staleness: {common}. A bound is the "
        "number of steps that a worker may be ahead of the slowest one."
    )


def _lines(common: str, series: list[Series]) -> tuple[Figure, Axes]:
    """One pair of axes with every series as a line, its legend, and what all have in common above it."""
    figure, axes = _figure(height=3.8)
    styles = _styles(series)
    for one in series:
        _scatter(axes, one, styles[one.label])
    _title(figure, common)
    _legend(figure, series, styles)
    return figure, axes


def _draw_accuracy_batch(rows: Sequence[Row], records: list[Record]) -> Drawn:
    common, series = accuracy_batch(rows, records)
    if not series:
        return None
    figure, axes = _lines(common, series)
    _log2(axes, [point.x for one in series for point in one.points])
    axes.set_xlabel("total batch (samples)")
    axes.set_ylabel("validation accuracy (fraction)")
    return figure, (
        f"Validation accuracy after the last epoch against the total batch: {common}. At each batch the best of what "
        "was published, and of what was measured here by the study's way and by any other."
    )


def _draw_accuracy_worth(rows: Sequence[Row], records: list[Record]) -> Drawn:
    common, series = accuracy_worth(rows, records)
    if not series:
        return None
    figure, axes = _figure(height=4.0)
    styles = _styles(series)
    for one in series:
        # Here they are predictions: the accuracy is measured, the speed is the published one.
        _scatter(axes, dataclasses.replace(one, measured=False), styles[one.label])
        for point in one.points:
            axes.annotate(point.text, (point.x, point.y), (5, 4), textcoords="offset points", fontsize=7)
    axes.set_xscale("log")
    axes.margins(x=0.09, y=0.08)
    _one_two_five(axes.xaxis)
    axes.set_xlabel("published training throughput (samples/s)")
    axes.set_ylabel("validation accuracy (fraction)")
    _legend(figure, [dataclasses.replace(one, measured=False) for one in series], styles)
    return figure, (
        f"When several devices are worth it: {common}; at each total batch the most accurate published setting (batch "
        "per device x devices) with its accuracy as printed, and with that of the best way found here at the same "
        "total batch, measured on virtual devices."
    )


def _draw_noise_scale(rows: Sequence[Row], records: list[Record]) -> Drawn:
    common, series = noise_scale(records)
    if not series:
        return None
    figure, axes = _lines(common, series)
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_xlabel("epochs trained (passes over the training images)")
    axes.set_ylabel("gradient noise scale (samples)")
    return figure, (
        f"Gradient noise scale over the training, numerator and denominator averaged apart over each twelfth: {common}."
    )


def _draw_time_split(rows: Sequence[Row], records: list[Record]) -> Drawn:
    common, bars = time_split(rows)
    if not bars:
        return None
    per, unit = _time_unit(max(sum(bar.parts.values()) for bar in bars))
    figure = _bar_figure(bars, xlabel=f"wall time ({unit})", per=per)
    _title(figure, common)
    left_out = _without_disturbed(_over_epochs(rows))
    return figure, (
        f"Where the wall time of each measured run went{_of(common)}. At the end of each bar: its wall time ({unit}), "
        f"to which the parts add up. Data: training stood still for the next batch.{left_out}"
    )


def _draw_speedup_reconciled(rows: Sequence[Row], records: list[Record]) -> Drawn:
    common, bars = speedup_reconciled(rows)
    if not bars:
        return None
    figure = _bar_figure(bars, xlabel="speed-up by throughput less speed-up by wall time (times one device)", per=1.0)
    figure.axes[0].axvline(0, color="black", linewidth=0.8)
    _title(figure, common)
    return figure, (
        f"Why the two measured speed-ups differ{_of(common)}. Each part of the wall time takes from the speed-up by "
        "throughput (right of 0) or adds to it (left of 0); at the end of each bar their sum, the whole difference. "
        "Beside it, the speed-up by throughput less the one by wall time."
    )


def _bar_figure(bars: list[Bar], *, xlabel: str, per: float) -> Figure:
    """Stacked horizontal bars, the first one on top; negative parts to the left of 0, and the sum at the end."""
    labels = [_wrapped(bar.label) for bar in bars]
    each = max(0.32, 0.05 + _LABEL_LINE * max(label.count("\n") + 1 for label in labels))
    figure, axes = _figure(height=1.4 + each * len(bars))
    names = [name for name in bars[0].parts if any(round(bar.parts[name], 6) for bar in bars)]
    looks = {name: _fill(list(bars[0].parts).index(name)) for name in names}
    for place, bar in enumerate(bars):
        ends = {True: 0.0, False: 0.0}
        for name in names:
            width = bar.parts[name] / per
            axes.barh(place, width, left=ends[width > 0], height=0.62, **looks[name])
            ends[width > 0] += width
        total = sum(bar.parts.values()) / per
        text = f"{total:.1f}" if per > 1 else f"{total:.3f}"
        axes.annotate(text, (ends[True], place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), labels, fontsize=8)
    axes.set_ylabel("run")
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.margins(x=0.08)
    axes.set_xlabel(xlabel)
    handles = [Patch(label=name, **looks[name]) for name in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(names), handlelength=1.6)
    return figure


FIGURES: dict[str, Callable[[Sequence[Row], list[Record]], Drawn]] = {
    "accuracy_throughput": _draw_accuracy_throughput,
    "learning_curves": _draw_learning_curves,
    "accuracy_time": _draw_accuracy_time,
    "throughput_devices": _draw_throughput_devices,
    "accuracy_batch": _draw_accuracy_batch,
    "accuracy_worth": _draw_accuracy_worth,
    "noise_scale": _draw_noise_scale,
    "throughput_batch": _draw_throughput_batch,
    "roofline": _draw_roofline,
    "speedup_workers": _draw_speedup_workers,
    "staleness": _draw_staleness,
    "time_split": _draw_time_split,
    "speedup_reconciled": _draw_speedup_reconciled,
}


def _figure(*, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def _title(figure: Figure, common: str) -> None:
    """What all of a figure has in common, above it; the page says the rest."""
    figure.suptitle(textwrap.fill(common, 110), x=0.01, ha="left", fontsize=9)


def _wrapped(label: str) -> str:
    """The label in lines that end at its commas."""
    words = [word.replace(" ", "\u00a0") for word in label.split(", ")]
    return textwrap.fill(", ".join(words), _LABEL_CHARACTERS, break_long_words=False).replace("\u00a0", " ")


def _set_style() -> None:
    matplotlib.rcdefaults()  # whatever the user's own matplotlibrc says
    matplotlib.rcParams.update(_STYLE)


def _save(figure: Figure, path: Path) -> None:
    """Writes the file at once or not at all, without the date and the name of the writer."""
    buffer = io.BytesIO()
    with matplotlib.rc_context():
        _set_style()
        figure.savefig(buffer, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    unfinished = path.with_suffix(".svg.tmp")
    unfinished.write_bytes(buffer.getvalue())
    os.replace(unfinished, path)


def _styles(series: Sequence[Series]) -> dict[str, dict[str, Any]]:
    """How each label is drawn: a colour for its machine, a marker and dashes of its own."""
    machines = list(dict.fromkeys(one.machine for one in series))
    labels = list(dict.fromkeys((one.label, one.machine, one.measured) for one in series))
    within: Counter[str] = Counter()
    styles = {}
    for index, (label, machine, measured) in enumerate(labels):
        own = len(machines) == len(labels)
        styles[label] = {
            "color": _COLOURS[machines.index(machine) % len(_COLOURS)],
            "marker": _MARKERS[index % len(_MARKERS)],
            "linestyle": _DASHES[(index if own else within[machine]) % len(_DASHES)],
            "linewidth": 2.4 if measured else 1.3,
        }
        within[machine] += 1
    return styles


def _scatter(axes: Axes, series: Series, style: dict[str, Any]) -> None:
    """The line of a series and its points: hollow where virtual, crossed where contradictory, with their spread."""
    points = series.points
    line = {name: style[name] for name in ("color", "linestyle", "linewidth")}
    if style["linestyle"] != "none":
        axes.plot([point.x for point in points], [point.y for point in points], **line)
    if any(point.spread for point in points):
        axes.errorbar(
            [point.x for point in points],
            [point.y for point in points],
            yerr=[point.spread for point in points],
            fmt="none",
            ecolor=style["color"],
            elinewidth=1.0,
            capsize=3,
        )
    size = 8.0 if series.measured else 5.5
    for virtual, face in ((False, style["color"]), (True, "white")):
        look = {"marker": style["marker"], "markersize": size, "markerfacecolor": face, "markeredgewidth": 1.2}
        _dots(axes, [point for point in points if point.virtual == virtual], markeredgecolor=style["color"], **look)
    crossed = [point for point in points if point.contradictory]
    _dots(axes, crossed, marker="x", markersize=11, markeredgecolor="black")


def _dots(axes: Axes, points: Sequence[Point], **look: Any) -> None:
    if points:
        axes.plot([point.x for point in points], [point.y for point in points], linestyle="none", **look)


def _legend(
    figure: Figure, series: Sequence[Series], styles: dict[str, dict[str, Any]], *, joined: bool = True
) -> None:
    """A legend below the axes, where it covers no data, in room of its own."""
    measured = {one.label for one in series if one.measured}
    labels = {label: f"{label} (measured)" if label in measured else label for label in styles}
    looks = styles if joined else {label: {**style, "linestyle": "none"} for label, style in styles.items()}
    handles = [Line2D([], [], **looks[label], label=text) for label, text in labels.items()]
    longest = max(map(len, labels.values()))
    lines = -(-len(handles) // max(1, 130 // (longest + 8)))
    figure.legend(handles=handles, loc="outside lower center", ncols=-(-len(handles) // lines), handlelength=3.0)
    figure.set_figheight(figure.get_figheight() + 0.17 * lines)


def _marks(series: Sequence[Series]) -> str:
    """What the special points of a figure mean, for its caption."""
    points = [point for one in series for point in one.points]
    words = ""
    if any("exchange independent" in one.label for one in series):
        words += " Exchange independent: none takes place, which is the ceiling."
    if any(point.virtual for point in points):
        words += " Hollow: virtual devices, whose accuracy is that of real ones but whose throughput is not."
    if any(point.contradictory for point in points):
        words += " Crossed: the source's own figures disagree about it (see the footnotes of the tables)."
    if any(point.spread for point in points):
        words += " Error bars: spread over the windows of a run (1.4826 x median absolute deviation)."
    return words


def _fill(index: int) -> dict[str, Any]:
    # No dots: as SVG each of them is a long path.
    hatches = ("", "|||", "", "////", "xx", "\\\\\\\\", "--")
    colours = ("#000000", "#56B4E9", "#0072B2", "#E69F00", "#F0E442", "#CC79A7", "#FFFFFF")
    return {
        "facecolor": colours[index % len(colours)],
        "hatch": hatches[index % len(hatches)],
        "edgecolor": "black",
        "linewidth": 0.6,
    }


def _plain_number(number: float, place: float) -> str:
    return f"{number:,g}"


def _one_two_five(axis: Axis) -> None:
    """Ticks of a logarithmic axis: 100, 200, 500, 1,000."""
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(_plain_number)


def _log2(axes: Axes, counts: Sequence[float]) -> None:
    """A logarithmic x axis whose ticks are counts that occur: every one, or so many that their names stay apart."""
    axes.set_xscale("log", base=2)
    ticks = sorted(set(counts))
    axes.xaxis.set_major_locator(FixedLocator(ticks[:: -(-len(ticks) // _MOST_TICKS)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(_plain_number)


def _time_unit(seconds: float) -> tuple[float, str]:
    """The unit in which a time of this length is read most easily, in seconds, and its sign."""
    if seconds < 180:
        return 1.0, "s"
    return (60.0, "min") if seconds < 3 * 3600 else (3600.0, "h")


def _apart(wanted: Sequence[float], *, sizes: Sequence[float]) -> list[float]:
    """Middles of labels of these sizes that do not touch, as near as may be to the wanted ones, which ascend."""
    gaps = [(lower + upper) / 2 for lower, upper in zip(sizes, sizes[1:])]
    heights = list(wanted)
    for index, gap in enumerate(gaps):
        heights[index + 1] = max(heights[index + 1], heights[index] + gap)
    ceiling = 1.0
    for index in range(len(heights) - 1, -1, -1):
        heights[index] = min(heights[index], ceiling)
        ceiling = heights[index] - gaps[index - 1] if index else 0.0
    return heights
