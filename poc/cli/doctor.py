"""Describe this machine: what it has, what it can run, what is missing, and what is to be installed on it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from poc import data, frameworks
from poc.cli.options import HOME, DoctorOptions, EnvironmentOptions, instance_type
from poc.config import CIFAR10
from poc.frameworks import Build
from poc.host import hardware, topology
from poc.host.hardware import Hardware
from poc.run.launcher import cache
from poc.studies import prices
from poc.values import UserError, to_plain

_FREE_GIGABYTES = 2.0
"""Free space that data and results need."""


def doctor(options: DoctorOptions) -> None:
    """Print the machine, its frameworks, data and price, and what is missing."""
    machine = hardware.detect()
    facts = {
        "machine": instance_type() or machine.describe(),
        "hardware": to_plain(machine),
        "frameworks": {name: frameworks.versions(name) for name in frameworks.FRAMEWORKS},
        "libraries": hardware.versions(),
        "builds": _builds(machine, frameworks.wanted(machine)),
        "warnings": topology.warnings(topology.detect(machine.gpus)) if len(machine.gpus) > 1 else [],
        "data": _data(options.source()),
        "price": _price(machine),
        "missing": [{"what": name, "command": command} for name, command in _missing(machine, options.source())],
    }
    print(json.dumps(facts, indent=1) if options.json else "\n".join(_lines(facts, machine)))


def _lines(facts: Mapping[str, Any], machine: Hardware) -> Iterator[str]:
    """Return the facts as lines."""
    cores = "1 core" if machine.cores == 1 else f"{machine.cores} cores"
    yield f"machine    {facts['machine']}"
    yield f"CPU        {machine.cpu}, {cores}, {machine.memory_bytes / 2**30:.0f} GiB of memory"
    yield f"           {machine.cpu_flops / 1e9:.0f} GFLOP/s in a float32 matrix product"
    if not machine.gpus:
        yield "GPU        none found (no NVIDIA driver). GPU runs are skipped."
    for gpu in machine.gpus:
        major, minor = gpu.capability
        memory = f"{gpu.memory_bytes / 2**30:.0f} GiB"
        yield f"GPU {gpu.index}      {gpu.name}, compute capability {major}.{minor}, {memory}"
        for name in frameworks.FRAMEWORKS:
            yield f"           {name}: {frameworks.unsupported(name, gpu, machine) or 'can train on it'}"
    yield from (f"warning    {warning}" for warning in facts["warnings"])
    for name, versions in facts["frameworks"].items():
        yield f"framework  {name}: {_listed(versions) or 'not installed'}"
    yield from (f"build      {line}" for line in facts["builds"])
    yield f"python     {_listed(facts['libraries'])}"
    yield f"data       {facts['data']}"
    yield f"price      {facts['price']}"
    for missing in facts["missing"]:
        yield f"missing    {missing['what']}: {missing['command']}"


def _data(source: Path | None) -> str:
    """Describe where CIFAR-10 comes from on this machine."""
    folder = data.find(CIFAR10(), source=source, cache=cache())
    if folder is None:
        return "CIFAR-10 is not here: the first run downloads it, or takes synthetic images where that fails"
    if source is not None:
        return f"CIFAR-10 in {folder} (--data or POC_DATA)"
    return f"CIFAR-10 in {folder}" + (" (the cache)" if cache() in folder.parents else "")


def _price(machine: Hardware) -> str:
    price = prices.load({}).of(instance_type(), machine.describe())
    if price is None:
        return "not known: pages show no cost unless run gets --price DOLLARS or --machine NAME"
    return f"{price.dollars_per_hour:.2f} dollars/h for {price.machine} ({price.region}, {price.date})"


def _missing(machine: Hardware, source: Path | None) -> Iterator[tuple[str, str]]:
    """Return each missing part with the command that adds it."""
    wanted = frameworks.wanted(machine)
    for name in frameworks.FRAMEWORKS:
        build = wanted.get(name)
        if build and frameworks.versions(name).get(build.package) != build.version:
            yield f"{build}", "./make_environment.sh --torch" if build.apart else "./make_environment.sh"
        elif build is None and not frameworks.versions(name):
            yield f"{frameworks.load(name).LABEL} (optional)", "./make_environment.sh --torch"
    for package, purpose in (("ray", "Ray (optional, for clusters)"), ("horovod", "Horovod (optional, on CPUs)")):
        if importlib.util.find_spec(package) is None:
            yield purpose, f"./make_environment.sh --{package}"
    if data.find(CIFAR10(), source=source, cache=cache()) is None:
        where = f"CIFAR-10 in {source}" if source else "CIFAR-10 (optional: the first run downloads it)"
        yield where, "export POC_DATA=FOLDER, one that holds CIFAR-10 in any usual form"
    for folder in dict.fromkeys((HOME, _existing(cache()))):
        free = shutil.disk_usage(folder).free / 1e9
        if free < _FREE_GIGABYTES:
            yield f"room in {folder}, where {free:.1f} GB are free", f"free {_FREE_GIGABYTES:g} GB, or set POC_CACHE"


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.exists())


def _builds(machine: Hardware, wanted: Mapping[str, Build]) -> list[str]:
    """Return a line for the build of each wanted framework, and one for each GPU model that a framework cannot use."""
    lines = []
    for name in frameworks.FRAMEWORKS:
        able = frameworks.usable(name, machine)
        lacking = {gpu.name: frameworks.unsupported(name, gpu, machine) for gpu in machine.gpus if gpu not in able}
        lines += [f"{name}: not on GPUs: {reason}" for reason in lacking.values()]
        if build := wanted.get(name):
            cards = dict.fromkeys(gpu.name for gpu in able)
            reason = f"it runs on {', '.join(cards)} with driver {machine.driver}" if build.code else "for the CPU"
            lines.append(f"{name}: {build}, {build.gigabytes:g} GB: {reason}")
    return lines


def environment(options: EnvironmentOptions) -> None:
    """Print a line for each list of packages to install: its environment's folder, and its path.

    Raises UserError if this Python is too old for one of them, or the disk too full.
    """
    machine = hardware.detect()
    wanted = frameworks.wanted(machine, options.frameworks)
    for build in wanted.values():
        if sys.version_info < build.python:
            needed, version = (".".join(map(str, numbers[:2])) for numbers in (build.python, sys.version_info))
            raise UserError(
                f"Python: {build} needs {needed} or later, .venv has {version}: rm -r .venv, then PYTHON=python3.11 "
                "./make_environment.sh"
            )
    new = {
        name: build for name, build in wanted.items() if frameworks.versions(name).get(build.package) != build.version
    }
    if new:
        print("\n".join(_builds(machine, wanted)), file=sys.stderr)
    gigabytes, free = sum(build.gigabytes for build in new.values()), shutil.disk_usage(HOME).free / 1e9
    if new and free < gigabytes + _FREE_GIGABYTES:
        raise UserError(
            f"disk: {HOME} has {free:.1f} GB free, and {gigabytes + _FREE_GIGABYTES:.1f} are needed: "
            f"{gigabytes:.1f} for {', '.join(map(str, new.values()))}, the rest for data and results; make room, or "
            "take a larger disk"
        )
    for name, build in wanted.items():
        folder = frameworks.environment(name) if build.apart else HOME / ".venv"
        for file in build.requirements:
            print(folder.name, file)


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())
