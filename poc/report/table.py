"""The table behind every page and rows.csv: one row per record and one per published result.

Every page is made from it alone: the table that `build` returns and its copy in rows.csv give the same pages. Unknown
texts are empty, unknown numbers NaN.
"""

import hashlib
import itertools
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from poc import frameworks, search
from poc.config import networks
from poc.config.run import Run
from poc.host.hardware import one_host
from poc.published import Study
from poc.published.prices import GIVEN, Price, Prices, load
from poc.records.record import COMPLETED, FAILED, SKIPPED, Record, last_result
from poc.records.row import COLUMNS, COUNTS, MEASURED, NUMBERS, Row, rate
from poc.report import repeats

TRAINING, BURST, PAUSED = "training", "burst", "paused"
"""Length classes: whole epochs, a run cut by steps or seconds to measure throughput, or a candidate that a search has
paused. They are never pooled."""
FLOPS_RULE = "6 x multiply-adds x samples/s: two operations each, once forward and twice backward"

_FLAGS = [name for name, kind in COLUMNS.items() if kind == "bool"]
_TEXTS = [name for name, kind in COLUMNS.items() if kind == "str"]

_OF_RUN = (
    *("model", "global_batch", "batch_per_device", "lr_rule", "devices", "emulated", "workers", "dtype", "layout"),
    *("options", "seed", "kind", "recipe", "quick", "target_accuracy", "training_recipe"),
    *("straggler", "measurement"),
)
_OF_RECORD = (
    *("parameters", "dataset", "outcome", "reason", "started", "data_checksum", "threads", "fewer_threads"),
    *("commit", "at_chance", "joules_per_sample", "peak_flops"),
)
_OF_HARDWARE = ("cpu", "cores", "driver", "hosts")
# Fields of a run that differ within a scaling series, or that only set its length.
_NOT_OF_WORKLOAD = (
    *("framework", "layout", "devices", "emulated", "batch_per_device", "global_batch", "kvstore", "workers"),
    *("straggler", "learning_rate", "lr_rule", "warmup_from", "warmup_steps", "decay", "decay_at", "decay_factor"),
    *("seed", "epochs", "steps", "steps_per_epoch", "window", "seconds", "evaluate", "quick", "target_accuracy"),
    "restarts",
)


def build(records: Sequence[Record], studies: Iterable[Study], prices: Prices) -> pd.DataFrame:
    """Return the table of all `records` and all published rows, in an order that does not depend on theirs.

    Range tests are left out: neither their speed nor their accuracy is a result.
    """
    records = [record for record in records if not record.run.is_range_test]
    rows = [_measured(record) for record in records]
    _add_choices(rows, records)
    _name_versions(rows, records)
    rows += [_published(row) for study in studies for row in study.rows]
    table = _without_superseded(_typed(pd.DataFrame(rows, columns=list(COLUMNS)))).copy()
    _add_peaks(table)
    order = ["model", "global_batch", "batch_per_device", "lr", "devices", "emulated", "quick", "seed", "started"]
    measured = table[table.origin == MEASURED].sort_values(["machine", *order, "run_id"], kind="stable")
    table = pd.concat([measured, table[table.origin != MEASURED]], ignore_index=True)
    started = table.sort_values("started", kind="stable")
    table["repeat"] = started[started.origin == MEASURED].groupby("setting").cumcount() + 1
    _add_prices(table, prices)
    repeats.add_speedups(table)
    return table


def write(table: pd.DataFrame) -> str:
    """Return the text of rows.csv: ten significant digits, empty if a value is unknown."""
    with_counts = table.astype(dict.fromkeys(COUNTS, "Int64"))
    return str(with_counts.to_csv(index=False, float_format="%.10g", lineterminator="\n"))


def read(path: Path) -> pd.DataFrame:
    # A machine may be called "NA".
    return _typed(pd.read_csv(path, dtype=dict.fromkeys(_TEXTS, str), keep_default_na=False, na_values=[""]))


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    # A column without any value is one of numbers, which pandas 4 will not fill with text.
    table[_TEXTS] = table[_TEXTS].astype(object).fillna("").astype(str)
    table[_FLAGS] = table[_FLAGS].eq(True)
    table[[*NUMBERS]] = table[[*NUMBERS]].astype(float)
    return table.copy()  # its columns side by side in memory, else each selection of rows is slow


def _published(row: Row) -> dict[str, Any]:
    values = vars(row)
    key = (row.model, row.dataset.startswith("cifar"))
    registered = [each.name for each in networks.NETWORKS.values() if (each.study_name, each.classes == 10) == key]
    return {
        **values,
        "model": registered[0] if row.model and len(registered) == 1 else row.model,
        "setting": _hash(*values.values()),
        "length": TRAINING if row.epochs or row.seconds_per_epoch else "",
        "baseline": True,
        "straggler": 0.0,
        "samples_per_second": rate(row),
    }


def _name_versions(rows: Sequence[dict[str, Any]], records: Sequence[Record]) -> None:
    """Add the start of its hash to the name of a model whose file has changed since; the latest keeps its name."""
    latest = {record.run.model: record.run.model_hash for record in sorted(records, key=lambda record: record.started)}
    for row, record in zip(rows, records):
        if record.run.model_hash != latest[record.run.model]:
            row["model"] += f"@{record.run.model_hash[:6]}"


def _add_choices(rows: Sequence[dict[str, Any]], records: Sequence[Record]) -> None:
    """Fill in `search` of candidates, `chosen` and `test_runs` of what a search chose, `candidates` of its test run.

    A run that a search needs is its candidate whatever it was trained for: this search, another one, or none. Records
    of another version count in a search that goes on. What a search chose, a later one of other rates replaces.
    """
    of_runs: dict[Any, dict[str, list[tuple[Any, Record]]]] = defaultdict(lambda: defaultdict(list))
    searches: dict[Any, dict[tuple[Any, ...], Run]] = {}
    for row, record in sorted(zip(rows, records), key=lambda pair: pair[1].started):
        run, conditions = record.run, (row["machine"], record.data_id, row["environment"])
        of_runs[conditions][run.id].append((row, record))
        if run.search and run.tunes:
            key = conditions, search.identity(run), run.search, run.seed
            batches = searches[key] = searches.pop(key, {})  # the latest search comes last
            batch = run.global_batch, run.devices, run.batch_per_device, run.workers, run.kvstore_label
            batches[batch] = run  # the latest: what `identity` leaves out may have changed
    found: dict[Any, list[Any]] = defaultdict(list)
    for (conditions, identity, rates, seed), batches in searches.items():
        name = _hash(*conditions, f"{identity} {rates!r}")
        candidates = [search.candidates(batches[batch]) for batch in sorted(batches)]
        for global_batch, chosen in _add_choices_of(name, candidates, of_runs[conditions]):
            replaced = found[conditions, identity, seed, global_batch]
            for row in replaced:
                row["chosen"] = row in chosen
            replaced[:] = chosen


def _add_choices_of(
    name: str, batches: list[list[Run]], of_run: Mapping[str, list[tuple[Any, Record]]]
) -> Iterator[tuple[int, list[Any]]]:
    """Fill in the rows of one search with one seed, `of_run` by the runs' ids.

    Yield each global batch with the rows of the training on the test set that was chosen.
    """

    def result_of(run: Run) -> search.Result | None:
        return last_result([record for _, record in of_run.get(run.id, [])])

    def completed(run: Run) -> list[Any]:
        return [row for row, record in of_run.get(run.id, []) if record.outcome == COMPLETED]

    winners: list[Run] = []
    for candidates in batches:
        count = len(candidates)
        for run in itertools.chain(*(stage.runs for stage in search.climb(candidates, result_of))):
            for row, _ in of_run.get(run.id, []):
                row.update(search=f"{row.get('search', '')} {name}:{count}".strip(), candidates=count)
        if winner := search.chosen(candidates, result_of):
            # The smallest batch may not have been part of the command that trained with the rates of the rules.
            bases: list[Run | None] = [base for base in winners if base.global_batch < winner.global_batch]
            choices = [search.trainings(winner, base) for base in bases or [None]]
            trained = [runs for runs in choices if all(run.id in of_run for run in runs.values())]
            test_runs = [*trained, *choices][0]
            ids = " ".join(f"{name}:{kind}:{run.id}" for kind, run in test_runs.items())
            for row in completed(winner):
                row.update(chosen=True, test_runs=f"{row.get('test_runs', '')} {ids}".strip())
            chosen = completed(test_runs[search.FOUND])
            for row in chosen:
                row.update(chosen=True, candidates=count)
            yield winner.global_batch, chosen
            winners.append(winner)


def _without_superseded(table: pd.DataFrame) -> pd.DataFrame:
    """Drop failed and skipped runs that completed later on the same machine and images."""
    keys = ["machine", "hardware", "run_id", "data_checksum"]
    completed = table[table.outcome == COMPLETED]
    # A skipped run opened no images, so that a completed one on any images supersedes it.
    last = pd.concat([completed, completed.assign(data_checksum="")]).groupby(keys).started.max()
    superseded_by = table.join(last.rename("completed"), on=keys).completed.fillna("")
    return table[~table.outcome.isin([FAILED, SKIPPED]) | (table.started > superseded_by)]


def _add_peaks(table: pd.DataFrame) -> None:
    """Fill in the peak FLOP/s and the MFU; the peak is the best matrix product of any run on the same devices."""
    cores = table.cores_per_worker.fillna(table.fewer_threads).fillna(table.cores) * table.workers
    on_cpu = table.kind == "cpu"
    hardware, units = table.hardware.mask(on_cpu, table.cpu), table.devices.mask(table.emulated, 1).mask(on_cpu, cores)
    alike = ["machine", "kind", "dtype", "environment", hardware, units]
    best = table.groupby(alike, dropna=False).peak_flops.transform("max")
    table["peak_flops"] = best.where(table.samples_per_second.notna() & (best > 0) & (table.origin == MEASURED))
    table["mfu"] = table.flops / table.peak_flops


def _measured(record: Record) -> dict[str, Any]:
    run, machine = record.run, record.hardware
    epochs = [evaluation.epoch for evaluation in record.evaluations]
    accuracies = [evaluation.accuracy for evaluation in record.evaluations]
    trained = {epoch: sum(window.seconds for window in record.windows if window.epoch <= epoch) for epoch in epochs}
    used = [device.utilisation for device in record.devices if device.utilisation is not None]
    framework, hardware = frameworks.label(run.framework, record.versions), machine.describe()
    package = frameworks.package(run.framework, record.versions)  # MXNet's builds have one version
    environment = " ".join(f"{name}={value}" for name, value in (record.environment or {}).items())
    # An unknown environment differs from an empty one.
    where = record.infrastructure, hardware, machine.cpu, machine.cores
    conditions = (*where, record.data_id, environment, record.environment is None)
    of_one_host = [one_host(str(each)) for each in conditions]  # a series goes on over several hosts
    workload = run if run.kind == "cpu" else replace(run, cores_per_worker=None)  # on GPUs it follows their number
    return {
        **{name: getattr(run, name) for name in _OF_RUN},
        **{name: getattr(record, name) for name in _OF_RECORD},
        **{name: getattr(machine, name) for name in _OF_HARDWARE},
        "origin": MEASURED,
        "run_id": run.id,
        "machine": record.infrastructure,
        "hardware": hardware,
        "framework": framework,
        "lr": run.learning_rate,
        "input_shape": "x".join(map(str, run.data.input_shape)),
        "kvstore": run.kvstore_label if run.synchronises else "",
        "cores_per_worker": workload.cores_per_worker,
        "setting": _hash(*conditions, record.fewer_threads, framework, package, run.fingerprint("seed")),
        "workload": _hash(*of_one_host, record.fewer_threads, workload.fingerprint(*_NOT_OF_WORKLOAD)),
        "length": _length(run),
        "baseline": run.is_baseline,
        "schedule": run.schedule_label,
        "fixed": run.data.fixed,
        "environment": environment,
        "accuracy": accuracies[-1] if accuracies else None,
        "accuracy_last4": statistics.fmean(accuracies[-4:]) if len(accuracies) >= 4 else None,
        "accuracy_on": "" if not run.evaluate else "validation split" if run.uses_validation_split else "test set",
        "accuracy_by_epoch": " ".join(f"{epoch}:{accuracy:.10g}" for epoch, accuracy in zip(epochs, accuracies)),
        "seconds_by_epoch": " ".join(f"{epoch}:{trained[epoch]:.6g}" for epoch in trained),
        "wall_seconds": record.wall,
        **{f"{part}_seconds": seconds for part, seconds in (record.split() or {}).items()},
        **record.speeds,
        **record.breakdown,
        **record.noise,
        "staleness_mean": statistics.fmean(record.steps_ahead) if record.steps_ahead else None,
        "staleness_max": max(record.steps_ahead, default=None),
        "noisy": record.is_noisy,
        **vars(record.memory),
        "utilisation": statistics.fmean(used) if used else None,
        "given_dollars_per_hour": record.price_per_hour,
        "note": "; ".join(record.notes),
    }


def _length(run: Run) -> str:
    if run.pause_after:
        return PAUSED
    return TRAINING if run.steps == run.epochs * run.steps_per_epoch and run.seconds is None else BURST


def _hash(*values: Any) -> str:
    return hashlib.sha256(json.dumps([*map(str, values)]).encode()).hexdigest()[:10]


def _add_prices(table: pd.DataFrame, prices: Prices) -> None:
    """Fill in $/h of whole instances: what the user gave now, what the run recorded, else the price list."""
    hourly_prices, listed = [], load({})
    columns = table.machine, table.hardware, table.hosts, table.given_dollars_per_hour
    for machine, hardware, hosts, recorded in zip(*columns):
        unnumbered = re.sub(r" \(\d+\)$", "", machine)
        price = prices.of(machine, hardware) or prices.of(unnumbered, hardware)
        if price is None and (each := prices.of(one_host(machine), one_host(hardware))):
            dollars_per_hour = hosts * each.dollars_per_hour
            price = replace(each, machine=f"{hosts:.0f}x {each.machine}", dollars_per_hour=dollars_per_hour)
        # A price that was given now for another machine with this hardware is not this one's.
        names = (machine, f"{hosts:.0f}x {one_host(machine)}")
        if price and price.source == GIVEN and price.machine not in names and price.machine in {*table.machine}:
            price = listed.of(unnumbered, hardware)
        if pd.notna(recorded) and (price is None or price.source != GIVEN or price.machine not in names):
            price = Price(machine=machine, dollars_per_hour=recorded, source=GIVEN)
        hourly_prices.append(price or Price(machine=machine, dollars_per_hour=math.nan))
    table["dollars_per_hour"] = [price.dollars_per_hour for price in hourly_prices]
    table["price_source"] = [
        f"{price.machine}, {price.date}" if price.date else price.source for price in hourly_prices
    ]
    seconds = table.wall_seconds.fillna(table.epochs * table.seconds_per_epoch)
    is_priced = (table.length == TRAINING) & ~table.emulated
    table["dollars_per_run"] = (seconds * table.dollars_per_hour / 3600).where(is_priced)
