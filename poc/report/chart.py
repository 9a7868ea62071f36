"""What the figures of results.md are drawn with: points, one style, legends and labels.

They are made to be read 800 pixels wide, in grey and by the colour-blind: markers, line styles and hatches differ where
colours do. The same rows and records give the same bytes.
"""

from __future__ import annotations

import io
import math
import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Optional

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from poc.values import value

Drawn = Optional[tuple[Figure, str]]

# Okabe and Ito's palette for the colour-blind, without its yellow, which is lost on white.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")

_DASHES = ("-", "--", "-.", ":")

GREY = "#777777"

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

WIDTH = 8.0  # inches, which are 768 pixels in a browser

_LABEL_CHARACTERS = 40

_MOST_TICKS = 6

_LABEL_LINE = 0.16  # inches

_NAME_ROOM = (1.2, 0.28)  # decades of each axis that the name of a point takes


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


def blank(*, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def titled(figure: Figure, common: str) -> None:
    """What all of a figure has in common, above it; the page says the rest."""
    figure.suptitle(textwrap.fill(common, 110), x=0.01, ha="left", fontsize=9)


def _wrapped(label: str) -> str:
    """The label in lines that end at its commas."""
    words = [word.replace(" ", "\u00a0") for word in label.split(", ")]
    return textwrap.fill(", ".join(words), _LABEL_CHARACTERS, break_long_words=False).replace("\u00a0", " ")


def set_style() -> None:
    matplotlib.rcdefaults()  # whatever the user's own matplotlibrc says
    matplotlib.rcParams.update(_STYLE)


def save(figure: Figure, path: Path) -> None:
    """Writes the file at once or not at all, without the date and the name of the writer."""
    buffer = io.BytesIO()
    with matplotlib.rc_context():
        set_style()
        figure.savefig(buffer, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    unfinished = path.with_suffix(".svg.tmp")
    unfinished.write_bytes(buffer.getvalue())
    os.replace(unfinished, path)


def styles_of(series: Sequence[Series]) -> dict[str, dict[str, Any]]:
    """How each label is drawn: a colour for its machine, a marker and dashes of its own."""
    machines = list(dict.fromkeys(line.machine for line in series))
    labels = list(dict.fromkeys((line.label, line.machine, line.measured) for line in series))
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


def scatter(axes: Axes, series: Series, style: dict[str, Any]) -> None:
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


def scatter_all(axes: Axes, series: Iterable[Series], styles: dict[str, dict[str, Any]], **look: Any) -> None:
    """Every series in its style, but for what `look` says of all."""
    for line in series:
        scatter(axes, line, {**styles[line.label], **look})


def _dots(axes: Axes, points: Sequence[Point], **look: Any) -> None:
    if points:
        axes.plot([point.x for point in points], [point.y for point in points], linestyle="none", **look)


def legend(figure: Figure, series: Sequence[Series], styles: dict[str, dict[str, Any]], *, joined: bool = True) -> None:
    """A legend below the axes, where it covers no data, in room of its own."""
    measured = {line.label for line in series if line.measured}
    labels = {label: f"{label} (measured)" if label in measured else label for label in styles}
    looks = styles if joined else {label: {**style, "linestyle": "none"} for label, style in styles.items()}
    handles = [Line2D([], [], **looks[label], label=text) for label, text in labels.items()]
    longest = max(map(len, labels.values()))
    lines = -(-len(handles) // max(1, 130 // (longest + 8)))
    figure.legend(handles=handles, loc="outside lower center", ncols=-(-len(handles) // lines), handlelength=3.0)
    figure.set_figheight(figure.get_figheight() + 0.17 * lines)


def marks_of(series: Sequence[Series]) -> str:
    """What the special points of a figure mean, for its caption."""
    points = [point for line in series for point in line.points]
    words = ""
    if any("exchange independent" in line.label for line in series):
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


def plain_number(number: float, place: float) -> str:
    return f"{number:,g}"


def one_two_five(axis: Axis) -> None:
    """Ticks of a logarithmic axis: 100, 200, 500, 1,000."""
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(plain_number)


def log2(axes: Axes, counts: Sequence[float]) -> None:
    """A logarithmic x axis whose ticks are counts that occur: every one, or so many that their names stay apart."""
    axes.set_xscale("log", base=2)
    ticks = sorted(set(counts))
    axes.xaxis.set_major_locator(FixedLocator(ticks[:: -(-len(ticks) // _MOST_TICKS)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(plain_number)


def time_unit(seconds: float) -> tuple[float, str]:
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


def bar_chart(bars: list[Bar], *, xlabel: str, per: float) -> Figure:
    """Stacked horizontal bars, the first one on top; negative parts to the left of 0, and the sum at the end."""
    labels = [_wrapped(bar.label) for bar in bars]
    each = max(0.32, 0.05 + _LABEL_LINE * max(label.count("\n") + 1 for label in labels))
    figure, axes = blank(height=1.4 + each * len(bars))
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


def curve_chart(common: str, series: list[Series], *, xlabel: str, per: float) -> Figure:
    labels = {line.label: _wrapped(line.label) for line in series}
    needed = {label: _LABEL_LINE * (text.count("\n") + 1) for label, text in labels.items()}
    height = max(3.8, 1.0 + sum(needed.values()))
    figure, axes = blank(height=height)
    styles = styles_of(series)
    for line in series:
        xs, ys = [point.x / per for point in line.points], [point.y for point in line.points]
        axes.plot(xs, ys, **{**styles[line.label], "markersize": 3.5, "linewidth": 1.4})
    titled(figure, common)
    axes.set(xlabel=xlabel, ylabel="validation accuracy (fraction)")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.autoscale(False)
    low, high = axes.get_ylim()
    ends = sorted((line for line in series if line.label), key=lambda line: line.points[-1].y)
    heights = _apart(
        [(line.points[-1].y - low) / (high - low) for line in ends],
        sizes=[needed[line.label] / (height - 1.0) for line in ends],
    )
    for line, at in zip(ends, heights):
        axes.annotate(
            labels[line.label],
            (line.points[-1].x / per, line.points[-1].y),
            (1.02, at),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": GREY,
                "linewidth": 0.5,
                "relpos": (0.0, 0.5),
                "shrinkA": 0,
                "shrinkB": 4,
            },
        )
    return figure


def line_chart(common: str, series: list[Series]) -> tuple[Figure, Axes]:
    """One pair of axes with every series as a line, its legend, and what all have in common above it."""
    figure, axes = blank(height=3.8)
    styles = styles_of(series)
    scatter_all(axes, series, styles)
    titled(figure, common)
    legend(figure, series, styles)
    return figure, axes


def readable(points: Sequence[Point]) -> list[Point]:
    """Points whose names do not run into one another on logarithmic axes: the slow for their arithmetic first."""
    chosen: list[Point] = []
    for point in sorted(points, key=lambda point: (point.x * point.y, point.text)):
        apart = [(math.log10(point.x / other.x), math.log10(point.y / other.y)) for other in chosen]
        if all(abs(x) > _NAME_ROOM[0] or abs(y) > _NAME_ROOM[1] for x, y in apart):
            chosen.append(point)
    return chosen
