"""Runs and records for tests, through the real types, and what is compared of them.

By default a run is one of the reference framework (tests/frameworks/reference), and takes a second or two.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poc import Recipe, Synthetic
from poc.config.run import Run
from poc.host.hardware import Hardware
from poc.plan import plan
from poc.published import Study
from poc.published.prices import load
from poc.records import journal
from poc.records.record import COMPLETED, Evaluation, Record
from poc.records.timing import Window
from poc.run import checkpoint
from poc.run.launcher import LocalLauncher, RunContext
from poc.run.parent import execute
from poc.values import from_plain

if TYPE_CHECKING:
    import pandas as pd

MACHINE = Hardware(cpu="Test CPU", cores=len(os.sched_getaffinity(0)), memory_bytes=2**34, cpu_flops=2e11)
TEST_CPU = {"cpu": "Test", "cores": 2, "memory_bytes": 2**34, "cpu_flops": 1e11}
AUGMENTED = {"name": "cifar10", "crop": 28, "pad": 4, "mirror": True, "jitter": True}
"""The images of the main study, with its augmentation, as a record has them."""
SMALL: dict[str, Any] = {
    "model": "cifar_mlp",
    "framework": "reference",
    "kind": "cpu",
    "data": Synthetic(train=640, validation=160),
    "batch_per_device": 32,
    "lr": 0.01,
    "epochs": 4,
    "window": 5,
}
GLUON: dict[str, Any] = {
    "framework": "mxnet",
    "model": "cifar_resnet8_v2",
    "data": Synthetic(size=16, crop=16, train=160, validation=70),
}
"""What to add where MXNet is what is tested."""
TWO_WORKERS: dict[str, Any] = {"devices": 2, "workers": 2, "batch_per_device": 16, "kvstore": "dist_sync"}


def run_of(**fields: Any) -> Run:
    """A small run on this machine, with these fields of its recipe."""
    (planned,) = plan("test", Recipe(**{**SMALL, **fields}), MACHINE)
    assert not planned.skip
    return planned.run


def recipe_file(path: Path, **fields: Any) -> Path:
    """A file with the recipe of small runs, with these fields."""
    path.write_text(f"from poc import *\n\nrecipe = Recipe(**{ {**SMALL, **fields}!r})\n")
    return path


def record_of(
    *,
    epoch_seconds: Sequence[float] = (6.0, 4.0, 4.0, 4.0, 4.0, 4.0),
    accuracies: Sequence[float] = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75),
    **changes: Any,
) -> Record:
    """Six epochs of 10 steps of 128 samples, on one CPU: 4 s an epoch (a tenth of it waiting), the first 6 s.

    `changes` are fields of a record in its plain form, `run` some of those of its run.
    """
    run: dict[str, Any] = dict(recipe="cifar10_resnet50", model="cifar_resnet50_v2", framework="mxnet", kind="cpu")
    run.update(data=AUGMENTED, evaluate=True)
    run.update(devices=1, emulated=False, batch_per_device=128, global_batch=128, kvstore="device", seed=0, quick=False)
    run.update(lr_rule="fixed", learning_rate=0.05, warmup_from=0.0, warmup_steps=0)
    run.update(epochs=6, steps_per_epoch=10, steps=60, window=10)
    run.update(changes.pop("run", {}))
    plain: dict[str, Any] = dict(run_id="0123456789", run=run, started="2026-11-21T10:00:00+00:00", commit="abcdef")
    plain.update(infrastructure="test machine", hardware=TEST_CPU, outcome="completed", dataset="cifar10")
    plain.update(versions={"mxnet": "1.9.1", "python": "3.11.7", "numpy": "1.26.4"}, parameters=758621)
    work = {"steps": run["steps_per_epoch"], "samples": run["steps_per_epoch"] * run["global_batch"], "loss": 1.0}
    windows, evaluations, at = [], [], 3.0
    for epoch, seconds in enumerate(epoch_seconds, start=1):
        windows.append({"epoch": epoch, "start": at, **work, "seconds": seconds, "waited": seconds / 10})
        at += seconds
        if epoch <= len(accuracies):
            measured = {"accuracy": accuracies[epoch - 1], "samples": 9000}
            evaluations.append({"epoch": epoch, "at": at, "seconds": 1.0, **measured})
        at += 1
    plain.update(windows=windows, evaluations=evaluations, wall=at + 0.5, memory={"host_peak_bytes": 2**30})
    plain.update(parts={"initialise": 3.0, "evaluate": float(len(epoch_seconds))}, others_busy_cores=0.01)
    plain.update(changes)
    return from_plain(Record, plain)


SAMPLES = 1280
"""Samples of an epoch of `record_of`: samples/s are these over the seconds of an epoch."""


def repeats_of(epoch_seconds: Iterable[float], *, hour: int = 10, **changes: Any) -> list[Record]:
    """Return a repeat per duration of an epoch, with these changes; they start five minutes apart, first at `hour`."""
    return [
        record_of(epoch_seconds=[seconds] * 6, started=f"2026-11-21T{hour:02}:{5 * number:02}:00+00:00", **changes)
        for number, seconds in enumerate(epoch_seconds)
    ]


def build(*records: Record, studies: Sequence[Study] = (), **prices: float) -> pd.DataFrame:
    """Return the table of these records and studies, with prices of the list and others by the machine's name."""
    from poc.report import table  # pandas and matplotlib, for which the processes of workers need not wait

    return table.build(records, studies, load(prices))


def add(results: Path, *records: Record) -> None:
    """Append records to the journals of their machines in a folder of results."""
    for record in records:
        journal.append(journal.folder(results, record.infrastructure) / journal.FILE, record)


def place_in(folder: Path, **fields: Any) -> RunContext:
    """Where runs leave all in `folder`, with the last checkpoint of each."""
    usual = {"machine": MACHINE, "infrastructure": "here", "source": None, "cache": folder}
    return RunContext(**{**usual, "checkpoints": folder / "checkpoints", **fields})


def executed(folder: Path, *, detail: int = 0, **fields: Any) -> Record:
    """The record of a small run, done in `folder` as the command line does it."""
    run, place = run_of(**fields), place_in(folder)
    record, _ = execute(run, place, detail=detail)
    if record.outcome == COMPLETED:
        LocalLauncher(place).forget(run)
    return record


def course(record: Record) -> tuple[list[Window], list[Evaluation]]:
    """What a run computed, without how long that took."""
    return (
        [dataclasses.replace(window, start=0.0, seconds=1.0, waited=0.0) for window in record.windows],
        [dataclasses.replace(evaluation, at=0.0, seconds=0.0) for evaluation in record.evaluations],
    )


def end_of(folder: Path, run: Run, worker: int = 0) -> dict[str, np.ndarray]:
    """Parameters and momentum after the last step of a run that was done in `folder`."""
    (own,) = (folder / "checkpoints").glob(f"*{run.id}")
    return checkpoint.read(own, worker, run.steps).arrays
