"""Checkpoints on a real disk: whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from poc.run import checkpoint
from poc.run.checkpoint import Checkpoint
from tests.conftest import no_file_beyond

HERE = {"machine": "this"}


def of(step: int, **conditions: str) -> Checkpoint:
    arrays = {"parameter/first.weight/0": np.full((3, 2), step, dtype=np.float32), "count": np.array(step)}
    return Checkpoint(step=step, arrays=arrays, story={"conditions": {**HERE, **conditions}, "events": [{"a": 1.5}]})


def write(folder: Path, *steps: int, worker: int = 0, **conditions: str) -> None:
    for step in steps:
        checkpoint.write(folder, worker, of(step, **conditions))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "new", 20, worker=3)
    read = checkpoint.read(tmp_path / "new", 3, 20)
    assert (read.step, read.story) == (20, of(20).story)
    np.testing.assert_equal(read.arrays, of(20).arrays)
    assert [array.dtype for array in read.arrays.values()] == [array.dtype for array in of(20).arrays.values()]


def test_the_last_two_of_the_same_conditions_are_kept_and_a_later_one_of_a_step_replaces_the_former(
    tmp_path: Path,
) -> None:
    write(tmp_path, 90, 100, machine="another")
    assert checkpoint.steps(tmp_path, [0], HERE) == []
    for worker in (0, 11):
        write(tmp_path, 9, 10, 20, worker=worker)  # those of other conditions push none out
    assert checkpoint.steps(tmp_path, [0, 11], HERE) == [10, 20]
    later = Checkpoint(step=20, arrays=of(20).arrays, story={"conditions": HERE, "events": []})
    checkpoint.write(tmp_path, 0, later)
    assert checkpoint.steps(tmp_path, [0, 11], HERE) == [10, 20]
    assert len(list(tmp_path.glob("worker*-[12]0-*"))) == 4
    assert checkpoint.read(tmp_path, 0, 20).story == later.story


def test_a_run_goes_on_where_all_its_workers_were(tmp_path: Path) -> None:
    for worker, steps in enumerate([(10, 20), (10, 20), (10,)]):
        write(tmp_path, *steps, worker=worker)
    for workers, common in ((2, [10, 20]), (3, [10]), (4, [])):
        assert checkpoint.steps(tmp_path, range(workers), HERE) == common
    assert checkpoint.steps(tmp_path / "nowhere", [0], HERE) == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "renamed"])
def test_a_damaged_checkpoint_is_known_for_what_it_is(damage: str, tmp_path: Path) -> None:
    write(tmp_path, 10, 20)
    (last,) = tmp_path.glob("worker0-20-*")
    content = last.read_bytes()
    middle = len(content) // 2
    if damage == "renamed":
        last.rename(tmp_path / last.name.replace("-20-", "-21-"))
    else:
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        last.write_bytes({"cut": content[:-1], "flipped": flipped, "empty": b""}[damage])
    assert checkpoint.steps(tmp_path, [0], HERE) == [10]
    with pytest.raises(OSError, match="step 20"):
        checkpoint.read(tmp_path, 0, 20)


def test_a_finished_run_leaves_what_is_to_be_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write(folder, 10, 20)
    (folder / "worker0.unfinished").write_bytes(b"torn")
    checkpoint.remove(folder, but=20)
    assert checkpoint.steps(folder, [0], HERE) == [20]
    assert len(list(folder.iterdir())) == 1
    checkpoint.remove(folder)
    assert not folder.exists()
    checkpoint.remove(folder)


def test_a_full_disk_leaves_the_older_ones(tmp_path: Path) -> None:
    write(tmp_path, 10)
    large = Checkpoint(step=20, arrays={"a": np.zeros(100_000)}, story={})
    with no_file_beyond(4096), pytest.raises(OSError, match="File too large"):
        checkpoint.write(tmp_path, 0, large)
    assert checkpoint.steps(tmp_path, [0], HERE) == [10]
    assert len(list(tmp_path.iterdir())) == 1
