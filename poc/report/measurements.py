"""What the takes of a setting gave together: every figure of a table is one of these, with its range and its number."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Iterable
from typing import Any, Callable, TypeVar, Union

from poc.recipe import CIFAR10, SGD
from poc.records.record import COMPLETED
from poc.records.timing import Window
from poc.run import NO_MATTER_FOR_SPEED, Run
from poc.studies.row import Row
from poc.values import value

CLOSED, OPEN = "closed", "open"
"""Divisions: trained as the main study's script did, but perhaps for the rate; in any other way."""
WAITED = 0.05
"""Share of the timed windows that waiting for batches may take before tables say so."""
T = TypeVar("T")


@value
class Figures:
    """One quantity, of several takes: the middle one, the least and the most."""

    values: tuple[float, ...]
    n: int
    median: float
    low: float
    high: float


# None where no take has one; as in a row, `Any` lets arithmetic follow a check in another function.
Known = Union[Figures, Any]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """All takes of one setting on one machine; a published row is one take."""

    rows: tuple[Row, ...]
    """Every take that completed; those of one setting in the order in which they were started."""

    @property
    def row(self) -> Row:
        """One that stands for all, with the median samples/s of those that nothing disturbed, where there are any."""
        if self.rate is None:
            return self.rows[-1]
        return dataclasses.replace(self.rows[-1], samples_per_second=self.rate.median, disturbed=not self.calm)

    @functools.cached_property
    def calm(self) -> bool:
        """Whether its samples/s are those of takes that nothing disturbed."""
        return any(not row.disturbed for row in self.rows)

    @property
    def signs(self) -> str:
        """What stands behind its samples/s: a star where every take was disturbed, a dagger where they waited."""
        return "*" * (not self.calm) + "†" * (waited(window for row in self.quiet for window in row.timed) > WAITED)

    @functools.cached_property
    def quiet(self) -> tuple[Row, ...]:
        """The takes that nothing disturbed, or all where none was left in peace."""
        return tuple(row for row in self.rows if not (self.calm and row.disturbed))

    @functools.cached_property
    def rate(self) -> Known:
        """Samples/s of the quiet takes."""
        return self.figures("samples_per_second")

    def figures(self, column: str) -> Known:
        """That column of the quiet takes."""
        return figures_of(getattr(row, column) for row in self.quiet)

    def accuracies(self, column: str = "accuracy") -> Known:
        """That column of the last take of each seed: what else a machine did changes how fast it trains, not what it
        learns, and a seed learns the same again."""
        return figures_of({row.seed: getattr(row, column) for row in self.rows}.values())


def waited(windows: Iterable[Window]) -> float:
    """Share of their time in which training stood still for the next batch."""
    spent = [(window.waited, window.seconds) for window in windows]
    return sum(waited for waited, _ in spent) / sum(seconds for _, seconds in spent) if spent else 0.0


def figures_of(takes: Iterable[float | None]) -> Known:
    """What is known of takes, together; None where that is nothing."""
    known = tuple(figure for figure in takes if figure is not None)
    if not known:
        return None
    return Figures(values=known, n=len(known), median=statistics.median(known), low=min(known), high=max(known))


def by_speed(rows: Iterable[Row]) -> list[Measurement]:
    """Rows that train at the same speed but for noise, as one measurement each; quick runs apart from others."""
    return _measurements(rows, *NO_MATTER_FOR_SPEED)


def by_run(rows: Iterable[Row]) -> list[Measurement]:
    """Rows of the same run but for the seed, as one measurement each."""
    return _measurements(rows, "seed")


def by_accuracy(rows: Iterable[Row]) -> list[Measurement]:
    """Rows that train alike but for the seed, the last take of every seed."""
    return [Measurement(tuple({row.seed: row for row in taken.rows}.values())) for taken in by_run(rows)]


def alike(measurements: Iterable[Measurement], *besides: str) -> list[list[Measurement]]:
    """Measured ones, those together whose runs differ only in these fields and in what does not matter for speed."""
    key = (*besides, *NO_MATTER_FOR_SPEED)
    return list(grouped(measurements, lambda taken: _but_for(taken.row, *key)).values())


def by_exchange(measurements: Iterable[Measurement], *besides: str) -> list[list[Measurement]]:
    """Measured ones, those together that differ only in how gradients travel, and in `besides`.

    GPUs are the same devices however many processes drive them; a CPU's workers have cores of their own.
    """
    groups = grouped(measurements, lambda taken: taken.row.kind)
    return [
        alike_ones
        for kind, of_kind in groups.items()
        for alike_ones in alike(of_kind, "kvstore", *besides, *(["workers"] if kind == "gpu" else []))
    ]


def _measurements(rows: Iterable[Row], *besides: str) -> list[Measurement]:
    done = [row for row in rows if not row.measured or row.outcome == COMPLETED]
    groups = grouped(done, lambda row: (row.quick, _but_for(row, *besides)) if row.measured else row)
    return [Measurement(tuple(sorted(group, key=lambda row: row.started))) for group in groups.values()]


def _but_for(row: Row, *besides: str) -> tuple[object, ...]:
    """What measured rows share that differ only in these fields of their runs: machine, versions and images too."""
    framework = "" if "framework" in besides else row.framework
    return (*same_conditions(row), framework, row.run.key(*besides))


def same_conditions(row: Row) -> tuple[object, ...]:
    """What measured rows share that may be pooled or compared: machine, images, environment, threads."""
    return row.machine, row.hardware, row.data_id, row.environment, row.fewer_threads


def grouped(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """The items by what `key` says of them, in the order in which it first said so."""
    groups: dict[Any, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def division(run: Run | None) -> str:
    """`CLOSED` or `OPEN`; of the main study there are no runs but only rows, all of them closed."""
    if run is None:
        return CLOSED
    scheduled = run.warmup_steps or run.decay != "constant" or run.label_smoothing or run.zero_init_gamma
    other = scheduled or run.averaged_views > 1
    return CLOSED if run.optimizer == SGD() and run.data == CIFAR10() and not other else OPEN
