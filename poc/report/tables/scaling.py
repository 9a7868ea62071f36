"""Tables of speed-ups, exchanges and staleness. Pure functions that return Markdown, empty without data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from poc.records.row import MEASURED, PUBLISHED, Row
from poc.report import compare
from poc.report.cells import (
    PART_LABELS,
    accuracy_of,
    cores_of,
    figure_of,
    footnote,
    footnotes,
    infrastructure_of,
    judged,
    kind_of_device,
    markdown,
    network_of,
    network_order,
    ratio_cell,
    right,
    run_label,
    scaled,
    shown,
    windows_estimate,
)
from poc.report.rows import Record, main_study, ordered


def speedups(rows: Sequence[Row]) -> str:
    """Speed-ups and efficiencies of every measured series and of the main study's, both kinds side by side."""
    chosen = [row for row in rows if row.origin == MEASURED or row.study == main_study(rows)]
    notes: list[str] = []
    cells = []
    above: Row | None = None
    for series in _in_order(compare.series(chosen)):
        # Series that differ in their exchange alone start from the same run, which is shown once.
        start = () if series.alone[0] is above else (series.alone[0],)
        above = series.alone[0]
        for row in (*start, *series.rows):
            alone = series.alone
            throughput, wall = compare.by_throughput(alone, row), compare.by_wall(alone, row)
            epoch = compare.by_epoch_time(alone, row)
            n = row.devices
            cells.append(
                {
                    "infrastructure": ", ".join(filter(None, [infrastructure_of(row), cores_of(row)])),
                    "model": network_of(row),
                    "scaling": _held(series),
                    "exchange": row.exchange if n > 1 else "",
                    "devices": str(n),
                    "total batch": figure_of(row, "total_batch", 0),
                    "samples/s": figure_of(row, "samples_per_second", 1),
                    "speed-up by throughput": ratio_cell(throughput),
                    "efficiency": ratio_cell(compare.efficiency(throughput, n)),
                    "without synchronisation": ratio_cell(compare.without_sync(alone, row)),
                    "speed-up by epoch time": ratio_cell(epoch),
                    "speed-up by wall time": ratio_cell(wall),
                    "efficiency by wall time": ratio_cell(compare.efficiency(wall, n)),
                    "origin": row.origin,
                    "note": _series_note(series, row, notes),
                }
            )
    return "\n\n".join([markdown(cells), *footnotes(notes)]) if cells else ""


def _series_note(series: compare.Series, row: Row, notes: list[str]) -> str:
    words = []
    if row.flag:
        words.append(f"contradicts itself {footnote(row, notes)}")
    elif any(one.flag for one in series.alone):
        found = ", ".join(footnote(one, notes) for one in series.alone if one.flag)
        words.append(f"its row on one device contradicts itself {found}")
    if row.origin == MEASURED and row.devices > 1 and len(series.alone) == 1:
        ideal = compare.difference(windows_estimate(row), windows_estimate(series.alone[0], row.devices))
        words.append(f"against {row.devices} x one device: {judged(ideal, '+.1f')}")
    if row.origin == MEASURED and row.devices > 1 and compare.by_wall(series.alone, row) is None:
        words.append("no speed-up by wall time: unequal work")
    return "; ".join(words)


def exchanges(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """Runs that differ only in how gradients travel, beside those of them that exchange none."""
    took_apart: dict[tuple[str, str], Record] = {
        (one["infrastructure"], one["run_id"]): one["detail"] for one in records if one.get("detail")
    }
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        several = row.origin == MEASURED and row.outcome == "completed" and row.devices > 1
        if several and not row.virtual and row.samples_per_second is not None:
            names = (
                "infrastructure",
                "hardware",
                "network",
                "dataset",
                "batch_per_device",
                "devices",
                "workers",
                "quick",
                "framework",
            )
            groups.setdefault(tuple(str(getattr(row, name)) for name in (*names, "cores_per_worker")), []).append(row)
    cells = []
    for members in groups.values():
        if len({row.exchange for row in members}) < 2:
            continue
        ceiling = next((row for row in members if row.exchange == "independent"), None)
        for row in sorted(members, key=lambda row: -row.samples_per_second):
            found = took_apart.get((row.infrastructure, row.run_id), {})
            exposed = found["whole_step_seconds"] - found["independent_step_seconds"] if found else None
            against = ""
            if ceiling is not None and row is not ceiling:
                against = judged(compare.difference(windows_estimate(row), windows_estimate(ceiling)), "+.1f")
            share = None if ceiling is None else row.samples_per_second / ceiling.samples_per_second
            moves = found and row.exchange != "independent"
            cells.append(
                {
                    "infrastructure": ", ".join(filter(None, [infrastructure_of(row), cores_of(row)])),
                    "model": network_of(row),
                    "batch per device": figure_of(row, "batch_per_device", 0),
                    "devices": f"{row.devices} {kind_of_device(row)}s",
                    "exchange": row.exchange,
                    "samples/s": figure_of(row, "samples_per_second", 1),
                    "spread": figure_of(row, "spread", 1),
                    "windows": figure_of(row, "windows", 0),
                    "of independent": shown(share, ".3f"),
                    "against independent (samples/s)": against,
                    "in pairs": _in_pairs(found) if moves else "",
                    "exposed communication (ms a step)": shown(scaled(exposed, 1e3), ".1f") if moves else "",
                    "exchange alone (ms)": f"{found['exchange_seconds'] * 1e3:.1f}" if moves else "",
                    "bus bandwidth (GB/s)": shown(scaled(found.get("bus_bytes_per_second"), 1e-9), ".3f")
                    if moves
                    else "",
                    "sums right": right(found.get("sums_right")),
                    "note": row.note,
                }
            )
    return markdown(cells)


def _in_pairs(found: Mapping[str, Any]) -> str:
    """What a step without the exchange is of one with it, from windows that took turns, with spread and number."""
    if found.get("efficiency") is None:  # of an earlier version, which kept the medians alone
        waited = found["synchronisation_seconds"] or 0.0
        return f"{(found['independent_step_seconds'] + waited) / found['whole_step_seconds']:.3f}"
    return f"{found['efficiency']:.3f} (spread {found['efficiency_spread']:.3f}, n = {found['pairs']})"


def staleness(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """Of runs whose workers' clocks were kept: how far they were apart, what waiting cost, and what was reached."""
    by_run = {(row.infrastructure, row.run_id): row for row in rows if row.origin == MEASURED}
    cells = []
    for record in ordered(records):
        told = [
            one["exchanged"] for one in record.get("workers") or [] if (one.get("exchanged") or {}).get("staleness")
        ]
        found = by_run.get((record["infrastructure"], record["run_id"]))
        if not told or found is None:
            continue
        seen: Counter[int] = Counter()
        for one in told:
            seen.update({int(steps): count for steps, count in one["staleness"].items()})
        waited = sum(one["stale_wait_seconds"] for one in told) / len(told)
        run = record["run"]
        cells.append(
            {
                "run": run_label(run),
                "id": record["run_id"],
                "infrastructure": record["infrastructure"],
                "data": record["dataset"],
                "bound": "none" if run["staleness"] is None else str(run["staleness"]),
                "last worker slowed by": f"{run['slowed']:.0%}" if run["slowed"] else "",
                "samples/s": figure_of(found, "samples_per_second", 1),
                "spread": figure_of(found, "spread", 1),
                "windows": figure_of(found, "windows", 0),
                "steps ahead of the slowest, mean": f"{sum(k * n for k, n in seen.items()) / sum(seen.values()):.2f}",
                "most": str(max(seen)),
                "steps counted": str(sum(seen.values())),
                "waited for the bound (s a worker)": f"{waited:.1f}",
                "accuracy": accuracy_of(found, "accuracy"),
                "wall (s)": figure_of(found, "wall_seconds", 0),
            }
        )
    return markdown(cells)


def reconciliation(rows: Sequence[Row]) -> str:
    """Each measured series: what lies between its two speed-ups, part by part, adding up."""
    cells = []
    measured = [row for row in rows if row.origin == MEASURED]
    for series in _in_order(compare.series(measured)):
        for row in series.rows:
            found = compare.reconcile(series.alone, row)
            if found is None:
                continue
            label = f"{network_of(row)}, {_held(series)}, {row.devices} {kind_of_device(row)}s"
            cells.append(
                {
                    "series": ", ".join(
                        filter(None, [label, str(row.exchange), infrastructure_of(row), cores_of(row)])
                    ),
                    "by throughput": f"{found.by_throughput:.4f}",
                    **{PART_LABELS[part]: f"{round(-taken, 4) + 0.0:+.4f}" for part, taken in found.parts.items()},
                    "by wall time": f"{found.by_wall:.4f}",
                }
            )
    return markdown(cells, keep=("series", "by throughput", *PART_LABELS.values(), "by wall time"))


def with_and_without_sync(rows: Sequence[Row]) -> str:
    """The Theano study's seconds for 5,120 images and both of its speed-ups, beside measured runs taken apart."""
    chosen = [row for row in rows if row.train_seconds_per_5120 is not None]
    cells = []
    for row in chosen:
        n, with_sync, without = row.devices, row.speedup_throughput, row.speedup_without_sync
        cells.append(
            {
                "infrastructure": infrastructure_of(row),
                "model": network_of(row),
                "batch per device": figure_of(row, "batch_per_device", 0),
                "devices": str(n),
                "exchange": row.exchange,
                "train (s)": figure_of(row, "train_seconds_per_5120", 2),
                "communication (s)": figure_of(row, "communication_seconds_per_5120", 2),
                "synchronisation (s)": figure_of(row, "sync_seconds_per_5120", 2),
                "wait for data (s)": figure_of(row, "data_seconds_per_5120", 2),
                "speed-up without sync": ratio_cell(without),
                "efficiency without sync": ratio_cell(compare.efficiency(without, n)),
                "speed-up with sync": ratio_cell(with_sync),
                "efficiency with sync": ratio_cell(compare.efficiency(with_sync, n)),
                "origin": row.origin,
                "the source's text": row.printed,
            }
        )
    return markdown(cells)


def _held(series: compare.Series) -> str:
    return f"{series.kind}, {series.batch} {'a device' if series.kind == compare.WEAK else 'in all'}"


def _in_order(found: Iterable[compare.Series]) -> list[compare.Series]:
    def place(series: compare.Series) -> tuple[Any, ...]:
        first = series.alone[0]
        return (
            *network_order(first),
            first.origin == PUBLISHED,
            infrastructure_of(first),
            series.kind,
            series.batch,
        )

    return sorted(found, key=place)
