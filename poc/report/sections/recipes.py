"""Every setting of the recipes of the last `run`, and how many runs were skipped and why."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from poc.records.record import COMPLETED, SKIPPED
from poc.records.row import MEASURED
from poc.report import markdown
from poc.report.markdown import Block, section
from poc.report.results import Results
from poc.report.table import PAUSED, TRAINING

_MIN_ROWS = 3
_HEADING_LINES = 8
_MAX_REASONS = 5


def blocks(results: Results, max_lines: int, all_settings: str) -> list[Block]:
    """Return the table of the last run's settings in at most `max_lines` lines of text, or with three settings.

    If that is too little for all of them, each recipe gets the same number of lines, and `all_settings` is the path of
    the page with the others.
    """
    rows, most = settings(results), max(_MIN_ROWS, max_lines - _HEADING_LINES)
    share = max(1, most // max(1, rows.recipe.nunique()))
    shown = rows if len(rows) <= most else rows.groupby("recipe").head(share).head(most)
    hidden = len(rows) - len(shown)
    of_command = " of the last command" if results.last_run and results.last_run.runs else ""
    about = f'Settings{of_command} on this machine, failed ones and the latest first. "batch" is the batch per device.'
    link = [f"{hidden} more: see {markdown.link('all settings', all_settings)}."] if hidden else []
    return [*section("Your recipes", about, markdown.table(_lines(shown))), *link]


def settings(results: Results, machine: str | None = None) -> pd.DataFrame:
    """Return one row per setting that ran on a machine, also of failed ones; by default those of the last run.

    Recipes that were given by path come first, and quick runs last; of each those that failed, then the latest. Of the
    last run candidates of searches are left out, which have a table of their own.
    """
    table = results.table
    rows = table[(table.origin == MEASURED) & (table.machine == machine)] if machine else results.here(table)
    if machine is None and results.last_run and results.last_run.runs:
        # The trainings on the test set after a search, those of the rules included, belong to it.
        tests = rows.test_runs[rows.run_id.isin(results.last_run.runs)].str.split().explode().dropna()
        rows = rows[rows.run_id.isin({*results.last_run.runs, *tests.str.split(":").str[-1]})]
    if machine is None:
        rows = rows[rows.search == ""]
    rows = rows[(rows.outcome != SKIPPED) & (rows.length != PAUSED)]
    failed = rows[rows.outcome != COMPLETED].sort_values("started").drop_duplicates("setting", keep="last")
    completed = results.settings[results.settings.setting.isin(rows.setting)]
    failed = failed[~failed.setting.isin(completed.setting)].assign(n=0, seeds=1)
    both = pd.concat([completed, failed]) if len(failed) else completed
    recipes = results.last_run.recipes if results.last_run else ()
    by_path = [Path(name).stem for name in recipes if name.endswith(".py")]
    both = both.assign(shipped=~both.recipe.isin(by_path), completed=both.outcome == COMPLETED)
    both = both.sort_values("started", ascending=False, kind="stable")
    both = both.sort_values(["shipped", "quick", "completed"], kind="stable")
    names = both.recipe + both.quick.map({True: " (quick)", False: ""})
    return both.assign(recipe=names, quick=False)


def every_setting(results: Results) -> list[Block]:
    """Return every setting of every machine, a table for each machine, this one first."""
    blocks: list[Block] = [
        'Failed settings first, then the latest, quick ones last. "batch" is the batch per device. '
        "[rows.csv](rows.csv) has all repeats."
    ]
    for name in dict.fromkeys(results.runs.machine):
        blocks += section(name, markdown.table(_lines(settings(results, name))))
    return blocks


def _lines(rows: pd.DataFrame) -> list[dict[str, str]]:
    """Return a line for each setting; its model is followed by what is not the same in all of them."""
    named = rows.assign(
        training_recipe=rows.training_recipe.mask(rows.baseline, "baseline"),
        processors=markdown.processors(rows),
    )
    varied = [name for name in ("framework", "layout", "training_recipe", "processors") if named[name].nunique() > 1]
    return [_line(row, varied) for row in markdown.records(named)]


def _line(row: Any, varied: Sequence[str]) -> dict[str, str]:
    model = [markdown.model(row.model), *{row.dtype} - {"float32"}, *filter(None, [markdown.images(row)])]
    model += filter(None, [*(getattr(row, name) for name in varied), row.options, row.environment])
    accuracy = markdown.accuracy(row)
    if row.outcome != COMPLETED:
        accuracy = row.outcome + (f": {markdown.escape(row.reason)}" if row.reason else "")
    elif accuracy:
        accuracy += " (validation)" if row.accuracy_on == "validation split" else ""
        accuracy += " (no better than chance)" if row.at_chance else ""
    return {
        "recipe": row.recipe,
        "model": ", ".join(model),
        "devices": markdown.devices_and_kvstore(row),
        "batch": markdown.batch(row),
        "lr": markdown.lr(row),
        markdown.RATE: "" if row.emulated else markdown.rate(row),
        "epochs": markdown.count(row.epochs) if row.length == TRAINING else "burst",
        "accuracy": accuracy,
    }


def not_run(results: Results) -> list[Block]:
    """Return how many runs of the last command were skipped, by reason; rare reasons are summed."""
    counts = sorted(results.skipped.items(), key=lambda item: (-item[1], item[0]))
    if len(counts) > _MAX_REASONS:
        rest = sum(count for _, count in counts[_MAX_REASONS - 1 :])
        counts[_MAX_REASONS - 1 :] = [("other reasons", rest)]
    lines = [{"reason": markdown.escape(reason), "runs": str(count)} for reason, count in counts]
    return section("Not run", markdown.table(lines))
