"""How gradients travel: the ways to exchange them, against none, and what bounded staleness does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from poc.recipe import Independent, Stale
from poc.records.record import COMPLETED, Record
from poc.report import compare
from poc.report.measurements import NO_MATTER_FOR_SPEED, Measurement, same_machine
from poc.report.page import Results, Section
from poc.report.tables import devices_of, markdown, network_label, rate_of, rounded


def section(results: Results) -> Section:
    """Runs that differ in nothing else, and what a step of each spends on it."""
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for taken in results.speeds(lambda row: row.measured and row.run.exchanges):
        key = (*same_machine(taken.row), taken.row.run.key("exchange", *NO_MATTER_FOR_SPEED))
        groups.setdefault(key, []).append(taken)
    lines = [line for group in groups.values() if len(group) > 1 for line in _against_none(results, group)]
    if not lines:
        return Section("", ())
    about = (
        "Runs that differ in nothing else, fastest first. `independent` exchanges nothing: the ceiling. "
        f"{compare.VERDICT_RULE[0].upper()}{compare.VERDICT_RULE[1:]}; *too few* takes bear none."
    )
    return Section("Ways to exchange gradients", (about, markdown(lines)))


def _against_none(results: Results, group: Sequence[Measurement]) -> list[dict[str, str]]:
    ceiling = next((taken.rate for taken in group if isinstance(taken.row.run.exchange, Independent)), None)
    lines = []
    for taken in sorted(group, key=lambda taken: -taken.row.samples_per_second):
        row, rate = taken.row, taken.rate
        share = told = ""
        if ceiling and rate and not isinstance(row.run.exchange, Independent):
            found = compare.verdict(rate.values, ceiling.values)
            share, told = f"{found.ratio:.2f}", verdict_in_words(found)
        lines.append(
            {
                "machine": results.name(row),
                "network": network_label(row.network),
                "devices": devices_of(row),
                "batch a device": f"{row.batch_per_device}",
                "exchange": row.exchange.replace("last worker slowed by", "one slowed"),
                "samples/s (range, takes)": rate_of(taken),
                "of none": share,
                "different?": told,
            }
        )
    return lines


def verdict_in_words(found: compare.Verdict) -> str:
    """Yes, no or too few takes, with the interval of the ratio."""
    if found.differs is None:
        return "too few"
    return f"{'yes' if found.differs else 'no'} ({found.low:.2f}-{found.high:.2f})"


def steps(results: Results) -> Section:
    """A step taken apart (`run --detail`): computation, exchange, waiting."""
    lines = []
    for record in results.records:
        step, run = record.detail, record.run
        if step is None or run.quick or not run.exchanges or isinstance(run.exchange, Independent):
            continue
        waiting = step.whole_step_seconds - step.independent_step_seconds - step.exchange_seconds
        lines.append(
            {
                "machine": record.infrastructure,
                "network": network_label(run.model),
                "devices": f"{run.devices}",
                "exchange": run.exchange_label,
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
    return Section("A step taken apart", (about, markdown(lines)) if lines else ())


def staleness(results: Results) -> Section:
    """How far workers were apart under a bound, what waiting for it cost, and what was reached."""
    lines = []
    for record in results.records:
        exchange, seen = record.run.exchange, _steps_ahead(record)
        if record.outcome != COMPLETED or record.run.quick or not seen or not isinstance(exchange, Stale):
            continue
        rows = [row for row in results.full if row.run_id == record.run_id and row.started == record.started]
        lines.append(
            {
                "network": network_label(record.run.model),
                "bound": "none" if exchange.bound is None else str(exchange.bound),
                "one slowed by": f"{record.run.straggler:.0%}" if record.run.straggler else "",
                "samples/s": rounded(rows[0].samples_per_second) if rows else "",
                "steps ahead, mean": f"{sum(ahead * n for ahead, n in seen.items()) / sum(seen.values()):.2f}",
                "most": str(max(seen)),
                "accuracy": f"{record.evaluations[-1].accuracy:.3f}" if record.evaluations else "",
                "machine": record.infrastructure,
            }
        )
    about = (
        "Stale synchronous parallel (Ho et al. 2013): a worker waits where it is more than the bound ahead of the "
        "slowest. Steps ahead are counted whenever a worker goes on, over all workers; one take each."
    )
    return Section("Bounded staleness", (about, markdown(lines)) if lines else ())


def _steps_ahead(record: Record) -> Counter[int]:
    seen: Counter[int] = Counter()
    for worker in record.workers:
        if worker.exchanged is not None:
            seen.update({int(steps): count for steps, count in worker.exchanged.staleness.items()})
    return seen
