"""Time and cost to an accuracy, from the evaluations of whole trainings on real devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from poc.records.row import MEASURED
from poc.report import markdown
from poc.report.page import Block, section
from poc.report.results import Results, Subject, trainings


def fastest(rows: pd.DataFrame) -> Any | None:
    """Return the setting that reached the target in the least time; None if no setting did with all its seeds."""
    return next(_reached(rows, "seconds_to_target"), None)


def cheapest(rows: pd.DataFrame) -> Any | None:
    """Return the setting that reached the target for the least money; the fastest if no price is known."""
    return next(_reached(rows, "dollars_to_target", "seconds_to_target"), None)


def _reached(rows: pd.DataFrame, *order: str) -> Iterator[Any]:
    rows = trainings(rows[~rows.emulated])
    reached = rows[rows.seconds_to_target.notna() & ~rows.contradicts.str.contains("seconds_per_epoch")]
    return iter(reached.sort_values(list(order)).itertuples())


def blocks(results: Results, subject: Subject) -> list[Block]:
    """Return the fastest and the cheapest setting of each machine, baseline and tuned recipes apart."""
    groups = [(results.bold(name), results.of(subject, name)) for name in results.measured.machine.unique()]
    lines = []
    for name, rows in [*groups, *results.published_machines(subject.model)]:
        for recipe, group in (("baseline", rows[rows.baseline]), ("tuned", rows[~rows.baseline])):
            best = {row.setting: row for row in (fastest(group), cheapest(group)) if row}
            lines += [_line(name, recipe, row) for row in best.values()]
    about = (
        f"To a test accuracy of {results.target:g}, at the end of an epoch: training time without evaluations, median "
        'over seeds. Instance $/h: on-demand price of the whole instance. "≤": the study printed only the end of 12 '
        "epochs. Settings of which a seed did not reach the accuracy are left out."
    )
    return section("Time and cost", about, markdown.table(lines))


def _line(machine: str, recipe: str, row: Any) -> dict[str, str]:
    bound, dollars = "" if row.origin == MEASURED else "≤ ", markdown.dollars(row.dollars_to_target)
    return {
        "machine": machine,
        "devices": markdown.devices(row),
        "global batch": markdown.count(row.global_batch),
        "recipe": recipe,
        "time": bound + markdown.duration(row.seconds_to_target),
        "instance $/h": markdown.dollars(row.dollars_per_hour) or "unknown",
        "$": dollars and bound + dollars,
        "n": markdown.count(row.seeds),
    }
