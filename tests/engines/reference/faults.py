"""Faults that tests ask for by the environment variable POC_FAULT; an engine to start from needs none of this."""

from __future__ import annotations

import atexit
import os
import signal
from typing import Any

from .session import NumpySession


class FaultySession(NumpySession):
    """Crashes as it is taken down ("crash"), or has no memory for the large product at the end ("peak")."""

    _taken = 1_000_000

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._fault = os.environ["POC_FAULT"]
        if self._fault == "crash":
            atexit.register(os.kill, os.getpid(), signal.SIGSEGV)

    def peak_device_bytes(self) -> int:
        return self._taken

    def peak_flops(self) -> float:
        self._taken *= 1000
        if self._fault == "peak":
            raise MemoryError
        return super().peak_flops()
