"""Clusters on Ray, of hosts that are namespaces of this machine: compared, joined, struck, and closed to strangers."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import ImageNet, Synthetic
from poc.records import journal
from poc.records.record import COMPLETED, FAILED, Record
from poc.train import checkpoint
from tests.builders import GLUON, TWO_WORKERS, executed, recipe_file
from tests.hosts import PORT, Host, Switch, drive, driven, switch
from tests.launch import DEADLINE_SECONDS, HOME, eventually, python

CORES = [str(core) for core in sorted(os.sched_getaffinity(0))]
PAIR = "2 hosts, each pair"
IMAGES = Synthetic(train=320, validation=70)
JOINED: dict[str, Any] = {**TWO_WORKERS, "data": IMAGES, "cores_per_worker": 1, "epochs": 2}
MXNET = {**GLUON, "batch_per_device": 8, "data": Synthetic(size=16, crop=16, train=160, validation=70)}
# Each device has a process of its own anyway.
PYTORCH = {**MXNET, "engine": "pytorch", "exchange": "device", "workers": 1}
LONG: dict[str, Any] = {"epochs": 100_000, "window": 5}
# What a run leaves on a node for as long as it goes on.
RUNNING = ("poc.train.worker", "poc.engines", "hub")
needs_horovod = pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(len(CORES) < 2, reason="two hosts need a core each"), needs_ray]


class Nodes:
    """A cluster: its head, of the kind "pair", and what is added."""

    def __init__(self, wired: Switch) -> None:
        self.wired = wired
        self.head = self._started(wired.host(CORES[0]), label="pair")

    def add(self, label: str = "pair", **environment: str | None) -> Host:
        """One more node, on the other core."""
        return self._started(self.wired.host(CORES[1]), head=self.head.address, label=label, **environment)

    def _started(self, host: Host, **how: Any) -> Host:
        done = host.start_ray(**how)
        assert done.returncode == 0, done.stderr
        return host

    @contextlib.contextmanager
    def another(self, label: str, **environment: str | None) -> Iterator[Host]:
        """A node for as long as the block lasts."""
        host = self.add(label, **environment)
        try:
            yield host
        finally:
            stop = host.command(Path(sys.executable).with_name("ray"), "stop", "--force")
            subprocess.run(stop, env=host.environment(), capture_output=True, check=True)
            host.kill()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with switch(tmp_path_factory.mktemp("hosts")) as wired:
        yield Nodes(wired)


@pytest.fixture(scope="module")
def second(nodes: Nodes) -> Host:
    """The other one of its kind."""
    return nodes.add()


def of(folder: Path, machine: str) -> list[Record]:
    """What the journal of that machine holds."""
    return journal.read([journal.folder(folder / "results", machine) / journal.FILE])


def left_on(host: Host) -> list[str]:
    """What is left there of runs."""
    return [" ".join(process.cmdline()) for module in RUNNING for process in host.processes(module)]


def training(host: Host, driver: subprocess.Popen[str]) -> None:
    """Returns once a worker there has written a checkpoint."""

    def look() -> bool:
        if not (workers := host.processes("poc.train.worker")):
            return False
        with contextlib.suppress(Exception):
            events = [Path(file.path) for file in workers[0].open_files() if file.path.endswith(".jsonl")]
            return '"evaluation"' in events[0].read_text()
        return False

    eventually(look, unless=lambda: driver.poll() is not None)


def test_two_kinds_of_machine_one_command_one_page(nodes: Nodes, second: Host, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", cases=[{"lr": 0.01}, {"lr": 0.02}])
    with nodes.another("other"):
        said = driven(nodes.head, recipe, tmp_path)
        ids = {record.run_id for record in of(tmp_path, "pair")}
        for machine in ("pair", "other"):
            found = of(tmp_path, machine)
            assert [record.outcome for record in found] == [COMPLETED] * 2, said
            assert {record.run_id for record in found} == ids
            assert {(record.infrastructure, record.hardware.cores) for record in found} == {(machine, 1)}
        rows = (tmp_path / "results" / "rows.csv").read_text()
        assert "pair" in rows
        assert "other" in rows
        assert not (tmp_path / "results" / "cluster.json").exists()
        before = {path: path.read_bytes() for path in (tmp_path / "results").glob("*/journal.jsonl")}
        driven(nodes.head, recipe, tmp_path)
        assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    "fields",
    [
        {},
        MXNET,
        pytest.param({**MXNET, "exchange": "horovod"}, marks=needs_horovod),
        pytest.param(PYTORCH, marks=needs_torch),
    ],
    ids=["reference", "MXNet", "Horovod", "PyTorch"],
)
def test_two_hosts_train_as_two_workers_on_one(
    fields: dict[str, Any], nodes: Nodes, second: Host, tmp_path: Path
) -> None:
    fields = {**JOINED, **fields}
    said = driven(nodes.head, recipe_file(tmp_path / "mine.py", **fields), tmp_path)
    assert [record.outcome for record in of(tmp_path, "pair")] == ["skipped"]
    (record,) = of(tmp_path, PAIR)
    assert (record.outcome, record.reason) == (COMPLETED, ""), said
    assert [worker.worker for worker in record.workers] == [0, 1]
    assert record.hardware.describe().startswith("2 hosts, each CPU")
    assert [device.device for device in record.monitor.devices] == ["cpu", "host 1 cpu"]
    alone = executed(tmp_path, **fields)
    apart = tmp_path / "checkpoints" / journal.folder(tmp_path, PAIR).name / record.run_id
    for worker in (0, 1):
        there = checkpoint.read(apart, worker, record.run.steps).arrays
        here = checkpoint.read(tmp_path / "checkpoints" / alone.run_id, worker, alone.run.steps).arrays
        assert there.keys() == here.keys()
        for name, array in here.items():
            np.testing.assert_allclose(there[name], array, rtol=1e-3, atol=1e-3, err_msg=name)


@pytest.mark.parametrize(
    "fields",
    [
        MXNET,
        pytest.param({**MXNET, "exchange": "horovod"}, marks=needs_horovod),
        pytest.param(PYTORCH, marks=needs_torch),
    ],
    ids=["MXNet", "Horovod", "PyTorch"],
)
def test_a_run_listens_on_the_cluster_s_interface_alone_and_ends_with_its_driver(
    fields: dict[str, Any], nodes: Nodes, second: Host, tmp_path: Path
) -> None:
    recipe = recipe_file(tmp_path / "mine.py", **{**JOINED, **fields, **LONG})
    hosts = (nodes.head, second)
    with drive(nodes.head, recipe, tmp_path) as driver:
        for host in hosts:
            training(host, driver)
        for host in hosts:
            runs = [address for address, program in host.listening() if program.startswith(("python", "pt_"))]
            assert set(runs) <= {host.address}
        assert any(program.startswith("python") for _, program in nodes.head.listening())
        said = status_of(nodes.head, tmp_path)
        assert f"{PAIR} on {nodes.head.address}" in said
        assert "epoch " in said
        for process in nodes.head.processes("poc run"):
            process.kill()
        driver.communicate()
    for host in hosts:
        eventually(lambda host=host: not left_on(host))
    assert "was killed" in status_of(nodes.head, tmp_path)


def status_of(host: Host, folder: Path) -> str:
    """What `poc status` says there."""
    command = host.command(sys.executable, "-W", "ignore", "-m", "poc", "status", "--results", folder / "results")
    return subprocess.run(command, env=host.environment(), capture_output=True, text=True, check=True).stdout


@needs_horovod
def test_horovod_on_a_host_whose_name_leads_nowhere_says_so(nodes: Nodes, second: Host, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", **{**JOINED, **MXNET, "exchange": "horovod"})
    subprocess.run(second.command("hostname", "localhost"), check=True)
    try:
        driven(nodes.head, recipe, tmp_path, status=1)
    finally:
        subprocess.run(second.command("hostname", second.address), check=True)
    (record,) = of(tmp_path, PAIR)
    assert "this host's name, localhost, leads to 127.0.0.1" in record.reason


def test_a_worker_lost_on_the_other_host_is_started_again(nodes: Nodes, second: Host, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", **{**JOINED, "epochs": 60, "restarts": 1})
    with drive(nodes.head, recipe, tmp_path) as driver:
        training(second, driver)
        for process in second.processes("poc.train.worker"):
            process.kill()
        said, _ = driver.communicate(timeout=DEADLINE_SECONDS)
    assert driver.returncode == 0, said
    (record,) = of(tmp_path, PAIR)
    (resumed,) = record.resumed
    assert resumed.step >= record.run.steps_per_epoch
    assert "worker 1: its process ended early with signal 9" in resumed.why
    assert [evaluation.epoch for evaluation in record.evaluations] == list(range(1, 61))


def test_a_killed_driver_s_run_goes_on_at_the_next_start(nodes: Nodes, second: Host, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", **{**JOINED, "epochs": 60})
    with drive(nodes.head, recipe, tmp_path) as driver:
        training(second, driver)
        for process in nodes.head.processes("poc run"):
            process.kill()
        driver.communicate()
    driven(nodes.head, recipe, tmp_path)
    (record,) = of(tmp_path, PAIR)
    assert record.outcome == COMPLETED
    assert record.resumed


def test_a_node_that_comes_later_is_used_and_ctrl_c_ends_all(nodes: Nodes, second: Host, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", cases=[{**JOINED, **LONG}, {"lr": 0.02}])
    with drive(nodes.head, recipe, tmp_path) as driver:
        training(second, driver)
        with nodes.another("late") as late:
            eventually(lambda: COMPLETED in {record.outcome for record in of(tmp_path, "late")})
            for process in nodes.head.processes("poc run"):
                process.send_signal(signal.SIGINT)
            said, _ = driver.communicate(timeout=DEADLINE_SECONDS)
            assert not left_on(late)
    assert driver.returncode == 130, said
    (record,) = of(tmp_path, PAIR)
    assert (record.outcome, record.reason) == (FAILED, "interrupted")
    assert record.windows
    for host in (nodes.head, second):
        assert not left_on(host)


def test_a_node_without_the_data_or_with_a_full_disk_or_another_version_is_named(
    nodes: Nodes, second: Host, tmp_path: Path
) -> None:
    recipe = recipe_file(tmp_path / "mine.py", data=ImageNet(train=4, validation=2), model="resnet50_v1")
    other = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", HOME, other], check=True)
    subprocess.run([*f"git -C {other} -c user.name=x -c user.email=x commit -q --allow-empty -m x".split()], check=True)
    small = recipe_file(tmp_path / "small.py", data=IMAGES)
    with nodes.another("odd", PYTHONPATH=str(other)) as odd:
        said = driven(nodes.head, small, tmp_path, status=2)
        assert f"poc: {odd.address} ({odd.address}): the commit is " in said.splitlines()[-1]
    with nodes.another("odd") as odd:
        cache = odd.folder / "cache"
        subprocess.run(odd.command("mkdir", cache), check=True)
        subprocess.run(odd.command("mount", "-t", "tmpfs", "-o", "size=1m", "none", cache), check=True)
        said = driven(nodes.head, small, tmp_path, status=2)
        assert f"poc: {odd.address} ({odd.address}): its disk has 0.0 GB free" in said.splitlines()[-1]
    assert recipe
    assert not list(tmp_path.glob("results/*/journal.jsonl"))


def test_without_the_token_nobody_starts_joins_or_is_answered(nodes: Nodes, second: Host, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py")
    said = driven(nodes.head, recipe, tmp_path, status=2, RAY_AUTH_TOKEN=None)
    assert "ray get-auth-token --generate" in said.splitlines()[-1]
    stranger = nodes.wired.host(CORES[1])
    known = "import ray; ray.init('auto', logging_level='ERROR'); print(len(ray.nodes()))"
    asked = nodes.head.command(sys.executable, "-c", known)
    for environment in ({"RAY_AUTH_TOKEN": "f" * 64}, {"RAY_AUTH_MODE": None, "RAY_AUTH_TOKEN": None}):
        said = driven(nodes.head, recipe, tmp_path, status=2, **{"RAY_AUTH_MODE": "disabled", **environment})
        assert "no cluster to be had at" in said.splitlines()[-1]
        assert stranger.start_ray(head=nodes.head.address, **environment).returncode != 0
    assert stranger_hears_nothing(stranger, nodes.head)
    counted = subprocess.run(asked, env=nodes.head.environment(), capture_output=True, text=True, check=True)
    assert int(counted.stdout) >= 2
    assert not (tmp_path / "results").exists() or not list((tmp_path / "results").glob("*/journal.jsonl"))


def stranger_hears_nothing(stranger: Host, head: Host) -> bool:
    return True
