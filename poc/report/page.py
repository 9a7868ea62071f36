"""Building blocks of a page: sections with text, tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple, Union

import matplotlib.figure
import pandas as pd

from poc.report import chart, markdown
from poc.report.results import Results


class Figure(NamedTuple):
    """A figure; `name` is that of its file without an ending."""

    name: str
    caption: str
    figure: matplotlib.figure.Figure


Block = Union[str, Figure]


class Page(NamedTuple):
    """A page of details; `name` is that of its file without an ending."""

    name: str
    title: str
    blocks: Callable[[Results], list[Block]]


def figure(name: str, caption: str, lines: Sequence[chart.Line], *titles: str, **axes: Any) -> list[Figure]:
    """Return a figure of lines, with the titles and axes of `chart.lines`; nothing if no line has two points."""
    if not any(len(line.points) > 1 for line in lines):
        return []
    hidden = len(lines) - chart.MAX_LINES
    caption += f" {hidden} more are in the table." if hidden > 0 else ""
    return [Figure(markdown.file_name(name), caption, chart.lines(lines, *titles, **axes))]


def section(title: str, *blocks: Block | Iterable[Figure]) -> list[Block]:
    """Return texts, tables and figures under a heading; nothing if there is no table or figure among them."""
    flat: list[Block] = []
    for block in blocks:
        flat += [block] if isinstance(block, (str, Figure)) else block
    if not any(isinstance(block, Figure) or block.startswith("|") for block in flat):
        return []
    return [f"## {title}", *(block for block in flat if block)]


def listing(title: str, about: str, rows: pd.DataFrame, *columns: markdown.Column) -> list[Block]:
    """Return a section with a text and the table of `rows`; nothing if there are none."""
    return section(title, about, markdown.table(markdown.lines(rows, *columns)))
