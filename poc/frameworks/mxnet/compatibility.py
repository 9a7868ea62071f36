"""Preparation for `import mxnet`, a library retired in 2023."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
from pathlib import Path

import numpy

from poc.frameworks import versions
from poc.frameworks.builds import as_new, shared_library
from poc.frameworks.mxnet import CUDA_10_LIBRARIES
from poc.host import nvml

# The libraries that mxnet-cu112 links and those that these open later, so that no other version on LD_LIBRARY_PATH is
# loaded: each after those it needs itself, by package of the wheel.
_CUDA_LIBRARIES = {
    "cuda_runtime": ["libcudart.so.11.0"],
    "cuda_nvrtc": ["libnvrtc-builtins.so.11.8", "libnvrtc.so.11.2"],
    "nvtx": ["libnvToolsExt.so.1"],
    "cublas": ["libcublasLt.so.11", "libcublas.so.11"],
    "cufft": ["libcufft.so.10"],
    "curand": ["libcurand.so.10"],
    "cusparse": ["libcusparse.so.11"],
    "cusolver": ["libcusolver.so.11"],
    "cudnn": ["libcudnn.so.8", *(f"libcudnn_{ops}_{use}.so.8" for use in ("infer", "train") for ops in ("ops", "cnn"))],
    "nccl": ["libnccl.so.2"],
}


def prepare() -> None:
    """Make this process ready to import mxnet."""
    if "mxnet" in sys.modules:
        return
    # MXNet uses the alias that numpy 1.24 removed.
    numpy.bool = numpy.bool_  # type: ignore[attr-defined]
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
        for name in CUDA_10_LIBRARIES:
            ctypes.CDLL(str(shared_library(name)), mode=ctypes.RTLD_GLOBAL)
        return
    spec = importlib.util.find_spec("nvidia")
    if spec is None or not spec.submodule_search_locations:
        return
    for root in map(Path, spec.submodule_search_locations):
        paths = [root / package / "lib" / name for package, names in _CUDA_LIBRARIES.items() for name in names]
        for path in filter(Path.exists, paths):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
