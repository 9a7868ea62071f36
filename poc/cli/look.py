"""Commands that train nothing: look at results, write their pages, publish them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tabulate import tabulate

from poc import published
from poc.cli import options as cli
from poc.cli.options import Options
from poc.config.networks import NETWORKS
from poc.export import export as to_tracker
from poc.host.environment import cache
from poc.published import prices
from poc.published.prices import Prices
from poc.records import journal
from poc.records.record import Record
from poc.values import UserError, suggest

if TYPE_CHECKING:
    import pandas as pd
# Functions import what needs scipy and matplotlib, which take a second: plan and doctor need not wait for them.


def report(options: Options) -> None:
    """Write the pages again; raises UserError if there are no journals, or for a price of an unknown machine."""
    write_report(options, _given_prices(options, options.all_records()))


def _given_prices(options: Options, records: Sequence[Record]) -> Prices:
    """Return all prices, with those of the command line; raises UserError for one of an unknown machine."""
    rows = [row for study in published.load(options.study) for row in study.rows]
    names = {name for row in rows for name in (row.machine, row.hardware)}
    names |= {name for record in records for name in (record.infrastructure, record.hardware.describe())}
    for name, _ in options.price:
        if name not in names:
            raise UserError(f"--price: no row is of a machine {name!r}; {suggest(name, filter(None, names))}")
    return prices.load(dict(options.price))


def write_report(options: Options, known_prices: Prices) -> None:
    """Write the pages of all journals in the folder of results; print the scorecard and the path of the page."""
    records, folder = journal.read(journal.paths(options.results)), options.results
    page = (cli.HOME if folder == cli.HOME / "results" else folder) / "results.md"
    received = journal.read_with(records, options.others)
    print(_writer(options, known_prices)(records, others=received, page=page, folder=folder))


def _writer(options: Options, known_prices: Prices) -> functools.partial[str]:
    """Return `poc.report.write` with the options of the pages."""
    from poc import report

    studies = published.load(options.study)
    return functools.partial(report.write, studies=studies, cache=cache(), target=options.target, prices=known_prices)


def publish(options: Options) -> None:
    """Make a folder of one machine's results that can be sent."""
    from poc.publish import publish

    known_prices = _given_prices(options, journal.read(journal.paths(options.results)))
    write_report = _writer(options, known_prices)
    _, lines = publish(options.results, options.output.absolute(), write_report, options.machine)
    print("\n".join(lines))


def export(options: Options) -> None:
    print(to_tracker(options.all_records(), options.tracker, options.target))


def show(options: Options) -> None:
    from poc.cli import show

    records = options.all_records()
    print(show.text(_table(records), records, options.run, options.results))


def compare(options: Options) -> int:
    """Print how two runs, or the runs of two folders, differ; return the gate's verdict, or 1 if a second is worse."""
    from poc.cli import compare

    folders = [Path(name) for name in options.runs if Path(name).is_dir()]
    if len(folders) == 1:
        raise UserError(f"compare: {' and '.join(options.runs)} are not two folders of results, nor two runs")
    if folders:
        return compare_folders(folders, options.slower, options.json)
    first, second = options.runs
    comparison = compare.compare(_table(options.all_records()), first, second, options.slower)
    print(compare.as_json(comparison) if options.json else compare.text(comparison))
    return int(comparison["exit_code"])


def compare_folders(folders: Sequence[Path], slower: float | None, as_json: bool, ids: Sequence[str] = ()) -> int:
    """Print how the runs that two folders have in common differ, all or those of `ids`; return the exit code."""
    from poc.cli import compare

    comparisons = compare.same_runs([_table(journal.read_with([], [folder])) for folder in folders], slower, ids)
    print(compare.as_json(comparisons) if as_json else "\n\n".join(map(compare.text, comparisons)))
    # A run that is slower decides, then one that did not complete, then one with too few repeats.
    return max((each["exit_code"] for each in comparisons), key=[0, compare.TOO_FEW, 1, compare.SLOWER].index)


def models(options: Options) -> None:
    headers = ["model", "input", "parameters", "multiply-adds of a forward pass (M)", "source"]
    rows = []
    for network in NETWORKS.values():
        size, cost = f"3x{network.input_size}x{network.input_size}", network.cost
        source = network.source + (f" ({network.note})" if network.note else "")
        rows.append([network.name, size, cost.parameters, cost.forward_multiply_adds / 1e6, source])
    print(tabulate(rows, headers, intfmt=",", floatfmt=",.1f"))


def _table(records: Sequence[Record]) -> pd.DataFrame:
    from poc.report import table

    return table.build(records, published.load([]), prices.load({}))
