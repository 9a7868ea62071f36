"""The table of docs/what_runs_where.md: what is installed, planned or refused on simulated machines.

    .venv/bin/python -m tests.what_runs_where

writes it again, from the commands' own answers.
"""

import contextlib
import dataclasses
import io
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from tabulate import tabulate

from poc import CIFAR10, Recipe, frameworks
from poc.__main__ import main
from poc.frameworks import pytorch
from poc.host import hardware, nvml
from poc.host.hardware import Hardware
from poc.plan import plan
from tests import fake_gpus
from tests.recorded_nvml import RecordedNVML, kernel_tree

PAGE = Path(__file__).parents[1] / "docs/what_runs_where.md"
START, END = "<!-- written by tests/what_runs_where.py -->\n\n", "\n\n<!-- end -->"
NVIDIA, AMD, DISPLAY = ("0x030200", "0x10de"), ("0x120000", "0x1002"), ("0x030000", "0x1002")
# The machine of tests/fake_gpus with the driver's answers, and class and vendor of a device on the PCI bus.
MACHINES: dict[str, tuple[str, tuple[str, str]]] = {
    "1 H100, driver 580": ("1 H100", NVIDIA),
    "8 A100, driver 550": ("8 A100", NVIDIA),
    "4 A10G, driver 535": ("4 A10G", NVIDIA),
    "4 V100, driver 535": ("4 V100", NVIDIA),
    "1 L4, driver 535": ("1 L4", NVIDIA),
    "1 RTX 5090, driver 575": ("1 RTX 5090", NVIDIA),
    "8 P100, driver 470": ("8 P100", NVIDIA),
    "a part of an H100 (MIG)": ("1 H100", NVIDIA),
    "an NVIDIA GPU without a driver": ("no driver", NVIDIA),
    "an AMD GPU": ("no driver", AMD),
    "CPU with an AMD display chip": ("no driver", DISPLAY),
}


def driver(name: str) -> RecordedNVML:
    """Return the recorded driver of a machine."""
    library = fake_gpus.library(MACHINES[name][0])
    if "MIG" in name:
        library.cards[0]["nvmlDeviceGetMigMode"] = [1, 1]
    return library


def row(name: str) -> list[str]:
    """Return what is installed on a machine, and which framework a recipe of float32 and bfloat16 gets, or why none."""
    with contextlib.ExitStack() as stack:
        device_class, vendor = MACHINES[name][1]
        devices = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kernel_tree(devices / "0000:01:00.0", {"class": device_class, "vendor": vendor})
        stack.enter_context(mock.patch.object(hardware, "PCI_DEVICES", devices))
        stack.enter_context(mock.patch.object(nvml, "pynvml", driver(name)))
        stack.enter_context(mock.patch.dict("os.environ"))
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        machine = dataclasses.replace(hardware.detect(), bfloat16=False)
        nothing: Mapping[str, str] = {}
        with mock.patch.object(frameworks, "versions", return_value=nothing):
            wanted = frameworks.wanted(machine)
        versions = {name: {build.package: build.version, "torchvision": ""} for name, build in wanted.items()}
        for module in (frameworks, pytorch):
            stack.enter_context(mock.patch.object(module, "versions", lambda name: versions.get(name, nothing)))
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            status = main(["plan", "throughput"])
        builds = ", ".join(map(str, wanted.values()))
        if status == 2:
            return [name, builds, "exit code 2: " + errors.getvalue().partition("poc: ")[2].partition(";")[0], ""]
        return [name, builds, *(choice(machine, dtype) for dtype in ("float32", "bfloat16"))]


def choice(machine: Hardware, dtype: str) -> str:
    """Return the framework and devices of a recipe that names no framework."""
    kind = "gpu" if machine.gpus else "cpu"
    count = max(1, len(machine.gpus))
    recipe = Recipe(model="cifar_resnet8_v2", data=CIFAR10(), kind=kind, devices=count, dtype=dtype)
    (planned,) = plan("table", recipe, machine)
    if planned.skip:
        return "not possible"
    devices = kind.upper() if count == 1 else f"{count} {kind.upper()}s"
    return f"{frameworks.load(planned.run.framework).LABEL}, {devices}"


def table() -> str:
    """Return the table as Markdown."""
    headers = ["machine", "installed", "`./run_all.sh` in float32", "in bfloat16"]
    return tabulate([row(name) for name in MACHINES], headers=headers, tablefmt="github", disable_numparse=True)


if __name__ == "__main__":
    page = PAGE.read_text()
    before, _, rest = page.partition(START)
    PAGE.write_text(before + START + table() + END + rest.partition(END)[2])
