"""Which learning rate keeps the accuracy as the total batch grows: published, and in either division."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from poc.recipe import CIFAR10, Muon
from poc.records.record import Record
from poc.report import chart
from poc.report.measurements import CLOSED, OPEN, Measurement, division, grouped
from poc.report.page import MAIN_BATCH, MAIN_EPOCHS, MAIN_NETWORK, Picture, Results, Section
from poc.report.tables import accuracy_of, markdown
from poc.run import Run
from poc.studies.row import Row
from poc.values import words


def section(results: Results) -> Section:
    """The best of each kind at each total batch, as a table and as a figure."""
    best = best_rates(results)
    sought = set(map(_tried, trainings(results, searched=True)))
    among = {batch: sum(tried[-1] == batch for tried in sought) for batch in best[OPEN]}
    last = [f"{batch:,} (of {among[batch]} ways)" for batch, taken in best[OPEN].items() if _tried(taken) in sought]
    held_out = f"; the last choice at {', '.join(last)} was made on held-out images" if last else ""
    swings = [_swing(record) for taken in best[CLOSED].values() if (record := results.record(taken))]
    swing = f": the last four epochs of one run differ by up to {max(swings):.3f}" if swings else ""
    precisions = grouped(best[CLOSED].items(), lambda found: found[1].row.dtype)
    computed = "; ".join(f"{dtype} at {', '.join(f'{n:,}' for n, _ in of)}" for dtype, of in precisions.items())
    mixed = f" Its precision differs: {computed}." * (len(precisions) > 1)
    bases = {kind: found[_base(found)] for kind, found in best.items() if found}
    beside = "the smallest batch"
    if any(_base(found) != min(found) for found in best.values() if found):
        beside = f"batch {MAIN_BATCH}, else the smallest"
    sentences = [f"Accuracy of ResNet-50 (CIFAR) after {MAIN_EPOCHS} epochs at the best rate that was tried."]
    if best[CLOSED]:
        sentences.append(
            f"Closed: the study's way but for the rate, which stays the same to the end{swing}, so their mean stands "
            f"beside.{mixed}"
        )
    if best[OPEN]:
        sentences.append(f"Open: any other way. Ways were sought on the test set{held_out}.")
    sentences.append("One seed unless n says otherwise.")
    if best[OPEN]:
        sentences.append(
            f"Lost: beside {beside}; open ways differ from batch to batch, as does how long they were sought, so that "
            "it is not of the batch alone."
        )
    else:
        sentences.append(f"Lost: beside {beside}.")
    sentences += [*_played(best), "[Learning rate][learning_rate] has every run."]
    table = []
    for batch in sorted({batch for found in best.values() for batch in found}):
        line = {"total batch": f"{batch:,}"}
        for kind, found in best.items():
            taken, base = found.get(batch), bases.get(kind)
            line[f"{kind}: rate"] = short_way(taken.row) if taken else ""
            line[f"{kind}: accuracy (lost)"] = _lost(taken, base, "accuracy")
            if kind == CLOSED:
                line[f"{kind}: last 4 (lost)"] = _lost(taken, base, "accuracy_last4")
        table.append(line)
    return Section("Which learning rate", (" ".join(sentences), markdown(table), *_picture(best)))


def _base(batches: Collection[int]) -> int:
    """The total batch that accuracies are held against: the study's reference, where it was trained."""
    return MAIN_BATCH if MAIN_BATCH in batches else min(batches)


def _played(best: dict[str, dict[int, Measurement]]) -> Iterator[str]:
    """That emulated devices trained the batches of several devices, or some of them."""
    rows = [taken.row for kind in (CLOSED, OPEN) for taken in best[kind].values()]
    emulated = [row.emulated for row in rows if row.devices > 1]
    if any(emulated):
        batches = "Batches" if all(emulated) else "Some batches"
        yield f"{batches} of several devices were played by emulated ones, whose accuracy is that of real ones."


def _lost(taken: Measurement | None, base: Measurement | None, column: str) -> str:
    """An accuracy, and by how much it is above that at the base's batch."""
    figures, other = (one and one.accuracies(column) for one in (taken, base))
    lost = f" ({figures.median - other.median:+.3f})" if figures and other and taken is not base else ""
    return accuracy_of(figures) + lost


def _swing(record: Record) -> float:
    """How far the accuracies after its last four epochs lie apart."""
    last = [seen.accuracy for seen in record.evaluations[-4:]]
    return max(last) - min(last)


def best_rates(results: Results) -> dict[str, dict[int, Measurement]]:
    """By kind (published, closed, open) the most accurate measurement at each total batch, ascending.

    What was tried on several machines counts where most seeds were: the best of them would be flattered.
    """
    tried = grouped(trainings(results), _tried).values()
    telling = [max(several, key=lambda taken: taken.accuracies().n) for several in tried]
    measured = grouped(telling, lambda taken: division(taken.row.run))
    return {
        "published": _best(published_trainings(results)),
        **{name: _best(measured.get(name, ())) for name in (CLOSED, OPEN)},
    }


def published_trainings(results: Results) -> list[Measurement]:
    """What the main study printed of its network over its epochs, with its rate."""

    def printed(row: Row) -> bool:
        known = None not in (row.accuracy, row.lr, row.global_batch)
        return known and (row.model, row.epochs) == (MAIN_NETWORK, MAIN_EPOCHS)

    return results.published(printed)


def trainings(results: Results, *, searched: bool = False) -> list[Measurement]:
    """What runs over the study's epochs, of its network and images gave, closed ones first; all synchronous SGD.

    `searched`: on images that a search held out.
    """

    def fits(row: Row) -> bool:
        run = row.run
        return (
            (row.model, run.epochs, run.whole_epochs) == (MAIN_NETWORK, MAIN_EPOCHS, True)
            and isinstance(run.data, CIFAR10)
            and not (run.synchronises and run.kvstore.name != "device")
        )

    return sorted(results.accuracies(fits, searched=searched), key=lambda taken: division(taken.row.run))


def way(run: Run) -> str:
    """How `run` trains: all but its network, its batch, its devices and its rate, in words."""
    said = {**words(run), **words(run.optimizer)}
    parts = [
        _optimizer(run),
        *(said.get(name, "") for name in ("momentum", "momentum_correction", "unit_weights")),
        *(said.get(name, "") for name in ("weight_decay", "decay_gammas")),
        f"warm-up over {run.warmup_steps / run.steps:.0%} of the steps" if run.warmup_steps else "",
        *(said.get(name, "") for name in ("decay", "decay_at", "decay_factor", "label_smoothing")),
        *(said.get(name, "") for name in ("zero_init_gamma", "averaged_views")),
    ]
    if isinstance(run.data, CIFAR10):
        parts += [
            f"crop {run.data.crop} of {32 + 2 * run.data.pad}",
            ("mirror" + " every other epoch" * run.data.alternate) * run.data.mirror,
            "colours moved" * run.data.jitter,
            f"cutout {run.data.cutout}" * (run.data.cutout > 0),
            f"shrunk to {run.data.shrink} in the first {run.data.shrink_epochs} epochs" * (run.data.shrink > 0),
        ]
    return ", ".join(filter(None, parts))


def unlike(several: Iterable[Row]) -> list[str]:
    """What of framework, conditions and training recipe not all of several measured rows have, of each."""
    ways = []
    for row in several:
        options = words(row.run)
        looked = (options.get(name, "") for name in ("gradient_noise", "compile"))
        images = f"images {row.data_checksum[:8] or 'without a checksum'}"
        conditions = (*looked, images, row.environment)
        ways.append([row.framework, row.dtype, row.layout, *way(row.run).split(", "), *filter(None, conditions)])
    return [", ".join(part for part in own if not all(part in other for other in ways)) for own in ways]


def tell_apart(lines: Sequence[dict[str, str]], rows: Iterable[Row], column: str) -> None:
    """Add to that column of the lines of a table that read alike in what their measured rows differ."""
    for group in grouped(zip(lines, rows), lambda pair: tuple(pair[0].values())).values():
        for (line, _), difference in zip(group, unlike(row for _, row in group)):
            line[column] += ", " * bool(difference) + difference


def _tried(taken: Measurement) -> tuple[str, float, int]:
    """What a search tries: a way, its rate and a total batch."""
    return way(taken.row.run), taken.row.run.learning_rate, taken.row.run.global_batch


def short_way(row: Row) -> str:
    """Rate and optimizer, for a cell."""
    rate = f"{row.lr:g}"
    return rate if division(row.run) == CLOSED else f"{_optimizer(row.run)}, {rate}"


def _optimizer(run: Run) -> str:
    return run.optimizer.label + (f" {run.optimizer.lr:g}" if isinstance(run.optimizer, Muon) else "")


def _best(measurements: Iterable[Measurement]) -> dict[int, Measurement]:
    groups = sorted(grouped(measurements, lambda taken: taken.row.global_batch).items())
    return {batch: max(group, key=lambda taken: taken.accuracies().median) for batch, group in groups}


def _picture(best: dict[str, dict[int, Measurement]]) -> list[Picture]:
    names = ("published, K80 and P100", "measured, the study's way", "measured, best way found")
    lines = []
    for name, (kind, found) in zip(names, best.items()):
        points = tuple(chart.Point(x=batch, y=taken.accuracies().median) for batch, taken in found.items())
        if points:
            lines.append(chart.Line(label=name, points=points, here=kind != "published"))
    if len(lines) < 2 or max(len(line.points) for line in lines) < 2:
        return []
    figure = chart.lines(
        lines,
        title="What a larger batch costs in accuracy",
        xlabel="total batch (samples)",
        ylabel="test accuracy",
        log="x",
        ticks="x",
    )
    caption = (
        f"Test accuracy of ResNet-50 (CIFAR) after {MAIN_EPOCHS} epochs against the total batch, each at the best rate "
        "that was tried; one seed a point unless the table says n."
    )
    return [Picture("learning_rate", caption, figure)]
