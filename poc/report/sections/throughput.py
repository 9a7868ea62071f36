"""Accuracy and throughput of the baseline recipe on one and on all devices, compared with the main study's rows."""

from types import SimpleNamespace
from typing import Any

import pandas as pd

from poc.published import MAIN_BATCH, MAIN_EPOCHS, MAIN_RECIPE
from poc.report import markdown, repeats
from poc.report.markdown import Block, section
from poc.report.results import Results, Subject, one_per_rate, preferred, same_length
from poc.report.table import TRAINING

_MAX_SCHEDULES = 2


def blocks(results: Results, subject: Subject) -> list[Block]:
    published = results.published(subject)
    cpus = markdown.records(published[published.devices == 0].drop_duplicates("hardware"))
    address = results.studies[0].address if results.studies else ""

    rows = [*(row for _, group in results.machines(subject) for row in _shown(group)), *cpus]
    differing = markdown.differences(rows)

    def machine(row: Any) -> str:
        if row.study:
            return markdown.link(markdown.short_machine(row), address)
        return results.bold(row.machine) + differing(row)

    lines = markdown.lines(
        rows,
        ("machine", machine),
        *("devices", "global batch", "lr", markdown.RATE, ("accuracy", _accuracy)),
        *(("s/epoch", "seconds_per_epoch"), ("$ per run", lambda row: markdown.dollars(row.dollars_per_run))),
    )
    recipe = results.recipe(subject)
    if recipe == "baseline recipe":
        is_cifar = subject.dataset.startswith("cifar")
        recipe += f": {MAIN_RECIPE if is_cifar else 'SGD with momentum 0.9, default augmentation'}"
    about = (
        f"{recipe[0].upper()}{recipe[1:]}. The learning rate is the one that a search chose, else the most accurate "
        "one with which no seed diverged, if that is known. Samples/s are of whole "
        "trainings where there are any, else of bursts; there n counts the repeats that are not "
        f"noisy; n of an accuracy counts its seeds. Accuracy after {MAIN_EPOCHS} epochs unless a cell says otherwise. "
        "$ per run: price of the whole instance for the wall time, with start and evaluations (published: "
        "for the epochs alone)."
    )
    return section("Accuracy and throughput", about, markdown.table(lines))


def _shown(rows: pd.DataFrame) -> list[Any]:
    """Return the most accurate training of each schedule, else the best timed setting, on one and on all devices."""
    rows = rows[~rows.emulated]
    shown: list[Any] = []
    for devices in sorted({1.0, rows.devices.max()} if len(rows) else ()):
        group = rows[rows.devices == devices]
        group = repeats.some_or_all(group, group.cores_per_worker.isna())
        group = repeats.some_or_all(group, ~group.quick)
        trained = same_length(group[group.target_accuracy.isna()])
        trained, group = (repeats.some_or_all(rows, rows.batch_per_device == MAIN_BATCH) for rows in (trained, group))
        best = one_per_rate(trained, MAIN_BATCH)[::-1].drop_duplicates("schedule").head(_MAX_SCHEDULES)
        timed = preferred(group, TRAINING)
        # Not the series itself, whose `dtype` is another one.
        shown += markdown.records(best) or ([] if timed is None else [SimpleNamespace(**timed)])
    return shown


def _accuracy(row: Any) -> str:
    text, other_length = markdown.accuracy(row), pd.notna(row.epochs) and row.epochs != MAIN_EPOCHS
    return text + (f" after {row.epochs:.0f}" if text and other_length else "")
