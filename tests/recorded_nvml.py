"""A recorded NVIDIA driver, to stand where pynvml does: `monkeypatch.setattr(nvml, "pynvml", RecordedNVML(cards))`; and
the kernel's small files."""
# ruff: noqa: N802 - it has the function names of pynvml

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Union

import pynvml

GIB = 2**30
Links = dict[tuple[int, int], tuple[Union[int, None], bool, bool]]


class RecordedNVML:
    """What pynvml's functions answer of each card: a value, a function of the time `now`, or a dict by the detail.

    A card that has no answer does not support the question; from its time "lost" on it has none at all. Its "nvlinks"
    are the cards at their other ends. `links` holds, for pairs of cards: the level of their common ancestor (None where
    it is not told), whether they are peers, and whether by NVLink.
    """

    def __init__(self, cards: list[dict[str, Any]], links: Links | None = None, driver: str = "535.161") -> None:
        self.cards, self.links, self.driver = cards, links or {}, driver
        self.now = 0.0
        self.sessions = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlDeviceGet"):
            return functools.partial(self._answer, name)
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        if not self.driver:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return self.driver.encode()

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self.now >= self.cards[index].get("lost", float("inf")):
            raise pynvml.NVMLError_GpuIsLost
        return index

    def nvmlDeviceGetUUID(self, card: int) -> str:
        return f"GPU-{card}f00"

    def nvmlDeviceGetPciInfo(self, card: int) -> Any:
        return SimpleNamespace(domain=0, bus=card, device=0)

    def nvmlDeviceGetNvLinkState(self, card: int, link: int) -> int:
        if link >= len(self._answer("nvlinks", card)):
            raise pynvml.NVMLError_InvalidArgument
        return 1

    def nvmlDeviceGetNvLinkRemotePciInfo(self, card: int, link: int) -> Any:
        return self.nvmlDeviceGetPciInfo(self._answer("nvlinks", card)[link])

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:
        level = self.links[a, b][0]
        if level is None:
            raise pynvml.NVMLError_NotSupported
        return level

    def nvmlDeviceGetP2PStatus(self, a: int, b: int, index: int) -> int:
        _, peer, nvlink = self.links[a, b]
        return 0 if (nvlink if index == pynvml.NVML_P2P_CAPS_INDEX_NVLINK else peer) else 5

    def _answer(self, question: str, card: int, *details: int) -> Any:
        recorded = self.cards[card]
        if question not in recorded:
            raise pynvml.NVMLError_NotSupported
        answer = recorded[question]
        if isinstance(answer, dict):
            answer = answer[details[0]]
        return answer(self.now) if callable(answer) else answer


def p100(number: int, sm_clock: int = 1328, **other: Any) -> dict[str, Any]:
    """A card that draws 100 W plus its number until second 4, and 200 W from then on."""
    return {
        "nvmlDeviceGetName": b"Tesla P100",
        "nvmlDeviceGetCudaComputeCapability": (6, 0),
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=90),
        "nvmlDeviceGetMemoryInfo": lambda now: SimpleNamespace(used=3 * GIB if now == 2 else GIB, total=16 * GIB),
        "nvmlDeviceGetPowerUsage": lambda now: (100 + number) * 1000 if now <= 4 else 200_000,
        "nvmlDeviceGetTemperature": lambda now: 40 + now,
        "nvmlDeviceGetClockInfo": {pynvml.NVML_CLOCK_SM: sm_clock, pynvml.NVML_CLOCK_MEM: 715},
        "nvmlDeviceGetMaxClockInfo": {pynvml.NVML_CLOCK_SM: 1480, pynvml.NVML_CLOCK_MEM: 715},
        "nvmlDeviceGetApplicationsClock": {pynvml.NVML_CLOCK_SM: sm_clock, pynvml.NVML_CLOCK_MEM: 715},
        **other,
    }


def eight_cards() -> RecordedNVML:
    """Cards 2 and 6 are clocked lower, 3 has no power counter, 4 idles and gives its power as 0, 5 disappears."""
    cards = [p100(number, sm_clock=1189 if number in (2, 6) else 1328) for number in range(8)]
    del cards[3]["nvmlDeviceGetPowerUsage"]
    cards[4].update(nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=0), nvmlDeviceGetPowerUsage=0)
    cards[5].update(lost=6)
    return RecordedNVML(cards, links={pair: (30, True, False) for pair in itertools.combinations(range(8), 2)})


def kernel_tree(root: Path, files: dict[str, object]) -> Path:
    """Writes what stands for /sys in `root`, and returns that."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root
