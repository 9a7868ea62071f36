"""Whole runs of the command line, with faults made on purpose: what was measured stays, what was cut off goes on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from poc import Synthetic
from poc.host import processes
from poc.records import journal
from poc.records.record import COMPLETED, DIVERGED, FAILED, OUT_OF_MEMORY
from poc.run.parent import execute
from tests.builders import GLUON, course, end_of, executed, place_in, recipe_file, record_of, run_of
from tests.conftest import survives
from tests.launch import DEADLINE_SECONDS, HOME, eventually, family, finish, held, records, start, struck
from tests.test_machine import nested_groups

pytestmark = pytest.mark.faults
KILLS = 20
# How far a run comes before it is killed, at most: in changes of its files. A whole one has some hundreds.
MOST_CHANGES = 60


def files(folder: Path, pattern: str = "**/*") -> dict[Path, tuple[int, int]]:
    """Those that match, each with its size and when it was last written."""
    there = {}
    with contextlib.suppress(FileNotFoundError):  # a folder that went as it was looked into: look again next time
        for path in folder.glob(pattern):
            with contextlib.suppress(FileNotFoundError):
                there[path] = (path.stat().st_size, path.stat().st_mtime_ns)
    return there


class Moment:
    """True once the files in `folder` have changed so many times since it was first looked for."""

    def __init__(self, folder: Path, changes: int) -> None:
        self._folder, self._left, self._seen = folder, changes, files(folder)

    def __call__(self) -> bool:
        now = files(self._folder)
        self._left -= now != self._seen
        self._seen = now
        return self._left <= 0


def written(folder: Path, pattern: str) -> Callable[[], bool]:
    """True once a file that matches was written in `folder`."""
    before = files(folder, pattern).items()
    return lambda: bool(files(folder, pattern).items() - before)


def killed(process: subprocess.Popen[str], reached: Callable[[], bool]) -> bool:
    """Kills the process when the moment is reached, and says whether it still ran; nothing that it started goes on."""
    eventually(lambda: reached() or process.poll() is not None)
    running = process.poll() is None
    children = psutil.Process(process.pid).children(recursive=True) if running else []
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=DEADLINE_SECONDS)
    assert not alive
    return running


@survives("SIGKILL of everything at a random moment of a training", KILLS)
def test_a_run_killed_at_any_moment_goes_on_and_ends_as_if_it_never_was(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", epochs=40)
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"moments from seed {seed}")
    moments = random.Random(seed)
    folders: list[Path] = []

    def in_new_folder() -> dict[str, Any]:
        folders.append(tmp_path / f"place{len(folders)}")
        (folders[-1] / "temporary").mkdir(parents=True)
        return {"TMPDIR": str(folders[-1] / "temporary")}

    environment = in_new_folder()
    finish(recipe, folders[0], environment=environment)
    kills = 0
    while kills < KILLS:
        if len(folders) == 1 or records(folders[-1]):  # it was faster than that many moments: once more
            environment = in_new_folder()
        folder = folders[-1]
        reached: Callable[[], bool] = Moment(folder, moments.randint(0, MOST_CHANGES))
        if kills == KILLS - 1:
            reached = written(folder, "results/*/journal.jsonl")
        elif moments.random() < 0.3:
            reached = written(folder, "checkpoints/*/*.unfinished")
        kills += killed(start(recipe, folder, environment=environment), reached)
    finish(recipe, folders[-1], environment=environment)
    (undisturbed,), *disturbed = map(records, folders)
    for folder, (record,) in zip(folders[1:], disturbed):
        assert course(record) == course(undisturbed)
        np.testing.assert_equal(end_of(folder, record.run), end_of(folders[0], record.run))
        # What the killed ones were telling went with the next run; the last one's record may have been complete.
        assert len(list(folder.glob("temporary/*/in-use"))) <= 1
    assert any(record.resumed for (record,) in disturbed)


def test_advice_that_is_interrupted_begins_no_other_run(tmp_path: Path) -> None:
    recipe, hold = recipe_file(tmp_path / "mine.py"), tmp_path / "hold"
    with held(hold, 10), start(recipe, tmp_path, command="advise", environment={"POC_HOLD": str(hold)}) as process:
        family(process.pid, 1)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130, said
    (record,) = records(tmp_path)
    assert (record.outcome, record.reason) == (FAILED, "interrupted")
    assert record.windows


@survives("SIGINT to the command")
@survives("SIGTERM to the command")
@survives("SIGHUP to the command")
def test_a_run_that_is_told_to_end_goes_on_later(tmp_path: Path) -> None:
    recipe, hold = recipe_file(tmp_path / "mine.py", epochs=5), tmp_path / "hold"
    told = {25: signal.SIGINT, 45: signal.SIGTERM, 65: signal.SIGHUP}
    for step, number in told.items():
        checkpointed = written(tmp_path, "checkpoints/*/*.npz")
        with held(hold, step), start(recipe, tmp_path, environment={"POC_HOLD": str(hold)}) as process:
            eventually(checkpointed, unless=lambda: process.poll() is not None)
            process.send_signal(number)
            process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode in (130, -number)
    finish(recipe, tmp_path)
    *_, record = records(tmp_path)
    assert len(record.resumed) == len(told)
    assert record.resumed[0].step >= 20


@survives("two starts at once")
def test_a_second_start_beside_the_first_says_so_and_harms_nothing(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", epochs=1)
    lock = tmp_path / "results" / "here" / "journal.lock"
    with start(recipe, tmp_path) as first:
        eventually(lambda: lock.exists() and lock.read_text(), unless=lambda: first.poll() is not None)
        first.send_signal(signal.SIGSTOP)  # so that it is not done before the second one starts
        try:
            said = finish(recipe, tmp_path, status=2)
        finally:
            first.send_signal(signal.SIGCONT)
        assert said.splitlines()[-1].startswith(f"poc: results: process {first.pid} is writing to ")
        first.communicate(timeout=DEADLINE_SECONDS)
    assert first.returncode == 0
    assert [record.outcome for record in records(tmp_path)] == [COMPLETED]


@pytest.mark.parametrize("kept", [False, True], ids=["nor for checkpoints", "but for checkpoints"])
def test_a_disk_without_room_for_the_record(kept: bool, tmp_path: Path) -> None:
    with survives("a disk without room for the record, " + ("but for checkpoints" if kept else "nor for checkpoints")):
        recipe, path = recipe_file(tmp_path / "mine.py"), tmp_path / "results" / "here" / "journal.jsonl"
        # No file can grow beyond the journal's size: so large that the files which a run cannot do without fit, and,
        # where they are to, its checkpoints of 3.2 MB.
        journal.append(path, record_of(run_id="padding", reason=" " * (6_000_000 if kept else 600_000)))
        before = path.read_bytes()
        said = finish(recipe, tmp_path, prefix=["prlimit", f"--fsize={len(before) + 100}"], status=2)
        assert "no room for the record" in said.splitlines()[-1]
        assert "Traceback" not in said
        assert path.read_bytes() == before
        finish(recipe, tmp_path)
        *_, record = records(tmp_path)
        assert record.outcome == COMPLETED
        assert len(record.evaluations) == 4
        assert bool(record.resumed) == kept


@survives("out of memory")
def test_out_of_memory_is_the_outcome_of_one_run_and_not_the_end(tmp_path: Path) -> None:
    greedy = {"batch_per_device": 60_000, "data": Synthetic(train=60_000, validation=160)}
    recipe = recipe_file(tmp_path / "mine.py", cases=[{**greedy, "repeats": 2}, {}], epochs=1)
    limited = {"prefix": ["prlimit", f"--as={3 * 2**29}"]}
    said = finish(recipe, tmp_path, **limited)
    assert "Traceback" not in said
    first, second = records(tmp_path)
    assert (first.outcome, second.outcome) == (OUT_OF_MEMORY, COMPLETED)
    assert "allocate" in first.reason
    assert finish(recipe, tmp_path, **limited).count("in the journal already") == 3  # and not for the second take


@survives("a loss that explodes")
def test_a_loss_that_explodes_ends_its_run_and_no_other(tmp_path: Path) -> None:
    finish(recipe_file(tmp_path / "mine.py", cases=[{"lr": 1e6, "repeats": 2}, {"lr": 0.01}]), tmp_path)
    first, second = records(tmp_path)
    assert (first.outcome, second.outcome) == (DIVERGED, COMPLETED)
    assert "after step" in first.reason
    assert first.windows[-1].loss is None
    assert len(first.windows) < len(second.windows)


@survives("a loss that explodes")
@pytest.mark.parametrize(
    "fields", [{"steps": 1, "epochs": None, "lr": 1e9}, {"steps": 1, "epochs": None, "lr": 1e9, "evaluate": False}]
)
@pytest.mark.parametrize("framework", ["reference", "mxnet"])
def test_what_explodes_with_the_last_update_is_not_completed(
    tmp_path: Path, framework: str, fields: dict[str, Any]
) -> None:
    record = executed(tmp_path, **(GLUON if framework == "mxnet" else {}), **fields)
    assert record.outcome == DIVERGED
    assert record.windows[-1].loss < 100  # of before the update


def test_workers_that_wait_for_one_that_diverged_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, blamed = processes.watch, []

    def watched(*given: Any) -> Any:
        blamed.append(watch(*given))
        return blamed[-1]

    monkeypatch.setattr(processes, "watch", watched)
    monkeypatch.setenv("POC_FAULT", "diverge")
    monkeypatch.setenv("POC_HOLD", str(tmp_path / "hold"))
    with held(tmp_path / "hold", 5):
        record = executed(tmp_path, devices=2, workers=2, kvstore="none", window=5)
    assert record.outcome == DIVERGED
    assert [name for name, _ in blamed] == ["worker 1"]


@survives("a run that hangs")
def test_a_run_in_which_nothing_goes_on_is_ended(tmp_path: Path) -> None:
    undisturbed = executed(tmp_path / "undisturbed")
    with struck("worker 0", signal.SIGSTOP, after='"evaluation", "epoch": 1'):
        hung = executed(tmp_path)
    assert hung.outcome == FAILED
    assert "SIGSTOP" in hung.reason
    assert hung.windows
    assert not hung.resumed
    record = executed(tmp_path)
    assert record.outcome == COMPLETED
    assert record.resumed
    assert course(record) == course(undisturbed)


@survives("a run that spins")
def test_a_run_that_computes_and_makes_no_step_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POC_FAULT", "spin")
    record, _ = execute(run_of(), place_in(tmp_path, patience=3.0))
    assert record.outcome == FAILED
    assert "--patience" in record.reason


@survives("a kill for memory")
def test_a_run_that_the_kernel_kills_for_memory_is_out_of_memory_and_not_tried_again(tmp_path: Path) -> None:
    greedy = {"batch_per_device": 60_000, "data": Synthetic(train=60_000, validation=160)}
    recipe = recipe_file(tmp_path / "mine.py", cases=[greedy, {}], epochs=1)
    limit = 2**30
    settings = {"memory.limit_in_bytes": limit, "memory.max": limit, "memory.swap.max": 0}
    with nested_groups({"memory": settings}) as inside:
        finish(recipe, tmp_path, prefix=inside)
        first, second = records(tmp_path)
        assert (first.outcome, second.outcome) == (OUT_OF_MEMORY, COMPLETED)
        assert "memory ran out" in first.reason
        assert finish(recipe, tmp_path, prefix=inside).count("in the journal already") == 2


def test_nothing_is_written_but_to_the_cache_and_the_results(tmp_path: Path) -> None:
    def checkout() -> set[Path]:
        tops = [top for top in HOME.iterdir() if not top.name.startswith(".")]
        return {path for top in tops for path in (top, *top.rglob("*")) if "__pycache__" not in path.parts}

    for name in ("home", "temporary"):
        (tmp_path / name).mkdir()
    places = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temporary")}
    places["POC_CACHE"] = str(tmp_path / "cache")
    unset = dict.fromkeys(("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"))
    before, recipe = checkout(), recipe_file(tmp_path / "mine.py", epochs=1)
    finish(recipe, tmp_path, environment={**places, **unset})
    assert list((tmp_path / "home").iterdir()) == []
    assert list((tmp_path / "temporary").iterdir()) == []
    assert checkout() == before
    made = {"results", "cache", "checkpoints"}
    assert {path.name for path in tmp_path.iterdir()} == {"mine.py", "home", "temporary", *made}


def test_a_reader_who_has_seen_enough_is_no_fault() -> None:
    command = f"{sys.executable} -W ignore -m poc networks | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=HOME, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
