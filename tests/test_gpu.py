"""The command for the first minutes on a GPU, in its sizes for a machine without one."""

import sys

import pytest

from tests import gpu
from tests.conftest import needs_torch

pytestmark = [pytest.mark.slow, needs_torch]


def test_options_train_as_on_the_cpu_and_a_wrong_learning_rate_is_found(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert gpu.check("pytorch", "cpu", 1.0, "nesterov")
    monkeypatch.setattr(sys, "argv", ["gpu", "--cpu", "--only", "nesterov", "--wrong-rate"])
    assert gpu.main() == 1
    assert "WRONG" in capfd.readouterr().out
