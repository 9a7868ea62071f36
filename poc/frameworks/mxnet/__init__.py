"""MXNet Gluon; `poc.frameworks.Framework` documents each function.

Importing this package does not import mxnet: `open_session` does, once the process is ready for it.
"""

import contextlib
import ctypes
import importlib.util
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from poc import config
from poc.config import kvstores
from poc.config.networks import NETWORKS as ALL_NETWORKS
from poc.config.networks import Cost
from poc.config.run import Run
from poc.frameworks import Cluster, Session, versions, worker_environments
from poc.frameworks.builds import Build, as_new, shared_library
from poc.host import nvml
from poc.host.hardware import Hardware

LABEL = "MXNet"
PACKAGES: tuple[str, ...] = ("mxnet", "mxnet-cu112", "mxnet-cu102", "gluoncv", "horovod")
CUDA_10_LIBRARIES = (
    *("libcudart.so.10.2", "libnvrtc.so.10.2", "libnvToolsExt.so.1", "libcublasLt.so.10", "libcublas.so.10"),
    *("libcufft.so.10", "libcurand.so.10", "libcusolver.so.10", "libcudnn.so.8", "libnccl.so.2"),
)
"""Libraries that mxnet-cu102 links, each after those it needs itself."""
CUDNN_PARTS = tuple(f"libcudnn_{part}.so.8" for part in ("ops_infer", "cnn_infer", "ops_train", "cnn_train"))
"""What cuDNN opens by name at the first convolution."""
_CUDA_11_LIBRARIES = (
    *("libcudart.so.11.0", "libnvrtc-builtins.so.11.8", "libnvrtc.so.11.2", "libnvToolsExt.so.1", "libcublasLt.so.11"),
    *("libcublas.so.11", "libcufft.so.10", "libcurand.so.10", "libcusparse.so.11", "libcusolver.so.11"),
    *("libcudnn.so.8", *CUDNN_PARTS, "libnccl.so.2"),
)
"""The same of mxnet-cu112, with those that these open later, so that no other version on LD_LIBRARY_PATH is loaded."""
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
"""Their machine code was read from the packages; they have no PTX, which newer cards could translate."""
WARMUP_STEPS = 0
DTYPES: tuple[str, ...] = ("float32", "tf32", "float16", "bfloat16")
SUPPORTED_OPTIONS: tuple[str, ...] = ("label_smoothing", "zero_init_gamma")
NETWORKS: Collection[str] = tuple(ALL_NETWORKS)
OPTIMIZERS: Collection[type[Any]] = (config.SGD, config.Nesterov, config.LARS, config.Muon, config.AdamW)
KVSTORES: Collection[type[Any]] = tuple(kvstores.KVSTORES.values())
ON_SERVERS = (config.DistAsync, config.SSP)  # kvstores whose servers apply the updates


def layout(kind: str, dtype: str) -> str:
    return "NCHW"


def workers(requested: int, devices: int, emulated: bool) -> int:
    """Return the recipe's number of processes; each drives several devices."""
    return requested


def cluster(run: Run, cores: int, hosts: Sequence[str] = ("127.0.0.1",)) -> AbstractContextManager[Cluster]:
    """Start the scheduler and servers of a distributed kvstore, or the rendezvous of Horovod's workers, or nothing."""
    common = {"DMLC_LOG_STACK_TRACE_DEPTH": "0", "MXNET_CUDNN_LIB_CHECKING": "0"}  # the pinned cuDNN is a newer one
    if sys.version_info < (3, 12):
        common["SETUPTOOLS_USE_DISTUTILS"] = "stdlib"  # else MXNet's import brings setuptools' own, half a second more
    if run.kind == "cpu":
        common["CUDA_VISIBLE_DEVICES"] = ""  # else the kvstore's memory is CUDA's, on the first GPU
    if run.dtype != "tf32":
        common["NVIDIA_TF32_OVERRIDE"] = "0"  # else MXNet has Ampere round the factors of products to 10 bits
    from poc.frameworks.mxnet import servers  # not before it is run as a main program

    if isinstance(run.kvstore, ON_SERVERS) or (run.workers > 1 and not isinstance(run.kvstore, config.Horovod)):
        return servers.parameter_servers(run, cores, hosts, common)
    if run.workers > 1:
        return servers.rendezvous(run, cores, hosts, common)
    return contextlib.nullcontext(Cluster(environments=worker_environments(run, cores, hosts, common), helpers={}))


def unsupported_reason(run: Run, machine: Hardware) -> str | None:
    kvstore = run.kvstore if run.synchronises else None
    if isinstance(kvstore, config.Horovod) and importlib.util.find_spec("horovod") is None:
        how = "./make_environment.sh --horovod" if run.kind == "cpu" else "build it with NCCL"
        return f"Horovod is not installed: {how}"
    plain = isinstance(run.optimizer, config.SGD) and not run.optimizer.momentum_correction
    if isinstance(kvstore, ON_SERVERS) and (not plain or run.dtype == "float16"):
        return f"kvstore={kvstore.name} supports only SGD without momentum correction, and not dtype=float16"
    if run.dtype == "float16" and getattr(kvstore, "two_bit", None) is not None:
        return "two_bit is not supported with dtype=float16: an overflow would stay in its residual"
    if isinstance(run.optimizer, config.Muon) and run.kind == "cpu" and run.devices > run.workers and not run.emulated:
        # MXNet's OpenBLAS hangs for ever if a second thread enters a product that is shared out to threads.
        return "optimizer=muon needs a worker per CPU device; set workers, or emulated=True"
    if run.dtype == "bfloat16" and run.kind == "gpu":
        return "dtype=bfloat16 needs a CPU: MXNet 1.9.1 does not support it on GPUs"
    return None


def count_model(run: Run) -> Cost:
    prepare()
    from poc.frameworks.mxnet import zoo

    return zoo.count(zoo.own(run), run.data.classes, run.data.crop)


def is_out_of_memory(error: BaseException) -> bool:
    # Messages of MXNet's allocators (src/storage/ of 1.9.1), cuDNN, the search for its fastest algorithms and cuBLAS.
    words = r"out of memory|cudaMalloc|Failed to allocate|Failed to find any .* convolution|bad_alloc|ALLOC_FAILED"
    words += r"|larger than 2\^31 elements"  # in an array: a smaller batch may fit
    from_mxnet = type(error).__name__ == "MXNetError"
    return isinstance(error, MemoryError) or (from_mxnet and re.search(words, str(error)) is not None)


def open_session(run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> Session:
    prepare()
    from poc.frameworks.mxnet.distributed import session_type

    return session_type(run)(run, first_step=first_step, state=state)


def prepare() -> None:
    """Make this process ready to import mxnet, a library retired in 2023."""
    if "mxnet" in sys.modules:
        return
    # MXNet uses the alias that numpy 1.24 removed.
    np.bool = np.bool_  # type: ignore[attr-defined]
    if sys.version_info >= (3, 12):
        # distutils left the standard library; importing setuptools puts its own copy in place.
        import setuptools  # noqa: F401
    with contextlib.suppress(nvml.NoAnswerError):
        # For fused operators CUDA 11.8's NVRTC writes PTX 7.8, which an older driver cannot read.
        if not as_new(str(nvml.query("nvmlSystemGetDriverVersion") or ""), "520.61"):
            os.environ["MXNET_USE_FUSION"] = "0"
    _load_cuda_libraries()


def _load_cuda_libraries() -> None:
    if "mxnet-cu102" in versions("mxnet"):
        linked = [path for name in CUDA_10_LIBRARIES if (path := shared_library(name))]
        parts = [path.with_name(name) for path in linked if path.name == "libcudnn.so.8" for name in CUDNN_PARTS]
        paths = [*linked, *filter(Path.exists, parts)]
    else:
        spec = importlib.util.find_spec("nvidia")
        roots = map(Path, (spec and spec.submodule_search_locations) or ())
        paths = [path for root in roots for name in _CUDA_11_LIBRARIES for path in root.glob(f"*/lib/{name}")]
    for path in paths:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
