"""The learning rate of every step: scaling rule and warm-up. Pure arithmetic."""

from __future__ import annotations

from poc.errors import UserError
from poc.values import value


def positive(name: str, number: object, *, zero: bool = False) -> None:
    """Raises UserError unless `number` is a number above zero (or zero, where `zero` allows it)."""
    allowed = "zero or more" if zero else "above zero"
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not (number > 0 or (zero and number == 0)):
        raise UserError(f"{name}: {number!r} is not allowed; give a number {allowed}")
    if number == float("inf"):
        raise UserError(f"{name}: infinity is not allowed; give a finite number {allowed}")


@value
class Linear:
    """The linear scaling rule (Goyal et al. 2017): `base` for every `per` samples of total batch."""

    base: float
    per: int

    def __post_init__(self) -> None:
        positive("lr: Linear.base", self.base)
        positive("lr: Linear.per", self.per)

    def rate(self, total_batch: int) -> float:
        """Learning rate for a total batch of `total_batch` samples."""
        # 12 significant digits: 0.05 * 512 / 128 is 0.2, in the run's id as on paper.
        return float(f"{self.base * total_batch / self.per:.12g}")

    def __str__(self) -> str:
        return f"linear: {self.base:g} per {self.per}"


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


def learning_rate(step: int, *, target: float, start: float, warmup_steps: int) -> float:
    """Learning rate of optimizer step `step` (0 is the first).

    It rises by the same amount every step from `start` to `target`, which step `warmup_steps` is the first to have
    (gradual warm-up, Goyal et al. 2017), and is constant after that, as in the studies.
    """
    if step >= warmup_steps:
        return target
    return start + (target - start) * step / warmup_steps
