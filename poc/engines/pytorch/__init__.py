"""PyTorch. Importing this package does not import torch: `open_session` does, once the process is ready for it."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from poc.engines import Cluster, installed, unknown
from poc.engines.pytorch import launch
from poc.recipe import NCCL, SGD, Device, Independent, Muon, Nesterov
from poc.recipe.networks import network

if TYPE_CHECKING:
    import numpy as np

    from poc.engines import Session
    from poc.machine.hardware import GPU, Hardware
    from poc.run import Run

LABEL = "PyTorch"
PACKAGES: tuple[str, ...] = ("torch",)
LAYOUT = "NHWC"
_MISSING = "PyTorch is not installed: ./make_environment.sh --torch"
OPTIMIZERS = {SGD: "SGD", Nesterov: "Nesterov", Muon: "Muon"}
"""Which class of `optimizers.py` does each."""
EXCHANGES = (Device, NCCL, Independent)
# Of torchvision, by the names of the registry; the others it has not, or not as they are there.
TORCHVISION = {
    "alexnet": "alexnet",
    "vgg16": "vgg16",
    "vgg19": "vgg19",
    "googlenet": "googlenet",
    "inception_v3": "inception_v3",
    "resnet50_v1": "resnet50",
    "resnet101_v1": "resnet101",
    "resnet152_v1": "resnet152",
    "densenet121": "densenet121",
}


def workers(given: int, devices: int, virtual: bool) -> int:
    """Processes of a run: one a device, whatever the recipe gives, as DistributedDataParallel wants it."""
    return 1 if virtual else devices


@contextlib.contextmanager
def cluster(run: Run, cores: int, hosts: Sequence[str] = (launch.LOOPBACK,)) -> Iterator[Cluster]:
    """What torchrun gives its workers: their numbers, and where the first one waits for the others."""
    common = {"OMP_NUM_THREADS": str(cores), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    found = launch.environments(run.workers, hosts) if run.workers > 1 else [{}]
    yield Cluster(environments=[{**common, **own} for own in found], helpers={})


def lacks(run: Run, machine: Hardware) -> str | None:
    """Why PyTorch, as it is installed, cannot do `run` on `machine`, in one line; None where it can."""
    on_cpu = run.kind == "cpu"
    ours = bool(network(run.model).preactivation_layers)
    reasons = {
        _MISSING: importlib.util.find_spec("torch") is None,
        "exchange nccl is NVIDIA's, between GPUs": run.exchanges and isinstance(run.exchange, NCCL) and on_cpu,
        "compression to two bits is MXNet's": getattr(run.exchange, "two_bit", None) is not None,
        "float16 is for GPUs": run.dtype == "float16" and on_cpu,
        "tf32 is for GPUs": run.dtype == "tf32" and on_cpu,
        "bfloat16 needs a CPU with AVX-512 bf16, which this one lacks": (
            run.dtype == "bfloat16" and on_cpu and not machine.bfloat16
        ),
        f"{run.model} is none of this engine's networks": not ours and run.model not in TORCHVISION,
        f"{run.model} is torchvision's, which is not installed": (
            not ours and run.model in TORCHVISION and importlib.util.find_spec("torchvision") is None
        ),
    }
    refused = next((reason for reason, holds in reasons.items() if holds), None)
    return refused or unknown(run, LABEL, OPTIMIZERS, EXCHANGES)


def unsupported(gpu: GPU) -> str | None:
    """Why the PyTorch that is installed cannot run on `gpu`, in one line; None where it can."""
    if importlib.util.find_spec("torch") is None:
        return f"{_MISSING}; MXNet 1.9.1 has nothing for cards of compute capability 9.0 and above, PyTorch has"
    import torch

    major, minor = gpu.capability
    names = torch.cuda.get_arch_list()
    compiled = [divmod(int(found[1]), 10) for name in names if (found := re.match(r"sm_(\d+)", name))]
    portable = [divmod(int(found[1]), 10) for name in names if (found := re.match(r"compute_(\d+)", name))]
    if any(major == have[0] and minor >= have[1] for have in compiled):
        return None
    if any((major, minor) >= have for have in portable):
        return None
    return f"{gpu.name} has compute capability {major}.{minor}; torch {torch.__version__} holds machine code for " + (
        ", ".join(f"{one}.{other}" for one, other in compiled) or "no GPU"
    )


def missing(machine: Hardware) -> str | None:
    """None: one build of PyTorch is for all devices."""
    return None


def versions() -> dict[str, str]:
    """Names and versions of what the engine is made of."""
    return installed(*PACKAGES, "torchvision")


def open_session(run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> Session:
    """Imports torch and builds the network of `run`, initialised from its seed or from a `state`, on its device."""
    from poc.engines.pytorch.session import TorchSession

    return TorchSession(run, first_step=first_step, state=state)
