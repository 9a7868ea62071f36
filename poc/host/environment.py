"""Inherited environment variables: those that runs do not get, and those that change speed and are recorded."""

import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

# The project itself decides on threads, affinity, process roles and rendezvous, whatever another program has set.
_REMOVED = (
    *("OMP_", "GOMP_", "KMP_", "DMLC_", "PS_VERBOSE", "HOROVOD_", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"),
    *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_", "OMPI_", "PMI_"),
    *("MKL_NUM_THREADS", "MKL_DYNAMIC", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "BLIS_NUM_THREADS"),
    *("MXNET_KVSTORE_BIGARRAY_BOUND", "GLOO_SOCKET_IFNAME"),
    # With these MXNet 1.9.1 leaves running statistics as they are, overruns arrays, or never updates on servers.
    *("MXNET_BACKWARD_DO_MIRROR", "MXNET_KVSTORE_USETREE", "MXNET_OPTIMIZER_AGGREGATION_SIZE"),
)
# Users may have reasons to set instruction sets, algorithms, allocators, operator scheduling or gradient transport.
# Runs get these variables, and runs that differ in them are different settings.
_RECORDED = (
    *("DNNL_", "ONEDNN_", "MKL_", "OPENBLAS_", "BLIS_", "MXNET_", "TORCH", "PYTORCH_", "ATEN_", "NCCL_", "GLOO_"),
    *("CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_TF32_OVERRIDE", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD"),
)
_OWN_COMMAND = Path(__file__).resolve().parents[2] / ".venv/bin/poc"
POC = shlex.quote(str(_OWN_COMMAND)) if _OWN_COMMAND.exists() else "poc"  # the command line, as messages name it
_SPEED_NEUTRAL_ENDINGS = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "_HOME", "_PATH", "_DIR", "_DIRECTORY"),
    *("_ROOT", "_VERSION", "_DEBUG_FILE"),
    *("_ARCH_LIST", "_COMPONENT_LIST", "_BUILD_NUMBER"),  # of images in which packages are built
)


def inherited_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that the processes of a run inherit: all but those that the project itself decides."""
    return {name: setting for name, setting in environ.items() if not name.startswith(_REMOVED)}


def speed_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the inherited variables that change speed, sorted by name: part of the identity of a setting."""
    recorded = (item for item in inherited_variables(environ).items() if item[0].startswith(_RECORDED))
    return {name: setting for name, setting in sorted(recorded) if not name.endswith(_SPEED_NEUTRAL_ENDINGS)}


def cache() -> Path:
    """Return the folder for data sets, checkpoints and costs of models: POC_CACHE, or one in the user's cache."""
    home = os.environ.get("HOME") or tempfile.gettempdir()
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path(home, ".cache"), "poc-mxnet")
    return Path(os.environ.get("POC_CACHE") or usual).absolute()
