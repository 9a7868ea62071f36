"""Faults that tests ask for by the environment variable POC_FAULT; an engine to start from needs none of this."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Sequence
from typing import Any

from poc.data import Batch

from .session import NumpySession


class FaultySession(NumpySession):
    """Crashes as it is taken down ("crash"), or has no memory for the large product at the end ("peak"), or none for
    more than 48 samples a device ("48")."""

    _taken = 1_000_000

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._fault = os.environ["POC_FAULT"]
        if self._fault == "crash":
            atexit.register(os.kill, os.getpid(), signal.SIGSEGV)

    def _backward(self, batch: Batch, **how: Any) -> Sequence[float]:
        if self._fault.isdigit() and self._run.batch_per_device > int(self._fault):
            raise MemoryError(f"no room for {self._run.batch_per_device} samples")
        return super()._backward(batch, **how)

    def peak_device_bytes(self) -> int:
        return self._taken

    def peak_flops(self) -> float:
        self._taken *= 1000
        if self._fault == "peak":
            raise MemoryError
        return super().peak_flops()
