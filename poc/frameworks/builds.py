"""The builds of the frameworks: which one runs on a machine's GPUs with its driver, and why others do not."""

import functools
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from poc.host.hardware import GPU, Hardware
from poc.values import value

LINK = "installed.pth"
"""File in an environment of make_environment.sh that lists the folders of packages of the user's Python."""
_FOLDER = Path(__file__).resolve().parent
_NAMED_PYTHON = _FOLDER.parents[1] / ".venv/made-by-make_environment.sh/python"
_PROBE_SECONDS = 120  # time limit: an import from a cold network disk takes a minute


@value
class Build:
    """A build of a framework: a published one, or one that the user's Python has already."""

    package: str
    version: str
    requirements: tuple[str, ...]  # lists of packages that install it: paths in the checkout
    gigabytes: float  # size on the disk, once installed
    separate: bool = False
    """Whether it has an environment of its own, since its libraries clash with those of another framework."""
    code: tuple[tuple[int, int], ...] = ()
    """Compute capabilities that it contains machine code for; empty for a build for CPUs."""
    driver: str = ""  # oldest driver that it runs with
    libraries: tuple[str, ...] = ()  # shared libraries that no package contains: they have to be on the machine
    hint: str = ""  # how to install these libraries
    processors: tuple[str, ...] = ("x86_64",)
    """Architectures that it is published for, as `platform.machine` names them."""
    python: str = ""  # the Python that has it; empty for a published build

    def __str__(self) -> str:
        return f"{self.package} {self.version}"

    def is_installed(self, versions: Mapping[str, str]) -> bool:
        """Return whether installed packages include this build. A build for CPUs may have the version suffix +cpu."""
        installed = versions.get(self.package)
        return installed == self.version or (not self.code and installed == f"{self.version}+cpu")

    def has_code(self, gpu: GPU) -> bool:
        """Return whether `gpu` can execute it: later cards of the same major version also run its machine code."""
        major, minor = gpu.capability
        return any(major == code_major and minor >= code_minor for code_major, code_minor in self.code)

    def refuses(self, gpu: GPU, driver: str) -> str | None:
        """Return why it does not run on `gpu` with `driver`, in one line, or None."""
        if not self.has_code(gpu):
            supported = ", ".join(f"{major}.{minor}" for major, minor in self.code)
            major, minor = gpu.capability
            return f"{gpu.name} has compute capability {major}.{minor}, {self} supports only {supported}"
        if not as_new(driver, self.driver):
            return f"{self} needs driver {self.driver} or later, this machine has {driver or 'none'}"
        missing = [name for name in self.libraries if shared_library(name) is None]
        return f"{self} needs {', '.join(missing)}: {self.hint}" if missing else None


def choose(builds: Sequence[Build], machine: Hardware) -> Build | None:
    """Return the first of `builds` that runs on a card of `machine`, else the one for CPUs if there is one."""
    for build in builds:
        if not build.code or any(build.refuses(gpu, machine.driver) is None for gpu in machine.gpus):
            return build
    return None


def named_python() -> str:
    """Return the Python that make_environment.sh was started with; empty if unknown."""
    return _NAMED_PYTHON.read_text().strip() if _NAMED_PYTHON.exists() else ""


@functools.cache  # planning asks for every run and card
def find_installed(name: str, python: str, machine: Hardware, version: str = "") -> Build | str:
    """Return the release of framework `name` that the interpreter `python` has, or why it does not run on `machine`.

    The reason is empty if the framework is not there. Importing a framework takes seconds, so that the answer is cached
    in this process, for each `version`. The interpreter runs the file probe.py in the framework's folder, if there is
    one; it needs nothing but Python's own modules. It prints a JSON object: `reason`, why this release cannot be used,
    or its `package` and `version`, and `code`, the compute capabilities that it has machine code for.
    """
    probe = _FOLDER / name / "probe.py"
    if not python or not probe.exists():
        return ""
    command = [python, "-I", str(probe), *(["--gpu"] if machine.gpus else [])]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{python} did not import {name} in {_PROBE_SECONDS} s"
    except OSError as error:
        return f"{python}: {error.strerror}"
    try:
        answer = json.loads(process.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return ": ".join([f"{python} cannot import {name}", *process.stderr.splitlines()[-1:]])
    if "reason" in answer:
        return answer["reason"] and f"{answer['reason']} ({python})"
    answer["code"] = tuple((int(major), int(minor)) for major, minor in answer["code"])
    build = Build(**answer, requirements=(), gigabytes=0.0, separate=True, python=python)
    refused = [build.refuses(gpu, machine.driver) for gpu in machine.gpus]
    if refused and None not in refused:
        return f"{refused[0]} ({python})"
    return build


@functools.cache  # a plan asks for every run and card
def shared_library(name: str) -> Path | None:
    """Find a shared library where the dynamic loader looks, or in CUDA's usual folders."""
    folders = [
        *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)),
        *map(str, sorted(Path("/usr/local").glob("cuda-*/lib64"))),
        *("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib"),
    ]
    return next((Path(folder) / name for folder in folders if (Path(folder) / name).exists()), None)


def as_new(version: str, oldest: str) -> bool:
    """Compare versions of drivers; an unknown one is older than any."""
    installed, needed = (tuple(map(int, re.findall(r"\d+", text))) for text in (version, oldest))
    return installed >= needed
