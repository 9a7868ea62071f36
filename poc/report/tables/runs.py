"""Tables of single runs: time, convergence, hardware, cost, takes and failures; empty without data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from poc.records import timing
from poc.records.record import COMPLETED, SKIPPED, Record
from poc.report import cells
from poc.report.rows import joules_per_sample
from poc.run import Run
from poc.studies.row import Row

THRESHOLDS = (0.5, 0.6, 0.7, 0.75, 0.8)
"""Accuracies for which the time to reach them is shown."""


def split(rows: Sequence[Row]) -> str:
    """The wall time of every measured run that ended, in parts that add up to it."""
    lines = []
    for row in sorted(rows, key=cells.likeness):
        if not row.measured or row.wall_seconds is None or row.rest_seconds is None:
            continue
        parts = {part: getattr(row, f"{part}_seconds") for part in timing.PARTS}
        lines.append(
            {
                **cells.run_cells(row),
                **{f"{cells.PART_LABELS[part]} (s)": f"{seconds:.1f}" for part, seconds in parts.items()},
                "sum (s)": f"{math.fsum(parts.values()):.1f}",
                "wall (s)": f"{row.wall_seconds:.1f}",
                "training, of wall": f"{parts['train'] / row.wall_seconds:.1%}",
                "note": row.note,
            }
        )
    return cells.markdown(lines)


def worker_split(records: Sequence[Record]) -> str:
    """The same for each worker of the runs that had several; only those that told of their end."""
    lines = []
    for record in records:
        for worker in record.workers:
            if worker.wall is None:
                continue
            run, seconds = record.run, timing.split(worker.wall, worker.parts, worker.windows)
            lines.append(
                {
                    **cells.record_cells(record),
                    "run": f"{cells.network_label(run.model)}, {run.batch_per_device} x {run.devices}",
                    "worker": str(worker.worker),
                    **{f"{cells.PART_LABELS[part]} (s)": f"{seconds[part]:.1f}" for part in timing.PARTS},
                    "wall (s)": f"{worker.wall:.1f}",
                }
            )
    return cells.markdown(lines)


def convergence(records: Sequence[Record]) -> str:
    """Accuracy against epochs, and the wall time (and cost) to reach round accuracies."""
    lines = []
    for record in records:
        evaluations, price = record.evaluations, record.price_per_hour
        if len(evaluations) < 2:
            continue
        step = -(-len(evaluations) // 12)
        reached = {}
        for threshold in THRESHOLDS:
            at = next((evaluation.at for evaluation in evaluations if evaluation.accuracy >= threshold), None)
            reached[f"min to {threshold:g}"] = cells.shown(cells.scaled(at, 1 / 60), ".1f")
            if price is not None:
                reached[f"$ to {threshold:g}"] = cells.shown(cells.scaled(at, price / 3600), ".3f")
        lines.append(
            {
                **cells.record_cells(record),
                "data": record.dataset,
                **{
                    f"epoch {evaluation.epoch}": f"{evaluation.accuracy:.4f}"
                    for evaluation in evaluations[step - 1 :: step]
                },
                **reached,
            }
        )
    return cells.markdown(cells.aligned(lines))


def hardware(records: Sequence[Record]) -> str:
    """What the monitor saw of each device, averaged over the run; empty where a machine has no such counter."""
    return cells.markdown(
        [
            {
                **cells.record_cells(record),
                "device": device.device,
                "utilisation": cells.shown(device.utilisation, ".0%"),
                "memory, peak (GiB)": cells.shown(cells.scaled(device.memory_peak_bytes, 2**-30), ".2f"),
                "SM clock (MHz)": cells.shown(device.sm_clock_mhz, ".0f"),
                "memory clock (MHz)": cells.shown(device.memory_clock_mhz, ".0f"),
                "core clock (MHz)": cells.shown(device.core_clock_mhz, ".0f"),
                "power (W)": cells.shown(device.power_watts, ".0f"),
                "temperature (°C)": cells.shown(device.temperature_celsius, ".0f"),
                "joules a sample, all devices": cells.shown(joules_per_sample(record), ".4f"),
                "note": f"lost: {device.lost}" if device.lost else "",
            }
            for record in records
            if record.monitor is not None
            for device in record.monitor.devices
        ]
    )


def memory(rows: Sequence[Row]) -> str:
    """Memory at its peak, and how many cores other processes kept busy, for every measured run that says so."""
    return cells.markdown(
        [
            {
                **cells.run_cells(row),
                "host memory, peak (GiB)": f"{row.host_peak_bytes / 2**30:.2f}",
                "device memory, peak (GiB)": cells.shown(cells.scaled(row.device_peak_bytes, 2**-30), ".2f"),
                "cores busy with other processes": cells.shown(row.others_busy_cores, ".2f"),
                "utilisation": cells.shown(row.utilisation, ".0%"),
                "joules a sample": cells.shown(row.joules_per_sample, ".4f"),
            }
            for row in sorted(rows, key=cells.likeness)
            if row.host_peak_bytes is not None
        ]
    )


def detail(records: Sequence[Record]) -> str:
    """Computation and communication apart, for the records that have that pass: medians a step."""
    lines = []
    for record in records:
        step = record.detail
        if step is None:
            continue
        several = record.run.devices > 1
        exposed = step.whole_step_seconds - step.independent_step_seconds
        travels = {
            "exchange alone (ms)": f"{step.exchange_seconds * 1e3:.1f}",
            "exposed communication (ms)": f"{exposed * 1e3:.1f}",
            "hidden communication (ms)": f"{max(0.0, step.exchange_seconds - max(0.0, exposed)) * 1e3:.1f}",
        }
        lines.append(
            {
                **cells.record_cells(record),
                "steps": str(step.steps),
                "whole step (ms)": f"{step.whole_step_seconds * 1e3:.1f}",
                "computation alone (ms)": f"{step.independent_step_seconds * 1e3:.1f}",
                **{title: text if several else "" for title, text in travels.items()},
                "waiting for slower workers (ms)": cells.shown(cells.scaled(step.synchronisation_seconds, 1e3), ".1f"),
                "waiting for data (ms)": cells.shown(cells.scaled(step.data_seconds, 1e3), ".2f"),
                "exchanged (MB)": f"{step.exchange_bytes / 1e6:.2f}" if several else "",
                "bus bandwidth (GB/s)": cells.shown(cells.scaled(step.bus_bytes_per_second, 1e-9), ".3f"),
                "sums right": cells.right(step.sums_right),
            }
        )
    return cells.markdown(lines)


def costs(records: Sequence[Record]) -> str:
    """Dollars an epoch, for records with a price."""
    lines = []
    for record in records:
        price = record.price_per_hour
        seconds = sum(window.seconds for window in record.windows)
        steps = sum(window.steps for window in record.windows)
        if price is None or not steps:
            continue
        lines.append(
            {
                **cells.record_cells(record),
                "price ($/h)": f"{price:g}",
                "$ an epoch": f"{seconds / steps * record.run.steps_per_epoch / 3600 * price:.4f}",
                "$ in all": cells.shown(cells.scaled(record.wall, price / 3600), ".4f"),
            }
        )
    return cells.markdown(lines)


def machines(records: Sequence[Record]) -> str:
    """Each machine and set of versions on which runs were measured, with the commits and days of these runs."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        if record.outcome != SKIPPED:
            machine = record.hardware
            cards = tuple(Counter(gpu.name for gpu in machine.gpus).items())
            # What does not vary from one look at a machine to the next.
            same = (record.infrastructure, machine.cpu, machine.cores, machine.memory_bytes, machine.driver, cards)
            groups.setdefault((*same, tuple(sorted(record.versions.items()))), []).append(record)
    lines = []
    for (infrastructure, cpu, cores, memory_bytes, driver, cards, versions), members in groups.items():
        days = sorted({record.started[:10] for record in members})
        lines.append(
            {
                "infrastructure": infrastructure,
                "CPU": cpu,
                "cores": str(cores),
                "memory (GiB)": f"{memory_bytes / 2**30:.0f}",
                "GPUs": ", ".join(f"{count}x {name}" for name, count in cards),
                "driver": driver,
                "versions": ", ".join(f"{name} {version}" for name, version in versions),
                "commit": ", ".join(sorted({record.commit for record in members} - {""})),
                "runs": str(len(members)),
                "date": " to ".join(dict.fromkeys((days[0], days[-1]))),
            }
        )
    return cells.markdown(lines)


def takes(rows: Sequence[Row]) -> str:
    """Every take of the runs that were started more than once on a machine, those that superseded others included."""
    tried = [row for row in rows if row.measured and row.outcome != SKIPPED]
    again = {(row.infrastructure, row.computes) for row in tried if row.superseded}
    lines = [
        {
            **cells.run_cells(row),
            "started (UTC)": row.started[:16].replace("T", " "),
            **cells.columns(row, "outcome samples_per_second spread windows"),
            "accuracy": cells.accuracy_of(row, "accuracy"),
            "mean of last 4 epochs": cells.accuracy_of(row, "accuracy_last4"),
            "shown above": "no" if row.superseded else "yes",
            "note": row.note,
        }
        for row in tried
        if (row.infrastructure, row.computes) in again
    ]
    return cells.markdown(lines)


def not_run(records: Sequence[Record]) -> str:
    """Runs that were skipped, failed or diverged, those of one reason in one line."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for record in records:
        if record.outcome != COMPLETED:
            groups.setdefault((record.infrastructure, record.outcome, record.reason), []).append(record.run)
    return cells.markdown(
        [
            {
                "infrastructure": infrastructure,
                "outcome": outcome,
                "reason": reason,
                "runs": str(len(runs)),
                "networks": ", ".join(dict.fromkeys(cells.network_label(run.model) for run in runs)),
                "batch per device": _listed(run.batch_per_device for run in runs),
                "devices": _listed(run.devices for run in runs),
                "learning rate": _listed(run.learning_rate for run in runs),
                "recipes": ", ".join(sorted({run.recipe for run in runs})),
            }
            for (infrastructure, outcome, reason), runs in sorted(groups.items())
        ]
    )


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in sorted(set(values)))
