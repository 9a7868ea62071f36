"""Machines with GPUs as their drivers describe them, to stand where there are none: that code runs, never how fast.

A process whose PYTHONPATH begins with `path/` and whose POC_STAND_IN names one of `MACHINES` sees its cards, and
computes on the CPU what it believes to compute on them (`path/sitecustomize.py`).
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.recorded_nvml import GIB, RecordedNVML

PATH = Path(__file__).parent / "path"
# Name, compute capability, GiB, SM clock (MHz), watts, cores.
CARDS: dict[str, tuple[str, tuple[int, int], int, int, int, int]] = {
    "GT 710": ("NVIDIA GeForce GT 710", (3, 5), 2, 954, 19, 192),
    "K80": ("Tesla K80", (3, 7), 11, 875, 149, 2496),
    "P100": ("Tesla P100-SXM2-16GB", (6, 0), 16, 1480, 300, 3584),
    "V100": ("Tesla V100-SXM2-16GB", (7, 0), 16, 1530, 300, 5120),
    "A10G": ("NVIDIA A10G", (8, 6), 23, 1710, 300, 9216),
    "A100": ("NVIDIA A100-SXM4-40GB", (8, 0), 40, 1410, 400, 6912),
    "H100": ("NVIDIA H100 80GB HBM3", (9, 0), 80, 1980, 700, 16896),
    "B200": ("NVIDIA B200", (10, 0), 180, 1965, 1000, 18944),
}
# Cards in the driver's order, the driver, and whether NVLinks join them.
MACHINES: dict[str, tuple[list[str], str, bool]] = {
    "4 V100": (["V100"] * 4, "535.161.08", True),
    "4 V100, old driver": (["V100"] * 4, "450.80.02", True),
    "4 V100, too old a driver": (["V100"] * 4, "440.33.01", True),
    "8 K80": (["K80"] * 8, "470.256.02", False),
    "8 K80, CUDA 10.2": (["K80"] * 8, "470.256.02", False),
    "8 P100": (["P100"] * 8, "470.57.02", True),
    "4 A10G": (["A10G"] * 4, "535.161.08", False),
    "8 A100": (["A100"] * 8, "550.54.15", True),
    "1 H100": (["H100"], "580.95.05", False),
    "1 H100, older driver": (["H100"], "535.161.08", False),
    "2 V100 and a display card": (["GT 710", "V100", "V100"], "470.57.02", True),
    "no driver": ([], "", False),
}


def library(name: str) -> RecordedNVML:
    """What pynvml says on the machine of that name."""
    cards, driver, linked = MACHINES[name]
    fast = [number for number, card in enumerate(cards) if card != "GT 710"]
    described = [
        _card(card, [other for other in fast if linked and other != number]) for number, card in enumerate(cards)
    ]
    links = {
        pair: (30, True, linked and set(pair) <= set(fast)) for pair in itertools.combinations(range(len(cards)), 2)
    }
    return RecordedNVML(described, links, driver)


def environment(name: str) -> dict[str, str]:
    """What makes a process, and all that it starts, stand on the machine of that name."""
    paths = [str(PATH), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "POC_STAND_IN": name, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return {**variables, "LD_LIBRARY_PATH": str(_cuda_10())} if name.endswith("CUDA 10.2") else variables


@functools.cache
def _cuda_10() -> Path:
    """A folder with CUDA 10.2's libraries as far as they are looked for and opened, until this process ends."""
    from poc.frameworks.mxnet import (
        CUDA_10_LIBRARIES,  # here: a process of a stand-in machine changes it as it is imported
    )

    if not shutil.which("gcc"):
        import pytest  # here: the processes of a stand-in machine have no use for it

        pytest.skip("the libraries of CUDA 10.2 are compiled: sudo apt-get install gcc")
    folder = Path(tempfile.mkdtemp(prefix="cuda-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for library in CUDA_10_LIBRARIES:
        subprocess.run(["gcc", "-shared", "-o", str(folder / library), "-x", "c", os.devnull], check=True)
    return folder


def _card(kind: str, nvlinks: list[int]) -> dict[str, Any]:
    name, capability, gibibytes, clock, watts, cores = CARDS[kind]
    since_volta = {
        "nvmlDeviceGetTotalEnergyConsumption": lambda _: int(time.monotonic() * watts * 700),
        "nvmlDeviceGetCurrentClocksThrottleReasons": 4,
    }
    clocks = {0: clock, 1: clock, 2: 877}  # graphics, SM, memory
    return {
        "nvmlDeviceGetName": name.encode(),
        "nvmlDeviceGetCudaComputeCapability": capability,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=90),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=GIB, total=gibibytes * GIB),
        "nvmlDeviceGetPowerUsage": watts * 700,
        "nvmlDeviceGetTemperature": 60,
        "nvmlDeviceGetClockInfo": clocks,
        "nvmlDeviceGetMaxClockInfo": clocks,
        "nvmlDeviceGetNumGpuCores": cores,
        "nvlinks": nvlinks,
        **(since_volta if capability >= (7, 0) else {}),
    }
