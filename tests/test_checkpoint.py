"""Checkpoints on a real disk: complete or not there."""

import resource
from pathlib import Path

import numpy as np
import pytest

from poc.run import checkpoint
from poc.run.checkpoint import Checkpoint

HERE = {"machine": "this"}


def of(step: int, attempt: str = "first", **conditions: str) -> Checkpoint:
    arrays = {"parameter/first.weight/0": np.full((3, 2), step, dtype=np.float32), "count": np.array(step)}
    story = {"conditions": {**HERE, **conditions}, "attempt": attempt, "events": [{"a": 1.5}]}
    return Checkpoint(step=step, arrays=arrays, story=story)


def write(
    folder: Path, *steps: int, worker: int = 0, previous: int = 0, attempt: str = "first", **conditions: str
) -> None:
    for before, step in zip((previous, *steps), steps):
        checkpoint.write(folder, worker, of(step, attempt, **conditions), before)


def common(folder: Path, *workers: int) -> list[int]:
    """Return the steps after which each of these workers has a checkpoint of the same attempt."""
    return sorted(step for step, _ in checkpoint.steps(folder, workers, HERE))


def test_each_worker_keeps_two_steps_of_the_same_conditions(tmp_path: Path) -> None:
    write(tmp_path, 90, 100, machine="another")
    assert common(tmp_path, 0) == []
    for worker in (0, 11):
        write(tmp_path, 9, 10, 20, worker=worker)
    later = Checkpoint(step=20, arrays=of(20).arrays, story={**of(20).story, "events": []})
    checkpoint.write(tmp_path, 0, later, previous=10)
    assert common(tmp_path, 0, 11) == [10, 20]
    assert len(list(tmp_path.glob("worker*-[12]0.npz"))) == 4
    assert checkpoint.read(tmp_path, 0, 20).story == later.story


def test_a_run_continues_from_the_steps_of_all_its_workers(tmp_path: Path) -> None:
    for worker, steps in enumerate([(10, 20), (10, 20), (10,)]):
        write(tmp_path, *steps, worker=worker)
    for workers, steps in ((2, [10, 20]), (3, [10]), (4, [])):
        assert common(tmp_path, *range(workers)) == steps
    assert common(tmp_path / "nowhere", 0) == []


def test_a_run_does_not_continue_from_one_step_of_two_attempts(tmp_path: Path) -> None:
    write(tmp_path, 10, 20)
    write(tmp_path, 10, worker=1)
    write(tmp_path, 20, worker=1, attempt="second", previous=10)
    assert common(tmp_path, 0, 1) == [10]


def test_a_checkpoint_of_a_later_step_that_a_run_did_not_continue_from_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, 10, 20)
    write(tmp_path, 21, attempt="second", previous=10)
    assert common(tmp_path, 0) == [10, 21]


@pytest.mark.parametrize("damage", ["cut", "flipped", "shape", "empty", "renamed"])
def test_a_damaged_checkpoint_is_not_used(damage: str, tmp_path: Path) -> None:
    write(tmp_path, 10, 20)
    (last,) = tmp_path.glob("worker0-20.npz")
    content = last.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    damaged = {"cut": content[:-1], "flipped": flipped, "shape": content.replace(b"(3, 2)", b"(2, 2)"), "empty": b""}
    last.write_bytes(damaged.get(damage, content))
    if damage == "renamed":
        last.rename(tmp_path / "worker0-21.npz")
    assert common(tmp_path, 0) == [10]
    with pytest.raises(OSError, match="step 20"):
        checkpoint.read(tmp_path, 0, 20)


def test_a_checkpoint_that_cannot_be_read_now_is_kept(tmp_path: Path) -> None:
    write(tmp_path, 10)
    (tmp_path / "worker0-20.npz").symlink_to("worker0-20.npz")
    with pytest.raises(OSError, match="symbolic links"):
        checkpoint.steps(tmp_path, [0], HERE)
    assert len(list(tmp_path.iterdir())) == 2


def test_all_checkpoints_or_all_but_one_step_can_be_removed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(folder, 10, 20)
    (folder / "worker0.unfinished").write_bytes(b"torn")
    checkpoint.remove(folder, but=20)
    assert common(folder, 0) == [20]
    assert len(list(folder.iterdir())) == 1
    for _ in range(2):
        checkpoint.remove(folder)
        assert not folder.exists()


def test_a_full_disk_leaves_the_older_ones(tmp_path: Path) -> None:
    write(tmp_path, 10)
    large = Checkpoint(step=20, arrays={"a": np.zeros(100_000)}, story={})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: .*worker0-20\.npz"):
            checkpoint.write(tmp_path, 0, large, previous=10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert common(tmp_path, 0) == [10]
    assert len(list(tmp_path.iterdir())) == 1
