"""The command line: what this machine can run, what a recipe means here, run it, look at the results."""

import argparse
import contextlib
import io
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Callable, NoReturn

import pydantic
from annotated_types import Ge, Le, Lt

from poc.cli import ab, advise, doctor, look, lr_range, options, run
from poc.cli.options import Options
from poc.export import TRACKERS
from poc.host.environment import cache
from poc.host.waiting import chosen_threads
from poc.published import prices
from poc.records import journal
from poc.values import Count, Positive, UserError, allowed

_QUESTION = "How fast does data-parallel training go on this machine, how does it scale, and how does that compare?"
_FLAG: Any = {"action": "store_true"}
_LIST: Any = {"action": "append", "default": []}
_TRAINING = (run.run, advise.advise, lr_range.lr_range, ab.ab)
_Command = Callable[..., Callable[..., Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0: done, 1: a run failed or is worse, 2: a user's mistake, 3, 4: gate, 130: interrupt."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:  # it was closed; workers have it, too
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, "w", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # some locales have no dashes and arrows
        sys.stdout.reconfigure(errors="backslashreplace")
    # Without this variable matplotlib needs a home folder that it can write to.
    os.environ.setdefault("MPLCONFIGDIR", str(cache() / "matplotlib"))
    chosen, status = Options(function=None), 0
    try:
        parser().parse_args(arguments, chosen)
        if "results" in chosen:
            for line in journal.check_folder(chosen.results):
                print(line, file=sys.stderr)
        if chosen.function in _TRAINING:
            chosen_threads()  # its variable may be a mistake
        status = int(chosen.function(chosen) or 0)
        sys.stdout.flush()
        return status
    except UserError as error:
        _say(str(error))
        return 2
    except BrokenPipeError:  # e.g. plan | head
        # A training did not do all of its runs; a comparison has no verdict.
        return status or int(chosen.function in (*_TRAINING, look.compare))
    except OSError as error:
        _say(f"{error.filename or 'a file'}: {error.strerror or error}")
        return 2
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # Python would report it when it exits, with an exit code of its own
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say(message: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it
        print(f"poc: {message}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def _name(text: str) -> str:
    if not text.isprintable():  # bytes that are not UTF-8 become characters that are not, either
        raise UserError(f"--machine: {text!r} is not allowed; use printable characters, in UTF-8")
    return text


def _path(text: str) -> Path:
    return Path(text).absolute()


def _number(kind: Any) -> Callable[[str], Any]:
    """Return a function that reads a number as an annotated type."""

    def read(text: str) -> Any:
        try:
            return pydantic.TypeAdapter(kind, config={"allow_inf_nan": False}).validate_strings(text)
        except pydantic.ValidationError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed; {allowed(error.errors())}") from None

    return read


_positive = _number(Positive)


def _share(text: str) -> float:
    """Read a share such as 5% or 0.05."""
    scale = 100 if text.endswith("%") else 1
    return float(_number(Annotated[Positive, Lt(scale)])(text.removesuffix("%"))) / scale


def _groups() -> dict[str, _Parser]:
    groups: dict[str, _Parser] = defaultdict(lambda: _Parser(add_help=False))
    groups["json"].add_argument("--json", help="print JSON, for a program", **_FLAG)
    add = groups["machine"].add_argument
    add("--machine", type=_name, metavar="NAME", help="name in results (default: cloud instance type, else hardware)")
    add("--price", type=_positive, metavar="DOLLARS", help="per hour (default: in poc/published/prices.csv)")

    add = groups["data"].add_argument
    add("--data", type=_path, metavar="DIR", help="CIFAR-10 or CIFAR-100 (default: $POC_DATA, cache, download)")

    add, folder = groups["results"].add_argument, options.HOME / "results"
    add("--results", type=_path, default=folder, metavar="DIR", help="journals and pages (default: results/)")
    add = groups["others"].add_argument
    add("--with", dest="others", type=_path, metavar="FOLDER", help="show these results, too; may be repeated", **_LIST)

    add = groups["studies"].add_argument
    add("--study", type=_path, metavar="FILE", help="a published study, a CSV like those in poc/published/", **_LIST)
    add("--target", type=_share, default=0.75, metavar="ACCURACY", help="accuracy of time and cost (0.75)")

    add = groups["recipes"].add_argument
    add("recipes", nargs="*", metavar="RECIPE", help="a recipe's name, or a Python file (default: recipes/)")
    add("--all", help="those in recipes/studies/ and recipes/research/, too", **_FLAG)
    setting: Any = {"dest": "settings", "metavar": "FIELD=VALUE[,VALUE]", **_LIST}
    add("--set", help="set a field of the recipes", **setting)
    add("--quick", help="a first page: each run cut short, and marked as quick", **_FLAG)
    add("--cpu", help="on a machine with GPUs, also do the CPU runs", **_FLAG)
    add("--only", metavar="ID", help="only runs whose id starts with ID (see plan --verbose)", **_LIST)
    groups["setting"].add_argument("--set", help="set a field of the recipe", **setting)
    return groups


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; its option `function` does the command."""
    top, groups = _Parser(prog="poc", description=_QUESTION), _groups()
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(function: Callable[[Any], int | None], about: str, *names: str) -> Callable[..., Any]:
        """Add a command with the name of its function; return the method that adds an option of its own."""
        parents = [groups[name] for name in names]
        added = commands.add_parser(function.__name__.replace("_", "-"), help=about, description=about, parents=parents)
        added.set_defaults(function=function)
        return added.add_argument

    _add_run_commands(command)
    _add_other_commands(command)
    return top


def _add_run_commands(command: _Command) -> None:
    command(doctor.doctor, "what this machine has, what it can run, and what is missing", "machine", "data", "json")

    about = "what the recipes would run on this machine, how long it takes and what it costs"
    add = command(run.plan, about, "recipes", "machine", "results", "json")
    add("--verbose", help="list each run with its id, global batch and time, or why it is skipped", **_FLAG)

    about = "run the recipes, add the results to the journal, write results.md"
    add = command(run.run, about, "recipes", "machine", "data", "results", "others", "studies")
    add("--hours", type=_positive, metavar="H", help="stop after H hours; the same command continues")
    add("--dollars", type=_positive, metavar="D", help="stop when D dollars are spent at the machine's price")
    add("--again", help="repeat runs that are already in the journal; after a stop, those that are left", **_FLAG)
    add("--detail", help="after each run, measure the step-time breakdown: computation, synchronisation", **_FLAG)
    steps = _number(Annotated[Count, Le(1000)])
    add("--trace", type=steps, metavar="N", help="after each run, trace N steps, for https://ui.perfetto.dev")
    about_checkpoints = "keep checkpoints in DIR; that of a run's last step stays until its next repeat"
    add("--checkpoints", type=_path, metavar="DIR", help=about_checkpoints)
    add("--patience", type=_positive, default=300.0, metavar="S", help="end a run that completes no step for S seconds")
    add("--cluster", metavar="ADDRESS", help="run on all machines of a Ray cluster: address, auto or local")
    add("--verbose", help="also print each run's id, settings and expected time", **_FLAG)


def _add_other_commands(command: _Command) -> None:
    price = {"type": prices.named, "metavar": "NAME=DOLLARS", "help": "price of a machine per hour", **_LIST}
    add = command(look.report, "write results.md again from the journals", "results", "others", "studies")
    add("--price", **price)

    add = command(look.publish, "make a folder of a machine's results, to commit or send", "results", "studies")
    add("--machine", default="", metavar="NAME", help="the machine to publish (default: the one that ran last)")
    add("--price", **price)
    add("--output", type=_path, default=Path(), metavar="DIR", help="put the folder NAME_DATE into DIR (default: .)")

    add = command(look.export, "copy the runs to TensorBoard or MLflow; those that are there stay", "results", "others")
    add("tracker", choices=TRACKERS, help="the package of that name is needed")
    add("target", metavar="DIR_OR_URI", help="TensorBoard's log folder, or MLflow's tracking URI")

    add = command(look.show, "one run: its repeats, curve and step-time breakdown", "results", "others")
    add("run", metavar="ID", help="how its id starts (see plan --verbose), with @MACHINE or @COMMIT to choose repeats")

    about = "two runs: how they differ, and whether significantly; exit code 1 if the second is significantly worse"
    add = command(look.compare, about, "results", "others", "json")
    add("runs", nargs=2, metavar="ID", help="as for show: ID, ID@MACHINE or ID@COMMIT; or two folders of results")
    gate: Any = {"type": _share, "metavar": "5%", "help": "exit code 3: second slower by more; 4: too few repeats"}
    add("--slower", **gate)

    about = "a recipe at two commits, interleaved: is the second slower?"
    add = command(ab.ab, about, "machine", "data", "results", "json", "setting")
    add("revisions", nargs=2, metavar="REV", help="a commit, a branch or a tag; results go to ab/ in the folder")
    add("recipe", metavar="RECIPE", help="a name in recipes/, or a Python file: both commits run it as it is now")
    add("--repeats", type=_number(Count), default=5, metavar="N", help="of each run at each commit (5)")
    add("--slower", default=0.05, **gate)
    add("--python", type=_path, metavar="FILE", help="twice: the interpreter for each REV", **_LIST)

    about = "throughput, time and cost on more devices, from short runs"
    add = command(advise.advise, about, "machine", "data", "results", "others", "studies", "setting")
    first = "a name in recipes/, or a Python file; its first setting that this machine can run"
    add("recipe", metavar="RECIPE", help=first)
    steps = _number(Annotated[Count, Ge(20)])
    about_steps = "steps of each short run; on GPUs at least 1000, or 10 s"
    add("--steps", type=steps, default=advise.STEPS, metavar="N", help=about_steps)

    about = "which learning rates are worth trying: the loss while the rate grows, in an epoch of each setting"
    add = command(lr_range.lr_range, about, "machine", "data", "results", "setting")
    add("recipe", metavar="RECIPE", help="a name in recipes/, or a Python file; its learning rates do not matter")
    add("--low", type=_positive, default=1e-4, metavar="RATE", help="learning rate of the first step (0.0001)")
    add("--high", type=_positive, default=10.0, metavar="RATE", help="learning rate of the last step (10)")

    command(look.models, "the models that a recipe may name, with what they cost")

    add = command(doctor.environment, "print the packages that make_environment.sh installs on this machine")
    add("--torch", help="PyTorch, too, on a machine without GPUs", **_FLAG)
    add("--framework", default="", metavar="NAME", help="only this framework: mxnet or pytorch")
    add("--installed", help="download no packages: use those of the Python that is named by PYTHON", **_FLAG)
    add("--dev", help="what the tests need", **_FLAG)
    add("--ray", help="Ray, for clusters", **_FLAG)
    add("--horovod", help="Horovod, compiled for CPUs", **_FLAG)
