"""The only seam that knows a framework: what an engine must offer, and engines by name, imported only when used.

An engine is a package that offers what `Engine` lists. It lies in this folder, or in one of those that the environment
variable POC_ENGINES names (absolute paths, separated as in PATH): with POC_ENGINES=/home/me/engines a recipe's
engine="mine" is the package /home/me/engines/mine, imported as `poc.engines.mine`. tests/engines/reference is a small
one to start from.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pkgutil
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from poc.values import UserError, nearest, value

if TYPE_CHECKING:
    from poc.data import Batch
    from poc.machine.hardware import GPU, Hardware
    from poc.recipe.networks import Cost, Network
    from poc.run import Run

__path__ += [folder for folder in os.environ.get("POC_ENGINES", "").split(os.pathsep) if folder]
ENGINES = tuple(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
"""By name: the packages beside this file, then those of POC_ENGINES. Of those that can do a run the first is taken."""


@value
class Evaluation:
    """What a pass over the validation set found."""

    correct: int
    samples: int
    loss: float
    """Mean cross-entropy of a sample, in nats."""


@value
class Cluster:
    """What the workers of a run need around them."""

    environments: list[dict[str, str]]
    """Each worker's environment variables, to be set before it starts."""
    helpers: dict[str, subprocess.Popen[str]]
    """The processes that serve them, by name; the run is lost where one ends before they do."""


class Session(Protocol):
    """One network being trained on the devices of one process; work is asynchronous, so time is read after `drain`."""

    parameters: int
    """Trainable parameters of the network, counted once."""

    gradient_bytes: int
    """Bytes of the gradients that one device sends in an exchange."""

    def step(self, batch: Batch, learning_rate: float, *, exchange: bool = True, norms: bool = False) -> None:
        """Enqueues one optimizer step over the whole batch of this process and returns at once.

        Without `exchange` every device updates its replica with its own gradients: the ceiling. With `norms` the
        gradients' norms are taken, where the exchange makes sums.
        """

    def gradient_norms(self) -> list[tuple[float, float]]:
        """The norms taken up to the last `drain`, each once.

        Squared, of a device's mean gradient and of that of all devices.
        """

    def hold(self, images: np.ndarray) -> None:
        """Takes all training images, (n, height, width, 3), with the grey around them, onto the devices.

        Batches of views are cut out of them there.
        """

    def exchange(self) -> None:
        """Enqueues one exchange of gradients, without computing or updating anything."""

    def exchange_is_right(self) -> bool | None:
        """Whether an exchange gives every device the sum of all devices' gradients; overwrites them.

        None where the exchange is not meant to.
        """

    def barrier(self) -> None:
        """Blocks until every worker of the run is here."""

    def exchanged(self) -> dict[str, Any]:
        """What there is to say of the exchanges so far, as plain values for the record; empty where nothing is."""

    def drain(self) -> float:
        """Blocks until everything enqueued is done; returns the mean loss, in nats, of the steps since the last one."""

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        """Classifies every image once, with the batch statistics averaged over the devices."""

    def state(self) -> dict[str, np.ndarray]:
        """What `open_session` needs to go on from here: parameters, batch statistics and optimizer's state here."""

    def peak_flops(self) -> float:
        """Floating-point operations a second of a large matrix product in the run's precision, on all devices here."""

    def peak_device_bytes(self) -> int | None:
        """The most memory taken on one device so far; None where the engine cannot tell."""


class Engine(Protocol):
    """What the module of an engine offers. Importing it must not import its framework."""

    LABEL: str
    """The framework's name, as tables show it."""

    PACKAGES: tuple[str, ...]
    """Under which of these names the framework is installed, and its version stands in `versions`."""

    LAYOUT: str
    """Of images in memory: what it is usually fastest with."""

    def workers(self, given: int, devices: int, virtual: bool) -> int:
        """Processes that the `devices` of a run are divided over, where the recipe gives so many."""

    def cluster(self, run: Run, cores: int, hosts: Sequence[str] = ...) -> AbstractContextManager[Cluster]:
        """Starts what the exchange of `run` needs beside its workers, and ends it when the block is left.

        Each worker will have `cores` cores. `hosts` are the addresses of those that share the workers equally, this
        one's first.
        """

    def unsupported(self, gpu: GPU) -> str | None:
        """Why this engine cannot run on `gpu`, in one line; None where it can."""

    def lacks(self, run: Run, machine: Hardware) -> str | None:
        """Why this build cannot do `run` on the devices of `machine`, in one line; None where it can."""

    def missing(self, machine: Hardware) -> str | None:
        """What has to be installed so that `machine` is made use of, in one line; None where all is."""

    def count(self, network: Network) -> Cost | None:
        """What `network` costs, counted in it as it is built; None where this engine does not build or count it."""

    def versions(self) -> dict[str, str]:
        """Names and versions of what the engine is made of."""

    def open_session(self, run: Run, *, first_step: int = ..., state: Mapping[str, np.ndarray] | None = ...) -> Session:
        """Imports the framework and builds the network of `run`, initialised from its seed.

        With a `state` it goes on from that, and the next step is number `first_step`.
        """


def unknown(run: Run, label: str, optimizers: Collection[type[Any]], exchanges: Collection[type[Any]]) -> str | None:
    """Why an engine called `label` that knows these optimizers and exchanges cannot do `run`; None where it can."""
    for what, held, known in (("optimizer", run.optimizer, optimizers), ("exchange", run.exchange, exchanges)):
        if type(held) not in known and (what == "optimizer" or run.exchanges):
            names = ", ".join(kind.name for kind in known)
            return f"{what} {type(held).__name__} is not {label}'s; it has {names}"
    return None


def installed(*packages: str) -> dict[str, str]:
    """The versions of those of the `packages` that are installed, by name."""
    versions = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def load(name: str) -> Engine:
    """Returns the module of engine `name`; raises UserError for another name."""
    if name not in ENGINES:
        raise UserError(f"engine: {name!r} is not allowed; {nearest(name, ENGINES)}")
    return cast(Engine, importlib.import_module(f"{__name__}.{name}"))


def count(network: Network) -> Cost:
    """What `network` costs, as an engine that builds it counts; raises UserError where none does."""
    cost = next(filter(None, (load(name).count(network) for name in ENGINES)), None)
    if cost is None:
        raise UserError(f"model: no engine that is installed builds {network.name}; give it a builder in poc/engines/")
    return cost
