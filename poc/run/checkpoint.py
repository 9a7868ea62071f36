"""Checkpoints: what a worker needs to continue a run, on disk completely or not at all.

One file per worker and step, in NumPy's format without pickled objects. Its name has the SHA-256 of its content, and
the file gets that name only when it is complete, so that a damaged one is recognised. Each worker keeps those of its
last two steps: when one worker is lost, another may be one checkpoint further.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from poc.values import value

_STORY = "story.json"


@value
class Checkpoint:
    """The state of one worker after so many optimizer steps."""

    step: int
    arrays: dict[str, np.ndarray]
    """What the framework needs: parameters, optimizer's state, batch statistics."""
    story: dict[str, Any]
    """The worker's events and clock so far, and its conditions, as plain values."""


def write(folder: Path, worker: int, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` to `folder`, on the disk when this returns, and remove this worker's outdated ones.

    Raises OSError if it cannot be written; the older ones are there then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"step": checkpoint.step, "story": checkpoint.story}, allow_nan=False)
    buffer = io.BytesIO()
    np.savez(buffer, **{_STORY: np.frombuffer(text.encode(), dtype=np.uint8), **checkpoint.arrays})
    content = buffer.getvalue()
    unfinished = folder / f"worker{worker}.unfinished"
    finished = folder / f"worker{worker}-{checkpoint.step}-{hashlib.sha256(content).hexdigest()}.npz"
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(finished)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    stored = _stored(folder, worker)
    # Files of later steps are stale, or the run would have continued from them. Another file of the same step is of an
    # interrupted attempt; it must not push out the step before.
    previous = max((step for step, _ in stored if step < checkpoint.step), default=None)
    for step, path in stored:
        if step != previous and path != finished:
            path.unlink(missing_ok=True)


def steps(folder: Path, workers: Iterable[int], conditions: Mapping[str, Any]) -> list[int]:
    """Return the steps after which each worker has a complete checkpoint in `folder`, under these conditions."""

    def usable(worker: int) -> set[int]:
        checkpoints = filter(None, (_read(path) for _, path in _stored(folder, worker)))
        return {checkpoint.step for checkpoint in checkpoints if checkpoint.story["conditions"] == conditions}

    return sorted(set.intersection(*map(usable, workers)))


def furthest(folder: Path) -> int:
    """Return the last step that has a checkpoint in `folder`, by its name; 0 for none."""
    return max((step for step, _ in _stored(folder, 0)), default=0)


def read(folder: Path, worker: int, step: int) -> Checkpoint:
    """Return a worker's checkpoint of a step; raises OSError if it is missing or damaged."""
    for stored_step, path in _stored(folder, worker):
        if stored_step == step and (checkpoint := _read(path)):
            return checkpoint
    raise OSError(f"{folder}: worker {worker} has no complete checkpoint of step {step}")


def remove(folder: Path, *, but: int | None = None) -> None:
    """Remove the checkpoints of a run except those of step `but`; harmless if there are none."""
    for path in {*folder.glob("worker*")} - {*folder.glob(f"worker*-{but}-*.npz")}:
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it does not exist, or is not empty
        folder.rmdir()


def _stored(folder: Path, worker: int) -> list[tuple[int, Path]]:
    """Return step and file of each checkpoint of a worker."""
    return [(int(path.stem.split("-")[1]), path) for path in folder.glob(f"worker{worker}-*-*.npz")]


def _read(path: Path) -> Checkpoint | None:
    """Return the checkpoint in a file; None if its content does not match its name."""
    _, step, digest = path.stem.split("-")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = dict(file)
    fields = json.loads(arrays.pop(_STORY).tobytes())
    return Checkpoint(arrays=arrays, **fields) if fields["step"] == int(step) else None
