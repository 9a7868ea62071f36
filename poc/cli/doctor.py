"""Say what this machine has, what it can run, what is missing, and what make_environment.sh is to install."""

from __future__ import annotations

import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping

from tabulate import tabulate

from poc import data, frameworks
from poc.cli.options import HOME, Options
from poc.config import CIFAR10
from poc.frameworks import Build
from poc.frameworks.builds import shared_library
from poc.host import hardware
from poc.host.environment import cache
from poc.host.hardware import Hardware
from poc.records import provenance
from poc.run.progress import counted
from poc.values import UserError

_FREE_GIGABYTES = 2.0
"""Disk space for data and results."""
_EXTRAS = ("dev", "ray", "horovod")
_MXNET_LIBRARIES = {"libquadmath.so.0": "libquadmath0", "libgomp.so.1": "libgomp1"}


def doctor(options: Options) -> None:
    """Print the machine, its frameworks, data and price, and what is missing."""
    facts = list(_facts(options))
    if not options.json:
        print(tabulate(facts, tablefmt="plain", disable_numparse=True))
        return
    by_topic: dict[str, list[str]] = defaultdict(list)
    for topic, text in facts:
        by_topic[topic].append(text)
    print(json.dumps(by_topic, indent=1))


def _facts(options: Options) -> Iterator[tuple[str, str]]:
    machine, source = hardware.detect(), options.source()
    machine_name = options.machine_name(machine)
    cores, gib = counted(machine.cores, "core"), machine.memory_bytes / 2**30
    yield "machine", machine_name
    yield "CPU", f"{machine.cpu}, {cores}, {gib:.0f} GiB of memory"
    for gpu in machine.gpus:
        major, minor = gpu.capability
        gib = gpu.memory_bytes / 2**30
        yield f"GPU {gpu.index}", f"{gpu.name}, compute capability {major}.{minor}, {gib:.0f} GiB"
    if not machine.gpus:
        yield "GPU", "none found (no NVIDIA driver). GPU runs are skipped."
    wanted = frameworks.wanted(machine)
    for name in frameworks.FRAMEWORKS:
        yield "framework", f"{name}: {_listed(frameworks.versions(name)) or 'not installed'}"
    for line in _builds(machine, wanted):
        yield "build", line
    yield "python", _listed(provenance.versions())
    if folder := data.find(CIFAR10(), source=source, cache=cache()):
        yield "data", f"CIFAR-10 in {folder}"
    if price := options.prices(machine_name).of(machine_name, machine.describe()):
        yield "price", f"{price.dollars_per_hour:.2f} dollars/h for {price.machine} ({price.region}, {price.date})"
    else:
        yield "price", "not known: pages show no cost unless run gets --price or --machine"
    for name in frameworks.FRAMEWORKS:
        build = wanted.get(name)
        if build and not build.is_installed(frameworks.versions(name)):
            yield "missing", f"{build}: ./make_environment.sh" + (" --torch" if build.separate else "")
        elif build is None and not frameworks.versions(name):
            yield "missing", f"{frameworks.load(name).LABEL} (optional): ./make_environment.sh --torch"
    if folder is None:
        where = f"CIFAR-10 in {source}" if source else "CIFAR-10 (optional: the first run downloads it)"
        yield "missing", f"{where}: export POC_DATA=FOLDER, one that holds CIFAR-10 in any usual form"
    free = shutil.disk_usage(HOME).free / 1e9
    if free < _FREE_GIGABYTES:
        yield "missing", f"room in {HOME}, where {free:.1f} GB are free: free {_FREE_GIGABYTES:g} GB"


def environment(options: Options) -> None:
    """Print a line for each list of packages: the folder of its environment, and its path.

    Raise UserError if the machine lacks something for them, or room on the disk.
    """
    machine = hardware.detect()
    wanted = frameworks.wanted(machine, ["pytorch"] if options.torch else [])
    if packages := [package for library, package in _MXNET_LIBRARIES.items() if not shared_library(library)]:
        raise UserError(f"MXNet needs system libraries that are missing: sudo apt-get install {' '.join(packages)}")
    if options.horovod and wanted["mxnet"].code:
        raise UserError("--horovod builds Horovod without NCCL, for CPUs only: leave it out on a machine with GPUs")
    if options.horovod and not all(map(shutil.which, ("g++", "cmake", "make"))):
        raise UserError("compiling Horovod needs a compiler: sudo apt-get install g++ cmake make")
    if new := [build for name, build in wanted.items() if not build.is_installed(frameworks.versions(name))]:
        print("\n".join(_builds(machine, wanted)), file=sys.stderr)
        gigabytes = sum(build.gigabytes for build in new) + _FREE_GIGABYTES
        free = shutil.disk_usage(HOME).free / 1e9
        if free < gigabytes:
            raise UserError(f"disk: {HOME} has {free:.1f} GB free, and {gigabytes:.1f} are needed; make room")
    for name, build in wanted.items():
        folder = frameworks.environment(name) if build.separate else HOME / ".venv"
        for file in build.requirements:
            print(folder.name, file)
    for name in _EXTRAS:
        if getattr(options, name):
            print(".venv", f"requirements/{name}.txt")


def _builds(machine: Hardware, wanted: Mapping[str, Build]) -> Iterator[str]:
    """Say which build of each of the `wanted` frameworks this machine gets and why, and why others do not run."""
    for name in frameworks.FRAMEWORKS:
        able = frameworks.usable(name, machine)
        refused = {gpu.name: frameworks.unsupported(name, gpu, machine) for gpu in machine.gpus if gpu not in able}
        yield from (f"{name}: not on GPUs: {reason}" for reason in refused.values())
        if build := wanted.get(name):
            cards = dict.fromkeys(gpu.name for gpu in able)
            reason = f"it runs on {', '.join(cards)} with driver {machine.driver}" if build.code else "for the CPU"
            yield f"{name}: {build}, {build.gigabytes:g} GB: {reason}"


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())
