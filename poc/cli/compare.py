"""What two runs differ in, whether their speeds and accuracies differ significantly, and the verdict of the gate."""

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
from poc.host.environment import POC
from poc.records.record import COMPLETED, INTERRUPTED, SKIPPED
from poc.records.row import MEASURED
from poc.report import repeats
from poc.report.table import PAUSED
from poc.values import UserError

# Columns that say what ran, and where. All others are measured, or follow from these.
_CONDITIONS = [
    *("machine", "hardware", "cpu", "cores", "driver", "framework", "commit", "environment"),
    *("model", "dataset", "data_checksum", "fixed", "input_shape", "kind", "devices", "emulated", "workers", "dtype"),
    *("batch_per_device", "global_batch", "lr", "lr_rule", "schedule", "training_recipe", "kvstore", "straggler"),
    *("threads", "cores_per_worker", "layout", "options", "seed", "length", "measurement", "epochs"),
    *("target_accuracy", "accuracy_on", "quick"),
]
NOT_SLOWER, SLOWER, TOO_FEW = 0, 3, 4
_VERDICTS = {NOT_SLOWER: "not slower", SLOWER: "slower", TOO_FEW: "inconclusive: too few repeats"}


def compare(table: pd.DataFrame, first: str, second: str, slower: float | None = None) -> dict[str, Any]:
    """Compare two runs, each named as ID, ID@MACHINE, ID@COMMIT or ID@MACHINE@COMMIT by the starts of these names.

    All seeds of a setting are its repeats. `slower` is the limit of `gate`; None: no gate.
    Raises UserError if a name fits no run or several, or both name the same.
    """
    return _compared(*_sides(table, [first, second]), slower, 1)


def same_runs(tables: Sequence[pd.DataFrame], slower: float | None, ids: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Compare, as `compare`, each run that two tables have in common, or those of `ids`: the last setting in each.

    A run that both skipped is left out. The seeds that both have are repeats of one setting, named by the first run.
    """
    measured = [table[(table.origin == MEASURED) & (table.length != PAUSED)] for table in tables]
    measured = [table.sort_values("started", kind="stable") for table in measured]
    common = [run for run in measured[0].run_id.unique() if run in {*measured[1].run_id} and (not ids or run in ids)]
    pairs: dict[tuple[str, ...], list[pd.DataFrame]] = {}
    for run in common:
        latest = _latest_on_one_machine([table[table.run_id == run] for table in measured])
        settings = tuple(side.setting.iloc[-1] for side in latest)
        pairs[settings] = [
            table[(table.setting == each) & table.run_id.isin(common)] for table, each in zip(measured, settings)
        ]
    sides = [pair for pair in pairs.values() if any((side.outcome != SKIPPED).any() for side in pair)]
    if not sides:
        raise UserError(f"compare: the folders have no run in common; {POC} plan --verbose lists the ids of a recipe")
    # Only runs with enough repeats can give a false alarm.
    repeated = [min((side.outcome == COMPLETED).sum() for side in pair) >= repeats.MIN_REPEATS for pair in sides]
    return [_compared([pair[0].run_id.iloc[0]] * 2, pair, slower, max(1, sum(repeated))) for pair in sides]


def gate(logarithms: Sequence[Any], slower: float, runs: int = 1) -> dict[str, Any]:
    """Judge from logarithms of samples/s of interleaved repeats whether the second side is slower than the first.

    With d the difference of means, second - first, and its one-sided 95% bounds by Welch's t, the verdict is SLOWER if
    the upper bound is below 0 and d below -log(1 + slower); NOT_SLOWER if the lower bound is above -log(1 + slower);
    else, and with fewer than MIN_REPEATS on a side, TOO_FEW. Several `runs` share the 5% (Bonferroni). `repeats_needed`
    is about how many on each side would end TOO_FEW. Of arrays the last dimension is that of the repeats.
    """
    limit, (first, second) = -math.log1p(slower), map(np.asarray, logarithms)
    n = min(first.shape[-1], second.shape[-1])
    result = {"exit_code": TOO_FEW, "limit": math.exp(limit), "repeats_needed": repeats.MIN_REPEATS}
    if n < repeats.MIN_REPEATS:
        return result
    difference, welch = second.mean(-1) - first.mean(-1), ttest_ind(second, first, axis=-1, equal_var=False)
    low, high = welch.confidence_interval(1 - 2 * (1 - repeats.CONFIDENCE) / runs)
    is_slower = (high < 0) & (difference < limit)
    # The interval shrinks with the root of n, and has to leave out 0 or the limit.
    gap = np.where(difference < limit, -difference, np.maximum(difference - limit, 1e-3))
    result["exit_code"] = np.where(is_slower, SLOWER, np.where(low > limit, NOT_SLOWER, TOO_FEW)).tolist()
    result["repeats_needed"] = np.ceil(n * ((high - low) / 2 / gap) ** 2).astype(int).tolist()
    return {**result, "ratio": np.exp(difference).tolist(), "bounds": np.exp([low, high]).tolist()}


def _compared(runs: list[str], sides: list[pd.DataFrame], slower: float | None, pairs: int) -> dict[str, Any]:
    """Compare the repeats of two runs, one of `pairs` comparisons that share the 5%."""
    conditions = pd.DataFrame([_conditions(side) for side in sides])
    differences = conditions.loc[:, conditions.nunique() > 1].to_dict("list")
    same_machine = not {"machine", "hardware", "cpu"} & differences.keys()
    completed = [side[side.outcome == COMPLETED] for side in sides]
    ends = [side.outcome.where(side.reason != INTERRUPTED, INTERRUPTED) for side in sides]
    failures = [each[~each.isin([COMPLETED, SKIPPED])].value_counts().to_dict() for each in ends]
    rate, accuracy = _rate(completed, same_machine, slower, pairs), _accuracy(completed, pairs)
    worse = {"samples/s": rate["significant"] and rate["estimate"] > 1}
    worse["accuracy"] = accuracy["significant"] and accuracy["estimate"] > 0
    worse["outcome"] = len(completed[0]) > 0 and not len(completed[1]) and any({**failures[1], INTERRUPTED: 0}.values())
    return {
        "runs": runs,
        "differences": differences,
        "same_machine": same_machine,
        "not_completed": failures,
        "samples/s": rate,
        "accuracy": accuracy,
        "second_is_worse": [name for name, is_worse in worse.items() if is_worse],
        "exit_code": rate["gate"]["exit_code"] if slower and not worse["outcome"] else int(any(worse.values())),
    }


def _conditions(side: pd.DataFrame) -> dict[str, str]:
    """Return all values of each condition in the repeats of a run, of those that completed if any did."""
    rows = repeats.some_or_all(side, side.outcome == COMPLETED)[_CONDITIONS].convert_dtypes()
    return {name: ", ".join(map(str, sorted(rows[name].dropna().unique()))) for name in _CONDITIONS}


def as_json(comparison: Any) -> str:
    """Return a result of `compare`, or what contains some, as JSON; null where there is no value."""
    return to_json(comparison, indent=1, inf_nan_mode="null", fallback=list).decode()


def text(comparison: dict[str, Any]) -> str:
    rate, accuracy = comparison["samples/s"], comparison["accuracy"]
    rows = [[name, *values] for name, values in comparison["differences"].items()]
    if any(comparison["not_completed"]):
        counts = [[f"{n} {outcome}" for outcome, n in each.items()] for each in comparison["not_completed"]]
        rows.append(["not completed", *(", ".join(texts) or "none" for texts in counts)])
    rows.append(["samples/s", *(_range(side, ",.1f") for side in rate["sides"])])
    rows.append(["accuracy", *(_range(side, ".4f") for side in accuracy["sides"])])
    lines = [tabulate(rows, headers=["", *comparison["runs"]], disable_numparse=True), ""]
    lines.append(_verdict("Accuracy, first - second", accuracy, "+.4f"))
    lines.append(_verdict("Samples/s, first / second", rate, ".3f"))
    if rate["interval"] is None and comparison["same_machine"]:
        lines.append("On one machine, only repeats that started within an hour of one of the other run are compared.")
    if gate := rate["gate"]:
        lines.append(f"Limit (second / first at least {gate['limit']:.3f}): {_VERDICTS[gate['exit_code']]}")
        if "bounds" in gate:
            lines[-1] += ", {:.3f} ({:.3f} to {:.3f})".format(gate["ratio"], *gate["bounds"])
        if gate["exit_code"] == TOO_FEW and rate["too_short"]:
            lines[-1] += "; the runs are too short for samples/s: use more steps"
        elif gate["exit_code"] == TOO_FEW and all(map(len, rate["sides"])):
            lines[-1] += f"; about {gate['repeats_needed']} interleaved repeats on each side would decide"
    return "\n".join(lines)


def _sides(table: pd.DataFrame, names: Sequence[str]) -> tuple[list[str], list[pd.DataFrame]]:
    """Return the id and the repeats that each name stands for; if no machine is named, on one that has both runs."""
    named = [show.select(table, name) for name in names]
    runs = [str(rows.run_id.iloc[0]) for rows in named]
    of_setting = _latest_on_one_machine(named) if runs[0] != runs[1] else map(_latest, named)
    latest = [rows.setting.iloc[-1] for rows in of_setting]
    sides = [show.only(table[table.setting == each], show.qualifiers(table, name)) for name, each in zip(names, latest)]
    if sides[0].index.isin(sides[1].index).any():  # one setting: the names differ in the seed, or not at all
        sides = [side[side.run_id == run] for side, run in zip(sides, runs)]
    if sides[0].index.isin(sides[1].index).any():
        raise UserError(f"compare: {names[0]} and {names[1]} name the same repeats; add @MACHINE or @COMMIT to each")
    return runs, sides


def _latest_on_one_machine(sides: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Return the latest setting of both sides, on a machine where both completed, else on one that has both."""
    completed = [side[side.outcome == COMPLETED] for side in sides]
    for first, second in (completed, sides):
        common = first.machine[first.machine.isin(second.machine)]
        if len(common):
            return [_latest(rows[rows.machine == common.iloc[-1]]) for rows in sides]
    return [*map(_latest, sides)]


def _latest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the setting that completed last, on all cores if any did; of the last one if none did."""
    # A skipped run read no images, so its setting is not that of its repeats.
    quality = rows.assign(completed=rows.outcome == COMPLETED, all_cores=rows.fewer_threads.isna())
    ordered = quality.sort_values(["completed", "all_cores"], kind="stable")
    return rows[rows.setting == ordered.setting.iloc[-1]]


def _rate(sides: Sequence[pd.DataFrame], same_machine: bool, slower: float | None, pairs: int) -> dict[str, Any]:
    """Return the samples/s of both sides, and their ratio and the gate's verdict by interleaved repeats."""
    if not same_machine:  # They have no slower hours in common: as if all repeats had started at once.
        sides = [side.assign(started="2000-01-01T00:00:00") for side in sides]
    timed = [side[side.samples_per_second.notna()] for side in sides]
    logarithms = [np.log(side.samples_per_second) for side in repeats.pair(*sides)]
    result = {**_difference(logarithms, pairs), "gate": slower and gate(logarithms, slower, pairs)}
    result["too_short"] = any(len(side) and not len(rate) for side, rate in zip(sides, timed))
    result["sides"] = [repeats.clean(side).samples_per_second for side in timed]
    result["estimate"] = math.exp(result["estimate"])
    result["interval"] = result["interval"] and [math.exp(end) for end in result["interval"]]
    return result


def _accuracy(sides: Sequence[pd.DataFrame], pairs: int) -> dict[str, Any]:
    evaluated = [side[side.accuracy.notna()].sort_values("started", kind="stable") for side in sides]
    accuracies = [side.drop_duplicates("seed", keep="last").accuracy for side in evaluated]
    return {"sides": accuracies, **_difference(accuracies, pairs)}


def _difference(sides: Sequence[pd.Series[float]], pairs: int) -> dict[str, Any]:
    """Return the difference of means, and its interval if each side has MIN_REPEATS; `pairs` of sides share the 5%."""
    sides = [side - sides[0].max() for side in sides]  # rounding would make equal values differ
    n, difference, interval = [len(side) for side in sides], sides[0].mean() - sides[1].mean(), None
    confidence = 1 - (1 - repeats.CONFIDENCE) / pairs  # Bonferroni
    if min(n) >= repeats.MIN_REPEATS:
        interval = [*ttest_ind(*sides, equal_var=False).confidence_interval(confidence)]
    significant = interval and not interval[0] <= 0 <= interval[1]
    return {"n": n, "estimate": difference, "interval": interval, "confidence": confidence, "significant": significant}


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
    return f"{estimate}, {word} ({100 * result['confidence']:.4g}% interval {low} to {high}, {counts})."
