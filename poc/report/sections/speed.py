"""The pages of details on speed: scaling and kvstores, and models, batch sizes, frameworks and precisions."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from poc.records.record import COMPLETED, DIVERGED, OUT_OF_MEMORY
from poc.records.row import WEAK
from poc.report import markdown, repeats
from poc.report.markdown import RATE
from poc.report.page import Block, listing, of_runs, section
from poc.report.results import Results, grouped
from poc.report.table import FLOPS_RULE

_SAME_BUT_KVSTORE = (*repeats.SERIES, "devices", "batch_per_device", "kind", "straggler", "cpu_workers")
_SAME_RUN = ("workload", "length", "devices", "batch_per_device", "kind", "kvstore", "workers", "straggler")
# Without `workload`, which includes the precision, but with all else that it stands for.
_SAME_BUT_PRECISION = (
    *("machine", "hardware", "framework", "layout", "model", "dataset", "data_checksum", "input_shape", "fixed"),
    *("training_recipe", "threads", "cores_per_worker", "environment", *_SAME_RUN[1:]),
)
_MEMORY_KEYS = ("machine", "hardware", "kind", "model", "input_shape", "framework", "dtype", "layout")
_FIRST = ("machine", "model", "devices", "framework", "batch per device")


def measured(results: Results) -> list[Block]:
    """Return every measured scaling series: for each number of devices the setting with most interleaved repeats."""
    lines = []
    for kind, single, multiple in repeats.series(results.runs):
        batch, unit = repeats.BATCH_OF[kind], "per device" if kind == WEAK else "in all"
        bases = [rows for _, rows in single.groupby("setting", sort=False)]
        for _, group in multiple.groupby("devices"):
            pairs = [repeats.pair(rows, base) for _, rows in group.groupby("setting", sort=False) for base in bases]
            rows, base = max(pairs, key=lambda sides: min(map(len, sides)))
            if len(rows) and len(base):
                first = rows.head(1)
                first = first.assign(series=f"{kind}, {first[batch].iloc[0]:,.0f} {unit}, {first.length.iloc[0]}")
                (line,) = markdown.lines(first, "machine", "model, framework", "series", "kvstore", "devices")
                lines.append({**line, **_speedups(rows, base)})
    about = (
        "Weak scaling keeps the batch per device, strong scaling the global batch. Medians of interleaved repeats "
        "([method][method]); n is their number on the side with fewer. By wall time: whole runs from start to end, if "
        "both trained equally many samples."
    )
    return section("Measured series", about, markdown.table(lines))


def _speedups(rows: pd.DataFrame, base: pd.DataFrame) -> dict[str, str]:
    """Return the cells that compare repeats on several devices with those on one."""
    rates = [side.samples_per_second.median() for side in (base, rows)]
    speedup, n = rates[1] / rates[0], min(len(rows), len(base))
    samples = pd.concat([rows.samples_trained, base.samples_trained])
    is_same_work = samples.max() - samples.min() <= repeats.SAME_WORK * samples.max()
    seconds = [(side.wall_seconds / side.samples_trained).median() for side in (base, rows)]
    return {
        "samples/s, one → all": " → ".join(map(markdown.number, rates)),
        "speed-up (efficiency, n)": f"{speedup:.2f} ({speedup / rows.devices.iloc[0]:.0%}, n={n})",
        "by wall time": f"{seconds[0] / seconds[1]:.2f}" if is_same_work and pd.notna(seconds).all() else "",
    }


def _compared(
    title: str, results: Results, rows: pd.DataFrame, keys: Sequence[str], column: str, base: str
) -> list[Block]:
    """Return a section that compares settings, alike in `keys`, with the one whose `column` starts with `base`."""
    repeats_of = dict(list(results.table[results.table.outcome == COMPLETED].groupby("setting")))
    pairs = []
    for _, group in rows.groupby(list(keys), sort=False, dropna=False):
        is_base = group[column].str.startswith(base)
        for _, first in group[is_base].head(1).iterrows():
            for _, setting in group[~is_base].iterrows():
                result = repeats.compare(repeats_of[setting.setting], repeats_of[first.setting])
                ratio = (f"{result.ratio:.2f} of " if result else "") + f"{markdown.rate(first)}, {first[column]}"
                pairs.append({**setting, "ratio": ratio, "significant": str(result or "not interleaved")})
    return listing(
        title,
        f"Settings that differ only in their {column}. Ratios are those of interleaved repeats ([method][method]).",
        pd.DataFrame(pairs, columns=[*rows, "ratio", "significant"]),
        *("machine", "model" if column == "framework" else "model, framework", "devices", "batch per device"),
        *(column, RATE, (f"ratio to {base}", "ratio"), "significant"),
    )


def kvstores(results: Results) -> list[Block]:
    """Return settings that differ only in their kvstore, compared with "none", the upper bound."""
    rows = results.timed
    # Several workers on a CPU have cores of their own, which contexts of one process share.
    rows = rows.assign(cpu_workers=rows.workers.where(rows.kind == "cpu"))[rows.kvstore != ""]
    return _compared("Kvstores", results, rows, _SAME_BUT_KVSTORE, "kvstore", "none")


STEPS = of_runs(
    "Step-time breakdown",
    "A whole step, its computation alone and its synchronisation alone, in a separate pass after the training.",
    lambda runs: runs.step_seconds.notna() & runs.sync_seconds.notna() & (runs.devices > 1) & ~runs.quick,
    *("machine", "model, framework", ("devices, kvstore", lambda row: f"{markdown.devices(row)}, {row.kvstore}")),
    *("batch per device", ("step (ms)", lambda row: markdown.number(row.step_seconds * 1e3))),
    ("compute (ms)", lambda row: markdown.number(row.compute_seconds * 1e3)),
    ("sync (ms)", lambda row: markdown.number(row.sync_seconds * 1e3)),
    ("bus (GB/s)", lambda row: markdown.number(row.bus_bytes_per_second / 1e9)),
)
STALENESS = of_runs(
    "Stale-synchronous parallel",
    "A worker waits while it is further ahead of the slowest one than the staleness bound (Ho et al. 2013).",
    lambda runs: runs.staleness_max.notna() & (runs.outcome == COMPLETED) & ~runs.quick,
    *("machine", "model", "devices", "kvstore", ("samples/s", "samples_per_second")),
    ("steps ahead, mean (max)", lambda row: f"{row.staleness_mean:.2f} ({row.staleness_max:.0f})"),
    "accuracy",
)


def models_and_batches(results: Results) -> list[Block]:
    """Return every model on one device (a CPU with all its cores) with one fixed batch, and samples/s by batch size."""
    rows = results.timed.sort_values(["elsewhere", "model", "batch_per_device"], kind="stable")
    rows = rows[(rows.devices == 1) & rows.cores_per_worker.isna()]
    fixed = f"One fixed batch in device memory, so no input pipeline. FLOP/s: {FLOPS_RULE}. MFU: see [method][method]."
    gflops = ("GFLOP/s", lambda row: markdown.number(row.flops / 1e9))
    mfu = ("MFU", lambda row: markdown.formatted(row.mfu, ".0%"))
    keys = ["workload", "framework", "layout", "length", "kind"]
    # The learning rate does not matter for speed: the setting with most repeats stands for its batch size.
    sizes = rows[~rows.fixed].drop_duplicates([*keys, "batch_per_device"]).groupby(keys, sort=False)
    compared = pd.concat([rows.head(0), *(group for _, group in sizes if len(group) > 1)])
    pipeline = "One device, with the whole input pipeline. Training recipes: see [learning rate][learning_rate]."
    return [
        *listing("Models", fixed, rows[rows.fixed], *_FIRST, RATE, gflops, mfu),
        *listing("Batch sizes", pipeline, compared, *_FIRST, RATE, "training recipe", "length"),
    ]


def frameworks_and_precisions(results: Results) -> list[Block]:
    """Return runs that differ only in framework and layout, compared with MXNet, or in precision, with float32."""
    rows = results.timed
    return [
        *_compared("Frameworks", results, rows, _SAME_RUN, "framework", "MXNet"),
        *_compared("Precisions", results, rows, _SAME_BUT_PRECISION, "dtype", "float32"),
    ]


def largest_batch(results: Results) -> list[Block]:
    """Return the largest batch that fitted on one device and the smallest that ran out of memory."""
    rows = results.runs[~results.runs.emulated & (results.runs.devices == 1)]
    fitted = rows.batch_per_device.where(rows.outcome.isin([COMPLETED, DIVERGED]))
    failed = rows.batch_per_device.where(rows.outcome == OUT_OF_MEMORY)
    rows = grouped(rows.assign(fitted=fitted, failed=failed), _MEMORY_KEYS, fitted="max", failed="min")
    return listing(
        "Largest batch",
        "Of models that ran out of memory on one device.",
        rows[rows.failed.notna()],
        *_FIRST[:4],
        ("largest batch that fitted", lambda row: markdown.count(row.fitted) or "none"),
        ("smallest that ran out of memory", lambda row: markdown.count(row.failed)),
    )


SCALING = (measured, kvstores, STEPS, STALENESS)
MODELS = (models_and_batches, frameworks_and_precisions, largest_batch)
