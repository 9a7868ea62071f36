"""Which published build of a framework runs on a machine's cards with its driver, and why the others do not."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from poc.values import value

if TYPE_CHECKING:
    from poc.host.hardware import GPU, Hardware


@value
class Build:
    """One published build of a framework."""

    package: str
    version: str
    requirements: tuple[str, ...]
    """Lists of packages that install it: paths in the checkout."""
    gigabytes: float
    """On the disk, once installed."""
    apart: bool = False
    """Whether it has an environment of its own, since its libraries clash with those of another framework."""
    code: tuple[tuple[int, int], ...] = ()
    """Compute capabilities that it holds machine code for; none: it is for CPUs."""
    python: tuple[int, int] = (3, 9)
    """The oldest that it is for."""
    driver: str = ""
    """The oldest that it runs with."""
    libraries: tuple[str, ...] = ()
    """Shared libraries that are in no package: they have to be on the machine."""
    hint: str = ""
    """How they come there."""

    def __str__(self) -> str:
        return f"{self.package} {self.version}"

    def has_code(self, gpu: GPU) -> bool:
        """Whether `gpu` can execute it: machine code runs on later cards of the same major version, too."""
        major, minor = gpu.capability
        return any(major == own[0] and minor >= own[1] for own in self.code)

    def refuses(self, gpu: GPU, driver: str) -> str | None:
        """Why it does not run on `gpu` with `driver`, in one line; None where it does."""
        if not self.has_code(gpu):
            known = ", ".join(f"{major}.{minor}" for major, minor in self.code)
            major, minor = gpu.capability
            return f"{gpu.name} has compute capability {major}.{minor}, {self} supports only {known}"
        if not as_new(driver, self.driver):
            return f"{self} needs driver {self.driver} or later, this machine has {driver or 'none'}"
        missing = [name for name in self.libraries if shared_library(name) is None]
        return f"{self} needs {', '.join(missing)}: {self.hint}" if missing else None


def choose(builds: Sequence[Build], machine: Hardware) -> Build | None:
    """The first of `builds` that runs on any card of `machine`, else the one for CPUs; None for neither."""
    for build in builds:
        if not build.code or any(build.refuses(gpu, machine.driver) is None for gpu in machine.gpus):
            return build
    return None


def unsupported(builds: Sequence[Build], gpu: GPU, driver: str) -> str | None:
    """Why none of `builds` runs on `gpu`, in one line; None where one does."""
    on_cards = [build for build in builds if build.code]
    # Where some have code for it, the driver or the libraries are to blame.
    near = [build for build in on_cards if build.has_code(gpu)] or on_cards[:1]
    reasons = [build.refuses(gpu, driver) for build in near]
    return None if None in reasons else "; ".join(filter(None, reasons)) or "no build for GPUs"


@functools.cache  # a plan asks for every run and card
def shared_library(name: str) -> Path | None:
    """Where the dynamic loader, or CUDA's usual folders, have the shared library `name`; None for nowhere."""
    folders = [
        *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)),
        *map(str, sorted(Path("/usr/local").glob("cuda-*/lib64"))),
        *("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib"),
    ]
    return next((Path(folder) / name for folder in folders if (Path(folder) / name).exists()), None)


def as_new(version: str, oldest: str) -> bool:
    """Whether a driver's `version` is `oldest` or later; one that is not known is not."""
    given, wanted = (tuple(map(int, re.findall(r"\d+", text))) for text in (version, oldest))
    return given >= wanted
