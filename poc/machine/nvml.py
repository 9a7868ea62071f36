"""The NVIDIA driver's answers about its cards: what a card does not have is None, what is gone raises."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any

import pynvml

SM_CLOCK = pynvml.NVML_CLOCK_SM
MEMORY_CLOCK = pynvml.NVML_CLOCK_MEM
CORE_TEMPERATURE = pynvml.NVML_TEMPERATURE_GPU

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


class Driver:
    """A session with the NVIDIA driver, as a context manager.

    Cards are numbered by PCI bus, as in nvidia-smi; CUDA does so under CUDA_DEVICE_ORDER=PCI_BUS_ID. `library` is the
    pynvml module or something that has its functions. Entering raises NoAnswer where there is no driver.
    """

    def __init__(self, library: Any = pynvml) -> None:
        self._library = library
        self._handles: dict[int, Any] = {}

    def __enter__(self) -> Driver:
        try:
            self._library.nvmlInit()
        except pynvml.NVMLError as error:
            raise NoAnswer(f"no NVIDIA driver answers: {error}") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._handles = {}
        with contextlib.suppress(pynvml.NVMLError):  # the driver may have gone first
            self._library.nvmlShutdown()

    def count(self) -> int:
        """Number of cards; raises NoAnswer."""
        try:
            return int(self._library.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            raise NoAnswer(f"the NVIDIA driver does not say how many cards it has: {error}") from None

    def ask(self, question: str, cards: int | tuple[int, ...], *details: int) -> Any:
        """What pynvml's function `question` says of a card, or of several together; None where it has no answer.

        Raises NoAnswer where a card is gone.
        """
        try:
            handles = [self._handle(card) for card in ([cards] if isinstance(cards, int) else cards)]
            answer = getattr(self._library, question)(*handles, *details)
        except pynvml.NVMLError as error:
            if error.value in _GONE:
                raise NoAnswer(str(error)) from None
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    def visible(self, setting: str | None) -> list[int]:
        """The cards that CUDA uses, in its order, under this value of CUDA_VISIBLE_DEVICES; None is all of them.

        As in CUDA, an entry is a number or the beginning of one card's UUID; the first that is neither ends the list.
        """
        everything = range(self.count())
        if setting is None:
            return list(everything)
        uuids = {card: str(self.ask("nvmlDeviceGetUUID", card)) for card in everything}
        chosen: list[int] = []
        for entry in (part.strip() for part in setting.split(",")):
            if entry.isdigit():
                meant = [card for card in everything if card == int(entry)]
            else:
                meant = [card for card, uuid in uuids.items() if entry and uuid.startswith(entry)]
            if len(meant) != 1:
                break
            chosen += meant
        return chosen

    def _handle(self, card: int) -> Any:
        if card not in self._handles:
            self._handles[card] = self._library.nvmlDeviceGetHandleByIndex(card)
        return self._handles[card]
