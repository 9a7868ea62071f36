"""MXNet Gluon. Importing this package does not import mxnet: `open_session` does, once the process is ready for it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from poc.engines import Cluster
from poc.engines.gluon import launch

if TYPE_CHECKING:
    import numpy as np

    from poc.engines import Session
    from poc.hardware import GPU
    from poc.plan import Run

# The machine code in the wheel, without PTX: a card runs it if its major version is here and its minor is not older.
_COMPILED_FOR = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))


@contextlib.contextmanager
def cluster(run: Run, cores: int, hosts: Sequence[str] = (launch.LOOPBACK,)) -> Iterator[Cluster]:
    """Starts the scheduler and servers of a distributed kvstore, or what Horovod's workers meet at, or nothing.

    OpenMP reads its thread count once, at import; left alone, MXNet takes half of the cores.
    """
    common = {
        "OMP_NUM_THREADS": str(cores),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # so that card 0 is the driver's card 0, whose counters are read
        "DMLC_LOG_STACK_TRACE_DEPTH": "0",
    }
    if run.workers == 1 and run.exchange not in ("dist_async", "stale"):
        yield Cluster(environments=[common], helpers={})
        return
    if run.exchange == "horovod":
        meeting = launch.rendezvous(run.workers, hosts)
    else:
        meeting = launch.parameter_servers(run.workers, run.servers, hosts)
    with meeting as (found, helpers):
        yield Cluster(environments=[{**common, **own} for own in found], helpers=helpers)


def lacks(exchange: str, kind: str) -> str | None:
    """Why this build cannot exchange gradients so between devices of a kind, in one line; None where it can."""
    if exchange == "nccl" and kind == "cpu":
        return "exchange nccl is NVIDIA's, between GPUs"
    if exchange == "horovod" and importlib.util.find_spec("horovod") is None:
        return "Horovod is not installed: ./make_environment.sh --horovod"
    return None


def unsupported(gpu: GPU) -> str | None:
    """Why MXNet 1.9.1 cannot run on `gpu`, in one line; None where it can."""
    major, minor = gpu.capability
    if any(major == have[0] and minor >= have[1] for have in _COMPILED_FOR):
        return None
    return (
        f"{gpu.name} has compute capability {major}.{minor}; mxnet-cu112 1.9.1 holds machine code for 5.0 to 8.9 "
        "(Maxwell, Pascal, Volta, Turing, Ampere, Ada) and none that newer or older cards could translate"
    )


def versions() -> dict[str, str]:
    """Names and versions of what the engine is made of."""
    found = {}
    for name in ("mxnet", "mxnet-cu112", "gluoncv", "horovod"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def open_session(run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> Session:
    """Imports mxnet and builds the network of `run`, initialised from its seed or from a `state`, on its devices."""
    from poc.engines.gluon import compatibility

    compatibility.prepare()
    from poc.engines.gluon.session import GluonSession

    return GluonSession(run, first_step=first_step, state=state)
