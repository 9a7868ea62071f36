"""The command for the first minutes on a GPU, in its sizes for a machine without one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import gpu
from tests.extras import needs_torch
from tests.launch import DEADLINE_SECONDS, HOME

VARIABLE = "NVIDIA_TF32_OVERRIDE"
pytestmark = [pytest.mark.slow, needs_torch]


def test_tf32_is_possible_in_the_environment_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    is_set = [VARIABLE in gpu.environment_of("pytorch", "gpu", dtype, 8) for dtype in ("float32", "tf32")]
    assert is_set == [True, False]


def test_options_train_as_on_the_cpu_and_a_wrong_learning_rate_is_found() -> None:
    only = "nesterov"
    assert gpu.check("pytorch", "cpu", 1.0, only)
    options = ["--cpu", "--part", "1", "--only", only, "--wrong-rate"]
    command = [sys.executable, "-W", "ignore", "-m", "tests.gpu", *options]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert (done.returncode, "WRONG" in done.stdout) == (1, True), done.stderr
