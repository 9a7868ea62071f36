"""Faults that tests ask for by the environment variables POC_FAULT and POC_HOLD; a new framework needs none of
this."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from poc.data import Batch

from .session import NumpySession

# A minute of CPU time: a run that is not ended before completes, and its test sees that.
_SPIN_SECONDS = 60.0


class FaultySession(NumpySession):
    """Crashes as it is taken down ("crash"), or has no memory for the large product at the end ("peak"), for a step of
    its own ("apart"), or for more than 48 samples a device ("48"), or the loss of the second worker's samples, and of
    no other's, is too large ("diverge"), or it hangs in its tenth step and keeps a core busy ("spin"). It takes no step
    from the one on that the file POC_HOLD names, as long as that is there."""

    _taken = 1_000_000

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._fault = os.environ.get("POC_FAULT", "")
        if self._fault == "crash":
            atexit.register(os.kill, os.getpid(), signal.SIGSEGV)

    def _is_held(self) -> bool:
        with contextlib.suppress(OSError, ValueError):  # gone, or not written yet
            return self._step >= int(Path(os.environ.get("POC_HOLD", "")).read_text())
        return False

    def local_backward(self, batch: Batch, observe: Callable[[int], float] | None = None) -> list[float]:
        while self._is_held():
            time.sleep(0.02)
        until = time.process_time() + (_SPIN_SECONDS if self._fault == "spin" and self._step == 10 else 0.0)
        while time.process_time() < until:
            pass
        if self._fault.isdigit() and self._run.batch_per_device > int(self._fault):
            raise MemoryError(f"no room for {self._run.batch_per_device} samples")
        return super().local_backward(batch, observe)

    def step_without_sync(self, batch: Batch, learning_rate: float) -> None:
        if self._fault == "apart":
            raise MemoryError("no room for a step without synchronisation")
        super().step_without_sync(batch, learning_rate)

    def drain(self) -> float:
        loss = super().drain()
        return math.inf if self._fault == "diverge" and self._worker else loss

    def sync_is_correct(self) -> bool | None:
        return self._fault != "sum" and super().sync_is_correct()

    def peak_device_bytes(self) -> int:
        return self._taken

    def peak_flops(self) -> float:
        self._taken *= 1000
        if self._fault == "peak":
            raise MemoryError
        return super().peak_flops()
