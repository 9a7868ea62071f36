"""Time and cost to an accuracy, from the evaluations of whole trainings on real devices."""

from __future__ import annotations

from typing import Any

import pandas as pd

from poc.records.row import MEASURED
from poc.report import markdown
from poc.report.markdown import Block, section
from poc.report.results import SYNCHRONOUS, Results, Subject, trainings


def best(rows: pd.DataFrame, column: str) -> Any | None:
    """Return the setting with the least time or cost to the target, without prices the fastest; None if none did."""
    rows = trainings(rows[~rows.emulated & rows.kvstore.isin(SYNCHRONOUS)])
    reached = rows[rows.seconds_to_target.notna() & ~rows.contradicts.str.contains("seconds_per_epoch")]
    return reached.sort_values([column, "seconds_to_target"]).iloc[0] if len(reached) else None


def blocks(results: Results, subject: Subject) -> list[Block]:
    """Return the fastest and the cheapest setting of each machine, baseline and tuned recipes separately."""
    groups = [(results.bold(name), results.of(subject, name)) for name in results.measured.machine.unique()]
    rows = []
    for name, group in [*groups, *results.published_machines(subject)]:
        for recipe, same in (("baseline", group[group.baseline]), ("tuned", group[~group.baseline])):
            pair = (best(same, "seconds_to_target"), best(same, "dollars_to_target"))
            distinct = {row.setting: row for row in pair if row is not None}
            rows += [{**row, "machine": name, "recipe": recipe} for row in distinct.values()]
    about = (
        f"To a test accuracy of {results.target:g}, at the end of an epoch: training time without evaluations, median "
        'over seeds. Instance $/h: on-demand price of the whole instance. "≤": the study printed only the end of 12 '
        "epochs. Settings with a seed that did not reach the accuracy are left out."
    )
    lines = markdown.lines(
        pd.DataFrame(rows),
        *(("machine", "machine"), "devices", "global batch", ("recipe", "recipe")),
        ("time", lambda row: _bound(row) + markdown.duration(row.seconds_to_target)),
        ("instance $/h", lambda row: markdown.dollars(row.dollars_per_hour) or "unknown"),
        ("$", lambda row: _bound(row) + markdown.dollars(row.dollars_to_target) if row.dollars_to_target > 0 else ""),
        ("n", lambda row: markdown.count(row.seeds)),
    )
    return section("Time and cost", about, markdown.table(lines))


def _bound(row: Any) -> str:
    return "" if row.origin == MEASURED else "≤ "
