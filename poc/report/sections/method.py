"""The page on how it was measured: rules, machines, wall time, memory, prices and failed runs."""

from __future__ import annotations

import pandas as pd

from poc.records import timing
from poc.records.record import BUSY_SHARE, COMPLETED, SKIPPED
from poc.report import markdown, repeats
from poc.report.page import Block, Section, listing, of_runs, section
from poc.report.results import Results, grouped
from poc.report.table import FLOPS_RULE, TRAINING

_PARTS = {
    **{"initialise": "start", "warmup": "warm-up", "train": "training", "data": "wait for data"},
    **{"evaluate": "evaluation", "checkpoint": "checkpoints", "rest": "rest"},
}
"""Parts of the wall time, and how the page calls them."""
_RULES = f"""## Rules

- The clock is read only between windows: a number of steps after which all work of the devices has finished. A run's
  samples/s are the median over windows after warm-up, waiting for data included. Warm-up: {timing.WARMUP_RULE}.
- A repeat is one run in processes of its own. Repeats of a setting differ only in the seed: what they compute, machine,
  framework version, images and environment are the same. Tables show the median over repeats of one setting.
- A burst is cut by steps or seconds to measure throughput, a training ends with an epoch. They are never pooled.
- A repeat is noisy if other processes, or other machines on the same hardware, took more than {BUSY_SHARE:.0%} of the
  cores that it could use. Noisy repeats count only if all are noisy.
- Repeats are interleaved if they started within an hour of one on the other side. A ratio is significant if its
  {repeats.CONFIDENCE:.0%} interval (Welch's t on logarithms) excludes 1, with {repeats.MIN_REPEATS} on each side.
- FLOP/s: {FLOPS_RULE}. MFU: share of the FLOP/s
  of a product of large matrices on the same devices in the same precision, the best of all runs on that machine.
- Accuracy is that of the test set, each image once, after the last epoch.
- Emulated devices: one device computes the micro-batches of all and sums their gradients; each has its own batch
  statistics. The accuracy is that of real devices; the speed is in no table.
- `cifar10` are the original images, `cifar10 (jpeg)` JPEG copies, on which the main study's own script also stays below
  what it printed. `synthetic` images are generated and serve for speed alone.
- Dollars are on-demand prices of whole instances."""


def machines(results: Results) -> list[Block]:
    """Return each machine with its hardware, driver, frameworks and the days of its runs."""
    rows = results.runs[results.runs.outcome != SKIPPED]
    rows = rows.assign(GPUs=rows.hardware.mask(rows.hardware.str.startswith("CPU"), ""), runs=1)
    aggregations = {"started": markdown.days, "runs": "sum", "cores": "max", "commit": "nunique"}
    rows = grouped(rows, ["machine", "GPUs", "cpu", "driver"], framework=_distinct, **aggregations)
    return listing(
        "Machines",
        "",
        rows,
        *(("machine", "machine"), "GPUs", ("CPU (cores)", lambda row: f"{row.cpu} ({row.cores:.0f})")),
        *("driver", ("frameworks", "framework"), ("commits", "commit"), "runs", ("days", "started")),
    )


def _distinct(names: pd.Series[str]) -> str:
    return ", ".join(sorted({*names} - {""}))


def wall_time(results: Results) -> list[Block]:
    """Return how the wall time of completed trainings divides into parts, by machine, model and devices."""
    rows = results.runs
    rows = rows[(rows.outcome == COMPLETED) & (rows.length == TRAINING) & ~rows.quick & rows.rest_seconds.notna()]
    shares = pd.DataFrame({title: rows[f"{part}_seconds"] / rows.wall_seconds for part, title in _PARTS.items()})
    labels = [", ".join(filter(None, line.values())) for line in markdown.lines(rows, "machine", "model", "devices")]
    lines = [
        {"trainings (n)": f"{name} ({len(group)})", **{part: f"{share:.0%}" for part, share in group.median().items()}}
        for name, group in shares.groupby(pd.Series(labels, shares.index, dtype=str), sort=False)
    ]
    about = "Parts of the wall time from the start of a run's processes to their end, medians over n trainings."
    return section("Where the wall time went", about, markdown.table(lines))


def memory(results: Results) -> list[Block]:
    """Return memory, utilisation and energy by model, framework, devices and batch; on CPUs for the largest batch."""
    rows = results.runs
    rows = rows[(rows.outcome == COMPLETED) & ~rows.quick & ~rows.emulated]
    keys = ["machine", "model", "fixed", "framework", "dtype", "kind", "devices", "workers"]
    is_largest = rows.batch_per_device == rows.groupby(keys).batch_per_device.transform("max")
    how = dict(host_peak_bytes="max", device_peak_bytes="max", utilisation="median", joules_per_sample="median")
    return listing(
        "Memory and energy",
        "Peak memory of all processes and of one device; energy of all devices after warm-up, without the host.",
        grouped(rows[is_largest | (rows.kind == "gpu")], [*keys, "batch_per_device"], **how),
        *("machine", "model, framework", "devices", "batch per device"),
        ("host (GiB)", lambda row: markdown.number(row.host_peak_bytes / 2**30)),
        ("device (GiB)", lambda row: markdown.number(row.device_peak_bytes / 2**30)),
        *(("utilisation", lambda row: markdown.formatted(row.utilisation, ".0%")), ("J/sample", "joules_per_sample")),
    )


def prices(results: Results) -> list[Block]:
    """Return the prices that costs are computed with."""
    rows = results.table[results.table.dollars_per_hour.notna()]
    rows = rows.assign(machine=list(map(markdown.machine, markdown.records(rows))))
    return listing(
        "Prices",
        "Sources: `poc/published/prices.csv`. `--price NAME=DOLLARS` sets the price of a machine.",
        rows.drop_duplicates(["machine", "dollars_per_hour", "price_source"]),
        *(("machine", "machine"), ("instance $/h", lambda row: markdown.dollars(row.dollars_per_hour))),
        ("price of", "price_source"),
    )


FAILED = of_runs(
    "Failed runs",
    "",
    lambda runs: ~runs.outcome.isin([COMPLETED, SKIPPED]),
    *("machine", "model", "devices", "batch per device", ("recipe", lambda row: row.recipe.rsplit("/", 1)[-1])),
    *(("day", lambda row: row.started[:10]), "outcome", "reason"),
)
SECTIONS: tuple[Section, ...] = (lambda results: [_RULES], machines, wall_time, memory, prices, FAILED)
