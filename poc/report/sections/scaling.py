"""Weak scaling: samples/s on more and more devices at a fixed batch per device."""

import math
from typing import Any

import pandas as pd

from poc.published import MAIN_BATCH
from poc.records.record import COMPLETED
from poc.records.row import MEASURED, WEAK
from poc.report import chart, markdown, repeats
from poc.report.markdown import Block, figure, section
from poc.report.results import Results, Subject, preferred
from poc.report.table import BURST, TRAINING

_MAX_COUNTS = 4


def series(results: Results, rows: pd.DataFrame, *, without_speedup: bool = False) -> list[pd.DataFrame]:
    """Return the series among settings of one model, framework and precision, by batch per device.

    A series is one setting of a workload for each number of devices, including one device, with its `speedup` and the
    number of `pairs`: repeats on the side with fewer. For each batch the workload and length class that reaches most
    devices counts: bursts before whole trainings, quick runs last, then the one with most repeats. With
    `without_speedup` also settings of a batch that has no series, on one device or, published, on several.
    """

    def rank(curve: pd.DataFrame) -> tuple[Any, ...]:
        return curve.quick[0], -curve.devices.max(), curve.length[0] != BURST, -curve.pairs.iloc[-1]

    every_series = []
    for _, same_batch in rows[~rows.emulated].groupby("batch_per_device"):
        groups = same_batch.groupby(["quick", "length", "workload", "framework", "layout"])
        candidates = [_series(results, group) for _, group in groups]
        ranked = sorted((curve for curve in candidates if len(curve)), key=rank)
        with_speedup = [curve for curve in ranked if len(curve) > 1 and curve.devices[0] == 1]
        every_series += (with_speedup or (ranked if without_speedup else []))[:1]
    return every_series


def _series(results: Results, rows: pd.DataFrame) -> pd.DataFrame:
    multiple = rows[(rows.devices > 1) & ((rows.origin == MEASURED) | (rows.scaling == WEAK))]
    single, curves = rows[rows.devices == 1], list[pd.DataFrame]()
    counts = multiple.devices.nunique()
    # The preferred setting on one device may have run at another time than those on several, and another one with them.
    while (base := preferred(single)) is not None and not any(len(curve) > counts for curve in curves):
        curves.append(_curve(results, base, multiple))
        single = single[single.setting != base.setting]
    if curves:
        return max(curves, key=lambda curve: (curve.devices.max(), curve.pairs.iloc[-1]))
    unscaled = [preferred(group) for _, group in multiple[multiple.origin != MEASURED].groupby("devices")]
    return pd.DataFrame([{**row, "speedup": math.nan, "pairs": 1} for row in unscaled if row is not None])


def _curve(results: Results, base: Any, multiple: pd.DataFrame) -> pd.DataFrame:
    """Return the series with `base` on one device: for each number of devices a setting that compares with it."""
    chosen = [{**base, "speedup": 1.0, "pairs": base.n}]
    for _, group in multiple.groupby("devices"):
        speedups = {row.setting: speedup for _, row in group.iterrows() if (speedup := _speedup(results, base, row))}
        if (row := preferred(group[group.setting.isin(speedups)])) is not None:
            ratio, pairs = speedups[row.setting]
            chosen.append({**row, "speedup": ratio, "pairs": pairs, "noisy": base.noisy or row.noisy})
    return pd.DataFrame(chosen)


def _speedup(results: Results, base: Any, row: Any) -> tuple[float, int] | None:
    """Return the ratio of medians and the number of repeats on the side with fewer; None if not interleaved."""
    if row.origin != MEASURED:
        return None if pd.isna(row.speedup_throughput) else (row.speedup_throughput, 1)
    table = results.table[results.table.outcome == COMPLETED]
    sides = repeats.pair(table[table.setting == row.setting], table[table.setting == base.setting])
    if not all(map(len, sides)):
        return None
    rates = [side.samples_per_second.median() for side in sides]
    return rates[0] / rates[1], min(map(len, sides))


def efficiency(curve: pd.DataFrame) -> dict[str, str]:
    """Return the efficiency on the most devices of a series, and the number of repeats that it comes from."""
    last = curve.iloc[-1]
    is_known = last.devices > 1 and pd.notna(last.speedup)
    text = f"{last.speedup / last.devices:.0%} on {last.devices:.0f}" if is_known else ""
    return {"efficiency": text, "n": markdown.count(last.pairs)}


def over_hosts(results: Results, subject: Subject, rows: pd.DataFrame) -> pd.DataFrame:
    """Return settings of a machine, and those with which their series go on over several hosts like it."""
    workloads = rows.workload[(rows.devices == 1) & (rows.origin == MEASURED)]
    settings = pd.concat([rows[:0], *(each for _, each in results.machines(subject))])
    return pd.concat([rows, settings[settings.workload.isin(workloads) & ~settings.setting.isin(rows.setting)]])


def blocks(results: Results, subject: Subject) -> list[Block]:
    """Return the table and the figure of a subject: all machines that were measured, then the published ones."""
    machines, named = results.machines(subject), list[tuple[str, pd.DataFrame]]()
    for name, rows in machines:
        rows = over_hosts(results, subject, rows)
        is_published = (rows.origin != MEASURED).any()
        curves = series(results, rows, without_speedup=is_published)
        if all(curve.quick[0] for curve in curves):  # quick runs do not hide others
            curves += series(results, rows[~rows.quick] if curves else rows, without_speedup=True)
        named += [(name, curve) for curve in curves]
    # Published batches without a speed-up are shown only if they were measured, too.
    batches = {curve.batch_per_device[0] for _, curve in named if curve.origin[0] == MEASURED}
    named = [each for each in named if each[1].speedup.count() > 1 or each[1].batch_per_device[0] in batches]
    counts = sorted({devices for _, curve in named for devices in curve.devices})
    counts = counts if len(counts) <= _MAX_COUNTS else [1, *counts[-_MAX_COUNTS + 1 :]]
    at_main_batch = any(curve.batch_per_device[0] == MAIN_BATCH for _, curve in named)
    lines, drawn = [], []
    differing = markdown.differences(row for _, curve in named for row in markdown.records(curve.head(1)))
    for name, curve in named:
        (differences,) = map(differing, markdown.records(curve.head(1)))
        suffix = differences + remarks(curve)
        first, last = curve.iloc[0], curve.iloc[-1]
        rates = dict(zip(curve.devices, curve.samples_per_second))
        lines.append(
            {
                "machine": name + suffix,
                "batch per device": markdown.batch(last),
                **{f"samples/s on {count:.0f}": markdown.number(rates.get(count, math.nan)) for count in counts},
                **efficiency(curve),
            }
        )
        # Published series are drawn at the main study's batch only, if there are any.
        if curve.speedup.count() > 1 and (
            first.origin == MEASURED or first.batch_per_device == MAIN_BATCH or not at_main_batch
        ):
            label = f"{markdown.short_machine(first)}{suffix}, {first.batch_per_device:.0f} per device"
            efficiencies = dict(zip(curve.devices, curve.speedup / curve.devices))
            drawn.append(chart.Line(label, efficiencies, measured=first.origin == MEASURED))
    if results.machine and not any(line.measured for line in drawn):
        drawn = []  # published lines alone show nothing of this machine
    about = (
        "Median samples/s at a fixed batch per device. The efficiency compares repeats that started within an hour of "
        "each other, and needs a run on one device; n is the number of repeats on the side with fewer. Of several "
        "series the one on most devices is shown, bursts before whole trainings, then the one with most repeats."
    )
    highest = max((efficiency for line in drawn for efficiency in line.points.values()), default=1.0)
    drawn_efficiencies = figure(
        f"scaling_{subject.figure}",
        f"Scaling efficiency of {subject.label} against the number of devices, at a fixed batch per device.",
        *(drawn, "Scaling efficiency", "devices", "efficiency"),
        log2=True,
        ylim=(0.0, 1.05 * highest),  # with whole markers
    )
    return section("Scaling", about, markdown.table(lines), drawn_efficiencies)


def remarks(curve: pd.DataFrame) -> str:
    """Return what follows the name of a series: whether it is of quick runs, whole trainings, noisy repeats."""
    first = curve.iloc[0]
    listed = {
        "quick": first.quick,
        "whole trainings": first.origin == MEASURED and first.length == TRAINING,
        "noisy": curve.noisy.any(),
    }
    return "".join(f", {remark}" for remark, applies in listed.items() if applies)
