"""Which cards CUDA uses, by a recorded driver."""

from __future__ import annotations

import pytest

from poc.machine import nvml, sensors
from tests.recorded_nvml import eight_cards


@pytest.mark.parametrize(
    ("setting", "cards"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("4,5", [4, 5]),
        ("6, 1", [6, 1]),
        ("", []),
        ("-1", []),
        ("5,99,1", [5]),
        ("GPU-3f00,GPU-7", [3, 7]),
        ("GPU-", []),  # begins every card's
    ],
)
def test_the_cards_that_cuda_uses(setting: str | None, cards: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    monkeypatch.setattr(nvml, "pynvml", eight_cards())
    assert nvml.visible() == cards
    with sensors.gpus(2) as first_two:
        assert [sensor.device for sensor in first_two] == [f"gpu {card}" for card in cards[:2]]
