"""The commands and their options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Callable

from poc import advice
from poc.cli import advise, doctor, look, run
from poc.cli.environment import EXTRAS, environment
from poc.published import prices
from poc.run import step_profile

TRAINS = (run.run, advise.advise)
"""The commands that train."""
_QUESTION = "How fast does data-parallel training go on this machine, how does it scale, and how does that compare?"
_Add = Callable[..., object]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; the function of a command is the attribute `command` of its options."""
    top = argparse.ArgumentParser(prog="poc", description=_QUESTION)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Callable[[argparse.Namespace], int | None], help_text: str) -> _Add:
        """Add a command; return what adds an option to it."""
        added = commands.add_parser(name, help=help_text, description=help_text)
        added.set_defaults(command=function)
        return added.add_argument

    _add_doctor(command("doctor", doctor.doctor, "what this machine has, what it can run, and what is missing"))
    _add_plan(command("plan", run.plan, "what the recipes run here: how many runs, how long, at what cost"))
    _add_run(command("run", run.run, "run the recipes, add the results to the journal, write results.md"))
    _add_report(command("report", look.report, "write results.md again from the journals"))
    _add_publish(command("publish", look.publish, "make a folder of this machine's results, ready to commit or send"))
    _add_show(command("show", look.show, "one run of the journals: its repeats, curve and step-time breakdown"))
    _add_compare(command("compare", look.compare, "two runs of the journals: how they differ, and whether in speed"))
    _add_advise(command("advise", advise.advise, "short runs, and from them which devices, batch and learning rate"))
    _add_predict(command("predict", advise.predict_scaling, "how well throughput on more devices is predicted"))
    _add_networks(command("networks", advise.list_networks, "the models that a recipe may name, with what they cost"))
    _add_environment(command("environment", environment, "the packages that make_environment.sh installs here"))
    return top


def _add_doctor(add: _Add) -> None:
    _add_data(add)
    _add_json(add)


def _add_plan(add: _Add) -> None:
    _add_recipes(add)
    _add_machine(add)
    _add_price(add)
    _add_results(add)
    add("--verbose", action="store_true", help="list each run with its id, global batch and time, or why it is skipped")
    _add_json(add)


def _add_run(add: _Add) -> None:
    _add_recipes(add)
    _add_machine(add)
    _add_price(add)
    add("--hours", type=float, metavar="H", help="end by then; the same command goes on with what is left")
    add("--dollars", type=float, metavar="D", help="the same, when so much is spent at the machine's price")
    _add_data(add)
    _add_results(add)
    _add_others(add)
    _add_study(add)
    _add_target(add)
    add("--again", action="store_true", help="repeat runs that the journal holds already")
    add("--detail", action="store_true", help="afterwards, measure what of a step is computation and communication")
    rounds = "of --detail: pairs of windows, with gradient synchronisation and without (default: %(default)s)"
    add("--rounds", type=int, metavar="N", default=step_profile.ROUNDS, help=rounds)
    checkpoints = "keep checkpoints here, that of the last step too (default: in the cache, until the run completes)"
    add("--checkpoints", type=_absolute, metavar="DIR", help=checkpoints)
    patience = "end a run that makes no step for so long (default: %(default)g)"
    add("--patience", type=float, metavar="SECONDS", default=300.0, help=patience)
    cluster = "run on every machine of a Ray cluster: its address, auto ($RAY_ADDRESS or this node's), or local"
    add("--cluster", metavar="ADDRESS", help=cluster)
    add("--verbose", action="store_true", help="say each run's id, settings, expected time and windows, too")


def _add_report(add: _Add) -> None:
    _add_results(add)
    _add_others(add)
    _add_study(add)
    _add_target(add)
    costs = "price per hour of the machine of that name in the tables; may be repeated"
    add("--price", type=prices.named, action="append", default=[], metavar="NAME=DOLLARS", help=costs)


def _add_publish(add: _Add) -> None:
    add("--machine", metavar="NAME", default="", help="the machine to publish (default: the one that ran last)")
    _add_results(add)
    where = "put the folder NAME_DATE here (default: the current folder)"
    add("--output", type=_absolute, metavar="DIR", default=Path.cwd(), help=where)
    _add_study(add)
    _add_target(add)


def _add_show(add: _Add) -> None:
    add("run", metavar="ID", help="how its id starts (see plan --verbose), with @MACHINE or @COMMIT to choose repeats")
    _add_results(add)
    _add_others(add)
    _add_json(add)


def _add_compare(add: _Add) -> None:
    add("runs", nargs=2, metavar="ID", help="as for show: ID, ID@MACHINE, ID@COMMIT or ID@MACHINE@COMMIT")
    _add_results(add)
    _add_others(add)
    _add_json(add)


def _add_advise(add: _Add) -> None:
    recipe = "a name in recipes/, or a Python file; its first setting that can run here"
    add("recipe", metavar="RECIPE", help=recipe)
    steps = "of the run that measures the gradient noise (default: %(default)s)"
    add("--steps", type=int, metavar="N", default=advice.STEPS, help=steps)
    _add_data(add)
    _add_machine(add)
    add("--on", metavar="NAME", help="another machine, as poc/published/prices.csv or a study calls it")
    _add_results(add)


def _add_predict(add: _Add) -> None:
    _add_study(add)
    add("--save", action="store_true", help="first learn anew from the published series (minutes)")


def _add_networks(add: _Add) -> None:
    add("--count", action="store_true", help="first count what they cost anew, as the frameworks build them")


def _add_environment(add: _Add) -> None:
    for extra in ("torch", *EXTRAS):
        add(f"--{extra}", action="store_true", help=f"the packages of {extra}, too")


def _add_recipes(add: _Add) -> None:
    """Add what chooses runs."""
    named = "a name in recipes/, recipes/studies/ or recipes/research/, or a Python file (default: those in recipes/)"
    add("recipes", nargs="*", metavar="RECIPE", help=named)
    add("--all", action="store_true", help="those in recipes/studies/ and recipes/research/, too")
    field = "set a field of the recipes, e.g. batch_per_device=256,512 or lr=0.1; may be repeated"
    add("--set", action="append", default=[], metavar="FIELD=VALUE[,VALUE]", help=field)
    add("--quick", action="store_true", help="a first look: each run cut short, and marked as quick")
    add("--cpu", action="store_true", help="CPU runs, too, on a machine with GPUs")
    add("--only", action="append", metavar="ID", help="only runs whose id starts so (see plan --verbose)")


def _add_machine(add: _Add) -> None:
    name = "what results call this machine (default: its AWS instance type where it has a price, else its hardware)"
    add("--machine", metavar="NAME", help=name)


def _add_price(add: _Add) -> None:
    price = "price of this machine per hour (default: that of --machine in poc/published/prices.csv)"
    add("--price", type=float, metavar="DOLLARS", help=price)


def _add_data(add: _Add) -> None:
    files = "CIFAR-10 in any usual form, or imagenet_{train,val}.rec (default: $POC_DATA, the cache, or a download)"
    add("--data", type=_absolute, metavar="DIR", help=files)


def _add_results(add: _Add) -> None:
    where = "folder of journals, results.md, rows.csv and figures (default: results/, and results.md in the checkout)"
    add("--results", type=_absolute, metavar="DIR", help=where)


def _add_study(add: _Add) -> None:
    study = "a published study of your own, a CSV like those in poc/published/; may be repeated"
    add("--study", type=Path, action="append", default=[], metavar="FILE", help=study)


def _add_others(add: _Add) -> None:
    folder = "show the measurements in this folder, too, e.g. reference/; may be repeated"
    add("--with", dest="others", type=_absolute, action="append", default=[], metavar="FOLDER", help=folder)


def _add_target(add: _Add) -> None:
    target = "accuracy for the time and cost to reach it, a share between 0 and 1 (default: %(default)g)"
    add("--target", type=float, metavar="ACCURACY", default=0.75, help=target)


def _add_json(add: _Add) -> None:
    add("--json", action="store_true", help="print JSON, for a program")


def _absolute(path: str) -> Path:
    return Path(path).absolute()
