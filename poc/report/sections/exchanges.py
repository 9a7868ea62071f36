"""How gradients travel: the ways to exchange them, against none, and what bounded staleness does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from poc.recipe import SSP, NoSync
from poc.records.record import COMPLETED, Record
from poc.report import compare
from poc.report.measurements import Measurement, by_exchange
from poc.report.page import Results, Section
from poc.report.tables import RATE, TOO_SHORT, cells, exchange_of, markdown, network_label, rounded


def section(results: Results) -> Section:
    """Runs that differ in nothing else, and what a step of each spends on it."""
    groups = by_exchange(results.speeds(lambda row: row.run.synchronises))
    lines = [line for group in groups if len(group) > 1 for line in _against_none(results, group)]
    about = (
        "Runs that differ in nothing else, fastest first; medians over the takes that are compared, or over all where "
        "none were in turn. `none` exchanges nothing: the ceiling. "
        f"{compare.VERDICT_RULE}."
    )
    return Section("Ways to exchange gradients", (about, markdown(lines)))


def _against_none(results: Results, group: Sequence[Measurement]) -> list[dict[str, str]]:
    ceiling = next((taken for taken in group if isinstance(taken.row.run.kvstore, NoSync)), None)
    lines: list[dict[str, str]] = []
    rates: list[float] = []
    for every in group:
        beside = ceiling if ceiling is not every else None
        pair = compare.in_turn(every, beside) if beside else None
        found, taken = compare.compared(pair), pair[0] if pair else every
        lines.append(
            {
                "machine": results.name(taken.row),
                **cells(taken, "network", "devices", "batch a device"),
                "exchange": exchange_of(taken.row),
                **cells(taken, RATE),
                "of none": f"{found.ratio:.2f}" if found else "",
                "different?": str(found or "not in turn") if beside else "",
            }
        )
        rates.append(taken.rate.median)
    return [line for _, line in sorted(zip(rates, lines), key=lambda one: -one[0])]


def steps(results: Results) -> Section:
    """A step taken apart (`run --detail`): computation, exchange, waiting."""
    lines = []
    for record in results.records:
        step, run = record.detail, record.run
        if step is None or run.quick or not run.synchronises or isinstance(run.kvstore, NoSync):
            continue
        waiting = step.whole_step_seconds - step.independent_step_seconds - step.exchange_seconds
        lines.append(
            {
                "machine": results.bold(record.infrastructure),
                "network": network_label(run.model),
                "devices x batch": f"{run.devices} x {run.batch_per_device}",
                "exchange": run.kvstore_label,
                "whole step (ms)": rounded(step.whole_step_seconds * 1e3),
                "computation (ms)": rounded(step.independent_step_seconds * 1e3),
                "exchange (ms)": rounded(step.exchange_seconds * 1e3),
                "waiting (ms)": rounded(max(0.0, waiting) * 1e3),
                "bus (GB/s)": rounded(step.bus_bytes_per_second and step.bus_bytes_per_second / 1e9),
            }
        )
    about = (
        "Medians a step of a separate pass after the training (`--detail`): computation alone, the exchange alone, "
        "and waiting: what a whole step takes beyond both, which is mostly for the slower worker. Bus: n bytes x 2 "
        "(devices - 1) / devices / seconds of an exchange."
    )
    return Section("A step taken apart", (about, markdown(lines)))


def staleness(results: Results) -> Section:
    """How far workers were apart under a bound, what waiting for it cost, and what was reached."""
    lines = []
    for record, row in zip(results.records, results.rows):
        exchange, seen = record.run.kvstore, _steps_ahead(record)
        if record.outcome != COMPLETED or record.run.quick or not seen or not isinstance(exchange, SSP):
            continue
        lines.append(
            {
                "network": network_label(record.run.model),
                "bound": "none" if exchange.staleness is None else str(exchange.staleness),
                "one slowed by": f"{record.run.straggler:.0%}" if record.run.straggler else "",
                "samples/s": rounded(row.samples_per_second) or TOO_SHORT,
                "steps ahead, mean": f"{sum(ahead * n for ahead, n in seen.items()) / sum(seen.values()):.2f}",
                "most": str(max(seen)),
                "accuracy": "" if row.accuracy is None else f"{row.accuracy:.3f}",
                "machine": results.bold(record.infrastructure),
            }
        )
    about = (
        "Stale synchronous parallel (Ho et al. 2013): a worker waits where it is more than the bound ahead of the "
        "slowest. Steps ahead are counted whenever a worker goes on, over all workers; a line a take."
    )
    return Section("Bounded staleness", (about, markdown(lines)))


def _steps_ahead(record: Record) -> Counter[int]:
    seen: Counter[int] = Counter()
    for worker in record.workers:
        if worker.exchanged is not None:
            seen.update({int(steps): count for steps, count in worker.exchanged.staleness.items()})
    return seen
