"""Faults that tests ask for by the environment variables POC_FAULT and POC_HOLD; a new framework needs none of
this."""

import atexit
import contextlib
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

from poc.data import Batch

from .session import NumpySession


class FaultySession(NumpySession):
    """A session with a fault, and one that waits before the step in the file POC_HOLD while that file exists.

    "crash": it crashes when it is closed. "peak": out of memory in `peak_flops`; "apart": in a step without
    synchronisation; "48", a number: with more samples per device. "diverge": the second worker's loss is infinite.
    "sum": gradients are summed wrongly.
    """

    _peak_bytes = 1_000_000

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._fault = os.environ.get("POC_FAULT", "")
        if self._fault == "crash":
            atexit.register(os.kill, os.getpid(), signal.SIGSEGV)

    def _is_held(self) -> bool:
        with contextlib.suppress(OSError, ValueError):  # gone, or not written yet
            return self._step >= int(Path(os.environ.get("POC_HOLD", "")).read_text())
        return False

    def step(self, batch: Batch, learning_rate: float, *, norms: bool = False) -> None:
        while self._is_held():
            time.sleep(0.02)
        if self._fault.isdigit() and self._run.batch_per_device > int(self._fault):
            raise MemoryError(f"no room for {self._run.batch_per_device} samples")
        if self._fault == "apart" and not self._syncs:
            raise MemoryError("no room for a step without synchronisation")
        super().step(batch, learning_rate, norms=norms)

    def drain(self) -> float:
        loss = super().drain()
        return math.inf if self._fault == "diverge" and self._worker else loss

    def sync_is_correct(self) -> bool | None:
        return self._fault != "sum" and super().sync_is_correct()

    def peak_device_bytes(self) -> int:
        return self._peak_bytes

    def peak_flops(self) -> float:
        self._peak_bytes *= 1000
        if self._fault == "peak":
            raise MemoryError
        if self._fault == "interrupt":
            raise KeyboardInterrupt
        return super().peak_flops()
