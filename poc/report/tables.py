"""The tables and sentences of results.md: pure functions of rows and records that return Markdown, "" without data."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from poc.recipe import networks
from poc.records import noise, timing
from poc.records.row import MEASURED, PUBLISHED, Row
from poc.report import compare, ways
from poc.report.rows import Record, main_study, ordered, workers
from poc.run import exchange_label

MAIN_NETWORKS = ("cifar_resnet50_v2", "cifar_resnet110_v2")
THRESHOLDS = (0.5, 0.6, 0.7, 0.75, 0.8)
"""Accuracies for which the time to reach them is shown."""
COSTED = (0.75, 0.8, 0.85)
"""Accuracies for which the epochs, and the time on the published devices, are shown at each total batch."""

Cells = dict[str, str]

_PART_LABELS = {
    "initialise": "initialise",
    "warmup": "warm-up",
    "train": "train",
    "data": "wait for data",
    "evaluate": "evaluate",
    "checkpoint": "checkpoint",
    "rest": "rest",
}


# --- what was found, in words --------------------------------------------------------------------------------------


def summary(rows: Sequence[Row], records: Sequence[Record] = ()) -> str:
    """A list, in words: speed, accuracy, both beside the published setting, what large batches keep, how it scales."""
    measured = [row for row in rows if row.origin == MEASURED and row.outcome == "completed"]
    full = [row for row in measured if not row.quick]
    if not measured:
        return (
            "Nothing has been measured on this machine yet: every figure below is a published one. "
            "`./run_all.sh` adds this machine's."
        )
    if not full:
        best = max(measured, key=lambda row: row.samples_per_second or 0.0)
        return (
            f"Only quick runs so far, which are a first look and no results. The fastest of them: {_speed(best)}. "
            "Run without `--quick` for figures that can be compared."
        )
    printed = [row for row in rows if row.study == main_study(rows)]
    all_disturbed = all(row.disturbed for row in full)
    found, kept = [], kept_in_words(records)
    for machine in dict.fromkeys(map(_machine, full)):
        of_machine = [row for row in full if _machine(row) == machine]
        real = [row for row in of_machine if not row.virtual and row.samples_per_second is not None]
        # A disturbed speed leads only where there is no other.
        real = [row for row in real if all_disturbed or not row.disturbed]
        if real:
            found.append(_headline(max(real, key=lambda row: _telling(row, printed)), printed, machine))
        played = [row for row in of_machine if row.virtual and row.accuracy is not None]
        if not kept:
            found += [_played(row, printed) for row in played if _like(row, printed)][:1]
    return "\n".join(f"- {one}" for one in [*found, kept, *_scaling_sentences(full)] if one)


def _telling(row: Row, printed: Sequence[Row]) -> tuple[Any, ...]:
    """Orders runs by how much they say beside the main study's GPUs: an accuracy, the same setting, its network."""
    return (
        row.dataset != "synthetic",
        row.accuracy is not None,
        len([one for one in _like(row, printed) if one.devices]),
        row.network == MAIN_NETWORKS[0],
        row.epochs or 0,
        row.samples_per_second,
    )


def _like(row: Row, printed: Iterable[Row]) -> list[Row]:
    """Published rows of the same setting: network, both batch sizes and the learning rate."""
    names = ("network", "batch_per_device", "total_batch", "learning_rate")
    return [
        one
        for one in printed
        if all(getattr(one, name) == getattr(row, name) for name in names)
        and one.samples_per_second is not None
        and not one.doubtful("samples_per_second", "devices")
    ]


def _same_training(one: Row, row: Row) -> bool:
    """Whether a published row's accuracy may stand beside that of a measured one of the same setting."""
    return one.accuracy is not None and one.epochs == row.epochs and row.dataset != "synthetic"


def _headline(row: Row, printed: Sequence[Row], machine: str) -> str:
    text = f"On {machine}, {_speed(row)}"
    if row.accuracy is not None:
        text += f" and {_reached(row)}"
    text += "."
    compared = []
    for one in _like(row, printed):
        ratio = one.samples_per_second / row.samples_per_second
        words = f"{ratio:.1f} times as fast" if ratio >= 1 else f"{1 / ratio:.1f} times slower"
        reached = f", accuracy {one.accuracy:.3f}" if _same_training(one, row) else ""
        compared.append(f"{_on(one)} is {words} ({one.samples_per_second:,.0f} samples/s{reached})")
    if compared:
        text += " Published for the same setting, one run each without a spread: " + "; ".join(compared) + "."
    return text


def _played(row: Row, printed: Sequence[Row]) -> str:
    text = (
        f"{_network(row)} with {row.devices} virtual devices (one played all in turn, so its throughput is not "
        f"theirs), {_conditions(row)}, {_reached(row)}."
    )
    compared = [f"{one.accuracy:.3f} on {_on(one)}" for one in _like(row, printed) if _same_training(one, row)]
    return text + (f" Published for that setting: {' and '.join(compared)}." if compared else "")


def kept_in_words(records: Sequence[Record]) -> str:
    """A sentence on the accuracy at each total batch, by the best way found and by the main study's."""
    for comparison in ways.comparisons(records):
        said = []
        for batch in comparison.batches():
            best, source = (comparison.best(batch, source=source) for source in (False, True))
            if best or source:
                known = [f"{one.accuracy:.4f}" if one else "not run" for one in (best, source)]
                said.append(f"{known[0]} ({known[1]}) at {batch:,}")
        if comparison.network == MAIN_NETWORKS[0] and len(said) > 1:
            return (
                f"What {network_label(comparison.network)} reaches in {comparison.epochs} epochs of "
                f"{comparison.dataset} at each total batch by the best way found here (and by the main study's way), "
                f"larger batches played by virtual devices, n = 1 run each: {', '.join(said)}."
            )
    return ""


def _scaling_sentences(full: Sequence[Row]) -> list[str]:
    """How the main network scales, or where it was not scaled the others; of several exchanges the fastest."""
    groups: dict[tuple[Any, ...], list[compare.Series]] = {}
    for series in compare.series(full):
        row = series.rows[-1]
        if row.exchange != "independent" and compare.by_throughput(series.alone, row) is not None:
            groups.setdefault((_machine(row), row.network, series.kind, series.batch), []).append(series)
    main = {key: found for key, found in groups.items() if key[1] == MAIN_NETWORKS[0]}
    sentences = []
    for found in (main or groups).values():
        fastest = max(found, key=lambda one: compare.by_throughput(one.alone, one.rows[-1]) or 0.0)
        row = fastest.rows[-1]
        speedup, wall = compare.by_throughput(fastest.alone, row), compare.by_wall(fastest.alone, row)
        assert speedup is not None
        held = f"{fastest.batch} a device" if fastest.kind == compare.WEAK else f"{fastest.batch} in all"
        of = f", the fastest of {len(found)}" if len(found) > 1 else ""
        text = (
            f"{row.devices} {_kind_of_device(row)}s ({_network(row)}, {fastest.kind} scaling, batch {held}, "
            f"exchange {row.exchange}{of}) are {speedup:.2f} times as fast as one by throughput, an efficiency of "
            f"{speedup / row.devices:.2f}"
        )
        if wall is not None:
            text += f", and {wall:.2f} times by wall time ({wall / row.devices:.2f})"
        sentences.append(text + f" on {_machine(row)}.")
    return sentences


def _speed(row: Row) -> str:
    count = f"{row.devices} {_kind_of_device(row)}{'s' * (row.devices > 1)}"
    figure, how = row.samples_per_second, f"median of n = {row.windows} windows, spread {row.spread:.1f}"
    if row.repeats and row.throughput_mean is not None:
        figure = row.throughput_mean
        how = f"mean of n = {row.repeats} seeds, standard deviation {row.throughput_spread:.1f}"
    return f"{_network(row)} with {count}, {_conditions(row)}, trains at {figure:,.1f} samples/s ({how})"


def _reached(row: Row) -> str:
    figure, how = row.accuracy, "n = 1 run"
    if row.repeats and row.accuracy_mean is not None:
        figure = row.accuracy_mean
        how = f"mean of n = {row.repeats} seeds, standard deviation {row.accuracy_spread:.4f}"
    if row.accuracy_last4 is not None:
        how += f"; mean of the last four epochs {row.accuracy_last4:.4f}"
    return f"reaches a validation accuracy of {figure:.4f} ({how})"


def _conditions(row: Row) -> str:
    length = f"{row.epochs} epochs" if row.epochs and row.epochs > 1 else f"{row.steps} steps"
    batch = f"batch {row.batch_per_device}"
    if not row.framework.startswith("MXNet"):
        batch = f"{row.framework}, {batch}"
    if row.devices > 1:
        batch += f" a device ({row.total_batch} in all)"
    return f"{batch}, learning rate {row.learning_rate:g}, {length} on {row.dataset}"


def _on(row: Row) -> str:
    return f"{row.devices} GPU of {row.hardware}" if row.devices else row.hardware


def _kind_of_device(row: Row) -> str:
    if (row.workers or 1) > 1:
        return "worker" if row.workers == row.devices else "device"
    return "GPU" if row.kind == "gpu" else "CPU device"


# --- accuracy and throughput --------------------------------------------------------------------------------------


def accuracy(rows: Sequence[Row]) -> str:
    """The main study's table in its own columns with the measured runs that have an accuracy, one table a network."""
    chosen = [
        row
        for row in rows
        if row.study == main_study(rows)
        or (row.origin == MEASURED and row.outcome in ("completed", "diverged") and row.accuracy is not None)
    ]
    chosen.sort(key=_likeness)
    blocks = []
    for network, found in itertools.groupby(chosen, key=_network):
        notes: list[str] = []
        cells = [_main_cells(row, notes) for row in found]
        blocks.append("\n\n".join([f"### {network}", _markdown(cells), *_footnotes(notes)]))
    return "\n\n".join(blocks)


def brief(rows: Sequence[Row]) -> str:
    """The README's table: ResNet-50 at 0.05 for every 128 samples of total batch, 128 and 512 in all."""
    settings = ((128, 0.05), (512, 0.2))
    chosen = [
        row
        for row in rows
        if row.network == MAIN_NETWORKS[0]
        and (row.total_batch, row.learning_rate) in settings
        and (row.devices == 1 or row.batch_per_device == 128)
        and row.accuracy is not None
        and not row.quick
        and row.dataset != "synthetic"
    ]
    names = ("infrastructure", "batch size", "gpus", "accuracy", "mean of last 4 epochs", "samples/s", "spread")
    full = [_main_cells(row, []) for row in sorted(chosen, key=_likeness)]
    return _markdown([{name: cells[name] for name in (*names, "windows", "data", "origin", "note")} for cells in full])


def _main_cells(row: Row, notes: list[str]) -> Cells:
    throughput = _figure(row, "samples_per_second", 1)
    return {
        "infrastructure": _infrastructure(row),
        "model": _network(row),
        "batch size": _batch_size(row),
        "gpus": _gpus(row),
        "accuracy": _accuracy(row, "accuracy"),
        "epochs": _figure(row, "epochs", 0),
        "s/epoch": _figure(row, "seconds_per_epoch", 1),
        "samples/s": f"({throughput}) not comparable" if row.virtual else throughput,
        "origin": row.origin,
        "batch per device": _figure(row, "batch_per_device", 0),
        "total batch": _figure(row, "total_batch", 0),
        "learning rate": _plain_figure(row.learning_rate),
        "data": row.dataset,
        "spread": _figure(row, "spread", 1),
        "windows": _figure(row, "windows", 0),
        "mean of last 4 epochs": _accuracy(row, "accuracy_last4"),
        "seeds": _figure(row, "repeats", 0),
        "note": _note(row, notes),
    }


def throughput(rows: Sequence[Row]) -> str:
    """Samples/s on one device against its batch, and measured runs without an accuracy on any number of devices."""
    chosen = [
        row
        for row in rows
        if row.samples_per_second is not None
        and (
            (row.study == main_study(rows) and (row.devices or 0) <= 1)
            or (row.origin == MEASURED and row.outcome == "completed" and (row.devices == 1 or row.accuracy is None))
        )
    ]
    if not any(row.origin == MEASURED for row in chosen):
        return ""

    def series(row: Row) -> tuple[Any, ...]:
        words = (_infrastructure(row), _cores(row), row.framework, row.layout, row.dtype, row.quick)
        how = (row.devices, row.exchange, row.dataset, row.setting or "")
        return (*_network_order(row), row.origin == PUBLISHED, *words, *how)

    def place(row: Row) -> tuple[Any, ...]:
        return (*series(row), row.batch_per_device, row.learning_rate, *_tie(row))

    several = any((row.devices or 0) > 1 for row in chosen)
    notes: list[str] = []
    cells: list[Cells] = []
    above: Row | None = None
    for row in sorted(chosen, key=place):
        same = above is not None and series(above) == series(row)
        figure = _figure(row, "samples_per_second", 1)
        cells.append(
            {
                "model": _network(row),
                "infrastructure": ", ".join(filter(None, [_infrastructure(row), _cores(row)])),
                "gpus": _gpus(row),
                "batch per device": _figure(row, "batch_per_device", 0),
                "total batch": _figure(row, "total_batch", 0),
                **({"exchange": row.exchange if (row.devices or 0) > 1 else ""} if several else {}),
                "samples/s": f"({figure}) not comparable" if row.virtual else figure,
                "spread": _figure(row, "spread", 1),
                "windows": _figure(row, "windows", 0),
                "against the row above": _change(row, above) if same and above else "",
                "learning rate": _plain_figure(row.learning_rate),
                "data": row.dataset,
                "origin": row.origin,
                "note": _note(row, notes),
            }
        )
        above = row
    return "\n\n".join([_markdown(cells), *_footnotes(notes)])


def measured_networks(rows: Sequence[Row]) -> str:
    """Every network on one device: its size, its speed, and how near that is to what the device can do at all.

    Beside each what the studies printed for it on one device, where they printed a speed.
    """
    alone = [row for row in rows if compare.rate(row) is not None and (row.devices or 0) <= 1]
    measured = [row for row in alone if row.origin == MEASURED and row.outcome == "completed" and not row.quick]
    notes: list[str] = []
    cells: list[Cells] = []
    for network in networks.NETWORKS.values():
        all_of_it = sorted((row for row in measured if row.network == network.name), key=_likeness)
        if not all_of_it:
            continue
        # Runs of an earlier version have no peak; they are in other tables.
        own = [row for row in all_of_it if row.peak_share is not None] or all_of_it
        batches = {row.batch_per_device for row in own}
        printed = [
            row
            for row in alone
            if row.origin == PUBLISHED
            and _printed_network(row) == network.name
            and (row.study != main_study(rows) or row.batch_per_device in batches)
        ]
        for row in [*own, *sorted(printed, key=_likeness)]:
            rate = compare.rate(row)
            assert rate is not None
            size = int(row.input_shape.rpartition("x")[2] or network.input_size)
            flops = 6 * network.multiply_adds(size) * rate
            cells.append(
                {
                    "network": network.label,
                    "parameters": f"{network.parameters:,}" if row.origin == MEASURED else "",
                    "multiply-adds (M)": f"{network.multiply_adds(size) / 1e6:,.1f}",
                    "input": row.input_shape,
                    "infrastructure": ", ".join(filter(None, [_infrastructure(row), _cores(row)])),
                    "batch": _figure(row, "batch_per_device", 0),
                    "precision": row.dtype,
                    "samples/s": _figure(row, "samples_per_second", 1) or f"{rate:.1f}",
                    "spread": _figure(row, "spread", 1),
                    "windows": _figure(row, "windows", 0),
                    "GFLOP/s": f"{flops / 1e9:,.1f}",
                    "peak": _known(_scaled(row.peak_flops, 1e-9), ",.0f"),
                    "of peak": _known(row.peak_share, ".0%"),
                    "host memory (GiB)": _known(_scaled(row.host_peak_bytes, 2**-30), ".1f"),
                    "data": row.dataset + (", fixed batch" if row.fixed else ""),
                    "origin": row.origin,
                    "note": _note(row, notes),
                }
            )
    return "\n\n".join([_markdown(cells), *_footnotes(notes)]) if cells else ""


def _printed_network(row: Row) -> str | None:
    """The network of the registry that a published row means: by its own name, or as a study calls it."""
    if row.network in networks.NETWORKS:
        return str(row.network)
    small = str(row.dataset).startswith("cifar")
    for network in networks.NETWORKS.values():
        if row.network in network.printed_as and (network.classes == 10) == small:
            return network.name
    return None


def largest_batches(records: Sequence[Record]) -> list[str]:
    """A sentence for each network and device of which some batch did not fit into memory: the largest that did."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in ordered(records):
        run = record["run"]
        if run["devices"] == 1 and not run["quick"]:
            key = (record["infrastructure"], network_label(run["model"]), run.get("dtype", "float32"), run["kind"])
            groups.setdefault(key, []).append(record)
    sentences = []
    for (infrastructure, label, dtype, kind), members in groups.items():
        large = [one for one in members if "memory" in one["reason"] and one["outcome"] in ("skipped", "failed")]
        fits = [one["run"]["batch_per_device"] for one in members if one["outcome"] == "completed"]
        beyond = sorted((one["run"]["batch_per_device"], one["reason"]) for one in large)
        beyond = [(batch, reason) for batch, reason in beyond if not fits or batch > max(fits)]
        if fits and beyond:
            batch, reason = beyond[0]
            sentences.append(
                f"The largest batch of {label} in {dtype} tried on one {kind.upper()} of {infrastructure} that fits is "
                f"{max(fits)}; {batch}: {reason}."
            )
    return sentences


def _change(row: Row, above: Row) -> str:
    """The difference in samples/s and whether it is more than noise; only the difference where spreads are unknown."""
    if row.virtual != above.virtual:
        return ""
    value = row.samples_per_second - above.samples_per_second
    if row.origin == PUBLISHED:
        return f"{value:+.10g}"
    return _judged(compare.difference(_windows_estimate(row), _windows_estimate(above)), "+.1f")


def _judged(difference: compare.Difference, form: str) -> str:
    if difference.margin is None:
        return f"{difference.value:{form}} (n = 1: cannot be judged)"
    margin = f"{difference.margin:{form.lstrip('+')}}"
    verdict = "within the noise" if difference.within_noise else "more than noise"
    return f"{difference.value:{form}} ± {margin}: {verdict}"


def _windows_estimate(row: Row, factor: float = 1.0) -> compare.Estimate:
    return compare.Estimate(
        mean=row.samples_per_second * factor, spread=(row.spread or 0.0) * factor, n=row.windows or 1
    )


def repeats(rows: Sequence[Row]) -> str:
    """Mean, spread and number over seeds of runs that were repeated, and which of their differences are noise."""
    found: dict[tuple[Any, ...], Row] = {}
    for one in rows:
        if one.repeats:
            found.setdefault((one.infrastructure, one.setting, *map(repr, _likeness(one)[:6])), one)
    groups = sorted(found.values(), key=_likeness)
    cells = []
    for index, row in enumerate(groups):
        first = next(one for one in groups[: index + 1] if one.network == row.network)
        comparison = ""
        if first is not row and row.accuracy_mean is not None and first.accuracy_mean is not None:
            comparison = _judged(compare.difference(_seeds_estimate(row), _seeds_estimate(first)), "+.4f")
        cells.append(
            {
                "infrastructure": _infrastructure(row),
                "model": _network(row),
                "batch size": _batch_size(row),
                "gpus": _gpus(row),
                "seeds": _figure(row, "repeats", 0),
                "accuracy, mean": _accuracy(row, "accuracy_mean"),
                "accuracy, standard deviation": _accuracy(row, "accuracy_spread"),
                "samples/s, mean": _figure(row, "throughput_mean", 1),
                "samples/s, standard deviation": _figure(row, "throughput_spread", 1),
                "accuracy against the network's first row": comparison,
                "data": row.dataset,
            }
        )
    return _markdown(cells)


def _seeds_estimate(row: Row) -> compare.Estimate:
    return compare.Estimate(mean=row.accuracy_mean, spread=row.accuracy_spread, n=row.repeats)


# --- speed-ups ----------------------------------------------------------------------------------------------------


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
                    "infrastructure": ", ".join(filter(None, [_infrastructure(row), _cores(row)])),
                    "model": _network(row),
                    "scaling": _held(series),
                    "exchange": row.exchange if n > 1 else "",
                    "devices": str(n),
                    "total batch": _figure(row, "total_batch", 0),
                    "samples/s": _figure(row, "samples_per_second", 1),
                    "speed-up by throughput": _ratio(throughput),
                    "efficiency": _ratio(compare.efficiency(throughput, n)),
                    "without synchronisation": _ratio(compare.without_sync(alone, row)),
                    "speed-up by epoch time": _ratio(epoch),
                    "speed-up by wall time": _ratio(wall),
                    "efficiency by wall time": _ratio(compare.efficiency(wall, n)),
                    "origin": row.origin,
                    "note": _series_note(series, row, notes),
                }
            )
    return "\n\n".join([_markdown(cells), *_footnotes(notes)]) if cells else ""


def _series_note(series: compare.Series, row: Row, notes: list[str]) -> str:
    words = []
    if row.flag:
        words.append(f"contradicts itself {_footnote(row, notes)}")
    elif any(one.flag for one in series.alone):
        found = ", ".join(_footnote(one, notes) for one in series.alone if one.flag)
        words.append(f"its row on one device contradicts itself {found}")
    if row.origin == MEASURED and row.devices > 1 and len(series.alone) == 1:
        ideal = compare.difference(_windows_estimate(row), _windows_estimate(series.alone[0], row.devices))
        words.append(f"against {row.devices} x one device: {_judged(ideal, '+.1f')}")
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
                against = _judged(compare.difference(_windows_estimate(row), _windows_estimate(ceiling)), "+.1f")
            share = None if ceiling is None else row.samples_per_second / ceiling.samples_per_second
            moves = found and row.exchange != "independent"
            cells.append(
                {
                    "infrastructure": ", ".join(filter(None, [_infrastructure(row), _cores(row)])),
                    "model": _network(row),
                    "batch per device": _figure(row, "batch_per_device", 0),
                    "devices": f"{row.devices} {_kind_of_device(row)}s",
                    "exchange": row.exchange,
                    "samples/s": _figure(row, "samples_per_second", 1),
                    "spread": _figure(row, "spread", 1),
                    "windows": _figure(row, "windows", 0),
                    "of independent": _known(share, ".3f"),
                    "against independent (samples/s)": against,
                    "in pairs": _in_pairs(found) if moves else "",
                    "exposed communication (ms a step)": _known(_scaled(exposed, 1e3), ".1f") if moves else "",
                    "exchange alone (ms)": f"{found['exchange_seconds'] * 1e3:.1f}" if moves else "",
                    "bus bandwidth (GB/s)": _known(_scaled(found.get("bus_bytes_per_second"), 1e-9), ".3f")
                    if moves
                    else "",
                    "sums right": _right(found.get("sums_right")),
                    "note": row.note,
                }
            )
    return _markdown(cells)


def engines(rows: Sequence[Row]) -> str:
    """MXNet's and PyTorch's throughput in runs that differ in nothing else, and the ratio of each pair of them."""
    same = (
        *("infrastructure", "hardware", "network", "dataset", "dtype", "batch_per_device", "devices", "virtual"),
        *("exchange", "quick", "fixed", "recipe", "learning_rate"),
    )
    groups: dict[tuple[Any, ...], dict[str, dict[int, Row]]] = {}
    for row in rows:
        if row.origin == MEASURED and row.outcome == "completed" and row.samples_per_second is not None:
            variant = row.framework + (", channels-last" if row.layout == "NHWC" else "")
            of_seed = groups.setdefault(tuple(str(getattr(row, name)) for name in same), {}).setdefault(variant, {})
            of_seed.setdefault(row.seed, row)
    cells = []
    for variants in groups.values():
        reference = next((name for name in sorted(variants) if name.startswith("MXNet")), None)
        for name, found in sorted(variants.items()):
            if reference is None or name.startswith("MXNet"):
                continue
            seeds = sorted(found.keys() & variants[reference].keys())
            if not seeds:
                continue
            ones, others = ([one[seed] for seed in seeds] for one in (variants[reference], found))
            ratios = [b.samples_per_second / a.samples_per_second for a, b in zip(ones, others)]
            first = others[0]
            cells.append(
                {
                    "infrastructure": _infrastructure(first),
                    "model": _network(first),
                    "precision": first.dtype,
                    "batch per device": _figure(first, "batch_per_device", 0),
                    "devices": _gpus(first),
                    "reference": reference,
                    "its samples/s": f"{_median_rate(ones):.1f}",
                    "against it": name,
                    "samples/s": f"{_median_rate(others):.1f}",
                    "ratio": f"{statistics.median(ratios):.3f}",
                    "each pair": ", ".join(f"{ratio:.3f}" for ratio in ratios),
                    "spread": f"{timing.spread(ratios):.3f}" if len(ratios) > 1 else "",
                    "pairs": str(len(ratios)),
                    "note": first.note,
                }
            )
    return _markdown(cells)


def _median_rate(rows: Sequence[Row]) -> float:
    return statistics.median(row.samples_per_second for row in rows)


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
                "run": _run_label(run),
                "id": record["run_id"],
                "infrastructure": record["infrastructure"],
                "data": record["dataset"],
                "bound": "none" if run["staleness"] is None else str(run["staleness"]),
                "last worker slowed by": f"{run['slowed']:.0%}" if run["slowed"] else "",
                "samples/s": _figure(found, "samples_per_second", 1),
                "spread": _figure(found, "spread", 1),
                "windows": _figure(found, "windows", 0),
                "steps ahead of the slowest, mean": f"{sum(k * n for k, n in seen.items()) / sum(seen.values()):.2f}",
                "most": str(max(seen)),
                "steps counted": str(sum(seen.values())),
                "waited for the bound (s a worker)": f"{waited:.1f}",
                "accuracy": _accuracy(found, "accuracy"),
                "wall (s)": _figure(found, "wall_seconds", 0),
            }
        )
    return _markdown(cells)


def reconciliation(rows: Sequence[Row]) -> str:
    """Each measured series: what lies between its two speed-ups, part by part, adding up."""
    cells = []
    measured = [row for row in rows if row.origin == MEASURED]
    for series in _in_order(compare.series(measured)):
        for row in series.rows:
            found = compare.reconcile(series.alone, row)
            if found is None:
                continue
            label = f"{_network(row)}, {_held(series)}, {row.devices} {_kind_of_device(row)}s"
            cells.append(
                {
                    "series": ", ".join(filter(None, [label, str(row.exchange), _infrastructure(row), _cores(row)])),
                    "by throughput": f"{found.by_throughput:.4f}",
                    **{_PART_LABELS[part]: f"{round(-taken, 4) + 0.0:+.4f}" for part, taken in found.parts.items()},
                    "by wall time": f"{found.by_wall:.4f}",
                }
            )
    return _markdown(cells, keep=("series", "by throughput", *_PART_LABELS.values(), "by wall time"))


def with_and_without_sync(rows: Sequence[Row]) -> str:
    """The Theano study's seconds for 5,120 images and both of its speed-ups, beside measured runs taken apart."""
    chosen = [row for row in rows if row.train_seconds_per_5120 is not None]
    cells = []
    for row in chosen:
        n, with_sync, without = row.devices, row.speedup_throughput, row.speedup_without_sync
        cells.append(
            {
                "infrastructure": _infrastructure(row),
                "model": _network(row),
                "batch per device": _figure(row, "batch_per_device", 0),
                "devices": str(n),
                "exchange": row.exchange,
                "train (s)": _figure(row, "train_seconds_per_5120", 2),
                "communication (s)": _figure(row, "communication_seconds_per_5120", 2),
                "synchronisation (s)": _figure(row, "sync_seconds_per_5120", 2),
                "wait for data (s)": _figure(row, "data_seconds_per_5120", 2),
                "speed-up without sync": _ratio(without),
                "efficiency without sync": _ratio(compare.efficiency(without, n)),
                "speed-up with sync": _ratio(with_sync),
                "efficiency with sync": _ratio(compare.efficiency(with_sync, n)),
                "origin": row.origin,
                "the source's text": row.printed,
            }
        )
    return _markdown(cells)


def _held(series: compare.Series) -> str:
    return f"{series.kind}, {series.batch} {'a device' if series.kind == compare.WEAK else 'in all'}"


def _in_order(found: Iterable[compare.Series]) -> list[compare.Series]:
    def place(series: compare.Series) -> tuple[Any, ...]:
        first = series.alone[0]
        return (
            *_network_order(first),
            first.origin == PUBLISHED,
            _infrastructure(first),
            series.kind,
            series.batch,
        )

    return sorted(found, key=place)


# --- time, convergence, hardware ----------------------------------------------------------------------------------


def split(rows: Sequence[Row]) -> str:
    """The wall time of every measured run that ended, in parts that add up to it."""
    cells = []
    for row in sorted(rows, key=_likeness):
        if row.origin != MEASURED or row.wall_seconds is None or row.rest_seconds is None:
            continue
        parts = {part: getattr(row, f"{part}_seconds") for part in timing.PARTS}
        cells.append(
            {
                **_run_cells(row),
                **{f"{_PART_LABELS[part]} (s)": f"{seconds:.1f}" for part, seconds in parts.items()},
                "sum (s)": f"{math.fsum(parts.values()):.1f}",
                "wall (s)": f"{row.wall_seconds:.1f}",
                "training, of wall": f"{parts['train'] / row.wall_seconds:.1%}",
                "note": row.note,
            }
        )
    return _markdown(cells)


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
                **{f"{_PART_LABELS[part]} (s)": f"{one[f'{part}_seconds']:.1f}" for part in timing.PARTS},
                "wall (s)": f"{one['wall_seconds']:.1f}",
            }
        )
    return _markdown(cells)


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
                "run": _run_label(run),
                "id": record["run_id"],
                "infrastructure": record["infrastructure"],
                "data": record["dataset"],
                **{f"epoch {one['epoch']}": f"{one['accuracy']:.4f}" for one in evaluations[step - 1 :: step]},
                **reached,
            }
        )
    return _markdown(_aligned(cells))


# --- the accuracy as the batch grows ------------------------------------------------------------------------------


def kept(comparison: ways.Comparison, rows: Sequence[Row]) -> str:
    """For each total batch the main study's way and the best one found, and what was printed for that batch."""
    printed = ways.printed(rows, comparison.network, comparison.epochs)
    cells = []
    for batch in comparison.batches():
        source, best = (comparison.best(batch, source=source) for source in (True, False))
        gain = None
        if source is not None and best is not None:
            gain = (best.accuracy or 0.0) - (source.accuracy or 0.0)
        cells.append(
            {
                "total batch": str(batch),
                "steps": str(
                    next(one for one in comparison.trainings if one.total_batch == batch).record["run"]["steps"]
                ),
                "published, one line a setting": "; ".join(
                    f"{row.hardware}: {row.accuracy:.3f} (lr={row.learning_rate:g})"
                    for row in printed
                    if row.total_batch == batch and row.accuracy is not None
                ),
                "the study's way, here": _of_way(source),
                "best way found": _of_way(best),
                "gain": _known(gain, "+.4f"),
                "the best way": best.way if best else "",
            }
        )
    return _markdown(cells)


def _of_way(training: ways.Training | None) -> str:
    if training is None or training.accuracy is None:
        return ""
    return f"{training.accuracy:.4f} (lr={training.record['run']['learning_rate']:g})"


def suffering(comparison: ways.Comparison) -> str:
    """From which total batch on accuracy suffers, by the main study's way and by the best found."""
    said = []
    for source, name in ((True, "the study's way"), (False, "the best way found")):
        found = comparison.suffers_from(source=source)
        if found is not None:
            said.append(f"by {name} from a total batch of {found[0]:,} on ({found[1]:.4f} there)")
    if not said:
        return ""
    return (
        f"Accuracy suffers, which is to lose more than {ways.SUFFERS:g} to a smaller batch, {', '.join(said)}. "
        "`python -m poc advise` foretells it from the gradient noise of a short run."
    )


def tried(comparison: ways.Comparison) -> str:
    """Every run of a comparison, at each total batch the most accurate first."""
    cells = []
    for one in comparison.trainings:
        record, run = one.record, one.record["run"]
        evaluations = record["evaluations"]
        last = [found["accuracy"] for found in evaluations[-4:]]
        cells.append(
            {
                "total batch": str(one.total_batch),
                "devices": f"{run['devices']} virtual" if run["virtual"] else str(run["devices"]),
                "way": one.way,
                "learning rate": f"{run['learning_rate']:g}",
                "the study's": "yes" if one.source else "",
                "precision": run.get("dtype", "float32"),
                "accuracy": "diverged" if one.accuracy is None else f"{one.accuracy:.4f}",
                "mean of last 4 epochs": f"{sum(last) / 4:.4f}" if len(last) == 4 else "",
                "steps": str(run["steps"]),
                "seed": str(run["seed"]),
                "id": record["run_id"],
            }
        )
    return _markdown(cells)


def cost_of_accuracy(comparison: ways.Comparison, rows: Sequence[Row]) -> str:
    """Epochs to round accuracies at each total batch, and the seconds that they take at the published speed there."""
    printed = ways.printed(rows, comparison.network, comparison.epochs)
    machines = list(dict.fromkeys(row.hardware for row in printed if row.devices))
    cells = []
    for batch in comparison.batches():
        for source, name in ((True, "the study's"), (False, "the best found")):
            training = comparison.best(batch, source=source)
            if training is None:
                continue
            took = {level: ways.epochs_to(training, level) for level in COSTED}
            row = {
                "total batch": str(batch),
                "way": name,
                "accuracy": _known(training.accuracy, ".4f"),
                **{f"epochs to {level:g}": "never" if took[level] is None else str(took[level]) for level in COSTED},
            }
            for machine in machines:
                fastest = _fastest(printed, machine, batch)
                for level in COSTED:
                    epochs = took[level]
                    known = fastest is not None and epochs is not None
                    row[f"{machine}: s to {level:g}"] = (
                        f"{epochs * fastest.seconds_per_epoch:.0f} on {fastest.devices}"
                        if known and epochs is not None and fastest is not None
                        else ""
                    )
            cells.append(row)
    return _markdown(cells)


def _fastest(printed: Sequence[Row], machine: str, batch: int) -> Row | None:
    """The published row of a machine at a total batch with the shortest epoch."""
    found = [
        row
        for row in printed
        if row.hardware == machine
        and row.total_batch == batch
        and row.seconds_per_epoch is not None
        and not row.doubtful("seconds_per_epoch", "devices")
    ]
    return min(found, key=lambda row: float(row.seconds_per_epoch), default=None)


def noise_scales(comparison: ways.Comparison) -> str:
    """The gradient noise scale in each quarter of every run that looked at it."""
    cells = []
    for one in comparison.trainings:
        record = one.record
        quarters = [noise.of_record(record, quarter / 4, (quarter + 1) / 4) for quarter in range(4)]
        whole = noise.of_record(record)
        if whole is None:
            continue
        cells.append(
            {
                "total batch": str(one.total_batch),
                "way": one.way,
                "learning rate": f"{record['run']['learning_rate']:g}",
                **{
                    f"quarter {number}": "not found" if found is None or found.scale is None else f"{found.scale:.0f}"
                    for number, found in enumerate(quarters, start=1)
                },
                "whole run": "not found" if whole.scale is None else f"{whole.scale:.0f}",
                "looks": str(whole.samples),
                "id": record["run_id"],
            }
        )
    return _markdown(cells)


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
                    "run": _run_label(record["run"]),
                    "id": record["run_id"],
                    "infrastructure": record["infrastructure"],
                    "device": str(one["device"]),
                    "utilisation": _known(one.get("utilisation"), ".0%"),
                    "memory, peak (GiB)": _known(_scaled(one.get("memory_peak_bytes"), 2**-30), ".2f"),
                    "SM clock (MHz)": _known(one.get("sm_clock_mhz"), ".0f"),
                    "memory clock (MHz)": _known(one.get("memory_clock_mhz"), ".0f"),
                    "core clock (MHz)": _known(one.get("core_clock_mhz"), ".0f"),
                    "power (W)": _known(one.get("power_watts"), ".0f"),
                    "temperature (°C)": _known(one.get("temperature_celsius"), ".0f"),
                    "joules a sample, all devices": _known(joules, ".4f"),
                    "note": f"lost: {one['lost']}" if one.get("lost") else "",
                }
            )
    return _markdown(cells)


def memory(rows: Sequence[Row]) -> str:
    """Memory at its peak, and how many cores other processes kept busy, for every measured run that says so."""
    cells = []
    for row in sorted(rows, key=_likeness):
        if row.origin != MEASURED or row.host_peak_bytes is None:
            continue
        cells.append(
            {
                **_run_cells(row),
                "host memory, peak (GiB)": f"{row.host_peak_bytes / 2**30:.2f}",
                "device memory, peak (GiB)": _known(_scaled(row.device_peak_bytes, 2**-30), ".2f"),
                "cores busy with other processes": _known(row.others_busy_cores, ".2f"),
                "utilisation": _known(row.utilisation, ".0%"),
                "joules a sample": _known(row.joules_per_sample, ".4f"),
            }
        )
    return _markdown(cells)


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
                "run": _run_label(record["run"]),
                "id": record["run_id"],
                "infrastructure": record["infrastructure"],
                "steps": str(found["steps"]),
                "whole step (ms)": f"{whole * 1e3:.1f}",
                "computation alone (ms)": f"{alone * 1e3:.1f}",
                "exchange alone (ms)": "" if single else f"{exchange * 1e3:.1f}",
                "exposed communication (ms)": "" if single else f"{exposed * 1e3:.1f}",
                "hidden communication (ms)": "" if single else f"{max(0.0, exchange - max(0.0, exposed)) * 1e3:.1f}",
                "waiting for slower workers (ms)": _known(_scaled(found["synchronisation_seconds"], 1e3), ".1f"),
                "waiting for data (ms)": _known(_scaled(found["data_seconds"], 1e3), ".2f"),
                "exchanged (MB)": "" if single else f"{found['exchange_bytes'] / 1e6:.2f}",
                "bus bandwidth (GB/s)": _known(_scaled(found["bus_bytes_per_second"], 1e-9), ".3f"),
                "sums right": _right(found["sums_right"]),
            }
        )
    return _markdown(cells)


def _right(sums: bool | None) -> str:
    return "" if sums is None else "yes" if sums else "NO"


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
                "run": _run_label(run),
                "id": record["run_id"],
                "infrastructure": record["infrastructure"],
                "price ($/h)": f"{price:g}",
                "$ an epoch": f"{seconds / steps * run['steps_per_epoch'] / 3600 * price:.4f}",
                "$ in all": _known(_scaled(record["wall"], price / 3600), ".4f"),
            }
        )
    return _markdown(cells)


# --- the other studies --------------------------------------------------------------------------------------------

_STUDY_COLUMNS = (
    *("infrastructure", "framework", "model", "parameters", "data", "input", "batch per device", "total batch"),
    *("learning rate", "devices", "exchange", "layout", "scaling", "epochs", "accuracy", "s/epoch", "samples/s"),
    *("train (s/5,120)", "communication (s/5,120)", "sync (s/5,120)", "speed-up without sync"),
    *("speed-up by throughput", "efficiency", "speed-up by wall time", "efficiency by wall time"),
    *("the source's text", "note"),
)


def study(rows: Sequence[Row], name: str) -> str:
    """Every row of one study, in the columns that it fills."""
    return _study_table([row for row in rows if row.study == name])


def keras(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """The Keras study, table by table as in its text: title and Markdown of each."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.study == "keras_multi_gpu":
            groups.setdefault(_keras_title(row), []).append(row)
    return [(f"{title} ({len(found)} rows)", _study_table(found)) for title, found in groups.items()]


def _keras_title(row: Row) -> str:
    if row.network == "keras_cifar10_cnn":
        return "avolkov1 on a small CIFAR-10 network: the total batch is split, so strong scaling"
    if row.network == "mlp":
        return "kuza55 on an MLP: the total batch is split, so strong scaling"
    if row.network == "alexnet" and row.dataset == "imagenet (synthetic)":
        return "Memory clocks, one GPU at a time" if row.devices == 1 else "PIX against PHB: how two GPUs are linked"
    if row.network in ("inceptionv3", "resnet50") and row.infrastructure in ("az-2x-m60", "7gforce"):
        if row.framework.startswith("TensorFlow") and not row.scaling:
            return "tf_cnn_benchmarks on one GPU, NCHW and NHWC"
        name = {"inceptionv3": "InceptionV3", "resnet50": "ResNet-50 (ImageNet)"}[row.network]
        return f"{name}: Keras codes split a batch of 32 (strong), tf_cnn_benchmarks has 32 a GPU (weak)"
    if row.dataset == "cifar10" and row.infrastructure == "az-2x-m60":
        return "tf_cnn_benchmarks on CIFAR-10 with two Tesla M60"
    if row.layout:
        return "Data layout"
    return "TensorFlow's own benchmarks, and figures of the text"


def _study_table(found: Sequence[Row]) -> str:
    cells = []
    for row in found:
        note = "; ".join(filter(None, [row.note, f"contradicts itself: {row.flag}" if row.flag else ""]))
        values = (
            *(_infrastructure(row), row.framework, _network(row), _figure(row, "parameters", 0), row.dataset),
            *(row.input_shape, _figure(row, "batch_per_device", 0), _figure(row, "total_batch", 0)),
            *(_plain_figure(row.learning_rate), _figure(row, "devices", 0), row.exchange, row.layout),
            *(row.scaling, _figure(row, "epochs", 0), _plain_figure(row.accuracy)),
            *(_figure(row, "seconds_per_epoch", 1), _figure(row, "samples_per_second", 1)),
            *(_figure(row, f"{part}_seconds_per_5120", 2) for part in ("train", "communication", "sync")),
            *(_digits(row.speedup_without_sync), _digits(row.speedup_throughput)),
            *(_digits(row.efficiency_throughput), _digits(row.speedup_wall), _digits(row.efficiency_wall)),
            *(row.printed, note),
        )
        cells.append(dict(zip(_STUDY_COLUMNS, values)))
    return _markdown(cells)


# --- machines, and what did not run -------------------------------------------------------------------------------


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
    return _markdown(cells)


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
            **_run_cells(row),
            "started (UTC)": row.started[:16].replace("T", " "),
            "outcome": row.outcome,
            "samples/s": _figure(row, "samples_per_second", 1),
            "spread": _figure(row, "spread", 1),
            "windows": _figure(row, "windows", 0),
            "accuracy": _accuracy(row, "accuracy"),
            "mean of last 4 epochs": _accuracy(row, "accuracy_last4"),
            "shown above": "no" if row.superseded else "yes",
            "note": row.note,
        }
        for row in tried
        if (row.infrastructure, row.computes) in again
    ]
    return _markdown(cells)


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
    return _markdown(cells)


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in sorted(set(values)))


# --- cells --------------------------------------------------------------------------------------------------------


def _markdown(cells: Sequence[Cells], keep: Sequence[str] = ()) -> str:
    """A table of the columns that any row fills, and of those in `keep`; figures to the right."""
    if not cells:
        return ""
    names = [name for name in cells[0] if name in keep or any(row[name] for row in cells)]
    body = [[re.sub(r"\s+", " ", row[name]).replace("|", "\\|") for name in names] for row in cells]
    number = re.compile(r"([-+(]?[\d.,]+%?\)?( .*)?)?")
    figures = [all(number.fullmatch(row[index]) for row in body) for index in range(len(names))]
    aligned = ["right" if figure else "left" for figure in figures]
    text = tabulate(body, headers=names, tablefmt="pipe", disable_numparse=True, colalign=aligned)
    # Columns padded to their longest note would make lines of a thousand blanks.
    return re.sub(r" {2,}", " ", re.sub(r"-{4,}", "---", text))


def _aligned(cells: Sequence[Cells]) -> list[Cells]:
    """Rows with the same columns, in the order of the longest row; what a row lacks is empty."""
    longest_first = sorted(cells, key=lambda row: -len(row))
    names = list(dict.fromkeys(name for row in longest_first for name in row))
    return [{name: row.get(name, "") for name in names} for row in cells]


def _footnote(row: Row, notes: list[str]) -> str:
    text = f"{_infrastructure(row)}, {row.printed.split(' | ')[0]}: {row.flag}."
    if text not in notes:
        notes.append(text)
    return f"({notes.index(text) + 1})"


def _footnotes(notes: Sequence[str]) -> list[str]:
    if not notes:
        return []
    listed = "\n".join(f"- ({number}) {text}" for number, text in enumerate(notes, start=1))
    return ["Rows whose own printed figures disagree, as found by recomputing them:\n\n" + listed]


def _note(row: Row, notes: list[str]) -> str:
    flag = f"contradicts itself {_footnote(row, notes)}" if row.flag else ""
    # The flag says it computed; the source's own words for it would say it twice.
    words = [one for one in row.note.split("; ") if not (flag and one.startswith("contradicts itself"))]
    return "; ".join(filter(None, [flag, *words]))


def _likeness(row: Row) -> tuple[Any, ...]:
    """Like beside like: network, total batch, batch per device, learning rate, devices, machine; unknown last."""
    names = ("total_batch", "batch_per_device", "learning_rate", "devices")
    figures = [math.inf if getattr(row, name) is None else getattr(row, name) for name in names]
    return (*_network_order(row), *figures, row.origin == MEASURED, _infrastructure(row), *_tie(row))


def _tie(row: Row) -> tuple[Any, ...]:
    return (row.virtual, row.quick, row.seed or 0, row.started, row.run_id, row.printed)


def _network_order(row: Row) -> tuple[int, str]:
    name = row.network
    return (MAIN_NETWORKS.index(name) if name in MAIN_NETWORKS else len(MAIN_NETWORKS), name)


def _network(row: Row) -> str:
    return network_label(row.network)


def network_label(name: str) -> str:
    return networks.NETWORKS[name].label if name in networks.NETWORKS else name


def _machine(row: Row) -> str:
    named, found = row.infrastructure, row.hardware
    return named if not found or found in named else f"{named} ({found})"


def _infrastructure(row: Row) -> str:
    """A source's own name for a machine and what it is; a measured one's name."""
    if row.origin == MEASURED:
        return _machine(row)
    return ": ".join(filter(None, [row.infrastructure, row.hardware]))


def _cores(row: Row) -> str:
    cores = row.cores_per_worker
    return f"{cores:.0f} core{'s' * (cores > 1)} a worker" if cores else ""


def _gpus(row: Row) -> str:
    """As the source counts: GPUs in use, 0 for a CPU; with what played several replicas in brackets."""
    if row.devices is None:
        return ""
    if row.origin == PUBLISHED:
        return str(row.devices)
    words = "virtual" if row.virtual else "workers" if (row.workers or 1) > 1 else "CPU devices"
    if row.virtual:
        return f"{int(row.kind == 'gpu')} ({row.devices} {words})"
    if row.kind == "gpu":
        return str(row.devices)
    return "0" if row.devices == 1 else f"0 ({row.devices} {words})"


def _batch_size(row: Row) -> str:
    """In the source's own style: "128x4=512 (lr=0.2)"."""
    if row.origin == PUBLISHED:
        return str(row.printed).split(" | ")[0]
    size = str(row.batch_per_device)
    if row.devices > 1:
        size += f"x{row.devices}={row.total_batch}"
    elif row.kind == "gpu":
        size += "x1"
    return f"{size} (lr={row.learning_rate:g})"


def _run_label(run: dict[str, Any]) -> str:
    size = str(run["batch_per_device"]) + (f"x{run['devices']}={run['total_batch']}" if run["devices"] > 1 else "")
    words = [network_label(run["model"]), f"{size} (lr={run['learning_rate']:g})"]
    words += [exchange_label(run)] * (run["devices"] > 1 and not run["virtual"])
    words += [run.get("dtype", "float32")] * (run.get("dtype", "float32") != "float32")
    words += ["virtual"] * run["virtual"] + ["quick"] * run["quick"] + [f"seed {run['seed']}"] * (run["seed"] > 0)
    return ", ".join(words)


def _run_cells(row: Row) -> Cells:
    run = {**vars(row), "model": row.network}
    return {"run": _run_label(run), "id": row.run_id, "infrastructure": _infrastructure(row), "data": row.dataset}


def _figure(row: Row, name: str, digits: int) -> str:
    """A published figure as it was printed, a measured one to `digits` decimals."""
    value = getattr(row, name)
    if value is None:
        return ""
    return _plain_figure(value) if row.origin == PUBLISHED else f"{value:.{digits}f}"


def _accuracy(row: Row, name: str) -> str:
    value = getattr(row, name)
    if value is None:
        return ""
    return f"{value:.4f}" if row.origin == MEASURED else f"{value:.3f}"


def _plain_figure(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _digits(value: float | None) -> str:
    """As many digits as any of the sources prints of a ratio."""
    return "" if value is None else f"{value:.5g}"


def _known(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
