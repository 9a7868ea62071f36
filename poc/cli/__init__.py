"""The command line: what this machine can run, what a recipe means here, run it, look at what came out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from poc.cli import chosen
from poc.cli.parser import TRAINS, parser
from poc.records import journal
from poc.run.launcher import cache
from poc.values import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0 done, 1 a run failed, 2 the user's mistake, 130 interrupted."""
    # matplotlib keeps its list of fonts in the user's own folders, if not told where, and needs there to be any.
    os.environ.setdefault("MPLCONFIGDIR", str(cache() / "matplotlib"))
    try:
        options = parser().parse_args(arguments)
        if "results" in options:
            for line in journal.misplaced(chosen.results(options)):
                print(line, file=sys.stderr)
        status = int(options.command(options) or 0)
        sys.stdout.flush()
        return status
    except UserError as error:
        print(f"poc: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read has seen enough: plan | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains of it at its end
        return int(options.command in TRAINS)  # what trains has not done all it had to
    except OSError as error:
        print(f"poc: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("poc: interrupted", file=sys.stderr)
        return 130
