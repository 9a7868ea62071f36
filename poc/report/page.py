"""What a page is made of: sections with text, tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple, Union

import matplotlib.figure
import pandas as pd

from poc.report import chart, markdown
from poc.report.results import Results


class Figure(NamedTuple):
    """A figure of a page."""

    name: str
    """Name of its file, without an ending."""
    caption: str
    figure: matplotlib.figure.Figure


Block = Union[str, Figure]


def figure(name: str, caption: str, lines: Sequence[chart.Line], *titles: str, **how: Any) -> list[Figure]:
    """Return a figure of lines, with the titles that `chart.lines` takes; none if no line has two points."""
    if not any(len(line.points) > 1 for line in lines):
        return []
    more = len(lines) - chart.MOST_LINES
    return [
        Figure(
            name, caption + (f" {more} more are in the table." if more > 0 else ""), chart.lines(lines, *titles, **how)
        )
    ]


def section(title: str, *blocks: Block | Iterable[Figure] | None) -> list[Block]:
    """Return the blocks under a heading; nothing if there is no table or figure among them, or an empty one.

    Blocks are text, the text of tables, and figures or lists of them.
    """
    flat: list[Block] = []
    for block in blocks:
        flat += [block] if isinstance(block, (str, Figure)) else block or []
    if not any(isinstance(block, Figure) or block.startswith("|") for block in flat):
        return []
    return [f"## {title}", *(block for block in flat if block)]


Section = Callable[[Results], list[Block]]


def listing(title: str, about: str, rows: pd.DataFrame, *columns: markdown.Column) -> list[Block]:
    """Return a section with a sentence and the table of `rows`; nothing if there are none."""
    return section(title, about, markdown.table(markdown.lines(rows, *columns)))


def of_runs(title: str, about: str, where: Callable[[pd.DataFrame], Any], *columns: markdown.Column) -> Section:
    """Return what makes the listing of the runs for which the mask `where` is true."""
    return lambda results: listing(title, about, results.runs[where(results.runs)], *columns)


class Page(NamedTuple):
    """A page of details."""

    name: str
    """Name of its file, without an ending."""
    title: str
    sections: Sequence[Section]

    def blocks(self, results: Results) -> list[Block]:
        """Return the blocks of all its sections."""
        return [block for make in self.sections for block in make(results)]
