"""What was found, in words: the list at the top of results.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from poc.records.record import COMPLETED, Record
from poc.report import cells, compare, ways
from poc.report.rows import USUAL_ENGINE, main_study
from poc.studies.row import Row


def summary(rows: Sequence[Row], records: Sequence[Record] = ()) -> str:
    """A list, in words: speed, accuracy, both beside the published setting, what large batches keep, how it scales."""
    measured = [row for row in rows if row.measured and row.outcome == COMPLETED]
    full = [row for row in measured if not row.quick]
    if not measured:
        return (
            "Nothing has been measured on this machine yet: every figure below is a published one. "
            "`./run_all.sh` adds this machine's."
        )
    if not full:
        best = max(measured, key=lambda row: 0.0 if row.virtual else row.samples_per_second or 0.0)
        return (
            f"Only quick runs so far, which are a first look and no results. The fastest of them: {_speed(best)}. "
            "Run without `--quick` for figures that can be compared."
        )
    printed = [row for row in rows if row.study == main_study(rows)]
    all_disturbed = all(row.disturbed for row in full)
    said, kept = [], kept_in_words(records)
    for machine in dict.fromkeys(map(cells.machine_of, full)):
        of_machine = [row for row in full if cells.machine_of(row) == machine]
        real = [row for row in of_machine if not row.virtual and row.samples_per_second is not None]
        # A disturbed speed leads only where there is no other.
        real = [row for row in real if all_disturbed or not row.disturbed]
        if real:
            said.append(_headline(max(real, key=lambda row: _telling(row, printed)), printed, machine))
        played = [row for row in of_machine if row.virtual and row.accuracy is not None]
        if not kept:
            said += [_played(row, printed) for row in played if _like(row, printed)][:1]
    return "\n".join(f"- {sentence}" for sentence in [*said, kept, *_scaling_sentences(full)] if sentence)


def _telling(row: Row, printed: Sequence[Row]) -> tuple[Any, ...]:
    """Orders runs by how much they say beside the main study's GPUs: an accuracy, the same setting, its network."""
    return (
        row.dataset != "synthetic",
        row.accuracy is not None,
        len([other for other in _like(row, printed) if other.devices]),
        row.network == cells.MAIN_NETWORKS[0],
        row.epochs or 0,
        row.samples_per_second,
    )


def _like(row: Row, printed: Iterable[Row]) -> list[Row]:
    """Published rows of the same setting: network, both batch sizes and the learning rate."""
    names = ("network", "batch_per_device", "total_batch", "learning_rate")
    return [
        other
        for other in printed
        if all(getattr(other, name) == getattr(row, name) for name in names)
        and other.samples_per_second is not None
        and not other.doubtful("samples_per_second", "devices")
    ]


def _same_training(other: Row, row: Row) -> bool:
    """Whether a published row's accuracy may stand beside that of a measured one of the same setting."""
    return other.accuracy is not None and other.epochs == row.epochs and row.dataset != "synthetic"


def _headline(row: Row, printed: Sequence[Row], machine: str) -> str:
    text = f"On {machine}, {_speed(row)}"
    if row.accuracy is not None:
        text += f" and {_reached(row)}"
    text += "."
    compared = []
    for other in _like(row, printed):
        ratio = other.samples_per_second / row.samples_per_second
        words = f"{ratio:.1f} times as fast" if ratio >= 1 else f"{1 / ratio:.1f} times slower"
        reached = f", accuracy {other.accuracy:.3f}" if _same_training(other, row) else ""
        compared.append(f"{_on(other)} is {words} ({other.samples_per_second:,.0f} samples/s{reached})")
    if compared:
        text += " Published for the same setting, one run each without a spread: " + "; ".join(compared) + "."
    return text


def _played(row: Row, printed: Sequence[Row]) -> str:
    text = (
        f"{cells.network_of(row)} with {row.devices} virtual devices (one played all in turn, so its throughput is not "
        f"theirs), {_conditions(row)}, {_reached(row)}."
    )
    compared = [f"{other.accuracy:.3f} on {_on(other)}" for other in _like(row, printed) if _same_training(other, row)]
    return text + (f" Published for that setting: {' and '.join(compared)}." if compared else "")


def kept_in_words(records: Sequence[Record]) -> str:
    """A sentence on the accuracy at each total batch, by the best way found and by the main study's."""
    for comparison in ways.comparisons(records):
        said = []
        for batch in comparison.batches():
            best, source = (comparison.best(batch, source=source) for source in (False, True))
            if best or source:
                known = [f"{training.accuracy:.4f}" if training else "not run" for training in (best, source)]
                said.append(f"{known[0]} ({known[1]}) at {batch:,}")
        if comparison.network == cells.MAIN_NETWORKS[0] and len(said) > 1:
            return (
                f"What {cells.network_label(comparison.network)} reaches in {comparison.epochs} epochs of "
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
            groups.setdefault((cells.machine_of(row), row.network, series.kind, series.batch), []).append(series)
    main = {key: several for key, several in groups.items() if key[1] == cells.MAIN_NETWORKS[0]}
    sentences = []
    for several in (main or groups).values():
        fastest = max(several, key=lambda series: compare.by_throughput(series.alone, series.rows[-1]) or 0.0)
        row = fastest.rows[-1]
        speedup, wall = compare.by_throughput(fastest.alone, row), compare.by_wall(fastest.alone, row)
        assert speedup is not None
        held = f"{fastest.batch} a device" if fastest.kind == compare.WEAK else f"{fastest.batch} in all"
        of = f", the fastest of {len(several)}" if len(several) > 1 else ""
        text = (
            f"{row.devices} {cells.kind_of_device(row)}s ({cells.network_of(row)}, {fastest.kind} scaling, "
            f"batch {held}, exchange {row.exchange}{of}) are {speedup:.2f} times as fast as one by throughput, an "
            f"efficiency of {speedup / row.devices:.2f}"
        )
        if wall is not None:
            text += f", and {wall:.2f} times by wall time ({wall / row.devices:.2f})"
        sentences.append(text + f" on {cells.machine_of(row)}.")
    return sentences


def _speed(row: Row) -> str:
    count = f"{row.devices} {cells.kind_of_device(row)}{'s' * (row.devices > 1)}"
    figure, how = row.samples_per_second, f"median of n = {row.windows} windows, spread {row.spread:.1f}"
    if row.repeats and row.throughput_mean is not None:
        figure = row.throughput_mean
        how = f"mean of n = {row.repeats} seeds, standard deviation {row.throughput_spread:.1f}"
    return f"{cells.network_of(row)} with {count}, {_conditions(row)}, trains at {figure:,.1f} samples/s ({how})"


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
    if row.run.engine != USUAL_ENGINE:
        batch = f"{row.framework}, {batch}"
    if row.devices > 1:
        batch += f" a device ({row.total_batch} in all)"
    return f"{batch}, learning rate {row.learning_rate:g}, {length} on {row.dataset}"


def _on(row: Row) -> str:
    return f"{row.devices} GPU of {row.hardware}" if row.devices else row.hardware
