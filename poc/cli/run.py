"""Plan the chosen recipes and run them, on this machine or on a cluster."""

import functools
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from poc import published
from poc.cli.look import write_report
from poc.cli.options import HOME, Options
from poc.host import hardware
from poc.host.environment import POC, cache
from poc.host.hardware import Hardware
from poc.published import prices
from poc.published.prices import Prices
from poc.records import journal, last_run
from poc.records.last_run import LastRun
from poc.run import schedule, step_profile, workload
from poc.run.launcher import RunContext
from poc.run.sweep import Sweep, run_sweep
from poc.values import UserError, to_plain


def plan(options: Options) -> None:
    """Print what a run of the same recipes would do."""
    machine = hardware.detect()
    name = options.machine_name(machine)
    context = RunContext(machine=machine, infrastructure=name, source=None, cache=cache())
    sweep = Sweep(options.planned(machine), options.results, context)
    lines, known_price = sweep.lines(), options.known_price(machine)
    price = known_price.dollars_per_hour if known_price else None
    if options.json:
        facts = {"machine": name, **workload.totals(lines), "price_per_hour": price, "skipped": workload.skipped(lines)}
        print(json.dumps({**facts, "planned": to_plain(lines)}, indent=1))
        return
    if options.verbose:
        print(workload.listed(lines), end="\n\n")
    print(workload.summary(lines, price))


def run(options: Options) -> int:
    """Do the runs and write the pages; raises UserError for a mistake, before any run starts."""
    began = time.monotonic()
    # What is used only at the end is read now, too: it may have mistakes.
    published.load(options.study)
    journal.read_with([], options.others)
    failed, known_prices = (_run_on_cluster if options.cluster else _run_here)(options, began)
    write_report(options, known_prices)
    folder = "" if options.results == HOME / "results" else f" --results {shlex.quote(str(options.results))}"
    return exit_code(failed, f"{POC} show ID{folder} shows why, ")


def exit_code(failed: Sequence[str], hint: str = "") -> int:
    """Return 1 if runs failed, else 0; print their ids, the `hint`, and what repeats them."""
    if failed:
        print(f"{len(failed)} failed: {', '.join(failed)}; {hint}the same command repeats just these", file=sys.stderr)
    return 1 if failed else 0


def _run_here(options: Options, began: float) -> tuple[Sequence[str], Prices]:
    """Do the runs on this machine; return those that failed, and the prices."""
    machine = hardware.detect()
    name = options.machine_name(machine)
    known_prices = options.prices(name)
    price = known_prices.of(name, machine.describe())
    if price is None and options.dollars is not None:
        raise UserError(f"--dollars: the price of {name!r} is not known; give --price DOLLARS (per hour)")
    dollars_per_hour = price.dollars_per_hour if price else None
    until = schedule.bound(began, options.hours, options.dollars, dollars_per_hour)
    context = _context(options, machine, name, options.source(), until)
    started = last_run.now()
    planned = options.planned(machine)
    context.check_writable()
    sweep_options = _sweep_options(options, started, [each.run.recipe for each in planned], name)
    sweep = Sweep(planned, options.results, context, **sweep_options)
    return run_sweep(sweep, dollars_per_hour, functools.partial(write_last_run, options, started)), known_prices


def _run_on_cluster(options: Options, began: float) -> tuple[Sequence[str], Prices]:
    """Do the runs on all machines of a cluster; return those that failed, and the prices."""
    for name in ("machine", "price", "dollars", "trace"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name} works on a single machine only; remove it (docs/hosts.md)")
    recipes = options.load_recipes()  # mistakes are found before a node is connected
    from poc.cluster import connect  # Ray is an extra

    known_prices, started = prices.load({}), last_run.now()
    connect(options.cluster, verbose=options.verbose)
    from poc.cluster.scheduler import Cluster

    note = functools.partial(write_last_run, options, started)
    until = schedule.bound(began, options.hours, None, None)
    cluster = Cluster(
        recipes=recipes,
        results=options.results,
        context=_context(options, hardware.detect(), "", options.data, until),  # each node has its own POC_DATA
        only=options.only,
        plan_options=options.plan_options,
        sweep_options=_sweep_options(options, started, [name for name, _ in recipes]),
        note=note,
    )
    return cluster.run(), known_prices


def write_last_run(options: Options, started: str, sweeps: Sequence[Sweep]) -> None:
    """Write to the folder of results what this command is to do, and how much of it is left."""
    unfinished = [(sweep, pending) for sweep in sweeps if (pending := sweep.pending(sweep.plan))]
    request = LastRun(
        recipes=tuple(options.recipes or dict.fromkeys(each.run.recipe for sweep in sweeps for each in sweep.plan)),
        runs=tuple(dict.fromkeys(run for sweep in sweeps for run in sweep.ids())),
        skipped=workload.skipped([line for sweep in sweeps for line in sweep.lines()]),
        quick=options.quick,
        machine=next((sweep.context.infrastructure for sweep in sweeps), ""),
        started=started,
        runs_left=sum(len(pending) for _, pending in unfinished),
        again_since=next((sweep.since for sweep, _ in unfinished), ""),
    )
    last_run.write(options.results, request)


def _sweep_options(options: Options, started: str, names: Sequence[str], machine: str = "") -> dict[str, Any]:
    """Return the options of a sweep of the recipes `names`; it continues an unfinished --again of just these.

    Without the name of a `machine` it may have been on any.
    """
    since, last = started if options.again else "", last_run.read(options.results)
    recipes = {*(options.recipes or names)}
    if since and last and last.again_since and machine in ("", last.machine) and {*last.recipes} == recipes:
        since = last.again_since
        print(f"--again: continuing that of {since[:16]} UTC; a start without --again ends it", file=sys.stderr)
    return {"detail": step_profile.ROUNDS if options.detail else 0, "since": since, "verbose": options.verbose}


def _context(options: Options, machine: Hardware, name: str, source: Path | None, until: float) -> RunContext:
    return RunContext(
        machine=machine,
        infrastructure=name,
        source=source,
        cache=cache(),
        checkpoints=options.checkpoints,
        price_per_hour=options.price,
        patience=options.patience,
        trace_steps=options.trace or 0,
        traces=journal.folder(options.results, name) / journal.TRACES,
        until=until,
    )
