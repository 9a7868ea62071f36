"""Commands that train nothing: look at results, write their pages, publish them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import poc.cli.options as cli
from poc import published
from poc.published import prices
from poc.published.prices import Prices
from poc.records import journal
from poc.records.record import Record
from poc.run.launcher import cache
from poc.values import UserError, suggest

if TYPE_CHECKING:
    import pandas as pd
# Functions import what needs scipy and matplotlib, which take a second: plan and doctor need not wait for them.


def report(options: cli.ReportOptions) -> None:
    """Write the pages again; raises UserError for a mistake in the options."""
    studies, known_prices = published.load(options.study), prices.load(dict(options.price))
    names = {name for study in studies for row in study.rows for name in (row.machine, row.hardware)}
    for record in options.all_records():
        names |= {record.infrastructure, record.hardware.describe()}
    for name, _ in options.price:
        if name not in names:
            raise UserError(f"--price: no row is of a machine {name!r}; {suggest(name, filter(None, names))}")
    write_report(options, known_prices, study=options.study, target=options.target, folders=options.others)


def write_report(
    options: cli.ResultsOptions,
    known_prices: Prices,
    *,
    study: Sequence[Path] = (),
    target: float = cli.TARGET,
    folders: Sequence[Path] = (),
) -> None:
    """Write the pages of all journals in the folder of results; print the scorecard and the path of the page."""
    from poc import report

    records = options.records()
    written = report.write(
        records,
        published.load(study),
        page=options.page,
        folder=options.folder,
        cache=cache(),
        target=target,
        prices=known_prices,
        others=journal.read_with(records, folders),
    )
    print(written)


def publish(options: cli.PublishOptions) -> None:
    """Make a folder of one machine's results that can be sent."""
    from poc import report
    from poc.publish import publish

    studies, known_prices = published.load(options.study), prices.load({})

    def write_pages(records: Sequence[Record], folder: Path) -> None:
        page, target = folder / "results.md", options.target
        report.write(records, studies, page=page, folder=folder, cache=cache(), target=target, prices=known_prices)

    options.existing_records()  # raises UserError if there are none
    _, lines = publish(options.folder, options.output.absolute(), cli.HOME, write_pages, options.machine)
    print("\n".join(lines))


def show(options: cli.ShowOptions) -> None:
    """Print one run of the journals."""
    from poc.cli import show

    records = options.all_records()
    print(show.text(_table(records), records, options.run, options.json))


def compare(options: cli.CompareOptions) -> None:
    """Print how two runs of the journals differ."""
    from poc.cli import compare

    first, second = options.runs
    print(compare.text(_table(options.all_records()), first, second, options.json))


def _table(records: Sequence[Record]) -> pd.DataFrame:
    from poc.report import table

    return table.build(records, published.load([]), prices.load({}))
