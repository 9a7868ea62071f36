"""Runs and records for tests, through the real types, and what is compared of them.

Where nothing else is said a run is one of the reference engine's (tests/engines/reference), and takes a second or two.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np

from poc import Recipe, Synthetic
from poc.machine.hardware import Hardware
from poc.plan import plan
from poc.records.record import COMPLETED, Evaluation, Record
from poc.records.timing import Window
from poc.run import Run
from poc.train import checkpoint
from poc.train.local import Place
from poc.train.parent import execute, forget

MACHINE = Hardware(cpu="Test CPU", cores=len(os.sched_getaffinity(0)), memory_bytes=2**34, cpu_flops=2e11)
SMALL: dict[str, Any] = {
    "model": "cifar_mlp",
    "engine": "reference",
    "kind": "cpu",
    "data": Synthetic(train=640, validation=160),
    "batch_per_device": 32,
    "lr": 0.01,
    "epochs": 4,
    "window": 5,
}
GLUON: dict[str, Any] = {
    "engine": "gluon",
    "model": "cifar_resnet8_v2",
    "data": Synthetic(size=16, crop=16, train=160, validation=70),
}
"""What to add where MXNet is what is tested."""
TWO_WORKERS: dict[str, Any] = {"devices": 2, "workers": 2, "batch_per_device": 16, "exchange": "dist_sync"}


def run_of(**fields: Any) -> Run:
    """A small run on this machine, with these fields of its recipe."""
    (planned,) = plan("test", Recipe(**{**SMALL, **fields}), MACHINE)
    assert not planned.skip
    return planned.run


def recipe_file(path: Path, **fields: Any) -> Path:
    """A file with the recipe of small runs, with these fields."""
    path.write_text(f"from poc import *\n\nrecipe = Recipe(**{ {**SMALL, **fields}!r})\n")
    return path


def record_of(run: Run | None = None, **fields: Any) -> Record:
    """What a completed run might have left: windows of a second, accuracies of a half."""
    run = run or run_of()
    steps = [(epoch, run.steps_per_epoch) for epoch in range(1, run.epochs + 1)]
    windows = [
        Window(
            epoch=epoch,
            start=epoch * 2.0,
            steps=count,
            samples=count * run.total_batch,
            seconds=1.0,
            waited=0.1,
            loss=1.0,
        )
        for epoch, count in steps
    ]
    evaluations = [
        Evaluation(epoch=epoch, at=epoch * 2.0 + 1, seconds=1.0, accuracy=0.5, samples=160, loss=1.0)
        for epoch, _ in steps
    ]
    measured = {
        "run_id": run.id,
        "started": "2026-11-21T10:00:00+00:00",
        "infrastructure": "here",
        "hardware": MACHINE,
        "versions": {"numpy": "1.26.4"},
        "commit": "abcdef",
        "outcome": COMPLETED,
        "dataset": "synthetic",
        "parameters": 402_250,
        "windows": tuple(windows),
        "evaluations": tuple(evaluations),
        "parts": {"initialise": 2.0, "evaluate": float(run.epochs)},
        "wall": 2.0 + 2.0 * run.epochs,
    }
    return Record(run=run, **{**measured, **fields})


def place_in(folder: Path, **fields: Any) -> Place:
    """Where runs leave all in `folder`, with the last checkpoint of each."""
    return Place(**{"source": None, "cache": folder, "checkpoints": folder / "checkpoints", **fields})


def executed(folder: Path, *, detail: int = 0, **fields: Any) -> Record:
    """The record of a small run, done in `folder` as the command line does it."""
    run, place = run_of(**fields), place_in(folder)
    record, _ = execute(run, place, MACHINE, "here", detail=detail)
    if record.outcome == COMPLETED:
        forget(run, place)
    return record


def course(record: Record) -> tuple[list[Window], list[Evaluation]]:
    """What a run computed, without how long that took."""
    return (
        [dataclasses.replace(window, start=0.0, seconds=1.0, waited=0.0) for window in record.windows],
        [dataclasses.replace(evaluation, at=0.0, seconds=0.0) for evaluation in record.evaluations],
    )


def end_of(folder: Path, run: Run, worker: int = 0) -> dict[str, np.ndarray]:
    """Parameters and momentum after the last step of a run that was done in `folder`."""
    return checkpoint.read(folder / "checkpoints" / run.id, worker, run.steps).arrays
