"""The figures of results.md, as SVG: a function draws the data of each, and says in a caption what it shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from poc.records.record import Record
from poc.report import chart, points
from poc.report.cells import MAIN_NETWORKS, network_label
from poc.studies.row import Row


def draw(rows: Sequence[Row], records: Sequence[Record], folder: Path) -> dict[str, tuple[Path, str]]:
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
        chart.save(figure, folder / f"{name}.svg")
    return drawn


def build(rows: Sequence[Row], records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    """The figures that have data, by name, each with its caption."""
    with matplotlib.rc_context():
        chart.set_style()
        made = {name: figure(rows, records) for name, figure in FIGURES.items()}
    return {name: drawn for name, drawn in made.items() if drawn is not None}


def _without_disturbed(rows: Sequence[Row]) -> str:
    """What the caption says of a figure of `calm(rows)`."""
    return " Runs disturbed by other processes are left out." if len(points.calm(rows)) < len(rows) else ""


def _of(common: str) -> str:
    """What all lines of a figure share, at the end of a caption's sentence; nothing where that is nothing."""
    return f": {common}" if common else ""


def _draw_accuracy_throughput(rows: Sequence[Row], records: Sequence[Record]) -> chart.Drawn:
    series = points.accuracy_throughput(rows)
    if not series:
        return None
    figure, axes = chart.blank(height=4.0)
    styles = chart.styles_of(series)
    chart.scatter_all(axes, series, styles, linestyle="none")
    for line in series:
        texts: list[chart.Point] = []
        for point in filter(lambda point: point.text, line.points):
            # Two runs of one setting lie so close that one text serves both.
            if not any(point.text == other.text and abs(point.y - other.y) < 0.03 for other in texts):
                axes.annotate(point.text, (point.x, point.y), (6, 3), textcoords="offset points", fontsize=8)
                texts.append(point)
    axes.margins(x=0.09, y=0.08)
    axes.set_xscale("log")
    chart.one_two_five(axes.xaxis)
    axes.set(xlabel="training throughput (samples/s)", ylabel="validation accuracy (fraction)")
    chart.legend(figure, series, styles, joined=False)
    caption = (
        f"Validation accuracy after {points.MAIN_EPOCHS} epochs against training throughput, "
        f"{network_label(MAIN_NETWORKS[0])} on CIFAR-10, one point a run. Beside some points: "
        "batch per device x devices."
    )
    return figure, caption + chart.marks_of(series)


def _draw_learning_curves(rows: Sequence[Row], records: Sequence[Record]) -> chart.Drawn:
    common, series = points.learning_curves(records)
    if not series:
        return None
    figure = chart.curve_chart(common, series, xlabel="epoch (passes over the training images)", per=1.0)
    return figure, f"Validation accuracy after each epoch, one line a measured run{_of(common)}."


def _draw_accuracy_time(rows: Sequence[Row], records: Sequence[Record]) -> chart.Drawn:
    common, series = points.accuracy_time(records)
    if not series:
        return None
    per, unit = chart.time_unit(max(line.points[-1].x for line in series))
    figure = chart.curve_chart(common, series, xlabel=f"wall time since the run began ({unit})", per=per)
    virtual = any("(virtual)" in line.label for line in series) or "(virtual)" in common
    caption = f"The same validation accuracies against wall time, start and earlier evaluations included{_of(common)}."
    return figure, caption + " A run on virtual devices takes the time of the one that plays them." * virtual


def _draw_throughput_devices(rows: Sequence[Row], records: Sequence[Record]) -> chart.Drawn:
    common, both = points.throughput_devices(rows)
    series, efficiencies = both["throughput"], both["efficiency"]
    if not series:
        return None
    figure = Figure(figsize=(chart.WIDTH, 3.9), layout="constrained")
    panels = figure.subplots(1, 2 if efficiencies else 1, squeeze=False)[0]
    styles = chart.styles_of(series)
    chart.scatter_all(panels[0], series, styles)
    panels[0].set_yscale("log", base=2)
    panels[0].yaxis.set_major_locator(FixedLocator([1000.0 * 2**power for power in range(-6, 9)]))
    panels[0].yaxis.set_minor_locator(NullLocator())
    panels[0].yaxis.set_major_formatter(chart.plain_number)
    chart.titled(figure, common)
    panels[0].set_ylabel("training throughput (samples/s)")
    if efficiencies:
        chart.scatter_all(panels[1], efficiencies, styles)
        panels[1].axhline(1.0, color=chart.GREY, linewidth=0.8)
        panels[1].set_ylim(bottom=0)
        panels[1].set_ylabel("efficiency by throughput (1 is ideal)")
    for axes in panels:
        chart.log2(axes, [point.x for line in series for point in line.points])
        axes.set_xlabel("devices (count)")
    chart.legend(figure, series, styles)
    caption = f"Training throughput against real devices, batch per device held fixed (weak scaling){_of(common)}."
    if any(line.measured for line in series):
        caption += " Of several measured ways to exchange gradients the fastest."
    if efficiencies:
        caption += " Right: speed-up by throughput / devices, for series that have a row on one device."
    return figure, caption + chart.marks_of(series)


def _draw_throughput_batch(rows: Sequence[Row], records: Sequence[Record]) -> chart.Drawn:
    panels = points.throughput_batch(rows)
    if not panels:
        return None
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(chart.WIDTH, 0.4 + 3.2 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    everything = [line for series in panels.values() for line in series]
    styles = chart.styles_of(everything)
    for place, (axes, (network, series)) in enumerate(zip(grid, panels.items())):
        chart.scatter_all(axes, series, styles)
        chart.log2(axes, [point.x for line in series for point in line.points])
        axes.set_title(network)
        axes.set_xlabel("batch on the device (samples)")
        if place % across == 0:
            axes.set_ylabel("training throughput (samples/s)")
    for axes in grid[len(panels) :]:
        axes.remove()
    grid[0].set_yscale("log")
    chart.one_two_five(grid[0].yaxis)
    chart.legend(figure, everything, styles)
    caption = "Training throughput of one device (or CPU) against the batch size; the mean where a batch was run twice."
    return figure, caption + chart.marks_of(everything)


def _draw_roofline(rows: Sequence[Row], records: Sequence[Record]) -> chart.Drawn:
    series, peaks = points.roofline(rows)
    if not series:
        return None
    figure, axes = chart.blank(height=5.4)
    styles = chart.styles_of(series)
    ends = [point.x for line in series for point in line.points]
    reach = (min(ends) / 20, max(ends) * 2)  # names stand on the left of their points
    for line in series:
        limit = [peaks[line.label] / (6 * x) for x in reach]
        axes.plot(reach, limit, **{**{k: styles[line.label][k] for k in ("color", "linestyle")}, "linewidth": 1.0})
        chart.scatter(axes, line, {**styles[line.label], "linestyle": "none"})
    for point in chart.readable([point for line in series for point in line.points]):
        axes.annotate(
            point.text, (point.x, point.y), (-5, -5), textcoords="offset points", fontsize=7, ha="right", va="top"
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*reach)
    axes.set(xlabel="multiply-adds of one image's forward pass (count)", ylabel="training throughput (samples/s)")
    chart.legend(figure, series, styles, joined=False)
    caption = (
        "Training throughput of every network on one device against what an image costs. The line is as fast as the "
        "device could be if all were large matrix products: their operations a second / (6 x multiply-adds). Where "
        "points crowd, only some are named; the table has all."
    )
    return figure, caption + _without_disturbed(points.measured_rows(rows)) + chart.marks_of(series)


def _draw_speedup_workers(rows: Sequence[Row], records: Sequence[Record]) -> chart.Drawn:
    panels = {title: series for title, series in points.speedup_workers(rows).items() if series}
    if not panels:
        return None
    figure = Figure(figsize=(chart.WIDTH, 3.8), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    everything = [line for series in panels.values() for line in series]
    styles = chart.styles_of(everything)
    counts = sorted({point.x for line in everything for point in line.points})
    for axes, (title, series) in zip(grid, panels.items()):
        # Straight between the counts, as the others are, so that it is only crossed where it was beaten.
        axes.plot(counts, counts, color=chart.GREY, linewidth=0.8)
        axes.annotate(
            "ideal", (counts[-1], counts[-1]), (-8, 0), textcoords="offset points", ha="right", color=chart.GREY
        )
        chart.scatter_all(axes, series, styles)
        chart.log2(axes, counts)
        axes.set_ylim(bottom=0)
        axes.set_title(title)
        axes.set_xlabel("workers, one device each (count)")
    grid[0].set_ylabel("speed-up (times one worker)")
    chart.legend(figure, everything, styles)
    caption = (
        "Speed-up against workers, batch per device held fixed (weak scaling). Published: the Theano study, redrawn "
        "from its seconds for 5,120 images; it printed the left side, which leaves out the time that workers wait "
        "for each other."
    )
    if any(line.measured for line in everything):
        caption += " Thick lines: measured, by throughput."
    return figure, caption + chart.marks_of(everything)


def _draw_staleness(rows: Sequence[Row], records: Sequence[Record]) -> chart.Drawn:
    common, panels = points.staleness(records)
    series = panels["steps"]
    if not series:
        return None
    figure = Figure(figsize=(chart.WIDTH, 4.2), layout="constrained")
    grid = figure.subplots(1, 2, sharey=True)
    styles = chart.styles_of(series)
    xlabels = {"steps": "optimizer steps of each worker (count)", "minutes": "wall time since the run began (minutes)"}
    for axes, (name, lines) in zip(grid, panels.items()):
        chart.scatter_all(axes, lines, styles, linewidth=1.4)
        axes.set_xlim(left=0)
        axes.set_xlabel(xlabels[name])
    grid[0].set_ylabel("validation accuracy (fraction)")
    chart.titled(figure, common)
    chart.legend(figure, series, styles)
    return figure, (
        f"Validation accuracy against steps and against wall time under bounded staleness: {common}. A bound is the "
        "number of steps that a worker may be ahead of the slowest one."
    )


def _draw_accuracy_batch(rows: Sequence[Row], records: Sequence[Record]) -> chart.Drawn:
    common, series = points.accuracy_batch(rows, records)
    if not series:
        return None
    figure, axes = chart.line_chart(common, series)
    chart.log2(axes, [point.x for line in series for point in line.points])
    axes.set(xlabel="total batch (samples)", ylabel="validation accuracy (fraction)")
    return figure, (
        f"Validation accuracy after the last epoch against the total batch: {common}. At each batch the best of what "
        "was published, and of what was measured here by the study's way and by any other."
    )


def _draw_accuracy_worth(rows: Sequence[Row], records: Sequence[Record]) -> chart.Drawn:
    common, series = points.accuracy_worth(rows, records)
    if not series:
        return None
    figure, axes = chart.blank(height=4.0)
    styles = chart.styles_of(series)
    for line in series:
        # Here they are predictions: the accuracy is measured, the speed is the published one.
        chart.scatter(axes, dataclasses.replace(line, measured=False), styles[line.label])
        for point in line.points:
            axes.annotate(point.text, (point.x, point.y), (5, 4), textcoords="offset points", fontsize=7)
    axes.set_xscale("log")
    axes.margins(x=0.09, y=0.08)
    chart.one_two_five(axes.xaxis)
    axes.set(xlabel="published training throughput (samples/s)", ylabel="validation accuracy (fraction)")
    chart.legend(figure, [dataclasses.replace(line, measured=False) for line in series], styles)
    return figure, (
        f"When several devices are worth it: {common}; at each total batch the most accurate published setting (batch "
        "per device x devices) with its accuracy as printed, and with that of the best way found here at the same "
        "total batch, measured on virtual devices."
    )


def _draw_noise_scale(rows: Sequence[Row], records: Sequence[Record]) -> chart.Drawn:
    common, series = points.noise_scale(records)
    if not series:
        return None
    figure, axes = chart.line_chart(common, series)
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set(xlabel="epochs trained (passes over the training images)", ylabel="gradient noise scale (samples)")
    return figure, (
        f"Gradient noise scale over the training, numerator and denominator averaged apart over each twelfth: {common}."
    )


def _draw_time_split(rows: Sequence[Row], records: Sequence[Record]) -> chart.Drawn:
    common, bars = points.time_split(rows)
    if not bars:
        return None
    per, unit = chart.time_unit(max(sum(bar.parts.values()) for bar in bars))
    figure = chart.bar_chart(bars, xlabel=f"wall time ({unit})", per=per)
    chart.titled(figure, common)
    left_out = _without_disturbed(points.over_epochs(rows))
    return figure, (
        f"Where the wall time of each measured run went{_of(common)}. At the end of each bar: its wall time ({unit}), "
        f"to which the parts add up. Data: training stood still for the next batch.{left_out}"
    )


def _draw_speedup_reconciled(rows: Sequence[Row], records: Sequence[Record]) -> chart.Drawn:
    common, bars = points.speedup_reconciled(rows)
    if not bars:
        return None
    figure = chart.bar_chart(
        bars, xlabel="speed-up by throughput less speed-up by wall time (times one device)", per=1.0
    )
    figure.axes[0].axvline(0, color="black", linewidth=0.8)
    chart.titled(figure, common)
    return figure, (
        f"Why the two measured speed-ups differ{_of(common)}. Each part of the wall time takes from the speed-up by "
        "throughput (right of 0) or adds to it (left of 0); at the end of each bar their sum, the whole difference. "
        "Beside it, the speed-up by throughput less the one by wall time."
    )


FIGURES: dict[str, Callable[[Sequence[Row], Sequence[Record]], chart.Drawn]] = {
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
