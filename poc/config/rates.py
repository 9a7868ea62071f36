"""The learning rate of every step: how it grows with the batch, warm-up, decay. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

from poc.values import (
    UserError,
    checked,
    choice,
    either,
    field,
    invalid,
    positive,
    positive_or_zero,
    several,
    share,
    value,
)

BASE = "base"
"""Where a warm-up may start: from the rate that is not scaled."""
DECAYS: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "linear": lambda progress: 1 - progress,
}
"""What is left of the full rate after a share of the training, from 0 at the end of the warm-up to 1."""


@value
class Steps:
    """A rate that falls by `factor` at each of some points of the training."""

    at: Sequence[float]
    """Fractions of the training, warm-up included: 0.5 is half of it."""
    factor: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", several(self.at))
        if not isinstance(self.at, list) or not self.at:
            raise invalid("lr: Steps.at", self.at, "use fractions of the training, e.g. [0.5, 0.75]")
        for point in self.at:
            positive("lr: Steps.at", point)
            share("lr: Steps.at", point)
        positive("lr: Steps.factor", self.factor)


def _decay(name: str, given: object) -> None:
    if not isinstance(given, Steps):
        choice(tuple(DECAYS))(name, given)


@value
class Rate:
    """How the learning rate follows the global batch, and its warm-up and decay."""

    base: float = field(check=positive)
    warmup_epochs: float = field(default=0, check=positive_or_zero)
    """Epochs over which the rate rises, by the same amount every step, from `warmup_from` to its full value."""
    warmup_from: float | str = field(default=0.0, check=either(positive_or_zero, BASE))
    """A rate, or "base": the one that is not scaled, as in Goyal et al. 2017."""
    decay: str | Steps = field(default="constant", check=_decay)
    """After the warm-up: "constant", "cosine" (Loshchilov and Hutter 2017) or "linear" down to zero, or `Steps(...)`. A
    long warm-up and a linear decay are a one-cycle (Smith 2018)."""

    def __post_init__(self) -> None:
        checked(self, f"lr: {type(self).__name__}.")
        if self.warmup_from != 0.0 and not self.warmup_epochs:
            raise invalid(f"lr: {type(self).__name__}.warmup_from", self.warmup_from, "it needs warmup_epochs")

    def at(self, global_batch: int) -> float:
        """Full learning rate for a global batch of `global_batch` samples."""
        raise NotImplementedError


@value
class Fixed(Rate):
    """A rate that does not depend on the batch; a plain number is the same, without warm-up and decay."""

    def at(self, global_batch: int) -> float:
        return float(self.base)

    def __str__(self) -> str:
        return "fixed"


@value
class Linear(Rate):
    """The linear scaling rule (Goyal et al. 2017): `base` for every `per` samples of global batch."""

    per: int = field(check=positive)

    scaling = "linear"
    power = 1.0

    def at(self, global_batch: int) -> float:
        # 12 significant digits: 0.05 * 512 / 128 is 0.2, in the run's id as on paper.
        return float(f"{self.base * (global_batch / self.per) ** self.power:.12g}")

    def __str__(self) -> str:
        return f"{self.scaling}: {self.base:g} per {self.per}"


@value
class SquareRoot(Linear):
    """The square-root scaling rule (Krizhevsky 2014): `base` times the root of the global batch over `per`."""

    scaling = "square root"
    power = 0.5


def rate(given: Any) -> Rate:
    """The rate that is given, or that a plain number means; raises UserError."""
    if isinstance(given, Rate):
        return given
    positive("lr", given)
    return Fixed(base=given)


@value
class Schedule:
    """The learning rate over a training of so many steps."""

    learning_rate: float = field(label="lr {:g}")
    warmup_from: float = field(label=lambda rate: f"warm-up from {rate:g}" if rate else "")
    warmup_steps: int = field(label=lambda steps: f"warm-up of {steps} steps" if steps else "")
    steps: int
    """Optimizer steps in all."""
    decay: str = field(default="constant", label="decay {}")
    """After the warm-up: one of `DECAYS`, or "steps": by `decay_factor` at each share of training in `decay_at`."""
    decay_at: tuple[float, ...] = field(default=(), label=lambda at: "at " + " and ".join(map("{:g}".format, at)))
    decay_factor: float = field(default=0.1, label="times {:g}")

    def rate(self, step: int) -> float:
        """Learning rate of optimizer step `step` (0 is the first).

        In the warm-up it rises by the same amount every step from `warmup_from` to `learning_rate`, which step
        `warmup_steps` is the first to have (gradual warm-up, Goyal et al. 2017). The first step after the last would
        have what the decay ends with.
        """
        if step < self.warmup_steps:
            return self.warmup_from + (self.learning_rate - self.warmup_from) * step / self.warmup_steps
        if self.decay == "steps":
            falls = sum(step >= point * self.steps for point in self.decay_at)
            return self.learning_rate * self.decay_factor**falls
        progress = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate * DECAYS[self.decay](progress)


def steps_per_epoch(samples: int, global_batch: int) -> int:
    """Whole batches in an epoch; the samples left over differ from one epoch to the next.

    A short last batch would have shapes and a rate of its own. Raises UserError where there is no whole batch.
    """
    if global_batch > samples:
        raise UserError(
            f"batch_per_device x devices: the global batch {global_batch} is larger than the {samples} training "
            "images; use a smaller batch or fewer devices"
        )
    return samples // global_batch
