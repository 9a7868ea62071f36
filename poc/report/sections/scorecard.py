"""The scorecard: seven numbers of a model on this machine and on the main study's GPU machines."""

import re
from typing import Any, Callable

import pandas as pd

from poc.records.record import COMPLETED, INTERRUPTED, SKIPPED
from poc.records.row import MEASURED
from poc.report import markdown
from poc.report.markdown import Block, section
from poc.report.results import Results, Subject, preferred, same_length
from poc.report.sections import cost, learning_rate, scaling
from poc.report.table import BURST, TRAINING
from poc.values import counted


def blocks(results: Results, subject: Subject, card: list[dict[str, str]]) -> list[Block]:
    source, bound = "", ""
    if results.published_machines(subject):
        source = "Published rows are single runs from 2017 as printed. "
        bound = '; "≤": the study printed only the end'
    rows = results.headline(subject)
    framework = next(map(markdown.short_framework, markdown.records(rows.head(1))), "")
    if markdown.processors(results.here(results.measured)).nunique() > 1:  # under one name
        framework += "".join(", " + markdown.processors(rows.head(1)))
    trained = same_length(rows[rows.target_accuracy.isna()])
    end = f"after {counted(trained.epochs.iloc[0], 'epoch')}" if len(trained) else "after the last epoch"
    caption = (
        f"{framework and f'This machine: {framework}. '}Medians of n repeats or seeds. {source}Measured samples/s "
        "are of bursts where there are any. Speed-up: samples/s on the most devices that were measured over samples/s "
        "on one, at a fixed batch per device (on a CPU the first row is of all cores as one device, and in the next "
        "two a device is a worker with its own cores); "
        f"efficiency: speed-up / devices. Accuracy: test set, {end}, "
        f"{results.recipe(subject)}. Time: training with this recipe until the accuracy is first {results.target:g} at "
        f"the end of an epoch{bound} (`poc report --target ACCURACY` sets another). Cost: price of the whole instance."
    )
    return section(f"Scorecard: {subject.label}", markdown.table(card), caption)


def lines(results: Results, subject: Subject) -> list[dict[str, str]]:
    batch = results.reference_batch(subject)
    metrics = (
        f"samples/s, one device, batch {batch:,}",
        f"samples/s, all devices, batch {batch:,} each",
        f"speed-up (efficiency) at {batch:,} / {2 * batch:,} / {4 * batch:,} per device",
        f"accuracy at global batch {batch:,} → largest",
        "best learning rate at the largest global batch",
        f"time to accuracy {results.target:g}",
        f"cost to accuracy {results.target:g}",
    )
    rows = results.headline(subject)
    measured = _cells(results, rows, batch, scaling.over_hosts(results, subject, rows))
    cells = [cell or hint for cell, hint in zip(measured, _hints(results, rows, subject))]
    columns = {f"this machine ({results.machine})" if results.machine else "this machine": cells}
    columns.update({name: _cells(results, rows, batch, rows) for name, rows in results.published_machines(subject)})
    return [
        {"metric": metric, **{name: cells[number] or "—" for name, cells in columns.items()}}
        for number, metric in enumerate(metrics)
    ]


def _hints(results: Results, rows: pd.DataFrame, subject: Subject) -> list[str]:
    """Return for each metric why this machine may have no number, or how to measure it."""

    runs = results.runs[(results.runs.machine == results.machine) & (results.runs.model == subject.model)]
    runs = runs[~runs.outcome.isin([COMPLETED, SKIPPED]) & (runs.reason != INTERRUPTED)]
    trainings = runs[runs.length == TRAINING]

    def run(recipe: str, failed: pd.DataFrame) -> str:
        if len(failed):
            return f"{' or '.join(failed.outcome.unique())}: see Your recipes"
        return f"run `./run_all.sh {recipe}`" if subject.is_main else "not measured"

    bursts = runs[(runs.length == BURST) & (runs.batch_per_device == results.reference_batch(subject))]
    single = run("throughput", bursts[bursts.devices == 1])
    trained = run("cifar10_resnet50", trainings)
    reached = cost.missed(results, rows) or trained
    own = results.measured[results.measured.machine == results.machine]
    equal_cards = re.fullmatch(r"(\d+)x [^+]*", own.hardware.iloc[0]) if len(own) else None
    if equal_cards and equal_cards[1] == "1":
        scaled = ["this machine has one device"] * 2
    elif equal_cards and not subject.is_main:
        scaled = [f"not measured: the recipe with `--set devices=1,{equal_cards[1]}`"] * 2
    else:
        scaled = [run("scaling", bursts[bursts.devices > 1])] * 2
    if subject.is_main and subject.dataset == "synthetic":
        return [single, *scaled, *["needs the images: `--data DIR`"] * 4]
    option = " --set kind=cpu" if results.is_of_cpu else ""
    tuning = run(f"learning_rate{option}", trainings[trainings.recipe == "learning_rate"])
    return [single, *scaled, trained, tuning, reached, reached]


def _cells(results: Results, rows: pd.DataFrame, batch: int, scaled: pd.DataFrame) -> list[str]:
    """Return one machine's cell for each metric at a `batch` per device, empty if that was not measured.

    The rows of its scaling series, `scaled`, may be over several hosts.
    """
    real = rows[~rows.emulated]
    at_batch = real[real.batch_per_device == batch]
    single = at_batch[(at_batch.devices == 1) & at_batch.cores_per_worker.isna()]
    multiple = at_batch[(at_batch.devices == real.devices.max()) & (at_batch.devices > 1)]
    last = {curve.batch_per_device[0]: curve.iloc[-1] for curve in scaling.series(results, scaled)}
    max_devices = real.devices.max()
    speedups = [_speedup(last[size], max_devices) if size in last else "—" for size in (batch, 2 * batch, 4 * batch)]
    diverged = results.diverged(scaled)
    best = learning_rate.best_by_batch(scaled, diverged, batch)
    ends = markdown.records(best[(best.index == batch) | (best.index == best.index.max())])
    accuracies = [f"{markdown.accuracy(row)} at {row.global_batch:,.0f}" for row in ends]
    if (diverged_batch := diverged.global_batch.max()) > best.index.max():
        accuracies.append(f"diverged at {diverged_batch:,.0f}")
    largest = best[(best.index > batch) | (best.tried > 1) | (best.origin != MEASURED)].tail(1)
    tuned = [
        f"{markdown.lr_in_words(row)} at {row.global_batch:,.0f}, {_tried(row)}" for row in markdown.records(largest)
    ]
    return [
        _rate(preferred(single)),
        _rate(preferred(multiple)),
        " / ".join(speedups) if {*speedups} != {"—"} else "",
        " → ".join(accuracies),
        "".join(tuned),
        _to_target(rows, "seconds_to_target", markdown.duration),
        _to_target(rows, "dollars_to_target", markdown.dollars),
    ]


def _tried(row: Any) -> str:
    if row.tried == 1:
        return "the only one tried"
    return f"{'chosen from' if row.chosen else 'best of'} {row.tried} tried"


def _speedup(row: Any, max_devices: float) -> str:
    """Return speed-up, efficiency and number of repeats, with the number of devices if another series has more."""
    remarks = [f"{row.speedup / row.devices:.0%}"]
    if row.origin == MEASURED:
        remarks += [f"n={row.pairs:.0f}", *_quality(row)]
    text = f"{row.speedup:.2f}x ({', '.join(remarks)})"
    return text if row.devices == max_devices else f"{text} on {row.devices:.0f}"


def _quality(row: Any) -> list[str]:
    return [remark for remark, applies in (("quick", row.quick), ("noisy", row.noisy)) if applies]


def _rate(row: Any | None) -> str:
    return "" if row is None else f"{markdown.rate(row)}, {markdown.devices(row)}"


def _to_target(rows: pd.DataFrame, column: str, form: Callable[[float], str]) -> str:
    """Return the least time or cost, an upper bound if it is published; empty if no setting reached the target."""
    row = cost.best(rows, column)
    if row is None:
        return ""
    text, is_measured = form(getattr(row, column)), row.origin == MEASURED
    if not text:
        return 'price unknown: `poc report --price "NAME=DOLLARS"`' if is_measured else "no price known"
    return ("" if is_measured else "≤ ") + ", ".join(
        [text + markdown.seeds(row, row.timed_seeds), markdown.devices(row), *_quality(row)]
    )
