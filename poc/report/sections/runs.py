"""Every setting that was measured, the machine at hand first and its last runs on top."""

from __future__ import annotations

from poc.report.measurements import Measurement, by_run
from poc.report.page import Results, Section
from poc.report.sections.rates import short_way, tell_apart
from poc.report.tables import (
    RATE,
    accuracy_of,
    cells,
    counted,
    devices_and_exchange,
    markdown,
    network_and_data,
    rate_of,
)

_LATEST = 10
_UNLIKE = "After a rate: by what its run differs from others that read alike."


def latest(results: Results) -> Section:
    """What the machine at hand measured last: whoever ran a recipe of their own finds it here."""
    shown = [taken for taken in _by_time(results) if results.is_here(taken.row)]
    last = f"The last {min(len(shown), _LATEST)} settings of {len(shown)} on **{results.here}**, of whatever recipe."
    return Section("Latest on this machine", (f"{last} {_UNLIKE}", _table(results, shown[:_LATEST])))


def every(results: Results) -> Section:
    """All of all machines."""
    shown = sorted(_by_time(results), key=lambda taken: not results.is_here(taken.row))
    about = f"Settings by their last take, the machine at hand first. rows.csv has every take with its notes. {_UNLIKE}"
    return Section("Every setting measured", (about, _table(results, shown)))


def _by_time(results: Results) -> list[Measurement]:
    measured = by_run(row for row in results.rows if row.measured)
    # An emulated run that evaluated nothing has neither a speed nor an accuracy.
    measured = [taken for taken in measured if not taken.row.emulated or taken.row.accuracy is not None]
    return sorted(measured, key=lambda taken: taken.row.started, reverse=True)


def _table(results: Results, shown: list[Measurement]) -> str:
    lines, measured = [], []
    for taken in shown:
        row = taken.row
        line = {
            "machine": results.name(row),
            "network": network_and_data(row),
            "devices": devices_and_exchange(row),
            **cells(taken, "batch a device"),
            "rate": short_way(row),
            "engine": f"{row.framework}, {row.dtype}",
            "epochs": counted(row.epochs) if row.accuracy is not None else "",
        }
        figures = {
            RATE: "" if row.emulated else rate_of(taken),
            "accuracy": accuracy_of(taken.accuracies()) + ", held-out" * bool(row.accuracy_on),
        }
        lines.append(line)
        measured.append(figures)
    tell_apart(lines, (taken.row for taken in shown), "rate")
    return markdown([{**line, **figures} for line, figures in zip(lines, measured)])
