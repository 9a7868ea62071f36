"""The NVIDIA driver's answers about its cards: what a card does not have is None, what is gone raises.

Cards are numbered by PCI bus, as in nvidia-smi; CUDA does so under CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pynvml

from poc.values import UserError

SM_CLOCK = pynvml.NVML_CLOCK_SM
MEMORY_CLOCK = pynvml.NVML_CLOCK_MEM
CORE_TEMPERATURE = pynvml.NVML_TEMPERATURE_GPU
# Of these an idle card, or one whose owner set its clocks, has none.
THROTTLE_REASONS = {
    "power cap": pynvml.nvmlClocksThrottleReasonSwPowerCap,
    "power brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    "heat": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "hardware slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
}
"""What may hold a card's clocks back, and its bits in what the driver says of that."""

# After these no further question to the card can be answered; any other error concerns the one question.
_GONE = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
}


class NoAnswer(Exception):  # noqa: N818
    """The driver, or one of its cards, does not answer: there is none, or it is gone."""


@contextlib.contextmanager
def session() -> Iterator[None]:
    """All else here is asked within; raises NoAnswer where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoAnswer(f"the NVIDIA driver does not answer: {error}") from None
    try:
        yield
    finally:
        with contextlib.suppress(pynvml.NVMLError):  # the driver may have gone first
            pynvml.nvmlShutdown()


def ask(question: str, cards: int | tuple[int, ...], *details: int) -> Any:
    """What pynvml's function `question` says of a card, or of several together; None where it has no answer.

    Raises NoAnswer where a card is gone.
    """
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(card) for card in ([cards] if isinstance(cards, int) else cards)]
        answer = getattr(pynvml, question)(*handles, *details)
    except pynvml.NVMLError as error:
        if error.value in _GONE:
            raise NoAnswer(str(error)) from None
        return None
    return answer.decode() if isinstance(answer, bytes) else answer


def address(question: str, card: int, *details: int) -> str | None:
    """The PCI address ("0000:05:00.0") that pynvml's function `question` names; None and NoAnswer as in `ask`."""
    pci = ask(question, card, *details)
    return None if pci is None else f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def visible() -> list[int]:
    """The cards that CUDA uses, in its order: all, or those that CUDA_VISIBLE_DEVICES names.

    As in CUDA, an entry is a number or the beginning of one card's UUID; the first that is neither ends the list.
    Raises UserError for an instance of a card (MIG).
    """
    cards = range(ask("nvmlDeviceGetCount", ()) or 0)
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return list(cards)
    uuids = {}
    for card in cards:
        with contextlib.suppress(NoAnswer):
            uuids[card] = str(ask("nvmlDeviceGetUUID", card))
    chosen: list[int] = []
    for entry in map(str.strip, setting.split(",")):
        if entry.startswith("MIG-"):
            raise UserError(f"CUDA_VISIBLE_DEVICES: {entry} is a MIG instance; use whole GPUs")
        meant = [card for card, uuid in uuids.items() if entry == str(card) or (entry and uuid.startswith(entry))]
        if len(meant) != 1:
            break
        chosen += meant
    return chosen
