"""The text of `poc show`: one run with all its repeats, its curve, where its time went, and why a repeat failed."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from tabulate import tabulate

from poc.records.record import COMPLETED, DONE, Record
from poc.records.row import COLUMNS, MEASURED
from poc.records.timing import PARTS
from poc.report import markdown
from poc.values import UserError, suggest


def text(table: pd.DataFrame, records: Sequence[Record], start: str, as_json: bool = False) -> str:
    """Describe the run whose id starts with `start`.

    With @MACHINE or @COMMIT after the id only these repeats count. `records` are those that `table` was made from.
    Raises UserError if no run or several have such an id.
    """
    rows = select(table, start)
    last = rows.sort_values("outcome", key=lambda outcome: outcome.isin(DONE), kind="stable").iloc[-1]
    key = (last.machine, last.run_id, last.started)
    shown = next(record for record in records if (record.infrastructure, record.run.id, record.started) == key)
    seconds = {part: last[f"{part}_seconds"] for part in PARTS if pd.notna(last[f"{part}_seconds"])}
    epochs = _epochs(shown)
    if as_json:
        values = {"run_id": last.run_id, "description": str(shown.run), "framework_choice": shown.framework_choice}
        repeats = json.loads(rows.to_json(orient="records", double_precision=15))
        return json.dumps({**values, "repeats": repeats, "epochs": epochs, "seconds_by_part": seconds}, indent=2)
    head = {"run": f"{last.run_id}  {shown.run}", "recipe": ", ".join(dict.fromkeys(rows.recipe))}
    head["machine"] = "; ".join(dict.fromkeys(rows.machine + ", " + rows.hardware))
    head["framework"] = last.framework + (f" ({shown.framework_choice})" if shown.framework_choice else "")
    blocks = [tabulate(head.items(), tablefmt="plain"), _grid(_repeat(row) for row in rows.itertuples())]
    if epochs:
        blocks.append(f"Epochs of the repeat of {last.started[:16]}:\n{_grid(epochs)}")
    if seconds:
        wall = last.wall_seconds
        shares = [{"part": part, "s": value, "share": f"{value / wall:.0%}"} for part, value in seconds.items()]
        blocks.append(f"Where its {markdown.duration(wall)} went:\n{_grid(shares)}")
    return "\n\n".join(blocks)


def select(table: pd.DataFrame, text: str) -> pd.DataFrame:
    """Return the rows of the run that ID, ID@MACHINE, ID@COMMIT or ID@MACHINE@COMMIT names, by when they started.

    Each part is the start of a name. Raises UserError if no run or several have such an id.
    """
    start, *parts = text.split("@")
    rows = only(table[table.origin == MEASURED].sort_values("started", kind="stable"), parts)
    matching = rows[rows.run_id.str.startswith(start) & (start != "")]
    ids = sorted(set(matching.run_id))
    if len(ids) > 1:
        raise UserError(f"run: {len(ids)} ids start with {start!r}; give more of one: {', '.join(ids[:8])}")
    if not ids:
        hint = suggest(start, set(rows.run_id)) if len(rows) else "they hold none"
        if len(hint) >= 60:
            hint = "rows.csv has all ids"
        where = "".join(f" of {part!r}" for part in parts)
        raise UserError(f"run: no id{where} in the journals starts with {start!r}; {hint}")
    return matching


def only(rows: pd.DataFrame, parts: Sequence[str]) -> pd.DataFrame:
    """Return the rows on a machine or of a commit whose name starts with each of `parts`; an exact name goes first.

    Raises UserError for a part that neither has.
    """
    for part in parts:
        exact = rows.machine == part
        matching = exact if exact.any() else rows.machine.str.startswith(part) | rows.commit.str.startswith(part)
        if not matching.any():
            machines = suggest(part, set(rows.machine))
            raise UserError(f"run: no machine or commit in the journals starts with {part!r}; {machines}")
        rows = rows[matching]
    return rows


def _grid(lines: Iterable[Mapping[str, Any]]) -> str:
    """Return lines of a table for the terminal, without the columns that no line fills."""
    cells = [{name: _cell(name, value) for name, value in line.items()} for line in lines]
    names = [name for name in cells[0] if any(line[name] for line in cells)]
    return tabulate([[line[name] for name in names] for line in cells], list(map(title, names)), disable_numparse=True)


def title(name: str) -> str:
    """Return the words for a column of the table."""
    return str(COLUMNS[name].metadata.get("title") or name.replace("_", " ")) if name in COLUMNS else name


def _cell(name: str, value: Any) -> str:
    if pd.isna(value):
        return ""
    digits = {"accuracy": ".4f", "loss": ".4f", "windows": ".0f"}.get(name, ",.1f")
    return f"{value:{digits}}" if isinstance(value, float) else str(value)


def _repeat(row: Any) -> dict[str, Any]:
    too_short = row.outcome == COMPLETED and pd.isna(row.samples_per_second) and not row.speed_withdrawn
    return {
        "started (UTC)": row.started[:16],
        "machine": row.machine,
        "images": f"{row.dataset} {row.data_checksum}".strip(),
        "framework": row.framework,
        "commit": row.commit[:7],
        "samples_per_second": "too short to time" if too_short else row.samples_per_second,
        **{name: getattr(row, name) for name in ("spread", "windows", "accuracy")},
        "wall (s)": row.wall_seconds,
        "outcome": row.outcome + (f": {row.reason}" if row.reason else ""),
        "note": "; ".join(filter(None, ["noisy" if row.noisy else "", row.note])),
    }


def _epochs(record: Record) -> list[dict[str, Any]]:
    """Return loss, accuracy and speed after each epoch; no speed if it is withdrawn."""
    accuracies = {evaluation.epoch: evaluation.accuracy for evaluation in record.evaluations}
    epochs = []
    for epoch, group in itertools.groupby(record.windows, key=lambda window: window.epoch):
        windows = list(group)
        line = {"epoch": epoch, "loss": windows[-1].loss, "accuracy": accuracies.get(epoch)}
        if not record.speed_withdrawn:
            line["samples_per_second"] = statistics.median(window.rate for window in windows)
            line["seconds"] = sum(window.seconds for window in windows)
        epochs.append(line)
    return epochs
