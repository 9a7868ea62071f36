"""What an accuracy costs in time, money and energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Callable

from poc.recipe import CIFAR10
from poc.report import chart
from poc.report.measurements import CLOSED, Measurement, division, figures_of, grouped
from poc.report.page import MAIN_BATCH, MAIN_EPOCHS, MAIN_NETWORK, Picture, Results, Section
from poc.report.rows import TARGET, trained_by
from poc.report.sections import machines
from poc.report.sections.rates import trainings
from poc.report.tables import (
    cells,
    devices_of,
    machine_of,
    markdown,
    network_label,
    rounded,
    short_machine,
)
from poc.run import Run
from poc.studies.row import Row
from poc.values import value


@value
class Reached:
    """A setting that reached the accuracy."""

    taken: Measurement
    minutes: float
    n: int
    """Runs that these are the median of."""

    @property
    def row(self) -> Row:
        """One that stands for all."""
        return self.taken.row

    @property
    def division(self) -> str:
        """As in other tables; where the network is not the study's, that too."""
        own, network = division(self.row.run), network_label(self.row.model)
        return own if self.row.model == MAIN_NETWORK else f"{own}, {network}"

    @property
    def bound(self) -> bool:
        """Whether it took at most so long: a study prints nothing but the end."""
        return not self.row.measured

    @property
    def dollars(self) -> float | None:
        """By the price of an hour of the devices in use; None where it is unknown."""
        return None if self.row.dollars_per_hour is None else self.minutes / 60 * self.row.dollars_per_hour


def section(results: Results) -> Section:
    """Minutes, dollars and joules to the accuracy, of each machine the fastest and the cheapest setting."""
    about = (
        f"To a test accuracy of {TARGET:g}, {network_label(MAIN_NETWORK)} where no other network is named: minutes of "
        "training, evaluation not counted. ≤: the study prints the end of 12 epochs alone. $: the price of an hour for "
        "the share of the machine's devices in use; empty where no price is known (`report --price NAME=DOLLARS` gives "
        "one)."
    )
    table = [
        {
            "machine": results.name(found.row),
            **cells(found.taken, "devices", "total batch"),
            "division": found.division,
            "minutes": _bounded(found, found.minutes) + f" (n={found.n})" * (found.n > 1) + found.taken.signs,
            "$": _bounded(found, found.dollars),
            "J a sample": rounded(found.row.joules_per_sample, 2),
            "$ an hour": rounded(found.row.dollars_per_hour),
            "price of": found.row.price_from,
        }
        for found in reached(results)
    ]
    return Section("Time and money", (about, markdown(table), *_picture(results)))


def targets(results: Results) -> Section:
    """What runs that were to end at an accuracy took, whether they reached it or not."""
    about = (
        "Runs that end at the first evaluation to reach their target on the test set, and how many of the seeds that "
        "completed reached it. Medians over seeds. In all: from the start of the process, evaluation included, and how "
        f"much that is of {MAIN_EPOCHS} epochs of {network_label(MAIN_NETWORK)} the study's way, in float32 at batch "
        f"{MAIN_BATCH} on the same devices; "
        "energy is that of training, money that of all."
    )
    studies_way = {
        (row.machine, devices_of(row)): taken.figures("wall_seconds").median
        for taken in trainings(results)
        if division((row := taken.row).run) == CLOSED and row.global_batch == MAIN_BATCH and machines.linear(row)
        if row.dtype == "float32" and results.is_usual(row) and taken.figures("wall_seconds")
    }
    table = [
        {
            "machine": results.name(taken.row),
            **cells(taken, "network", "devices"),
            "engine": f"{taken.row.framework}, {taken.row.dtype}",
            "epochs": rounded(taken.accuracies("epochs").median),
            "target, reached": f"{_target(taken.row.run)}, {_reached(taken)}",
            "accuracy": f"{taken.accuracies().median:.3f}",
            "minutes: training, in all (of the study's)": _minutes(taken, studies_way),
            "energy, money": " ".join(
                [_medians(taken, "{} kJ", _kilojoules), _medians(taken, "${}", _dollars)]
            ).strip(),
        }
        for taken in results.accuracies(lambda row: row.target_accuracy is not None and not row.emulated)
    ]
    return Section("To a target", (about, markdown(table)))


def _minutes(taken: Measurement, studies_way: Mapping[tuple[str, str], float]) -> str:
    whole = studies_way.get((taken.row.machine, devices_of(taken.row)))
    in_all = taken.figures("wall_seconds")
    if in_all is None:
        return ""
    share = f" ({in_all.median / whole:.0%})" if whole else ""
    return _medians(taken, "{}", _training_minutes, _wall_minutes) + taken.signs + share


def _target(run: Run) -> str:
    views = f" of {run.averaged_views} views" * (run.averaged_views > 1)
    return f"{run.target_accuracy:g}{views}"


def _reached(taken: Measurement) -> str:
    return f"{sum(row.accuracy >= row.target_accuracy for row in taken.rows)} of {len(taken.rows)}"


def _medians(taken: Measurement, form: str, *of: Callable[[Row], float | None]) -> str:
    """The medians of what each of these says of the takes that nothing disturbed, or of all, as far as known."""
    known = [figures_of(map(each, taken.quiet)) for each in of]
    return ", ".join(form.format(rounded(figures.median)) for figures in known if figures)


def _wall_minutes(row: Row) -> float | None:
    return None if row.wall_seconds is None else row.wall_seconds / 60


def _training_minutes(row: Row) -> float | None:
    if row.wall_seconds is None:
        return None
    return sum(getattr(row, f"{part}_seconds") for part in ("warmup", "train", "data")) / 60


def _kilojoules(row: Row) -> float | None:
    return None if row.joules_per_sample is None else row.joules_per_sample * row.samples_trained / 1000


def _dollars(row: Row) -> float | None:
    if row.wall_seconds is None:
        return None
    return None if row.dollars_per_hour is None else row.dollars_per_hour * row.wall_seconds / 3600


def reached(results: Results) -> list[Reached]:
    """Of each machine and division the setting that took least, and where another one cost least that too.

    On the machine at hand all networks but the main study's are one division more.
    """

    def is_other(row: Row) -> bool:
        return results.is_here(row) and row.model != MAIN_NETWORK and isinstance(row.run.data, CIFAR10)

    own = [
        Reached(taken=taken, minutes=figures.median / 60, n=figures.n)
        for taken in (*trainings(results), *results.accuracies(is_other))
        if (figures := taken.figures("seconds_to_075"))
        and not taken.row.emulated
        # Where a seed never reached it, those that did are not what it takes.
        and None not in [row.seconds_to_075 for row in taken.rows]
    ]
    theirs = [
        Reached(taken=taken, minutes=taken.row.epochs * taken.row.seconds_per_epoch / 60, n=1)
        for taken in results.published(_printed)
    ]
    groups = grouped(
        [*own, *theirs],
        lambda found: (machine_of(found.row), found.row.model == MAIN_NETWORK and found.division),
    )
    return [found for group in groups.values() for found in _best(group)]


def _best(group: Sequence[Reached]) -> list[Reached]:
    fastest = min(group, key=lambda found: found.minutes)
    cheapest = min(group, key=lambda found: found.dollars if found.dollars is not None else found.minutes)
    return [fastest] if cheapest is fastest or fastest.dollars is None else [fastest, cheapest]


def _printed(row: Row) -> bool:
    reached = row.model == MAIN_NETWORK and (row.accuracy or 0) >= TARGET
    return bool(reached and row.seconds_per_epoch and not row.doubtful("seconds_per_epoch", "devices"))


def _picture(results: Results) -> list[Picture]:
    """Accuracy against minutes: the curves of measured settings, of published ones the end."""
    lines = []
    # Other machines of one's own make room for the published ones.
    shown = sorted(reached(results), key=lambda found: not results.is_here(found.row) and found.row.measured)
    for found in shown[: chart.MOST_LINES]:
        row, points = found.row, [chart.Point(x=found.minutes, y=found.row.accuracy)]
        if record := results.record(found.taken):
            points = [
                chart.Point(x=trained_by(seen.epoch, record) / 60, y=seen.accuracy) for seen in record.evaluations
            ]
        label = f"{short_machine(row)}, {devices_of(row)}, {found.division}"
        lines.append(chart.Line(label=label, points=tuple(points), here=results.is_here(row)))
    if len(lines) < 2:
        return []
    figure = chart.lines(
        lines, title="Accuracy for time", xlabel="minutes of training", ylabel="test accuracy", log="x"
    )
    caption = (
        f"Test accuracy against minutes of training, {network_label(MAIN_NETWORK)} where no other network is named: of "
        f"each machine and division what reached {TARGET:g} first, and what cost least where that is another; of a "
        f"study the end alone. One run each.{chart.left_out(len(shown))}"
    )
    return [Picture("accuracy_time", caption, figure)]


def _bounded(found: Reached, figure: float | None) -> str:
    text = rounded(figure, 2)
    return f"≤ {text}" if text and found.bound else text
