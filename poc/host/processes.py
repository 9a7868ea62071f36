"""The processes of a run: started so that none outlives this one, watched so that a lost one ends all; their ports."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
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

from poc.host import child, control_groups, isolated
from poc.host.environment import without_decided

Lost = tuple[str, str]
"""Which process is to blame, and why."""

_HOME = Path(__file__).resolve().parents[2]
_SCRATCH = "poc-"
_IN_USE = "in-use"
# Looking takes time from the cores that are measured: what can be waited for is not looked for.
_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 2.0
# Of CPU time, whose parts the kernel rounds down to whole ticks.
_ROUNDING_SECONDS = 0.1
KILLED_FOR_MEMORY = "its process ended early with signal 9: the kernel killed it because memory ran out"
_HINTS: dict[int, str] = {
    signal.SIGXCPU: "it reached its limit of CPU time (ulimit -t)",
    signal.SIGXFSZ: "a file reached the size limit (ulimit -f)",
    signal.SIGBUS: "a page of a shared file was missing: is /dev/shm or the disk full?",
    signal.SIGILL: "this CPU does not have an instruction that the framework needs",
    **dict.fromkeys((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), "sent by another process"),
}


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
    """Starts `python -m module`, as `isolated` does, with `environment` added to what this process passes on.

    The kernel kills it when this process dies, however that happens; Ctrl-C in the terminal does not reach it, so that
    this process decides in which order the others end. `options` are those of subprocess.Popen.
    """
    command = [sys.executable, "-IS", child.__file__, str(os.getpid()), python, isolated.__file__, module]
    environment = {**without_decided(), **environment}
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
) -> Lost | None:
    """Waits until all workers have ended well; else returns which process is to blame, and why, as soon as it is clear.

    Where a process is lost the others would wait for it for ever. A worker or helper that fails counts, and that no
    worker has changed or touched its file of `signs` for `patience` seconds; CPU time does not, since a thread that
    waits may spin. `elsewhere` is asked, too, whether something is lost, and `done` whether the process of that name,
    which has failed, had done all it had to.
    """
    everyone = {**workers, **helpers}
    ended = _told_when_one_ends(everyone.values())
    killed_before, used_before = control_groups.memory_kills(), _child_seconds()
    active, last_sign = time.monotonic(), _last_change(signs)
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
            used = _child_seconds() - used_before
            return blamed, ended_early(everyone[blamed].returncode, killed_before, used)
        if (lost := elsewhere()) is not None:
            return lost
        now, sign = time.monotonic(), _last_change(signs)
        if sign != last_sign:
            active, last_sign = now, sign
        if now - active > patience:
            if all(map(done, running)):  # all is told; only their end hangs
                return None
            alive = {name: process.pid for name, process in everyone.items() if process.poll() is None}
            stopped = [name for name, pid in alive.items() if psutil.Process(pid).status() == psutil.STATUS_STOPPED]
            why = f"no step for {now - active:.0f} s"
            hint = "it was stopped (SIGSTOP)" if stopped else "use a larger --patience if steps are that slow"
            return ", ".join(stopped or workers), f"{why}; {hint}"
        ended.wait(_LOOK_SECONDS)


def ended_early(status: int, memory_kills_before: int | None = None, cpu_seconds: float = 0.0) -> str:
    """Say how a process ended that should not have, by its exit `status`, and why where that can be told.

    `memory_kills_before` is what `control_groups.memory_kills` gave before it started, None where nothing did;
    `cpu_seconds` are what it may have used.
    """
    if status >= 0:
        return f"its process ended early with exit code {status}"
    hint = _HINTS.get(-status, "")
    if status == -signal.SIGKILL:
        _, limit = resource.getrlimit(resource.RLIMIT_CPU)
        if memory_kills_before is not None and memory_kills_before != control_groups.memory_kills():
            return KILLED_FOR_MEMORY
        if 0 <= limit <= cpu_seconds + _ROUNDING_SECONDS:
            hint = f"it reached its limit of CPU time (ulimit -t: {limit} s)"
        elif memory_kills_before is None:
            hint = "killed by the kernel because memory ran out, or by another process"
        else:
            hint = "killed by another process; memory did not run out"
    return f"its process ended early with signal {-status}" + (f"; {hint}" if hint else "")


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


def _last_change(files: Iterable[Path]) -> int:
    """When the last of the files that exist was changed or touched (ns); 0 where there is none."""
    return max((path.stat().st_mtime_ns for path in files if path.exists()), default=0)


def _child_seconds() -> float:
    """CPU seconds of all the processes that this one has waited for."""
    times = os.times()
    return times.children_user + times.children_system


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
