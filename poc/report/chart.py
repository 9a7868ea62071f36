"""The one chart of the pages: lines or dots with their ranges, in one style, named where they end.

Read at 880 pixels and on a telephone, in grey and by the colour-blind: markers and line styles differ where colours do.
The same data give the same bytes.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, Locator, LogLocator, NullLocator

from poc.values import value

_STYLE: dict[str, Any] = {
    "svg.hashsalt": "poc",  # else every run of the program gives its clip paths new names
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # matplotlib lays out in the first; the second is as wide
    "font.size": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "legend.fontsize": 11,
}
# Inches: the width is 768 pixels in a browser, a row that of one line of dots.
_WIDTH, _HEIGHT, _ROW = 8.0, 4.2, 0.36
_LONG_LABEL = 34
# Okabe and Ito's palette for the colour-blind, of warm colours for the machine at hand.
_HERE = ("#D55E00", "#CC79A7", "#E69F00", "#000000", "#7F3C00", "#8C2D5E", "#5C4400")
_OTHERS = ("#0072B2", "#009E73", "#56B4E9", "#555555", "#003C5E", "#004D38", "#9BB8C9")
_MARKERS = "os^Dv*Px"
MOST_LINES = 7


@value
class Point:
    """One figure, with the range of its takes."""

    x: float
    y: float
    low: float | None = None
    """Of the takes, on the axis of what is measured: y of lines, x of dots."""
    high: float | None = None


@value
class Line:
    """Points that belong together."""

    label: str
    points: tuple[Point, ...]
    here: bool = False
    """Of the machine at hand: stronger than the others."""
    ideal: bool = False
    """No measurement: a line to compare with."""
    predicted: bool = False
    """Not measured either; its points have the range in which they may lie."""


def left_out(lines: int) -> str:
    """What a caption says of the lines that a chart of so many does not show."""
    return f" Lines left out, which are in the table: {lines - MOST_LINES}." if lines > MOST_LINES else ""


@contextlib.contextmanager
def _styled() -> Iterator[None]:
    matplotlib.rcdefaults()  # whatever the user's own matplotlibrc says
    with matplotlib.rc_context(_STYLE):
        yield


@_styled()
def lines(several: Sequence[Line], *, title: str, xlabel: str, ylabel: str, log: str = "", ticks: str = "") -> Figure:
    """Lines in one pair of axes, at most `MOST_LINES`, and a legend below.

    `log` names the logarithmic axes ("xy"), `ticks` those that are marked just where there are points.
    """
    figure, axes = _blank(_HEIGHT, title)
    looks = _looks(several[:MOST_LINES])
    for line, look in looks:
        axes.plot([point.x for point in line.points], [point.y for point in line.points], **look)
        for point in line.points:
            if point.low is not None and point.high is not None:
                axes.vlines(point.x, point.low, point.high, color=look["color"], linewidth=1.2)
    axes.set(xlabel=xlabel, ylabel=ylabel, **{f"{name}scale": "log" for name in log})
    for axis, name in ((axes.xaxis, "x"), (axes.yaxis, "y")):
        if name in ticks:
            _ticks(axis, FixedLocator(sorted({getattr(point, name) for line in several for point in line.points})))
        elif name in log:
            _ticks(axis, LogLocator(base=10, subs=(1.0, 3.0)))
    if len(looks) > 1:
        handles = [Line2D([], [], **look, label=line.label) for line, look in looks]
        columns = 1 if max(len(line.label) for line in several) > _LONG_LABEL else 2
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.6)
        figure.set_figheight(_HEIGHT + 0.22 * -(-len(handles) // columns))
    return figure


@_styled()
def dots(several: Sequence[Line], *, title: str, xlabel: str) -> Figure:
    """A line of the chart for each of `several`, from above, with its one point's x beside it; a logarithmic axis."""
    figure, axes = _blank(1.3 + _ROW * len(several), title)
    for place, line in enumerate(several):
        (point,) = line.points
        color, low, high = (_HERE if line.here else _OTHERS)[0], point.low or point.x, point.high or point.x
        axes.hlines(place, low, high, color=color, linewidth=3)
        axes.plot([point.x], [place], marker="D" if line.here else "o", color=color)
        text = f"{point.x:.3g}" if point.x < 99.95 else f"{point.x:,.0f}"
        weight = "bold" if line.here else "normal"
        axes.annotate(text, (high, place), (9, 0), textcoords="offset points", va="center", weight=weight)
    axes.set_yticks(range(len(several)), [line.label for line in several])
    for label, line in zip(axes.get_yticklabels(), several):
        label.set_fontweight("bold" if line.here else "normal")
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set(xscale="log", xlabel=xlabel)
    _ticks(axes.xaxis, LogLocator(base=10, subs=(1.0, 3.0)))  # 100, 300, 1,000
    axes.margins(x=0.12)
    return figure


@_styled()
def svg(figure: Figure) -> str:
    """The figure's file, without the date and the name of its writer."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _blank(height: float, title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure, figure.subplots()


def _looks(several: Sequence[Line]) -> list[tuple[Line, dict[str, Any]]]:
    """How each line is drawn: its own marker, a colour of the machine at hand or of the others, dashes."""
    left = {True: iter(_HERE), False: iter(_OTHERS)}
    looks: list[tuple[Line, dict[str, Any]]] = []
    for line, marker in zip(several, _MARKERS):
        look = {"color": "#999999", "linestyle": ":", "marker": ""}
        if not line.ideal:
            style = "-." if line.predicted else "-" if line.here else "--"
            look = {"color": next(left[line.here]), "linestyle": style, "marker": marker}
            if line.predicted:
                look["markerfacecolor"] = "white"
        looks.append((line, {**look, "linewidth": 2.6 if line.here else 1.8, "markersize": 7}))
    return looks


def _ticks(axis: Axis, at: Locator) -> None:
    axis.set_major_locator(at)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,g}")
