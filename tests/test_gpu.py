"""The command for the first minutes on a GPU, in its sizes for a machine without one."""

from __future__ import annotations

import sys

import pytest

from tests import gpu
from tests.extras import needs_torch

VARIABLE = "NVIDIA_TF32_OVERRIDE"
pytestmark = [pytest.mark.slow, needs_torch]


def test_tf32_is_possible_in_the_environment_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    is_set = [VARIABLE in gpu.environment_of("pytorch", "gpu", dtype, 8) for dtype in ("float32", "tf32")]
    assert is_set == [True, False]


def test_options_train_as_on_the_cpu_and_a_wrong_learning_rate_is_found(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert gpu.check("pytorch", "cpu", 1.0, "nesterov")
    monkeypatch.setattr(sys, "argv", ["gpu", "--cpu", "--only", "nesterov", "--wrong-rate"])
    assert gpu.main() == 1
    assert "WRONG" in capfd.readouterr().out
