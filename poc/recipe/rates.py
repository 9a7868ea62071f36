"""The learning rate of every step: how it grows with the batch, warm-up, decay. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Union

from poc.values import UserError, nearest, positive, value

DECAYS = ("constant", "cosine", "linear", "one-cycle")
BASE = "base"
"""Where a warm-up may start: from the rate that is not scaled."""
# The last part of a one-cycle, in which the rate falls to zero (Smith 2018 has "a bit of the end" for it).
_ANNIHILATION = 0.1
_CYCLE_DEPTH = 0.1


@value
class Steps:
    """A rate that falls by `factor` at each of some points of the training."""

    at: Sequence[float]
    """Fractions of the training, warm-up included: 0.5 is half of it."""
    factor: float = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.at, str) or not isinstance(self.at, Sequence) or not self.at:
            raise UserError(f"lr: Steps.at: {self.at!r} is not allowed; give fractions, e.g. [0.5, 0.75]")
        for point in self.at:
            positive("lr: Steps.at", point)
            if point >= 1:
                raise UserError(f"lr: Steps.at: {point!r} is not allowed; give fractions below 1")
        positive("lr: Steps.factor", self.factor)


@value
class Linear:
    """The linear scaling rule (Goyal et al. 2017): `base` for every `per` samples of total batch."""

    base: float
    per: int
    warmup_epochs: float = 0
    """Epochs over which the rate rises, by the same amount every step, from `warmup_from` to its full value."""
    warmup_from: float | str = 0.0
    """A rate, or "base": the one that is not scaled, as in Goyal et al. 2017."""
    decay: str | Steps = "constant"
    """After the warm-up: "constant", "cosine" (Loshchilov and Hutter 2017) or "linear" down to zero, "one-cycle" (Smith
    2018: over its first nine tenths back to a tenth, then to zero; the warm-up is the way up), or `Steps(...)`."""

    scaling = "linear"

    def __post_init__(self) -> None:
        _check(self)
        positive(f"lr: {type(self).__name__}.per", self.per)

    def rate(self, total_batch: int) -> float:
        """Learning rate for a total batch of `total_batch` samples."""
        # 12 significant digits: 0.05 * 512 / 128 is 0.2, in the run's id as on paper.
        return float(f"{self.base * total_batch / self.per:.12g}")

    def __str__(self) -> str:
        return f"{self.scaling}: {self.base:g} per {self.per}"


@value
class SquareRoot(Linear):
    """The square-root scaling rule (Krizhevsky 2014): `base` times the root of the total batch over `per`."""

    scaling = "square root"

    def rate(self, total_batch: int) -> float:
        """Learning rate for a total batch of `total_batch` samples."""
        return float(f"{self.base * math.sqrt(total_batch / self.per):.12g}")


@value
class Fixed:
    """A rate that does not depend on the batch; a plain number is the same, without warm-up and decay."""

    base: float
    warmup_epochs: float = 0
    warmup_from: float | str = 0.0
    decay: str | Steps = "constant"

    def __post_init__(self) -> None:
        _check(self)

    def rate(self, total_batch: int) -> float:
        """The rate, whatever the batch."""
        return float(self.base)

    def __str__(self) -> str:
        return "fixed"


Rule = Union[Fixed, Linear, SquareRoot]
RULES = (Fixed, Linear, SquareRoot)


def _check(rule: Any) -> None:
    name = type(rule).__name__
    positive(f"lr: {name}.base", rule.base)
    positive(f"lr: {name}.warmup_epochs", rule.warmup_epochs, zero=True)
    if rule.warmup_from != BASE:
        positive(f"lr: {name}.warmup_from", rule.warmup_from, zero=True)
    if not isinstance(rule.decay, Steps) and rule.decay not in DECAYS:
        raise UserError(f"lr: {name}.decay: {rule.decay!r} is not allowed; {nearest(str(rule.decay), DECAYS)}")


@value
class Schedule:
    """The learning rate over a training of so many steps."""

    target: float
    start: float = 0.0
    """Of the warm-up."""
    warmup_steps: int = 0
    steps: int = 1
    """In all."""
    decay: str = "constant"
    """One of `DECAYS`, or "steps"."""
    decay_at: tuple[float, ...] = ()
    decay_factor: float = 0.1

    def rate(self, step: int) -> float:
        """Learning rate of optimizer step `step` (0 is the first).

        In the warm-up it rises by the same amount every step from `start` to `target`, which step `warmup_steps` is
        the first to have (gradual warm-up, Goyal et al. 2017). The first step after the last would have what the decay
        ends with.
        """
        if step < self.warmup_steps:
            return self.start + (self.target - self.start) * step / self.warmup_steps
        if self.decay == "steps":
            return self.target * self.decay_factor ** sum(step >= point * self.steps for point in self.decay_at)
        return self.target * _decayed(self.decay, (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps))


def _decayed(decay: str, progress: float) -> float:
    """What is left of the full rate after a share of the training, from 0 at the end of the warm-up to 1."""
    if decay == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    if decay == "linear":
        return 1 - progress
    if decay == "one-cycle":
        down = 1 - _ANNIHILATION
        if progress < down:
            return 1 - (1 - _CYCLE_DEPTH) * progress / down
        return _CYCLE_DEPTH * (1 - progress) / _ANNIHILATION
    return 1.0


def steps_per_epoch(samples: int, total_batch: int) -> int:
    """Whole batches in an epoch; the samples left over differ from one epoch to the next.

    A short last batch would have shapes and a rate of its own. Raises UserError where there is no whole batch.
    """
    if total_batch > samples:
        raise UserError(
            f"batch_per_device x devices: the total batch {total_batch} is larger than the {samples} training images; "
            "take a smaller batch or fewer devices"
        )
    return samples // total_batch
