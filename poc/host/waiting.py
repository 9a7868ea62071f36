"""Avoid slowdowns by other processes: fewer threads at the start of a CPU run, and shorter spinning while it runs.

OpenMP threads wait for each other after every operator by spinning. If another process uses the core of one thread, the
others spin meanwhile, and training is ten times slower than on the free cores alone.
"""

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

_BUSY_CORES = 0.25  # cores that other processes may use beyond the spare ones before it counts
_SHORT_CHECK_SECONDS, _LONG_CHECK_SECONDS = 0.25, 2.0
_CHECK_SECONDS = 0.5


def chosen_threads() -> int | None:
    """Return the user's number of OpenMP threads for a run on the whole CPU (POC_THREADS); None if unset.

    Raises UserError if it is not a positive integer.
    """
    setting = os.environ.get("POC_THREADS", "")
    if setting and not (setting.isdecimal() and int(setting)):
        raise UserError(f"POC_THREADS: {setting!r} is not allowed; use a whole number above zero, or unset it")
    return int(setting) if setting else None


def free_cores(cores: int) -> int:
    """Return how many of `cores` other processes leave free now, at least 1.

    A second, longer check follows if they seem busy: a moment's work must not cost a run its threads.
    """
    for seconds in (_SHORT_CHECK_SECONDS, _LONG_CHECK_SECONDS):
        start, (usable, busy_before, _) = time.monotonic(), hardware.core_times()
        time.sleep(seconds)
        busy = (hardware.core_times()[1] - busy_before) / (time.monotonic() - start)
        if busy < usable - cores + _BUSY_CORES:
            return cores
    free = max(1, min(cores, usable - round(busy)))
    if free < cores:
        print(f"  other processes keep {busy:.1f} cores busy: training on {free} of {cores} cores", file=sys.stderr)
    return free


@contextlib.contextmanager
def spin_guard(threads: int) -> Iterator[None]:
    """Shorten the spinning of this process's OpenMP `threads` while other processes need one of their cores.

    GCC's library (libgomp, used by MXNet and PyTorch) spins 300,000 times, about 3 ms, before a thread sleeps, but only
    100 times if it has more threads than the process has cores (`do_spin` in config/linux/wait.h). It reads its
    settings once, when it is loaded; an additional pool of idle threads shortens the spinning while the pool exists.
    """
    leaving = threading.Event()
    allowed = hardware.core_times()[0] - threads + _BUSY_CORES

    def watch() -> None:
        before = _seconds()
        with contextlib.ExitStack() as pools:
            while not leaving.wait(_CHECK_SECONDS):
                now = _seconds()
                seconds, used, busy = (later - earlier for earlier, later in zip(before, now))
                before = now
                pools.close()
                if busy - used > allowed * seconds:
                    pools.enter_context(_idle_pools())

    thread = threading.Thread(target=watch, name="spin guard", daemon=True)
    thread.start()
    try:
        yield
    finally:
        leaving.set()
        thread.join()


def _seconds() -> tuple[float, float, float]:
    """Return the time, this process's CPU seconds, and the busy core-seconds of all processes."""
    return time.monotonic(), time.process_time(), hardware.core_times()[1]


@contextlib.contextmanager
def _idle_pools() -> Iterator[None]:
    """Keep more idle threads than there are cores in each copy of libgomp; PyTorch has a copy of its own."""
    leaving = threading.Event()
    no_work = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # free(NULL) does nothing

    def keep_pool(library: str) -> None:  # the pool ends with the thread that runs this
        with contextlib.suppress(OSError, AttributeError):  # another library with that name
            ctypes.CDLL(library).GOMP_parallel(no_work, None, len(os.sched_getaffinity(0)) + 1, 0)
        leaving.wait()

    loaded = set(re.findall(r"\S*/libgomp\S*\.so\S*", Path("/proc/self/maps").read_text()))
    pools = [threading.Thread(target=keep_pool, args=(path,), daemon=True) for path in loaded]
    for pool in pools:
        pool.start()
    yield
    leaving.set()
    for pool in pools:
        pool.join()
