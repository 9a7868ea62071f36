"""MXNet Gluon. Importing this package does not import mxnet: `open_session` does, once the process is ready for it."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from poc.engines import Cluster, installed
from poc.engines.gluon import launch
from poc.recipe import (
    LARS,
    NCCL,
    SGD,
    Device,
    DistAsync,
    DistDeviceSync,
    DistSync,
    Horovod,
    Independent,
    Local,
    Muon,
    Nesterov,
    Stale,
)
from poc.recipe.networks import CIFAR_RESNET_V1, CIFAR_RESNET_V2, Cost, Network

if TYPE_CHECKING:
    import numpy as np

    from poc.engines import Session
    from poc.machine.hardware import GPU, Hardware
    from poc.run import Run

LABEL = "MXNet"
PACKAGES: tuple[str, ...] = ("mxnet", "mxnet-cu112")
LAYOUT = "NCHW"
DTYPES: tuple[str, ...] = ("float32", "float16", "bfloat16")
HEEDS: tuple[str, ...] = ("label_smoothing", "zero_gamma", "layout")
OPTIMIZERS = {SGD: "SGD", Nesterov: "Nesterov", LARS: "LARS", Muon: "Muon"}
"""Which class of `optimizers.py` does each."""
EXCHANGES = {
    Device: "InProcess",
    Local: "InProcess",
    NCCL: "InProcess",
    DistSync: "BetweenWorkers",
    DistDeviceSync: "BetweenWorkers",
    DistAsync: "OnServers",
    Stale: "BoundedStaleness",
    Horovod: "Horovod",
    Independent: "Independent",
}
"""Which class of `exchange.py` does each."""
ON_SERVERS = (DistAsync, Stale)
# The machine code in the wheel, without PTX: a card runs it if its major version is here and its minor is not older.
_COMPILED_FOR = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))

BUILDERS: dict[str, tuple[Any, ...]] = {
    **{f"cifar_resnet{layers}_v2": ("PreactivationResNet", layers) for layers in CIFAR_RESNET_V2},
    "cifar_resnet20_v2_no_norm": ("PreactivationResNet", 20, False),
    **{f"cifar_resnet{layers}_v1": ("cifar_resnet_v1", layers) for layers in CIFAR_RESNET_V1},
    "cifar_densenet40_k12": ("cifar_densenet", 40, 12),
    "cifar_densenet100_k12": ("cifar_densenet", 100, 12),
    "cifar_alexnet": ("cifar_alexnet",),
    "cifar_vgg16": ("cifar_vgg", 16),
    "cifar_vgg19": ("cifar_vgg", 19),
    "cifar_inception": ("cifar_inception",),
    "cifar_lenet": ("cifar_lenet",),
    "cifar_mlp": ("cifar_mlp",),
    "alexnet": ("zoo", "alexnet"),
    "vgg16": ("zoo", "vgg16"),
    "vgg19": ("zoo", "vgg19"),
    "googlenet": ("googlenet",),
    "inception_v3": ("zoo", "inceptionv3"),
    "inception_v4": ("inception_v4",),
    **{name: ("zoo", name) for name in (f"resnet{n}_v{version}" for n in (50, 101, 152) for version in (1, 2))},
    "densenet121": ("zoo", "densenet121"),
}
"""What builds each network: its name in `networks.py`, and arguments behind the number of classes.

By name, since planning asks what there is, and must not import mxnet.
"""


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
    if run.workers == 1 and not isinstance(run.exchange, ON_SERVERS):
        yield Cluster(environments=[common], helpers={})
        return
    if isinstance(run.exchange, Horovod):
        meeting = launch.rendezvous(run.workers, hosts)
    else:
        meeting = launch.parameter_servers(run.workers, getattr(run.exchange, "servers", 1), hosts)
    with meeting as (environments, helpers):
        yield Cluster(environments=[{**common, **environment} for environment in environments], helpers=helpers)


def lacks(run: Run, machine: Hardware) -> str | None:
    """Why MXNet 1.9.1, as it is installed, cannot do `run` on `machine`, in one line; None where it can."""
    on_cpu = run.kind == "cpu"
    exchange = run.exchange if run.exchanges else None
    plain = isinstance(run.optimizer, SGD) and not run.optimizer.momentum_correction
    reasons = {
        f"{run.model} is none of this engine's networks": run.model not in BUILDERS,
        "exchange nccl is NVIDIA's, between GPUs": isinstance(exchange, NCCL) and on_cpu,
        "Horovod is not installed: ./make_environment.sh --horovod": (
            isinstance(exchange, Horovod) and importlib.util.find_spec("horovod") is None
        ),
        f"with exchange {run.exchange.name} servers update, by SGD without momentum correction": (
            isinstance(exchange, ON_SERVERS) and not plain
        ),
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


def count(network: Network) -> Cost | None:
    """What `network` costs, counted in it as it is built; None where this engine does not build it."""
    if network.name not in BUILDERS:
        return None
    from poc.engines.gluon import compatibility

    compatibility.prepare()
    from poc.engines.gluon import networks

    return networks.count(network)


def versions() -> dict[str, str]:
    """Names and versions of what the engine is made of."""
    return installed(*PACKAGES, "gluoncv", "horovod")


def open_session(run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> Session:
    """Imports mxnet and builds the network of `run`, initialised from its seed or from a `state`, on its devices."""
    from poc.engines.gluon import compatibility

    compatibility.prepare()
    from poc.engines.gluon.session import GluonSession

    return GluonSession(run, first_step=first_step, state=state)
