"""Say what this machine has, what it can run, and what is missing."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from poc import data, frameworks
from poc.cli.options import HOME, DoctorOptions, instance_type
from poc.config import CIFAR10
from poc.frameworks import Build
from poc.host import hardware
from poc.host.hardware import Hardware
from poc.published import prices
from poc.records import provenance
from poc.run.launcher import cache
from poc.values import to_plain

FREE_GIGABYTES = 2.0
"""Disk space for data and results."""


def doctor(options: DoctorOptions) -> None:
    """Print the machine, its frameworks, data and price, and what is missing."""
    machine = hardware.detect()
    facts = {
        "machine": instance_type() or machine.describe(),
        "hardware": to_plain(machine),
        "frameworks": {name: frameworks.versions(name) for name in frameworks.FRAMEWORKS},
        "libraries": provenance.versions(),
        "builds": describe_builds(machine, frameworks.wanted(machine)),
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
        if build and not build.is_installed(frameworks.versions(name)):
            yield f"{build}", "./make_environment.sh" + " --torch" * build.separate
        elif build is None and not frameworks.versions(name):
            yield f"{frameworks.load(name).LABEL} (optional)", "./make_environment.sh --torch"
    for package, purpose in (("ray", "Ray (optional, for clusters)"), ("horovod", "Horovod (optional, on CPUs)")):
        if not is_installed(package):
            yield purpose, f"./make_environment.sh --{package}"
    if data.find(CIFAR10(), source=source, cache=cache()) is None:
        where = f"CIFAR-10 in {source}" if source else "CIFAR-10 (optional: the first run downloads it)"
        yield where, "export POC_DATA=FOLDER, one that holds CIFAR-10 in any usual form"
    for folder in dict.fromkeys((HOME, _existing(cache()))):
        free = shutil.disk_usage(folder).free / 1e9
        if free < FREE_GIGABYTES:
            yield f"room in {folder}, where {free:.1f} GB are free", f"free {FREE_GIGABYTES:g} GB, or set POC_CACHE"


def _existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.exists())


def is_installed(package: str) -> bool:
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def describe_builds(machine: Hardware, wanted: Mapping[str, Build]) -> list[str]:
    """Say which build of each of the `wanted` frameworks this machine takes and why, and why others do not run."""
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


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())
