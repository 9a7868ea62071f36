"""Throughput, time and cost on more devices, and the models that a recipe may name."""

from __future__ import annotations

import sys

from tabulate import tabulate

from poc import config, data, frameworks
from poc.advice import advise as advice
from poc.cli.look import write_report
from poc.cli.options import Options, check_gpus, recipe_path
from poc.config.networks import NETWORKS
from poc.host import hardware
from poc.host.environment import cache
from poc.records import journal
from poc.records.record import COMPLETED
from poc.run.launcher import RunContext
from poc.run.progress import result


def advise(options: Options) -> int:
    """Print throughput, time and cost of a recipe on more devices, from short runs."""
    path, machine = recipe_path(options.recipe), hardware.detect()
    loaded = config.load(path, frameworks.FRAMEWORKS, count=data.count)
    check_gpus([loaded])
    setting = advice.first_setting(loaded, machine)
    name = options.machine_name(machine)
    known_prices = options.prices(name)
    planned = advice.plan_probes(path.stem, setting, machine, options.steps)
    context = RunContext(machine=machine, infrastructure=name, source=options.source(), cache=cache())
    records = advice.measure(planned, context, journal.folder(options.results, name) / journal.FILE)
    if records[-1].outcome != COMPLETED:
        print(f"poc: {result(records[-1], records[-1].run.model)}", file=sys.stderr)
        return 1
    speeds = {record.run.devices: advice.measured_speed(record) for record in records}
    for record in records:
        print(f"Measured on {record.dataset} images: run {record.run.id}, {record.run}")
    choices = advice.options(setting, speeds, known_prices.of(name, machine.describe()))
    print(advice.text(setting, choices))
    write_report(options, known_prices)
    return 0


def networks(options: Options) -> None:
    """Print the models that a recipe may name."""
    headers = ["model", "input", "parameters", "multiply-adds of a forward pass (M)", "source"]
    rows = []
    for network in NETWORKS.values():
        size, cost = f"3x{network.input_size}x{network.input_size}", network.cost
        source = network.source + (f" ({network.note})" if network.note else "")
        rows.append([network.name, size, cost.parameters, cost.forward_multiply_adds / 1e6, source])
    print(tabulate(rows, headers, intfmt=",", floatfmt=",.1f"))
