"""The page behind "Which learning rate": every way that was tried, its curve, and the gradient noise."""

from __future__ import annotations

from collections.abc import Sequence

from poc.report import chart
from poc.report.measurements import CLOSED, OPEN, Measurement, division
from poc.report.page import MAIN_EPOCHS, MAIN_NETWORK, Picture, Results, Section
from poc.report.sections.rates import best_rates, median_accuracy, short_way, trainings, way
from poc.report.tables import accuracy_of, devices_of, markdown, network_label, rounded


def every_training(results: Results) -> Section:
    """What each way gave at each total batch, and the ways in full."""
    shown = [taken for name in (CLOSED, OPEN) for taken in trainings(results, name)]
    if not shown:
        return Section("", ())
    ways = list(dict.fromkeys(_but_for_the_rate(taken) for taken in shown))
    lines = [
        {
            "total batch": f"{taken.row.total_batch:,}",
            "way": _letter(ways.index(_but_for_the_rate(taken))),
            "division": division(taken.row.run),
            "rate": short_way(taken.row),
            "precision": taken.row.dtype,
            "devices": devices_of(taken.row),
            "accuracy": accuracy_of(taken.accuracies()),
            "last 4 epochs": rounded(_last4(taken)),
            "machine": results.name(taken.row),
        }
        for taken in sorted(shown, key=lambda taken: (taken.row.total_batch, -median_accuracy(taken)))
    ]
    listed = "\n".join(f"- {_letter(number)}: {words}" for number, words in enumerate(ways))
    about = (
        f"{network_label(MAIN_NETWORK)}, {MAIN_EPOCHS} epochs; accuracy on the test set after the last epoch, and "
        "the mean of the last four, one seed unless n says otherwise. The ways were sought on that same test set, so "
        "the best of several is flattered."
    )
    return Section("Every training", (about, markdown(lines), listed, *_curves(results)))


def published(results: Results) -> Section:
    """What the main study printed at each total batch and rate."""
    rows = results.published(lambda row: row.network == MAIN_NETWORK and row.accuracy is not None)
    lines = [
        {
            "total batch": f"{row.total_batch:,}",
            "devices": devices_of(row),
            "batch a device": f"{row.batch_per_device}",
            "rate": f"{row.learning_rate:g}",
            "accuracy": f"{row.accuracy:.3f}",
            "machine": results.name(row),
        }
        for row in sorted(rows, key=lambda row: (row.total_batch, -row.accuracy))
    ]
    return Section("Published rates", (markdown(lines),) if lines else ())


def noise(results: Results) -> Section:
    """The gradient noise scale of the runs that looked at it."""
    lines = []
    for record in results.records:
        run, whole = record.run, record.noise()
        if whole is None or run.quick or (run.model, run.epochs) != (MAIN_NETWORK, MAIN_EPOCHS):
            continue
        halves = [record.noise(half / 2, (half + 1) / 2) for half in range(2)]
        lines.append(
            {
                "total batch": f"{run.total_batch:,}",
                "division": division(run),
                "optimizer": run.optimizer.label,
                "rate": f"{run.learning_rate:g}",
                **{
                    f"{name} half": rounded(found.scale if found else None, 2) or "not found"
                    for name, found in zip(("first", "second"), halves)
                },
                "looks": str(whole.samples),
            }
        )
    lines.sort(key=lambda line: int(line["total batch"].replace(",", "")))
    about = (
        "Gradient noise scale (McCandlish et al. 2018), in samples: the batch at which a gradient is half noise. Far "
        "below it twice the batch nearly halves the steps; beyond it more devices pay less and less. `poc advise` "
        "measures it in a short run."
    )
    return Section("Gradient noise", (about, markdown(lines)) if lines else ())


def _but_for_the_rate(taken: Measurement) -> str:
    run = taken.row.run
    words = way(run).split(", ")
    return ", ".join(word for word in words if not word.startswith(("rate ", "linear: ")))


def _letter(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else f"A{number}"


def _last4(taken: Measurement) -> float | None:
    figures = taken.accuracies("accuracy_last4")
    return figures.median if figures else None


def _curves(results: Results) -> Sequence[Picture]:
    """Accuracy after each epoch: the best of either division at the smallest, a middle and the largest batch."""
    lines = []
    for name, found in best_rates(results).items():
        if name == "published" or not found:
            continue
        batches = list(found)
        for batch in dict.fromkeys((batches[0], batches[len(batches) // 2], batches[-1])):
            row = found[batch].rows[-1]
            record = next(one for one in results.records if (one.run_id, one.started) == (row.run_id, row.started))
            points = tuple(chart.Point(x=seen.epoch, y=seen.accuracy) for seen in record.evaluations)
            lines.append(chart.Line(label=f"{name}, total batch {batch:,}", points=points, here=name == CLOSED))
    if not lines:
        return ()
    figure = chart.lines(
        lines, title="How accuracy grows over the epochs", xlabel="epoch", ylabel="test accuracy", ticks="x"
    )
    caption = (
        f"Test accuracy of {network_label(MAIN_NETWORK)} after each epoch: solid the study's way at its best rate, "
        "dashed the best of other ways; one run each."
    )
    return (Picture("learning_curves", caption, figure),)
