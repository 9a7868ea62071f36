"""The smallest framework: a perceptron trained in NumPy, with the members of `poc.frameworks.Framework` only.

This file lists the framework's options and starts its workers' helper; session.py trains, and would import a framework;
hub.py sums the workers' gradients. Imports within the folder are relative, since it may be anywhere.
"""

import contextlib
import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from poc.config import SGD, Device, DistSync, NoSync
from poc.config.networks import Cost
from poc.config.run import Run
from poc.frameworks import Cluster, Session
from poc.frameworks.builds import Build
from poc.frameworks.own_models import OtherFrameworkError
from poc.host import processes
from poc.host.hardware import Hardware

LABEL = "NumPy"
PACKAGES: tuple[str, ...] = ("numpy",)
BUILDS: tuple[Build, ...] = ()
DTYPES: tuple[str, ...] = ("float32",)
NETWORKS: Collection[str] = ("cifar_mlp",)
OPTIMIZERS: Collection[type[Any]] = (SGD,)
KVSTORES: Collection[type[Any]] = (Device, DistSync, NoSync)
WARMUP_STEPS = 0
SUPPORTED_OPTIONS: tuple[str, ...] = ()


def layout(kind: str, dtype: str) -> str:
    return "NCHW"


def workers(requested: int, devices: int, emulated: bool) -> int:
    return requested


@contextlib.contextmanager
def cluster(run: Run, cores: int, hosts: Sequence[str] = ("127.0.0.1",)) -> Iterator[Cluster]:
    common = {"OPENBLAS_NUM_THREADS": str(cores)}
    if run.workers == 1:
        yield Cluster(environments=[common], helpers={})
        return
    # The hub is given a socket that listens already, so that no worker comes too early and nobody else takes the port.
    with socket.create_server((hosts[0], 0)) as listener:
        common.update(POC_HUB=hosts[0], POC_HUB_PORT=str(listener.getsockname()[1]))
        hub = processes.start(f"{__name__}.hub", {"POC_WORKERS": str(run.workers)}, stdin=listener)
    try:
        environments = [{**common, "POC_WORKER": str(worker)} for worker in range(run.workers)]
        yield Cluster(environments=environments, helpers={"hub": hub})
    finally:
        processes.stop([hub])


def unsupported_reason(run: Run, machine: Hardware) -> str | None:
    if getattr(run.optimizer, "momentum_correction", False):
        return f"momentum correction is not {LABEL}'s"
    if getattr(run.kvstore, "two_bit", None) or getattr(run.kvstore, "gradient_bits", 32) != 32:
        return f"compressed gradients are not {LABEL}'s"
    return None


def count_model(run: Run) -> Cost:
    raise OtherFrameworkError(f"{LABEL} trains registered models only")


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError)


def open_session(run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> Session:
    from .faults import FaultySession
    from .session import NumpySession

    faulty = os.environ.keys() & {"POC_FAULT", "POC_HOLD"}
    return (FaultySession if faulty else NumpySession)(run, first_step, state)
