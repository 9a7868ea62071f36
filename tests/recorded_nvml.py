"""A recorded NVIDIA driver that replaces pynvml, and small kernel files, for tests on machines without GPUs."""
# ruff: noqa: N802 - it has the function names of pynvml

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

GIB = 2**30


class RecordedNVML:
    """Answers to pynvml's queries by card: a value, a function of the time `now`, or a dict by the query's argument.

    A query without an answer is not supported. From its time "lost" on a card answers none, nor if "denied".
    """

    def __init__(self, cards: list[dict[str, Any]], driver: str = "535.161") -> None:
        self.cards, self.driver = cards, driver
        self.now = 0.0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlDeviceGet"):
            return functools.partial(self._answer, name)
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        if not self.driver:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return self.driver.encode()

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self.now >= self.cards[index].get("lost", float("inf")):
            raise pynvml.NVMLError(self.cards[index].get("error", pynvml.NVML_ERROR_GPU_IS_LOST))
        if "denied" in self.cards[index]:
            raise pynvml.NVMLError_NoPermission
        return index

    def nvmlDeviceGetUUID(self, card: int) -> str:
        return f"GPU-{card}f00"

    def nvmlDeviceGetPciInfo(self, card: int) -> Any:
        return SimpleNamespace(domain=0, bus=card, device=0)

    def _answer(self, query: str, card: int, *arguments: int) -> Any:
        answers = self.cards[card]
        if query not in answers:
            raise pynvml.NVMLError_NotSupported
        answer = answers[query]
        if isinstance(answer, dict):
            answer = answer[arguments[0]]
        return answer(self.now) if callable(answer) else answer


def p100(number: int, **answers: Any) -> dict[str, Any]:
    """Return a card that draws 100 W plus its number until second 4, and 200 W afterwards."""
    return {
        "nvmlDeviceGetName": b"Tesla P100",
        "nvmlDeviceGetCudaComputeCapability": (6, 0),
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=90),
        "nvmlDeviceGetMemoryInfo": lambda now: SimpleNamespace(used=3 * GIB if now == 2 else GIB, total=16 * GIB),
        "nvmlDeviceGetPowerUsage": lambda now: (100 + number) * 1000 if now <= 4 else 200_000,
        "nvmlDeviceGetTemperature": lambda now: 40 + now,
        "nvmlDeviceGetClockInfo": {pynvml.NVML_CLOCK_SM: 1189 if number in (2, 6) else 1328},
        "nvmlDeviceGetMaxClockInfo": {pynvml.NVML_CLOCK_SM: 1480},
        "nvmlDeviceGetNumGpuCores": 3584,
        **answers,
    }


def eight_cards() -> RecordedNVML:
    """Return cards: 2 and 6 have lower clocks, 3 no power counter, 4 idles at unknown power, 5 is lost after 6 s."""
    cards = [p100(number) for number in range(8)]
    del cards[3]["nvmlDeviceGetPowerUsage"]
    cards[4].update(nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=0), nvmlDeviceGetPowerUsage=0)
    cards[5].update(lost=6)
    return RecordedNVML(cards)


def kernel_tree(root: Path, files: dict[str, object]) -> Path:
    """Write files like those of /sys and /proc below `root`, and return `root`."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root
