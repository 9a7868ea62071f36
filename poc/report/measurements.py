"""What the takes of a setting gave together: every figure of a table is one of these, with its range and its number."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from poc.recipe import CIFAR10, SGD
from poc.records.record import COMPLETED
from poc.run import Run
from poc.studies.row import Row

NO_MATTER_FOR_SPEED = (
    *("seed", "learning_rate", "lr_rule", "warmup_from", "warmup_steps", "decay", "decay_at", "decay_factor"),
    *("epochs", "steps", "steps_per_epoch", "seconds", "window", "evaluate", "quick"),
)
"""In which runs of one setting may differ, as far as their samples a second go: how long they train, at which rate."""
CLOSED, OPEN = "closed", "open"
"""Divisions: trained as the main study's script did, but perhaps for the rate; in any other way."""


@dataclasses.dataclass(frozen=True)
class Figures:
    """One quantity, of several takes."""

    values: tuple[float, ...]

    @property
    def n(self) -> int:
        """How many takes."""
        return len(self.values)

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The least."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The most."""
        return max(self.values)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """All takes of one setting on one machine; a published row is one take."""

    rows: tuple[Row, ...]
    """Every take that completed, in the order in which they were started."""

    @property
    def row(self) -> Row:
        """One that stands for all, with their median samples/s."""
        rate = self.rate
        return self.rows[-1] if rate is None else dataclasses.replace(self.rows[-1], samples_per_second=rate.median)

    @property
    def calm(self) -> bool:
        """Whether its samples/s are those of takes that nothing disturbed."""
        return any(not row.disturbed for row in self.rows)

    @property
    def rate(self) -> Figures | None:
        """Samples/s of the takes that nothing disturbed, or of all where none was left in peace."""
        return self.figures("samples_per_second")

    def figures(self, column: str) -> Figures | None:
        """That column of the same takes; None where none has it."""
        return self._of([row for row in self.rows if not (self.calm and row.disturbed)], column)

    def accuracies(self, column: str = "accuracy") -> Figures | None:
        """That column of all takes: what else a machine did changes how fast it trains, not what it learns."""
        return self._of(self.rows, column)

    @staticmethod
    def _of(rows: Sequence[Row], column: str) -> Figures | None:
        known = [getattr(row, column) for row in rows if getattr(row, column) is not None]
        return Figures(tuple(known)) if known else None


def by_speed(rows: Iterable[Row]) -> list[Measurement]:
    """Rows that train at the same speed but for noise, as one measurement each; quick runs apart from others."""
    return _grouped(rows, NO_MATTER_FOR_SPEED)


def by_run(rows: Iterable[Row]) -> list[Measurement]:
    """Rows of the same run but for the seed, as one measurement each."""
    return _grouped(rows, ("seed",))


def by_accuracy(rows: Iterable[Row]) -> list[Measurement]:
    """Rows that train alike but for the seed, the last take of every seed."""
    return [Measurement(tuple({row.seed: row for row in taken.rows}.values())) for taken in by_run(rows)]


def _grouped(rows: Iterable[Row], besides: Sequence[str]) -> list[Measurement]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        if not row.measured:
            groups[row] = [row]
        elif row.outcome == COMPLETED:
            groups.setdefault((*same_machine(row), row.quick, row.run.key(*besides)), []).append(row)
    return [Measurement(tuple(sorted(group, key=lambda row: row.started))) for group in groups.values()]


def same_machine(row: Row) -> tuple[str, ...]:
    """What rows share that were measured on one machine, with one version of one framework, on the same images."""
    return (row.infrastructure, row.hardware, row.framework, row.dataset)


def division(run: Run) -> str:
    """`CLOSED` or `OPEN`."""
    scheduled = run.warmup_steps or run.decay != "constant" or run.label_smoothing or run.zero_gamma
    return CLOSED if run.optimizer == SGD() and run.data == CIFAR10() and not scheduled else OPEN


def of_division(row: Row, name: str) -> bool:
    """Whether a row trained so; the main study's rows are all closed."""
    return (division(row.run) if row.measured else CLOSED) == name
