"""Hosts for tests: network, process and mount namespaces of this machine on one switch, each a node of Ray's."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from poc.host import isolated
from tests.launch import DEADLINE_SECONDS, HEEDFUL, HOME, NO_PAGES, eventually, held

PORT = 6379
_INSIDE = ("--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child")
_RAY = Path(sys.executable).with_name("ray")
_VARIABLES = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    # As in docs/hosts.md, but a silent node is given up earlier: after 3 x (1 + 2) s.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
    "RAY_event_stats": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
}
_RUN_MODULES = ("poc.run.worker", "poc.frameworks.mxnet", "reference.hub")  # processes of a run


class Host:
    """The host at 10.77.0.NUMBER. All of it ends with `init`, the first process in its namespace."""

    def __init__(self, number: int, folder: Path, core: str) -> None:
        self._core, self.gone = core, False
        self.address = f"10.77.0.{number}"
        self.folder = folder / f"host{number}"
        self.folder.mkdir(parents=True, exist_ok=True)
        setup = f"hostname {self.address} && mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray && exec sleep 100000"
        self._outer = subprocess.Popen(["unshare", *_INSIDE, "sh", "-c", setup])
        self.init = eventually(lambda: psutil.Process(self._outer.pid).children())[0]
        eventually(lambda: self.init.name() == "sleep")
        self.wire = f"v{os.getpid()}n{number}"

    def command(self, *words: object) -> list[str]:
        """Return the command that starts a command on the host, bound to its core."""
        enter = ["nsenter", "-t", str(self.init.pid), "-n", "-m", "-u", "-p", f"--wd={self.folder}"]
        return [*enter, "taskset", "-c", self._core, *map(str, words)]

    def environment(self, **variables: str | None) -> dict[str, str]:
        """Return the environment of a process there: its own cache, no images, and the token; None removes one."""
        folders = {"POC_CACHE": self.folder / "cache", "POC_HOLD": self.folder.parent / "hold", "HOME": self.folder}
        paths = {name: str(folder) for name, folder in folders.items()}
        merged = {**os.environ, **_VARIABLES, **paths, "POC_DATA": None, "PYTHONPATH": str(HOME), **variables}
        return {name: value for name, value in merged.items() if value is not None}

    def start_ray(self, label: str, head: str = "", **variables: str | None) -> subprocess.CompletedProcess[str]:
        """Make it a node of the cluster with its head at that address, by default the head of a new one."""
        alone = ["--head", f"--port={PORT}", "--include-dashboard=false", "--no-monitor"]
        role = [f"--address={head}:{PORT}"] if head else alone
        options = ["--disable-usage-stats", "--object-store-memory=80000000", f"--labels=infrastructure={label}"]
        options += ["--include-log-monitor=false"]  # 40 MB a node; no test reads what it forwards
        options += [f"--node-ip-address={self.address}", "--num-cpus=1"]
        command, environment = self.command(_RAY, "start", *role, *options), self.environment(**variables)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS)

    def processes(self, module: str = "") -> list[psutil.Process]:
        """Return the processes on it whose command contains `module`."""
        processes: list[psutil.Process] = []
        namespace = "" if self.gone else os.readlink(f"/proc/{self.init.pid}/ns/pid_for_children")
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                inside = os.readlink(f"/proc/{process.pid}/ns/pid") == namespace
                if inside and module in " ".join(process.cmdline()):
                    processes.append(process)
        return processes

    def left_of_runs(self) -> list[str]:
        """Return the modules of runs that have a process there."""
        return [module for module in _RUN_MODULES if self.processes(module)]

    def listening(self) -> set[str]:
        """Return the addresses on which processes of runs listen there."""
        processes = [process for module in _RUN_MODULES for process in self.processes(module)]
        status = [Path(f"/proc/{process.pid}/status").read_text() for process in processes]
        pids = [text.partition("NSpid:")[2].splitlines()[0].split()[-1] for text in status]
        ss = subprocess.run(self.command("ss", "-Hltnp"), capture_output=True, text=True, check=True)
        lines = [line for line in ss.stdout.splitlines() if any(f"pid={pid}," in line for pid in pids)]
        return {line.split()[3].rpartition(":")[0] for line in lines}

    def kill(self) -> None:
        """End it as a power cut does."""
        self.gone = True
        self._outer.kill()
        with contextlib.suppress(psutil.Error):
            self.init.kill()
        self._outer.wait()

    def cut(self) -> None:
        """Pull its wire out of the switch."""
        _run("nsenter", "-t", self.init.pid, "-n", "ip", "link", "set", self.wire, "down")


class Nodes:
    """A cluster of hosts on one switch, with one core each: its head, of the type "pair", and nodes that are added."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
        self.hosts: list[Host] = []
        setup = "ip link add hub type bridge && ip link set hub up && exec sleep 100000"
        self._switch = subprocess.Popen(["unshare", "--net", "sh", "-c", setup])
        name = psutil.Process(self._switch.pid).name
        eventually(lambda: name() == "sleep", lambda: self._switch.poll() is not None)
        self.head = self._start(self.host(), "pair")
        self._second: Host | None = None

    def host(self, core: int = 0) -> Host:
        """Wire one more host to the switch; it is no node yet."""
        host = Host(len(self.hosts) + 1, self._folder, self._cores[core])
        self.hosts.append(host)
        pid, port = host.init.pid, f"{host.wire}p"
        switch = ["netns", self._switch.pid]
        _run("ip", "link", "add", host.wire, "netns", pid, "type", "veth", "peer", "name", port, *switch)
        _run("nsenter", "-t", self._switch.pid, "-n", "ip", "link", "set", port, "master", "hub", "up")
        inside = ["nsenter", "-t", pid, "-n", "ip"]
        _run(*inside, "addr", "add", f"{host.address}/24", "dev", host.wire)
        _run(*inside, "link", "set", host.wire, "up")
        _run(*inside, "link", "set", "lo", "up")
        return host

    def second(self, *, replace: bool = False) -> Host:
        """Return the other node of the head's type; with `replace` a new one, and the test ends the old one."""
        if self._second is None or self._second.gone or replace:
            self._second = self.add("pair")
        return self._second

    def add(self, label: str, **variables: str | None) -> Host:
        """Return one more node, on the other core."""
        return self._start(self.host(1), label, self.head.address, **variables)

    @contextlib.contextmanager
    def another(self, label: str, **variables: str | None) -> Iterator[Host]:
        """Add a node for as long as the block lasts."""
        host = self.add(label, **variables)
        try:
            yield host
        finally:
            if not host.gone:
                for raylet in host.processes("raylet/raylet "):
                    raylet.terminate()  # it tells the head, so that no later test waits for it
                eventually(lambda: not host.processes("raylet/raylet "))
                host.kill()

    def hold(self, step: int) -> contextlib.AbstractContextManager[Callable[[int], object]]:
        """Hold runs on all nodes, as `tests.launch.held`."""
        return held(self._folder / "hold", step)

    def _start(self, host: Host, label: str, head: str = "", **variables: str | None) -> Host:
        started = host.start_ray(label, head, **variables)
        assert started.returncode == 0, started.stderr
        return host

    def close(self) -> None:
        """End all hosts."""
        for host in self.hosts:
            host.kill()
        self._switch.kill()
        self._switch.wait()


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Nodes]:
    """Start a cluster; skip the test if namespaces are not allowed."""
    try:
        _run("unshare", *_INSIDE, "true")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"namespaces are not allowed here: {getattr(error, 'stderr', '') or error}")
    if not (shutil.which("ip") and shutil.which("ss")):
        pytest.skip("needs ip and ss: sudo apt-get install iproute2")
    with contextlib.closing(Nodes(folder)) as nodes:
        yield nodes


@contextlib.contextmanager
def drive(
    host: Host, recipe: Path, folder: Path, *words: object, module: str = NO_PAGES, **variables: str | None
) -> Iterator[subprocess.Popen[str]]:
    """Start `poc run` on `host`, by default for its cluster, with results and checkpoints in `folder`.

    The driver is killed at the end of the block.
    """
    options = ["--results", folder / "results", "--checkpoints", folder / "checkpoints"]
    if "--cluster" not in words:
        options += ["--cluster", f"{host.address}:{PORT}"]
    python = [*HEEDFUL, sys.executable, "-W", "ignore", "-I", isolated.__file__]  # as run_all.sh starts it
    driver = subprocess.Popen(
        host.command(*python, module, "run", recipe, *options, *words),
        env=host.environment(**variables),
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


def driven(host: Host, recipe: Path, folder: Path, *words: object, status: int = 0, **options: str | None) -> str:
    """Run `drive` to its end; return its output, and fail if its exit code is another one."""
    with drive(host, recipe, folder, *words, **options) as process:
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == status, output
    return output


def _run(*words: object) -> None:
    subprocess.run([*map(str, words)], check=True, capture_output=True, text=True)
