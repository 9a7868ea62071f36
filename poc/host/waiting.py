"""What a run on the CPU leaves to other processes: threads at its start, and spinning while it goes on.

Threads of OpenMP wait for each other after every operator, by spinning. Where another process has the core of one of
them, the others hold theirs for nothing, and training is ten times slower than on the free cores alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from poc.host import hardware
from poc.values import UserError

_BUSY_CORES = 0.25
"""So many more cores kept busy by other processes than there are to spare count."""
_FIRST_LOOK_SECONDS, _LONG_LOOK_SECONDS = 0.25, 2.0
_LOOK_SECONDS = 0.5
_CALM_LOOKS = 4


def chosen_threads() -> int | None:
    """The OpenMP threads that the user wants for a training on the whole CPU (POC_THREADS); None to have them chosen.

    Raises UserError where it is no whole number above zero.
    """
    given = os.environ.get("POC_THREADS", "")
    if given and not (given.isdecimal() and int(given)):
        raise UserError(f"POC_THREADS: {given!r} is not allowed; use a whole number above zero, or unset it")
    return int(given) if given else None


def free_cores(cores: int) -> int:
    """How many cores a run of at most `cores` threads has to itself now, at least 1.

    Looks again, for longer, where others seem to need some of them: a moment's work must not cost a run its threads.
    """
    for seconds in (_FIRST_LOOK_SECONDS, _LONG_LOOK_SECONDS):
        began, (count, before, _) = time.monotonic(), hardware.core_times()
        time.sleep(seconds)
        busy = (hardware.core_times()[1] - before) / (time.monotonic() - began)
        if busy < count - cores + _BUSY_CORES:
            return cores
    free = max(1, min(cores, count - round(busy)))
    if free < cores:
        print(f"  other processes keep {busy:.1f} cores busy: training on {free} of {cores} cores", file=sys.stderr)
    return free


class SpinGuard:
    """Shortens the spinning of this process's OpenMP threads while other processes need the core of one of them.

    GCC's library (libgomp, which MXNet and PyTorch use) spins 300,000 times, about 3 ms, before a thread sleeps, and
    100 times where it has more threads than the process has cores (`do_spin` in config/linux/wait.h). It reads its
    settings once, when it is loaded; one more pool of idle threads shortens the spinning for as long as it lasts.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self.seconds = 0.0
        """Seconds in which spinning was short."""
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="spin guard", daemon=True)

    def __enter__(self) -> SpinGuard:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._leaving.set()
        self._thread.join()

    def _watch(self) -> None:
        before, calm = _seconds(), _CALM_LOOKS
        to_spare = hardware.core_times()[0] - self._threads
        with contextlib.ExitStack() as short:
            while not self._leaving.wait(_LOOK_SECONDS):
                now = _seconds()
                seconds, own, busy = (later - earlier for earlier, later in zip(before, now))
                before = now
                was_calm = calm >= _CALM_LOOKS
                calm = 0 if busy - own > (to_spare + _BUSY_CORES) * seconds else calm + 1
                if calm == 0 and was_calm:
                    short.enter_context(_short_spins())
                elif calm == _CALM_LOOKS:
                    short.close()
                self.seconds += seconds * (calm < _CALM_LOOKS)


def _seconds() -> tuple[float, float, float]:
    """Seconds of a clock, of CPU time of this process, and in which its cores were busy with any process."""
    return time.monotonic(), time.process_time(), hardware.core_times()[1]


@contextlib.contextmanager
def _short_spins() -> Iterator[None]:
    leaving = threading.Event()
    # PyTorch brings a copy of the library.
    loaded = set(re.findall(r"\S*/libgomp\S*\.so\S*", Path("/proc/self/maps").read_text()))
    pools = [threading.Thread(target=_keep_pool, args=(path, leaving), daemon=True) for path in loaded]
    for pool in pools:
        pool.start()
    try:
        yield
    finally:
        leaving.set()
        for pool in pools:
            pool.join()


def _keep_pool(library: str, leaving: threading.Event) -> None:
    """Have idle threads, more than there are cores: they belong to the thread that runs this, and end with it."""
    idle = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # of a null pointer: it does nothing
    with contextlib.suppress(OSError, AttributeError):  # another library of that name
        ctypes.CDLL(library).GOMP_parallel(idle, None, len(os.sched_getaffinity(0)) + 1, 0)
    leaving.wait()
