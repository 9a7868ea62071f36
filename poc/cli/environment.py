"""Choose the packages that make_environment.sh installs on this machine."""

from __future__ import annotations

import ctypes
import shutil
import sys
from collections.abc import Iterator

from poc import frameworks
from poc.cli.doctor import FREE_GIGABYTES, describe_builds, is_installed
from poc.cli.options import HOME, EnvironmentOptions
from poc.frameworks import Build
from poc.host import hardware
from poc.values import UserError

EXTRAS = ("dev", "ray", "horovod")
_MXNET_LIBRARIES = {"libquadmath.so.0": "libquadmath0", "libgomp.so.1": "libgomp1"}


def environment(options: EnvironmentOptions) -> None:
    """Print a line for each list of packages: the folder of its environment, and its path.

    Raise UserError if the machine lacks something for them, or room on the disk.
    """
    machine = hardware.detect()
    wanted = frameworks.wanted(machine, ["pytorch"] if options.torch else [])
    extras = [name for name in EXTRAS if getattr(options, name)]
    if problem := next(_problems(wanted["mxnet"], "horovod" in extras), None):
        raise UserError(problem)
    new = [build for name, build in wanted.items() if not build.is_installed(frameworks.versions(name))]
    if new:
        print("\n".join(describe_builds(machine, wanted)), file=sys.stderr)
        _check_disk(new)
    for name, build in wanted.items():
        folder = frameworks.environment(name) if build.separate else HOME / ".venv"
        for file in build.requirements:
            print(folder.name, file)
    for name in extras:
        print(".venv", f"requirements/{name}.txt")


def _problems(mxnet: Build, horovod: bool) -> Iterator[str]:
    if packages := [package for library, package in _MXNET_LIBRARIES.items() if not _is_loadable(library)]:
        yield f"MXNet needs system libraries that are missing: sudo apt-get install {' '.join(packages)}"
    if horovod and mxnet.code:
        yield "--horovod builds Horovod without NCCL, for CPUs only: leave it out on a machine with GPUs"
    if horovod and not is_installed("horovod") and not all(map(shutil.which, ("g++", "cmake", "make"))):
        yield "compiling Horovod needs a compiler: sudo apt-get install g++ cmake make"


def _is_loadable(library: str) -> bool:
    try:
        return bool(ctypes.CDLL(library))
    except OSError:
        return False


def _check_disk(new: list[Build]) -> None:
    gigabytes, free = sum(build.gigabytes for build in new), shutil.disk_usage(HOME).free / 1e9
    if free < gigabytes + FREE_GIGABYTES:
        raise UserError(
            f"disk: {HOME} has {free:.1f} GB free, and {gigabytes + FREE_GIGABYTES:.1f} are needed: "
            f"{gigabytes:.1f} for {', '.join(map(str, new))}, the rest for data and results; make room, or take a "
            "larger disk"
        )
