"""The text of `poc compare`: what two runs differ in, and whether their speeds and accuracies differ significantly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd
from scipy.stats import ttest_ind
from tabulate import tabulate

from poc.cli import show
from poc.records.record import COMPLETED
from poc.report import repeats
from poc.values import UserError

# Columns that say what ran, and where. All others are measured, or follow from these.
_CONDITIONS = (
    *("machine", "hardware", "cores", "driver", "framework", "commit", "environment", "threads", "cores_per_worker"),
    *("model", "dataset", "data_checksum", "fixed", "input_shape", "kind", "devices", "emulated", "workers", "dtype"),
    *("batch_per_device", "global_batch", "lr", "lr_rule", "training_recipe", "kvstore", "straggler", "layout"),
    *("length", "epochs", "target_accuracy", "accuracy_on", "seed", "quick"),
)
_RULE = """\
A shared machine has slower hours: repeats count that started within an hour of one of the other side. To get them, run
one recipe that has both settings and repeats=3, or run both versions by turns, three times, with --again."""


def text(table: pd.DataFrame, first: str, second: str, as_json: bool = False) -> str:
    """Compare two runs, each named as ID, ID@MACHINE, ID@COMMIT or ID@MACHINE@COMMIT by the starts of these names.

    All seeds of a setting are its repeats. Raises UserError if a name fits no run or several, or both name the same.
    """
    runs, sides = _sides(table, [first, second])
    conditions = {name: [_distinct(side[name]) for side in sides] for name in _CONDITIONS}
    differences = {name: values for name, values in conditions.items() if values[0] != values[1]}
    same_machine = not {"machine", "hardware"} & differences.keys()
    completed = [side[side.outcome == COMPLETED] for side in sides]
    rate, accuracy = _rate(completed, same_machine), _accuracy(completed)
    if as_json:
        values = {"run_ids": runs, "differences": differences, "interleaving_required": same_machine}
        return json.dumps({**values, "samples_per_second": rate, "accuracy": accuracy}, indent=2)
    rows = [[show.title(name), *(_words(name, values) for values in both)] for name, both in differences.items()]
    rows.append(["samples/s", *(_range(rate[side], ",.1f") for side in ("first", "second"))])
    rows.append(["accuracy", *(_range(accuracy[side], ".4f") for side in ("first", "second"))])
    heads = ["@".join([run, *name.split("@")[1:]]) for run, name in zip(runs, (first, second))]
    lines = [tabulate(rows, headers=["", *heads], disable_numparse=True), ""]
    if not differences:
        lines.append("No column of rows.csv that says what ran differs.")
    lines.append(_verdict("Accuracy, first - second", "difference", "+.4f", accuracy))
    lines.append(_verdict("Samples/s, first / second", "ratio", ".3f", rate))
    if rate["ratio"] and rate["interval"] is None and same_machine:
        lines.append(_RULE)
    return "\n".join(lines)


def _sides(table: pd.DataFrame, names: Sequence[str]) -> tuple[list[str], list[pd.DataFrame]]:
    """Return the id and the repeats that each name stands for; if no machine is named, on one that has both runs."""
    named = [show.select(table, name) for name in names]
    runs = [str(rows.run_id.iloc[0]) for rows in named]
    common = named[0].machine[named[0].machine.isin(named[1].machine)]
    if runs[0] != runs[1] and len(common):
        named = [rows[rows.machine == common.iloc[-1]] for rows in named]
    sides = []
    for name, rows in zip(names, named):
        # A skipped run read no images, so its setting is not that of its repeats.
        setting = rows.sort_values("outcome", key=lambda outcome: outcome == COMPLETED, kind="stable").setting.iloc[-1]
        sides.append(show.only(table[table.setting == setting], name.split("@")[1:]))
    if sides[0].index.isin(sides[1].index).any():  # one setting: the names differ in the seed, or not at all
        sides = [side[side.run_id == run] for side, run in zip(sides, runs)]
    if sides[0].index.isin(sides[1].index).any():
        raise UserError(f"compare: {names[0]} and {names[1]} name the same repeats; add @MACHINE or @COMMIT to each")
    return runs, sides


def _distinct(column: pd.Series[Any]) -> list[Any]:
    return sorted({value for value in column if value != "" and pd.notna(value)})


def _words(name: str, values: Sequence[Any]) -> str:
    cells = [value[:7] if name == "commit" else f"{value:g}" if isinstance(value, float) else value for value in values]
    return ", ".join(map(str, cells)) or "-"


def _summaries(sides: Sequence[pd.Series[float]]) -> dict[str, Any]:
    """Return median, extremes and number of both sides' values, as far as they are known; no test yet."""
    result: dict[str, Any] = {"n": [len(values) for values in sides], "interval": None, "significant": None}
    for name, values in zip(("first", "second"), (side.dropna() for side in sides)):
        summary = {"median": values.median(), "low": values.min(), "high": values.max(), "n": len(values)}
        result[name] = summary if len(values) else None
    return result


def _rate(sides: Sequence[pd.DataFrame], same_machine: bool) -> dict[str, Any]:
    """Return the samples/s of both sides, their ratio, and its interval if there are enough interleaved repeats."""
    if not same_machine:  # They have no slower hours in common: as if all repeats had started at once.
        sides = [side.assign(started="2000-01-01T00:00:00") for side in sides]
    result = _summaries([repeats.clean(side[side.samples_per_second.notna()]).samples_per_second for side in sides])
    result["n"] = [len(side) for side in repeats.pair(*sides)]
    ratio = repeats.compare(*sides)
    if ratio and ratio.is_tested:
        interval = [ratio.low, ratio.high]
        return {**result, "ratio": ratio.ratio, "interval": interval, "significant": ratio.is_significant}
    both = result["first"] and result["second"]
    return {**result, "ratio": result["first"]["median"] / result["second"]["median"] if both else None}


def _accuracy(sides: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """Return the accuracies of both sides, one per seed, their difference, and its interval with enough seeds."""
    evaluated = [side[side.accuracy.notna()].sort_values("started", kind="stable") for side in sides]
    accuracies = [side.drop_duplicates("seed", keep="last").accuracy for side in evaluated]
    result = _summaries(accuracies)
    if min(result["n"]) < repeats.MIN_REPEATS:
        medians = [values.median() for values in accuracies]
        return {**result, "difference": medians[0] - medians[1] if min(result["n"]) else None}
    low, high = ttest_ind(*accuracies, equal_var=False).confidence_interval(repeats.CONFIDENCE)
    difference = accuracies[0].mean() - accuracies[1].mean()
    return {**result, "difference": difference, "interval": [low, high], "significant": not low <= 0 <= high}


def _range(summary: dict[str, float] | None, digits: str) -> str:
    if summary is None:
        return "none"
    low, median, high = (f"{summary[name]:{digits}}" for name in ("low", "median", "high"))
    return f"{median} (n = 1)" if summary["n"] == 1 else f"{median} ({low} to {high}, n = {summary['n']})"


def _verdict(title: str, name: str, digits: str, result: dict[str, Any]) -> str:
    if result[name] is None:
        return f"{title}: unknown, because one side has no figure."
    counts = "n = {} and {}".format(*result["n"])
    if result["interval"] is None:
        needed = f"no significance test: {counts}, needs {repeats.MIN_REPEATS}"
        return f"{title}: {result[name]:{digits}} ({name} of medians); {needed}."
    low, high = (f"{end:{digits}}" for end in result["interval"])
    word = "significant" if result["significant"] else "not significant"
    return f"{title}: {result[name]:{digits}}, {word} (95% interval {low} to {high}, {counts})."
