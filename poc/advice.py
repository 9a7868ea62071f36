"""From a short run to a recommendation: up to which batch more devices pay, and the learning rate there.

McCandlish et al. 2018 ("An Empirical Model of Large-Batch Training"): with noise scale N, training at batch B takes
1 + N/B times the fewest steps and 1 + B/N times the fewest samples. At B = N both are doubled; beyond, devices cost
more than they save.
"""

from __future__ import annotations

import math

from tabulate import tabulate

from poc.recipe import EPOCHS, Linear, Recipe
from poc.values import value

STEPS = 200
"""Of the short run, unless its user says otherwise."""


@value
class Choice:
    """One batch size and what it costs."""

    batch: int
    steps: float
    """Times the fewest that any batch needs."""
    samples: float
    """Times the fewest that any batch needs."""
    learning_rate: float


def probe(recipe: Recipe, steps: int = STEPS) -> Recipe:
    """A short run of the first setting of `recipe`, on several devices, played in turn where there are fewer."""
    setting = recipe.settings()[0]
    given = {name: held for name, held in vars(setting).items() if name not in ("cores_per_worker", "epochs")}
    short = {
        "devices": 8,
        "virtual": True,
        "workers": 1,
        "straggler": 0.0,
        "exchange": "device",
        "batch_per_device": min(64, setting.batches[-1]),
        "gradient_noise": 2,
        "steps": steps,
        "seeds": 1,
        "takes": 1,
        "evaluate": False,
    }
    return Recipe(**{**given, **short})


def advise(recipe: Recipe, scale: float) -> tuple[list[Choice], Choice]:
    """Batch sizes from a sixteenth of the noise scale to sixteen times it, and the best: the largest up to the scale.

    Beyond it twice the batch saves less than a quarter of the steps. The learning rate of the recipe's first setting is
    taken to be right where it was given: for `per` samples, or where it does not scale for that setting's total batch.
    From there it follows 1 / (1 + N/B) (their equation 2.6): it grows with the batch below the noise scale and hardly
    any more beyond it. Where a larger gradient makes no larger update, it follows the root of that (they found powers
    from 0.5 to 1 for Adam and RMSProp).
    """
    setting = recipe.settings()[0]
    at = setting.lr.per if isinstance(setting.lr, Linear) else setting.total_batch
    power = 1.0 if setting.optimizer.sized_by_gradient else 0.5
    nearest = round(math.log2(max(1.0, scale)))
    choices = [
        Choice(
            batch=batch,
            steps=1 + scale / batch,
            samples=1 + batch / scale,
            learning_rate=setting.lr.at(at) * ((1 + scale / at) / (1 + scale / batch)) ** power,
        )
        for batch in (2**exponent for exponent in range(max(0, nearest - 4), nearest + 5))
    ]
    return choices, [choices[0], *(choice for choice in choices if choice.batch <= scale)][-1]


def in_words(recipe: Recipe, scale: float) -> str:
    """A table of what `advise` finds, and what it means."""
    choices, best = advise(recipe, scale)
    rows = [
        [f"{one.batch}{' <-' * (one == best)}", f"{one.steps:.2f}", f"{one.samples:.2f}", f"{one.learning_rate:.3g}"]
        for one in choices
    ]
    headers = ["total batch", "steps, of the fewest", "samples, of the fewest", "learning rate"]
    setting = recipe.settings()[0]
    kept = f"as many samples get as far as {1 / best.samples:.2f} of them"
    if setting.steps is None and setting.seconds is None:
        epochs = setting.epochs or EPOCHS
        kept = f"{epochs} epochs get as far as {epochs / best.samples:.1f}"
    return (
        f"{tabulate(rows, headers=headers, disable_numparse=True)}\n"
        f"Beyond a total batch of {best.batch} twice the devices save less than a quarter of the steps, and "
        f"from about there accuracy suffers: {kept} with a small batch. "
        "The noise scale grows while the loss falls: after a longer run (--steps) it is larger."
    )
