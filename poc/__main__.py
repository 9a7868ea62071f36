"""The command line: what this machine can run, what a recipe means here, run it, report it."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from tabulate import tabulate

from poc import advice, data, engines, predict, recipe, studies
from poc.engines import Build
from poc.machine import hardware, topology
from poc.machine.waiting import chosen_threads
from poc.plan import Planned, plan, select
from poc.recipe import networks
from poc.records import journal
from poc.records.record import COMPLETED, DONE, Advice, Record
from poc.studies import prices
from poc.train import breakdown, outlook
from poc.train.campaign import Campaign, undertake
from poc.train.local import Here, Place, cache
from poc.train.parent import execute
from poc.values import UserError, nearest, positive, whole

HOME = Path(__file__).resolve().parent.parent
_ROOM_GIGABYTES = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code: 0 done, 1 a run failed, 2 the user's mistake, 130 interrupted."""
    # matplotlib keeps its list of fonts in the user's own folders, if not told where, and needs there to be any.
    os.environ.setdefault("MPLCONFIGDIR", str(cache() / "matplotlib"))
    try:
        options = _parser().parse_args(arguments)
        if "results" in options:
            print("".join(f"{line}\n" for line in journal.misplaced(_results(options))), end="", file=sys.stderr)
        status = int(options.command(options) or 0)
        sys.stdout.flush()
        return status
    except UserError as error:
        print(f"poc: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read has seen enough: plan | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains of it at its end
        return int(options.command in (_run, _advise))  # what trains has not done all it had to
    except OSError as error:
        print(f"poc: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("poc: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    question = "How fast does data-parallel training go on this machine, how does it scale, and how does that compare?"
    parser = argparse.ArgumentParser(prog="python -m poc", description=question)
    commands = parser.add_subparsers(
        required=True, metavar="{doctor,plan,run,status,report,show,compare,advise,predict,networks}"
    )

    def added(name: str, command: Callable[[argparse.Namespace], int | None], what: str) -> Callable[..., Any]:
        """Adds a command; returns what adds an option to it."""
        subparser = commands.add_parser(name, help=what)
        subparser.set_defaults(command=command)
        return subparser.add_argument

    to_choose = added("environment", _environment, "what make_environment.sh is to install for this machine's cards")
    to_choose("engines", nargs="*", metavar="ENGINE", help="beside the ones it takes")
    added("doctor", _doctor, "what this machine has, what it can run, and why not the rest")
    to_plan = added("plan", _plan, "every run of a recipe on this machine, with its numbers and estimated time")
    to_run = added("run", _run, "do those runs, add them to the journal, write results.md")
    to_status = added("status", _status, "what each machine of a cluster that is at work does")
    to_report = added("report", _report, "write results.md again from the journals")
    to_show = added("show", _show, "one run of the journals: its repeats, curve and where its time went")
    to_compare = added("compare", _compare, "two runs of the journals: in what they differ, and whether in speed")
    to_advise = added(
        "advise", _advise, "short runs, and from them how many devices, which batch and rate, at what cost"
    )
    to_predict = added("predict", _predict, "how well throughput on more devices is predicted, on series left out")
    to_networks = added("networks", _networks, "the networks that a recipe may name, with what they cost")
    for add in (to_plan, to_run):
        add("recipes", nargs="*", metavar="RECIPE", help="a name in recipes/, or a Python file (default: all)")
        add("--quick", action="store_true", help="a first look: each run cut short; its rows say so")
        add("--only", action="append", metavar="ID", help="only the run whose id (see plan) starts so; may be repeated")
    to_show("run", metavar="ID", help="how its id starts (see plan); @MACHINE after it where several have it")
    to_compare("runs", nargs=2, metavar="ID", help="as for show")
    to_advise(
        "recipe", metavar="RECIPE", help="a name in recipes/, or a Python file; its first setting that can run here"
    )
    steps = "of the run that looks at the noise (default: %(default)s)"
    to_advise("--steps", type=int, metavar="N", default=advice.STEPS, help=steps)
    _add_options_of_run(to_run)
    for add in (to_run, to_advise):
        files = "CIFAR-10 in any usual form (docs/recipes.md), or imagenet_{train,val}.rec (default: $POC_DATA)"
        add("--data", type=_absolute, metavar="DIR", help=files)
        add("--machine", metavar="NAME", help="what results call this machine (default: hardware)")
    to_advise("--on", metavar="NAME", help="a machine that is not here, as poc/studies/prices.csv or a study calls it")
    for add in (to_run, to_status, to_report, to_show, to_compare, to_advise):
        where = "journals, rows.csv, figures and results.md go here (default: results/, with results.md beside it)"
        add("--results", type=_absolute, metavar="DIR", help=where)
    for add in (to_run, to_report, to_predict):
        study = "a published study of your own, as those in poc/studies/; may be repeated"
        add("--study", type=Path, action="append", default=[], metavar="FILE", help=study)
    for add in (to_run, to_report):
        sent = "a folder of other measurements to show beside this machine's, e.g. reference/; may be repeated"
        add("--with", dest="others", type=_absolute, action="append", default=[], metavar="FOLDER", help=sent)
    costs = "what the machine of that name in the tables costs an hour; may be repeated"
    to_report("--price", type=prices.named, action="append", default=[], metavar="NAME=DOLLARS", help=costs)
    to_predict("--save", action="store_true", help="first learn anew from the published series here (minutes)")
    to_networks("--count", action="store_true", help="first count what they cost anew, as engines build them")
    return parser


def _add_options_of_run(add: Callable[..., Any]) -> None:
    kept = "checkpoints go here, where a run leaves that of its last step (default: the cache, until it completes)"
    add("--checkpoints", type=_absolute, metavar="DIR", help=kept)
    patience = "end a run that makes no step for so long (default: %(default)g)"
    add("--patience", type=float, metavar="SECONDS", default=300.0, help=patience)
    price = "what this machine costs an hour (default: that of --machine, where poc/studies/prices.csv has it)"
    add("--price", type=float, metavar="DOLLARS", help=price)
    add("--hours", type=float, metavar="H", help="end by then; the same command goes on with what is left")
    add("--dollars", type=float, metavar="D", help="the same, when so much is spent at the machine's price")
    add("--again", action="store_true", help="repeat runs that the journal holds already")
    add("--detail", action="store_true", help="afterwards, take computation and communication apart")
    rounds = "of --detail: pairs of windows, with gradient synchronisation and without (default: %(default)s)"
    add("--rounds", type=int, metavar="N", default=breakdown.ROUNDS, help=rounds)
    cluster = "run on every machine of a cluster on Ray: its address, auto ($RAY_ADDRESS or this node's), or local"
    add("--cluster", metavar="ADDRESS", help=cluster)


def _absolute(given: str) -> Path:
    return Path(given).absolute()


def _source(options: argparse.Namespace) -> Path | None:
    """Return where this machine's real images are; None where nobody said.

    What POC_DATA names is looked at where a recipe needs it.
    """
    if options.data and not options.data.exists():
        raise UserError(f"--data: {options.data} does not exist; give a folder or file that holds CIFAR-10")
    given = options.data or os.environ.get("POC_DATA")
    return Path(given).absolute() if given else None


def _doctor(_: argparse.Namespace) -> None:
    machine = hardware.detect()
    cores = "1 core" if machine.cores == 1 else f"{machine.cores} cores"
    print(f"CPU     {machine.cpu}, {cores}, {machine.memory_bytes / 2**30:.0f} GiB of memory")
    print(f"        {machine.cpu_flops / 1e9:.0f} GFLOP/s in a float32 matrix product")
    print(f"        a run on this CPU gets {machine.cores} OpenMP threads, divided over its workers")
    if not machine.gpus:
        print("GPU     none that an NVIDIA driver knows of: GPU rows of a recipe are skipped, CPU rows run")
    for gpu in machine.gpus:
        major, minor = gpu.capability
        print(f"GPU {gpu.index}   {gpu.name}, compute capability {major}.{minor}, {gpu.memory_bytes / 2**30:.0f} GiB")
        for name in engines.ENGINES:
            print(f"        {name}: {engines.unsupported(name, gpu, machine) or 'can train on it'}")
    if len(machine.gpus) > 1:
        layout = topology.detect(machine.gpus)
        for line in topology.warnings(layout):
            print(f"warning {line}")
        print("links   nvidia-smi topo -m shows them")
    for name in engines.ENGINES:
        print(f"engine  {name}: {_listed(engines.versions(name)) or 'not installed'}")
    for line in _why_builds(machine, engines.wanted(machine)):
        print(f"auto    {line}")
    print(f"python  {_listed(hardware.versions())}")


def _why_builds(machine: hardware.Hardware, wanted: Mapping[str, Build]) -> list[str]:
    """Which build of each of the engines `wanted` this machine takes and why, a line each; what others lack."""
    lines = []
    for name in engines.ENGINES:
        able = engines.usable(name, machine)
        lacking = {gpu.name: engines.unsupported(name, gpu, machine) for gpu in machine.gpus if gpu not in able}
        lines += [f"{name}: not on GPUs: {reason}" for reason in lacking.values()]
        if build := wanted.get(name):
            cards = dict.fromkeys(gpu.name for gpu in able)
            reason = f"it runs on {', '.join(cards)} with driver {machine.driver}" if build.code else "for the CPU"
            lines.append(f"{name}: {build}, {build.gigabytes:g} GB: {reason}")
    return lines


def _environment(options: argparse.Namespace) -> None:
    """Print a line for each list of packages to install: its environment's folder, and its path."""
    machine = hardware.detect()
    wanted = engines.wanted(machine, options.engines)
    for build in wanted.values():
        if sys.version_info < build.python:
            oldest, own = (".".join(map(str, version[:2])) for version in (build.python, sys.version_info))
            raise UserError(
                f"Python: {build} needs {oldest} or later, .venv has {own}: rm -r .venv, then PYTHON=python3.11 "
                "./make_environment.sh"
            )
    new = {name: build for name, build in wanted.items() if engines.versions(name).get(build.package) != build.version}
    if new:
        print("\n".join(_why_builds(machine, wanted)), file=sys.stderr)
    needed, free = sum(build.gigabytes for build in new.values()), shutil.disk_usage(HOME).free / 1e9
    if new and free < needed + _ROOM_GIGABYTES:
        raise UserError(
            f"disk: {HOME} has {free:.1f} GB free, and {needed + _ROOM_GIGABYTES:.1f} are needed: {needed:.1f} for "
            f"{', '.join(map(str, new.values()))}, the rest for data and results; make room, or take a larger disk"
        )
    for name, build in wanted.items():
        folder = engines.environment(name) if build.apart else HOME / ".venv"
        for file in build.requirements:
            print(folder.name, file)


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())


def _advise(options: argparse.Namespace) -> int:
    whole("--steps", options.steps, least=20)
    path = _recipe_path(options.recipe)
    machine = hardware.detect()
    setting = advice.first_setting(recipe.load(path, engines.ENGINES), machine)
    options.study, options.prices = studies.load([]), prices.load({})
    known = options.prices
    elsewhere = options.on and advice.published_speed(setting, options.on, known)
    name = options.machine or machine.describe()
    probes = [*([] if elsewhere else advice.speed_probes(setting)), advice.probe(setting, options.steps)]
    plans = [plan(path.stem, probe, machine)[0] for probe in probes]
    # A second device is measured where there is one.
    plans = [planned for planned in plans if not (planned.skip and planned.run.synchronises)]
    for planned in plans:
        if planned.skip:
            raise UserError(f"{path.name}: {planned.skip}")
        print(f"{planned}: about {outlook.duration(planned.seconds)}", file=sys.stderr)
    place = Place(machine=machine, infrastructure=name, source=_source(options), cache=cache())
    images = data.identify([planned.run.data for planned in plans], source=place.source, cache=place.cache)
    place = dataclasses.replace(place, images=images)
    before = _records(options)
    file = journal.folder(_results(options), name) / journal.FILE
    with journal.claimed(file):
        *timed, looked = (_probed(planned, place, file) for planned in plans)
    noise, between = looked.noise(first=0.5), looked.noise_interval(first=0.5)
    failed = next((record for record in (looked, *timed) if record.outcome != COMPLETED), None)
    if failed or noise is None or noise.scale is None or between is None:
        journal.append(file, looked)
        unclear = "no gradient could be told from the noise: give more --steps"
        print(f"poc: {failed.in_words() if failed else unclear}", file=sys.stderr)
        return 1
    speeds = [elsewhere] if elsewhere else [advice.measured_speed(record, before) for record in timed]
    price = known.of(options.on or name, machine.describe() if not elsewhere else "")
    low, high = between
    scale = (noise.scale, low, high or 16 * noise.scale)
    made = advice.options(setting, scale, speeds, price)
    said = Advice(machine=options.on or name, options=tuple(made))
    journal.append(file, dataclasses.replace(looked, advice=said))
    if warning := advice.warning(looked):
        print(warning)
    print(
        f"Gradient noise scale: {noise.scale:.0f} samples ({noise.samples} looks in the second half of the run; 90%: "
        f"{low:.0f} to {f'{high:.0f}' if high else 'no end seen'})."
    )
    print(advice.in_words(setting, noise.scale, speeds, made))
    _write_report(options)
    return 0


def _probed(planned: Planned, place: Place, file: Path) -> Record:
    """The record of a probe; of one for speed, taken apart, in the journal `file`: advice goes with the other."""
    record, interrupted = execute(planned.run, place, detail=0 if planned.run.gradient_noise else advice.ROUNDS)
    if record.outcome in DONE:
        Here(place).forget(planned.run)
    if interrupted or not planned.run.gradient_noise:
        journal.append(file, record)
    if interrupted:
        raise KeyboardInterrupt
    return record


def _predict(options: argparse.Namespace) -> None:
    if options.save:
        predict.save()
    own = [path.stem for path in options.study]
    print(predict.in_words([study for study in studies.load(options.study) if study.name in own]))


def _networks(options: argparse.Namespace) -> None:
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


def _plan(options: argparse.Namespace) -> None:
    seconds: dict[tuple[str, int], float] = {}  # by run and repeat: what several recipes have is done once
    headers = ["id", "run", "global batch", "time, or why skipped"]
    for name, planned in _planned(options, hardware.detect()):
        outlooks = [f"skipped: {item.skip}" if item.skip else outlook.duration(item.seconds) for item in planned]
        runs = [[item.run.id, str(item), item.run.global_batch] for item in planned]
        rows = [[*run, outlook] for run, outlook in zip(runs, outlooks)]
        print(f"{name}\n{tabulate(rows, headers=headers, disable_numparse=True)}")
        choices = {(item.run.framework, item.engine_choice) for item in planned if item.engine_choice}
        print("".join(f"framework {engine}: {why}\n" for engine, why in sorted(choices)))
        seconds.update({(item.run.id, item.repeat): item.seconds for item in planned if not item.skip})
    total = outlook.duration(sum(seconds.values()))
    print(f"About {total} in all, estimated; `run` skips what the journal holds already.")


def _run(options: argparse.Namespace) -> int:
    began = time.monotonic()
    options.study = studies.load(options.study)
    for name in ("price", "hours", "dollars"):
        if getattr(options, name) is not None:
            positive(f"--{name}", getattr(options, name))
    positive("--patience", options.patience)
    whole("--rounds", options.rounds, least=3)
    # Mistakes are found before anything is spent.
    chosen_threads()
    journal.read_with([], options.others)
    if options.cluster:
        return _run_cluster(options, began)
    machine = hardware.detect()
    place = _place(options, machine, options.machine or machine.describe(), _source(options))
    options.prices = prices.load({place.infrastructure: options.price} if options.price is not None else {})
    known = options.prices.of(place.infrastructure, machine.describe())
    if known is None and options.dollars is not None:
        raise UserError(
            f"--dollars: what {place.infrastructure!r} costs is not known; give --price DOLLARS (an hour), or "
            "--machine with the name of a machine in poc/studies/prices.csv"
        )
    options.price = known and known.dollars_per_hour
    place = dataclasses.replace(place, until=outlook.bound(began, options.hours, options.dollars, options.price))
    how = {"detail": _detail(options), "again": options.again}
    campaign = Campaign(_planned(options, machine), _results(options), place, **how)
    return _concluded(options, undertake(campaign, options.price))


def _place(options: argparse.Namespace, machine: hardware.Hardware, infrastructure: str, source: Path | None) -> Place:
    return Place(
        machine=machine,
        infrastructure=infrastructure,
        source=source,
        cache=cache(),
        checkpoints=options.checkpoints,
        price_per_hour=options.price,
        patience=options.patience,
    )


def _run_cluster(options: argparse.Namespace, began: float) -> int:
    """The same on all machines of a cluster."""
    for name in ("machine", "price", "dollars"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name}: it is of one machine; on a cluster each node's label says what it is called")
    # Ray, which it imports, is an extra.
    from poc.cluster import nodes, scheduler

    options.prices = prices.load({})
    paths = _recipe_paths(options)
    for path in paths:
        recipe.load(path, engines.ENGINES)  # a mistake is found before any node is asked
    # Each node has its own POC_DATA.
    place = _place(options, hardware.detect(), "", options.data)
    wish = scheduler.Wish(
        recipes=tuple(paths),
        quick=options.quick,
        cpu_waits=not (options.recipes or options.only),
        only=options.only,
        results=_results(options),
        place=dataclasses.replace(place, until=outlook.bound(began, options.hours, None, None)),
        detail=_detail(options),
        again=options.again,
        prices=options.prices,
    )
    nodes.connect(options.cluster)
    return _concluded(options, scheduler.Cluster(wish).run())


def _detail(options: argparse.Namespace) -> int:
    return options.rounds if options.detail else 0


def _concluded(options: argparse.Namespace, failed: Sequence[str]) -> int:
    """Writes the results, and says which runs `failed`; the exit code."""
    _write_report(options)
    if failed:
        how = "start again without --again" if options.again else "start again"
        print(f"{len(failed)} failed: {', '.join(failed)}; {how} to repeat just these", file=sys.stderr)
    return 1 if failed else 0


def _status(options: argparse.Namespace) -> None:
    from poc.cluster import scheduler

    if not _results(options).is_dir():
        raise UserError(f"--results: {_results(options)} is no folder")
    print(scheduler.status(_results(options)))


def _report(options: argparse.Namespace) -> None:
    options.study, options.prices = studies.load(options.study), prices.load(dict(options.price))
    rows = [row for study in options.study for row in study.rows]
    named = {name for row in rows for name in (row.machine, row.hardware)}
    own = _records(options) if options.others else _own_records(options)
    records = [*own, *journal.read_with(own, options.others)]
    named |= {name for record in records for name in (record.infrastructure, record.hardware.describe())}
    for name, _ in options.price:
        if name not in named:
            raise UserError(f"--price: no row is of a machine {name!r}; {nearest(name, filter(None, named))}")
    _write_report(options)


def _show(options: argparse.Namespace) -> None:
    from poc.report import single

    print(single.shown(_own_records(options), options.run))


def _compare(options: argparse.Namespace) -> None:
    from poc.report import single

    print(single.compared(_own_records(options), *options.runs))


def _write_report(options: argparse.Namespace) -> None:
    """Writes the page of all journals in the folder of results."""
    # scipy and matplotlib take a second to import, which plan and doctor need not wait for.
    from poc import report

    folder, page = _results(options), (options.results or HOME) / "results.md"
    records = _records(options)
    others = journal.read_with(records, getattr(options, "others", []))
    how = {"page": page, "folder": folder, "prices": options.prices, "cache": cache(), "others": others}
    report.write(records, options.study, **how)
    print(f"Written: {page}", file=sys.stderr)


def _planned(options: argparse.Namespace, machine: hardware.Hardware) -> list[tuple[str, list[Planned]]]:
    paths = _recipe_paths(options)
    how = {"quick": options.quick, "cpu_waits": not (options.recipes or options.only)}
    plans = [(path.stem, plan(path.stem, recipe.load(path, engines.ENGINES), machine, **how)) for path in paths]
    chosen = set(map(id, select([item for _, planned in plans for item in planned], options.only)))
    grouped = [(name, [item for item in planned if id(item) in chosen]) for name, planned in plans]
    return [(name, planned) for name, planned in grouped if planned]


def _recipe_paths(options: argparse.Namespace) -> list[Path]:
    return [_recipe_path(name) for name in options.recipes] or sorted((HOME / "recipes").glob("*.py"))


def _recipe_path(name: str) -> Path:
    if name.endswith(".py"):
        return Path(name)
    path = HOME / "recipes" / f"{name}.py"
    if not path.exists():
        raise UserError(f"recipe: no {name!r} in recipes/; {nearest(name, [p.stem for p in path.parent.glob('*.py')])}")
    return path


def _results(options: argparse.Namespace) -> Path:
    return options.results or HOME / "results"


def _own_records(options: argparse.Namespace) -> list[Record]:
    """Read the records in the folder of results; raises UserError where no journal is there."""
    folder = _results(options)
    if journal.paths(folder):
        return _records(options)
    if options.results is None:
        how = f"start ./run_all.sh --quick, or give --results {HOME / 'reference'} for what this project measured"
        raise UserError(f"results: no runs yet in {folder}; {how}")
    what = "holds no journal" if folder.is_dir() else "is no folder"
    raise UserError(f"--results: {folder} {what}; give one with MACHINE/{journal.FILE} in it")


def _records(options: argparse.Namespace) -> list[Record]:
    return journal.read(journal.paths(_results(options)))


if __name__ == "__main__":
    sys.exit(main())
