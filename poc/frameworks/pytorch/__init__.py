"""PyTorch; `poc.frameworks.Framework` documents each function.

Importing this package does not import torch: `open_session` does, once the process is ready for it.
"""

import contextlib
import dataclasses
import functools
import json
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from poc import config
from poc.config.networks import AIRBENCHES, PREACTIVATION_RESNETS, Cost
from poc.config.run import Run
from poc.frameworks import Cluster, Session, interpreter, versions, worker_environments
from poc.frameworks.builds import Build
from poc.host import processes
from poc.host.hardware import Hardware
from poc.values import UserError, to_plain

LABEL = "PyTorch"
PACKAGES: tuple[str, ...] = ("torch", "torchvision", "timm")
_CUDA_13 = Build(
    package="torch",
    version="2.13.0",
    requirements=("requirements/torch.txt", "requirements/torch-cu13.txt"),
    gigabytes=5.0,
    separate=True,
    code=((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)),
    driver="580.65.06",
    processors=("x86_64", "aarch64"),
)
_CUDA_12 = dataclasses.replace(
    _CUDA_13,
    version="2.10.0",
    requirements=("requirements/torch-cu12.txt",),
    gigabytes=7.0,
    code=((7, 0), *_CUDA_13.code),
    driver="525.60.13",
    processors=("x86_64",),  # 2.10.0 for aarch64 is a build without CUDA
)
_REQUIREMENTS = ("requirements/torch.txt", "requirements/torch-cpu.txt")
_CPU = dataclasses.replace(_CUDA_13, requirements=_REQUIREMENTS, gigabytes=0.9, separate=False, code=(), driver="")
BUILDS: tuple[Build, ...] = (_CUDA_13, _CUDA_12, _CPU)  # their machine code is that of `torch.cuda.get_arch_list()`
EAGER_STEPS = 3
"""Steps before a CUDA graph is recorded: libraries choose their algorithms, and optimizers make their state."""
DDP_EAGER_STEPS = 11  # the same with DistributedDataParallel, which reads its own timers on the host in the first ten
WARMUP_STEPS = DDP_EAGER_STEPS + 1
DTYPES: tuple[str, ...] = ("float32", "tf32", "float16", "bfloat16")
SUPPORTED_OPTIONS: tuple[str, ...] = ("label_smoothing", "zero_init_gamma", "layout", "compile", "graphs")
NETWORKS: Collection[str] = (
    *(*PREACTIVATION_RESNETS, *AIRBENCHES, "alexnet", "vgg16", "vgg19", "densenet121", "googlenet", "inception_v3"),
    *("resnet50_v1", "resnet101_v1", "resnet152_v1"),
)
OPTIMIZERS: Collection[type[Any]] = tuple(kind for kind in config.OPTIMIZERS.values() if kind is not config.LARS)
KVSTORES: Collection[type[Any]] = (config.Device, config.NCCL, config.NoSync)

# For glibc, which by itself gives large blocks back to the system at once: PyTorch's allocator for CPUs keeps none, so
# that in each step the system would zero every page of every layer's output anew.
_KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


def layout(kind: str, dtype: str) -> str:
    """Return NHWC, but NCHW for float32 on GPUs, whose NHWC kernels are made for tensor cores (pytorch#44943)."""
    return "NCHW" if (kind, dtype) == ("gpu", "float32") else "NHWC"


def workers(requested: int, devices: int, emulated: bool) -> int:
    """Return one process per device, whatever the recipe says, as DistributedDataParallel wants it."""
    return 1 if emulated else devices


@contextlib.contextmanager
def cluster(run: Run, cores: int, hosts: Sequence[str] = ("127.0.0.1",)) -> Iterator[Cluster]:
    """Set torchrun's variables for the workers: their ranks, and where the first one waits for the others."""
    common = {
        # Beside a GPU a copy to pinned memory would start threads of its own, which then spin.
        **(_KEEP_MEMORY if run.kind == "cpu" else {"OMP_NUM_THREADS": "1"}),
        **({"NVIDIA_TF32_OVERRIDE": "0"} if run.dtype != "tf32" else {}),  # whatever the user's is
        # Between GPUs without peer access the default fails with drivers from CUDA 12.6 on (NVIDIA/nccl#1838).
        "NCCL_CUMEM_HOST_ENABLE": os.environ.get("NCCL_CUMEM_HOST_ENABLE", "0"),
        "KINETO_LOG_LEVEL": "99",  # PyTorch's profiler prints its start and end, and on a CPU that there is no GPU
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": processes.free_port(hosts[0]),
        "WORLD_SIZE": run.workers,
        "LOCAL_WORLD_SIZE": run.workers // len(hosts),
    }
    # Gloo would use the address that this host's name resolves to.
    ranks = {"RANK": "rank", "LOCAL_RANK": "local_rank", "GROUP_RANK": "host_rank", "POC_OWN_ADDRESS": "host"}
    yield Cluster(environments=worker_environments(run, cores, hosts, common, ranks), helpers={})


def unsupported_reason(run: Run, machine: Hardware) -> str | None:
    if not versions("pytorch").keys() >= {"torch", "torchvision"}:
        return "PyTorch is not installed: ./make_environment.sh --torch"
    if getattr(run.kvstore, "two_bit", None) is not None:
        return "two_bit is not supported by PyTorch"
    if run.compile and (missing := _missing_for_compile()):
        return f"compile=True needs {missing}"
    if isinstance(run.optimizer, config.TorchOptimizer):
        _check(run.optimizer)
        if run.dtype == "float16":
            return "dtype=float16 is not supported with TorchOptimizer: a first step that overflows cannot be undone"
    return None


def _missing_for_compile() -> str | None:
    """Return what PyTorch's compiler lacks to build its code, which includes Python's header: C++, or C for a GPU."""
    header, version = Path(sysconfig.get_path("include"), "Python.h"), sysconfig.get_python_version()
    if not shutil.which(os.environ.get("CXX", "g++")):
        return "a C++ compiler: sudo apt-get install g++"
    return None if header.exists() else f"{header}: sudo apt-get install python{version}-dev"


@functools.cache  # a plan asks for every run
def _check(optimizer: config.TorchOptimizer) -> None:
    """Try a step of the optimizer in a process of its own; raises UserError if it is not possible."""
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = processes.start("poc.frameworks.pytorch.optimizers", {}, python=interpreter("pytorch"), **pipes)
    _, errors = process.communicate(json.dumps(to_plain(optimizer)))
    if process.returncode:
        *_, last = errors.strip().splitlines() or [f"PyTorch ended with exit code {process.returncode}"]
        raise UserError(
            f"TorchOptimizer: {optimizer.algorithm}: {last.partition(': ')[2] or last}"
        )  # after the type of the error


def count_model(run: Run) -> Cost:
    from poc.frameworks.pytorch import zoo

    return zoo.count(run)


def is_out_of_memory(error: BaseException) -> bool:
    # torch.OutOfMemoryError, c10/core/impl/alloc_cpu.cpp, CUDA, cuDNN 8 and 9, its search for algorithms, and cuBLAS
    # where too little is left for its handle, and NCCL.
    on_cpu = r"DefaultCPUAllocator: (can't allocate|not enough) memory"
    words = rf"out of memory|{on_cpu}|ALLOC(ATION)?_FAILED|to find an engine|cublasCreate|Failed to CUDA [cm]alloc"
    from_torch = isinstance(error, RuntimeError) and re.search(words, str(error)) is not None
    return from_torch or isinstance(error, MemoryError)


def open_session(run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> Session:
    from poc.frameworks.pytorch.session import TorchSession

    return TorchSession(run, first_step=first_step, state=state)
