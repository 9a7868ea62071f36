"""Plan the chosen recipes and run them, on this machine or on a cluster."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from poc import config, frameworks, published
from poc.cli import chosen
from poc.cli.look import check_target, write_report
from poc.config import literals
from poc.host import hardware
from poc.host.hardware import Hardware
from poc.host.waiting import chosen_threads
from poc.published import Study, prices
from poc.published.prices import Prices
from poc.records import journal, last_run
from poc.records.last_run import LastRun
from poc.run import schedule, workload
from poc.run.launcher import RunContext, cache
from poc.run.sweep import Sweep, run_sweep
from poc.values import Count, Positive, UserError, checked, to_plain


def plan(options: argparse.Namespace) -> None:
    """Print what a run of the same recipes would do."""
    machine = hardware.detect()
    name = chosen.machine_name(options, machine)
    place = RunContext(machine=machine, infrastructure=name, source=None, cache=cache())
    sweep = Sweep(chosen.plans(options, machine), chosen.results(options), place)
    summary = sweep.workload(_price(_prices(options, name), name, machine))
    if options.json:
        runs = [to_plain(line) for line in sweep.lines()]
        print(json.dumps({"machine": name, **to_plain(summary), "planned": runs}, indent=1))
        return
    if options.verbose:
        print(workload.listed(sweep.lines()), end="\n\n")
    print(summary)


def run(options: argparse.Namespace) -> int:
    """Do the runs, and write the pages; raises UserError for a mistake, before anything is spent."""
    began = time.monotonic()
    studies = published.load(options.study)
    _check_numbers(options)
    # Mistakes are found before anything is spent.
    chosen_threads()
    journal.read_with([], options.others)
    if options.cluster:
        return _run_on_cluster(options, began, studies)
    machine = hardware.detect()
    name = chosen.machine_name(options, machine)
    machine_prices = _prices(options, name)
    price = _price(machine_prices, name, machine)
    if price is None and options.dollars is not None:
        raise UserError(
            f"--dollars: the price of {name!r} is not known; give --price DOLLARS (per hour), or --machine with the "
            "name of a machine in poc/published/prices.csv"
        )
    place = _place(options, machine, name, chosen.source(options))
    place = dataclasses.replace(place, until=schedule.bound(began, options.hours, options.dollars, price))
    sweep = Sweep(chosen.plans(options, machine), chosen.results(options), place, **_sweep_options(options))
    failed = run_sweep(sweep, _request(options, [sweep], last_run.now()), price)
    return _conclude(options, failed, studies, machine_prices)


def _run_on_cluster(options: argparse.Namespace, began: float, studies: Sequence[Study]) -> int:
    """Do the same on all machines of a cluster."""
    for name in ("machine", "price", "dollars"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name}: it is of one machine; on a cluster each node's label says what it is called")
    # Ray is an extra.
    from poc.cluster import connect

    machine_prices, paths, fields = prices.load({}), chosen.recipe_paths(options), literals.fields(options.set)
    recipes = [(path.stem, config.load(path, frameworks.FRAMEWORKS, fields)) for path in paths]
    # Each node has its own POC_DATA.
    context = _place(options, hardware.detect(), "", options.data)
    started = last_run.now()
    connect(options.cluster, verbose=options.verbose)

    from poc.cluster.scheduler import Cluster

    cluster = Cluster(
        recipes=recipes,
        results=chosen.results(options),
        context=dataclasses.replace(context, until=schedule.bound(began, options.hours, None, None)),
        only=options.only,
        plan_options={"quick": options.quick, "cpu": options.cpu, "named": bool(options.recipes or options.only)},
        sweep_options=_sweep_options(options),
        price=functools.partial(_price, machine_prices),
        note=lambda sweeps: last_run.write(chosen.results(options), _request(options, sweeps, started)),
    )
    return _conclude(options, cluster.run(), studies, machine_prices)


def _request(options: argparse.Namespace, sweeps: Sequence[Sweep], started: str) -> LastRun:
    return LastRun(
        recipes=chosen.recipe_names(options),
        runs=tuple(dict.fromkeys(run for sweep in sweeps for run in sweep.ids())),
        skipped=workload.skipped([item for sweep in sweeps for item in sweep.items]),
        quick=options.quick,
        machine=next((sweep.context.infrastructure for sweep in sweeps), ""),
        started=started,
    )


def _sweep_options(options: argparse.Namespace) -> dict[str, Any]:
    return {"detail": options.rounds if options.detail else 0, "again": options.again, "verbose": options.verbose}


def _conclude(
    options: argparse.Namespace, failed: Sequence[str], studies: Sequence[Study], machine_prices: Prices
) -> int:
    """Write the results, and say which runs `failed`; return the exit code."""
    write_report(options, studies, machine_prices)
    if failed:
        how = "start again without --again" if options.again else "start again"
        print(f"{len(failed)} failed: {', '.join(failed)}; {how} to repeat just these", file=sys.stderr)
    return 1 if failed else 0


def _check_numbers(options: argparse.Namespace) -> None:
    for name in ("price", "hours", "dollars", "patience"):
        if getattr(options, name) is not None:
            checked(f"--{name}", getattr(options, name), Positive)
    checked("--rounds", options.rounds, Annotated[Count, Ge(3)])
    check_target(options)


def _place(options: argparse.Namespace, machine: Hardware, name: str, source: Path | None) -> RunContext:
    return RunContext(
        machine=machine,
        infrastructure=name,
        source=source,
        cache=cache(),
        checkpoints=options.checkpoints,
        price_per_hour=options.price,
        patience=options.patience,
        verbose=options.verbose,
    )


def _prices(options: argparse.Namespace, name: str) -> Prices:
    """Return the known prices, with the one that the user gave for this machine."""
    return prices.load({} if options.price is None else {name: options.price})


def _price(machine_prices: Prices, name: str, machine: Hardware) -> float | None:
    """Return the dollars per hour of this machine; None where they are not known."""
    price = machine_prices.of(name, machine.describe())
    return price.dollars_per_hour if price else None
