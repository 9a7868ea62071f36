"""The command for the first minutes on a GPU, in its sizes for a machine without one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import gpu
from tests.extras import needs_torch
from tests.launch import DEADLINE_SECONDS, HOME

pytestmark = [pytest.mark.slow, needs_torch]


def test_options_train_as_on_the_cpu_and_a_wrong_learning_rate_is_found() -> None:
    only = "nesterov"
    assert gpu.check("pytorch", "cpu", 1.0, only)
    options = ["--cpu", "--part", "1", "--only", only, "--wrong-rate"]
    command = [sys.executable, "-W", "ignore", "-m", "tests.gpu", *options]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert (done.returncode, "WRONG" in done.stdout) == (1, True), done.stderr
