"""Interface of a framework, and the frameworks by name, each imported only when it is used.

A framework is a package with the members of `Framework`, in this folder or in a folder that the environment variable
POC_FRAMEWORKS names (absolute paths, separated as in PATH). With POC_FRAMEWORKS=/home/me/frameworks a recipe's
framework="mine" is the package /home/me/frameworks/mine, imported as `poc.frameworks.mine`.
tests/frameworks/reference is a small framework to start from.
"""

import dataclasses
import functools
import importlib.metadata
import os
import pkgutil
import platform
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from poc.config import NCCL, Training
from poc.config.networks import Cost
from poc.config.run import Run
from poc.frameworks import builds
from poc.frameworks.builds import Build as Build
from poc.frameworks.session import Session
from poc.host.control_groups import text
from poc.host.hardware import GPU, Hardware
from poc.values import UserError, suggest, value

__path__ += [folder for folder in os.environ.get("POC_FRAMEWORKS", "").split(os.pathsep) if folder]
FRAMEWORKS = tuple(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
"""Names of the packages in this folder, then in those of POC_FRAMEWORKS. The first that can do a run is used."""
HOME = Path(__file__).resolve().parents[2]

_MIN_CAPABILITY = {"float16": (5, 3), "bfloat16": (8, 0), "tf32": (8, 0)}
"""Compute capability from which cards compute in a precision (CUDA C++ Programming Guide, "Compute Capabilities")."""


@value
class Cluster:
    """Environment of a run's workers."""

    environments: list[dict[str, str]]  # each worker's environment variables, to be set before it starts
    helpers: dict[str, subprocess.Popen[str]]
    """Processes that serve the workers, by name; the run is lost if one ends before they do."""


def worker_environments(
    run: Run, cores: int, hosts: Sequence[str], common: Mapping[str, object] = {}, ranks: Mapping[str, str] = {}
) -> list[dict[str, str]]:
    """Return each worker's environment: its threads, `common`, and variables with its ranks, divided over `hosts`.

    `ranks` names the variables and for each "rank", "local_rank", "host_rank", or the "host" of the worker.
    """
    per_host = run.workers // len(hosts)
    environments = []
    for worker in range(run.workers):
        host_rank, local_rank = divmod(worker, per_host)
        values = {"rank": worker, "local_rank": local_rank, "host_rank": host_rank, "host": hosts[host_rank]}
        named = {variable: values[name] for variable, name in ranks.items()}
        # Card 0 is then the driver's card 0, whose counters are read.
        threads = {"OMP_NUM_THREADS": cores, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        environments.append({name: str(value) for name, value in {**threads, **common, **named}.items()})
    return environments


class Framework(Protocol):
    """Members of a framework's module. Importing it must not import its framework."""

    LABEL: str  # the framework's name in tables
    PACKAGES: tuple[str, ...]  # installed packages that it consists of: possible names of its framework first
    BUILDS: tuple[Build, ...]  # builds of its framework, preferred ones first; the last is for CPUs
    DTYPES: tuple[str, ...]  # precisions that it trains in
    SUPPORTED_OPTIONS: tuple[str, ...]  # fields of `Training` marked `by_framework` that it supports
    NETWORKS: Collection[str]  # names of the registered models that it builds
    OPTIMIZERS: Collection[type[Any]]  # supported types of `run.optimizer`
    KVSTORES: Collection[type[Any]]  # supported types of `run.kvstore` among several real devices
    WARMUP_STEPS: int
    """First steps on GPUs that may be slower than all others, e.g. because a CUDA graph is recorded in the last one."""

    def layout(self, kind: str, dtype: str) -> str:
        """Return the layout of images in memory, "NCHW" or "NHWC", that is usually the fastest."""
        ...

    def workers(self, requested: int, devices: int, emulated: bool) -> int:
        """Return the number of processes that share the `devices` of a run, if the recipe says `requested`."""

    def cluster(self, run: Run, cores: int, hosts: Sequence[str] = ...) -> AbstractContextManager[Cluster]:
        """Start the processes that the kvstore of `run` needs besides its workers, and end them on exit.

        Each worker will have `cores` cores. `hosts` are the addresses of all hosts, which share the workers equally.
        """

    def unsupported_reason(self, run: Run, machine: Hardware) -> str | None:
        """Return why it cannot do `run` on `machine` as it is installed, in one line; None if it can.

        It need not check the members above.
        """

    def count_model(self, run: Run) -> Cost:
        """Import the framework, build the model of `run`, which is not registered, and count its cost for one image.

        Raises `poc.frameworks.own_models.OtherFrameworkError` if it cannot train such a model, UserError for a mistake.
        """

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Tell whether a run ended with `error` because a device or the host had too little memory for it."""

    def open_session(self, run: Run, *, first_step: int = ..., state: Mapping[str, np.ndarray] | None = ...) -> Session:
        """Import the framework and build the model of `run`, initialised from its seed, in one of its workers.

        With a `state` the session resumes from it, and the next step is number `first_step`.
        """


def _unsupported_option(run: Run) -> str | None:
    """Return an option of `run` that its framework does not support, in one line; None if it supports all."""
    framework = load(run.framework)
    supported: dict[str, tuple[str, Collection[str]]] = {
        "optimizer": (run.optimizer.name, [kind.name for kind in framework.OPTIMIZERS]),
        "dtype": (run.dtype, framework.DTYPES),
    }
    if not run.has_own_model:
        supported["model"] = run.model, framework.NETWORKS
    if run.zero_init_gamma and (run.has_own_model or "resnet" not in run.model):
        return f"zero_init_gamma=True needs a registered ResNet, not {run.model}"
    if run.synchronises:
        supported["kvstore"] = run.kvstore.name, [kind.name for kind in framework.KVSTORES]
    for field, (name, names) in supported.items():
        if name not in names:
            return f"{field}={name} is not supported by {framework.LABEL}"
    for declared in dataclasses.fields(Training):
        optional = declared.metadata.get("by_framework") and declared.name not in framework.SUPPORTED_OPTIONS
        if optional and getattr(run, declared.name) != declared.default:
            return f"{declared.name}={getattr(run, declared.name)} is not supported by {framework.LABEL}"
    return None


def unsupported_reason(run: Run, machine: Hardware) -> str | None:
    """Return why the framework of `run` cannot do it on the devices of `machine`, in one line; None if it can."""
    framework = load(run.framework)
    if reason := framework.unsupported_reason(run, machine) or _unsupported_option(run):
        return reason
    if run.kind == "cpu" and not has_any_build(run.framework):
        is_offered, command = available(run.framework, machine), f"./make_environment.sh --framework {run.framework}"
        return f"{framework.LABEL} is not installed: {command if is_offered else f'no build for {platform.machine()}'}"
    if run.straggler and run.workers == 1:
        return f"straggler={run.straggler:g} needs at least 2 workers"
    exact = run.kvstore.sums and getattr(run.kvstore, "two_bit", None) is None
    if run.emulated and not (exact and getattr(run.kvstore, "gradient_bits", 32) == 32):
        return f"kvstore={run.kvstore} needs real devices: emulated ones sum their gradients exactly"
    if run.synchronises and run.gradient_noise and not exact:
        return f"gradient_noise={run.gradient_noise} needs an exact sum of the gradients, not kvstore={run.kvstore}"
    if run.dtype == "float16" and run.gradient_noise:
        return f"gradient_noise={run.gradient_noise} is not supported with dtype=float16, which scales gradients"
    if run.dtype == "tf32" and os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        return "dtype=tf32 needs the variable NVIDIA_TF32_OVERRIDE unset"
    if run.kind == "gpu":
        gpus = usable(run.framework, machine)[: 1 if run.emulated else run.devices]  # those that it takes
        return next(filter(None, (_emulated_precision(run, gpu) for gpu in gpus)), None)
    if run.synchronises and isinstance(run.kvstore, NCCL):
        return "kvstore=nccl needs NVIDIA GPUs"
    if run.dtype in ("float16", "tf32"):
        return f"dtype={run.dtype} needs a GPU"
    if run.dtype == "bfloat16" and not machine.bfloat16:
        return "dtype=bfloat16 needs a CPU with AVX-512 bf16, this machine has none"
    return None


def _emulated_precision(run: Run, gpu: GPU) -> str | None:
    """Return why `gpu` does not compute in the precision of `run`, in one line; None if it does."""
    slow = run.dtype == "float16" and gpu.capability == (6, 1)  # a 64th of float32's speed
    if not slow and gpu.capability >= _MIN_CAPABILITY.get(run.dtype, (0, 0)):
        return None
    major, minor = gpu.capability
    return f"dtype={run.dtype} is only emulated by {gpu.name} (compute capability {major}.{minor})"


def open_session(run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> Session:
    """Open a session of the run's framework, which must support it; see `Framework.open_session`."""
    return load(run.framework).open_session(run, first_step=first_step, state=state)


@functools.cache  # planning calls it for every run and card
def versions(name: str) -> dict[str, str]:
    """Return the versions of the packages of framework `name` that were installed at the first call."""
    return installed_versions(name)


def installed_versions(name: str) -> dict[str, str]:
    """Return the versions of the packages of framework `name` that are installed now."""
    where: dict[str, Any] = {} if interpreter(name) == sys.executable else {"path": _package_folders(name)}
    installed = {package: importlib.metadata.distributions(name=package, **where) for package in load(name).PACKAGES}
    return {package: copy.version for package, copies in installed.items() for copy in list(copies)[:1]}


def has_any_build(name: str) -> bool:
    """Return whether some build of framework `name` is installed, or it needs none."""
    candidates = load(name).BUILDS
    return not candidates or any(build.package in versions(name) for build in candidates)


def environment(name: str) -> Path:
    """Return the folder of framework `name`'s own environment, if it has one."""
    # Beside this process's environment where `poc ab` runs the code of a worktree.
    folders = [home / f".venv-{name}" for home in (HOME, Path(sys.prefix).parent)]
    return next((folder for folder in folders if folder.exists()), folders[0])


def interpreter(name: str) -> str:
    """Return the Python that starts the workers of framework `name`."""
    python = environment(name) / "bin" / "python"
    return str(python) if python.exists() else sys.executable


def _package_folders(name: str) -> list[str]:
    """Return the folders from which the workers of framework `name` import packages, in order."""
    if interpreter(name) == sys.executable:
        return sys.path
    folders = list(environment(name).glob("lib/python*/site-packages"))
    linked = [line for folder in folders for line in text(folder / builds.LINK).splitlines()]
    return [*map(str, folders), *linked]


def library_path(name: str) -> dict[str, str]:
    """Return LD_LIBRARY_PATH without folders that hold another copy of a cuDNN that framework `name` brings.

    cuDNN loads its parts by name, and refuses those of another release. A build that needs the machine's own libraries
    keeps all folders.
    """
    if any(build.libraries and build.is_installed(versions(name)) for build in load(name).BUILDS):
        return {}
    folders = list(filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
    brought = [path for folder in _package_folders(name) for path in Path(folder).glob("nvidia/cudnn/lib/libcudnn*")]
    names, brought_folders = {path.name for path in brought}, {path.parent.resolve() for path in brought}
    copies = [folder for folder in folders if any((Path(folder) / library).exists() for library in names)]
    remaining = [folder for folder in folders if folder not in copies or Path(folder).resolve() in brought_folders]
    return {"LD_LIBRARY_PATH": os.pathsep.join(remaining)} if remaining != folders else {}


def available(name: str, machine: Hardware) -> list[Build]:
    """Return the builds of framework `name` for this processor, preferred ones first.

    A release of the user's Python, or another one than the published ones, comes first, if it is installed and fits.
    """
    published, current = load(name).BUILDS, versions(name)
    version = current.get(published[0].package) if published else None
    candidates = [build for build in published if platform.machine() in build.processors]
    is_linked = any(environment(name).glob(f"lib/python*/site-packages/{builds.LINK}"))
    if version and (is_linked or not any(build.is_installed(current) for build in published)):
        installed = builds.find_installed(name, interpreter(name), machine, version)
        return [installed, *candidates] if isinstance(installed, Build) else candidates
    return candidates


def usable(name: str, machine: Hardware) -> list[GPU]:
    """Return the cards of `machine` that framework `name` runs on, with the build chosen for this machine."""
    build = builds.choose(available(name, machine), machine)
    return [gpu for gpu in machine.gpus if build and build.code and build.refuses(gpu, machine.driver) is None]


def unsupported(name: str, gpu: GPU, machine: Hardware) -> str | None:
    """Return why framework `name` cannot run on `gpu` of `machine`, in one line; None if it can."""
    candidates = available(name, machine)
    gpu_builds = [build for build in candidates if build.code]
    # If some have code for it, the driver or the libraries are the reason.
    possible = [build for build in gpu_builds if build.has_code(gpu)] or gpu_builds[:1]
    reasons = [build.refuses(gpu, machine.driver) for build in possible]
    if None not in reasons:
        return "; ".join(filter(None, reasons)) or "no build for GPUs"
    build = builds.choose(candidates, machine)
    assert build  # one runs on this card
    if reason := build.refuses(gpu, machine.driver):
        return reason
    return None if build.is_installed(versions(name)) else f"{build} is not installed: ./make_environment.sh"


def gpu_problem(machine: Hardware) -> str:
    """Return why no framework can use any GPU of `machine`, in one line; empty if one can, or there is no GPU."""
    reasons = [
        f"{load(name).LABEL}: {reason}" if (reason := unsupported(name, gpu, machine)) else ""
        for gpu in machine.gpus
        for name in FRAMEWORKS
        if load(name).BUILDS
    ]
    return "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""


def wanted(
    machine: Hardware, named: Iterable[str] = (), only: str = "", offered: Mapping[str, Build] = {}
) -> dict[str, Build]:
    """Return the builds to install on `machine`, by framework; those `offered` by the user's Python are preferred.

    They are those of the first framework, of all that run on its cards, and of the `named` ones; or of `only` one.
    """
    candidates = {
        name: [*([offered[name]] if name in offered else []), *available(name, machine)]
        for name in (*FRAMEWORKS, *named)
    }
    chosen = {name: build for name in candidates if (build := builds.choose(candidates[name], machine))}
    possible = [name for name in FRAMEWORKS if name in chosen]
    on_cards = [name for name in possible if chosen[name].code]
    names = [only] if only else dict.fromkeys([*possible[:1], *on_cards, *named])
    return {name: chosen[name] for name in names if name in chosen}


def label(name: str, versions: Mapping[str, str]) -> str:
    """Return the framework's label with its version in a record; the name alone if its folder is missing."""
    return f"{load(name).LABEL} {versions.get(package(name, versions), '')}".rstrip() if name in FRAMEWORKS else name


def package(name: str, versions: Mapping[str, str]) -> str:
    """Return the first of the framework's packages that a record has a version of, or ""."""
    return next((each for each in load(name).PACKAGES if each in versions), "") if name in FRAMEWORKS else ""


def load(name: str) -> Framework:
    """Return the module of framework `name`; raise UserError for another name."""
    if name not in FRAMEWORKS:
        raise UserError(f"framework: {name!r} is not allowed; {suggest(name, FRAMEWORKS)}")
    return cast(Framework, importlib.import_module(f"{__name__}.{name}"))
