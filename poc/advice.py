"""From a short run to a recommendation: up to which batch more devices pay, and the learning rate there.

McCandlish et al. 2018 ("An Empirical Model of Large-Batch Training"): with noise scale N, training at batch B takes
1 + N/B times the fewest steps and 1 + B/N times the fewest samples. At B = N both are doubled: in as many epochs far
less is learned there, so that a batch which keeps the accuracy is smaller.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from poc import frameworks, predict, studies
from poc.config import EPOCHS, LARGEST, Linear, Recipe, Setting, Synthetic, networks
from poc.host.hardware import Hardware
from poc.plan import plan
from poc.predict import NINE_TENTHS
from poc.predict.limits import Apart
from poc.predict.quantiles import Prediction
from poc.predict.series import Point
from poc.records import noise
from poc.records.record import Option, Record
from poc.records.timing import throughput
from poc.studies.prices import Price, Prices
from poc.studies.row import Row, rate
from poc.values import UserError, value

STEPS = 200
"""Of the short run, unless its user says otherwise."""
SPEED_STEPS = 30
"""Of the runs that measure speed."""
ROUNDS = 4
"""In which these are taken apart."""
DEVICES = (1, 2, 4, 8)
UNLIKE = 1.25
"""What a published speed at another batch may be off by, in factors."""
WORTH = 0.8
"""What an epoch at the batch advised is worth of one at the recipe's own, at least: here ResNet-50 lost 0.013 in twelve
epochs at a batch that has 0.9 by the formula, 0.041 at one that has 0.75."""
LATER = {True: 3.0, False: 15.0}
"""Times the noise scale of a short run that the one which fits the epochs may be, with an optimizer whose updates are
sized by the gradient, or not: what ResNet-50 had here (reference/learning_rate.md), 1.7 to 2.6 and 9 to 15."""
_WHOLE = ("cores_per_worker", "epochs", "seconds", "target_accuracy")
"""What a short run does not take over: of a whole one, or of a device that is part of a CPU."""


@value
class Speed:
    """Samples/s of one device or two, as far as they are known."""

    middle: float
    low: float
    high: float
    source: str
    devices: int = 1
    apart: Apart | None = None
    """A step of it, where it was measured here."""


@value
class Choice:
    """One batch size and what it costs."""

    batch: int
    steps: float
    """Times the fewest that any batch needs."""
    samples: float
    """Times the fewest that any batch needs."""
    learning_rate: float


def first_setting(recipe: Recipe, machine: Hardware) -> Setting:
    """Of `recipe` what is advised on: the first setting that `machine` can do, on its GPUs where it has any.

    Raises UserError where that leaves the batch to be found out.
    """
    settings = recipe.settings()
    able = [setting for setting in settings if not plan("", Recipe(**vars(setting)), machine)[0].skip]
    on_gpus = [setting for setting in able if setting.kind == "gpu"]
    first = [*on_gpus, *able, *settings][0]
    if first.batch_per_device == LARGEST:  # type: ignore[comparison-overlap]
        raise UserError(
            "advise: batch_per_device='largest' is not allowed; use a number, for which the learning rate is right"
        )
    return first


def probe(setting: Setting, steps: int = STEPS) -> Recipe:
    """A short run of `setting` on several devices, played in turn where there are fewer."""
    batch = min(64, setting.batches[-1])
    return _short(setting, devices=8, emulated=True, batch_per_device=batch, gradient_noise=2, steps=steps)


def _short(setting: Setting, **changes: Any) -> Recipe:
    given = {name: held for name, held in vars(setting).items() if name not in _WHOLE}
    alone = {"workers": 1, "straggler": 0.0, "kvstore": "device", "seeds": 1, "repeats": 1, "evaluate": False}
    return Recipe(**{**given, **alone, **changes})


def advise(setting: Setting, scale: float) -> tuple[list[Choice], Choice]:
    """Batch sizes from a sixteenth of the noise scale to sixteen times it, or beyond the setting's own where that is
    more, and the largest that keeps the accuracy.

    That is one at which as many epochs get as far as `WORTH` of them at the setting's own batch. The learning rate of
    the setting is taken to be right where it was given: for `per` samples, or where it does not scale for the total
    batch. From there it follows `noise.rate_at`: it grows with the batch below the noise scale
    and hardly any more beyond it.
    """
    nearest, own = round(math.log2(max(1.0, scale))), setting.global_batch.bit_length()
    choices = [
        Choice(
            batch=batch,
            steps=1 + scale / batch,
            samples=noise.epochs_at(batch, scale),
            learning_rate=_rate_at(setting, batch, scale),
        )
        for batch in (2**exponent for exponent in range(max(0, nearest - 4), max(nearest + 4, own) + 1))
    ]
    allowed = noise.epochs_at(setting.global_batch, scale) / WORTH
    return choices, [choice for choice in choices if choice.samples <= allowed][-1]


def _rate_at(setting: Setting, batch: int, scale: float) -> float:
    """The learning rate at a global batch, as `advise` says."""
    at = setting.lr.per if isinstance(setting.lr, Linear) else setting.global_batch
    rates = [noise.rate_at(one, scale, sized_by_gradient=setting.optimizer.sized_by_gradient) for one in (batch, at)]
    return float(setting.lr.at(at) * rates[0] / rates[1])


def speed_probes(setting: Setting) -> list[Recipe]:
    """Short runs of `setting` on one device, and of GPUs on two, for their speed."""
    fields: dict[str, Any] = {"batch_per_device": setting.batches[-1], "emulated": False, "gradient_noise": None}
    # Contexts of a CPU share its threads: two tell nothing of the gradient synchronisation between two such machines.
    counts = (1, 2) if setting.kind == "gpu" else (1,)
    return [_short(setting, devices=count, steps=SPEED_STEPS, window=5, **fields) for count in counts]


def measured_speed(record: Record, before: Sequence[Record] = ()) -> Speed:
    """Of a speed probe; raises UserError where it has none.

    Its 90% is that of its windows or, where this is more, of the takes of one and the same run `before` on its machine.
    """
    found = throughput(record.timed)
    if found is None:
        raise UserError("advise: the run that measures the speed has no window after its warm-up; use more steps")
    own = [one for one in before if one.infrastructure == record.infrastructure]
    off = math.exp(NINE_TENTHS * max(found.spread / found.median, predict.between_takes(own)))
    return Speed(
        middle=found.median,
        low=found.median / off,
        high=found.median * off,
        source="measured on this machine",
        devices=record.run.devices,
        apart=Apart(run=record.run, machine=record.hardware, step=record.detail) if record.detail else None,
    )


def published_speed(setting: Setting, machine: str, prices: Prices) -> Speed:
    """Of one device of a machine that is not here, from the study of a machine like it; raises UserError without one.

    The row of the batch nearest to the setting's; where that is another, the speed may be off by `UNLIKE`.
    """
    price, network = prices.of(machine), networks.network(setting.model)
    rows = [
        row
        for study in studies.load()
        for row in study.rows
        if row.devices == 1
        and row.batch_per_device
        and rate(row)
        and row.model in (network.name, network.study_name)
        and row.dataset.startswith("cifar") == (network.classes == 10)
        and not row.doubtful("samples_per_second", "devices")
    ]
    alike = [
        row for row in rows if machine in (row.machine, row.hardware) or (price and _same_machine(row, price, prices))
    ]
    if not alike:
        known = sorted({row.hardware for row in rows})
        raise UserError(
            f"--on: no study has {setting.model} on one device of {machine!r}, only on: "
            f"{'; '.join(known) or 'none'}. Without --on the speed of this machine is measured"
        )
    row = min(alike, key=lambda one: abs(math.log(one.batch_per_device / setting.batches[-1])))
    middle, factor = float(rate(row) or 0.0), 1.0 if row.batch_per_device == setting.batches[-1] else UNLIKE
    source = f"published by {row.study} for {row.hardware}, batch {row.batch_per_device}"
    if factor > 1:
        source += f"; up to {factor - 1:.0%} off, since the batch differs"
    return Speed(middle=middle, low=middle / factor, high=middle * factor, source=source)


def _same_machine(row: Row, price: Price, prices: Prices) -> bool:
    found = prices.of(row.machine, row.hardware)
    return found is not None and found.machine == price.machine


def options(
    setting: Setting,
    scale: tuple[float, float, float],
    speeds: Sequence[Speed],
    price: Price | None = None,
) -> list[Option]:
    """What each number of devices would take to the accuracy that `setting` reaches on its own batch.

    `scale` is the noise scale: its middle, least and most. Epochs at batch B are 1 + B/N over the same at the setting's
    batch times its epochs (`noise.epochs_at`), N up to `LATER` times as large; the rate as in `advise`; samples/s what
    published series make of `speeds` (on one device, and on two where that is known) at a fixed batch per device, as
    far as this machine's own steps allow it. A price is shared out by devices, where their number is known, and
    nothing is said of more than the machine of that price has.
    """
    scale = (*scale[:2], max(scale[2], LATER[setting.optimizer.sized_by_gradient] * scale[0]))
    each, epochs, own = setting.batches[-1], setting.epochs or EPOCHS, setting.global_batch
    made = []
    for count in DEVICES:
        if price and price.devices and count > price.devices:
            continue
        batch, (one, limit) = each * count, _at(speeds, count)
        if batch > setting.data.train:
            continue
        rates = (one.rate, one.low, one.high)
        needed = sorted(epochs * noise.epochs_at(batch, one) / noise.epochs_at(own, one) for one in scale)
        several = (needed[1], needed[0], needed[2])
        hours = [
            passes * setting.data.train / per / 3600 for passes, per in zip(several, (rates[0], rates[2], rates[1]))
        ]
        whole = setting.kind == "cpu" and speeds[0].apart is not None  # measured on a CPU, which is all of its machine
        share = min(1.0, count / price.devices) if price and price.devices and not whole else 1.0
        dollars = price.dollars_per_hour * share if price else None
        made.append(
            Option(
                devices=count,
                batch=batch,
                learning_rate=_rate_at(setting, batch, scale[0]),
                rate=rates,
                limit=limit,
                epochs=several,
                hours=(hours[0], hours[1], hours[2]),
                dollars=None if dollars is None else (hours[0] * dollars, hours[1] * dollars, hours[2] * dollars),
            )
        )
    return made


def _at(speeds: Sequence[Speed], devices: int) -> tuple[Prediction, str]:
    """Samples/s on so many devices, and what limits them there, where the last of `speeds` tells it."""
    last = speeds[-1]
    speed = next((speed for speed in speeds if speed.devices == devices), last)
    one = Prediction(devices=devices, rate=speed.middle, low=speed.low, high=speed.high)
    if devices > last.devices:
        points = [Point(devices=speed.devices, rate=speed.middle) for speed in speeds]
        (said,) = predict.kept().learnt.predict(points, [Point(devices=devices, rate=0.0)])
        low, high = said.low * last.low / last.middle, said.high * last.high / last.middle
        one = dataclasses.replace(said, low=low, high=high)
    if last.apart is None:
        return one, ""
    run = last.apart.run
    within, limit = last.apart.within(one, frameworks.load(run.framework).workers(1, devices, False))
    return (within if devices > last.devices else one), limit


def warning(record: Record) -> str:
    """Say of advice from this short run that its images are synthetic; empty for real ones."""
    if record.dataset != Synthetic.name:
        return ""
    missing = " CIFAR-10 was not found: set --data or POC_DATA." if record.stood_in else ""
    return (
        "SYNTHETIC images: the noise scale, batches, learning rates and epochs below do not apply to real images."
        f"{missing}"
    )


def in_words(setting: Setting, scale: float, speeds: Sequence[Speed], made: Sequence[Option]) -> str:
    """What batches `advise` finds at a noise scale, the `speeds` measured or published, and what `options` made."""
    lines = []
    for speed in speeds:
        devices = "1 device" if speed.devices == 1 else f"{speed.devices} devices"
        lines.append(f"\n{devices}: {speed.middle:,.0f} samples/s, {speed.source}.")
    unpriced = "" if made[0].dollars else " No price is known for this machine: set --machine or --on."
    return "\n".join([_batches(setting, scale), *lines, _table(made), ASSUMED + unpriced])


def _table(made: Sequence[Option]) -> str:
    """A table of all options, the fastest and the cheapest marked."""
    fastest = min(made, key=lambda one: one.hours[0])
    cheapest = min(made, key=lambda one: one.dollars[0] if one.dollars else 0.0)
    rows = []
    for one in made:
        marks = ["fastest"] * (one is fastest) + ["cheapest"] * (one is cheapest and one.dollars is not None)
        cells = [f"{one.learning_rate:.3g}", _range(one.rate), one.limit, _range(one.epochs), _range(one.hours)]
        rows.append([one.devices, one.batch, *cells, _range(one.dollars) if one.dollars else "", ", ".join(marks)])
    headers = [
        "devices",
        "global batch",
        "lr",
        "samples/s (90% interval)",
        "limited by",
        "epochs",
        "hours",
        "dollars",
        "",
    ]
    return tabulate(rows, headers=headers, disable_numparse=True)


ASSUMED = (
    "Assumptions: the recipe's first setting has the right batch per device, learning rate and epochs (12 if not set). "
    "Epochs and learning rates follow from the noise scale of a short run; it grows later, so fewer epochs may do. "
    "Samples/s on more devices are predicted from published series, tested up to four times the devices measured. "
    "Evaluation is not included."
)


def _range(three: tuple[float, float, float]) -> str:
    middle, low, high = (f"{one:,.0f}" if one >= 100 else f"{one:.3g}" for one in three)
    return middle if low == high else f"{middle} ({low} to {high})"


def _batches(setting: Setting, scale: float) -> str:
    """A table of what `advise` finds, and what it means."""
    choices, best = advise(setting, scale)
    rows = [
        [
            f"{choice.batch} <-" if choice == best else f"{choice.batch}",
            f"{choice.steps:.2f}",
            f"{choice.samples:.2f}",
            f"{choice.learning_rate:.3g}",
        ]
        for choice in choices
    ]
    headers = ["global batch", "steps / minimum", "samples / minimum", "learning rate"]
    share = noise.epochs_at(setting.global_batch, scale) / best.samples
    kept = f"the same samples are worth {share:.2f} of those"
    if setting.steps is None and setting.seconds is None:
        epochs = setting.epochs or EPOCHS
        kept = f"{epochs} epochs are worth {epochs * share:.1f}"
    return (
        f"{tabulate(rows, headers=headers, disable_numparse=True)}\n"
        f"At a global batch of {best.batch} {kept} at the recipe's own {setting.global_batch}; a larger batch costs "
        f"more accuracy. Above about {scale:.0f}, twice the devices save less than a quarter of the steps. "
        "The noise scale grows during the training: a longer run (--steps) measures a larger one."
    )
