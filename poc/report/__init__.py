"""results.md, the pages behind it and rows.csv, made from records and published rows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from poc.records.record import SKIPPED, Record
from poc.report import chart, explorer, rows
from poc.report.page import Page, Picture, Results
from poc.report.sections import (
    cost,
    exchanges,
    findings,
    foretold,
    learning,
    machines,
    method,
    networks,
    prediction,
    rates,
    reading,
    runs,
    scaling,
)
from poc.report.sections import studies as by_study
from poc.studies import Study
from poc.studies.prices import Prices
from poc.studies.prices import load as load_prices
from poc.studies.row import to_csv

MAIN = Page(
    "results",
    "Results: data-parallel training of ResNet-50 on CIFAR-10",
    (
        findings.section,
        machines.section,
        rates.section,
        scaling.section,
        cost.section,
        cost.targets,
        runs.latest,
        reading.section,
    ),
)
BEHIND = (
    Page(
        "learning_rate",
        "Learning rate",
        (
            learning.every_training,
            learning.search,
            learning.published,
            learning.noise,
            foretold.epochs,
            foretold.rates,
            foretold.beside_published,
        ),
    ),
    Page(
        "scaling",
        "Scaling and exchanges",
        (
            scaling.every,
            prediction.tested,
            prediction.beforehand,
            prediction.advised,
            exchanges.section,
            exchanges.steps,
            exchanges.staleness,
        ),
    ),
    Page("networks", "Networks and engines", (networks.engines, networks.section, networks.batches, networks.largest)),
    Page("runs", "All settings", (runs.every,)),
    Page("studies", "The studies beside this suite", (by_study.sections,)),
    Page("method", "How it was measured", (method.rules, method.machines, method.time, method.memory, method.not_run)),
)
"""The pages that results.md leads to."""


def write(
    records: Sequence[Record],
    published: Sequence[Study],
    *,
    page: Path,
    folder: Path,
    prices: Prices | None = None,
    cache: Path | None = None,
    others: Sequence[Record] = (),
) -> None:
    """Writes `page`, and in `folder` the pages behind it, rows.csv, explorer.html and figures/. What is slow to
    make and always the same is kept in the folder `cache`. The machine at hand is none of those of `others`.

    Links are relative to their page. The same records give the same bytes, in whatever order they come. Each file is
    replaced at once or not at all.
    """
    tried = [record for record in rows.ordered(records or others) if record.outcome != SKIPPED]
    records = rows.ordered([*records, *others])
    table = rows.collect(records, published, prices or load_prices({}))
    # A search is of ways, not of a machine: it makes none the one at hand that another run does.
    last = max(tried, key=lambda record: (not record.run.searches, record.started), default=None)
    here = last.infrastructure if last else ""
    shown = tuple(rows.shown(records))
    results = Results(rows=tuple(table), records=shown, studies=tuple(published), here=here)
    _replace(folder / "rows.csv", to_csv([*table, *rows.predicted(table, shown)]))
    _replace(folder / "explorer.html", explorer.page(table, records, cache))
    behind = {folder / f"{made.name}.md": made for made in BEHIND}
    links = [
        *(f"- [{made.title}]({_link(path, page)})" for path, made in behind.items()),
        f"- [explorer.html]({_link(folder / 'explorer.html', page)}): every row and run, opened from disk",
        f"- [rows.csv]({_link(folder / 'rows.csv', page)}): every row, for pandas",
    ]
    start = f"Made by `python -m poc report` from {_counted(results)}; nothing in it is typed by hand."
    figures = _write(page, MAIN, start, results, folder / "figures", ["## Details", "\n".join(links)])
    for path, made in behind.items():
        start = f"Behind [{page.name}]({_link(page, path)}), whose signs it uses."
        figures |= _write(path, made, start, results, folder / "figures")
    for left in set((folder / "figures").glob("*.svg")) - figures:
        left.unlink()


def _write(path: Path, made: Page, start: str, results: Results, folder: Path, end: Sequence[str] = ()) -> set[Path]:
    """Writes one page; returns the files of its figures, which lie in `folder`."""
    figures: set[Path] = set()
    blocks = [f"# {made.title}", start]
    for section in made.sections(results):
        blocks.append(f"## {section.title}")
        for block in section.blocks:
            if isinstance(block, Picture):
                file = folder / f"{block.name}.svg"
                _replace(file, chart.svg(block.figure))
                figures.add(file)
                blocks.append(f"![{block.caption}]({_link(file, path)})\n\n*{block.caption}*")
            else:
                blocks.append(block)
    blocks += end
    named = "".join(blocks)
    addresses = {study.name: study.address for study in results.studies}
    addresses.update({page.name: _link(folder.parent / f"{page.name}.md", path) for page in BEHIND})
    used = [f"[{name}]: {address}" for name, address in addresses.items() if f"][{name}]" in named]
    _replace(path, "\n\n".join(filter(None, [*blocks, "\n".join(used)])) + "\n")
    return figures


def _counted(results: Results) -> str:
    runs = [record for record in results.records if record.outcome != SKIPPED]
    machines = len({record.infrastructure for record in runs})
    days = sorted({record.started[:10] for record in runs})
    when = f" ({' to '.join(dict.fromkeys((days[0], days[-1])))})" if days else ""
    own = f"{len(runs)} runs on {machines} machine{'s' * (machines != 1)}{when}"
    return f"{own} and {len(results.studies)} published studies"


def _link(target: Path, page: Path) -> str:
    return Path(os.path.relpath(target, page.parent)).as_posix()


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(unfinished, 0o644)  # mkstemp's files are for their owner alone
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise
