"""Every setting that was measured, the machine at hand first and its last runs on top."""

from __future__ import annotations

from poc.report.measurements import Measurement, by_run
from poc.report.page import Results, Section
from poc.report.sections.rates import short_way
from poc.report.tables import RATE, accuracy_of, cells, devices_of, exchange_of, markdown, network_label

_LATEST = 10


def latest(results: Results) -> Section:
    """What the machine at hand measured last: whoever ran a recipe of their own finds it here."""
    shown = [taken for taken in _by_time(results) if results.is_here(taken.row)]
    about = f"The last {min(len(shown), _LATEST)} settings of {len(shown)} on **{results.here}**, of whatever recipe."
    return Section("Latest on this machine", (about, _table(results, shown[:_LATEST])))


def every(results: Results) -> Section:
    """All of all machines."""
    shown = sorted(_by_time(results), key=lambda taken: not results.is_here(taken.row))
    about = "Settings by their last take, the machine at hand first. rows.csv has every take with its notes."
    return Section("Every setting measured", (about, _table(results, shown)))


def _by_time(results: Results) -> list[Measurement]:
    measured = by_run(row for row in results.rows if row.measured and row.samples_per_second is not None)
    return sorted(measured, key=lambda taken: taken.row.started, reverse=True)


def _table(results: Results, shown: list[Measurement]) -> str:
    lines = []
    for taken in shown:
        row = taken.row
        network = network_label(row.network) + ", synthetic data" * (row.dataset == "synthetic")
        exchange = exchange_of(row) if row.run.exchanges else ""
        line = {
            "machine": results.name(row),
            "network": network + ", quick" * row.quick,
            "devices": ", ".join(filter(None, [devices_of(row), exchange])),
            **cells(taken, "batch a device"),
            "rate": short_way(row),
            **cells(taken, "engine", "precision", RATE),
            "accuracy": accuracy_of(taken.accuracies()) + ", held-out" * bool(row.accuracy_on),
        }
        lines.append({**line, RATE: ""} if row.virtual else line)
    return markdown(lines)
