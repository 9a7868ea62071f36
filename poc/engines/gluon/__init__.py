"""MXNet Gluon. Importing this package does not import mxnet: `open_session` does, once the process is ready for it."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from poc.engines import Cluster, installed
from poc.engines.gluon import launch

if TYPE_CHECKING:
    import numpy as np

    from poc.engines import Session
    from poc.machine.hardware import GPU, Hardware
    from poc.run import Run

LABEL = "MXNet"
PACKAGES: tuple[str, ...] = ("mxnet", "mxnet-cu112")
LAYOUT = "NCHW"
# The machine code in the wheel, without PTX: a card runs it if its major version is here and its minor is not older.
_COMPILED_FOR = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))


def workers(given: int, devices: int, virtual: bool) -> int:
    """Processes of a run: as many as the recipe gives; each drives several devices."""
    return given


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


def lacks(run: Run, machine: Hardware) -> str | None:
    """Why MXNet 1.9.1, as it is installed, cannot do `run` on `machine`, in one line; None where it can."""
    on_cpu = run.kind == "cpu"
    several = run.devices > 1 and not run.virtual
    reasons = {
        "exchange nccl is NVIDIA's, between GPUs": several and run.exchange == "nccl" and on_cpu,
        "Horovod is not installed: ./make_environment.sh --horovod": (
            several and run.exchange == "horovod" and importlib.util.find_spec("horovod") is None
        ),
        "tf32 is PyTorch's name for float32 on tensor cores; MXNet has float32": run.dtype == "tf32",
        "compile is PyTorch's; MXNet compiles always": run.compile,
        "float16 is for GPUs: MXNet's layers have none on a CPU": run.dtype == "float16" and on_cpu,
        "bfloat16 is for CPUs: MXNet 1.9.1 has none on a GPU": run.dtype == "bfloat16" and not on_cpu,
        "bfloat16 needs a CPU with AVX-512 bf16, which this one lacks": (
            run.dtype == "bfloat16" and on_cpu and not machine.bfloat16
        ),
        "layout NHWC is for GPUs: oneDNN's convolutions have none": run.layout == "NHWC" and on_cpu,
        "layout NHWC: the networks of Gluon and GluonCV are NCHW": run.layout == "NHWC" and not on_cpu,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def unsupported(gpu: GPU) -> str | None:
    """Why MXNet 1.9.1 cannot run on `gpu`, in one line; None where it can."""
    major, minor = gpu.capability
    if any(major == have[0] and minor >= have[1] for have in _COMPILED_FOR):
        return None
    return (
        f"{gpu.name} has compute capability {major}.{minor}; mxnet-cu112 1.9.1 holds machine code for 5.0 to 8.9 "
        "(Maxwell, Pascal, Volta, Turing, Ampere, Ada) and none that newer or older cards could translate"
    )


def missing(machine: Hardware) -> str | None:
    """What has to be installed so that the GPUs of `machine` are made use of, in one line; None where all is."""
    if machine.gpus and "mxnet-cu112" not in versions():
        return "mxnet without CUDA is installed: run ./run_all.sh, which installs requirements-gpu.txt"
    return None


def versions() -> dict[str, str]:
    """Names and versions of what the engine is made of."""
    return installed(*PACKAGES, "gluoncv", "horovod")


def open_session(run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> Session:
    """Imports mxnet and builds the network of `run`, initialised from its seed or from a `state`, on its devices."""
    from poc.engines.gluon import compatibility

    compatibility.prepare()
    from poc.engines.gluon.session import GluonSession

    return GluonSession(run, first_step=first_step, state=state)
