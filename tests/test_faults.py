"""Whole runs of the command line, with faults made on purpose: what was measured stays, what was cut off goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from poc import checkpoint, journal
from tests.conftest import TellFault

pytestmark = pytest.mark.faults
HOME = Path(__file__).parent.parent
KILLS = 20

# A few seconds of training, with an evaluation and a checkpoint after each of its short epochs.
TRAINING = """
from poc import Recipe, Synthetic

recipe = Recipe(
    model="cifar_resnet8_v2",
    data=Synthetic(size=28, crop=28, train=1600, validation=400),
    batch_per_device=32,
    epochs=24,
    window=5,
    lr=0.01,
)
"""
SHORT = TRAINING.replace("epochs=24", "epochs=1")


def heed_signals() -> None:
    """For Popen: what is started in the background ignores some, and so would all that it starts."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


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


def test_a_run_killed_at_any_moment_goes_on_and_ends_as_if_it_never_was(written: Path, tell_fault: TellFault) -> None:
    folders = {name: written / name for name in ("whole", "killed")}
    for folder in folders.values():
        folder.mkdir()
    recipe = written / "training.py"
    status, said = finish(recipe, folders["whole"])
    assert status == 0, said
    (undisturbed,) = records(folders["whole"])
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"moments from seed {seed}")
    moments = random.Random(seed)
    killed, starts = 0, 0
    while killed < KILLS:
        starts += 1
        assert starts < 5 * KILLS
        process = start(recipe, folders["killed"])
        children: list[psutil.Process] = []
        # Now and then while a checkpoint is being written, else at any moment of what a start and a few epochs take.
        until, writing = time.monotonic() + moments.uniform(0.0, 7.0), moments.random() < 0.3
        while process.poll() is None and time.monotonic() < until:
            if writing and any(folders["killed"].glob("checkpoints/*/*.unfinished")):
                break
            time.sleep(0.002)
        if process.poll() is None:
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            killed += 1
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        # Nothing of it goes on.
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive
        if records(folders["killed"]):
            break  # it was faster than that many moments
    status, said = finish(recipe, folders["killed"])
    assert status == 0, said
    (found,) = records(folders["killed"])
    for name in ("loss", "steps", "samples", "epoch"):
        assert [one[name] for one in found["windows"]] == [one[name] for one in undisturbed["windows"]]
    for name in ("accuracy", "loss", "epoch"):
        assert [one[name] for one in found["evaluations"]] == [one[name] for one in undisturbed["evaluations"]]
    ends = [
        checkpoint.read(folder / "checkpoints" / found["run_id"], 0, found["run"]["steps"]).arrays
        for folder in folders.values()
    ]
    assert ends[0].keys() == ends[1].keys()
    assert all(np.array_equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert "resumed" in found
    tell_fault("SIGKILL of everything at a random moment of a training", killed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_told_to_end_goes_on_later(number: signal.Signals, written: Path, tell_fault: TellFault) -> None:
    process = start(written / "training.py", written)
    folder = written / "checkpoints"
    while process.poll() is None and not any(folder.glob("*/worker0-*.npz")):
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode in (130, -number)
    status, said = finish(written / "training.py", written)
    assert status == 0, said
    assert records(written)[-1]["resumed"][0]["step"] >= 50
    tell_fault(f"{number.name} to the command", 1)


def test_a_second_start_beside_the_first_says_so_and_harms_nothing(written: Path, tell_fault: TellFault) -> None:
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
    tell_fault("two starts at once", 1)
