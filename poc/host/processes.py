"""Start the processes of a run so that none outlives this one, watch them for failures, and find ports for them."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import psutil

from poc.host import control_groups, isolated
from poc.host.environment import inherited_variables

Lost = tuple[str, str]  # the name of the process to blame for a failure, and the reason

_HOME = Path(__file__).resolve().parents[2]
_PORTS = range(20_000, 30_000)
_CHECK_SECONDS = 1.0
_GRACE_SECONDS = 2.0
_END_SECONDS = 30.0
_FIRST_END_SECONDS = 0.1
STALLED = "no step for"  # the start of the reason if no worker makes progress
KILLED_FOR_MEMORY = "its process ended early with signal 9: the kernel killed it because memory ran out"
_HINTS: dict[int, str] = {
    signal.SIGBUS: "a page of a shared file was missing: is /dev/shm or the disk full?",
    signal.SIGILL: "this CPU does not have an instruction that the framework needs",
    signal.SIGXCPU: "it reached its limit of CPU time (ulimit -t)",
    signal.SIGKILL: "sent by another process, or by the kernel at the limit of CPU time (ulimit -t)",
    **dict.fromkeys((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), "sent by another process"),
}


def start(
    module: str, environment: Mapping[str, str], *, python: str = sys.executable, **options: Any
) -> subprocess.Popen[str]:
    """Start `python -m module` by `isolated.py`, with `environment` added to the inherited variables.

    The kernel kills the process when this one dies. Ctrl-C in the terminal does not reach it, so that this process
    decides in which order the others end. `options` are passed to subprocess.Popen.
    """
    command = [python, isolated.__file__, "--parent", str(os.getpid()), module]
    environment = {**inherited_variables(), **environment}
    return subprocess.Popen(command, env=environment, cwd=_HOME, text=True, start_new_session=True, **options)


def stop(processes: Iterable[subprocess.Popen[str]]) -> None:
    """Kill the processes and wait until they have ended, or for half a minute: a driver may keep one for ever."""
    processes = list(processes)
    for process in processes:
        process.kill()
    _wait(processes, _END_SECONDS)


def settle(processes: Iterable[subprocess.Popen[str]], seconds: float) -> None:
    """Wait until all have ended: up to `seconds` for the first, then briefly, since the others may wait for it."""
    processes = list(processes)
    _wait_for_first(processes, seconds)
    _wait(processes, _GRACE_SECONDS)


def watch(
    workers: Mapping[str, subprocess.Popen[str]],
    helpers: Mapping[str, subprocess.Popen[str]],
    heartbeats: Sequence[Path],
    patience: float,
    elsewhere: Callable[[], Lost | None] = lambda: None,
    has_completed: Callable[[str], bool] = lambda name: False,
) -> Lost | None:
    """Wait until all workers have ended well; None then, else the process to blame and why, as soon as it is clear.

    The others would wait forever for a lost process. A failure is a worker or helper that ends with an error, or no
    worker that touches its file of `heartbeats` for `patience` seconds, less those in which this process was frozen
    (docker pause). CPU time is no sign of progress: a waiting thread may spin. `elsewhere` returns a failure on another
    host; `has_completed` whether a worker had done its work before it ended or hung.
    """
    processes = {**workers, **helpers}
    kills_before = control_groups.memory_kills()
    running, quiet_seconds, last_heartbeat = [*workers], 0.0, _latest_heartbeat(heartbeats)
    while True:
        checked = time.monotonic()
        _wait_for_first([workers[name] for name in running], _CHECK_SECONDS)
        running = [name for name, process in workers.items() if process.poll() is None]
        # A helper ends well when the workers, about to end themselves, tell it to.
        failed = [name for name, process in processes.items() if process.poll() and not has_completed(name)]
        if not running and not workers.keys() & failed:
            return None
        if failed:
            # Others may fail for the same reason and report it. A killed process closes its connections before it is
            # seen to have ended, so that those which lose their peer may be seen to end first: blame it before them.
            _wait(processes.values(), _GRACE_SECONDS)
            killed = [name for name, process in processes.items() if process.poll() == -signal.SIGKILL]
            failed += [name for name in killed if not has_completed(name)]
            codes = {name: processes[name].returncode for name in failed}
            # Libraries report a lost peer by an abort, too: NCCL's watchdog in PyTorch.
            blamed = min(failed, key=lambda name: codes[name] > 0 or codes[name] == -signal.SIGABRT)
            status = codes[blamed]
            is_killed_for_memory = status == -signal.SIGKILL and control_groups.memory_kills() != kills_before
            return blamed, KILLED_FOR_MEMORY if is_killed_for_memory else ended_early(status)
        if (failure := elsewhere()) is not None:
            return failure
        quiet_seconds += min(time.monotonic() - checked, 2 * _CHECK_SECONDS)
        if (heartbeat := _latest_heartbeat(heartbeats)) != last_heartbeat:
            quiet_seconds, last_heartbeat = 0.0, heartbeat
        limit = patience if len(running) == len(workers) else min(patience, _END_SECONDS)
        if quiet_seconds > limit and all(map(has_completed, running)):
            return None  # they hang while they exit, or wait for one that has ended
        if quiet_seconds > patience:
            alive = {name: process.pid for name, process in processes.items() if process.poll() is None}
            stopped = [name for name, pid in alive.items() if psutil.Process(pid).status() == psutil.STATUS_STOPPED]
            hint = "it was stopped (SIGSTOP)" if stopped else "use a larger --patience if steps are that slow"
            return ", ".join(stopped or workers), f"{STALLED} {quiet_seconds:.0f} s; {hint}"


def ended_early(status: int) -> str:
    """Say how a process failed from its exit `status`, and why if known."""
    if status >= 0:
        return f"its process ended early with exit code {status}"
    return "; ".join(filter(None, (f"its process ended early with signal {-status}", _HINTS.get(-status))))


def interface(address: str) -> str:
    """Return the network interface of this host with the IP `address`, such as "eth0"; raises OSError if none."""
    for name, addresses in psutil.net_if_addrs().items():
        if address in [entry.address for entry in addresses]:
            return str(name)
    raise OSError(f"no network interface of this host has the address {address}")


def free_port(host: str) -> int:
    """Return a free TCP port at the address `host` of this host; raises OSError if there is none.

    It is below those that Linux gives to connections, one of which could take it before a worker listens there.
    """
    failure = OSError()
    for port in random.SystemRandom().sample(_PORTS, 100):
        try:
            socket.create_server((host, port)).close()
            return port
        except OSError as error:
            failure = error
    raise failure


def _latest_heartbeat(files: Iterable[Path]) -> int:
    """Return the latest time (ns) at which any of the files was touched; 0 if none exists. One live worker suffices."""
    return max((path.stat().st_mtime_ns for path in files if path.exists()), default=0)


def _wait_for_first(processes: Sequence[subprocess.Popen[str]], seconds: float) -> None:
    """Return when one has ended, or after `seconds`."""
    end = time.monotonic() + seconds
    while processes and all(process.poll() is None for process in processes) and time.monotonic() < end:
        time.sleep(_FIRST_END_SECONDS)


def _wait(processes: Iterable[subprocess.Popen[str]], seconds: float) -> None:
    """Return when all have ended, or after `seconds`."""
    psutil.wait_procs(list(processes), timeout=seconds)  # type: ignore[arg-type]  # it calls their `wait` alone
