"""The learning rate of every step: scaling with the batch, warm-up, decay, range test. Pure arithmetic."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any, Callable, ClassVar, Literal, Union

import pydantic
from annotated_types import Ge, Gt, Le, Len, Lt

from poc.config.fields import configuration, field
from poc.values import Count, CountOrZero, Flag, Positive, PositiveOrZero, Share, UserError, as_list, checked, invalid

DECAYS: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "linear": lambda progress: 1 - progress,
}
"""Share of the full learning rate by progress, from 0 at the end of the warm-up to 1."""
_MOST_CANDIDATES = 1_000
_Fraction = Annotated[float, pydantic.Strict(), Gt(0), Lt(1)]
_ASCENDING = pydantic.AfterValidator(lambda numbers: tuple(sorted(numbers)))


@configuration
class Steps:
    """A learning rate that drops by `factor` at some points of the training."""

    at: Annotated[tuple[_Fraction, ...], Len(1), pydantic.BeforeValidator(as_list), _ASCENDING]
    """Fractions of the training, warm-up included: 0.5 is half of it."""
    factor: Positive = 0.1


@configuration
class Fixed:
    """A rate that does not depend on the batch, with its warm-up and decay; a plain number is one without them."""

    base: Positive
    warmup_epochs: PositiveOrZero = 0
    """Epochs over which the rate rises, by the same amount every step, from `warmup_from` to its full value."""
    warmup_from: PositiveOrZero | Literal["base"] = 0.0
    """A rate, or "base": the one that is not scaled, as in Goyal et al. 2017."""
    decay: Literal["constant", "cosine", "linear"] | Steps = "constant"
    """After the warm-up: "constant", "cosine" (Loshchilov and Hutter 2017) or "linear" down to zero, or `Steps(...)`. A
    long warm-up and a linear decay are a one-cycle (Smith 2018)."""

    def __post_init__(self) -> None:
        if self.warmup_from != 0.0 and not self.warmup_epochs:
            raise invalid(f"{type(self).__name__}.warmup_from", self.warmup_from, "it needs warmup_epochs")

    def at(self, global_batch: float) -> float:
        """Return the full learning rate for a global batch."""
        return self.base

    def schedule(self, global_batch: int, steps_per_epoch: int, steps: int) -> Schedule:
        """Return the rate of each of `steps` steps, at a global batch."""
        fields: dict[str, Any] = {"learning_rate": self.at(global_batch), "steps": steps, "decay": self.decay}
        if isinstance(self.decay, Steps):
            fields |= {"decay": "steps", "decay_at": self.decay.at, "decay_factor": self.decay.factor}
        warmup_from = float(self.base if self.warmup_from == "base" else self.warmup_from)
        return Schedule(warmup_from=warmup_from, warmup_steps=round(self.warmup_epochs * steps_per_epoch), **fields)

    def __str__(self) -> str:
        return "fixed"


@configuration
class Linear(Fixed):
    """The linear scaling rule (Goyal et al. 2017): `base` for every `per` samples of global batch."""

    per: Positive

    scaling: ClassVar[str] = "linear"
    power: ClassVar[float] = 1.0

    def at(self, global_batch: float) -> float:
        # 12 significant digits: 0.05 * 512 / 128 is 0.2, in the run's id as on paper.
        return float(f"{self.base * (global_batch / self.per) ** self.power:.12g}")

    def __str__(self) -> str:
        return f"{self.scaling}: {self.base:g} per {self.per:g}"


@configuration
class SquareRoot(Linear):
    """The square-root scaling rule (Krizhevsky 2014): `base` times the root of the global batch over `per`."""

    scaling = "square root"
    power = 0.5


@configuration
class Exponential:
    """A rate that grows by the same factor every step: the range test (Smith 2017, "Cyclical learning rates", 3.3)."""

    low: Positive
    """Learning rate of the first step."""
    high: Positive
    """Learning rate of the last step."""

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise invalid("Exponential.low", self.low, f"use less than high={self.high:g}")

    def schedule(self, global_batch: int, steps_per_epoch: int, steps: int) -> Schedule:
        """Return the rate of each step, the same for every global batch."""
        return Schedule(learning_rate=self.high, grows_from=self.low, warmup_from=0.0, warmup_steps=0, steps=steps)

    def __str__(self) -> str:
        return "fixed"


def _numbers(value: Any) -> Any:
    """Return several numbers as a tuple, and a single one, too."""
    values = as_list(value)
    return tuple(values if isinstance(values, list) else [values])


@configuration
class Search:
    """The rate of each global batch is found on a validation split (`poc/search.py`).

    Candidates are the rates from `low` to `high`, both included, with equal ratios between neighbours. Lists of
    warm-ups, momenta or weight decays multiply them.
    """

    low: Positive
    high: Positive
    points: Annotated[int, pydantic.Strict(), Ge(2), Le(100)] | None = None
    """Number of rates; by default neighbours differ by a factor of about two."""
    warmup_epochs: Annotated[tuple[PositiveOrZero, ...], Len(1), pydantic.BeforeValidator(_numbers)] = (0.0,)
    """As in `Fixed`; a list is searched."""
    warmup_from: PositiveOrZero = 0.0
    decay: Literal["constant", "cosine", "linear"] | Steps = "constant"
    momentum: Annotated[tuple[Share, ...], pydantic.BeforeValidator(_numbers)] = ()
    """In place of the optimizer's; a list is searched. Empty: the optimizer's."""
    weight_decay: Annotated[tuple[PositiveOrZero, ...], pydantic.BeforeValidator(_numbers)] = ()
    """As `momentum`."""
    rules: Flag = True
    """Train with the rates of the linear and of the square-root rule, too, to compare them with the one that was found:
    at each global batch but the smallest, from the rate found there."""

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise invalid("Search.low", self.low, f"it must be less than high={self.high:g}")
        if self.warmup_from > self.low:
            raise invalid("Search.warmup_from", self.warmup_from, f"use at most low={self.low:g}")
        if self.warmup_from and not any(self.warmup_epochs):
            raise invalid("Search.warmup_from", self.warmup_from, "it needs warmup_epochs")
        for name in ("warmup_epochs", "momentum", "weight_decay"):
            values = getattr(self, name)
            if len({*values}) < len(values):
                raise invalid(f"Search.{name}", list(values), "each value once")
        if (count := len(self.candidates)) > _MOST_CANDIDATES:
            raise UserError(f"Search: {count:,} candidates; the maximum is {_MOST_CANDIDATES:,}")
        if len({*self.rates}) < len(self.rates):
            reason = f"{self.low:g} to {self.high:g} has fewer distinct rates of three digits; use fewer points"
            raise invalid("Search.points", self.points, reason)

    @property
    def rates(self) -> list[float]:
        """The rates that are tried, ascending, with three significant digits but for the first and the last."""
        count = self.points or max(2, 1 + round(math.log2(self.high / self.low)))
        ratio = (self.high / self.low) ** (1 / (count - 1))
        return [self.low, *(float(f"{self.low * ratio**index:.3g}") for index in range(1, count - 1)), self.high]

    @property
    def middle(self) -> Fixed:
        """One rate in place of the search: the geometric mean of `low` and `high`, with its first schedule."""
        return self._fixed(float(f"{math.sqrt(self.low * self.high):.3g}"), self.warmup_epochs[0])

    @property
    def candidates(self) -> list[tuple[Fixed, dict[str, float]]]:
        """All candidates, by ascending rate: each a rate with its schedule, and what it replaces of the optimizer."""
        replaced = {name: getattr(self, name) for name in ("momentum", "weight_decay") if getattr(self, name)}
        grid = itertools.product(self.rates, self.warmup_epochs, *replaced.values())
        return [(self._fixed(base, warmup), dict(zip(replaced, values))) for base, warmup, *values in grid]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of candidates along each dimension of their grid: rates, warm-ups, momenta, weight decays."""
        return tuple(len(each) or 1 for each in (self.rates, self.warmup_epochs, self.momentum, self.weight_decay))

    def _fixed(self, base: float, warmup_epochs: float) -> Fixed:
        warmup_from = self.warmup_from if warmup_epochs else 0.0
        return Fixed(base=base, warmup_epochs=warmup_epochs, warmup_from=warmup_from, decay=self.decay)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


def rate(value: Any) -> Fixed | Exponential | Search:
    """Return a learning rate or a search as it is, and the fixed rate for a plain number; raises UserError."""
    return value if isinstance(value, (Fixed, Exponential, Search)) else Fixed(base=checked("lr", value, Positive))


AnyRate = Annotated[Union[Fixed, Exponential, Search], pydantic.BeforeValidator(rate)]


@configuration
class Schedule:
    """The learning rate over a training of so many steps."""

    learning_rate: float = field(label="lr {:g}")
    warmup_from: float = field(label=lambda rate: f"warm-up from {rate:g}" if rate else "")
    warmup_steps: CountOrZero = field(label=lambda steps: f"warm-up of {steps} steps" if steps else "")
    steps: Count
    """Total optimizer steps."""
    decay: Literal["constant", "cosine", "linear", "steps"] = field(default="constant", label="decay {}")
    """After the warm-up: one of `DECAYS`, or "steps": by `decay_factor` at each share of training in `decay_at`."""
    decay_at: tuple[float, ...] = field(default=(), label=lambda at: "at " + " and ".join(map("{:g}".format, at)))
    decay_factor: float = field(default=0.1, label="times {:g}")
    grows_from: float = field(default=0.0, label="growing exponentially from {:g}")
    """Learning rate of the first step of a range test, whose last step has `learning_rate`; 0: no range test."""

    def rate(self, step: int) -> float:
        """Return the learning rate of an optimizer step, counted from 0.

        In the warm-up it rises by the same amount every step from `warmup_from` to `learning_rate`, which step
        `warmup_steps` is the first to have (gradual warm-up, Goyal et al. 2017). The decay would end at the step after
        the last. In a range test the rate grows by the same factor every step.
        """
        if self.grows_from:
            return self.grows_from * (self.learning_rate / self.grows_from) ** (step / max(1, self.steps - 1))
        if step < self.warmup_steps:
            return self.warmup_from + (self.learning_rate - self.warmup_from) * step / self.warmup_steps
        if self.decay == "steps":
            drops = sum(step >= point * self.steps for point in self.decay_at)
            return self.learning_rate * self.decay_factor**drops
        progress = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate * DECAYS[self.decay](progress)


def steps_per_epoch(samples: int, global_batch: int) -> int:
    """Return the number of full batches in an epoch; the remaining samples differ from one epoch to the next.

    A short last batch would have shapes and a learning rate of its own. Raises UserError if there is no full batch.
    """
    if global_batch > samples:
        raise UserError(
            f"batch_per_device x devices x accumulate: the global batch {global_batch} is larger than the {samples} "
            "training images; use a smaller batch or fewer devices"
        )
    return samples // global_batch
