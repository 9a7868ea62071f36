"""Make results.md, the pages of details, rows.csv, explorer.html and figures from records and published rows."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from poc.published import MAIN_MODEL, Study
from poc.published.prices import Prices
from poc.published.prices import load as load_prices
from poc.records import last_run as last_runs
from poc.records.last_run import LastRun
from poc.records.record import SKIPPED, Record
from poc.records.row import MEASURED
from poc.report import chart, explorer, markdown, repeats
from poc.report import table as tables
from poc.report.markdown import Block, Figure
from poc.report.results import TARGET, Results, Subject
from poc.report.sections import cost, details, header, learning_rate, recipes, scaling, scorecard, throughput
from poc.values import write_atomically

MAX_LINES = 120  # lines of results.md: its first two screens answer the questions, and the rest must stay readable
PAGES: dict[str, tuple[str, Callable[[Results], list[Block]]]] = {
    "learning_rate": ("Learning rate", details.learning_rate),
    "time_to_accuracy": ("Time to accuracy", cost.time_to_accuracy),
    "scaling": ("Scaling and gradient synchronisation", details.scaling_and_kvstores),
    "models": ("Models, batch sizes and precisions", details.models),
    "settings": ("All settings", recipes.every_setting),
    "studies": ("Published studies", details.studies),
    "method": ("How it was measured", details.method),
}
"""Titles and contents of the pages of details by the names of their files, in the order of their links."""
_DETAILS = "**Details:**"


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
) -> str:
    """Write `page`, and in `folder` the pages of details, rows.csv, explorer.html and figures/.

    Return the first scorecard as plain text, if anything was measured, and where the page is.
    The page is about a machine of `records`; those of `others` are shown with it. A `sample` page starts with that text
    and has no explorer. Links are relative to their page. The same records give the same bytes in any order. Each file
    is replaced atomically. `cache` is a folder for what is slow to make.
    """
    table = tables.build([*records, *others], studies, prices or load_prices({}))
    write_atomically(folder / "rows.csv", tables.write(table))
    table = tables.read(folder / "rows.csv")
    if not sample:
        write_atomically(folder / "explorer.html", explorer.page(table, cache))
    last_run = last_runs.read(folder)
    measured_here = table[
        (table.origin == MEASURED) & table.machine.isin([record.infrastructure for record in records])
    ]
    machine = this_machine(measured_here, last_run)
    of_machine = last_run if last_run and machine in ("", last_run.machine) else None
    results = Results(table, studies, machine, target, of_machine)
    return write_pages(results, page=page, folder=folder, sample=sample)


def write_pages(results: Results, *, page: Path, folder: Path, sample: str = "") -> str:
    """Write the pages and figures from the table of a rows.csv alone; return the same as `write`."""
    subject, *more_subjects = results.subjects() or [Subject(MAIN_MODEL, "cifar10")]
    contents = {name: (title, blocks(results)) for name, (title, blocks) in PAGES.items()}
    for each in more_subjects:
        name = markdown.file_name(f"model_{each.model}_{each.dataset}")
        contents[name] = each.label, _sections(results, each, scorecard.lines(results, each))
    contents = {name: (title, blocks) for name, (title, blocks) in contents.items() if blocks}
    links = {f"{name}.md": title for name, (title, _) in contents.items()}
    links.update({"rows.csv": "rows.csv"} if sample else {"explorer.html": "Explorer", "rows.csv": "rows.csv"})
    listed = " · ".join(markdown.link(title, _path(folder / name, page)) for name, title in links.items())
    card = scorecard.lines(results, subject)
    heading = f"# {subject.label}: throughput, scaling, learning rate and cost"
    above = [*filter(None, [heading, sample, header.lines(results)]), *_sections(results, subject, card)]
    below = [*recipes.not_run(results), "## Notes", header.notes(results, subject), f"{_DETAILS} {listed}"]
    # Each block has an empty line after it.
    lines = sum((block.count("\n") if isinstance(block, str) else 0) + 2 for block in (*above, *below))
    pages = {folder / f"{name}.md": [f"# {title}", *blocks] for name, (title, blocks) in contents.items()}
    all_settings = _path(folder / "settings.md", page)
    pages[page] = [*above, *recipes.blocks(results, MAX_LINES - lines, all_settings), *below]
    _write(folder, pages, page)
    plain = tabulate([{key: cell.replace("`", "") for key, cell in row.items()} for row in card], headers="keys")
    return f"{plain}\n\nWritten: {page}" if results.machine else f"Written: {page}"


def _sections(results: Results, subject: Subject, card: list[dict[str, str]]) -> list[Block]:
    makers = (throughput.blocks, scaling.blocks, learning_rate.blocks, cost.blocks)
    return scorecard.blocks(results, subject, card) + [block for make in makers for block in make(results, subject)]


def this_machine(rows: pd.DataFrame, last_run: LastRun | None) -> str:
    """Return the machine of the page: that of the last run, else that of the latest row that was not skipped."""
    ran = repeats.some_or_all(rows, rows.outcome != SKIPPED)
    if last_run and (ran.machine == last_run.machine).any():
        return last_run.machine
    return str(ran.sort_values("started", kind="stable").machine.iloc[-1]) if len(ran) else ""


def _write(folder: Path, pages: Mapping[Path, Sequence[Block]], page: Path) -> None:
    """Write pages with their figures; remove those that only an earlier report made: `page` linked to them."""
    former = _linked(page, folder)
    former = former.union(*(_linked(path, folder) for path in former if path.suffix == ".md"))
    figures: dict[Path, Figure] = {}
    for path, blocks in pages.items():
        paragraphs = []
        for block in blocks:
            if isinstance(block, Figure):
                file = folder / "figures" / f"{block.name}.svg"
                figures[file], block = block, f"![{block.caption}]({_path(file, path)})"
            paragraphs.append(block)
        write_atomically(path, "\n\n".join(paragraphs) + "\n")
    for file, figure in figures.items():
        write_atomically(file, chart.svg(figure.figure))
    for file in former - {*pages, *figures}:
        file.unlink(missing_ok=True)


def _linked(page: Path, folder: Path) -> set[Path]:
    """Return the figures that a page shows and the pages among its details, as far as they are in `folder`."""
    text = page.read_text(encoding="utf-8", errors="replace") if page.exists() else ""
    above, _, details = text.partition(_DETAILS)  # what a user adds below is not a report's
    links = re.findall(r"^!\[.*\]\((.+\.svg)\)$", above, re.MULTILINE)
    links += re.findall(r"\]\(([^)]+\.md)\)", details.split("\n")[0])
    linked = {Path(os.path.normpath(page.parent / link)) for link in links}
    return {path for path in linked if path.parent in (folder, folder / "figures")}


def _path(target: Path, page: Path) -> str:
    return Path(os.path.relpath(target, page.parent)).as_posix()
