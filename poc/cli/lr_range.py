"""`poc lr-range`: training loss against a growing learning rate, and the rates that are worth trying."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from poc import config, data, frameworks
from poc.advice import lr_range as ranges
from poc.cli.options import Options, recipe_path
from poc.config import Exponential, literals
from poc.config.run import Run
from poc.host import hardware
from poc.host.environment import cache
from poc.records import journal
from poc.records.record import DONE, Record
from poc.run.launcher import RunContext
from poc.run.progress import label, varied
from poc.run.sweep import Sweep, run_sweep
from poc.values import UserError, write_atomically


def lr_range(options: Options) -> int:
    """Do the range tests of a recipe; print the intervals and draw the curves. Return 1 if a test failed.

    Raises UserError for a mistake, before any run starts.
    """
    path, machine = recipe_path(options.recipe), hardware.detect()
    rate = Exponential(low=options.low, high=options.high)
    recipe = config.load(path, frameworks.FRAMEWORKS, literals.fields(options.settings), data.count)
    planned = ranges.plan_tests(path.stem, recipe, machine, rate)
    if all(item.skip for item in planned):
        raise UserError(f"{path.name}: {planned[0].skip}")
    name = options.machine_name(machine)
    context = RunContext(machine=machine, infrastructure=name, source=options.source(), cache=cache())
    sweep = Sweep([(path.stem, planned)], options.results, context)
    price = options.prices(name).of(name, machine.describe())
    failed = run_sweep(sweep, price=price.dollars_per_hour if price else None)
    runs = [item.run for item in planned if not item.skip]
    details = varied(runs)
    tests = {label(record.run, details): ranges.range_test(record) for record in _records(sweep, runs)}
    if tests:
        figure = journal.folder(options.results, name) / f"lr_range_{path.stem}.svg"
        write_atomically(figure, ranges.figure(tests))
        print(f"{ranges.text(tests)}\n\nWritten: {figure}")
    if failed:
        print(f"{len(failed)} failed: {', '.join(failed)}; start again to repeat just these", file=sys.stderr)
    return 1 if failed else 0


def _records(sweep: Sweep, runs: Sequence[Run]) -> Iterator[Record]:
    """Return the last record of each run that came to its end, on the images of the sweep if there is one."""
    completed = [record for record in journal.read([sweep.path]) if record.outcome in DONE]
    for run in runs:
        records = [record for record in completed if record.run.id == run.id]
        yield from sorted(records, key=lambda record: record.data_id == sweep.context.images_of(record.run))[-1:]
