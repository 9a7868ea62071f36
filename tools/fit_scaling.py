"""Fit poc/cli/scaling.csv: how far published throughput deviates from the efficiency measured on fewer devices.

    .venv/bin/python -m tools.fit_scaling

It also prints how well the intervals hold for each study when they are fitted without that study. Sources:
poc/published/ and tools/series/, which has studies of nothing but scaling. Only weak scaling counts.
"""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from tabulate import tabulate

from poc import published
from poc.cli.advise import DEVIATIONS
from poc.records.row import WEAK, Row, rate

SERIES = Path(__file__).parent / "series"
MOST_DOUBLINGS = 3
MIN_STUDIES = 3  # intervals between hosts from fewer studies are at least as wide as those inside a host
_SAME = (
    *("study", "machine", "hardware", "framework", "model", "dataset", "input_shape", "dtype", "layout"),
    "batch_per_device",
)
Cell = tuple[int, bool]  # doublings of devices, and whether hosts are added
Intervals = dict[Cell, tuple[float, float]]


class Pair(NamedTuple):
    """Throughput on some devices of a series, and on 2, 4 or 8 times as many."""

    study: str
    cell: Cell
    ratio: float  # actual throughput / that at the efficiency of the fewer devices


def pairs(rows: Iterable[Row]) -> list[Pair]:
    """Return every pair of rows of a series whose numbers of devices differ by a factor of 2, 4 or 8.

    Rows of a series differ only in the number of devices; of several with the same number the first counts. One device
    synchronises nothing, so its row belongs to the series of every kvstore. Rows whose figures contradict each other
    are left out.
    """
    groups: dict[tuple[Any, ...], dict[tuple[int, str], Row]] = defaultdict(dict)
    for row in rows:
        if row.scaling == WEAK and row.model and row.devices and rate(row) and not row.contradicts:
            kvstore = "" if row.devices == 1 else row.kvstore
            groups[tuple(getattr(row, name) for name in _SAME)].setdefault((row.devices, kvstore), row)
    found = []
    for group in groups.values():
        for fewer, more in itertools.permutations(group.values(), 2):
            doublings = math.log2(more.devices / fewer.devices)
            if doublings in range(1, MOST_DOUBLINGS + 1) and (fewer.devices == 1 or fewer.kvstore == more.kvstore):
                cell = (int(doublings), (more.hosts or 1) > (fewer.hosts or 1))
                ratio = (rate(more) or 0.0) / more.devices / ((rate(fewer) or 1.0) / fewer.devices)
                found.append(Pair(more.study, cell, ratio))
    return found


def fit(known: Sequence[Pair]) -> Intervals:
    """Return the 90% interval of the ratio in each cell, from the order statistics whose ranks are 5% and 95% of n + 1.

    (With n + 1, a new pair is inside with a probability of at least 90%: Vovk, Gammerman and Shafer 2005.) It includes
    1, the prediction. Between hosts, with fewer than `MIN_STUDIES` studies, it includes the interval inside a host.
    """
    intervals: Intervals = {}
    for cell in itertools.product(range(1, MOST_DOUBLINGS + 1), (False, True)):
        ratios = sorted(pair.ratio for pair in known if pair.cell == cell)
        ends = [1.0]
        if ratios:
            rank = max((len(ratios) + 1) // 20, 1)
            ends += [ratios[rank - 1], ratios[-rank]]
        doublings, hosts_added = cell
        if hosts_added and len({pair.study for pair in known if pair.cell == cell}) < MIN_STUDIES:
            ends += intervals[doublings, False]
        intervals[cell] = (min(ends), max(ends))
    return intervals


def left_out(known: Sequence[Pair]) -> dict[str, Intervals]:
    """Return, for each study, the intervals that are fitted to all others."""
    names = sorted({pair.study for pair in known})
    return {name: fit([pair for pair in known if pair.study != name]) for name in names}


def report(known: Sequence[Pair]) -> str:
    """Return a table of how well predictions and intervals hold for studies that they were not fitted to."""
    by_study = left_out(known)
    rows = []
    for pair in sorted(known, key=lambda pair: pair.cell):
        (doublings, hosts_added), (low, high) = pair.cell, by_study[pair.study][pair.cell]
        cell = f"{2**doublings} times the devices, {'between hosts' if hosts_added else 'inside a host'}"
        error = abs(1 / pair.ratio - 1)  # as a share of the actual throughput
        rows.append({"study": pair.study, "cell": cell, "inside": low <= pair.ratio <= high, "error": error})
    table = pd.DataFrame(rows)
    groups = [("all", table), *table.groupby("cell", sort=False), *table.groupby("study")]
    lines = [[name, len(each), f"{each.inside.mean():.1%}", f"{each.error.median():.1%}"] for name, each in groups]
    headers = ["each study left out in turn", "pairs", "inside the 90% interval", "median error"]
    return tabulate(lines, headers=headers, disable_numparse=True)


def load() -> list[Pair]:
    known = [*published.load(), *published.load(folder=SERIES)]
    return pairs(row for study in known for row in study.rows)


def save(known: Sequence[Pair]) -> None:
    rows = []
    for (doublings, hosts_added), (low, high) in fit(known).items():
        chosen = [pair for pair in known if pair.cell == (doublings, hosts_added)]
        row = {"doublings": doublings, "hosts_added": "yes" if hosts_added else "no", "low": low}
        row.update(median=statistics.median(pair.ratio for pair in chosen), high=high, pairs=len(chosen))
        rows.append({**row, "studies": len({pair.study for pair in chosen})})
    pd.DataFrame(rows).to_csv(DEVIATIONS, index=False, float_format="%.3f", lineterminator="\n")


if __name__ == "__main__":
    print(report(load()))
    save(load())
