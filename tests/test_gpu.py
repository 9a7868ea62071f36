"""The command for the first minutes on a GPU, in its sizes for a machine without one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.extras import needs_torch
from tests.launch import DEADLINE_SECONDS, HOME

pytestmark = [pytest.mark.slow, needs_torch]


def status(*options: str) -> int:
    command = [sys.executable, "-W", "ignore", "-m", "tests.gpu", "--cpu", "--part", "1", *options]
    return subprocess.run(command, cwd=HOME, timeout=DEADLINE_SECONDS).returncode


@pytest.mark.parametrize("only", ["nesterov"])
def test_options_train_as_on_the_cpu_and_a_wrong_learning_rate_is_found(only: str) -> None:
    assert status("--only", only) == 0
    assert status("--only", only, "--wrong-rate") == 1
