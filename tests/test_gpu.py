"""The command for the first minutes on a GPU, in its sizes for a machine without one."""

import sys
from pathlib import Path

import pytest

from tests import gpu
from tests.conftest import needs_torch

pytestmark = [pytest.mark.slow, needs_torch]


def test_options_train_as_on_the_cpu_and_a_wrong_learning_rate_is_found(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert all(gpu.check("pytorch", "cpu", 1.0, only) for only in ("nesterov", "model"))
    (tmp_path / "pytest.py").write_text("raise ImportError")  # a user's environment does not have it
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["gpu", "--cpu", "--only", "nesterov", "--wrong-rate"])
    assert gpu.main() == 1
    assert "WRONG" in capfd.readouterr().out
