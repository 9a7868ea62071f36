"""Hosts for tests: each a network, process and mount namespace of this machine, on one switch, with a node of Ray's."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from poc.host import isolated
from tests.launch import DEADLINE_SECONDS, HEEDFUL, HOME, eventually, held

TOKEN = "0123456789abcdef" * 4
PORT = 6379
START = isolated.__file__
"""How run_all.sh starts it."""
RAY = Path(sys.executable).with_name("ray")
_INSIDE = ("--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child")
# A lost node is given up after some seconds, so that the next test need not wait for it.
_HEALTH = {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "2000"}
# As docs/hosts.md has it: less that Ray computes beside what is measured.
_QUIET = {
    "RAY_event_stats": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
}
_RAY = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_USAGE_STATS_ENABLED": "0", **_HEALTH, **_QUIET}
# What a run has on a node for as long as it goes on.
_OF_RUNS = ("poc.run.worker", "poc.frameworks.mxnet", "reference.hub")


class Host:
    """One of them, at 10.77.0.NUMBER; `init` is the process in this namespace with which all of it ends."""

    def __init__(self, switch: Switch, number: int, folder: Path, cores: str) -> None:
        self.number, self.cores, self.gone = number, cores, False
        self.address = f"10.77.0.{number}"
        self.folder = folder / f"host{number}"
        self.folder.mkdir(parents=True, exist_ok=True)
        setup = f"hostname {self.address} && mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray && exec sleep 100000"
        self._outer = subprocess.Popen(["unshare", *_INSIDE, "sh", "-c", setup])
        child = eventually(lambda: psutil.Process(self._outer.pid).children())
        self.init = child[0]
        eventually(lambda: self.init.name() == "sleep")
        self.wire = f"v{os.getpid()}n{number}"
        switch.plug(self.init.pid, self.wire, f"{self.address}/24")

    def command(self, *words: object) -> list[str]:
        """What starts a command there, bound to the host's cores."""
        enter = ["nsenter", "-t", str(self.init.pid), "-n", "-m", "-u", "-p", f"--wd={self.folder}"]
        return [*enter, "taskset", "-c", self.cores, *map(str, words)]

    def environment(self, **others: str | None) -> dict[str, str]:
        """Of what is started there: a cache of its own, no images, and the token unless it is taken out."""
        own: dict[str, str | None] = {
            **_RAY,
            "POC_DATA": None,
            "PYTHONPATH": str(HOME),
            "POC_CACHE": str(self.folder / "cache"),
            "POC_HOLD": str(self.folder.parent / "hold"),
            "HOME": str(self.folder),
        }
        variables = {**os.environ, **own, **others}
        return {name: held for name, held in variables.items() if held is not None}

    def start_ray(self, *, head: str = "", label: str = "", **others: str | None) -> subprocess.CompletedProcess[str]:
        """Makes it a node of the cluster whose head is at that address; without, the head of a new one."""
        where = [f"--address={head}:{PORT}"] if head else ["--head", f"--port={PORT}", "--include-dashboard=false"]
        where += [f"--labels=infrastructure={label}"] if label else []
        sizes = ["--object-store-memory=80000000", f"--num-cpus={len(self.cores.split(','))}"]
        sizes += ["--include-log-monitor=false"] if head else []  # a process less
        words = [RAY, "start", *where, f"--node-ip-address={self.address}", "--disable-usage-stats", *sizes]
        return subprocess.run(
            self.command(*words),
            env=self.environment(**others),
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )

    def processes(self, module: str = "") -> list[psutil.Process]:
        """Those on it whose command names `module`."""
        found = []
        for process in _in_namespace(self.init.pid):
            with contextlib.suppress(psutil.Error):
                if module in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def left_of_runs(self) -> list[str]:
        """What there is of runs."""
        return [module for module in _OF_RUNS if self.processes(module)]

    def listening(self, *, of_runs: bool = False) -> list[tuple[str, str]]:
        """Address and port of every TCP port that is open there, or of those that runs opened."""
        said = subprocess.run(self.command("ss", "-Hltnp"), capture_output=True, text=True, check=True).stdout
        lines = said.splitlines()
        if of_runs:
            found = [process for module in _OF_RUNS for process in self.processes(module)]
            status = [Path(f"/proc/{process.pid}/status").read_text() for process in found]
            inside = [text.partition("NSpid:")[2].splitlines()[0].split()[-1] for text in status]
            lines = [line for line in lines if any(f"pid={pid}," in line for pid in inside)]
        addresses = [line.split()[3].rpartition(":") for line in lines]
        return [(address, port) for address, _, port in addresses]

    def send(self, number: signal.Signals) -> None:
        """A signal to all of it but its first process."""
        for process in self.processes():
            if process.pid != self.init.pid:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)

    def kill(self) -> None:
        """As if its power had gone."""
        self.gone = True
        self._outer.kill()
        with contextlib.suppress(psutil.Error):
            self.init.kill()
        self._outer.wait()

    def cut(self, *, up: bool = False) -> None:
        """Pulls its wire out of the switch."""
        _run("nsenter", "-t", self.init.pid, "-n", "ip", "link", "set", self.wire, "up" if up else "down")


def _alive(process: psutil.Process) -> bool:
    """Whether it still does anything; on a host nobody fetches the exit code of what has ended."""
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _in_namespace(pid: int) -> list[psutil.Process]:
    own = os.readlink(f"/proc/{pid}/ns/pid_for_children")
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{process.pid}/ns/pid") == own:
                found.append(process)
    return found


class Nodes:
    """A cluster of hosts: its head, of the kind "pair", and what is added."""

    def __init__(self, wired: Switch, cores: Sequence[str]) -> None:
        self.wired, self._cores = wired, cores
        self.head = self._started(wired.host(cores[0]), label="pair")
        self._second: Host | None = None

    def second(self) -> Host:
        """Another of the head's kind."""
        if self._second is None or self._second.gone:
            self._second = self.add("pair")
        return self._second

    def replace_second(self) -> Host:
        """One in its place, which was struck and is for the test to end."""
        self._second = None
        return self.second()

    def add(self, label: str, **environment: str | None) -> Host:
        """One more node, on the other core."""
        return self._started(self.wired.host(self._cores[1]), head=self.head.address, label=label, **environment)

    @contextlib.contextmanager
    def another(self, label: str, **environment: str | None) -> Iterator[Host]:
        """A node for as long as the block lasts."""
        host = self.add(label, **environment)
        try:
            yield host
        finally:
            if not host.gone:
                # It says good-bye, so that no later test waits for it.
                ended = host.processes("raylet/raylet ")
                for raylet in ended:
                    raylet.terminate()
                eventually(lambda: not any(map(_alive, ended)))
                host.kill()

    @contextlib.contextmanager
    def hold(self, step: int) -> Iterator[Callable[[int], object]]:
        """As `tests.launch.held`, on all nodes."""
        with held(self.head.folder.parent / "hold", step) as hold_at:
            yield hold_at

    def _started(self, host: Host, **how: Any) -> Host:
        done = host.start_ray(**how)
        assert done.returncode == 0, done.stderr
        return host


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Nodes]:
    """A cluster whose nodes have one core each."""
    with switch(folder) as wired:
        yield Nodes(wired, [str(core) for core in sorted(os.sched_getaffinity(0))])


class Switch:
    """What the hosts are wired to: a bridge in a network namespace of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.hosts: list[Host] = []
        self._process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link add hub type bridge && ip link set hub up && exec sleep 100000"]
        )
        eventually(
            lambda: psutil.Process(self._process.pid).name() == "sleep", lambda: self._process.poll() is not None
        )

    def plug(self, pid: int, wire: str, address: str) -> None:
        """Wires the network namespace of process `pid` to it."""
        port = f"{wire}p"
        _run("ip", "link", "add", wire, "netns", pid, "type", "veth", "peer", "name", port, "netns", self._process.pid)
        _run("nsenter", "-t", self._process.pid, "-n", "ip", "link", "set", port, "master", "hub", "up")
        inside = ["nsenter", "-t", pid, "-n", "ip"]
        _run(*inside, "addr", "add", address, "dev", wire)
        _run(*inside, "link", "set", wire, "up")
        _run(*inside, "link", "set", "lo", "up")

    def host(self, cores: str = "0") -> Host:
        """One more."""
        self.hosts.append(Host(self, len(self.hosts) + 1, self._folder, cores))
        return self.hosts[-1]

    def close(self) -> None:
        """Ends all."""
        for host in self.hosts:
            host.kill()
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def switch(folder: Path) -> Iterator[Switch]:
    """A switch to which hosts can be wired; skips the test where namespaces are not allowed."""
    try:
        _run("unshare", *_INSIDE, "true")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"namespaces are not allowed here: {getattr(error, 'stderr', '') or error}")
    if not (shutil.which("ip") and shutil.which("ss")):
        pytest.skip("needs ip and ss: sudo apt-get install iproute2")
    made = Switch(folder)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def drive(
    host: Host, recipe: Path, folder: Path, *words: object, **environment: str | None
) -> Iterator[subprocess.Popen[str]]:
    """`poc run` on `host`, which drives its cluster, with results and checkpoints in `folder`; gone after the block."""
    places = ["--results", folder / "results", "--checkpoints", folder / "checkpoints"]
    if "--cluster" not in words:
        places += ["--cluster", f"{host.address}:{PORT}"]
    driver = subprocess.Popen(
        host.command(*HEEDFUL, sys.executable, "-W", "ignore", "-I", START, "poc", "run", recipe, *places, *words),
        env=host.environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield driver
    finally:
        for process in host.processes("poc run"):
            process.kill()
        driver.wait()


def driven(host: Host, recipe: Path, folder: Path, *words: object, status: int = 0, **environment: str | None) -> str:
    """What that said, once it has ended, which it has to with this exit code."""
    with drive(host, recipe, folder, *words, **environment) as process:
        said, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == status, said
    return said


def _run(*words: object) -> None:
    subprocess.run([*map(str, words)], check=True, capture_output=True, text=True)
