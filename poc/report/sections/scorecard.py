"""The scorecard: seven numbers of a model on this machine, beside those of the main study's GPU machines."""

from __future__ import annotations

from typing import Any, Callable

import pandas as pd

from poc.records.row import MEASURED
from poc.report import markdown
from poc.report.page import Block, section
from poc.report.results import MAIN_MODEL, REFERENCE_BATCH, Results, Subject, preferred
from poc.report.sections import cost, learning_rate, scaling

_BATCHES = (128, 256, 512)


def blocks(results: Results, subject: Subject) -> list[Block]:
    """Return the scorecard of a subject."""
    caption = (
        "Medians of repeats. Published rows are single runs from 2017 as printed. Speed-up: samples/s on all devices "
        "over samples/s on one device, at a fixed batch per device; efficiency: speed-up / devices. Accuracy: test "
        f"set, after the last epoch, {results.recipe(subject)}. Time: training until the accuracy is first "
        f'{results.target:g} at the end of an epoch; "≤": the study printed only the end. Cost: price of the whole '
        "instance."
    )
    return section(f"Scorecard: {subject.label}", markdown.table(lines(results, subject)), caption)


def lines(results: Results, subject: Subject) -> list[dict[str, str]]:
    """Return the rows of the scorecard, by column title."""
    metrics = (
        f"samples/s, one device, batch {REFERENCE_BATCH}",
        f"samples/s, all devices, batch {REFERENCE_BATCH} each",
        f"speed-up (efficiency) at {' / '.join(map(str, _BATCHES))} per device",
        "accuracy at global batch 128 → largest",
        "best learning rate at the largest global batch",
        f"time to accuracy {results.target:g}",
        f"cost to accuracy {results.target:g}",
    )
    own = results.headline(subject)
    cells = [cell or hint for cell, hint in zip(_cells(results, own), _hints(results, own, subject))]
    columns = {f"this machine ({results.machine})" if results.machine else "this machine": cells}
    columns.update({name: _cells(results, rows) for name, rows in results.published_machines(subject.model)})
    return [
        {"metric": metric, **{name: cells[number] or "—" for name, cells in columns.items()}}
        for number, metric in enumerate(metrics)
    ]


def _hints(results: Results, own: pd.DataFrame, subject: Subject) -> list[str]:
    """Return for each metric why this machine may have no number, or how to measure it."""

    def run(recipe: str) -> str:
        return f"run `./run_all.sh {recipe}`" if subject.model == MAIN_MODEL else "not measured"

    most = learning_rate.best_by_batch(own[~own.emulated]).accuracy.max()
    not_reached = f"not reached: {most:.3f}" if most < results.target else "not reached by every seed"
    reached = run("cifar10_resnet50") if pd.isna(most) else not_reached
    has_one_device = len(own) > 0 and own.hardware.iloc[0].startswith("1x ")
    scaled = ["same: one device", "one device"] if has_one_device else [run("scaling")] * 2
    is_cpu = len(own) > 0 and own.kind.iloc[0] == "cpu"
    tuning = run("learning_rate --set kind=cpu" if is_cpu else "learning_rate")
    return [run("throughput"), *scaled, run("cifar10_resnet50"), tuning, reached, reached]


def _cells(results: Results, rows: pd.DataFrame) -> list[str]:
    """Return one machine's cell for each metric, empty where that was not measured."""
    whole = rows[~rows.emulated]
    at_reference = whole[whole.batch_per_device == REFERENCE_BATCH]
    one = at_reference[(at_reference.devices == 1) & at_reference.cores_per_worker.isna()]
    every = at_reference[(at_reference.devices == whole.devices.max()) & (at_reference.devices > 1)]
    last = {made.batch_per_device[0]: made.iloc[-1] for made in scaling.series(results, rows)}
    most = max((row.devices for row in last.values()), default=0)
    speedups = ["—" if batch not in last else _speedup(last[batch], most) for batch in _BATCHES]
    best = learning_rate.best_by_batch(rows)
    ends = best[(best.index == REFERENCE_BATCH) | (best.index == best.index.max())]
    tuned = best[(best.index > REFERENCE_BATCH) | (best.origin != MEASURED)].tail(1)
    return [
        _rate(preferred(one)),
        _rate(preferred(every)),
        " / ".join(speedups) if {*speedups} != {"—"} else "",
        " → ".join(f"{markdown.accuracy(row)} at {row.global_batch:,.0f}" for row in ends.itertuples()),
        "".join(f"{row.lr:g} at {row.global_batch:,.0f}, best of {row.tried} tried" for row in tuned.itertuples()),
        _bound(cost.fastest(rows), "seconds_to_target", markdown.duration),
        _bound(cost.cheapest(rows), "dollars_to_target", markdown.dollars),
    ]


def _speedup(row: Any, most: float) -> str:
    """Return speed-up and efficiency, with the number of devices if another series has more."""
    return f"{row.speedup:.2f}x ({row.speedup / row.devices:.0%})" + (
        f" on {row.devices:.0f}" if row.devices < most else ""
    )


def _rate(row: Any | None) -> str:
    return "" if row is None else f"{markdown.rate(row)}, {markdown.devices(row)}"


def _bound(row: Any | None, name: str, form: Callable[[float], str]) -> str:
    """Return time or cost of a setting; an upper bound of a published one."""
    if row is None:
        return ""
    text, is_measured = form(getattr(row, name)), row.origin == MEASURED
    if not text:
        return "price unknown: `--price DOLLARS`" if is_measured else "no price known"
    return ("" if is_measured else "≤ ") + f"{text}, {markdown.devices(row)}"
