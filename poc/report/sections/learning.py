"""The page behind "Which learning rate": every way that was tried, the curves of the best, and the gradient noise."""

from __future__ import annotations

from collections.abc import Sequence

from poc.records.record import COMPLETED
from poc.report import chart
from poc.report.measurements import CLOSED, Measurement, division
from poc.report.page import MAIN_EPOCHS, MAIN_NETWORK, Picture, Results, Section
from poc.report.sections.rates import best_rates, published_trainings, short_way, trainings, way
from poc.report.tables import accuracy_of, cells, markdown, network_label, rounded


def every_training(results: Results) -> Section:
    """What each way gave at each total batch, and the ways in full."""
    about = (
        f"{network_label(MAIN_NETWORK)}, {MAIN_EPOCHS} epochs; accuracy on the test set after the last epoch, and "
        "the mean of the last four, one seed unless n says otherwise. Most ways were sought on that same test set, so "
        "the best of several is flattered."
    )
    return Section("Every training", (about, *_ways(results, trainings(results)), *_curves(results)))


def search(results: Results) -> Section:
    """The same for ways of any network that were sought on held-out images."""
    about = (
        "Epochs of 45,000 of CIFAR-10's training images; accuracy on the other 5,000, which a search looks at in place "
        "of the test set. Its standard error, of so many images, is 0.005 at an accuracy of 0.87."
    )
    shown = results.accuracies(lambda row: True, searched=True)
    return Section("The search", (about, *_ways(results, shown, "network", "epochs")))


def _ways(results: Results, shown: Sequence[Measurement], *columns: str) -> tuple[str, str]:
    letters = _letters(shown)
    lines = [
        {
            **cells(taken, *columns, "total batch"),
            "way": letters[way(taken.row.run)],
            "rate": short_way(taken.row),
            **cells(taken, "precision", "devices"),
            "accuracy": accuracy_of(taken.accuracies()),
            "last 4 epochs": rounded(last.median if (last := taken.accuracies("accuracy_last4")) else None),
            "machine": results.name(taken.row),
        }
        for taken in sorted(shown, key=_by_batch)
    ]
    divisions = {way(taken.row.run): division(taken.row.run) for taken in shown}
    listed = "\n".join(f"- {letter} ({divisions[words]}): {words}" for words, letter in letters.items())
    return markdown(lines), listed


def _letters(shown: Sequence[Measurement]) -> dict[str, str]:
    """A letter for each way of training."""
    ways = dict.fromkeys(way(taken.row.run) for taken in shown)
    return {words: chr(ord("A") + number) if number < 26 else f"A{number}" for number, words in enumerate(ways)}


def published(results: Results) -> Section:
    """What the main study printed at each total batch and rate."""
    lines = [
        {
            **cells(taken, "total batch", "devices", "batch a device"),
            "rate": short_way(taken.row),
            "accuracy": accuracy_of(taken.accuracies()),
            "machine": results.name(taken.row),
        }
        for taken in sorted(published_trainings(results), key=_by_batch)
    ]
    return Section("Published rates", (markdown(lines),))


def noise(results: Results) -> Section:
    """The gradient noise scale of the runs that looked at it."""
    lines, letters = [], _letters(trainings(results))
    for record, row in sorted(zip(results.records, results.rows), key=lambda both: both[0].run.global_batch):
        run, whole = record.run, record.noise()
        if whole is None or run.quick or record.outcome != COMPLETED or record.dataset == "synthetic":
            continue
        if (run.model, run.epochs) != (MAIN_NETWORK, MAIN_EPOCHS):
            continue
        found = [record.noise(half / 2, (half + 1) / 2) for half in range(2)]
        halves = [rounded(noise.scale, 2) if noise else "not found" for noise in found]
        if between := record.noise_interval(0.5):
            halves[1] += f" ({rounded(between[0], 2)} to {rounded(between[1], 2) or 'no end seen'})"
        lines.append(
            {
                "total batch": f"{run.global_batch:,}",
                "way": letters.get(way(run), ""),
                "rate": short_way(row),
                "seed": f"{run.seed}",
                "first half": halves[0],
                "second half (90%)": halves[1],
                "looks": str(whole.samples),
            }
        )
    about = (
        "Gradient noise scale (McCandlish et al. 2018), in samples: the batch at which a gradient is half noise. Far "
        "below it twice the batch nearly halves the steps; beyond it more devices pay less and less. Intervals are a "
        "bootstrap over blocks of looks. Ways have their letters from *Every training*. `poc advise` measures it in a "
        "short run."
    )
    return Section("Gradient noise", (about, markdown(lines)))


def _by_batch(taken: Measurement) -> tuple[int, float]:
    return taken.row.global_batch, -taken.accuracies().median


def _curves(results: Results) -> Sequence[Picture]:
    """Accuracy after each epoch: the best of either division at the smallest, a middle and the largest batch."""
    lines = []
    for name, best in best_rates(results).items():
        batches = list(best)
        for batch in dict.fromkeys(batches[place] for place in (0, len(batches) // 2, -1) if batches):
            if record := results.record(best[batch]):
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
