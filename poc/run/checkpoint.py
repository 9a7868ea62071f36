"""Checkpoints: what a worker needs to continue a run, on disk completely or not at all.

One file per worker and step, in NumPy's format without pickled objects: a zip file, whose checksums tell if it is
damaged. It gets its name only when it is complete. Each worker keeps those of its last two steps: when one worker is
lost, another may be one checkpoint further.
"""

import contextlib
import fcntl
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from poc.values import UserError, value, write_atomically

_STORY = "story.json"


@value
class Checkpoint:
    """The state of one worker after so many optimizer steps."""

    step: int
    arrays: dict[str, np.ndarray]  # what the framework needs: parameters, optimizer's state, batch statistics
    story: dict[str, Any]  # the worker's events and clock so far, its attempt and conditions, as plain values


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Claim the checkpoints in `folder` for one attempt of a run; raises UserError if another command has them.

    A copy of a folder of results has the same checkpoints, and the disk of the journal's lock may have no locks.
    """
    with contextlib.ExitStack() as descriptors:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptors.callback(os.close, descriptor := os.open(folder, os.O_RDONLY))
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"checkpoints: another process is using {folder}; wait, or use another --results") from None
        except OSError:  # nothing can be written there, or the file system has no locks
            pass
        yield


def write(folder: Path, worker: int, checkpoint: Checkpoint, previous: int) -> None:
    """Write `checkpoint` to `folder`, on the disk when this returns; remove this worker's others, but step `previous`.

    Others may be of later steps that other workers did not reach. Raises OSError if it cannot be written; all are there
    then.
    """
    text = json.dumps({"step": checkpoint.step, "story": checkpoint.story}, allow_nan=False)
    buffer = io.BytesIO()
    np.savez(buffer, **{_STORY: np.frombuffer(text.encode(), dtype=np.uint8), **checkpoint.arrays})
    write_atomically(folder / f"worker{worker}-{checkpoint.step}.npz", buffer.getbuffer())
    for step, path in stored_steps(folder, worker).items():
        if step not in (previous, checkpoint.step):
            path.unlink(missing_ok=True)


def steps(folder: Path, workers: Iterable[int], conditions: Mapping[str, Any]) -> set[tuple[int, str]]:
    """Return the steps after which each worker has a complete checkpoint in `folder`, under these conditions.

    With each step is the attempt that wrote its checkpoints: those of two attempts are replicas that differ.
    """

    def usable(worker: int) -> set[tuple[int, str]]:
        stored = filter(None, (_read(folder, worker, step) for step in stored_steps(folder, worker)))
        return {(each.step, each.story["attempt"]) for each in stored if each.story["conditions"] == conditions}

    return set.intersection(*map(usable, workers))


def read(folder: Path, worker: int, step: int) -> Checkpoint:
    """Return a worker's checkpoint of a step; raises OSError if it is missing or damaged."""
    if checkpoint := _read(folder, worker, step):
        return checkpoint
    raise OSError(f"{folder}: worker {worker} has no complete checkpoint of step {step}")


def remove(folder: Path, *, but: int | None = None) -> None:
    """Remove the checkpoints of a run except those of step `but`, and unfinished ones; harmless if there are none."""
    for path in {*folder.glob("*worker*")} - {*folder.glob(f"worker*-{but}.npz")}:
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it does not exist, or is not empty
        folder.rmdir()


def stored_steps(folder: Path, worker: int) -> dict[int, Path]:
    """Return the checkpoint files of a worker by step."""
    return {int(path.stem.split("-")[1]): path for path in folder.glob(f"worker{worker}-*.npz")}


def _read(folder: Path, worker: int, step: int) -> Checkpoint | None:
    try:
        content = (folder / f"worker{worker}-{step}.npz").read_bytes()  # a file that cannot be read now is not damaged
    except FileNotFoundError:
        return None
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            if file.zip.testzip():  # reading an array ends where its header says, before the checksum is compared
                return None
            arrays = dict(file)
        fields = json.loads(arrays.pop(_STORY).tobytes())
    except Exception:  # it is damaged in whatever way
        return None
    return Checkpoint(arrays=arrays, **fields) if fields["step"] == step else None
