"""Commands that train nothing: look at results, write their pages, publish them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Lt

from poc import published
from poc.cli import chosen
from poc.published import Study, prices
from poc.published.prices import Prices
from poc.records import journal
from poc.records.record import Record
from poc.run.launcher import cache
from poc.values import Positive, UserError, checked, suggest

if TYPE_CHECKING:
    import pandas as pd


def report(options: argparse.Namespace) -> None:
    """Write the pages again; raises UserError for a mistake in the options."""
    check_target(options)
    studies, machine_prices = published.load(options.study), prices.load(dict(options.price))
    names = {name for study in studies for row in study.rows for name in (row.machine, row.hardware)}
    for record in _all_records(options):
        names |= {record.infrastructure, record.hardware.describe()}
    for name, _ in options.price:
        if name not in names:
            raise UserError(f"--price: no row is of a machine {name!r}; {suggest(name, filter(None, names))}")
    write_report(options, studies, machine_prices)


def check_target(options: argparse.Namespace) -> None:
    """Raise UserError unless --target is an accuracy that a training can reach."""
    checked("--target", options.target, Annotated[Positive, Lt(1)])


def write_report(options: argparse.Namespace, studies: Sequence[Study], machine_prices: Prices) -> None:
    """Write the pages of all journals in the folder of results; print the scorecard and where the page is."""
    # scipy and matplotlib take a second to import, which plan and doctor need not wait for.
    from poc import report

    records = chosen.records(options)
    how: dict[str, Any] = {name: vars(options)[name] for name in ("target",) if name in options}
    how.update(prices=machine_prices, others=journal.read_with(records, vars(options).get("others", [])))
    folder, page = chosen.results(options), chosen.page(options)
    print(report.write(records, studies, page=page, folder=folder, cache=cache(), **how))


def publish(options: argparse.Namespace) -> None:
    """Make a folder of one machine's results that can be sent."""
    check_target(options)
    from poc import report
    from poc.publish import publish

    studies, how = published.load(options.study), {"prices": prices.load({}), "target": options.target}

    def write_pages(records: Sequence[Record], folder: Path) -> None:
        report.write(records, studies, page=folder / "results.md", folder=folder, cache=cache(), **how)

    chosen.own_records(options)  # a mistake is named
    print(publish(chosen.results(options), options.output, chosen.HOME, write_pages, options.machine))


def show(options: argparse.Namespace) -> None:
    """Print one run of the journals."""
    from poc.cli import show

    records = _all_records(options)
    print(show.text(_table(records), records, options.run, options.json))


def compare(options: argparse.Namespace) -> None:
    """Print how two runs of the journals differ."""
    from poc.cli import compare

    first, second = options.runs
    print(compare.text(_table(_all_records(options)), first, second, options.json))


def _all_records(options: argparse.Namespace) -> list[Record]:
    own = chosen.records(options) if options.others else chosen.own_records(options)
    return [*own, *journal.read_with(own, options.others)]


def _table(records: Sequence[Record]) -> pd.DataFrame:
    from poc.report import table

    return table.build(records, published.load([]), prices.load({}))
