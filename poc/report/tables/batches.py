"""Tables of what each way to train keeps of the accuracy as the batch grows."""

from __future__ import annotations

from collections.abc import Sequence

from poc.report import cells, ways
from poc.studies.row import Row

COSTED = (0.75, 0.8, 0.85)
"""Accuracies for which the epochs, and the time on the published devices, are shown at each total batch."""


def kept(comparison: ways.Comparison, rows: Sequence[Row]) -> str:
    """For each total batch the main study's way and the best one found, and what was printed for that batch."""
    printed = ways.printed(rows, comparison.network, comparison.epochs)
    lines = []
    for batch in comparison.batches():
        source, best = (comparison.best(batch, source=source) for source in (True, False))
        gain = None
        if source is not None and best is not None:
            gain = (best.accuracy or 0.0) - (source.accuracy or 0.0)
        lines.append(
            {
                "total batch": str(batch),
                "steps": str(next(one for one in comparison.trainings if one.total_batch == batch).record.run.steps),
                "published, one line a setting": "; ".join(
                    f"{row.hardware}: {row.accuracy:.3f} (lr={row.learning_rate:g})"
                    for row in printed
                    if row.total_batch == batch and row.accuracy is not None
                ),
                "the study's way, here": _of_way(source),
                "best way found": _of_way(best),
                "gain": cells.shown(gain, "+.4f"),
                "the best way": best.way if best else "",
            }
        )
    return cells.markdown(lines)


def _of_way(training: ways.Training | None) -> str:
    if training is None or training.accuracy is None:
        return ""
    return f"{training.accuracy:.4f} (lr={training.record.run.learning_rate:g})"


def suffering(comparison: ways.Comparison) -> str:
    """From which total batch on accuracy suffers, by the main study's way and by the best found."""
    said = []
    for source, name in ((True, "the study's way"), (False, "the best way found")):
        lost = comparison.suffers_from(source=source)
        if lost is not None:
            said.append(f"by {name} from a total batch of {lost[0]:,} on ({lost[1]:.4f} there)")
    if not said:
        return ""
    return (
        f"Accuracy suffers, which is to lose more than {ways.SUFFERS:g} to a smaller batch, {', '.join(said)}. "
        "`python -m poc advise` foretells it from the gradient noise of a short run."
    )


def tried(comparison: ways.Comparison) -> str:
    """Every run of a comparison, at each total batch the most accurate first."""
    lines = []
    for training in comparison.trainings:
        record, run = training.record, training.record.run
        evaluations = record.evaluations
        last = [evaluation.accuracy for evaluation in evaluations[-4:]]
        lines.append(
            {
                "total batch": str(training.total_batch),
                "devices": f"{run.devices} virtual" if run.virtual else str(run.devices),
                "way": training.way,
                "learning rate": f"{run.learning_rate:g}",
                "the study's": "yes" if training.source else "",
                "precision": run.dtype,
                "accuracy": "diverged" if training.accuracy is None else f"{training.accuracy:.4f}",
                "mean of last 4 epochs": f"{sum(last) / 4:.4f}" if len(last) == 4 else "",
                "steps": str(run.steps),
                "seed": str(run.seed),
                "id": record.run_id,
            }
        )
    return cells.markdown(lines)


def cost_of_accuracy(comparison: ways.Comparison, rows: Sequence[Row]) -> str:
    """Epochs to round accuracies at each total batch, and the seconds that they take at the published speed there."""
    printed = ways.printed(rows, comparison.network, comparison.epochs)
    machines = list(dict.fromkeys(row.hardware for row in printed if row.devices))
    lines = []
    for batch in comparison.batches():
        for source, name in ((True, "the study's"), (False, "the best found")):
            training = comparison.best(batch, source=source)
            if training is None:
                continue
            took = {level: ways.epochs_to(training, level) for level in COSTED}
            row = {
                "total batch": str(batch),
                "way": name,
                "accuracy": cells.shown(training.accuracy, ".4f"),
                **{f"epochs to {level:g}": "never" if took[level] is None else str(took[level]) for level in COSTED},
            }
            for machine in machines:
                fastest = _fastest(printed, machine, batch)
                for level in COSTED:
                    epochs, seconds = took[level], ""
                    if fastest is not None and epochs is not None:
                        seconds = f"{epochs * fastest.seconds_per_epoch:.0f} on {fastest.devices}"
                    row[f"{machine}: s to {level:g}"] = seconds
            lines.append(row)
    return cells.markdown(lines)


def _fastest(printed: Sequence[Row], machine: str, batch: int) -> Row | None:
    """The published row of a machine at a total batch with the shortest epoch."""
    timed = [
        row
        for row in printed
        if row.hardware == machine
        and row.total_batch == batch
        and row.seconds_per_epoch is not None
        and not row.doubtful("seconds_per_epoch", "devices")
    ]
    return min(timed, key=lambda row: float(row.seconds_per_epoch), default=None)


def noise_scales(comparison: ways.Comparison) -> str:
    """The gradient noise scale in each quarter of every run that looked at it."""
    lines = []
    for training in comparison.trainings:
        record = training.record
        quarters = [record.noise(quarter / 4, (quarter + 1) / 4) for quarter in range(4)]
        whole = record.noise()
        if whole is None:
            continue
        lines.append(
            {
                "total batch": str(training.total_batch),
                "way": training.way,
                "learning rate": f"{record.run.learning_rate:g}",
                **{
                    f"quarter {number}": "not found" if noise is None or noise.scale is None else f"{noise.scale:.0f}"
                    for number, noise in enumerate(quarters, start=1)
                },
                "whole run": "not found" if whole.scale is None else f"{whole.scale:.0f}",
                "looks": str(whole.samples),
                "id": record.run_id,
            }
        )
    return cells.markdown(lines)
