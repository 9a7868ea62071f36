"""Tables of single runs: time, convergence, hardware, cost, takes and failures; empty without data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from poc.records import timing
from poc.records.row import MEASURED, Row
from poc.report.cells import (
    PART_LABELS,
    accuracy_of,
    aligned,
    figure_of,
    likeness,
    markdown,
    network_label,
    right,
    run_cells,
    run_label,
    scaled,
    shown,
)
from poc.report.rows import Record, ordered, workers

THRESHOLDS = (0.5, 0.6, 0.7, 0.75, 0.8)
"""Accuracies for which the time to reach them is shown."""


def split(rows: Sequence[Row]) -> str:
    """The wall time of every measured run that ended, in parts that add up to it."""
    cells = []
    for row in sorted(rows, key=likeness):
        if row.origin != MEASURED or row.wall_seconds is None or row.rest_seconds is None:
            continue
        parts = {part: getattr(row, f"{part}_seconds") for part in timing.PARTS}
        cells.append(
            {
                **run_cells(row),
                **{f"{PART_LABELS[part]} (s)": f"{seconds:.1f}" for part, seconds in parts.items()},
                "sum (s)": f"{math.fsum(parts.values()):.1f}",
                "wall (s)": f"{row.wall_seconds:.1f}",
                "training, of wall": f"{parts['train'] / row.wall_seconds:.1%}",
                "note": row.note,
            }
        )
    return markdown(cells)


def worker_split(records: Sequence[Record]) -> str:
    """The same for each worker of the runs that had several."""
    found = workers(records)
    runs = {record["run_id"]: record["run"] for record in records}
    cells = []
    for one in found:
        run = runs[one["run_id"]]
        cells.append(
            {
                "run": f"{network_label(run['model'])}, {run['batch_per_device']} x {run['devices']}",
                "id": one["run_id"],
                "infrastructure": one["infrastructure"],
                "worker": str(one["worker"]),
                **{f"{PART_LABELS[part]} (s)": f"{one[f'{part}_seconds']:.1f}" for part in timing.PARTS},
                "wall (s)": f"{one['wall_seconds']:.1f}",
            }
        )
    return markdown(cells)


def convergence(records: Sequence[Record]) -> str:
    """Accuracy against epochs, and the wall time (and cost) to reach round accuracies."""
    chosen = [record for record in ordered(records) if len(record["evaluations"]) > 1]
    cells = []
    for record in chosen:
        run, evaluations = record["run"], record["evaluations"]
        step = -(-len(evaluations) // 12)
        price = record.get("price_per_hour")
        reached = {}
        for threshold in THRESHOLDS:
            at = next((one["at"] for one in evaluations if one["accuracy"] >= threshold), None)
            reached[f"min to {threshold:g}"] = "" if at is None else f"{at / 60:.1f}"
            if price is not None:
                reached[f"$ to {threshold:g}"] = "" if at is None else f"{at / 3600 * price:.3f}"
        cells.append(
            {
                "run": run_label(run),
                "id": record["run_id"],
                "infrastructure": record["infrastructure"],
                "data": record["dataset"],
                **{f"epoch {one['epoch']}": f"{one['accuracy']:.4f}" for one in evaluations[step - 1 :: step]},
                **reached,
            }
        )
    return markdown(aligned(cells))


def hardware(records: Sequence[Record]) -> str:
    """What the monitor saw of each device, averaged over the run; empty where a machine has no such counter."""
    cells = []
    for record in ordered(records):
        samples = sum(window["samples"] for window in record["windows"])
        devices = (record.get("monitor") or {}).get("devices", [])
        drawn = [one.get("joules") for one in devices]
        for one in devices:
            joules = None if None in drawn or not samples else sum(drawn) / samples
            cells.append(
                {
                    "run": run_label(record["run"]),
                    "id": record["run_id"],
                    "infrastructure": record["infrastructure"],
                    "device": str(one["device"]),
                    "utilisation": shown(one.get("utilisation"), ".0%"),
                    "memory, peak (GiB)": shown(scaled(one.get("memory_peak_bytes"), 2**-30), ".2f"),
                    "SM clock (MHz)": shown(one.get("sm_clock_mhz"), ".0f"),
                    "memory clock (MHz)": shown(one.get("memory_clock_mhz"), ".0f"),
                    "core clock (MHz)": shown(one.get("core_clock_mhz"), ".0f"),
                    "power (W)": shown(one.get("power_watts"), ".0f"),
                    "temperature (°C)": shown(one.get("temperature_celsius"), ".0f"),
                    "joules a sample, all devices": shown(joules, ".4f"),
                    "note": f"lost: {one['lost']}" if one.get("lost") else "",
                }
            )
    return markdown(cells)


def memory(rows: Sequence[Row]) -> str:
    """Memory at its peak, and how many cores other processes kept busy, for every measured run that says so."""
    cells = []
    for row in sorted(rows, key=likeness):
        if row.origin != MEASURED or row.host_peak_bytes is None:
            continue
        cells.append(
            {
                **run_cells(row),
                "host memory, peak (GiB)": f"{row.host_peak_bytes / 2**30:.2f}",
                "device memory, peak (GiB)": shown(scaled(row.device_peak_bytes, 2**-30), ".2f"),
                "cores busy with other processes": shown(row.others_busy_cores, ".2f"),
                "utilisation": shown(row.utilisation, ".0%"),
                "joules a sample": shown(row.joules_per_sample, ".4f"),
            }
        )
    return markdown(cells)


def detail(records: Sequence[Record]) -> str:
    """Computation and communication apart, for the records that have that pass: medians a step."""
    cells = []
    for record in ordered(records):
        found = record.get("detail")
        if not found:
            continue
        whole, alone, exchange = (found[f"{name}_seconds"] for name in ("whole_step", "independent_step", "exchange"))
        exposed = whole - alone
        single = record["run"]["devices"] == 1
        cells.append(
            {
                "run": run_label(record["run"]),
                "id": record["run_id"],
                "infrastructure": record["infrastructure"],
                "steps": str(found["steps"]),
                "whole step (ms)": f"{whole * 1e3:.1f}",
                "computation alone (ms)": f"{alone * 1e3:.1f}",
                "exchange alone (ms)": "" if single else f"{exchange * 1e3:.1f}",
                "exposed communication (ms)": "" if single else f"{exposed * 1e3:.1f}",
                "hidden communication (ms)": "" if single else f"{max(0.0, exchange - max(0.0, exposed)) * 1e3:.1f}",
                "waiting for slower workers (ms)": shown(scaled(found["synchronisation_seconds"], 1e3), ".1f"),
                "waiting for data (ms)": shown(scaled(found["data_seconds"], 1e3), ".2f"),
                "exchanged (MB)": "" if single else f"{found['exchange_bytes'] / 1e6:.2f}",
                "bus bandwidth (GB/s)": shown(scaled(found["bus_bytes_per_second"], 1e-9), ".3f"),
                "sums right": right(found["sums_right"]),
            }
        )
    return markdown(cells)


def costs(records: Sequence[Record]) -> str:
    """Dollars an epoch, for records with a price."""
    cells = []
    for record in ordered(records):
        price, run = record.get("price_per_hour"), record["run"]
        seconds = sum(window["seconds"] for window in record["windows"])
        steps = sum(window["steps"] for window in record["windows"])
        if price is None or not steps:
            continue
        cells.append(
            {
                "run": run_label(run),
                "id": record["run_id"],
                "infrastructure": record["infrastructure"],
                "price ($/h)": f"{price:g}",
                "$ an epoch": f"{seconds / steps * run['steps_per_epoch'] / 3600 * price:.4f}",
                "$ in all": shown(scaled(record["wall"], price / 3600), ".4f"),
            }
        )
    return markdown(cells)


def machines(records: Sequence[Record]) -> str:
    """Each machine and set of versions on which runs were measured, with the commits and days of these runs."""
    found: dict[tuple[str, ...], list[Record]] = {}
    measured = [record for record in ordered(records) if record["outcome"] != "skipped"]
    for record in measured:
        key = (
            record["infrastructure"],
            repr(sorted(_hardware(record).items())),
            repr(sorted(record["versions"].items())),
        )
        found.setdefault(key, []).append(record)
    cells = []
    for members in found.values():
        machine, versions = members[0]["hardware"], members[0]["versions"]
        days = sorted({record["started"][:10] for record in members})
        cells.append(
            {
                "infrastructure": members[0]["infrastructure"],
                "CPU": machine["cpu"],
                "cores": str(machine["cores"]),
                "memory (GiB)": f"{machine['memory_bytes'] / 2**30:.0f}",
                "GPUs": ", ".join(f"{count}x {name}" for name, count in _cards(machine).items()),
                "driver": machine.get("driver") or "",
                "versions": ", ".join(f"{name} {versions[name]}" for name in sorted(versions)),
                "commit": ", ".join(sorted({record["commit"] for record in members} - {""})),
                "runs": str(len(members)),
                "date": " to ".join(dict.fromkeys((days[0], days[-1]))),
            }
        )
    return markdown(cells)


def _hardware(record: Record) -> dict[str, str]:
    """What of a machine does not vary from one look at it to the next."""
    machine = record["hardware"]
    kept = ("cpu", "cores", "memory_bytes", "driver")
    return {**{name: str(machine.get(name)) for name in kept}, "gpus": str(_cards(machine))}


def _cards(machine: dict[str, Any]) -> dict[str, int]:
    return dict(Counter(gpu["name"] for gpu in machine["gpus"]))


def takes(rows: Sequence[Row]) -> str:
    """Every take of the runs that were started more than once on a machine, those that superseded others included."""
    tried = [row for row in rows if row.origin == MEASURED and row.outcome != "skipped"]
    again = {(row.infrastructure, row.computes) for row in tried if row.superseded}
    cells = [
        {
            **run_cells(row),
            "started (UTC)": row.started[:16].replace("T", " "),
            "outcome": row.outcome,
            "samples/s": figure_of(row, "samples_per_second", 1),
            "spread": figure_of(row, "spread", 1),
            "windows": figure_of(row, "windows", 0),
            "accuracy": accuracy_of(row, "accuracy"),
            "mean of last 4 epochs": accuracy_of(row, "accuracy_last4"),
            "shown above": "no" if row.superseded else "yes",
            "note": row.note,
        }
        for row in tried
        if (row.infrastructure, row.computes) in again
    ]
    return markdown(cells)


def not_run(records: Sequence[Record]) -> str:
    """Runs that were skipped, failed or diverged, those of one reason in one line."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in ordered(records):
        if record["outcome"] != "completed":
            key = (record["infrastructure"], record["outcome"], record["reason"])
            groups.setdefault(key, []).append(record)
    cells = []
    for (infrastructure, outcome, reason), members in sorted(groups.items()):
        runs = [record["run"] for record in members]
        cells.append(
            {
                "infrastructure": infrastructure,
                "outcome": outcome,
                "reason": reason,
                "runs": str(len(members)),
                "networks": ", ".join(dict.fromkeys(network_label(run["model"]) for run in runs)),
                "batch per device": _listed(run["batch_per_device"] for run in runs),
                "devices": _listed(run["devices"] for run in runs),
                "learning rate": _listed(run["learning_rate"] for run in runs),
                "recipes": ", ".join(sorted({run["recipe"] for run in runs})),
            }
        )
    return markdown(cells)


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in sorted(set(values)))
