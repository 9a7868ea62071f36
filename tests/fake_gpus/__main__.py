"""What `./run_all.sh --quick` does on each stand-in machine, but for its installation: a row for each, and exit code 1
where one failed.

    .venv/bin/python -m tests.fake_gpus [--results DIR] [MACHINE ...]

The pages are left in DIR to be looked at. They are of no machine that exists: never publish one.
"""

from __future__ import annotations

import argparse
import collections
import subprocess
import sys
import tempfile
from pathlib import Path

from tabulate import tabulate

from poc.records import journal
from tests import fake_gpus


def main() -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("machines", nargs="*", default=list(fake_gpus.MACHINES))
    parser.add_argument("--results", type=Path, default=Path(tempfile.mkdtemp()))
    parser.add_argument("--recipe", action="append", default=[])
    options = parser.parse_args()
    rows = []
    for name in options.machines:
        folder = options.results / name.replace(" ", "_").replace(",", "")
        command = [sys.executable, "-W", "ignore", "-m", "poc", "run", *options.recipe, "--quick", "--machine"]
        done = subprocess.run(
            [*command, f"stand-in: {name}", "--results", str(folder)],
            env=fake_gpus.environment(name),
            stdout=subprocess.DEVNULL,
        )
        records = journal.read(journal.paths(folder))
        ran = collections.Counter((r.run.kind, r.run.framework, r.outcome) for r in records if r.outcome != "skipped")
        skipped = sum(record.outcome == "skipped" for record in records)
        said = ", ".join(f"{count} {kind} {framework} {outcome}" for (kind, framework, outcome), count in ran.items())
        rows.append((name, done.returncode, said, skipped))
    print(tabulate(rows, ("machine", "exit code", "rows", "skipped")), options.results, sep="\n")
    return int(any(status for _, status, *_ in rows))


if __name__ == "__main__":
    sys.exit(main())
