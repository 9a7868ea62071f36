"""Every setting of the recipes of the last `run`, and how many runs were skipped and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from poc.records.record import COMPLETED, SKIPPED
from poc.records.row import MEASURED
from poc.report import markdown
from poc.report.page import Block, section
from poc.report.results import Results
from poc.report.table import TRAINING

_FEWEST_ROWS = 3
_MOST_REASONS = 5


def blocks(results: Results, room: int) -> list[Block]:
    """Return the table of the last run's settings, in at most `room` lines of text if those are enough for a few rows.

    What does not fit is on the page of all settings.
    """
    rows = settings(results)
    heading_lines = 8
    lines = [line(row) for row in rows[: max(_FEWEST_ROWS, room - heading_lines)]]
    more = len(rows) - len(lines)
    rest = f"{more} more settings are in [all settings][settings]." if more > 0 else ""
    about = 'Settings of the last run on this machine, the latest first. "batch" is per device.'
    return [*section("Your recipes", about, markdown.table(lines)), *([rest] if rest else [])]


def settings(results: Results, machine: str | None = None) -> list[Any]:
    """Return one row per setting of the last run, also of failed ones: recipes given by path first, then the latest."""
    table = results.table
    rows = table[(table.origin == MEASURED) & (table.machine == (machine or results.machine))]
    if machine is None and results.last_run and results.last_run.runs:
        rows = rows[rows.run_id.isin(results.last_run.runs)]
    rows = rows[rows.outcome != SKIPPED]
    failed = rows[rows.outcome != COMPLETED].sort_values("started").drop_duplicates("setting", keep="last")
    done = results.settings[results.settings.setting.isin(rows.setting)]
    failed = failed[~failed.setting.isin(done.setting)].assign(n=0, seeds=1)
    every = pd.concat([done, failed]) if len(failed) else done
    recipes = results.last_run.recipes if results.last_run else ()
    by_path = [Path(name).stem for name in recipes if name.endswith(".py")]
    every = every.assign(shipped=~every.recipe.isin(by_path))
    every = every.sort_values(["shipped", "quick", "started"], ascending=[True, True, False], kind="stable")
    return list(every.itertuples())


def line(row: Any) -> dict[str, str]:
    """Return a setting's cells."""
    kvstore = "" if row.kvstore in ("", "device") else f", {row.kvstore}"
    precision = "" if row.dtype == "float32" else f", {row.dtype}"
    data = ", synthetic" if row.dataset == "synthetic" else ""
    reason = f": {row.reason}" if row.reason else ""
    return {
        "recipe": row.recipe + (" (quick)" if row.quick else ""),
        "model": markdown.model(row.model) + precision + data,
        "devices": markdown.devices(row) + kvstore,
        "batch": markdown.count(row.batch_per_device),
        "lr": markdown.lr(row),
        markdown.RATE: "" if row.emulated else markdown.rate(row._replace(quick=False)),
        "epochs": markdown.count(row.epochs) if row.length == TRAINING else "burst",
        "accuracy": row.outcome + reason if row.outcome != COMPLETED else _accuracy(row),
    }


def _accuracy(row: Any) -> str:
    split = " (validation)" if row.accuracy_on == "validation split" else ""
    synthetic = row.dataset == "synthetic"
    chance = " (no better than chance)" if row.at_chance and not synthetic else ""
    return "" if synthetic else markdown.accuracy(row) + split + chance


def not_run(results: Results) -> list[Block]:
    """Return how many runs of the last command were skipped, by reason; all beyond the fifth reason are summed."""
    ordered = sorted(results.skipped.items(), key=lambda item: (-item[1], item[0]))
    if len(ordered) > _MOST_REASONS:
        rest = [number for _, number in ordered[_MOST_REASONS - 1 :]]
        ordered[_MOST_REASONS - 1 :] = [("other reasons", sum(rest))]
    return section("Not run", markdown.table([{"reason": reason, "runs": str(number)} for reason, number in ordered]))
