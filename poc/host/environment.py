"""The environment variables that change speed: which ones a run sets itself, which ones it inherits and records."""

from __future__ import annotations

import os
from collections.abc import Mapping

# Threads and where they run, who the processes of a run are, and how they find each other: the project decides these,
# so what another program has left in the environment must not reach a run.
_DECIDED = (
    *("OMP_", "GOMP_", "KMP_", "DMLC_", "PS_VERBOSE", "HOROVOD_", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"),
    *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_", "OMPI_", "PMI_"),
    *("MKL_NUM_THREADS", "MKL_DYNAMIC", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "BLIS_NUM_THREADS"),
    *("MXNET_KVSTORE_BIGARRAY_BOUND", "GLOO_SOCKET_IFNAME"),
)
# Instruction sets, algorithms, allocators, scheduling of operators, transport of gradients: a user may have a reason
# for these, so they are passed on, kept in the record, and runs that differ in them are different settings.
_RECORDED = (
    *("DNNL_", "ONEDNN_", "MKL_", "OPENBLAS_", "BLIS_", "MXNET_", "TORCH", "PYTORCH_", "ATEN_", "NCCL_", "GLOO_"),
    *("CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_TF32_OVERRIDE", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD"),
)
# Where files and cards are, and what a container says of itself, changes no speed.
_NEUTRAL = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "_HOME", "_PATH", "_DIR", "_ROOT", "_VERSION")


def without_decided(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that the processes of a run inherit: all but those that the project decides."""
    return {name: value for name, value in environ.items() if not name.startswith(_DECIDED)}


def speed_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The inherited variables that change speed, by name: part of what a setting is."""
    inherited = without_decided(environ)
    names = (name for name in inherited if name.startswith(_RECORDED) and not name.endswith(_NEUTRAL))
    return {name: environ[name] for name in sorted(names)}
