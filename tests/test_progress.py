"""Text for the person who watches runs: a progress line on a terminal, and one line for each run that ended."""

import contextlib
import itertools
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from poc.run.progress import label, result, varied
from tests.builders import recipe_file, record_of
from tests.launch import HOME, NO_PAGES

RUN = dict(kind="gpu", devices=4, global_batch=512, learning_rate=0.2, epochs=12, steps=120)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "9,865 samples/s, accuracy 0.783 (12 epochs, 61 s)"),
        ({"outcome": "failed", "reason": "worker 1: killed by signal 9"}, "failed: worker 1: killed by signal 9"),
        ({"outcome": "out of memory"}, "out of memory"),
        (
            {"epoch_seconds": [1.0], "accuracies": [], "run": {"steps": 7, "epochs": 1}, "wall": None},
            "too short to time (10 steps)",
        ),
    ],
)
def test_a_run_has_one_line_in_its_user_s_terms(changes: dict[str, Any], line: str) -> None:
    fields = {"epoch_seconds": [0.13, *[0.519] * 11], "accuracies": [0.783] * 12, "wall": 61.2, "run": RUN, **changes}
    assert result(record_of(**fields), "it") == f"it: {line}"


def test_a_label_names_the_fields_that_differ() -> None:
    assert label(record_of(run=RUN).run) == "resnet50 batch 128 x 4 GPUs lr 0.2"
    accumulating = record_of(run={**RUN, "accumulate": 4, "global_batch": 2048}).run
    assert label(accumulating) == "resnet50 batch 128 x 4 GPUs accumulate 4 lr 0.2"
    assert varied([accumulating, record_of(run=RUN).run]) == set()
    assert "accumulate 4" in str(accumulating)
    grid = itertools.product((0.0, 0.1), (0.01, 0.02))
    fields = ({**RUN, "label_smoothing": smoothing, "learning_rate": lr} for smoothing, lr in grid)
    runs = [record_of(run=run).run for run in fields]
    details = varied(runs)
    assert details == {"label_smoothing"}
    assert len({label(run, details) for run in runs}) == 4
    assert label(runs[0]) == label(runs[2])


@pytest.mark.slow
def test_a_terminal_shows_progress_and_then_only_the_result(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", lr=[0.01, 0.02])
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", NO_PAGES, "run", str(recipe), "--results", str(tmp_path / "results")]
    environment = {**os.environ, "POC_CACHE": str(tmp_path), "PYTHONPATH": str(HOME), "COLUMNS": "100"}
    output = b""
    with subprocess.Popen(command, stdout=end, stderr=end, env=environment, cwd=tmp_path) as process:
        os.close(end)
        with contextlib.suppress(OSError):  # how Linux reports that nobody writes any more
            while part := os.read(terminal, 4096):
                output += part
    os.close(terminal)
    assert process.returncode == 0, output
    text = output.decode()
    assert re.search(r"epoch [1-4]/4, [\d,.]+ samples/s.*\d\d:\d\d", text)
    # What stays of a line is what comes last.
    remaining = [line.rsplit("\r", 1)[-1] for line in text.replace("\r\n", "\n").split("\n")]
    for lr in ("0.01", "0.02"):
        assert sum(f"lr {lr}" in line for line in remaining) == 1
