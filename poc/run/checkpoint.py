"""What a worker needs to go on with a run that was cut off: on disk whole, or not at all.

One file a worker and step, of NumPy's format, without anything pickled. Its name carries the SHA-256 of what it holds,
and it gets that name only when it is complete, so that a torn or damaged one is known by its name. Of each worker those
of the last two steps are kept: when one worker is lost, another may be one checkpoint further.
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
    """One worker after so many optimizer steps."""

    step: int
    arrays: dict[str, np.ndarray]
    """What the framework needs: parameters, optimizer's state, batch statistics."""
    story: dict[str, Any]
    """What the worker has told so far and where its time went, as plain values."""


def write(folder: Path, worker: int, checkpoint: Checkpoint) -> None:
    """Writes `checkpoint` to `folder`, on the disk when this returns, and removes this worker's that are too old.

    Raises OSError where it cannot be written, or is not as it was written; the older ones are there then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = json.dumps({"step": checkpoint.step, "story": checkpoint.story}, allow_nan=False)
    buffer = io.BytesIO()
    np.savez(buffer, **{_STORY: np.frombuffer(told.encode(), dtype=np.uint8), **checkpoint.arrays})
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    unfinished = folder / f"worker{worker}.unfinished"
    finished = folder / f"worker{worker}-{checkpoint.step}-{digest}.npz"
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if hashlib.sha256(unfinished.read_bytes()).hexdigest() != digest:
            raise OSError(f"{unfinished} is not as it was written")
        unfinished.replace(finished)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    stored = _stored(folder, worker)
    # One further on was of no use when the run went on, or it would have gone on from there. One of the same step is of
    # a run that was cut off after it: it must not push out the step before.
    before = max((step for step, _ in stored if step < checkpoint.step), default=None)
    for step, path in stored:
        if step != before and path != finished:
            path.unlink(missing_ok=True)


def steps(folder: Path, workers: Iterable[int], conditions: Mapping[str, Any]) -> list[int]:
    """The steps after which each of `workers` has a whole checkpoint in `folder`, made under these conditions."""

    def usable(worker: int) -> set[int]:
        whole = filter(None, (_read(path) for _, path in _stored(folder, worker)))
        return {checkpoint.step for checkpoint in whole if checkpoint.story["conditions"] == conditions}

    return sorted(set.intersection(*map(usable, workers)))


def furthest(folder: Path) -> int:
    """The last step of which there is a checkpoint in `folder`, by its name; 0 for none."""
    return max((step for step, _ in _stored(folder, 0)), default=0)


def read(folder: Path, worker: int, step: int) -> Checkpoint:
    """What `write` wrote; raises OSError where it is not there, or no longer whole."""
    for stored_step, path in _stored(folder, worker):
        if stored_step == step and (checkpoint := _read(path)):
            return checkpoint
    raise OSError(f"{folder}: worker {worker} has no complete checkpoint of step {step}")


def remove(folder: Path, *, but: int | None = None) -> None:
    """Removes the checkpoints of a run that needs them no more, all but those of step `but`; harmless without any."""
    for path in {*folder.glob("worker*")} - {*folder.glob(f"worker*-{but}-*.npz")}:
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it is not there, or not empty
        folder.rmdir()


def _stored(folder: Path, worker: int) -> list[tuple[int, Path]]:
    """Step and file of each checkpoint of `worker`."""
    return [(int(path.stem.split("-")[1]), path) for path in folder.glob(f"worker{worker}-*-*.npz")]


def _read(path: Path) -> Checkpoint | None:
    """The checkpoint in the file; None where it is not what its name says."""
    _, step, digest = path.stem.split("-")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = dict(file)
    told = json.loads(arrays.pop(_STORY).tobytes())
    return Checkpoint(arrays=arrays, **told) if told["step"] == int(step) else None
