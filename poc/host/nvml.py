"""Queries to the NVIDIA driver: None for what a GPU does not support, an exception for a GPU that is gone.

GPUs are numbered by PCI bus, as in nvidia-smi. CUDA does so, too, with CUDA_DEVICE_ORDER=PCI_BUS_ID and no GPU
that is denied or divided.
"""

import contextlib
import functools
import os
from collections.abc import Sequence
from typing import Any

import pynvml

SM_CLOCK = pynvml.NVML_CLOCK_SM
CORE_TEMPERATURE = pynvml.NVML_TEMPERATURE_GPU
THROTTLE_REASONS = {
    "power cap": pynvml.nvmlClocksThrottleReasonSwPowerCap,
    "power brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    "heat": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "hardware slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
}
"""Bits of the driver's throttle reasons that slow down a busy GPU; idling and clocks set by the owner do not count."""

IDLE_BYTES = 2 << 30  # memory that may be in use on an idle GPU, by its driver

_DENIED = pynvml.NVML_ERROR_NO_PERMISSION  # by a control group
# After these errors no further query is answered; any other error concerns a single query.
_FATAL = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
}


class NoAnswerError(Exception):
    """There is no NVIDIA driver, or a GPU no longer answers it."""


def query(function: str, gpu: int | None = None, *arguments: int) -> Any:
    """Call a function of pynvml for a GPU, or for the driver; None if it is not supported.

    Raises NoAnswerError if the driver or the GPU is gone.
    """
    _initialise(pynvml)
    try:
        handle = [] if gpu is None else [pynvml.nvmlDeviceGetHandleByIndex(gpu)]
    except pynvml.NVMLError as error:
        raise NoAnswerError(str(error)) from None
    try:
        answer = getattr(pynvml, function)(*handle, *arguments)
    except pynvml.NVMLError as error:
        if error.value in _FATAL:
            raise NoAnswerError(str(error)) from None
        return None
    return answer.decode() if isinstance(answer, bytes) else answer


@functools.cache
def _initialise(library: Any) -> None:
    try:
        library.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoAnswerError(f"the NVIDIA driver does not answer: {error}") from None


def visible_gpus() -> list[int]:
    """Return the GPUs that CUDA uses, in its order: all, or those in CUDA_VISIBLE_DEVICES.

    As in CUDA, an entry is an index or the start of a UUID, and the first that is of no GPU, or of several, ends it.
    If one is named twice, none is used. Indices do not count GPUs that a control group denies, so that in a job of
    Slurm 0 is the first that it may use.
    """
    gpus = [gpu for gpu in range(query("nvmlDeviceGetCount") or 0) if _error(gpu) != _DENIED]
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return gpus
    names = {str(index): gpu for index, gpu in enumerate(gpus)}
    for gpu in gpus:
        with contextlib.suppress(NoAnswerError):
            names[str(query("nvmlDeviceGetUUID", gpu))] = gpu
    visible: list[int] = []
    for entry in map(str.strip, setting.split(",")):
        found = {
            gpu for name, gpu in names.items() if name == entry or (entry[:4] == "GPU-" and name.startswith(entry))
        }
        if len(found) != 1:
            break
        visible += found
    return visible if len({*visible}) == len(visible) else []


def cuda_setting(gpus: Sequence[int]) -> str:
    """Return CUDA_VISIBLE_DEVICES for these GPUs: their indices, or UUIDs where CUDA numbers GPUs unlike the driver.

    CUDA does not count GPUs that a control group denies, perhaps no lost ones, and counts divided ones last.
    """
    with contextlib.suppress(NoAnswerError):  # CUDA will say why
        if any(_error(gpu) or is_divided(gpu) for gpu in range(query("nvmlDeviceGetCount") or 0)):
            return ",".join(str(query("nvmlDeviceGetUUID", gpu)) for gpu in gpus)
    return ",".join(map(str, gpus))


def _error(gpu: int) -> int:
    """Return the driver's error for a GPU that it counts but this process cannot use; 0 if it can."""
    try:
        pynvml.nvmlDeviceGetHandleByIndex(gpu)
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0


def is_divided(gpu: int) -> bool:
    """Return whether a GPU is divided into MIG instances, each a part of its processors and memory."""
    modes = None
    with contextlib.suppress(NoAnswerError):
        modes = query("nvmlDeviceGetMigMode", gpu)
    return bool(modes and modes[0])  # the current mode, and that after the next reset
