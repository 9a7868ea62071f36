"""The command line: what this machine can run, what a recipe means here, run it, report it."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

from tabulate import tabulate

from poc import advice, engines, recipe, studies
from poc.machine import hardware, topology
from poc.plan import Planned, plan, select
from poc.recipe import EPOCHS, networks
from poc.records import journal
from poc.records.record import COMPLETED, DONE
from poc.train import breakdown, hosts
from poc.train.campaign import Campaign, duration, undertake
from poc.train.local import Place
from poc.train.parent import execute, follow, forget
from poc.values import UserError, nearest, positive, whole

Add = Callable[..., Any]
"""Adds an option to a parser, as argparse's add_argument."""
HOME = Path(__file__).resolve().parent.parent

_HELP = """\
How fast does data-parallel training go on this machine, how does it scale, and how does that compare?

  python -m poc doctor                 what this machine has, what it can run, and why not the rest
  python -m poc plan cifar10_resnet50  every run of a recipe on this machine, with its numbers and estimated time
  python -m poc run cifar10_resnet50   do those runs, add them to the journal, write results.md
  python -m poc report                 write results.md again from the journal
  python -m poc advise my_recipe       a short run, and from it up to which batch more devices pay, and the rate there
  python -m poc networks               the networks that a recipe may name, with what they cost
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code: 0 done, 1 a run failed, 2 the user's mistake, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        status = int(options.command(options))
        sys.stdout.flush()
        return status
    except UserError as error:
        print(f"poc: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read has seen enough: plan | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains of it at its end
        return 0
    except OSError as error:
        print(f"poc: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except hosts.LinkError as error:
        print(f"poc: the link to another host is lost: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("poc: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m poc", description=_HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="{doctor,plan,run,report,advise,networks}")
    for name, command, options, what in (
        ("doctor", _doctor, (), "what this machine has and can run"),
        ("plan", _plan, (_recipes_options,), "print every run of a recipe on this machine"),
        ("run", _run, (_recipes_options, _results_options, _run_options), "do the runs, then write results.md"),
        ("report", _report, (_results_options, _report_options), "write results.md from the journal"),
        ("advise", _advise, (_advise_options,), "a short run, and from it a batch size and a learning rate"),
        ("networks", _networks, (_networks_options,), "the networks that a recipe may name, with what they cost"),
    ):
        added = commands.add_parser(name, help=what)
        for add_options in options:
            add_options(added.add_argument)
        added.set_defaults(command=command)
    return parser


def _recipes_options(add: Add) -> None:
    add("recipes", nargs="*", metavar="RECIPE", help="a name in recipes/, or a Python file; by default all of recipes/")
    add("--quick", action="store_true", help="a first look: each run cut short; its rows say so")
    add("--only", action="append", metavar="ID", help="only the run whose id (see plan) starts so; may be repeated")


def _results_options(add: Add) -> None:
    where = "journal, rows.csv, figures and results.md go here (default: results/, with results.md beside it)"
    add("--results", type=Path, metavar="DIR", help=where)
    own = "a published study of your own, as those in poc/studies/; may be repeated"
    add("--study", type=Path, action="append", default=[], metavar="FILE", help=own)


def _data_option(add: Add) -> None:
    files = "CIFAR-10: the official binary files or archive, or cifar10_{train,val}.rec (default: $POC_DATA)"
    add("--data", type=Path, metavar="DIR", default=os.environ.get("POC_DATA") or None, help=files)


def _run_options(add: Add) -> None:
    _data_option(add)
    add("--infrastructure", metavar="NAME", help="what results call this machine (default: hardware)")
    kept = "checkpoints go here, where a completed run leaves its last one (default: the cache, until it completes)"
    add("--checkpoints", type=Path, metavar="DIR", help=kept)
    patience = "end a run in which nothing has gone on for so long (default: 300)"
    add("--patience", type=float, metavar="SECONDS", default=300.0, help=patience)
    add("--again", action="store_true", help="repeat runs that the journal holds already")
    add("--price", type=float, metavar="DOLLARS", help="what this machine costs an hour: adds costs to rows")
    add("--detail", action="store_true", help="afterwards, take computation and communication apart")
    rounds = f"of --detail: pairs of windows, with the exchange and without (default: {breakdown.ROUNDS})"
    add("--rounds", type=int, metavar="N", default=breakdown.ROUNDS, help=rounds)


def _report_options(add: Add) -> None:
    joined = "another machine's journal, to be joined"
    add("--journal", type=Path, action="append", default=[], metavar="FILE", help=joined)


def _advise_options(add: Add) -> None:
    add("recipe", metavar="RECIPE", help="a name in recipes/, or a Python file; its first setting")
    _data_option(add)
    steps = f"of the short run (default: {advice.STEPS})"
    add("--steps", type=int, metavar="N", default=advice.STEPS, help=steps)


def _networks_options(add: Add) -> None:
    add("--count", action="store_true", help="first count what they cost anew, as engines build them")


def _doctor(_: argparse.Namespace) -> int:
    machine = hardware.detect()
    print(f"CPU     {machine.cpu}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB of memory")
    print(f"        {machine.cpu_flops / 1e9:.0f} GFLOP/s in a float32 matrix product")
    print(f"        a run on this CPU gets {machine.cores} OpenMP threads, divided over its workers")
    if not machine.gpus:
        print("GPU     none that an NVIDIA driver knows of: GPU rows of a recipe are skipped, CPU rows run")
    for gpu in machine.gpus:
        major, minor = gpu.capability
        print(f"GPU {gpu.index}   {gpu.name}, compute capability {major}.{minor}, {gpu.memory_bytes / 2**30:.0f} GiB")
        for name in engines.ENGINES:
            print(f"        {name}: {engines.load(name).unsupported(gpu) or 'can train on it'}")
    if len(machine.gpus) > 1:
        layout = topology.detect(machine.gpus)
        for line in topology.recommendations(layout):
            print(f"choice  {line}")
        for line in topology.warnings(layout):
            print(f"warning {line}")
        print("links   nvidia-smi topo -m shows them")
    for name in engines.ENGINES:
        engine = engines.load(name)
        versions = ", ".join(f"{package} {version}" for package, version in engine.versions().items())
        print(f"engine  {name}: {versions or 'not installed'}")
        if hint := engine.missing(machine):
            print(f"        {hint}")
    print("python  " + ", ".join(f"{k} {v}" for k, v in hardware.versions().items()))
    return 0


def _advise(options: argparse.Namespace) -> int:
    whole("--steps", options.steps, least=20)
    path = _recipe_path(options.recipe)
    found = recipe.load(path)
    machine = hardware.detect()
    (planned,) = plan(path.stem, advice.probe(found, options.steps), machine)
    if planned.skip:
        raise UserError(f"{path.name}: {planned.skip}")
    source = Path(options.data).absolute() if options.data else None
    print(f"{planned.run}: about {duration(planned.seconds)}", file=sys.stderr)
    place = Place(source=source, cache=_cache())
    record, _ = execute(planned.run, place, machine, machine.describe())
    if record.outcome in DONE:
        forget(planned.run, place)
    if record.outcome != COMPLETED:
        print(f"poc: {record.in_words()}", file=sys.stderr)
        return 1
    noisy = record.noise(first=0.5)
    if noisy is None or noisy.scale is None:
        print("poc: no gradient could be told from the noise: give more --steps", file=sys.stderr)
        return 1
    setting = found.settings()[0]
    advised = advice.advise(found, noisy.scale)
    shorter = 1 / advised.best.samples
    kept = f"as many samples get as far as {shorter:.2f} of them"
    if setting.steps is None and setting.seconds is None:
        epochs = setting.epochs or EPOCHS
        kept = f"{epochs} epochs get as far as {shorter * epochs:.1f}"
    rows = [
        [
            f"{one.batch}" + (" <-" if one == advised.best else ""),
            f"{one.steps:.2f}",
            f"{one.samples:.2f}",
            f"{one.learning_rate:.3g}",
        ]
        for one in advised.choices
    ]
    headers = ["total batch", "steps, of the fewest", "samples, of the fewest", "learning rate"]
    print(f"Gradient noise scale: {noisy.scale:.0f} samples ({noisy.samples} looks in the second half of the run).")
    print(tabulate(rows, headers=headers, disable_numparse=True))
    print(
        f"Beyond a total batch of {advised.best.batch} twice the devices save less than a quarter of the steps, and "
        f"from about there accuracy suffers: {kept} with a small batch. "
        "The noise scale grows while the loss falls: after a longer run (--steps) it is larger."
    )
    return 0


def _networks(options: argparse.Namespace) -> int:
    if options.count:
        networks.write_costs({name: engines.count(network) for name, network in networks.NETWORKS.items()})
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
    headers = ["network", "input", "parameters", "multiply-adds of a forward pass (M)", "source"]
    print(tabulate(rows, headers=headers, disable_numparse=True, colalign=("left", "left", "right", "right", "left")))
    return 0


def _plan(options: argparse.Namespace) -> int:
    total = 0.0
    headers = ["id", "run", "total batch", "steps", "time, or why skipped"]
    for name, planned in _planned(options, hardware.detect()):
        rows = [[one.run.id, str(one.run), one.run.total_batch, one.run.steps, _outlook(one)] for one in planned]
        print(f"{name}\n{tabulate(rows, headers=headers, disable_numparse=True)}\n")
        total += sum(one.seconds for one in planned if not one.skip)
    print(f"About {duration(total)} in all, estimated; `run` skips what the journal holds already.")
    return 0


def _outlook(planned: Planned) -> str:
    return f"skipped: {planned.skip}" if planned.skip else duration(planned.seconds)


def _run(options: argparse.Namespace) -> int:
    options.study = studies.load(options.study)
    if options.data is not None:
        options.data = Path(options.data).absolute()
        if not options.data.exists():
            raise UserError(f"--data: {options.data} does not exist; give a folder or file that holds CIFAR-10")
    if options.price is not None:
        positive("--price", options.price)
    positive("--patience", options.patience)
    whole("--rounds", options.rounds, least=3)
    place = Place(
        source=options.data,
        cache=_cache(),
        checkpoints=options.checkpoints.absolute() if options.checkpoints else None,
        patience=options.patience,
    )
    here = hosts.find(os.environ)
    if here is None:
        return _lead(options, place, [])
    if here.number == 0:
        with hosts.gathered(here) as others:
            status = _lead(options, place, others)
            for link in others:
                link.send({"end": True})
            return status
    with hosts.joined(here) as leader:
        print(f"Host {here.number} of {here.count} follows {here.address}.", file=sys.stderr)
        follow(leader, place, hardware.detect())
    return 0


def _lead(options: argparse.Namespace, place: Place, others: Sequence[hosts.Link]) -> int:
    """Does the runs, with what help the `others` give, and writes the results."""
    machine = dataclasses.replace(hardware.detect(), hosts=1 + len(others))
    path = _results(options) / "journal.jsonl"
    campaign = Campaign(
        journal=path,
        place=place,
        machine=machine,
        infrastructure=options.infrastructure or machine.describe(),
        price_per_hour=options.price,
        detail=options.rounds if options.detail else 0,
        again=options.again,
    )
    failed = undertake(campaign, _planned(options, machine), others)
    _write_report(options, [path])
    if failed:
        how = "start again without --again" if options.again else "start again"
        print(f"{len(failed)} failed: {', '.join(failed)}; {how} to repeat just these", file=sys.stderr)
    return 1 if failed else 0


def _report(options: argparse.Namespace) -> int:
    options.study = studies.load(options.study)
    for extra in options.journal:
        if not extra.is_file():
            raise UserError(f"--journal: no file {extra}")
    _write_report(options, [_results(options) / "journal.jsonl", *options.journal])
    return 0


def _write_report(options: argparse.Namespace, journals: list[Path]) -> None:
    # matplotlib keeps its list of fonts in the user's own folders, if not told where.
    os.environ.setdefault("MPLCONFIGDIR", str(_cache() / "matplotlib"))
    # scipy and matplotlib take a second to import, which plan and doctor need not wait for.
    from poc import report

    folder = _results(options)
    page = folder / "results.md" if options.results else HOME / "results.md"
    report.write(journal.read(journals), options.study, page=page, folder=folder)
    print(f"Written: {page}", file=sys.stderr)


def _planned(options: argparse.Namespace, machine: hardware.Hardware) -> list[tuple[str, list[Planned]]]:
    paths = [_recipe_path(name) for name in options.recipes] or sorted((HOME / "recipes").glob("*.py"))
    recipes = [(path.stem, recipe.load(path)) for path in paths]
    plans = [(name, plan(name, one, machine, quick=options.quick)) for name, one in recipes]
    chosen = select([one for _, planned in plans for one in planned], options.only)
    grouped = [(name, [one for one in planned if one in chosen]) for name, planned in plans]
    return [(name, planned) for name, planned in grouped if planned]


def _recipe_path(name: str) -> Path:
    if name.endswith(".py"):
        return Path(name)
    path = HOME / "recipes" / f"{name}.py"
    if not path.exists():
        raise UserError(f"recipe: no {name!r} in recipes/; {nearest(name, [p.stem for p in path.parent.glob('*.py')])}")
    return path


def _results(options: argparse.Namespace) -> Path:
    return Path(options.results).absolute() if options.results else HOME / "results"


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("POC_CACHE") or Path(base) / "poc-mxnet").absolute()


if __name__ == "__main__":
    sys.exit(main())
