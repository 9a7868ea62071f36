"""Tables of speed-ups, exchanges and staleness. Pure functions that return Markdown, empty without data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from poc.recipe.exchanges import Independent, Stale
from poc.records.record import COMPLETED, Breakdown, Record
from poc.report import cells, compare
from poc.report.rows import main_study
from poc.studies.row import Row


def speedups(rows: Sequence[Row]) -> str:
    """Speed-ups and efficiencies of every measured series and of the main study's, both kinds side by side."""
    main = main_study(rows)
    chosen = [row for row in rows if row.measured or row.study == main]
    notes: list[str] = []
    lines = []
    above: Row | None = None
    for series in _in_order(compare.series(chosen)):
        # Series that differ in their exchange alone start from the same run, which is cells.shown once.
        start = () if series.alone[0] is above else (series.alone[0],)
        above = series.alone[0]
        for row in (*start, *series.rows):
            alone = series.alone
            throughput, wall = compare.by_throughput(alone, row), compare.by_wall(alone, row)
            epoch = compare.by_epoch_time(alone, row)
            n = row.devices
            lines.append(
                {
                    "infrastructure": cells.place_of(row),
                    "model": cells.network_of(row),
                    "scaling": _held(series),
                    "exchange": row.exchange if n > 1 else "",
                    **cells.columns(row, "devices total_batch samples_per_second"),
                    "speed-up by throughput": cells.ratio_cell(throughput),
                    "efficiency": cells.ratio_cell(compare.efficiency(throughput, n)),
                    "without synchronisation": cells.ratio_cell(compare.without_sync(alone, row)),
                    "speed-up by epoch time": cells.ratio_cell(epoch),
                    "speed-up by wall time": cells.ratio_cell(wall),
                    "efficiency by wall time": cells.ratio_cell(compare.efficiency(wall, n)),
                    "origin": row.origin,
                    "note": _series_note(series, row, notes),
                }
            )
    return "\n\n".join([cells.markdown(lines), *cells.footnotes(notes)]) if lines else ""


def _series_note(series: compare.Series, row: Row, notes: list[str]) -> str:
    words = []
    if row.flag:
        words.append(f"contradicts itself {cells.footnote(row, notes)}")
    elif any(base.flag for base in series.alone):
        footnotes = ", ".join(cells.footnote(base, notes) for base in series.alone if base.flag)
        words.append(f"its row on one device contradicts itself {footnotes}")
    if row.measured and row.devices > 1 and len(series.alone) == 1:
        ideal = compare.difference(cells.windows_estimate(row), cells.windows_estimate(series.alone[0], row.devices))
        words.append(f"against {row.devices} x one device: {cells.judged(ideal, '+.1f')}")
    if row.measured and row.devices > 1 and compare.by_wall(series.alone, row) is None:
        words.append("no speed-up by wall time: unequal work")
    return "; ".join(words)


def exchanges(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """Runs that differ only in how gradients travel, beside those of them that exchange none."""
    steps = {(record.infrastructure, record.run_id): record.detail for record in records}
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.measured and row.outcome == COMPLETED and row.run.exchanges and row.samples_per_second:
            groups.setdefault(compare.key(row, "exchange"), []).append(row)
    lines = []
    for members in groups.values():
        if len(members) < 2:
            continue
        ceiling = next((row for row in members if isinstance(row.run.exchange, Independent)), None)
        for row in sorted(members, key=lambda row: -row.samples_per_second):
            against = ""
            if ceiling is not None and row is not ceiling:
                against = cells.judged(
                    compare.difference(cells.windows_estimate(row), cells.windows_estimate(ceiling)), "+.1f"
                )
            share = None if ceiling is None else row.samples_per_second / ceiling.samples_per_second
            lines.append(
                {
                    "infrastructure": cells.place_of(row),
                    "model": cells.network_of(row),
                    **cells.columns(row, "batch_per_device"),
                    "devices": f"{row.devices} {cells.kind_of_device(row)}s",
                    **cells.columns(row, "learning_rate exchange samples_per_second spread windows"),
                    "of independent": cells.shown(share, ".3f"),
                    "against independent (samples/s)": against,
                    **_exposed(steps[row.infrastructure, row.run_id], travels=row is not ceiling),
                    "note": row.note,
                }
            )
    return cells.markdown(cells.aligned(lines))


def _exposed(step: Breakdown | None, *, travels: bool) -> cells.Cells:
    """What an exchange costs, of a step that was taken apart."""
    if step is None:
        return {}
    lines = {"sums right": cells.right(step.sums_right)}
    if not travels:
        return lines
    exposed = step.whole_step_seconds - step.independent_step_seconds
    return {
        "in pairs": _in_pairs(step),
        "exposed communication (ms a step)": f"{exposed * 1e3:.1f}",
        "exchange alone (ms)": f"{step.exchange_seconds * 1e3:.1f}",
        "bus bandwidth (GB/s)": cells.shown(cells.scaled(step.bus_bytes_per_second, 1e-9), ".3f"),
        **lines,
    }


def _in_pairs(step: Breakdown) -> str:
    """What a step without the exchange is of one with it, from windows that took turns, with spread and number."""
    if step.efficiency is None:  # of an earlier version, which kept the medians alone
        waited = step.synchronisation_seconds or 0.0
        return f"{(step.independent_step_seconds + waited) / step.whole_step_seconds:.3f}"
    return f"{step.efficiency:.3f} (spread {step.efficiency_spread:.3f}, n = {step.pairs})"


def staleness(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """Of runs whose workers' clocks were kept: how far they were apart, what waiting cost, and what was reached."""
    by_run = {(row.infrastructure, row.run_id): row for row in rows if row.measured}
    lines = []
    for record in records:
        run, row = record.run, by_run.get((record.infrastructure, record.run_id))
        told = [worker.exchanged for worker in record.workers if worker.exchanged and worker.exchanged.staleness]
        if not told or row is None or not isinstance(run.exchange, Stale):
            continue
        seen: Counter[int] = Counter()
        for exchanged in told:
            seen.update({int(steps): count for steps, count in exchanged.staleness.items()})
        waited = sum(exchanged.stale_wait_seconds for exchanged in told) / len(told)
        lines.append(
            {
                **cells.record_cells(record),
                "data": record.dataset,
                "bound": "none" if run.exchange.bound is None else str(run.exchange.bound),
                "last worker slowed by": f"{run.straggler:.0%}" if run.straggler else "",
                **cells.columns(row, "samples_per_second spread windows"),
                "steps ahead of the slowest, mean": f"{sum(k * n for k, n in seen.items()) / sum(seen.values()):.2f}",
                "most": str(max(seen)),
                "steps counted": str(sum(seen.values())),
                "waited for the bound (s a worker)": f"{waited:.1f}",
                "accuracy": cells.accuracy_of(row, "accuracy"),
                "wall (s)": f"{row.wall_seconds:.0f}",
            }
        )
    return cells.markdown(lines)


def reconciliation(rows: Sequence[Row]) -> str:
    """Each measured series: what lies between its two speed-ups, part by part, adding up."""
    lines = []
    measured = [row for row in rows if row.measured]
    for series in _in_order(compare.series(measured)):
        for row in series.rows:
            explained = compare.reconcile(series.alone, row)
            if explained is None:
                continue
            label = f"{cells.network_of(row)}, {_held(series)}, {row.devices} {cells.kind_of_device(row)}s"
            lines.append(
                {
                    "series": cells.joined(label, row.exchange, cells.place_of(row)),
                    "by throughput": f"{explained.by_throughput:.4f}",
                    **{
                        cells.PART_LABELS[part]: f"{round(-taken, 4) + 0.0:+.4f}"
                        for part, taken in explained.parts.items()
                    },
                    "by wall time": f"{explained.by_wall:.4f}",
                }
            )
    return cells.markdown(lines, keep=("series", "by throughput", *cells.PART_LABELS.values(), "by wall time"))


def with_and_without_sync(rows: Sequence[Row]) -> str:
    """The Theano study's seconds for 5,120 images and both of its speed-ups, beside measured runs taken apart."""
    lines = []
    for row in rows:
        if row.train_seconds_per_5120 is None:
            continue
        n, with_sync, without = row.devices, row.speedup_throughput, row.speedup_without_sync
        lines.append(
            {
                "infrastructure": cells.infrastructure_of(row),
                "model": cells.network_of(row),
                **cells.columns(row, "batch_per_device devices exchange"),
                "train (s)": cells.cell(row, "train_seconds_per_5120"),
                "communication (s)": cells.cell(row, "communication_seconds_per_5120"),
                "synchronisation (s)": cells.cell(row, "sync_seconds_per_5120"),
                "wait for data (s)": cells.cell(row, "data_seconds_per_5120"),
                "speed-up without sync": cells.ratio_cell(without),
                "efficiency without sync": cells.ratio_cell(compare.efficiency(without, n)),
                "speed-up with sync": cells.ratio_cell(with_sync),
                "efficiency with sync": cells.ratio_cell(compare.efficiency(with_sync, n)),
                **cells.columns(row, "origin printed"),
            }
        )
    return cells.markdown(lines)


def _held(series: compare.Series) -> str:
    return f"{series.kind}, {series.batch} {'a device' if series.kind == compare.WEAK else 'in all'}"


def _in_order(several: Iterable[compare.Series]) -> list[compare.Series]:
    def place(series: compare.Series) -> tuple[Any, ...]:
        first = series.alone[0]
        published = not first.measured
        return (*cells.network_order(first), published, cells.infrastructure_of(first), series.kind, series.batch)

    return sorted(several, key=place)
