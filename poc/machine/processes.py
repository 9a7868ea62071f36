"""The processes of a run: started so that none outlives this one, watched so that a lost one ends all; their ports."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import psutil

from poc.machine import child, isolated

Lost = tuple[str, str]
"""Which process is to blame, and why."""

_HOME = Path(__file__).resolve().parents[2]
_SCRATCH = "poc-"
_IN_USE = "in-use"
# Looking takes time from the cores that are measured: what can be waited for is not looked for.
_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 2.0
# Cores that a worker keeps busy while it computes; one that waits for another keeps none.
_COMPUTES = 0.5


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder in the system's temporary one, which goes with the block; sweeps up after processes that were killed.

    Whose folder is in use shows in a lock that dies with its holder.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*/{_IN_USE}"):
        with contextlib.suppress(OSError), open(left) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left.parent, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH) as folder, open(Path(folder) / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Locked before it has its name, so that nobody finds it without.
        os.rename(lock.name, Path(folder) / _IN_USE)
        yield Path(folder)


def start(
    module: str, environment: Mapping[str, str], *, python: str = sys.executable, **options: Any
) -> subprocess.Popen[str]:
    """Starts `python -m module` with `environment` added to this process's own, as `isolated` does.

    The kernel kills it when this process dies, however that happens; Ctrl-C in the terminal does not reach it, so that
    this process decides in which order the others end. `options` are those of subprocess.Popen.
    """
    command = [sys.executable, "-IS", child.__file__, str(os.getpid()), python, isolated.__file__, module]
    environment = {**os.environ, **environment}
    return subprocess.Popen(command, env=environment, cwd=_HOME, text=True, start_new_session=True, **options)


def stop(processes: Iterable[subprocess.Popen[str]]) -> None:
    """Kills the processes and waits for them; harmless for those that have ended."""
    for process in processes:
        process.kill()
        process.wait()


def settle(processes: Iterable[subprocess.Popen[str]], seconds: float) -> None:
    """Returns when all have ended, at the latest after `seconds`, and soon after one has, for which the others may wait
    for ever."""
    waiting = list(processes)
    if waiting:
        _told_when_one_ends(waiting).wait(seconds)
    _wait(waiting, _GRACE_SECONDS)


def watch(
    workers: Mapping[str, subprocess.Popen[str]],
    helpers: Mapping[str, subprocess.Popen[str]],
    signs: Sequence[Path],
    patience: float,
    elsewhere: Callable[[], Lost | None] = lambda: None,
    done: Callable[[str], bool] = lambda name: False,
    polling: int = 0,
) -> Lost | None:
    """Waits until all workers have ended well; else returns which process is to blame, and why, as soon as it is clear.

    Where a process is lost the others would wait for it for ever. A worker or helper that fails counts, and that no
    worker has computed or added to its file of `signs` for `patience` seconds. `elsewhere` is asked, too, whether
    something is lost, and `done` whether the process of that name, which has failed, had done all it had to. So many
    threads of theirs may be `polling`: a thread that waits for a GPU keeps a core busy, and computes nothing.
    """
    everyone = {**workers, **helpers}
    ended = _told_when_one_ends(everyone.values())
    computing = [psutil.Process(process.pid) for process in workers.values()]
    looked = active = time.monotonic()
    progress = _progress(computing, signs)
    while True:
        ended.clear()
        running = [name for name, process in workers.items() if process.poll() is None]
        # A helper that ends well was told to by the workers, which are about to end, too.
        failed = [name for name, process in everyone.items() if process.poll() and not done(name)]
        if not running and not workers.keys() & failed:
            return None
        if failed:
            # The others may fail for the same reason, and have something to tell of it. And a process that is killed
            # closes its connections before its end shows: those that miss it may be seen to end first.
            _wait(everyone.values(), _GRACE_SECONDS)
            killed = [name for name, process in everyone.items() if process.poll() == -signal.SIGKILL]
            failed += [name for name in killed if not done(name)]
            # One that was killed before one that ended by itself, perhaps because the other was gone.
            blamed = min(failed, key=lambda name: everyone[name].returncode > 0)
            return blamed, ended_early(everyone[blamed].returncode)
        if (lost := elsewhere()) is not None:
            return lost
        now = time.monotonic()
        before, progress = progress, _progress(computing, signs)
        told, used = (later - earlier for earlier, later in zip(before, progress))
        if told or used > (polling + _COMPUTES) * (now - looked):
            active = now
        looked = now
        if now - active > patience:
            if all(map(done, running)):  # all is told; only their end hangs
                return None
            alive = {name: process.pid for name, process in everyone.items() if process.poll() is None}
            stopped = [name for name, pid in alive.items() if psutil.Process(pid).status() == psutil.STATUS_STOPPED]
            why = "it was stopped (SIGSTOP), and" if stopped else "none of them has ended, but"
            return ", ".join(stopped or workers), f"{why} nothing has gone on for {now - active:.0f} s"
        ended.wait(_LOOK_SECONDS)


def ended_early(status: int) -> str:
    """What the exit status of a process that should not have ended says."""
    how = f"signal {-status}" if status < 0 else f"exit code {status}"
    hint = "; the kernel kills a process when memory runs out" if status == -signal.SIGKILL else ""
    return f"its process ended early with {how}{hint}"


def usage(process: psutil.Process) -> tuple[float, int] | None:
    """CPU seconds, with those of children that it has waited for, and resident bytes; None where it has ended."""
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        seconds = times.user + times.system + times.children_user + times.children_system
        return seconds, process.memory_info().rss
    return None


def interface(address: str) -> str:
    """The network interface of this host that has the IP `address`, such as "eth0"; raises OSError for none."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return str(name)
    raise OSError(f"no network interface of this host has the address {address}")


def free_port(host: str) -> int:
    """A TCP port that nothing listens on at the address `host` of this host."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _progress(workers: Iterable[psutil.Process], signs: Iterable[Path]) -> tuple[int, float]:
    """Bytes that the workers have told, and CPU seconds that they have used."""
    told = sum(path.stat().st_size for path in signs if path.exists())
    return told, sum(seconds for seconds, _ in filter(None, map(usage, workers)))


def _told_when_one_ends(processes: Iterable[subprocess.Popen[str]]) -> threading.Event:
    """An event that is set whenever one of them has ended, which is left to others to take note of.

    Popen's own waiting with a time-out looks for the end again and again.
    """
    ended = threading.Event()

    def wait(pid: int) -> None:
        with contextlib.suppress(ChildProcessError):  # taken note of already
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        ended.set()

    for process in processes:
        threading.Thread(target=wait, args=(process.pid,), name="wait", daemon=True).start()
    return ended


def _wait(processes: Iterable[subprocess.Popen[str]], seconds: float) -> None:
    """Returns when all have ended, at the latest after `seconds`."""
    end = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, end - time.monotonic()))
