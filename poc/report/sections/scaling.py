"""Weak scaling: samples/s on more and more devices at a fixed batch per device."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from poc.records.row import MEASURED, WEAK
from poc.report import chart, markdown, repeats
from poc.report.page import Block, Figure, figure, section
from poc.report.results import REFERENCE_BATCH, Results, Subject, preferred
from poc.report.table import BURST

_MOST_COUNTS = 4


def series(results: Results, rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the series among settings of one model, framework and precision, by batch per device.

    A series is a setting for each number of devices, one device among them, with its `speedup` and the `pairs` behind
    that: repeats on the side with fewer. Of each batch the length class that reaches most devices counts: bursts before
    whole trainings, quick runs last.
    """
    found = []
    for _, same_batch in rows[~rows.emulated].groupby("batch_per_device"):
        classes = [_series(results, group) for _, group in same_batch.groupby(["quick", "length"])]
        classes = [made for made in classes if len(made) > 1]
        found += sorted(classes, key=lambda made: (made.quick[0], -made.devices.max(), made.length[0] != BURST))[:1]
    return found


def _series(results: Results, rows: pd.DataFrame) -> pd.DataFrame:
    several = rows[(rows.devices > 1) & ((rows.origin == MEASURED) | (rows.scaling == WEAK))]
    alone = rows[rows.devices == 1]
    if len(several) and several.cores_per_worker.notna().any():
        alone = alone[alone.cores_per_worker == several.cores_per_worker.min()]
    one = preferred(alone)
    if one is None:
        return rows.head(0)
    chosen = [{**one, "speedup": 1.0, "pairs": 1}]
    for _, group in several.groupby("devices"):
        row = preferred(group)
        if row is not None and (ratio := _speedup(results, one, row)):
            chosen.append({**row, "speedup": ratio[0], "pairs": ratio[1]})
    return pd.DataFrame(chosen)


def _speedup(results: Results, one: Any, several: Any) -> tuple[float, int] | None:
    """Return the ratio of medians and the number of repeats on the side with fewer; None if not interleaved."""
    if several.origin != MEASURED:
        return None if pd.isna(several.speedup_throughput) else (several.speedup_throughput, 1)
    table = results.table
    sides = repeats.pair(*(table[table.setting == row.setting] for row in (several, one)))
    if not all(map(len, sides)):
        return None
    many, few = (side.samples_per_second.median() for side in sides)
    return many / few, min(map(len, sides))


def blocks(results: Results, subject: Subject) -> list[Block]:
    """Return the table and the figure of a subject: all machines that were measured, then the published ones."""
    groups = [(results.bold(name), results.headline(subject, name)) for name in results.measured.machine.unique()]
    groups += results.published_machines(subject.model)
    every = [(name, made) for name, rows in groups for made in series(results, rows)]
    counts = sorted({devices for _, made in every for devices in made.devices})
    counts = counts if len(counts) <= _MOST_COUNTS else [1, *counts[-_MOST_COUNTS + 1 :]]
    lines = []
    for name, made in every:
        rates, last = dict(zip(made.devices, made.samples_per_second)), made.iloc[-1]
        lines.append(
            {
                "machine": name + (", quick" if made.quick[0] else ""),
                "batch per device": markdown.count(last.batch_per_device),
                **{f"samples/s on {count:.0f}": markdown.number(rates.get(count, math.nan)) for count in counts},
                "efficiency": f"{last.speedup / last.devices:.0%} on {last.devices:.0f}",
                "n": str(last.pairs),
            }
        )
    about = (
        "Median samples/s at a fixed batch per device. The efficiency compares repeats that started within an hour of "
        "each other; n is the number of repeats on the side with fewer."
    )
    return section("Scaling", about, markdown.table(lines), _figure(every, subject))


def _figure(every: list[tuple[str, pd.DataFrame]], subject: Subject) -> list[Figure]:
    """Return the efficiencies; of published series only those at the reference batch if there are any."""
    at_reference = any(made.batch_per_device[0] == REFERENCE_BATCH for _, made in every)
    lines = []
    for _, made in every:
        one, efficiencies = made.iloc[0], made.speedup / made.devices
        if one.origin == MEASURED or one.batch_per_device == REFERENCE_BATCH or not at_reference:
            label = f"{markdown.short_machine(one)}, {one.batch_per_device:.0f} per device"
            lines.append(chart.Line(label, dict(zip(made.devices, efficiencies)), one.origin == MEASURED))
    return figure(
        f"scaling_{subject.model}",
        f"Scaling efficiency of {subject.label} against the number of devices, at a fixed batch per device.",
        *(lines, "Scaling efficiency", "devices", "efficiency"),
        log2=True,
        ylim=(0.0, None),
    )
