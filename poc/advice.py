"""From a short run to a recommendation: up to which batch more devices pay, and the learning rate there.

McCandlish et al. 2018 ("An Empirical Model of Large-Batch Training"): with noise scale N, training at batch B takes
1 + N/B times the fewest steps and 1 + B/N times the fewest samples. At B = N both are doubled; beyond, devices cost
more than they save.
"""

from __future__ import annotations

import math

from poc.recipe import Linear, Recipe
from poc.records import noise
from poc.values import value

STEPS = 200
"""Of the short run, unless its user says otherwise."""
_DEVICES = 8
_LARGEST_PART = 64
_LOOK_EVERY = 2
_WORTH = 4 / 3 - 1e-12
"""Times the steps of twice the batch, from which on that pays."""


@value
class Choice:
    """One batch size and what it costs."""

    batch: int
    steps: float
    """Times the fewest that any batch needs."""
    samples: float
    """Times the fewest that any batch needs."""
    learning_rate: float


@value
class Advice:
    """What a noise scale recommends."""

    choices: tuple[Choice, ...]
    """Batch sizes, each twice the one before."""
    best: Choice
    """The largest at which twice the batch still saves a quarter of the steps."""


def probe(recipe: Recipe, steps: int = STEPS) -> Recipe:
    """A short run of the first setting of `recipe`, on several devices, played in turn where there are fewer."""
    setting = recipe.settings()[0]
    given = {name: held for name, held in vars(setting).items() if name not in ("cores_per_worker", "epochs")}
    short = {
        "devices": _DEVICES,
        "virtual": True,
        "workers": 1,
        "straggler": 0.0,
        "exchange": "device",
        "batch_per_device": min(_LARGEST_PART, setting.batch_per_device),
        "gradient_noise": _LOOK_EVERY,
        "steps": steps,
        "seeds": 1,
        "evaluate": False,
    }
    return Recipe(**{**given, **short})


def advise(recipe: Recipe, scale: float) -> Advice:
    """Batch sizes from a sixteenth of the noise scale to sixteen times it, for the first setting of `recipe`.

    Its learning rate is taken to be right where it was given: for `per` samples, or where it does not scale for that
    setting's total batch. Where a larger gradient makes no larger update, the best rate follows the root.
    """
    setting = recipe.settings()[0]
    at = setting.lr.per if isinstance(setting.lr, Linear) else setting.total_batch
    power = 1.0 if setting.optimizer.sized_by_gradient else 0.5
    nearest = round(math.log2(max(1.0, scale)))
    choices = tuple(
        Choice(
            batch=batch,
            steps=noise.fewest_steps(batch, scale),
            samples=1 + batch / scale,
            learning_rate=noise.best_rate(setting.lr.at(at), at, batch, scale, power),
        )
        for batch in (2**exponent for exponent in range(max(0, nearest - 4), nearest + 5))
    )
    paying = [choice for choice in choices if choice.steps / noise.fewest_steps(2 * choice.batch, scale) > _WORTH]
    return Advice(choices=choices, best=[choices[0], *paying][-1])
