"""Line charts, readable at 880 and 390 pixels, in grey and by the colour-blind. Equal data give equal bytes."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib import style
from matplotlib.figure import Figure

_STYLE: dict[str, Any] = {
    "svg.hashsalt": "poc",  # else every run of the program gives its clip paths new names
    "svg.fonttype": "none",
    "text.parse_math": False,  # a machine's name may have dollars
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # matplotlib lays out in the first; the second is as wide
    "font.size": 15,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "legend.fontsize": 13,
}
# Inches. A figure is 880 pixels wide on a page, 390 on a telephone: letters of 15 points are then 7 points high.
_WIDTH, _HEIGHT = 8.0, 4.6
_LONG_LABEL = 34
# Colours of Okabe and Ito's palette for this machine, greys for the others.
_OWN = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_OTHERS = ("#555555", "#888888", "#333333", "#AAAAAA", "#6B6B6B", "#999999", "#444444")
_MARKERS = "os^Dv*Px"
_OWN_STYLE: dict[str, Any] = {"linestyle": "-", "linewidth": 3.0, "markersize": 9}
_OTHER_STYLE: dict[str, Any] = {"linestyle": "--", "linewidth": 1.8, "markersize": 7}
_MOST_MARKERS = 24
MAX_LINES = 7
_TICK_LETTERS = 44  # letters of all ticks of an axis that fit below it


class Line(NamedTuple):
    """A curve: y by x."""

    label: str
    points: Mapping[float, float]
    measured: bool = False  # measured by this project: drawn in colour, published lines in grey
    interval: tuple[float, float] | None = None  # an interval of x: a bar in the line's colour above the x axis


@style.context(_STYLE, after_reset=True)  # not the user's own matplotlibrc
def lines(
    curves: Sequence[Line],
    title: str,
    xlabel: str,
    ylabel: str,
    *,
    log2: bool = False,
    least_span: float = 0.0,
    **properties: Any,
) -> Figure:
    """Draw at most `MAX_LINES` lines in one pair of axes with these properties, and a legend below.

    With `log2` the x axis is logarithmic and has a tick at each point, or at every second, third, ... of too many. The
    y axis spans `least_span` or more, so that small differences do not look large.
    """
    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=15, fontweight="bold")
    axes = figure.subplots()
    colours = {True: iter(_OWN), False: iter(_OTHERS)}
    drawn = curves[:MAX_LINES]
    for line, marker in zip(drawn, _MARKERS):
        colour, kind = next(colours[line.measured]), _OWN_STYLE if line.measured else _OTHER_STYLE
        every = len(line.points) // _MOST_MARKERS + 1 if len(line.points) > _MOST_MARKERS else None
        points = list(line.points), list(line.points.values())
        axes.plot(*points, label=line.label, color=colour, marker=marker, markevery=every, **kind)
        if line.interval:
            height = 0.03 * (1 + drawn.index(line))  # of the axes' height
            bar: dict[str, Any] = {"color": colour, "linewidth": 5, "solid_capstyle": "butt"}
            axes.plot(line.interval, (height, height), transform=axes.get_xaxis_transform(), **bar)
    if log2:
        axes.set_xscale("log", base=2)
        ticks = sorted({x for line in curves for x in line.points})
        labels = [f"{x:,g}" for x in ticks]
        step = -(-sum(map(len, labels)) // _TICK_LETTERS)
        axes.set_xticks(ticks[::step], labels[::step])
        axes.set_xticks([], minor=True)
    axes.set(xlabel=xlabel, ylabel=ylabel, **properties)
    low, high = axes.get_ylim()
    missing = max(0.0, least_span - (high - low)) / 2
    axes.set_ylim(low - missing, high + missing)
    columns = 1 if max(len(line.label) for line in curves) > _LONG_LABEL else 2
    figure.legend(loc="outside lower center", ncols=columns, handlelength=2.6)
    figure.set_figheight(_HEIGHT + 0.26 * -(-len(drawn) // columns))
    return figure


@style.context(_STYLE, after_reset=True)
def svg(figure: Figure) -> str:
    """Return the text of the figure's file, without its date and writer."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
