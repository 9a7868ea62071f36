"""The columns of rows.csv and of a study's file; docs/columns.md has their meanings and units."""

from __future__ import annotations

import dataclasses
from typing import Any, Union

MEASURED, PUBLISHED = "measured", "published"
WEAK, STRONG = "weak", "strong"  # what a scaling series keeps: the batch per device, or the global batch

# None if unknown. `Any` lets arithmetic follow a check that the type checker cannot see, in another function.
Count = Union[int, Any]
Measure = Union[float, Any]


@dataclasses.dataclass(eq=False)
class Row:
    """A published result; its fields are columns of rows.csv, which measured rows have, too."""

    origin: str = ""
    study: str = ""
    kind: str = ""
    machine: str = ""
    hardware: str = ""
    hosts: Count = None
    framework: str = ""
    model: str = ""
    parameters: Count = None
    dataset: str = ""
    input_shape: str = ""
    batch_per_device: Count = None
    global_batch: Count = None
    lr: Measure = None
    devices: Count = None
    kvstore: str = ""
    dtype: str = ""
    layout: str = ""
    epochs: Count = None
    accuracy: Measure = None
    seconds_per_epoch: Measure = None
    samples_per_second: Measure = None
    spread: Measure = None
    windows: Count = None
    utilisation: Measure = None
    scaling: str = ""
    speedup_throughput: Measure = None
    speedup_wall: Measure = None
    efficiency_throughput: Measure = None
    efficiency_wall: Measure = None
    train_seconds_per_5120: Measure = None
    communication_seconds_per_5120: Measure = None
    sync_seconds_per_5120: Measure = None
    note: str = ""
    printed: str = ""
    flag: str = ""
    contradicts: str = ""


# The other columns, by type.
_OF_RUNS = {
    "str": (
        *("run_id", "setting", "workload", "cpu", "driver", "environment", "commit", "data_checksum", "recipe"),
        *("started", "outcome", "reason", "length", "measurement", "lr_rule", "schedule", "training_recipe"),
        *("accuracy_on", "options"),
        *("accuracy_by_epoch", "seconds_by_epoch", "price_source", "search", "test_runs"),
    ),
    "bool": ("emulated", "fixed", "baseline", "quick", "at_chance", "noisy", "chosen"),
    "Count": (
        *("cores", "workers", "cores_per_worker", "threads", "fewer_threads", "seed", "repeat", "steps"),
        *("samples_trained", "host_peak_bytes", "device_peak_bytes", "device_reserved_bytes", "candidates"),
    ),
    "Measure": (
        *("accuracy_last4", "target_accuracy", "wall_seconds", "initialise_seconds", "warmup_seconds"),
        *("train_seconds", "data_seconds", "evaluate_seconds", "checkpoint_seconds", "rest_seconds", "data_wait"),
        *("speedup_without_sync", "step_seconds", "compute_seconds", "sync_seconds", "bus_bytes_per_second"),
        "issue_seconds",
        *("multiply_adds", "flops", "peak_flops", "mfu", "joules_per_sample", "straggler", "staleness_mean"),
        *("staleness_max", "noise_scale", "noise_low", "noise_high"),
        *("dollars_per_hour", "given_dollars_per_hour", "dollars_per_run"),
    ),
}
COLUMNS = {field.name: str(field.type) for field in dataclasses.fields(Row)}  # type of each column, by name
COLUMNS.update((name, kind) for kind, names in _OF_RUNS.items() for name in names)
COUNTS = tuple(name for name, kind in COLUMNS.items() if kind == "Count")
NUMBERS = tuple(name for name, kind in COLUMNS.items() if kind in ("Count", "Measure"))


def rate(row: Row) -> float | None:
    """Return the printed samples/s, else those of the seconds per 5,120 images, synchronisation included."""
    parts = (row.train_seconds_per_5120, row.communication_seconds_per_5120, row.sync_seconds_per_5120)
    if row.samples_per_second is not None or not parts[0]:
        return row.samples_per_second
    return 5120 / sum(filter(None, parts))
