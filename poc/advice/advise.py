"""Measure a recipe's first setting in short runs; derive throughput, hours and dollars on more devices."""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from poc import data, frameworks, published
from poc.advice import scaling
from poc.advice.scaling import Estimate
from poc.config import EPOCHS, LARGEST, Recipe, Setting, networks
from poc.config.datasets import DataId
from poc.host.hardware import Hardware
from poc.plan import Planned, plan
from poc.published.prices import Price, Prices
from poc.records import journal
from poc.records.record import COMPLETED, DONE, Record
from poc.records.row import Row, rate
from poc.records.timing import throughput
from poc.run.launcher import LocalLauncher, RunContext
from poc.run.parent import execute
from poc.run.progress import duration
from poc.values import UserError, value

STEPS = 30
"""Optimizer steps of a short run, unless the user sets them."""
_BREAKDOWN_ROUNDS = 4
_DEVICES = (1, 2, 4, 8)
_OTHER_BATCH = 1.25
"""Factor by which a published speed may be off if it is of another batch per device."""
_NINETY_PERCENT = 1.645
"""Standard deviations on each side of the mean that contain 90% of a normal distribution."""
# Fields that a short run does not copy from the setting: its length, and the share of a CPU.
_REPLACED = ("cores_per_worker", "epochs", "seconds", "target_accuracy")
_NOTE = (
    "Samples/s on more devices than were measured: at the same efficiency, with the 90% interval of published series. "
    "Hours are for {epochs} epochs without evaluation, dollars = hours x machines x price per hour. A larger global "
    "batch may need another learning rate and lose accuracy."
)


@value
class Option:
    """A number of devices, and the throughput, time and cost of the setting's epochs on them."""

    devices: int
    global_batch: int
    samples_per_second: Estimate
    limit: str
    """The part of a step that limits the throughput; empty if no step-time breakdown was measured."""
    hours: Estimate
    machines: float
    """Machines whose price is paid; a part of one if not all of its devices are used."""
    dollars: Estimate | None
    """None if no price is known."""


def first_setting(recipe: Recipe, machine: Hardware) -> Setting:
    """Return the recipe's first setting that `machine` can run, on its GPUs if any can.

    Raises UserError if its batch is to be searched for.
    """
    settings = recipe.settings()
    runnable = [setting for setting in settings if not plan("", Recipe(**vars(setting)), machine)[0].skip]
    on_gpus = [setting for setting in runnable if setting.kind == "gpu"]
    first = [*on_gpus, *runnable, *settings][0]
    if first.batch_per_device == LARGEST:  # type: ignore[comparison-overlap]
        raise UserError("advise: batch_per_device='largest' is not allowed; use a number")
    return first


def speed_probes(setting: Setting, steps: int = STEPS) -> list[Recipe]:
    """Return recipes of short runs of `setting` on one device and, with GPUs, on two."""
    fields = {name: entry for name, entry in vars(setting).items() if name not in _REPLACED}
    fields.update(workers=1, straggler=0.0, kvstore="device", emulated=False, seeds=1, repeats=1, evaluate=False)
    fields.update(batch_per_device=setting.batches[-1], gradient_noise=None, steps=steps, window=5)
    # Two devices of one CPU share its cores, which shows nothing about two machines.
    return [Recipe(**{**fields, "devices": count}) for count in ((1, 2) if setting.kind == "gpu" else (1,))]


def plan_probes(recipe: str, probes: Sequence[Recipe], machine: Hardware) -> list[Planned]:
    """Return the short runs of the `probes`; raises UserError if this machine cannot do one of them.

    The second device is optional.
    """
    planned = [plan(recipe, probe, machine)[0] for probe in probes]
    planned = [item for item in planned if not (item.skip and item.run.synchronises)]
    for item in planned:
        if item.skip:
            raise UserError(f"{recipe}.py: {item.skip}")
    return planned


def measure(planned: Sequence[Planned], context: RunContext, file: Path) -> list[Record]:
    """Do short runs with a step-time breakdown, up to the first that fails; append their records to the journal `file`.

    Raises UserError if their images are missing, and KeyboardInterrupt after the record of a run that was interrupted.
    """
    images = data.identify([item.run.data for item in planned], source=context.source, cache=context.cache)
    context = dataclasses.replace(context, images=images)
    records: list[Record] = []
    with journal.claimed(file):
        for item in planned:
            print(f"{item}: about {duration(item.seconds)}", file=sys.stderr)
            record, interrupted = execute(item.run, context, detail=_BREAKDOWN_ROUNDS)
            if record.outcome in DONE:
                LocalLauncher(context).forget(item.run)
            journal.append(file, record)
            if interrupted:
                raise KeyboardInterrupt
            records.append(record)
            if record.outcome != COMPLETED:
                break
    return records


def measured_speed(record: Record, earlier: Sequence[Record] = ()) -> Estimate:
    """Return the samples/s of a short run; raises UserError if it has none.

    The interval is that of the run's windows, or that of repeats in `earlier` records of the machine if it is wider.
    """
    speed = throughput(record.timed)
    if speed is None:
        raise UserError("advise: the run has no window after its warm-up; use more --steps")
    same_machine = [each for each in earlier if each.infrastructure == record.infrastructure]
    factor = math.exp(_NINETY_PERCENT * max(speed.spread / speed.median, deviation_of_repeats(same_machine)))
    return Estimate(median=speed.median, low=speed.median / factor, high=speed.median * factor)


def deviation_of_repeats(records: Sequence[Record]) -> float:
    """Return the standard deviation of the logarithm of samples/s between repeats of one run, pooled over all runs."""
    repeats: dict[tuple[str, DataId], list[float]] = {}
    for record in records:
        speed = throughput(record.timed)
        if speed and record.outcome == COMPLETED and not record.run.quick:
            repeats.setdefault((record.run.id, record.data_id), []).append(math.log(speed.median))
    groups = [logarithms for logarithms in repeats.values() if len(logarithms) > 1]
    freedom = sum(len(group) - 1 for group in groups)
    if not freedom:
        return 0.0
    return math.sqrt(sum(statistics.variance(group) * (len(group) - 1) for group in groups) / freedom)


def published_speed(setting: Setting, machine: str, prices: Prices) -> tuple[Estimate, str]:
    """Return the published samples/s of one device of the named machine, and the source.

    The row with the nearest batch per device counts. If that is another batch, the interval is `_OTHER_BATCH` wide.
    Raises UserError if no study has the model on that machine.
    """
    price, network = prices.of(machine), networks.network(setting.model)
    rows = [row for study in published.load() for row in study.rows if _is_of(row, network)]
    same = [
        row
        for row in rows
        if machine in (row.machine, row.hardware) or (price and price == prices.of(row.machine, row.hardware))
    ]
    if not same:
        machines = "; ".join(sorted({row.hardware for row in rows})) or "none"
        raise UserError(
            f"--on: no study has {setting.model} on one device of {machine!r}, only on: {machines}. Without --on the "
            "speed of this machine is measured"
        )
    batch = setting.batches[-1]
    row = min(same, key=lambda row: abs(math.log(row.batch_per_device / batch)))
    median, source = float(rate(row) or 0.0), f"published by {row.study} for {row.hardware}"
    if row.batch_per_device == batch:
        return Estimate(median=median, low=median, high=median), source
    source += f", batch {row.batch_per_device}: up to {_OTHER_BATCH - 1:.0%} off, because the batch differs"
    return Estimate(median=median, low=median / _OTHER_BATCH, high=median * _OTHER_BATCH), source


def _is_of(row: Row, network: networks.Network) -> bool:
    """Return whether the row has a plausible speed of this model on one device."""
    return (
        row.devices == 1
        and bool(row.batch_per_device and rate(row))
        and row.model in (network.name, network.study_name)
        and row.dataset.startswith("cifar") == (network.classes == 10)
        and not row.doubtful("samples_per_second", "devices")
    )


def options(
    setting: Setting, speeds: Mapping[int, Estimate], price: Price | None = None, record: Record | None = None
) -> list[Option]:
    """Return what the setting's epochs need on 1 to 8 devices, at its batch per device.

    `speeds` are the known samples/s by number of devices; `record` is the run that the last of them was measured in.
    A run on a CPU uses the whole machine, so more devices are more machines. On GPUs there are at most as many as the
    price is for, and each has an equal share of the price.
    """
    on_cpu = record is not None and record.run.kind == "cpu"
    choices = []
    for devices in _DEVICES:
        global_batch = setting.batches[-1] * devices
        priced_devices = price.devices if price and not on_cpu else None
        if global_batch > setting.data.train or (priced_devices and devices > priced_devices):
            continue
        speed, limit = _speed_on(devices, speeds, record, hosts=devices if on_cpu else 1)
        hours = speed.divide((setting.epochs or EPOCHS) * setting.data.train / 3600)
        machines = devices if on_cpu else devices / (priced_devices or devices)
        choices.append(
            Option(
                devices=devices,
                global_batch=global_batch,
                samples_per_second=speed,
                limit=limit,
                hours=hours,
                machines=machines,
                dollars=hours.times(machines * price.dollars_per_hour) if price else None,
            )
        )
    return choices


def _speed_on(devices: int, speeds: Mapping[int, Estimate], record: Record | None, hosts: int) -> tuple[Estimate, str]:
    """Return the samples/s on so many devices, measured or predicted, and what limits them if that is known."""
    by_part = {}
    if record is not None:
        workers = frameworks.load(record.run.framework).workers(1, devices // hosts, False)
        by_part = scaling.ceilings(record, devices, workers=workers, hosts=hosts)
    limit = scaling.lowest(by_part)
    if devices in speeds:
        return speeds[devices], limit
    measured = max(speeds)
    predicted = scaling.predict(speeds[measured], measured, devices, hosts_added=hosts > 1)
    return scaling.limited(predicted, by_part), limit


def text(setting: Setting, sources: Sequence[str], choices: Sequence[Option]) -> str:
    """Describe where the speeds are from, and the options in a table, the fastest and the cheapest marked."""
    fastest = min(choices, key=lambda option: option.hours.median)
    cheapest = min(choices, key=lambda option: option.dollars.median if option.dollars else 0.0)
    rows = []
    for option in choices:
        marks = ["fastest"] if option is fastest else []
        if option is cheapest and option.dollars:
            marks.append("cheapest")
        rows.append(
            [
                option.devices,
                option.global_batch,
                option.samples_per_second,
                option.limit,
                option.hours,
                f"{option.machines:g}",
                option.dollars or "",
                ", ".join(marks),
            ]
        )
    headers = ["devices", "global batch", "samples/s (90% interval)", "limited by", "hours", "machines", "dollars", ""]
    lines = [*sources, "", tabulate(rows, headers=headers, disable_numparse=True), ""]
    lines.append(_NOTE.format(epochs=setting.epochs or EPOCHS))
    if not choices[0].dollars:
        lines.append(
            "The price of this machine is not known: set --machine or --on to a name in poc/published/prices.csv."
        )
    return "\n".join(lines)
