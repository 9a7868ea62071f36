"""The command line: what this machine can run, what a recipe means here, run it, look at the results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, Callable

from poc.cli import advise, doctor, environment, look, options, run
from poc.cli.options import ResultsOptions
from poc.records import journal
from poc.run.launcher import cache
from poc.values import UserError

_QUESTION = "How fast does data-parallel training go on this machine, how does it scale, and how does that compare?"
_COMMANDS: Sequence[tuple[str, type[options.Options], Callable[[Any], int | None], str]] = (
    ("doctor", options.DoctorOptions, doctor.doctor, "what this machine has, what it can run, and what is missing"),
    ("plan", options.PlanOptions, run.plan, "what the recipes run here: how many runs, how long, at what cost"),
    ("run", options.RunOptions, run.run, "run the recipes, add the results to the journal, write results.md"),
    ("report", options.ReportOptions, look.report, "write results.md again from the journals"),
    ("publish", options.PublishOptions, look.publish, "make a folder of this machine's results, to commit or send"),
    ("show", options.ShowOptions, look.show, "one run of the journals: its repeats, curve and step-time breakdown"),
    (
        "compare",
        options.CompareOptions,
        look.compare,
        "two runs of the journals: how they differ, and whether in speed",
    ),
    ("advise", options.AdviseOptions, advise.advise, "throughput, time and cost on more devices, from short runs"),
    ("networks", options.NetworksOptions, advise.networks, "the models that a recipe may name, with what they cost"),
    ("environment", options.EnvironmentOptions, environment.environment, "what make_environment.sh is to install here"),
)
_TRAINING_COMMANDS = ("run", "advise")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; it gives `name`, `options_type`, `function`, and the options."""
    top = argparse.ArgumentParser(prog="poc", description=_QUESTION)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, options_type, function, about in _COMMANDS:
        command = commands.add_parser(name, help=about, description=about)
        command.set_defaults(name=name, options_type=options_type, function=function)
        options_type.add_to(command)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 done, 1 a run failed, 2 a mistake of the user, 130 interrupted."""
    # Without this variable matplotlib needs a home folder that it can write to.
    os.environ.setdefault("MPLCONFIGDIR", str(cache() / "matplotlib"))
    name = ""
    try:
        parsed = vars(parser().parse_args(arguments))
        name, options_type, function = (parsed.pop(field) for field in ("name", "options_type", "function"))
        values = options_type(**parsed)
        if isinstance(values, ResultsOptions):
            for line in journal.misplaced(values.folder):
                print(line, file=sys.stderr)
        status = int(function(values) or 0)
        sys.stdout.flush()
        return status
    except UserError as error:
        print(f"poc: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # e.g. plan | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python reports it when it exits
        return int(name in _TRAINING_COMMANDS)  # a training did not do all of its runs
    except OSError as error:
        print(f"poc: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("poc: interrupted", file=sys.stderr)
        return 130
