"""Which learning rate keeps the accuracy as the total batch grows: published, and in either division."""

from __future__ import annotations

from collections.abc import Iterable

from poc.recipe import CIFAR10, Muon
from poc.report import chart
from poc.report.measurements import CLOSED, OPEN, Measurement, of_division
from poc.report.page import MAIN_EPOCHS, MAIN_NETWORK, Picture, Results, Section
from poc.report.tables import accuracy_of, markdown
from poc.run import Run
from poc.studies.row import Row
from poc.values import words


def section(results: Results) -> Section:
    """The best of each kind at each total batch, as a table and as a figure."""
    best = best_rates(results)
    if not any(best.values()):
        return Section("", ())
    about = (
        f"Accuracy of ResNet-50 (CIFAR) after {MAIN_EPOCHS} epochs at the best rate that was tried. Closed: the "
        "study's way but for the rate. Open: any other way, same network, images and epochs. Ways were sought on the "
        "test set, one seed unless n says otherwise: differences of 0.02 are none. Batches of several devices were "
        "played by virtual ones, whose accuracy is that of real ones."
    )
    smallest = {kind: next(iter(found.values()), None) for kind, found in best.items()}
    table = [
        {
            "total batch": f"{batch:,}",
            **_cells("published", best["published"].get(batch), smallest["published"]),
            **_cells(CLOSED, best[CLOSED].get(batch), smallest[CLOSED]),
            **_cells(OPEN, best[OPEN].get(batch), smallest[OPEN]),
        }
        for batch in sorted({batch for found in best.values() for batch in found})
    ]
    return Section("Which learning rate", (about, markdown(table), *_picture(best)))


def best_rates(results: Results) -> dict[str, dict[int, Measurement]]:
    """By kind (published, closed, open) the most accurate measurement at each total batch, ascending."""
    return {
        "published": _best(Measurement((row,)) for row in results.published(_printed)),
        **{name: _best(trainings(results, name)) for name in (CLOSED, OPEN)},
    }


def trainings(results: Results, name: str) -> list[Measurement]:
    """What runs of a division gave over the study's epochs, its network and images; all of them by synchronous SGD."""

    def fits(row: Row) -> bool:
        run = row.run
        return (
            row.measured
            and (row.network, run.epochs, run.whole_epochs) == (MAIN_NETWORK, MAIN_EPOCHS, True)
            and isinstance(run.data, CIFAR10)
            and not (run.exchanges and run.exchange.name != "device")
            and of_division(row, name)
        )

    return results.accuracies(fits)


def way(run: Run) -> str:
    """How `run` trains: all but its network, its batch and its devices, in words."""
    optimizer, said = run.optimizer, {**words(run), **words(run.optimizer)}
    parts = [
        f"{optimizer.label} {optimizer.rate:g}" if isinstance(optimizer, Muon) else optimizer.label,
        f"rate {run.learning_rate:g}" if run.lr_rule == "fixed" else run.lr_rule,
        *(said.get(name, "") for name in ("momentum", "momentum_correction", "weight_decay", "decay_gammas")),
        f"warm-up over {run.warmup_steps / run.steps:.0%} of the steps" if run.warmup_steps else "",
        said.get("decay", ""),
        *(said.get(name, "") for name in ("label_smoothing", "zero_gamma")),
    ]
    if isinstance(run.data, CIFAR10):
        parts.append(f"crop {run.data.crop} of {32 + 2 * run.data.pad}")
        parts += ["mirror"] * run.data.mirror + ["colours moved"] * run.data.jitter
    return ", ".join(filter(None, parts))


def _printed(row: Row) -> bool:
    return (row.network, row.epochs) == (MAIN_NETWORK, MAIN_EPOCHS) and None not in (row.accuracy, row.total_batch)


def _best(measurements: Iterable[Measurement]) -> dict[int, Measurement]:
    found: dict[int, list[Measurement]] = {}
    for taken in measurements:
        found.setdefault(taken.row.total_batch, []).append(taken)
    return {batch: max(found[batch], key=median_accuracy) for batch in sorted(found)}


def median_accuracy(taken: Measurement) -> float:
    """Of a measurement whose rows have one."""
    figures = taken.accuracies()
    assert figures is not None
    return figures.median


def short_way(row: Row) -> str:
    """Rate and optimizer, for a cell."""
    rate = f"{row.learning_rate:g}"
    if not row.measured or of_division(row, CLOSED):
        return rate
    optimizer = row.run.optimizer
    return (
        f"{optimizer.label} {optimizer.rate:g}, {rate}" if isinstance(optimizer, Muon) else f"{optimizer.label}, {rate}"
    )


def _cells(kind: str, taken: Measurement | None, smallest: Measurement | None) -> dict[str, str]:
    titles = (f"{kind}: rate", f"{kind}: accuracy (lost)")
    if taken is None or smallest is None:
        return dict.fromkeys(titles, "")
    lost = median_accuracy(taken) - median_accuracy(smallest)
    text = accuracy_of(taken.accuracies())
    return dict(zip(titles, (short_way(taken.row), f"{text} ({lost:+.3f})" if taken is not smallest else text)))


def _picture(best: dict[str, dict[int, Measurement]]) -> list[Picture]:
    names = {
        "published": "published, K80 and P100",
        CLOSED: "measured, the study's way",
        OPEN: "measured, best way found",
    }
    lines = []
    for kind, found in best.items():
        points = tuple(chart.Point(x=batch, y=median_accuracy(taken)) for batch, taken in found.items())
        if points:
            lines.append(chart.Line(label=names[kind], points=points, here=kind != "published"))
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
        "that was tried; one seed a point."
    )
    return [Picture("learning_rate", caption, figure)]
