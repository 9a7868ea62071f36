"""`poc advise`: throughput, time and cost on more devices, from short runs of a recipe's first setting."""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

from poc.cli.look import write_report
from poc.cli.options import Options, recipe_path
from poc.config import EPOCHS, LARGEST, Recipe, Setting
from poc.host import hardware
from poc.host.hardware import Hardware
from poc.plan import Planned, check_gpus, plan
from poc.published.prices import Price
from poc.records import journal, last_run
from poc.records.record import COMPLETED, Record
from poc.records.timing import throughput
from poc.run.sweep import Sweep, run_sweep
from poc.values import UserError

STEPS = 30  # optimizer steps of a short run, unless the user sets them
_GPU_STEPS, _GPU_SECONDS = 1000, 10.0  # there a window takes half a second, and an interval needs several
DEVIATIONS = Path(__file__).with_name("scaling.csv")  # of published throughput from predictions (tools/fit_scaling.py)
_DEVICES = (1, 2, 4, 8)
_NINETY_PERCENT = 1.645  # standard deviations on each side of the mean that contain 90% of a normal distribution
# Standard deviation between runs on CPUs, as a share: with it the intervals of the first six windows of repeats in
# reference/ contain the samples/s of 90% of the other clean repeats; without it 39%.
_BETWEEN_RUNS = 0.06
# Fields that a short run does not copy from the setting: its length, and the share of a CPU.
_REPLACED = ("cores_per_worker", "epochs", "seconds", "target_accuracy")
_NOTE = (
    "The 90% interval of measured samples/s is for another run on this machine without other load (how much runs "
    "differ was measured on CPUs). Samples/s on more devices than were measured are predicted at the measured "
    "efficiency; published scaling series widen their interval. Hours: {epochs} epochs without evaluation. Dollars: "
    "hours x machines x price per hour, of whole machines; more GPUs than this machine has are not priced. A larger "
    "global batch may need another learning rate and lose accuracy."
)


class Estimate(NamedTuple):
    """A number with a 90% interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        median, low, high = (f"{number:,.0f}" if number >= 100 else f"{number:.3g}" for number in self)
        return median if low == high else f"{median} ({low} to {high})"

    def times(self, factor: float) -> Estimate:
        return Estimate(*(factor * number for number in self))

    def divide(self, amount: float) -> Estimate:
        """Return the estimate of `amount` / this number."""
        return Estimate(amount / self.median, amount / self.high, amount / self.low)


class Choice(NamedTuple):
    """A number of devices, and the throughput, time and cost of the setting's epochs on them."""

    devices: int
    global_batch: int
    samples_per_second: Estimate
    hours: Estimate
    machines: int | None  # whose price is paid; None if one has too few devices
    dollars: Estimate | None  # None if no price is known for so many devices


def advise(options: Options) -> int:
    """Print throughput, time and cost of a recipe on more devices, from short runs."""
    path, machine = recipe_path(options.recipe), hardware.detect()
    recipe = options.load_recipe(path)
    check_gpus([recipe], machine, "--set kind=cpu")
    setting = first_setting(recipe, machine)
    context, price = options.context(machine), options.known_price(machine)
    sweep = Sweep(plan_probes(path, setting, machine, options.steps), options.results, context, since=last_run.now())
    run_sweep(sweep, price=price.dollars_per_hour if price else None)
    latest = {record.run.id: record for record in journal.read([sweep.path]) if record.started >= sweep.since}
    records = [latest[planned.run.id] for planned in sweep.plan]
    if any(record.outcome != COMPLETED for record in records):
        return 1
    speeds = {record.run.devices: measured_speed(record) for record in records}
    print("\n".join(map(measured_run, records)))
    listed = choices(setting, speeds, price, len(machine.gpus))
    headers = ["devices", "global batch", "samples/s (90% interval)", "hours", "machines", "dollars"]
    print(tabulate(listed, headers=headers, disable_numparse=True))
    print(f"\n{_NOTE.format(epochs=setting.epochs or EPOCHS)}")
    if not listed[0].dollars:
        print("The price of this machine is unknown: give --price DOLLARS, or --machine INSTANCE_TYPE.")
    write_report(options, options.prices(context.infrastructure))
    return 0


def measured_run(record: Record) -> str:
    """Return a line that names a short run, and says if its interval does not hold because others were busy."""
    line = f"Measured on {record.dataset} images: run {record.run.id}, {record.run}"
    noisy = "; noisy: others used its cores or GPUs, so its interval does not hold, and it is worth a repeat"
    return line + noisy if record.is_noisy else line


def first_setting(recipe: Recipe, machine: Hardware) -> Setting:
    """Return the first setting that `machine` can run, on GPUs if any can; raises UserError for batch "largest"."""
    settings = recipe.without_search().settings()
    recipes = [Recipe(**vars(setting), folder=recipe.folder) for setting in settings]
    runnable = [setting for setting, alone in zip(settings, recipes) if not plan("", alone, machine)[0].skip]
    on_gpus = [setting for setting in runnable if setting.kind == "gpu"]
    first = [*on_gpus, *runnable, *settings][0]
    if first.batch_per_device == LARGEST:  # type: ignore[comparison-overlap]
        raise UserError("advise: batch_per_device='largest' is not allowed; use a number")
    return first


def plan_probes(recipe: Path, setting: Setting, machine: Hardware, steps: int = STEPS) -> list[Planned]:
    """Return short runs of a setting of the file `recipe` on one device and, if the machine has two such GPUs, on two.

    Raises UserError if the machine cannot do them.
    """
    fields = {name: entry for name, entry in vars(setting).items() if name not in _REPLACED}
    fields.update(workers=1, straggler=0.0, kvstore="device", emulated=False, seeds=1, repeats=1, evaluate=False)
    fields.update(batch_per_device=setting.batches[-1], gradient_noise=None, steps=steps, window=5)
    if setting.kind == "gpu":  # where a window takes half a second
        fields.update(steps=max(steps, _GPU_STEPS), seconds=_GPU_SECONDS)
    # Two devices of one CPU share its cores, which shows nothing about two machines.
    has_two = setting.kind == "gpu" and 2 * setting.batches[-1] * setting.accumulate <= setting.data.train_images
    on_one, *on_two = (
        plan(recipe.stem, Recipe(**{**fields, "devices": count}, folder=recipe.resolve().parent), machine)[0]
        for count in ((1, 2) if has_two else (1,))
    )
    if on_one.skip:
        raise UserError(f"{recipe.name}: {on_one.skip}")
    return [on_one, *(item for item in on_two if not item.skip)]


def measured_speed(record: Record) -> Estimate:
    """Return the samples/s of a short run, with the interval for another run; raises UserError if it has no windows."""
    speed = throughput(record.timed)
    if speed is None:
        raise UserError("advise: the run has no window after its warm-up; use more --steps")
    factor = math.exp(_NINETY_PERCENT * math.hypot(speed.spread / speed.median, _BETWEEN_RUNS))
    return Estimate(speed.median, speed.median / factor, speed.median * factor)


@functools.cache
def deviations() -> dict[tuple[int, bool], tuple[float, float]]:
    """Return the 90% interval of actual / predicted throughput, by doublings of devices and whether hosts are added."""
    with DEVIATIONS.open(newline="", encoding="utf-8") as file:
        return {
            (int(line["doublings"]), line["hosts_added"] == "yes"): (float(line["low"]), float(line["high"]))
            for line in csv.DictReader(file)
        }


def predict(measured: Estimate, measured_devices: int, devices: int, *, hosts_added: bool = False) -> Estimate:
    """Predict samples/s on up to 8 times the measured devices at equal efficiency; `deviations` widen the interval."""
    factor = devices / measured_devices
    low, high = deviations()[math.ceil(math.log2(factor)), hosts_added]
    expected = measured.times(factor)
    return Estimate(expected.median, low * expected.low, high * expected.high)


def choices(
    setting: Setting, speeds: Mapping[int, Estimate], price: Price | None = None, gpus: int = 0
) -> list[Choice]:
    """Return what the setting's epochs need on 1 to 8 devices, at its batch per device.

    `speeds` are the measured samples/s by number of devices. A run on a CPU uses the whole machine, so more devices are
    more machines. GPUs are those of one machine, which has as many as its price is for, or else `gpus`; it is paid as a
    whole.
    """
    on_cpu, measured = setting.kind == "cpu", max(speeds)
    in_machine = (price.devices if price else None) or gpus
    listed = []
    for devices in _DEVICES:
        global_batch = setting.batches[-1] * devices * setting.accumulate
        if global_batch > setting.data.train_images:
            continue
        speed = speeds.get(devices) or predict(speeds[measured], measured, devices, hosts_added=on_cpu)
        hours = speed.divide((setting.epochs or EPOCHS) * setting.data.train_images / 3600)
        machines = devices if on_cpu else 1 if devices <= in_machine else None
        dollars = hours.times(machines * price.dollars_per_hour) if price and machines else None
        listed.append(Choice(devices, global_batch, speed, hours, machines, dollars))
    return listed
