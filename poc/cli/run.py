"""Plan the chosen recipes and run them, on this machine or on a cluster."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from poc import config, frameworks, published
from poc.cli.look import write_report
from poc.cli.options import PlanOptions, RunOptions
from poc.config import literals
from poc.host import hardware
from poc.host.hardware import Hardware
from poc.host.waiting import chosen_threads
from poc.published import prices
from poc.records import journal, last_run
from poc.records.last_run import LastRun
from poc.run import schedule, workload
from poc.run.launcher import RunContext, cache
from poc.run.sweep import Sweep, run_sweep
from poc.values import UserError, to_plain


def plan(options: PlanOptions) -> None:
    """Print what a run of the same recipes would do."""
    machine = hardware.detect()
    name = options.machine_name(machine)
    context = RunContext(machine=machine, infrastructure=name, source=None, cache=cache())
    sweep = Sweep(options.plans(machine), options.folder, context)
    summary = sweep.workload(_dollars_per_hour(options.prices(name), name, machine))
    if options.json:
        runs = [to_plain(line) for line in sweep.lines()]
        print(json.dumps({"machine": name, **to_plain(summary), "planned": runs}, indent=1))
        return
    if options.verbose:
        print(workload.listed(sweep.lines()), end="\n\n")
    print(summary)


def run(options: RunOptions) -> int:
    """Do the runs and write the pages; raises UserError for a mistake, before any run starts."""
    began = time.monotonic()
    published.load(options.study)
    chosen_threads()
    journal.read_with([], options.others)
    if options.cluster:
        failed = _run_on_cluster(options, options.cluster, began)
        known_prices = prices.load({})
    else:
        machine = hardware.detect()
        failed = _run_here(options, machine, began)
        known_prices = options.prices(options.machine_name(machine))
    _conclude(options, failed, known_prices)
    return 1 if failed else 0


def _run_here(options: RunOptions, machine: Hardware, began: float) -> Sequence[str]:
    """Do the runs on this machine; return those that failed."""
    name = options.machine_name(machine)
    price = _dollars_per_hour(options.prices(name), name, machine)
    if price is None and options.dollars is not None:
        raise UserError(
            f"--dollars: the price of {name!r} is not known; give --price DOLLARS (per hour), or --machine with the "
            "name of a machine in poc/published/prices.csv"
        )
    until = schedule.bound(began, options.hours, options.dollars, price)
    context = _context(options, machine, name, options.source(), until)
    sweep = Sweep(options.plans(machine), options.folder, context, **_sweep_options(options))
    return run_sweep(sweep, _request(options, [sweep], last_run.now()), price)


def _run_on_cluster(options: RunOptions, address: str, began: float) -> Sequence[str]:
    """Do the runs on all machines of a cluster; return those that failed."""
    for name in ("machine", "price", "dollars"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name} is for a single machine; remove it. A node has the name of its label")
    paths, fields = options.paths(), literals.fields(options.settings)
    # Mistakes are found before a node is connected.
    recipes = [(path.stem, config.load(path, frameworks.FRAMEWORKS, fields)) for path in paths]
    from poc.cluster import connect  # Ray is an extra

    known_prices, started = prices.load({}), last_run.now()
    connect(address, verbose=options.verbose)
    from poc.cluster.scheduler import Cluster

    until = schedule.bound(began, options.hours, None, None)
    cluster = Cluster(
        recipes=recipes,
        results=options.folder,
        context=_context(options, hardware.detect(), "", options.data, until),  # each node has its own POC_DATA
        only=options.only,
        plan_options={"quick": options.quick, "cpu": options.cpu, "named": options.named},
        sweep_options=_sweep_options(options),
        price=functools.partial(_dollars_per_hour, known_prices),
        note=lambda sweeps: last_run.write(options.folder, _request(options, sweeps, started)),
    )
    return cluster.run()


def _request(options: RunOptions, sweeps: Sequence[Sweep], started: str) -> LastRun:
    return LastRun(
        recipes=options.names(),
        runs=tuple(dict.fromkeys(run for sweep in sweeps for run in sweep.ids())),
        skipped=workload.skipped([item for sweep in sweeps for item in sweep.items]),
        quick=options.quick,
        machine=next((sweep.context.infrastructure for sweep in sweeps), ""),
        started=started,
    )


def _sweep_options(options: RunOptions) -> dict[str, Any]:
    return {"detail": options.rounds if options.detail else 0, "again": options.again, "verbose": options.verbose}


def _conclude(options: RunOptions, failed: Sequence[str], known_prices: prices.Prices) -> None:
    """Write the pages, and say which runs `failed`."""
    write_report(options, known_prices, study=options.study, target=options.target, folders=options.others)
    if failed:
        how = "start again without --again" if options.again else "start again"
        print(f"{len(failed)} failed: {', '.join(failed)}; {how} to repeat just these", file=sys.stderr)


def _context(options: RunOptions, machine: Hardware, name: str, source: Path | None, until: float) -> RunContext:
    return RunContext(
        machine=machine,
        infrastructure=name,
        source=source,
        cache=cache(),
        checkpoints=options.checkpoints,
        price_per_hour=options.price,
        patience=options.patience,
        verbose=options.verbose,
        until=until,
    )


def _dollars_per_hour(known_prices: prices.Prices, name: str, machine: Hardware) -> float | None:
    """Return the price of a machine; None if it is not known."""
    price = known_prices.of(name, machine.describe())
    return price.dollars_per_hour if price else None
