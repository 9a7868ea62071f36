"""Advice from short runs, predictions of throughput, and the models that there are."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from annotated_types import Ge
from tabulate import tabulate

from poc import advice, config, data, frameworks, predict, published
from poc.cli import chosen
from poc.cli.look import write_report
from poc.config import Recipe, networks
from poc.host import hardware
from poc.host.hardware import Hardware
from poc.plan import Planned
from poc.plan import plan as plan_recipe
from poc.published import prices
from poc.records import journal
from poc.records.record import COMPLETED, DONE, Advice, Record
from poc.run.launcher import LocalLauncher, RunContext, cache
from poc.run.parent import execute
from poc.run.progress import duration
from poc.values import Count, UserError, checked


def advise(options: argparse.Namespace) -> int:
    """Measure with short runs, and print which devices, batch and learning rate pay."""
    checked("--steps", options.steps, Annotated[Count, Ge(20)])
    path = chosen.recipe_path(options.recipe)
    machine = hardware.detect()
    setting = advice.first_setting(config.load(path, frameworks.FRAMEWORKS), machine)
    studies, machine_prices = published.load([]), prices.load({})
    elsewhere = advice.published_speed(setting, options.on, machine_prices) if options.on else None
    name = chosen.machine_name(options, machine)
    probes = [*([] if elsewhere else advice.speed_probes(setting)), advice.probe(setting, options.steps)]
    plans = _plans(path, probes, machine)
    place = RunContext(machine=machine, infrastructure=name, source=chosen.source(options), cache=cache())
    images = data.identify([planned.run.data for planned in plans], source=place.source, cache=place.cache)
    place = dataclasses.replace(place, images=images)
    before = chosen.records(options)
    file = journal.folder(chosen.results(options), name) / journal.FILE
    with journal.claimed(file):
        *timed, noise_record = (_probed(planned, place, file) for planned in plans)
    failed = next((record for record in (noise_record, *timed) if record.outcome != COMPLETED), None)
    noise, interval = noise_record.noise(first=0.5), noise_record.noise_interval(first=0.5)
    if failed or noise is None or noise.scale is None or interval is None:
        journal.append(file, noise_record)
        unclear = "the gradient noise could not be measured: give more --steps"
        print(f"poc: {failed.in_words() if failed else unclear}", file=sys.stderr)
        return 1
    speeds = [elsewhere] if elsewhere else [advice.measured_speed(record, before) for record in timed]
    price = machine_prices.of(options.on or name, "" if elsewhere else machine.describe())
    low, high = interval
    choices = advice.options(setting, (noise.scale, low, high or 16 * noise.scale), speeds, price)
    advised = Advice(machine=options.on or name, options=tuple(choices))
    journal.append(file, dataclasses.replace(noise_record, advice=advised))
    if warning := advice.warning(noise_record):
        print(warning)
    print(
        f"Gradient noise scale: {noise.scale:.0f} samples ({noise.samples} measurements in the second half of the run; "
        f"90% interval: {low:.0f} to {f'{high:.0f}' if high else 'unbounded'})."
    )
    print(advice.in_words(setting, noise.scale, speeds, choices))
    write_report(options, studies, machine_prices)
    return 0


def _plans(path: Path, probes: Sequence[Recipe], machine: Hardware) -> list[Planned]:
    """Return the runs to make; raises UserError where one of them cannot run here."""
    plans = [plan_recipe(path.stem, probe, machine)[0] for probe in probes]
    # A second device is measured where there is one.
    plans = [planned for planned in plans if not (planned.skip and planned.run.synchronises)]
    for planned in plans:
        if planned.skip:
            raise UserError(f"{path.name}: {planned.skip}")
        print(f"{planned}: about {duration(planned.seconds)}", file=sys.stderr)
    return plans


def _probed(planned: Planned, place: RunContext, file: Path) -> Record:
    """Return the record of a short run; one for speed goes into the journal `file`, advice goes with the other."""
    record, interrupted = execute(planned.run, place, detail=0 if planned.run.gradient_noise else advice.ROUNDS)
    if record.outcome in DONE:
        LocalLauncher(place).forget(planned.run)
    if interrupted or not planned.run.gradient_noise:
        journal.append(file, record)
    if interrupted:
        raise KeyboardInterrupt
    return record


def predict_scaling(options: argparse.Namespace) -> None:
    """Print how well series that were left out of the learning are predicted."""
    if options.save:
        predict.save()
    names = [path.stem for path in options.study]
    print(predict.in_words([study for study in published.load(options.study) if study.name in names]))


def list_networks(options: argparse.Namespace) -> None:
    """Print the models that a recipe may name."""
    if options.count:
        networks.write_costs({name: frameworks.count(network) for name, network in networks.NETWORKS.items()})
    rows = [
        [
            network.name,
            f"3x{network.input_size}x{network.input_size}",
            f"{network.cost.parameters:,}",
            f"{network.cost.forward_multiply_adds / 1e6:,.1f}",
            network.source + (f" ({network.note})" if network.note else ""),
        ]
        for network in networks.NETWORKS.values()
    ]
    headers = ["model", "input", "parameters", "multiply-adds of a forward pass (M)", "source"]
    print(tabulate(rows, headers=headers, disable_numparse=True, colalign=("left", "left", "right", "right", "left")))
