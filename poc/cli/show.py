"""The text of `poc show`: one run with all its repeats, its curve, where its time went, and why a repeat failed."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from poc.records import journal
from poc.records.record import DONE, Record
from poc.records.row import MEASURED
from poc.records.timing import PARTS
from poc.values import UserError

_BREAKDOWN = {
    "whole step": "step",
    "computation alone": "compute",
    "synchronisation alone": "sync",
    "enqueueing": "issue",
}


def text(table: pd.DataFrame, records: Sequence[Record], name: str, results: Path) -> str:
    """Describe the run that `name` names (`select`); `table` is of `records`, and `results` may have traces of it."""
    rows = select(table, name)
    last = rows.sort_values("outcome", key=lambda outcome: outcome.isin(DONE), kind="stable").iloc[-1]
    key = (last.machine, last.run_id, last.started)
    record = next(record for record in records if (record.infrastructure, record.run.id, record.started) == key)
    framework = last.framework + (f" ({record.framework_choice})" if record.framework_choice else "")
    machines = (rows.machine + (", " + rows.hardware).mask(rows.hardware == rows.machine, "")).unique()
    head = [("run", f"{last.run_id}  {record.run}"), ("recipe", ", ".join(rows.recipe.unique()))]
    head += [("machine", "; ".join(machines)), ("framework", framework)]
    head += [("speed", "of the one device that emulates them; real devices would be faster")] if last.emulated else []
    traces = sorted((journal.folder(results, last.machine) / journal.TRACES).glob(f"{last.run_id}_*"))
    head += [("trace", "\n".join(map(str, traces)))] if traces else []
    blocks = [tabulate(head, tablefmt="plain", disable_numparse=True), _grid(_repeats(rows))]
    if record.windows:
        blocks.append(f"Epochs of the repeat of {last.started[:16]}:\n{_grid(_epochs(record))}")
    if pd.notna(last.train_seconds):
        seconds = pd.Series({part: last[f"{part}_seconds"] for part in PARTS})
        shares = pd.DataFrame({"part": PARTS, "s": seconds, "%": 100 * seconds / last.wall_seconds})
        blocks.append(f"Where its {last.wall_seconds:,.1f} s went:\n{_grid(shares)}")
    parts = {
        name: 1e3 * last[f"{column}_seconds"] for name, column in _BREAKDOWN.items() if last[f"{column}_seconds"] > 0
    }
    if parts:
        rows_of_parts = pd.DataFrame({"part of a step": [*parts], "ms": [*parts.values()]})
        blocks.append(f"Step-time breakdown, measured after the training:\n{_grid(rows_of_parts)}")
    return "\n\n".join(blocks)


def select(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the rows of the run that ID, ID@MACHINE, ID@COMMIT or ID@MACHINE@COMMIT names, by when they started.

    Each part is the start of a name. Raises UserError if it names no run or several.
    """
    measured = table[table.origin == MEASURED].sort_values("started", kind="stable")
    start, rows = name.partition("@")[0], only(measured, qualifiers(measured, name))
    matching = rows[rows.run_id.str.startswith(start)]
    ids = matching.run_id.unique()
    if len(ids) != 1:
        found = f"{len(ids)} runs fit" if len(ids) else "no run fits"
        where = "rows.csv has all ids; a search has those of its candidates"
        raise UserError(f"run: {found} {name!r}: {', '.join(ids[:8]) or where}")
    return matching


def qualifiers(table: pd.DataFrame, name: str) -> list[str]:
    """Return what follows the id: a machine, in whose name there may be an "@", or starts of machine and commit."""
    rest = name.partition("@")[2]
    return [rest] if (table.machine == rest).any() else rest.split("@") if rest else []


def only(rows: pd.DataFrame, parts: Sequence[str]) -> pd.DataFrame:
    """Return the rows on a machine or of a commit whose name starts with each of `parts`; an exact name goes first."""
    for part in parts:
        exact = rows.machine == part
        rows = rows[exact if exact.any() else rows.machine.str.startswith(part) | rows.commit.str.startswith(part)]
    return rows


def _repeats(rows: pd.DataFrame) -> pd.DataFrame:
    columns = {
        "started (UTC)": rows.started.str[:16],
        "machine": rows.machine,
        "images": rows.dataset + " " + rows.data_checksum,
        "framework": rows.framework,
        "commit": rows.commit.str[:7],
        "samples/s": rows.samples_per_second,
        "spread": rows.spread,
        "accuracy": rows.accuracy,
        "wall (s)": rows.wall_seconds,
        "outcome": rows.outcome.where(rows.reason == "", rows.outcome + ": " + rows.reason),
        "noisy": rows.noisy.map({True: "noisy", False: ""}),
        "note": rows.note,
    }
    return pd.DataFrame(columns)


def _epochs(record: Record) -> pd.DataFrame:
    windows = pd.DataFrame([{**vars(window), "samples/s": window.rate} for window in record.windows])
    aggregates = {"loss": lambda losses: losses.iloc[-1], "samples/s": "median", "seconds": "sum"}
    epochs = windows.groupby("epoch").agg(aggregates).reset_index()
    accuracies = {evaluation.epoch: evaluation.accuracy for evaluation in record.evaluations}
    return epochs.assign(accuracy=epochs.epoch.map(accuracies))


def _grid(frame: pd.DataFrame) -> str:
    """Return a table for the terminal, without columns that are empty."""
    frame = frame.loc[:, ~(frame.isna() | (frame == "")).all()]
    for name in frame.select_dtypes("float"):
        digits = "{:.4f}" if name in ("accuracy", "loss") else "{:,.1f}"
        frame = frame.assign(**{name: frame[name].map(digits.format, na_action="ignore")})
    return tabulate(frame.fillna(""), headers="keys", showindex=False, disable_numparse=True)
