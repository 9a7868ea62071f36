"""Accuracy and throughput of the baseline recipe on one and on all devices, beside the main study's rows."""

from __future__ import annotations

from typing import Any

import pandas as pd

from poc.report import markdown
from poc.report.page import Block, section
from poc.report.results import REFERENCE_BATCH, Results, Subject, preferred, same_length, trainings
from poc.report.table import TRAINING

_MOST_SCHEDULES = 2


def blocks(results: Results, subject: Subject) -> list[Block]:
    """Return the comparison of a subject."""
    groups = [results.headline(subject, name) for name in results.measured.machine.unique()]
    groups += [group for _, group in results.published_machines(subject.model)]
    published = results.published[results.published.model == subject.model]
    cpus = published[published.devices == 0].drop_duplicates("hardware").itertuples()
    lines = markdown.lines(
        [*(row for group in groups for row in _own(group)), *cpus],
        (
            "machine",
            lambda row: f"[{markdown.short_machine(row)}][{row.study}]" if row.study else results.bold(row.machine),
        ),
        *("devices", "global batch", "lr", markdown.RATE, ("accuracy", _accuracy)),
        *(("s/epoch", "seconds_per_epoch"), ("$ per run", lambda row: markdown.dollars(row.dollars_per_run))),
    )
    recipe = results.recipe(subject)
    if recipe == "baseline recipe" and subject.dataset == "cifar10":
        recipe += ": SGD with momentum 0.9, crops of 28, horizontal flip, colour jitter"
    about = (
        f"{recipe[0].upper()}{recipe[1:]}. Of several learning rates the most accurate. Samples/s of whole trainings "
        "where there are any, else of bursts. Accuracy after 12 epochs unless a cell says otherwise. $ per run: time x "
        "price of the whole instance."
    )
    return section("Accuracy and throughput", about, markdown.table(lines))


def _own(rows: pd.DataFrame) -> list[Any]:
    """Return settings on one and on all devices at the reference batch.

    That is the most accurate training of each schedule of the learning rate; without trainings the setting that was
    timed best.
    """
    rows = rows[~rows.emulated]
    chosen: list[Any] = []
    for devices in sorted({1.0, rows.devices.max()} if len(rows) else ()):
        group = rows[rows.devices == devices]
        whole = group[group.cores_per_worker.isna()]
        group = whole if len(whole) else group
        at_reference = group[group.batch_per_device == REFERENCE_BATCH]
        if len(at_reference):
            group = at_reference
        trained = same_length(trainings(group)).sort_values(["accuracy", "started"], ascending=False, kind="stable")
        best = trained.drop_duplicates("schedule").head(_MOST_SCHEDULES)
        timed = preferred(group, TRAINING)
        chosen += list(best.itertuples()) or ([] if timed is None else [timed])
    return chosen


def _accuracy(row: Any) -> str:
    other_length = pd.notna(row.accuracy) and pd.notna(row.epochs) and row.epochs != 12
    return markdown.accuracy(row) + (f" after {row.epochs:.0f}" if other_length else "")
