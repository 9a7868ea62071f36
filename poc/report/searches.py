"""The searches for a learning rate in the records: what each chose, and which trainings on the test set follow."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from poc import search
from poc.config.run import Run
from poc.records.record import COMPLETED, Record


def add_choices(rows: Sequence[dict[str, Any]], records: Sequence[Record]) -> None:
    """Fill in the columns `chosen` and `test_runs` of the row of each record, and the `candidates` of a test run."""
    searches, rows_by_run = defaultdict(list), defaultdict(list)
    for row, record in zip(rows, records):
        rows_by_run[row["machine"], row["run_id"], row["outcome"]].append(row)
        if row["search"]:
            searches[row["search"], record.run.seed].append((record.started, record, row))
    for members in searches.values():
        members.sort(key=lambda member: member[0])
        for winner, test_runs in _choices([record for _, record, _ in members]):
            for _, record, row in members:
                if record.run.id == winner.id and record.outcome == COMPLETED:
                    row.update(chosen=True, test_runs=test_runs)
                    found = test_runs.split()[0].removeprefix(f"{search.FOUND}:")
                    for tested in rows_by_run[row["machine"], found, COMPLETED]:
                        tested.update(chosen=True, candidates=row["candidates"])


def _choices(records: Sequence[Record]) -> list[tuple[Run, str]]:
    """Return the chosen candidate at each global batch, where the search is over, and its trainings as NAME:ID."""
    results = {record.run.id: record.result for record in records if record.result}
    batches: dict[tuple[int, ...], dict[str, Run]] = defaultdict(dict)
    for record in records:
        candidate = dataclasses.replace(record.run, pause_after=None)
        batch = candidate.global_batch, candidate.devices, candidate.batch_per_device
        batches[batch].setdefault(candidate.id, candidate)
    winners = []
    for _, candidates in sorted(batches.items()):
        ordered = sorted(candidates.values(), key=lambda run: run.learning_rate)
        is_complete = ordered[0].search is not None and len(ordered) == len(ordered[0].search.candidates)
        winners.append(search.chosen(ordered, lambda run: results.get(run.id)) if is_complete else None)
    return [
        (winner, " ".join(f"{name}:{run.id}" for name, run in search.trainings(winner, winners[0]).items()))
        for winner in winners
        if winner
    ]
