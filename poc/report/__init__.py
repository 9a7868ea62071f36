"""results.md, the pages of details, rows.csv, explorer.html and figures, made from records and published rows."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from poc.published import Study
from poc.published.prices import Prices
from poc.published.prices import load as load_prices
from poc.records import last_run as last_runs
from poc.records.last_run import LastRun
from poc.records.record import SKIPPED, Record
from poc.report import chart, explorer
from poc.report import table as tables
from poc.report.page import Block, Figure
from poc.report.results import MAIN_MODEL, TARGET, Results, Subject
from poc.report.sections import cost, header, learning_rate, recipes, scaling, scorecard, throughput
from poc.report.sections.details import PAGES
from poc.values import write_atomically

MOST_LINES = 120
"""Of the page: a reader gets the answers from its first two screens, and the rest must stay readable."""


@dataclasses.dataclass(frozen=True)
class Written:
    """What `write` made."""

    page: Path
    scorecard: str
    """The first scorecard as plain text; empty if nothing was measured."""

    def __str__(self) -> str:
        return "\n\n".join(filter(None, [self.scorecard, f"Written: {self.page}"]))


def write(
    records: Sequence[Record],
    studies: Sequence[Study],
    *,
    page: Path,
    folder: Path,
    prices: Prices | None = None,
    target: float = TARGET,
    sample: str = "",
    cache: Path | None = None,
    others: Sequence[Record] = (),
) -> Written:
    """Write `page`, and in `folder` the pages of details, rows.csv, explorer.html and figures/.

    The page is about a machine of `records`; those of `others` are shown with it. A `sample` page starts with that text
    and has no explorer. Links are relative to their page. The same records give the same bytes in whatever order they
    come. Each file is replaced atomically. `cache` keeps what is slow to make.
    """
    table = tables.build([*records, *others], studies, prices or load_prices({}))
    write_atomically(folder / "rows.csv", tables.write(table))
    table = tables.read(folder / "rows.csv")
    if not sample:
        write_atomically(folder / "explorer.html", explorer.page(table, cache))
    last_run = last_runs.read(folder)
    results = Results(table, studies, this_machine(records, last_run), target, last_run)
    return write_pages(results, page=page, folder=folder, sample=sample)


def write_pages(results: Results, *, page: Path, folder: Path, sample: str = "") -> Written:
    """Write the pages and figures from the table of a rows.csv alone."""
    first, *others = results.subjects() or [Subject(MAIN_MODEL, "cifar10")]
    details = [(made.name, made.title, made.blocks(results)) for made in PAGES]
    details += [(f"model_{other.model}_{other.dataset}", other.label, _sections(results, other)) for other in others]
    links = {f"{name}.md": title for name, title, blocks in details if blocks}
    links.update({"rows.csv": "rows.csv"} if sample else {"explorer.html": "Explorer", "rows.csv": "rows.csv"})
    listed = " · ".join(f"[{title}]({_link(folder / name, page)})" for name, title in links.items())
    title = f"# {first.label}: throughput, scaling, learning rate and cost"
    above = [*filter(None, [title, sample, header.lines(results)]), *_sections(results, first)]
    below = [*recipes.not_run(results), "## Notes", header.notes(results), f"**Details:** {listed}"]
    room = MOST_LINES - _lines([*above, *below])
    pages = {folder / f"{name}.md": [f"# {title}", *blocks] for name, title, blocks in details if blocks}
    _write(results, folder, {page: [*above, *recipes.blocks(results, room), *below], **pages})
    lines = scorecard.lines(results, first) if results.machine else []
    plain = tabulate([{key: cell.replace("`", "") for key, cell in line.items()} for line in lines], headers="keys")
    return Written(page, plain)


def _sections(results: Results, subject: Subject) -> list[Block]:
    makers = (scorecard.blocks, throughput.blocks, scaling.blocks, learning_rate.blocks, cost.blocks)
    return [block for make in makers for block in make(results, subject)]


def this_machine(records: Sequence[Record], last_run: LastRun | None) -> str:
    """Return the machine that the page is about: that of the last run, else of the latest record that was tried."""
    tried = [record for record in records if record.outcome != SKIPPED] or records
    if last_run and any(record.infrastructure == last_run.machine for record in tried):
        return last_run.machine
    return max(tried, key=lambda record: record.started).infrastructure if tried else ""


def _write(results: Results, folder: Path, pages: Mapping[Path, Sequence[Block]]) -> None:
    """Write pages with their figures and the links that they use; remove those that only an earlier report made."""
    addresses = {study.name: study.address for study in results.studies}
    if results.studies:
        addresses["main_study"] = results.studies[0].address
    figures: dict[Path, Figure] = {}
    for path, blocks in pages.items():
        paragraphs = []
        for block in blocks:
            if isinstance(block, Figure):
                file = folder / "figures" / f"{block.name}.svg"
                figures[file], block = block, f"![{block.caption}]({_link(file, path)})"
            paragraphs.append(block)
        addresses.update({made.name: _link(folder / f"{made.name}.md", path) for made in PAGES})
        write_atomically(path, _linked("\n\n".join(paragraphs), addresses) + "\n")
    for file, figure in figures.items():
        write_atomically(file, chart.svg(figure.figure))
    details = {folder / f"{made.name}.md" for made in PAGES}
    for file in {*(folder / "figures").glob("*.svg"), *folder.glob("model_*.md"), *details} - {*pages, *figures}:
        file.unlink(missing_ok=True)


def _linked(text: str, addresses: Mapping[str, str]) -> str:
    """Return the text with [label][name] as a link to the address of the name, or as its label if that has none."""

    def link(match: re.Match[str]) -> str:
        label, name = match.groups()
        address = addresses.get(name)
        return match[0] if address is None else f"[{label}]({address})" if address else label

    return re.sub(r"\[([^\[\]]+)\]\[(\w+)\]", link, text)


def _lines(blocks: Sequence[Block]) -> int:
    """Return the lines that blocks take with an empty line after each."""
    return sum((block.count("\n") if isinstance(block, str) else 0) + 2 for block in blocks)


def _link(target: Path, page: Path) -> str:
    return Path(os.path.relpath(target, page.parent)).as_posix()
