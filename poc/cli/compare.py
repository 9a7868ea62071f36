"""The text of `poc compare`: what two runs differ in, and whether their speeds and accuracies differ significantly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pydantic_core import to_json
from scipy.stats import ttest_ind
from tabulate import tabulate

from poc.cli import show
from poc.records.record import COMPLETED
from poc.report import repeats
from poc.values import UserError

# Columns that say what ran, and where. All others are measured, or follow from these.
_CONDITIONS = [
    *("machine", "hardware", "cores", "driver", "framework", "commit", "environment", "threads", "cores_per_worker"),
    *("model", "dataset", "data_checksum", "fixed", "input_shape", "kind", "devices", "emulated", "workers", "dtype"),
    *("batch_per_device", "global_batch", "lr", "lr_rule", "training_recipe", "kvstore", "straggler", "layout"),
    *("length", "epochs", "target_accuracy", "accuracy_on", "quick"),
]


def compare(table: pd.DataFrame, first: str, second: str) -> dict[str, Any]:
    """Compare two runs, each named as ID, ID@MACHINE, ID@COMMIT or ID@MACHINE@COMMIT by the starts of these names.

    All seeds of a setting are its repeats. Raises UserError if a name fits no run or several, or both name the same.
    """
    runs, sides = _sides(table, [first, second])
    conditions = pd.concat([side.tail(1) for side in sides])[_CONDITIONS].convert_dtypes().astype(str)
    differences = conditions.loc[:, conditions.nunique() > 1].to_dict("list")
    same_machine = not {"machine", "hardware"} & differences.keys()
    completed = [side[side.outcome == COMPLETED] for side in sides]
    rate, accuracy = _rate(completed, same_machine), _accuracy(completed)
    worse = {"samples/s": rate["significant"] and rate["estimate"] > 1}
    worse["accuracy"] = accuracy["significant"] and accuracy["estimate"] > 0
    return {
        "runs": runs,
        "differences": differences,
        "same_machine": same_machine,
        "samples/s": rate,
        "accuracy": accuracy,
        "second_is_worse": [name for name, is_worse in worse.items() if is_worse],
    }


def as_json(comparison: dict[str, Any]) -> str:
    """Return the result of `compare` as JSON; null where there is no value."""
    return to_json(comparison, indent=1, inf_nan_mode="null", fallback=list).decode()


def text(comparison: dict[str, Any]) -> str:
    """Return the result of `compare` in words."""
    rate, accuracy = comparison["samples/s"], comparison["accuracy"]
    rows = [[name, *values] for name, values in comparison["differences"].items()]
    rows.append(["samples/s", *(_range(side, ",.1f") for side in rate["sides"])])
    rows.append(["accuracy", *(_range(side, ".4f") for side in accuracy["sides"])])
    lines = [tabulate(rows, headers=["", *comparison["runs"]], disable_numparse=True), ""]
    lines.append(_verdict("Accuracy, first - second", accuracy, "+.4f"))
    lines.append(_verdict("Samples/s, first / second", rate, ".3f"))
    if rate["interval"] is None and comparison["same_machine"]:
        lines.append("On one machine only repeats count that started within an hour of one of the other run.")
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


def _rate(sides: Sequence[pd.DataFrame], same_machine: bool) -> dict[str, Any]:
    """Return the samples/s of both sides, and their ratio by interleaved repeats."""
    if not same_machine:  # They have no slower hours in common: as if all repeats had started at once.
        sides = [side.assign(started="2000-01-01T00:00:00") for side in sides]
    rates = [repeats.clean(side[side.samples_per_second.notna()]).samples_per_second for side in sides]
    result = _difference([np.log(side.samples_per_second) for side in repeats.pair(*sides)])
    interval = result["interval"] and [math.exp(end) for end in result["interval"]]
    return {**result, "sides": rates, "estimate": math.exp(result["estimate"]), "interval": interval}


def _accuracy(sides: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """Return the accuracies of both sides, one per seed, and their difference."""
    evaluated = [side[side.accuracy.notna()].sort_values("started", kind="stable") for side in sides]
    accuracies = [side.drop_duplicates("seed", keep="last").accuracy for side in evaluated]
    return {"sides": accuracies, **_difference(accuracies)}


def _difference(sides: Sequence[pd.Series[float]]) -> dict[str, Any]:
    """Return the difference of means, with its interval if there are enough values on both sides."""
    n, difference, interval = [len(side) for side in sides], sides[0].mean() - sides[1].mean(), None
    if min(n) >= repeats.MIN_REPEATS:
        interval = [*ttest_ind(*sides, equal_var=False).confidence_interval(repeats.CONFIDENCE)]
    significant = interval and not interval[0] <= 0 <= interval[1]
    return {"n": n, "estimate": difference, "interval": interval, "significant": significant}


def _range(values: pd.Series[float], digits: str) -> str:
    if not len(values):
        return "none"
    low, median, high = (f"{value:{digits}}" for value in (values.min(), values.median(), values.max()))
    return f"{median} ({low} to {high}, n = {len(values)})"


def _verdict(title: str, result: dict[str, Any], digits: str) -> str:
    estimate, counts = f"{title}: {result['estimate']:{digits}}", "n = {} and {}".format(*result["n"])
    if not min(result["n"]):
        return f"{title}: unknown, {counts}."
    if result["interval"] is None:
        return f"{estimate}; no significance test: {counts}, needs {repeats.MIN_REPEATS}."
    low, high = (f"{end:{digits}}" for end in result["interval"])
    word = "significant" if result["significant"] else "not significant"
    return f"{estimate}, {word} (95% interval {low} to {high}, {counts})."
