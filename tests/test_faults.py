"""Whole runs of the command line with injected faults: what was measured stays, and what was cut off continues."""

import contextlib
import os
import random
import re
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
from tests.launch import DEADLINE_SECONDS, HOME, eventually, family, finish, held, records, run_here, start, struck
from tests.test_host import memory_group

pytestmark = pytest.mark.faults
KILLS = int(os.environ.get("POC_KILLS", 8))
# How many changes of its files a run makes before it is killed, at most; a whole run makes some hundreds.
MOST_CHANGES = 60
GREEDY = {"batch_per_device": 60_000, "data": Synthetic(train=60_000, validation=160)}


def files(folder: Path, pattern: str = "**/*") -> dict[Path, tuple[int, int]]:
    """The matching files, each with its size and when it was last written."""
    states = {}
    with contextlib.suppress(FileNotFoundError):  # a folder that was removed meanwhile
        for path in folder.glob(pattern):
            with contextlib.suppress(FileNotFoundError):
                states[path] = (path.stat().st_size, path.stat().st_mtime_ns)
    return states


def written(folder: Path, pattern: str = "**/*", changes: int = 1) -> Callable[[], bool]:
    """A function that returns True once it has seen so many changes of matching files in `folder`."""
    states = [files(folder, pattern)]

    def seen() -> bool:
        now = files(folder, pattern)
        if now.items() - states[-1].items():
            states.append(now)
        return len(states) > changes

    return seen


def killed(process: subprocess.Popen[str], moment: Callable[[], bool]) -> bool:
    """Kill the process at the moment; return whether it still ran. No process that it started survives."""
    eventually(lambda: moment() or process.poll() is not None)
    running = process.poll() is None
    children = psutil.Process(process.pid).children(recursive=True) if running else []
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=DEADLINE_SECONDS)
    assert not alive
    return running


def test_a_run_killed_at_any_moment_continues_and_ends_bit_for_bit_the_same(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", epochs=20)
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"moments from seed {seed}")
    moments = random.Random(seed)
    folders: list[Path] = []

    def in_new_folder() -> dict[str, Any]:
        folders.append(tmp_path / f"folder{len(folders)}")
        (folders[-1] / "temporary").mkdir(parents=True)
        return {"TMPDIR": str(folders[-1] / "temporary")}

    finish(recipe, tmp_path / "folder0", environment=in_new_folder())
    environment = in_new_folder()
    kills = 0
    while kills < KILLS:
        if records(folders[-1]):  # it completed before it was killed
            environment = in_new_folder()
        folder = folders[-1]
        moment = written(folder, changes=moments.randint(0, MOST_CHANGES))
        if kills == KILLS - 1:
            moment = written(folder, "results/*/journal.jsonl")
        elif moments.random() < 0.3:
            moment = written(folder, "checkpoints/*/*.unfinished")
        kills += killed(start(recipe, folder, environment=environment), moment)
    finish(recipe, folders[-1], environment=environment)
    (undisturbed,), *disturbed = map(records, folders)
    for folder, (record,) in zip(folders[1:], disturbed):
        assert course(record) == course(undisturbed)
        np.testing.assert_equal(end_of(folder, record.run), end_of(folders[0], record.run))
    assert any(record.resumed for (record,) in disturbed)


def test_advice_that_is_interrupted_starts_no_other_run(tmp_path: Path) -> None:
    recipe, hold = recipe_file(tmp_path / "mine.py"), tmp_path / "hold"
    with held(hold, 10), start(recipe, tmp_path, command="advise", environment={"POC_HOLD": str(hold)}) as process:
        family(process.pid, 1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130, output
    (record,) = records(tmp_path)
    assert (record.outcome, record.reason) == (FAILED, "interrupted")
    assert record.windows


def test_a_run_that_is_interrupted_continues_later(tmp_path: Path) -> None:
    recipe, hold = recipe_file(tmp_path / "mine.py", epochs=5), tmp_path / "hold"
    signals = {25: signal.SIGINT, 45: signal.SIGTERM, 65: signal.SIGHUP}
    for step, number in signals.items():
        checkpointed = written(tmp_path, "checkpoints/*/*.npz")
        with held(hold, step), start(recipe, tmp_path, environment={"POC_HOLD": str(hold)}) as process:
            eventually(checkpointed, unless=lambda: process.poll() is not None)
            process.send_signal(number)
            process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode in (130, -number)
    run_here(recipe, tmp_path)
    *_, record = records(tmp_path)
    assert len(record.resumed) == len(signals)
    assert record.resumed[0].step >= 20


def test_a_second_start_is_refused_and_does_no_harm(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", epochs=1)
    claimed = tmp_path / "results" / "last_run.json"  # written once the journal is locked
    with start(recipe, tmp_path) as first:
        eventually(claimed.exists, unless=lambda: first.poll() is not None)
        first.send_signal(signal.SIGSTOP)  # so that it is not done before the second one starts
        try:
            output = finish(recipe, tmp_path, status=2)
        finally:
            first.send_signal(signal.SIGCONT)
        assert "another process" in output.splitlines()[-1]
        first.communicate(timeout=DEADLINE_SECONDS)
    assert first.returncode == 0
    assert [record.outcome for record in records(tmp_path)] == [COMPLETED]


@pytest.mark.parametrize("room", [False, True], ids=["nor for checkpoints", "but for checkpoints"])
def test_a_disk_without_room_for_the_record(room: bool, tmp_path: Path) -> None:
    recipe, path = recipe_file(tmp_path / "mine.py"), tmp_path / "results" / "here" / "journal.jsonl"
    # No file can grow beyond the journal's size: large enough for the files that a run needs, and with `room` for
    # its checkpoints of 3.2 MB.
    journal.append(path, record_of(run_id="padding", reason=" " * (6_000_000 if room else 600_000)))
    before = path.read_bytes()
    output = finish(recipe, tmp_path, prefix=["prlimit", f"--fsize={len(before) + 100}"], status=2)
    assert output.splitlines()[-1].startswith("poc: results: ")
    assert "Traceback" not in output
    assert path.read_bytes() == before
    run_here(recipe, tmp_path)
    *_, record = records(tmp_path)
    assert (record.outcome, len(record.evaluations), bool(record.resumed)) == (COMPLETED, 4, room)


@pytest.mark.parametrize(
    ("fields", "outcome", "prefix"),
    [(GREEDY, OUT_OF_MEMORY, ["prlimit", f"--as={3 * 2**29}"]), ({"lr": 1e6}, DIVERGED, [])],
    ids=[OUT_OF_MEMORY, DIVERGED],
)
def test_such_an_outcome_does_not_end_the_sweep_and_is_not_repeated(
    fields: dict[str, Any], outcome: str, prefix: list[str], tmp_path: Path
) -> None:
    recipe = recipe_file(tmp_path / "mine.py", cases=[{**fields, "repeats": 2}, {}], epochs=1)
    assert "Traceback" not in finish(recipe, tmp_path, prefix=prefix)
    # Which is first depends on their estimated times.
    first, second = sorted(records(tmp_path), key=lambda record: record.outcome == COMPLETED)
    assert (first.outcome, second.outcome) == (outcome, COMPLETED)
    if outcome == DIVERGED:
        assert first.windows[-1].loss is None
        assert len(first.windows) < len(second.windows)
    assert run_here(recipe, tmp_path).count("already in the journal") == 3


@pytest.mark.large
def test_a_run_that_the_kernel_kills_for_memory_is_out_of_memory(tmp_path: Path) -> None:
    # Its plan is within the limit, its first step is not.
    greedy = {"batch_per_device": 30_000, "data": Synthetic(train=30_000, validation=160)}
    recipe = recipe_file(tmp_path / "mine.py", cases=[greedy, {}], epochs=1)
    limit = 850 << 20
    settings = {"memory.limit_in_bytes": limit, "memory.max": limit, "memory.swap.max": 0}
    with memory_group(settings) as inside:
        finish(recipe, tmp_path, prefix=inside)
        reasons = {record.outcome: record.reason for record in records(tmp_path)}  # in the order of their estimates
        assert reasons.keys() == {OUT_OF_MEMORY, COMPLETED}
        assert "memory ran out" in reasons[OUT_OF_MEMORY]


def test_a_divergence_in_the_last_update_is_found(tmp_path: Path) -> None:
    record = executed(tmp_path, **GLUON, steps=1, epochs=None, lr=1e9, evaluate=False)
    assert record.outcome == DIVERGED
    assert record.windows[-1].loss < 100  # before the update


def test_workers_that_wait_for_one_that_diverged_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, failures = processes.watch, []

    def watched(*arguments: Any) -> Any:
        failures.append(watch(*arguments))
        return failures[-1]

    monkeypatch.setattr(processes, "watch", watched)
    monkeypatch.setenv("POC_FAULT", "diverge")
    monkeypatch.setenv("POC_HOLD", str(tmp_path / "hold"))
    with held(tmp_path / "hold", 5):
        record = executed(tmp_path, devices=2, workers=2, kvstore="none", window=5)
    assert record.outcome == DIVERGED
    assert [name for name, _ in failures] == ["worker 1"]


def test_a_run_that_hangs_is_ended_and_continues_later(tmp_path: Path) -> None:
    undisturbed = executed(tmp_path / "undisturbed")
    with struck("worker 0", signal.SIGSTOP, after='"evaluation", "epoch": 1'):
        hung, _ = execute(run_of(), place_in(tmp_path, patience=5000.0))
    assert hung.outcome == FAILED
    stalled = re.search(rf"{processes.STALLED} (\d+) s.*SIGSTOP", hung.reason)
    assert stalled
    assert int(stalled[1]) > 5000
    assert (bool(hung.windows), hung.resumed) == (True, ())
    record = executed(tmp_path)
    assert record.outcome == COMPLETED
    assert record.resumed
    assert course(record) == course(undisturbed)


@pytest.mark.parametrize(
    ("command", "redirection", "status"),
    [
        ("poc run mine.py", ">&-", 0),
        ("tests.pageless_poc run mine.py", "2>&-", 0),
        ("poc plan quick", ">/dev/full", 2),
        ("poc models", "| head -n 1", 0),
        ("poc plan --help", "| true", 0),
        ("poc plan quick --set epoch=1", "2>&1 | true", 2),
    ],
)
def test_streams_that_are_closed_or_full_end_a_command_as_usual(
    command: str, redirection: str, status: int, tmp_path: Path
) -> None:
    recipe_file(tmp_path / "mine.py", epochs=1)
    poc = f"{sys.executable} -W ignore -m {command} {redirection}; exit ${{PIPESTATUS[0]}}"
    variables = {**os.environ, "PYTHONPATH": str(HOME), "POC_CACHE": str(tmp_path / "cache")}
    poc = poc.replace("mine.py", "mine.py --results results")
    done = subprocess.run(["bash", "-c", poc], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (done.returncode, "rror: " in done.stderr, "Traceback" in done.stderr) == (status, False, False)
    assert {record.outcome for record in records(tmp_path)} <= {COMPLETED}
