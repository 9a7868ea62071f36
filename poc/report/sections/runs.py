"""Every setting that was measured, the machine at hand first and its last runs on top."""

from __future__ import annotations

from poc.report.measurements import Measurement, by_run
from poc.report.page import Results, Section
from poc.report.sections.rates import short_way
from poc.report.tables import accuracy_of, devices_of, network_label, rate_of, table

_LATEST = 10


def latest(results: Results) -> Section:
    """What the machine at hand measured last: whoever ran a recipe of their own finds it here."""
    shown = [taken for taken in _by_time(results) if results.is_here(taken.row)]
    about = f"The last {min(len(shown), _LATEST)} settings of {len(shown)} on **{results.here}**, of whatever recipe."
    return Section("Latest on this machine", (about, _table(results, shown[:_LATEST])) if shown else ())


def every(results: Results) -> Section:
    """All of all machines."""
    shown = sorted(_by_time(results), key=lambda taken: not results.is_here(taken.row))
    about = "Settings by their last take, the machine at hand first. rows.csv has every take with its notes."
    return Section("Every setting measured", (about, _table(results, shown)) if shown else ())


def _by_time(results: Results) -> list[Measurement]:
    measured = by_run(row for row in results.rows if row.measured and row.samples_per_second is not None)
    return sorted(measured, key=lambda taken: taken.row.started, reverse=True)


def _table(results: Results, shown: list[Measurement]) -> str:
    return table(
        shown,
        "machine network devices batch learning framework precision rate accuracy",
        machine=("machine", lambda taken: results.name(taken.row)),
        network=("network", _network),
        devices=("devices", lambda taken: ", ".join(filter(None, [devices_of(taken.row), _exchange(taken)]))),
        learning=("rate", lambda taken: short_way(taken.row)),
        rate=("samples/s (range, takes)", lambda taken: "" if taken.row.virtual else rate_of(taken)),
        accuracy=("accuracy", lambda taken: accuracy_of(taken.accuracies())),
    )


def _exchange(taken: Measurement) -> str:
    return taken.row.run.exchange.name if taken.row.run.exchanges else ""


def _network(taken: Measurement) -> str:
    row = taken.row
    return network_label(row.network) + ", synthetic data" * (row.dataset == "synthetic") + ", quick" * row.quick
