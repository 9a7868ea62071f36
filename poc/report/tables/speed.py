"""Tables of accuracy and throughput. Pure functions of rows that return Markdown, empty without data."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from poc.recipe import networks
from poc.records import timing
from poc.records.record import COMPLETED, DONE, FAILED, OUT_OF_MEMORY, SKIPPED, Record
from poc.report import cells, compare
from poc.report.rows import USUAL_ENGINE, main_study
from poc.studies.row import Row


def accuracy(rows: Sequence[Row]) -> str:
    """The main study's table in its own columns with the measured runs that have an accuracy, one table a network."""
    chosen = [
        row
        for row in rows
        if row.study == main_study(rows) or (row.measured and row.outcome in DONE and row.accuracy is not None)
    ]
    chosen.sort(key=cells.likeness)
    blocks = []
    for network, members in itertools.groupby(chosen, key=cells.network_of):
        notes: list[str] = []
        lines = [_main_cells(row, notes) for row in members]
        blocks.append("\n\n".join([f"### {network}", cells.markdown(lines), *cells.footnotes(notes)]))
    return "\n\n".join(blocks)


def brief(rows: Sequence[Row]) -> str:
    """The README's table: ResNet-50 at 0.05 for every 128 samples of total batch, 128 and 512 in all."""
    settings = ((128, 0.05), (512, 0.2))
    chosen = [
        row
        for row in rows
        if row.network == cells.MAIN_NETWORKS[0]
        and (row.total_batch, row.learning_rate) in settings
        and (row.devices == 1 or row.batch_per_device == 128)
        and row.accuracy is not None
        and not row.quick
        and row.dataset != "synthetic"
    ]
    names = ("infrastructure", "batch size", "gpus", "accuracy", "mean of last 4 epochs", "samples/s", "spread")
    full = [_main_cells(row, []) for row in sorted(chosen, key=cells.likeness)]
    return cells.markdown(
        [{name: lines[name] for name in (*names, "windows", "data", "origin", "note")} for lines in full]
    )


def _main_cells(row: Row, notes: list[str]) -> cells.Cells:
    return {
        "infrastructure": cells.infrastructure_of(row),
        "model": cells.network_of(row),
        "batch size": cells.batch_size_of(row),
        "gpus": cells.gpus_of(row),
        "accuracy": cells.accuracy_of(row, "accuracy"),
        **cells.columns(row, "epochs seconds_per_epoch"),
        "samples/s": cells.throughput_of(row),
        **cells.columns(row, "origin batch_per_device total_batch learning_rate dataset spread windows"),
        "mean of last 4 epochs": cells.accuracy_of(row, "accuracy_last4"),
        **cells.columns(row, "repeats"),
        "note": cells.noted(row, notes),
    }


def throughput(rows: Sequence[Row]) -> str:
    """Samples/s on one device against its batch, and measured runs without an accuracy on any number of devices."""
    chosen = [
        row
        for row in rows
        if row.samples_per_second is not None
        and (
            (row.study == main_study(rows) and (row.devices or 0) <= 1)
            or (row.measured and row.outcome == COMPLETED and (row.devices == 1 or row.accuracy is None))
        )
    ]
    if not any(row.measured for row in chosen):
        return ""

    def series(row: Row) -> tuple[Any, ...]:
        words = (cells.infrastructure_of(row), cells.cores_of(row), row.framework, row.layout, row.dtype, row.quick)
        how = (row.devices, row.exchange, row.dataset, row.setting or "")
        return (*cells.network_order(row), not row.measured, *words, *how)

    def place(row: Row) -> tuple[Any, ...]:
        return (*series(row), row.batch_per_device, row.learning_rate, *cells.tie(row))

    several = any((row.devices or 0) > 1 for row in chosen)
    notes: list[str] = []
    lines: list[cells.Cells] = []
    above: Row | None = None
    for row in sorted(chosen, key=place):
        same = above is not None and series(above) == series(row)
        lines.append(
            {
                "model": cells.network_of(row),
                "infrastructure": cells.place_of(row),
                "gpus": cells.gpus_of(row),
                **cells.columns(row, "batch_per_device total_batch"),
                **({"exchange": row.exchange if (row.devices or 0) > 1 else ""} if several else {}),
                "samples/s": cells.throughput_of(row),
                **cells.columns(row, "spread windows"),
                "against the row above": _change(row, above) if same and above else "",
                **cells.columns(row, "learning_rate dataset origin"),
                "note": cells.noted(row, notes),
            }
        )
        above = row
    return "\n\n".join([cells.markdown(lines), *cells.footnotes(notes)])


def _change(row: Row, above: Row) -> str:
    """The difference in samples/s and whether it is more than noise; only the difference where spreads are unknown."""
    if row.virtual != above.virtual:
        return ""
    value = row.samples_per_second - above.samples_per_second
    if not row.measured:
        return f"{value:+.10g}"
    return cells.judged(compare.difference(cells.windows_estimate(row), cells.windows_estimate(above)), "+.1f")


def measured_networks(rows: Sequence[Row]) -> str:
    """Every network on one device: its size, its speed, and how near that is to what the device can do at all.

    Beside each what the studies printed for it on one device, where they printed a speed.
    """
    alone = [row for row in rows if compare.rate(row) is not None and (row.devices or 0) <= 1]
    measured = [row for row in alone if row.measured and row.outcome == COMPLETED and not row.quick]
    notes: list[str] = []
    lines: list[cells.Cells] = []
    for network in networks.NETWORKS.values():
        all_of_it = sorted((row for row in measured if row.network == network.name), key=cells.likeness)
        if not all_of_it:
            continue
        # Runs of an earlier version have no peak; they are in other tables.
        own = [row for row in all_of_it if row.peak_share is not None] or all_of_it
        batches = {row.batch_per_device for row in own}
        printed = [
            row
            for row in alone
            if not row.measured
            and _printed_network(row) == network.name
            and (row.study != main_study(rows) or row.batch_per_device in batches)
        ]
        for row in [*own, *sorted(printed, key=cells.likeness)]:
            rate = compare.rate(row)
            assert rate is not None
            size = int(row.input_shape.rpartition("x")[2] or network.input_size)
            flops = 6 * network.multiply_adds(size) * rate
            lines.append(
                {
                    "network": network.label,
                    "parameters": f"{network.cost.parameters:,}" if row.measured else "",
                    "multiply-adds (M)": f"{network.multiply_adds(size) / 1e6:,.1f}",
                    **cells.columns(row, "input_shape"),
                    "infrastructure": cells.place_of(row),
                    "batch": cells.cell(row, "batch_per_device"),
                    **cells.columns(row, "dtype"),
                    "samples/s": cells.cell(row, "samples_per_second") or f"{rate:.1f}",
                    **cells.columns(row, "spread windows"),
                    "GFLOP/s": f"{flops / 1e9:,.1f}",
                    "peak": cells.shown(cells.scaled(row.peak_flops, 1e-9), ",.0f"),
                    "of peak": cells.shown(row.peak_share, ".0%"),
                    "host memory (GiB)": cells.shown(cells.scaled(row.host_peak_bytes, 2**-30), ".1f"),
                    "data": row.dataset + (", fixed batch" if row.fixed else ""),
                    "origin": row.origin,
                    "note": cells.noted(row, notes),
                }
            )
    return "\n\n".join([cells.markdown(lines), *cells.footnotes(notes)]) if lines else ""


def _printed_network(row: Row) -> str | None:
    """The network of the registry that a published row means: by its own name, or as a study calls it."""
    if row.network in networks.NETWORKS:
        return str(row.network)
    small = str(row.dataset).startswith("cifar")
    for network in networks.NETWORKS.values():
        if row.network == network.study_name and (network.classes == 10) == small:
            return network.name
    return None


def largest_batches(records: Sequence[Record]) -> list[str]:
    """A sentence for each network and device of which some batch did not fit into memory: the largest that did."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        run = record.run
        if run.devices == 1 and (not run.quick or record.outcome == OUT_OF_MEMORY):
            key = (record.infrastructure, cells.network_label(run.model), run.dtype, run.kind)
            groups.setdefault(key, []).append(record)
    sentences = []
    for (infrastructure, label, dtype, kind), members in groups.items():
        fits = [record.run.batch_per_device for record in members if record.outcome == COMPLETED]
        beyond = sorted(
            (record.run.batch_per_device, record.reason)
            for record in members
            if record.outcome == OUT_OF_MEMORY or ("memory" in record.reason and record.outcome in (SKIPPED, FAILED))
        )
        beyond = [(batch, reason) for batch, reason in beyond if not fits or batch > max(fits)]
        if fits and beyond:
            batch, reason = beyond[0]
            sentences.append(
                f"The largest batch of {label} in {dtype} tried on one {kind.upper()} of {infrastructure} that fits is "
                f"{max(fits)}; {batch}: {reason}."
            )
    return sentences


def repeats(rows: Sequence[Row]) -> str:
    """Mean, spread and number over seeds of runs that were repeated, and which of their differences are noise."""
    first_seeds: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row.repeats:
            first_seeds.setdefault(compare.key(row, "seed"), row)
    groups = sorted(first_seeds.values(), key=cells.likeness)
    lines = []
    for index, row in enumerate(groups):
        first = next(other for other in groups[: index + 1] if other.network == row.network)
        comparison = ""
        if first is not row and row.accuracy_mean is not None and first.accuracy_mean is not None:
            comparison = cells.judged(compare.difference(_seeds_estimate(row), _seeds_estimate(first)), "+.4f")
        lines.append(
            {
                "infrastructure": cells.infrastructure_of(row),
                "model": cells.network_of(row),
                "batch size": cells.batch_size_of(row),
                "gpus": cells.gpus_of(row),
                **cells.columns(row, "repeats"),
                "accuracy, mean": cells.accuracy_of(row, "accuracy_mean"),
                "accuracy, standard deviation": cells.accuracy_of(row, "accuracy_spread"),
                "samples/s, mean": cells.cell(row, "throughput_mean"),
                "samples/s, standard deviation": cells.cell(row, "throughput_spread"),
                "accuracy against the network's first row": comparison,
                "data": row.dataset,
            }
        )
    return cells.markdown(lines)


def _seeds_estimate(row: Row) -> compare.Estimate:
    return compare.Estimate(mean=row.accuracy_mean, spread=row.accuracy_spread, n=row.repeats)


def engines(rows: Sequence[Row]) -> str:
    """The engines' throughput in runs that differ in nothing else, and the ratio of each pair to the usual engine's."""
    groups: dict[tuple[Any, ...], dict[tuple[bool, str, str], dict[int, Row]]] = {}
    for row in rows:
        if row.measured and row.outcome == COMPLETED and row.samples_per_second is not None:
            same = (*compare.key(row, "engine", "layout", "compile", "workers", "seed"), row.recipe)
            label = cells.joined(row.framework, "channels-last" * (row.layout == "NHWC"), "compiled" * row.run.compile)
            variant = (row.run.engine != USUAL_ENGINE, row.run.engine, label)
            groups.setdefault(same, {}).setdefault(variant, {}).setdefault(row.seed, row)
    lines = []
    for variants in groups.values():
        reference = min(variants)
        for variant in sorted(variants):
            seeds = sorted(variants[variant].keys() & variants[reference].keys())
            if variant[1] == reference[1] or not seeds:
                continue
            usual, others = ([variants[each][seed] for seed in seeds] for each in (reference, variant))
            ratios = [b.samples_per_second / a.samples_per_second for a, b in zip(usual, others)]
            first = others[0]
            lines.append(
                {
                    "infrastructure": cells.infrastructure_of(first),
                    "model": cells.network_of(first),
                    **cells.columns(first, "dtype batch_per_device"),
                    "devices": cells.gpus_of(first),
                    "reference": reference[2],
                    "its samples/s": f"{_median_rate(usual):.1f}",
                    "against it": variant[2],
                    "samples/s": f"{_median_rate(others):.1f}",
                    "ratio": f"{statistics.median(ratios):.3f}",
                    "each pair": ", ".join(f"{ratio:.3f}" for ratio in ratios),
                    "spread": f"{timing.spread(ratios):.3f}" if len(ratios) > 1 else "",
                    "pairs": str(len(ratios)),
                    "note": first.note,
                }
            )
    return cells.markdown(lines)


def _median_rate(rows: Sequence[Row]) -> float:
    return statistics.median(row.samples_per_second for row in rows)
