"""What an accuracy costs in time, money and energy."""

from __future__ import annotations

from collections.abc import Sequence

from poc.report.measurements import CLOSED, OPEN, Measurement, division
from poc.report.page import MAIN_NETWORK, Results, Section
from poc.report.rows import TARGET
from poc.report.sections.rates import trainings
from poc.report.tables import devices_of, machine_of, markdown, rounded
from poc.studies.row import Row
from poc.values import value


@value
class Reached:
    """A setting that reached the accuracy."""

    row: Row
    minutes: float
    bound: bool
    """It took at most so long: the study prints nothing but the end."""
    n: int
    """Runs that these are the median of."""

    @property
    def dollars(self) -> float | None:
        """By the price of an hour of the devices in use; None where it is unknown."""
        return None if self.row.dollars_per_hour is None else self.minutes / 60 * self.row.dollars_per_hour


def section(results: Results) -> Section:
    """Minutes, dollars and joules to the accuracy, of each machine the fastest and the cheapest setting."""
    shown = reached(results)
    if not shown:
        return Section("", ())
    about = (
        f"To a test accuracy of {TARGET:g}, ResNet-50 (CIFAR): minutes of training, evaluation not counted. ≤: the "
        "study prints the end of 12 epochs alone. $: the price of an hour for the share of the machine's devices in "
        "use; empty where no price is known (`report --price NAME=DOLLARS` gives one)."
    )
    table = [
        {
            "machine": results.name(found.row),
            "devices": devices_of(found.row),
            "total batch": f"{found.row.total_batch:,}",
            "division": division(found.row.run) if found.row.measured else CLOSED,
            "minutes": _bounded(found, found.minutes),
            "$": _bounded(found, found.dollars),
            "J a sample": rounded(found.row.joules_per_sample, 2),
            "$ an hour": rounded(found.row.dollars_per_hour, 3),
            "price of": found.row.price_from,
        }
        for found in shown
    ]
    return Section("Time and money", (about, markdown(table)))


def reached(results: Results) -> list[Reached]:
    """Of each machine and division the setting that took least, and where another one cost least that too."""
    own = [found for name in (CLOSED, OPEN) for taken in trainings(results, name) if (found := _measured(taken))]
    theirs = [found for row in results.published(lambda row: row.network == MAIN_NETWORK) if (found := _printed(row))]
    groups: dict[tuple[object, ...], list[Reached]] = {}
    for found in [*own, *theirs]:
        row = found.row
        kind = division(row.run) if row.measured else CLOSED
        groups.setdefault((machine_of(row), kind), []).append(found)
    return [found for group in groups.values() for found in _best(group)]


def _best(group: Sequence[Reached]) -> list[Reached]:
    fastest = min(group, key=lambda found: found.minutes)
    cheapest = min(group, key=lambda found: found.dollars if found.dollars is not None else found.minutes)
    return [fastest] if cheapest is fastest or fastest.dollars is None else [fastest, cheapest]


def _measured(taken: Measurement) -> Reached | None:
    figures = None if taken.row.virtual else taken.figures("seconds_to_075")
    if figures is None:
        return None
    return Reached(row=taken.row, minutes=figures.median / 60, bound=False, n=figures.n)


def _printed(row: Row) -> Reached | None:
    usable = row.accuracy is not None and row.seconds_per_epoch and not row.doubtful("seconds_per_epoch", "devices")
    if not usable or row.accuracy < TARGET:
        return None
    return Reached(row=row, minutes=row.epochs * row.seconds_per_epoch / 60, bound=True, n=1)


def _bounded(found: Reached, figure: float | None) -> str:
    text = rounded(figure, 2)
    return f"≤ {text}" if text and found.bound else text
