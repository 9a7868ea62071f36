"""Whole runs of the command line, with faults made on purpose: what was measured stays, what was cut off goes on."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from poc.records import journal
from poc.train import checkpoint
from tests.conftest import Faults, heed_signals

pytestmark = pytest.mark.faults
HOME = Path(__file__).parent.parent
KILLS = 20
KILLED = "SIGKILL of everything at a random moment of a training"

# A few seconds of training, with an evaluation and a checkpoint after each of its short epochs.
TRAINING = """
from poc import Recipe, Synthetic

recipe = Recipe(
    model="cifar_resnet8_v2",
    data=Synthetic(size=16, crop=16, train=640, validation=160),
    batch_per_device=32,
    epochs=10,
    window=5,
    lr=0.01,
)
"""
SHORT = TRAINING.replace("epochs=10", "epochs=1")


def start(recipe: Path, folder: Path, *options: str, **how: Any) -> subprocess.Popen[str]:
    """The command line on `recipe`, with its cache, results and last checkpoint in `folder`."""
    command = [sys.executable, "-W", "ignore", "-m", "poc", "run", str(recipe), "--results", str(folder / "results")]
    command += ["--infrastructure", "here", "--checkpoints", str(folder / "checkpoints"), *options]
    how.setdefault("preexec_fn", heed_signals)
    environment = {**os.environ, "POC_CACHE": str(folder / "cache"), "PYTHONPATH": str(HOME)}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how
    )


def finish(recipe: Path, folder: Path, *options: str, **how: Any) -> tuple[int, str]:
    """Its exit code, and what it said."""
    with start(recipe, folder, *options, **how) as process:
        said, _ = process.communicate(timeout=300)
        return process.returncode, said


def records(folder: Path) -> list[journal.Record]:
    return journal.read([folder / "results" / "journal.jsonl"])


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with the recipe training.py."""
    (tmp_path / "training.py").write_text(TRAINING)
    (tmp_path / "short.py").write_text(SHORT)
    return tmp_path


def files(folder: Path, pattern: str) -> set[tuple[str, int]]:
    """Those that match, each with when it was last written."""
    found = set()
    for path in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            found.add((path.name, path.stat().st_mtime_ns))
    return found


def kill(process: subprocess.Popen[str]) -> bool:
    """Kills the process where it still runs, and says whether; nothing that it started goes on."""
    running = process.poll() is None
    children = psutil.Process(process.pid).children(recursive=True) if running else []
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    return running


def test_a_run_killed_at_any_moment_goes_on_and_ends_as_if_it_never_was(
    written: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    (written / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(written / "temporary"))
    recipe = written / "long.py"
    recipe.write_text(TRAINING.replace("epochs=10", "epochs=40"))
    folders = [written / "whole"]
    folders[0].mkdir()
    began = time.monotonic()
    status, said = finish(recipe, folders[0])
    assert status == 0, said
    whole = time.monotonic() - began
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"moments from seed {seed}, up to {whole:.1f} s")
    moments = random.Random(seed)
    kills = 0
    while kills < KILLS:
        if len(folders) == 1 or records(folders[-1]):  # it was faster than that many moments: once more
            folders.append(written / f"killed{len(folders)}")
            folders[-1].mkdir()
        place = folders[-1]
        last = kills == KILLS - 1
        kind = "record" if last else moments.choice(("any", "checkpoint", "after a checkpoint"))
        until = time.monotonic() + (moments.uniform(0.0, whole / 2) if kind == "any" else 300.0)
        pattern = {"record": "results/journal.jsonl", "checkpoint": "checkpoints/*/*.unfinished"}.get(
            kind, "checkpoints/*/*.npz"
        )
        there = files(place, pattern)
        process = start(recipe, place)
        while process.poll() is None and time.monotonic() < until:
            if kind != "any" and files(place, pattern) - there:
                time.sleep(moments.uniform(0.0, 0.5) if kind == "after a checkpoint" else 0.0)
                break
            time.sleep(0.001)
        if kill(process):
            kills += 1
            faults.made(KILLED)
    status, said = finish(recipe, folders[-1])
    assert status == 0, said
    (undisturbed,), *disturbed = map(records, folders)
    kept = [folder / "checkpoints" / undisturbed["run_id"] for folder in folders]
    expected, *ends = (checkpoint.read(one, 0, undisturbed["run"]["steps"]).arrays for one in kept)
    for (found,), arrays in zip(disturbed, ends):
        for name in ("loss", "steps", "samples", "epoch"):
            assert [one[name] for one in found["windows"]] == [one[name] for one in undisturbed["windows"]]
        for name in ("accuracy", "loss", "epoch"):
            assert [one[name] for one in found["evaluations"]] == [one[name] for one in undisturbed["evaluations"]]
        assert arrays.keys() == expected.keys()
        assert all(np.array_equal(arrays[name], expected[name]) for name in expected)
    assert any("resumed" in found for (found,) in disturbed)
    # What the killed ones were telling went with the next run, but for the last one, whose record was complete.
    assert len(list(written.glob("temporary/*/in-use"))) <= 1
    faults.survived(KILLED, kills)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_told_to_end_goes_on_later(number: signal.Signals, written: Path, faults: Faults) -> None:
    faults.made(f"{number.name} to the command")
    process = start(written / "training.py", written)
    folder = written / "checkpoints"
    while process.poll() is None and not any(folder.glob("*/worker0-*.npz")):
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode in (130, -number)
    status, said = finish(written / "training.py", written)
    assert status == 0, said
    assert records(written)[-1]["resumed"][0]["step"] >= 20
    faults.survived(f"{number.name} to the command")


def test_a_second_start_beside_the_first_says_so_and_harms_nothing(written: Path, faults: Faults) -> None:
    faults.made("two starts at once")
    with start(written / "training.py", written) as first:
        while not (written / "results" / "journal.lock").exists():
            time.sleep(0.02)
        time.sleep(0.5)
        status, said = finish(written / "short.py", written)
        assert status == 2
        assert said.splitlines()[-1].startswith(f"poc: results: process {first.pid} is at work on ")
        first.communicate(timeout=120)
        assert first.returncode == 0
    status, said = finish(written / "short.py", written)
    assert status == 0, said
    assert [one["outcome"] for one in records(written)] == ["completed"] * 2
    faults.survived("two starts at once")


def limited(name: str, limit: int) -> Callable[[], None]:
    """For Popen: what holds the process, and all that it starts, to a limit."""

    def limit_it() -> None:
        heed_signals()
        resource.setrlimit(getattr(resource, name), (limit, limit))

    return limit_it


@pytest.mark.parametrize("kept", [False, True], ids=["nor for checkpoints", "but for checkpoints"])
def test_a_disk_without_room_for_the_record(kept: bool, written: Path, faults: Faults) -> None:
    fault = "a disk without room for the record, " + ("but for checkpoints" if kept else "nor for checkpoints")
    faults.made(fault)
    assert finish(written / "short.py", written)[0] == 0
    path = written / "results" / "journal.jsonl"
    # No file can grow beyond the journal's size: so large that the files which a run cannot do without fit, and, where
    # they are to, its checkpoints of 0.6 MB.
    (first,) = records(written)
    journal.append(path, {**first, "run_id": "padding", "reason": " " * (2_000_000 if kept else 300_000)})
    before = path.read_bytes()
    status, said = finish(written / "training.py", written, preexec_fn=limited("RLIMIT_FSIZE", len(before) + 100))
    assert status == 2, said
    assert "no room for the record" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert path.read_bytes() == before
    status, said = finish(written / "training.py", written)
    assert status == 0, said
    *_, found = records(written)
    assert found["outcome"] == "completed"
    assert len(found["evaluations"]) == 10
    assert ("resumed" in found) == kept
    faults.survived(fault)


def test_out_of_memory_is_the_outcome_of_one_run_and_not_the_end(written: Path, faults: Faults) -> None:
    faults.made("out of memory")
    greedy = SHORT.replace("batch_per_device=32", "batch_per_device=[1600, 32]").replace("resnet8", "resnet56")
    greedy = greedy.replace("size=16, crop=16, train=640", "size=28, crop=28, train=1600")
    (written / "greedy.py").write_text(greedy)
    status, said = finish(written / "greedy.py", written, preexec_fn=limited("RLIMIT_AS", 5 * 2**29))
    assert status == 1, said
    assert "Traceback" not in said
    first, second = records(written)
    assert (first["outcome"], second["outcome"]) == ("failed", "completed")
    assert first["reason"]
    assert first["run_id"] in said.splitlines()[-1]
    faults.survived("out of memory")


def test_a_loss_that_explodes_ends_its_run_and_no_other(written: Path, faults: Faults) -> None:
    faults.made("a loss that explodes")
    (written / "hot.py").write_text(SHORT.replace("lr=0.01", "lr=[1e6, 0.01]").replace("epochs=1", "epochs=3"))
    status, said = finish(written / "hot.py", written)
    assert status == 0, said
    first, second = records(written)
    assert (first["outcome"], second["outcome"]) == ("diverged", "completed")
    assert "after step" in first["reason"]
    assert len(first["windows"]) < len(second["windows"])
    faults.survived("a loss that explodes")


def test_a_run_in_which_nothing_goes_on_is_ended(written: Path, faults: Faults) -> None:
    faults.made("a run that hangs")
    process = start(written / "training.py", written, "--patience", "3")
    while process.poll() is None and not any((written / "checkpoints").glob("*/worker0-*.npz")):
        time.sleep(0.02)
    (child,) = [one for one in psutil.Process(process.pid).children() if "poc.train.run" in one.cmdline()]
    child.suspend()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1, said
    (first,) = records(written)
    assert "nothing has gone on" in first["reason"]
    status, said = finish(written / "training.py", written)
    assert status == 0, said
    assert [one["outcome"] for one in records(written)] == ["failed", "completed"]
    assert "resumed" in records(written)[-1]
    faults.survived("a run that hangs")


def test_nothing_is_written_but_to_the_cache_and_the_results(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("home", "temporary"):
        (written / name).mkdir()
    monkeypatch.setenv("HOME", str(written / "home"))
    monkeypatch.setenv("TMPDIR", str(written / "temporary"))
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"):
        monkeypatch.delenv(name, raising=False)
    before = {path for path in HOME.rglob("*") if "__pycache__" not in path.parts and ".git" not in path.parts}
    assert finish(written / "short.py", written)[0] == 0
    assert list((written / "home").iterdir()) == []
    assert list((written / "temporary").iterdir()) == []
    after = {path for path in HOME.rglob("*") if "__pycache__" not in path.parts and ".git" not in path.parts}
    assert after == before
    assert {path.name for path in written.iterdir()} == {
        *("training.py", "short.py", "home", "temporary", "results", "cache", "checkpoints")
    }


def test_a_reader_who_has_seen_enough_is_no_fault() -> None:
    command = f"{sys.executable} -W ignore -m poc networks | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=HOME, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
