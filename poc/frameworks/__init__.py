"""What a framework must offer, and the frameworks by name, each imported only when it is used.

A framework is a package that offers what `Framework` lists, in this folder or in a folder that the environment variable
POC_FRAMEWORKS names (absolute paths, separated as in PATH). With POC_FRAMEWORKS=/home/me/frameworks a recipe's
framework="mine" is the package /home/me/frameworks/mine, imported as `poc.frameworks.mine`.
tests/frameworks/reference is a small framework to start from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import os
import pkgutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from poc.config import NCCL, Training
from poc.frameworks import builds
from poc.frameworks.builds import Build as Build
from poc.frameworks.session import Evaluation as Evaluation
from poc.frameworks.session import Session
from poc.values import UserError, suggest, value

if TYPE_CHECKING:
    from poc.config.networks import Cost, Network
    from poc.config.run import Run
    from poc.host.hardware import GPU, Hardware

__path__ += [folder for folder in os.environ.get("POC_FRAMEWORKS", "").split(os.pathsep) if folder]
FRAMEWORKS = tuple(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
"""Names of the packages in this folder, then in those of POC_FRAMEWORKS. The first that can do a run is used."""
HOME = Path(__file__).resolve().parents[2]

# From which compute capability on cards compute in a precision (CUDA C++ Programming Guide, "Compute Capabilities").
_COMPUTES = {"float16": (5, 3), "bfloat16": (8, 0), "tf32": (8, 0)}


@value
class Cluster:
    """What the workers of a run need around them."""

    environments: list[dict[str, str]]
    """Each worker's environment variables, to be set before it starts."""
    helpers: dict[str, subprocess.Popen[str]]
    """The processes that serve them, by name; the run is lost where one ends before they do."""


class Framework(Protocol):
    """What the module of a framework offers. Importing it must not import its framework."""

    LABEL: str
    """The framework's name, as tables show it."""
    PACKAGES: tuple[str, ...]
    """What it is made of, as installed: the names that its framework may have come first."""
    BUILDS: tuple[Build, ...]
    """Of its framework, those preferred first; the last is for CPUs."""
    LAYOUT: str
    """Of images in memory: what it is usually fastest with."""
    DTYPES: tuple[str, ...]
    """The precisions that it trains in."""
    SUPPORTED_OPTIONS: tuple[str, ...]
    """Of the fields of `Training` that a framework may know or not (`by_framework`), those that it knows."""

    @property
    def NETWORKS(self) -> Collection[str]:  # noqa: N802
        """The names of the networks that it builds."""

    @property
    def OPTIMIZERS(self) -> Collection[type[Any]]:  # noqa: N802
        """The types of `run.optimizer` that it has."""

    @property
    def KVSTORES(self) -> Collection[type[Any]]:  # noqa: N802
        """The types of `run.kvstore` that it has, among several real devices."""

    def workers(self, given: int, devices: int, emulated: bool) -> int:
        """Processes that the `devices` of a run are divided over, where the recipe gives so many."""

    def cluster(self, run: Run, cores: int, hosts: Sequence[str] = ...) -> AbstractContextManager[Cluster]:
        """Starts what the kvstore of `run` needs beside its workers, and ends it when the block is left.

        Each worker will have `cores` cores. `hosts` are the addresses of those that share the workers equally, this
        one's first.
        """

    def unsupported_reason(self, run: Run, machine: Hardware) -> str | None:
        """Why it cannot do `run` on `machine` as it is installed, in one line; None where it can.

        Besides what is `unknown` to it, and what no framework can.
        """

    def is_out_of_memory(self, error: Exception) -> bool:
        """Whether `error`, which a run ended with, says that a device or the host had not enough memory for it."""

    def count(self, network: Network) -> Cost | None:
        """What `network`, one of its own, costs, counted in it as it is built; None where that cannot be had."""

    def open_session(self, run: Run, *, first_step: int = ..., state: Mapping[str, np.ndarray] | None = ...) -> Session:
        """Imports the framework and builds the network of `run`, initialised from its seed, by one of its workers.

        With a `state` it goes on from that, and the next step is number `first_step`.
        """


def unsupported_option(run: Run) -> str | None:
    """What of `run` its framework has never heard of, in one line; None where it knows all."""
    framework = load(run.framework)
    if run.model not in framework.NETWORKS:
        return f"model={run.model} is not supported by {framework.LABEL}"
    for field, kind, known in (
        ("optimizer", type(run.optimizer), framework.OPTIMIZERS),
        ("kvstore", type(run.kvstore), framework.KVSTORES),
    ):
        if kind not in known and (field == "optimizer" or run.synchronises):
            names = ", ".join(each.name for each in known)
            return f"{field}={kind.name} is not supported by {framework.LABEL}; it has {names}"
    if run.dtype not in framework.DTYPES:
        return f"dtype={run.dtype} is not supported by {framework.LABEL}; it has {', '.join(framework.DTYPES)}"
    for declared in dataclasses.fields(Training):
        held = getattr(run, declared.name)
        if (
            declared.metadata.get("by_framework")
            and held != declared.default
            and declared.name not in framework.SUPPORTED_OPTIONS
        ):
            return f"{declared.name}={held} is not supported by {framework.LABEL}"
    return None


def unsupported_reason(run: Run, machine: Hardware) -> str | None:
    """Why the framework of `run` cannot do it on the devices of `machine`, in one line; None where it can."""
    framework = load(run.framework)
    if reason := framework.unsupported_reason(run, machine) or unsupported_option(run):
        return reason
    for name in ("seconds", "target_accuracy"):
        if run.workers > 1 and getattr(run, name) is not None:
            return f"{name}={getattr(run, name):g} needs a single process, {framework.LABEL} runs one per device"
    if run.straggler and run.workers == 1:
        return f"straggler={run.straggler:g} needs at least 2 workers"
    exact = run.kvstore.sums and getattr(run.kvstore, "two_bit", None) is None
    if run.synchronises and run.gradient_noise and not exact:
        return f"gradient_noise={run.gradient_noise} needs an exact sum of the gradients, not kvstore={run.kvstore}"
    if run.dtype == "float16" and run.gradient_noise:
        return f"gradient_noise={run.gradient_noise} is not supported with dtype=float16, which scales gradients"
    if run.kind == "gpu":
        return next(filter(None, (_emulated(run, gpu) for gpu in usable(run.framework, machine))), None)
    if run.synchronises and isinstance(run.kvstore, NCCL):
        return "kvstore=nccl needs NVIDIA GPUs"
    if run.dtype in ("float16", "tf32"):
        return f"dtype={run.dtype} needs a GPU"
    if run.dtype == "bfloat16" and not machine.bfloat16:
        return "dtype=bfloat16 needs a CPU with AVX-512 bf16, this machine has none"
    return None


def _emulated(run: Run, gpu: GPU) -> str | None:
    """Why `gpu` cannot show what the precision of `run` is worth, in one line; None where it can."""
    slow = run.dtype == "float16" and gpu.capability == (6, 1)  # a 64th of float32's speed
    if not slow and gpu.capability >= _COMPUTES.get(run.dtype, (0, 0)):
        return None
    major, minor = gpu.capability
    return f"dtype={run.dtype} is only emulated by {gpu.name} (compute capability {major}.{minor})"


def open_session(run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> Session:
    """Open a session of the run's framework; raises UserError for an option that the framework does not support."""
    if reason := unsupported_option(run):
        raise UserError(reason)
    return load(run.framework).open_session(run, first_step=first_step, state=state)


@functools.cache  # a plan asks for every run and card
def versions(name: str) -> dict[str, str]:
    """The versions of what framework `name` is made of, as far as it is installed."""
    found = {}
    apart = [str(folder) for folder in environment(name).glob("lib/python*/site-packages")]
    for package in load(name).PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, StopIteration):
            if interpreter(name) == sys.executable:
                found[package] = importlib.metadata.version(package)
            else:
                found[package] = next(iter(importlib.metadata.distributions(name=package, path=apart))).version
    return found


def environment(name: str) -> Path:
    """The folder of the environment that framework `name` has where it has one of its own."""
    return HOME / f".venv-{name}"


def interpreter(name: str) -> str:
    """The Python that the workers of framework `name` are started with."""
    own = environment(name) / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def usable(name: str, machine: Hardware) -> list[GPU]:
    """The cards of `machine` that framework `name` runs on, by the one build that it takes there."""
    build = builds.choose(load(name).BUILDS, machine)
    return [gpu for gpu in machine.gpus if build and build.code and build.refuses(gpu, machine.driver) is None]


def unsupported(name: str, gpu: GPU, machine: Hardware) -> str | None:
    """Why framework `name` cannot run on `gpu` of `machine`, in one line; None where it can."""
    known = load(name).BUILDS
    build = builds.choose(known, machine)
    if reason := builds.unsupported(known, gpu, machine.driver) or (build and build.refuses(gpu, machine.driver)):
        return reason
    if build is None or build.is_installed(versions(name)):
        return None
    option = " --torch" if build.separate else ""
    return f"{build} is not installed: ./make_environment.sh{option}"


def wanted(machine: Hardware, named: Iterable[str] = ()) -> dict[str, Build]:
    """Return the builds for `machine`, by framework.

    They are those of the first framework, of the first framework that runs on its cards, and of the `named` ones.
    """
    chosen = {name: builds.choose(load(name).BUILDS, machine) for name in FRAMEWORKS}
    on_cards = [name for name, build in chosen.items() if build and build.code]
    names = dict.fromkeys([*FRAMEWORKS[:1], *on_cards[:1], *named])
    return {name: build for name in names if (build := builds.choose(load(name).BUILDS, machine))}


def label(name: str, versions: Mapping[str, str]) -> str:
    """Return the framework's name with its version among those of a record; the name alone if its folder is missing."""
    if name not in FRAMEWORKS:
        return name
    framework = load(name)
    known = [versions[package] for package in framework.PACKAGES if package in versions]
    return " ".join([framework.LABEL, *known[:1]])


def load(name: str) -> Framework:
    """Returns the module of framework `name`; raises UserError for another name."""
    if name not in FRAMEWORKS:
        raise UserError(f"framework: {name!r} is not allowed; {suggest(name, FRAMEWORKS)}")
    return cast(Framework, importlib.import_module(f"{__name__}.{name}"))


def count(network: Network) -> Cost:
    """What `network` costs, as a framework that builds it counts; raises UserError where none does."""
    for framework in map(load, FRAMEWORKS):
        if network.name in framework.NETWORKS and (cost := framework.count(network)):
            return cost
    raise UserError(f"model: no installed framework builds {network.name}; add a builder in poc/frameworks/")
