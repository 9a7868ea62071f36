"""Fake GPU machines, as their drivers describe them: they show that code runs, never how fast.

A process whose PYTHONPATH begins with `path/` and whose POC_STAND_IN names one of `MACHINES` sees its cards, and
computes on the CPU instead of on them (`path/sitecustomize.py`).
"""

import atexit
import functools
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
    "L4": ("NVIDIA L4", (8, 9), 23, 2040, 72, 7424),
    "A100": ("NVIDIA A100-SXM4-40GB", (8, 0), 40, 1410, 400, 6912),
    "H100": ("NVIDIA H100 80GB HBM3", (9, 0), 80, 1980, 700, 16896),
    "B200": ("NVIDIA B200", (10, 0), 180, 1965, 1000, 18944),
    "RTX 5090": ("NVIDIA GeForce RTX 5090", (12, 0), 32, 2407, 575, 21760),
}
# Cards in the driver's order, and the version of the driver.
MACHINES: dict[str, tuple[list[str], str]] = {
    "4 V100": (["V100"] * 4, "535.161.08"),
    "4 V100, old driver": (["V100"] * 4, "450.80.02"),
    "4 V100, too old a driver": (["V100"] * 4, "440.33.01"),
    "8 K80": (["K80"] * 8, "470.256.02"),
    "8 K80, CUDA 10.2": (["K80"] * 8, "470.256.02"),
    "8 P100": (["P100"] * 8, "470.57.02"),
    "4 A10G": (["A10G"] * 4, "535.161.08"),
    "8 A100": (["A100"] * 8, "550.54.15"),
    "1 L4": (["L4"], "535.161.08"),
    "1 RTX 5090": (["RTX 5090"], "575.57.08"),
    "1 H100": (["H100"], "580.95.05"),
    "1 H100, older driver": (["H100"], "535.161.08"),
    "2 V100 and a display card": (["GT 710", "V100", "V100"], "470.57.02"),
    "a P100 and 2 A100": (["P100", "A100", "A100"], "550.54.15"),
    "no driver": ([], ""),
}


def library(name: str) -> RecordedNVML:
    """Return the recorded driver of the machine of that name."""
    cards, driver = MACHINES[name]
    return RecordedNVML([_card(card) for card in cards], driver)


def environment(name: str) -> dict[str, str]:
    """Return the variables with which a process, and all that it starts, runs on the machine of that name."""
    paths = [str(PATH), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "POC_STAND_IN": name, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return {**variables, "LD_LIBRARY_PATH": str(_cuda_10())} if name.endswith("CUDA 10.2") else variables


@functools.cache
def _cuda_10() -> Path:
    """Return a folder with empty libraries of CUDA 10.2's names, until this process ends."""
    from poc.frameworks.mxnet import (
        CUDA_10_LIBRARIES,  # imported late: `path/sitecustomize.py` changes the module while it is imported
    )

    if not shutil.which("gcc"):
        import pytest  # slow, and not needed by the processes of a fake machine

        pytest.skip("the libraries of CUDA 10.2 are compiled: sudo apt-get install gcc")
    folder = Path(tempfile.mkdtemp(prefix="cuda-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for library in CUDA_10_LIBRARIES:
        subprocess.run(["gcc", "-shared", "-o", str(folder / library), "-x", "c", os.devnull], check=True)
    return folder


def _card(kind: str) -> dict[str, Any]:
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
        **(since_volta if capability >= (7, 0) else {}),
    }
