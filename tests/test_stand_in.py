"""Whole runs of kind "gpu", on machines as their drivers describe them: that the code runs, never how fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from poc import engines
from tests import launch, stand_in

RECIPE = """
from poc import Recipe, Synthetic
data = Synthetic(size=16, crop=16, train=640, validation=70)
recipe = Recipe(model="cifar_resnet8_v2", data=data, devices=[1, 2], batch_per_device=16, steps=8, window=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "engine", "completed"),
    [
        ("4 V100, old driver", "gluon", 2),
        ("1 H100, older driver", "pytorch", 1),
        ("8 K80", "gluon", 0),
        ("4 V100, too old a driver", "gluon", 0),
        ("no driver", "gluon", 0),
    ],
)
def test_runs_on_cards(machine: str, engine: str, completed: int, tmp_path: Path) -> None:
    if engine == "pytorch" and "torch" not in engines.versions("pytorch"):
        pytest.skip("PyTorch is not installed")
    (tmp_path / "mine.py").write_text(RECIPE)
    launch.finish(tmp_path / "mine.py", tmp_path, environment=stand_in.environment(machine))
    records = launch.records(tmp_path)
    on_cards = [record for record in records if record.run.kind == "gpu" and record.outcome == "completed"]
    assert [record.run.engine for record in on_cards] == [engine] * completed
    assert [record.run.devices for record in on_cards] == [1, 2][:completed]
    assert all(record.engine_choice for record in on_cards)
    reasons = [record.reason for record in records if record.outcome == "skipped"]
    assert len(reasons) == 2 - completed
    assert all("GPU" in reason and "\n" not in reason for reason in reasons)
    assert "ResNet-8" in (tmp_path / "results" / "results.md").read_text()
