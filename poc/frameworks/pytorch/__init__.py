"""PyTorch; `poc.frameworks.Framework` says what each function has to do.

Importing this package does not import torch: `open_session` does, once the process is ready for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from poc.config import NCCL, SGD, Device, Muon, Nesterov, NoSync
from poc.config.networks import CIFAR_RESNET_V2, Cost, Network
from poc.frameworks import Cluster, versions
from poc.frameworks.builds import Build
from poc.host.processes import free_port

if TYPE_CHECKING:
    import numpy as np

    from poc.config.run import Run
    from poc.frameworks import Session
    from poc.host.hardware import Hardware

LABEL = "PyTorch"
PACKAGES: tuple[str, ...] = ("torch", "torchvision")
_CUDA_13 = Build(
    package="torch",
    version="2.13.0",
    requirements=("requirements/torch.txt", "requirements/torch-cu13.txt"),
    gigabytes=5.0,
    separate=True,
    code=((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)),
    driver="580.65.06",
)
_CUDA_12 = dataclasses.replace(
    _CUDA_13,
    version="2.10.0",
    requirements=("requirements/torch-cu12.txt",),
    gigabytes=7.0,
    code=((7, 0), *_CUDA_13.code),
    driver="525.60.13",
)
_CPU = Build(
    package="torch",
    version="2.13.0",
    requirements=("requirements/torch.txt", "requirements/torch-cpu.txt"),
    gigabytes=0.9,
)
BUILDS: tuple[Build, ...] = (_CUDA_13, _CUDA_12, _CPU)
"""Their machine code is what `torch.cuda.get_arch_list()` says."""
LAYOUT = "NHWC"
DTYPES: tuple[str, ...] = ("float32", "tf32", "float16", "bfloat16")
SUPPORTED_OPTIONS: tuple[str, ...] = ("label_smoothing", "zero_init_gamma", "layout", "compile")
OPTIMIZERS = (SGD, Nesterov, Muon)
"""A class of `optimizers.py`, of its name, does each."""
KVSTORES = (Device, NCCL, NoSync)
NETWORKS: dict[str, tuple[Any, ...]] = {
    **{f"cifar_resnet{layers}_v2": ("PreactivationResNet", layers) for layers in CIFAR_RESNET_V2},
    "cifar_resnet20_v2_no_norm": ("PreactivationResNet", 20, False),
    "cifar_airbench94": ("Airbench", 64, 256, 256),
    "cifar_airbench94_slim": ("Airbench", 64, 128, 256),
    "cifar_airbench95": ("Airbench", 128, 384, 384),
    **{name: ("torchvision", name) for name in ("alexnet", "vgg16", "vgg19", "densenet121")},
    **{name: ("torchvision_inception", name) for name in ("googlenet", "inception_v3")},
    **{f"resnet{layers}_v1": ("torchvision_resnet", f"resnet{layers}") for layers in (50, 101, 152)},
}
"""What builds each network: its name in `networks.py`, and arguments behind the number of classes.

By name, since planning asks what there is, and must not import torch.
"""

_KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""For glibc, which by itself gives large blocks back to the system at once: PyTorch's allocator for CPUs keeps none, so
that in each step the system would zero every page of every layer's output anew."""


def workers(given: int, devices: int, emulated: bool) -> int:
    """Processes of a run: one a device, whatever the recipe gives, as DistributedDataParallel wants it."""
    return 1 if emulated else devices


@contextlib.contextmanager
def cluster(run: Run, cores: int, hosts: Sequence[str] = ("127.0.0.1",)) -> Iterator[Cluster]:
    """What torchrun gives its workers: their numbers, and where the first one waits for the others."""
    here = run.workers // len(hosts)
    common = {
        **(_KEEPS_MEMORY if run.kind == "cpu" else {}),
        "OMP_NUM_THREADS": str(cores),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": str(free_port(hosts[0])),
        "WORLD_SIZE": str(run.workers),
        "LOCAL_WORLD_SIZE": str(here),
    }
    environments = [
        {
            **common,
            "RANK": str(worker),
            "LOCAL_RANK": str(worker % here),
            "GROUP_RANK": str(worker // here),
            # Gloo would take the address that this host's name leads to.
            "POC_OWN_ADDRESS": hosts[worker // here],
        }
        for worker in range(run.workers)
    ]
    yield Cluster(environments=environments, helpers={})


def unsupported_reason(run: Run, machine: Hardware) -> str | None:
    if not versions("pytorch").keys() >= set(PACKAGES):
        return "PyTorch is not installed: ./make_environment.sh --torch"
    if getattr(run.kvstore, "two_bit", None) is not None:
        return "two_bit is not supported by PyTorch"
    return None


def count(network: Network) -> Cost | None:
    if not versions("pytorch").keys() >= set(PACKAGES):
        return None
    from poc.frameworks.pytorch import networks

    return networks.count(network)


def is_out_of_memory(error: Exception) -> bool:
    """Whether NumPy, PyTorch's allocators (torch.OutOfMemoryError, c10/core/impl/alloc_cpu.cpp), CUDA, or cuDNN in the
    search for its fastest algorithms had too little memory."""
    words = r"out of memory|DefaultCPUAllocator: (can't allocate|not enough) memory|ALLOC_FAILED|to find an engine"
    torchs = isinstance(error, RuntimeError) and re.search(words, str(error)) is not None
    return torchs or isinstance(error, MemoryError)


def open_session(run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> Session:
    from poc.frameworks.pytorch.session import TorchSession

    return TorchSession(run, first_step=first_step, state=state)
