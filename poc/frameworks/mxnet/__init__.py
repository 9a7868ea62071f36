"""MXNet Gluon; `poc.frameworks.Framework` says what each function has to do.

Importing this package does not import mxnet: `open_session` does, once the process is ready for it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poc import config
from poc.config.networks import CIFAR_RESNET_V1, CIFAR_RESNET_V2, Cost, Network
from poc.frameworks import Cluster
from poc.frameworks.builds import Build
from poc.frameworks.mxnet import launch

if TYPE_CHECKING:
    import numpy as np

    from poc.config.run import Run
    from poc.frameworks import Session
    from poc.host.hardware import Hardware

LABEL = "MXNet"
PACKAGES: tuple[str, ...] = ("mxnet", "mxnet-cu112", "mxnet-cu102", "gluoncv", "horovod")
CUDA_10_LIBRARIES = (
    *("libcudart.so.10.2", "libnvrtc.so.10.2", "libnvToolsExt.so.1", "libcublasLt.so.10", "libcublas.so.10"),
    *("libcufft.so.10", "libcurand.so.10", "libcusolver.so.10", "libcudnn.so.8", "libnccl.so.2"),
)
"""Which mxnet-cu102 links, each after those it needs itself."""
BUILDS: tuple[Build, ...] = (
    Build(
        package="mxnet-cu112",
        version="1.9.1",
        requirements=("requirements/mxnet-cu112.txt",),
        gigabytes=3.9,
        code=((5, 0), (6, 0), (7, 0), (8, 0), (8, 6)),
        driver="450.80.02",
    ),
    Build(
        package="mxnet-cu102",
        version="1.9.1",
        requirements=("requirements/mxnet-cu102.txt",),
        gigabytes=0.8,
        code=((3, 0), (5, 0), (6, 0), (7, 0), (7, 5)),
        driver="440.33",
        libraries=CUDA_10_LIBRARIES,
        hint="install CUDA 10.2, cuDNN 8 and NCCL, or use a container image that has them",
    ),
    Build(package="mxnet", version="1.9.1", requirements=("requirements/mxnet.txt",), gigabytes=0.2),
)
"""Their machine code was read from the packages; there is no PTX in them, which newer cards could translate."""
LAYOUT = "NCHW"
DTYPES: tuple[str, ...] = ("float32", "tf32", "float16", "bfloat16")
SUPPORTED_OPTIONS: tuple[str, ...] = ("label_smoothing", "zero_init_gamma")
OPTIMIZERS = (config.SGD, config.Nesterov, config.LARS, config.Muon)
"""A class of `optimizers.py`, of its name, does each."""
KVSTORES = {
    config.Device: "InProcess",
    config.Local: "InProcess",
    config.NCCL: "InProcess",
    config.DistSync: "BetweenWorkers",
    config.DistDeviceSync: "BetweenWorkers",
    config.DistAsync: "OnServers",
    config.SSP: "BoundedStaleness",
    config.Horovod: "Horovod",
    config.NoSync: "Independent",
}
"""Which class of `trainer.py` does each."""
ON_SERVERS = (config.DistAsync, config.SSP)

NETWORKS: dict[str, tuple[Any, ...]] = {
    **{f"cifar_resnet{layers}_v2": ("PreactivationResNet", layers) for layers in CIFAR_RESNET_V2},
    "cifar_resnet20_v2_no_norm": ("PreactivationResNet", 20, False),
    **{f"cifar_resnet{layers}_v1": ("cifar_resnet_v1", layers) for layers in CIFAR_RESNET_V1},
    "cifar_airbench94": ("Airbench", 64, 256, 256),
    "cifar_airbench94_slim": ("Airbench", 64, 128, 256),
    "cifar_airbench95": ("Airbench", 128, 384, 384),
    **{f"cifar_densenet{layers}_k12": ("cifar_densenet", layers, 12) for layers in (40, 100)},
    **{f"cifar_vgg{layers}": ("cifar_vgg", layers) for layers in (16, 19)},
    **{f"cifar_{name}": (f"cifar_{name}",) for name in ("alexnet", "inception", "lenet", "mlp")},
    **{name: (name,) for name in ("googlenet", "inception_v4")},
    **{name: ("zoo", name) for name in ("alexnet", "vgg16", "vgg19", "densenet121")},
    "inception_v3": ("zoo", "inceptionv3"),
    **{name: ("zoo", name) for name in (f"resnet{n}_v{version}" for n in (50, 101, 152) for version in (1, 2))},
}
"""What builds each network: its name in `networks.py`, and arguments behind the number of classes.

By name, since planning asks what there is, and must not import mxnet.
"""


def workers(given: int, devices: int, emulated: bool) -> int:
    """Processes of a run: as many as the recipe gives; each drives several devices."""
    return given


def cluster(run: Run, cores: int, hosts: Sequence[str] = ("127.0.0.1",)) -> AbstractContextManager[Cluster]:
    """Starts the scheduler and servers of a distributed kvstore, or what Horovod's workers meet at, or nothing.

    OpenMP reads its thread count once, at import; left alone, MXNet takes half of the cores.
    """
    common = {
        "OMP_NUM_THREADS": str(cores),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # so that card 0 is the driver's card 0, whose counters are read
        "DMLC_LOG_STACK_TRACE_DEPTH": "0",
    }
    if sys.version_info < (3, 12):
        common["SETUPTOOLS_USE_DISTUTILS"] = "stdlib"  # else MXNet's import brings setuptools' own, half a second more
    if run.dtype != "tf32":
        common["NVIDIA_TF32_OVERRIDE"] = "0"  # else MXNet has Ampere round what goes into products to 10 bits
    if run.workers == 1 and not isinstance(run.kvstore, ON_SERVERS):
        return contextlib.nullcontext(Cluster(environments=[common], helpers={}))
    meet = launch.rendezvous if isinstance(run.kvstore, config.Horovod) else launch.parameter_servers
    return meet(run, common, hosts)


def unsupported_reason(run: Run, machine: Hardware) -> str | None:
    exchange = run.kvstore if run.synchronises else None
    if isinstance(exchange, config.Horovod):
        spec = importlib.util.find_spec("horovod")
        if spec is None:
            return "Horovod is not installed: ./make_environment.sh --horovod"
        if run.kind == "gpu" and not _has_nccl(str(spec.origin)):
            return "kvstore=horovod between GPUs needs NCCL, this Horovod was built without it"
    plain = isinstance(run.optimizer, config.SGD) and not run.optimizer.momentum_correction
    if isinstance(exchange, ON_SERVERS) and (not plain or run.dtype == "float16"):
        return f"kvstore={exchange.name} supports only SGD without momentum correction, and not dtype=float16"
    if run.dtype == "float16" and getattr(exchange, "two_bit", None) is not None:
        return "two_bit is not supported with dtype=float16: an overflow would stay in its residual"
    if run.dtype == "bfloat16" and run.kind == "gpu":
        return "dtype=bfloat16 needs a CPU: MXNet 1.9.1 does not support it on GPUs"
    return None


@functools.cache  # it reads the whole library, and a plan asks for every run
def _has_nccl(horovod: str) -> bool:
    libraries = Path(horovod).parent.glob("mxnet/*.so")
    return any(b"ncclAllReduce" in library.read_bytes() for library in libraries)


def is_out_of_memory(error: Exception) -> bool:
    """Whether NumPy, MXNet's allocators (src/storage/ of 1.9.1), cuDNN, the search for its fastest algorithms or cuBLAS
    found too little memory."""
    words = r"out of memory|cudaMalloc|Failed to allocate|Failed to find any .* convolution|bad_alloc|ALLOC_FAILED"
    mxnets = type(error).__name__ == "MXNetError"
    return isinstance(error, MemoryError) or (mxnets and re.search(words, str(error)) is not None)


def count(network: Network) -> Cost:
    from poc.frameworks.mxnet import compatibility

    compatibility.prepare()
    from poc.frameworks.mxnet import networks

    return networks.count(network)


def open_session(run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> Session:
    from poc.frameworks.mxnet import compatibility

    compatibility.prepare()
    from poc.frameworks.mxnet.session import MXNetSession

    return MXNetSession(run, first_step=first_step, state=state)
