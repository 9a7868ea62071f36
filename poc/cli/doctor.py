"""Say what this machine has, what it can run, what is missing, and what make_environment.sh is to install."""

import contextlib
import ctypes
import json
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tabulate import tabulate

from poc import data, frameworks
from poc.cli.options import HOME, Options
from poc.config import CIFAR10
from poc.frameworks import Build, builds
from poc.host import hardware, nvml
from poc.host.environment import cache
from poc.host.hardware import Hardware
from poc.records import provenance
from poc.values import UserError, counted

_FREE_GIGABYTES = 2.0  # disk space for data and results
# NCCL's processes exchange data in shared memory; its size in a container by default, in bytes, is too small for that.
_SHARED_MEMORY, _DOCKER_SHARED_MEMORY = Path("/dev/shm"), 64 << 20  # noqa: S108
_EXTRAS = ("dev", "ray", "horovod")
_MXNET_LIBRARIES = {"libquadmath.so.0": "libquadmath0", "libgomp.so.1": "libgomp1"}


def doctor(options: Options) -> None:
    """Print the machine, its frameworks, data and price, and what is missing."""
    facts = list(_facts(options))
    if not options.json:
        print(tabulate(facts, tablefmt="plain", disable_numparse=True))
        return
    by_topic = {topic: [text for each, text in facts if each == topic] for topic, _ in facts}
    print(json.dumps(by_topic, indent=1))


def _facts(options: Options) -> Iterator[tuple[str, str]]:
    machine, source = hardware.detect(), options.source()
    cores, gib = counted(machine.cores, "core"), machine.memory_bytes / 2**30
    yield "machine", options.machine_name(machine)
    yield "CPU", f"{machine.cpu}, {cores}, {gib:.0f} GiB of memory"
    for gpu in machine.gpus:
        major, minor = gpu.capability
        gib = gpu.memory_bytes / 2**30
        yield f"GPU {gpu.index}", f"{gpu.name}, compute capability {major}.{minor}, {gib:.0f} GiB"
    if problem := hardware.gpu_problem():
        yield "GPU", problem
    elif not machine.gpus:
        driver = f"NVIDIA driver {machine.driver}" if machine.driver else "no NVIDIA driver"
        yield "GPU", f"none found ({driver}). GPU runs are skipped."
    named = [name for name in frameworks.FRAMEWORKS if frameworks.has_any_build(name)]
    wanted = frameworks.wanted(machine, named)
    wanted = frameworks.wanted(machine, named, offered=dict(_offered(machine, wanted)))
    for name in frameworks.FRAMEWORKS:
        yield "framework", f"{name}: {_listed(frameworks.versions(name)) or 'not installed'}"
    for line in _builds(machine, wanted):
        yield "build", line
    yield "python", _listed(provenance.versions())
    folder = data.find(CIFAR10(), source=source, cache=cache())
    if folder:
        yield "data", f"CIFAR-10 in {folder}"
    if price := options.known_price(machine):
        where = ", ".join(filter(None, (price.region, price.date))) or price.source
        yield "price", f"{price.dollars_per_hour:.2f} dollars/h for {price.machine} ({where})"
    else:
        yield "price", "not known: ./run_all.sh --price DOLLARS (per hour), or --machine INSTANCE_TYPE"
    if folder is None:
        where = f"CIFAR-10 in {source}" if source else "CIFAR-10 (optional: the first run downloads it)"
        yield "missing", f"{where}; to use a copy of your own: export POC_DATA=FOLDER"
    checkpoints = cache() / "checkpoints"
    if megabytes := _size(checkpoints) // 10**6:
        yield "disk", f"{megabytes:,} MB in {checkpoints}: unfinished runs continue from there; delete it to drop them"
    yield from (("missing", line) for line in _missing(machine, wanted))
    yield from (("warning", line) for line in _warnings(machine))


def _size(folder: Path) -> int:
    """Return the bytes of all files in `folder`."""
    size = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # a run that ends now removes its own
            size += file.lstat().st_size
    return size


def _missing(machine: Hardware, wanted: Mapping[str, Build]) -> Iterator[str]:
    """Say what else this machine lacks, and how to get it."""
    for name in frameworks.FRAMEWORKS:
        build = wanted.get(name)
        if build and not build.is_installed(frameworks.versions(name)):
            yield f"{build}: ./make_environment.sh"
        elif build is None and frameworks.available(name, machine) and not frameworks.has_any_build(name):
            yield f"{frameworks.load(name).LABEL} (optional): ./make_environment.sh --torch"
    if "mxnet" in wanted and (packages := _missing_packages()):
        yield f"system libraries of MXNet: {packages}"
    free = shutil.disk_usage(HOME).free / 1e9
    if free < _FREE_GIGABYTES:
        yield f"disk space: {HOME} has {free:.1f} GB free, {_FREE_GIGABYTES:g} GB are needed"


def _missing_packages() -> str:
    """Return how to install the libraries that MXNet needs and this machine lacks; empty if it has them."""
    packages = " ".join(package for library, package in _MXNET_LIBRARIES.items() if not _is_loadable(library))
    return packages and f"sudo apt-get install {packages} (sudo dnf install {re.sub('[0-9]', '', packages)})"


def _is_loadable(library: str) -> bool:
    """Return whether this Python finds a library: in the folders of the system, and conda's in its own, too."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _warnings(machine: Hardware) -> Iterator[str]:
    """Say what will disturb runs on GPUs."""
    shared = shutil.disk_usage(_SHARED_MEMORY).total if _SHARED_MEMORY.is_dir() else 0
    if len(machine.gpus) > 1 and shared <= _DOCKER_SHARED_MEMORY:
        megabytes = shared >> 20
        yield f"shared memory: {_SHARED_MEMORY} has {megabytes} MB, several GPUs need more: docker run --shm-size 2g"
    usable = [
        gpu for gpu in machine.gpus if any(gpu in frameworks.usable(name, machine) for name in frameworks.FRAMEWORKS)
    ]
    names = dict.fromkeys(gpu.name for gpu in usable)
    if len(names) > 1:
        equal = nvml.cuda_setting([gpu.index for gpu in usable if gpu.name == usable[0].name])
        slowest = "different GPUs together are as slow as the slowest"
        yield f"{', '.join(names)}: {slowest}; for equal ones: export CUDA_VISIBLE_DEVICES={equal}"
    idle, busy = list[int](), list[int]()
    for gpu in machine.gpus:
        # Its use would not tell: it is high while the driver starts, as for each process without persistence mode.
        memory = nvml.query("nvmlDeviceGetMemoryInfo", gpu.index)
        (busy if memory and memory.used > nvml.IDLE_BYTES else idle).append(gpu.index)
    if busy:
        advice = f"export CUDA_VISIBLE_DEVICES={nvml.cuda_setting(idle)}" if idle else "see nvidia-smi"
        yield f"GPU {', '.join(map(str, busy))}: in use by another process, which makes runs slower: {advice}"


def environment(options: Options) -> None:
    """Print a line for each list of packages: the folder of its environment, and its path.

    In place of a path "installed" is for the packages of the Python that make_environment.sh was started with. Raise
    UserError if the machine lacks something for them, or room on the disk.
    """
    machine = hardware.detect()
    for warning in _warnings(machine):
        print(f"WARNING: {warning}", file=sys.stderr)
    if options.framework:
        frameworks.load(options.framework)
    named = ["pytorch"] if options.torch or options.installed else []
    wanted = frameworks.wanted(machine, named, options.framework)
    if not wanted:
        raise UserError(f"--framework: {options.framework} has no build for {platform.machine()}")
    wanted = frameworks.wanted(machine, named, options.framework, dict(_offered(machine, wanted)))
    if not machine.gpus and _is_loadable("libcuda.so.1"):  # they are hidden, or the driver waits for a restart
        for name in wanted:
            gpu_builds = [build for build in frameworks.available(name, machine) if build.code]
            installed = (build for build in gpu_builds if build.is_installed(frameworks.versions(name)))
            wanted[name] = next(installed, wanted[name])
    if options.installed:
        wanted = _without_downloads(wanted)
    if "mxnet" in wanted and (packages := _missing_packages()):
        raise UserError(f"MXNet needs system libraries: {packages}; or use --framework pytorch")
    if options.horovod and ("mxnet" not in wanted or wanted["mxnet"].code):
        raise UserError("--horovod builds Horovod without NCCL, for MXNet on CPUs only: leave it out here")
    if options.horovod and not all(map(shutil.which, ("g++", "cmake", "make"))):
        raise UserError("compiling Horovod needs a compiler: sudo apt-get install g++ cmake make")
    if new := {name: each for name, each in wanted.items() if not each.is_installed(frameworks.versions(name))}:
        print(*filter(None, [*_builds(machine, wanted), hardware.gpu_problem()]), sep="\n", file=sys.stderr)
        gigabytes = sum(build.gigabytes for build in new.values()) + _FREE_GIGABYTES
        # An environment that is replaced does not count: its files may be links to those in the cache of uv.
        free = shutil.disk_usage(HOME).free / 1e9
        if free < gigabytes:
            hint = "; --framework NAME installs one framework only" if len(wanted) > 1 else ""
            room = f"make room (for example: uv cache clean){hint}"
            raise UserError(f"disk: {HOME} has {free:.1f} GB free, and {gigabytes:.1f} are needed; {room}")
    for name, build in wanted.items():
        is_here, own = build.python == sys.executable, frameworks.environment(name)
        is_linked = any(own.glob(f"lib/python*/site-packages/{builds.LINK}")) and isinstance(
            builds.find_installed(name, builds.named_python(), machine), Build
        )
        if build.python == str(own / "bin/python") and not is_linked:
            # Another release that was installed there, an outdated one, or one of a Python that is not named any more:
            # the lists in the environment decide.
            published = [each for each in frameworks.available(name, machine) if not each.python]
            build = builds.choose(published, machine) or build
        folder = own if build.separate and not is_here else HOME / ".venv"
        if build.python and not is_here:
            print(folder.name, "installed")
        elif not options.installed:
            for file in build.requirements or ["requirements/common.txt"]:
                print(folder.name, file)
    for name in _EXTRAS:
        if getattr(options, name) and not options.installed:
            print(".venv", f"requirements/{name}.txt")


def _offered(machine: Hardware, wanted: Mapping[str, Build]) -> Iterator[tuple[str, Build]]:
    """Yield the builds that the user's Python has of frameworks of which none of the `wanted` builds is installed."""
    for name, build in wanted.items():
        if build.is_installed(frameworks.versions(name)):
            continue
        installed = builds.find_installed(name, builds.named_python(), machine)
        if isinstance(installed, Build):
            yield name, installed
        elif installed:
            print(f"{name}: the installed version is not used: {installed}", file=sys.stderr)


def _without_downloads(wanted: Mapping[str, Build]) -> dict[str, Build]:
    """Return those of the `wanted` builds that are present already; raises UserError if none is."""
    present = {
        name: build for name, build in wanted.items() if build.python or build.is_installed(frameworks.versions(name))
    }
    absent = [name for name in wanted if name not in present]
    if not present:
        python = builds.named_python() or sys.executable
        raise UserError(f"--installed: {python} has no {' and no '.join(absent)} that fits; leave out --installed")
    if absent:
        print(f"{', '.join(absent)}: left out, since it is not installed", file=sys.stderr)
    return present


def _builds(machine: Hardware, wanted: Mapping[str, Build]) -> Iterator[str]:
    """Say which build of each of the `wanted` frameworks this machine gets and why, and why others do not run."""
    for name in frameworks.FRAMEWORKS:
        if frameworks.load(name).BUILDS and not frameworks.available(name, machine):
            yield f"{name}: left out: it has no build for {platform.machine()}"
            continue
        build = wanted.get(name)
        able = [gpu for gpu in machine.gpus if build and build.code and build.refuses(gpu, machine.driver) is None]
        able = able or frameworks.usable(name, machine)
        refused = {gpu.name: frameworks.unsupported(name, gpu, machine) for gpu in machine.gpus if gpu not in able}
        yield from (f"{name}: not on GPUs: {reason}" for reason in refused.values())
        if build:
            cards = dict.fromkeys(gpu.name for gpu in able)
            reason = f"it runs on {', '.join(cards)} with driver {machine.driver}" if build.code else "for the CPU"
            size = f"installed in {build.python}" if build.python else f"{build.gigabytes:g} GB"
            yield f"{name}: {build}, {size}: {reason}"


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())
