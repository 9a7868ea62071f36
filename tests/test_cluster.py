"""Clusters on Ray, of hosts that are namespaces of this machine: compared, joined, struck, and closed to strangers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from poc import CIFAR10, Synthetic
from poc.plan import Planned
from poc.records import journal, last_run
from poc.records.record import COMPLETED, FAILED, Record
from poc.run import checkpoint
from poc.run.sweep import Sweep
from tests.builders import GLUON, TWO_WORKERS, executed, place_in, recipe_file, run_of
from tests.extras import needs_horovod, needs_ray
from tests.hosts import Host, Nodes, cluster, drive, driven
from tests.kill_at_random import kill_at_random
from tests.launch import DEADLINE_SECONDS, HOME, eventually, python

PAIR = "2 hosts, each pair"
IMAGES = Synthetic(train=320, validation=70)
JOINED: dict[str, Any] = {**TWO_WORKERS, "data": IMAGES, "cores_per_worker": 1, "epochs": 2}
MXNET = {**GLUON, "batch_per_device": 8}
OF_FRAMEWORKS = {
    "MXNet": MXNET,
    **({"Horovod": {**MXNET, "kvstore": "horovod"}} if find_spec("horovod") else {}),
    # Each device has a process of its own anyway.
    **({"PyTorch": {**MXNET, "framework": "pytorch", "kvstore": "device", "workers": 1}} if find_spec("torch") else {}),
}
LONG: dict[str, Any] = {"epochs": 100_000, "window": 5}
few = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two hosts need a core each")
pytestmark = [pytest.mark.slow, few, needs_ray]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with cluster(tmp_path_factory.mktemp("hosts")) as made:
        yield made


@pytest.fixture
def second(nodes: Nodes) -> Host:
    """The other one of its kind."""
    return nodes.second()


def of(folder: Path, machine: str) -> list[Record]:
    """What the journal of that machine holds."""
    return journal.read([journal.folder(folder / "results", machine) / journal.FILE])


def training(host: Host, driver: subprocess.Popen[str], *, epoch: int = 2) -> None:
    """Returns once a worker there has told of a window after that epoch: all have a checkpoint of it by then."""

    def look() -> bool:
        if not (workers := host.processes("poc.run.worker")):
            return False
        with contextlib.suppress(Exception):
            events = [Path(file.path) for file in workers[0].open_files() if file.path.endswith(".jsonl")]
            return '"window"' in events[0].read_text().partition(f'"evaluation", "epoch": {epoch}')[2]
        return False

    eventually(look, unless=lambda: driver.poll() is not None)


def test_two_kinds_of_machine_one_command_one_page(nodes: Nodes, second: Host, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", lr=0.1, kind=["cpu", "gpu"])
    with nodes.another("other"):
        said = driven(nodes.head, recipe, tmp_path, "--set", "lr=0.01,0.02", "--set", "kind=cpu", "--verbose")
    ids = {record.run_id for record in of(tmp_path, "pair")}
    assert {record.run.learning_rate for record in of(tmp_path, "pair")} == {0.01, 0.02}
    asked = last_run.read(tmp_path / "results")
    assert asked is not None
    assert (set(asked.runs), asked.recipes, asked.skipped) == (ids, (str(recipe),), {})
    assert asked.machine in ("pair", "other")
    for machine in ("pair", "other"):
        found = of(tmp_path, machine)
        assert [record.outcome for record in found] == [COMPLETED] * 2, said
        assert {record.run_id for record in found} == ids
        assert {(record.infrastructure, record.hardware.cores) for record in found} == {(machine, 1)}
    rows = (tmp_path / "results" / "rows.csv").read_text()
    assert "pair" in rows
    assert "other" in rows


def test_two_hosts_train_as_two_workers_on_one(nodes: Nodes, second: Host, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", **{**JOINED, "cases": [{}, *OF_FRAMEWORKS.values()]})
    said = driven(nodes.head, recipe, tmp_path)
    assert {record.outcome for record in of(tmp_path, "pair")} == {"skipped"}
    records = {record.run_id: record for record in of(tmp_path, PAIR)}
    assert len(records) == 1 + len(OF_FRAMEWORKS)
    for fields in ({}, *OF_FRAMEWORKS.values()):
        alone = executed(tmp_path, **{**JOINED, **fields})
        record = records[alone.run_id]
        assert (record.outcome, record.reason) == (COMPLETED, ""), said
        assert [worker.worker for worker in record.workers] == [0, 1]
        assert record.hardware.describe().startswith("2 hosts, each CPU")
        assert [device.device for device in record.monitor.devices] == ["cpu", "host 1 cpu"]
        apart = tmp_path / "checkpoints" / journal.folder(tmp_path, PAIR).name / record.run_id
        for worker in (0, 1):
            there = checkpoint.read(apart, worker, record.run.steps).arrays
            here = checkpoint.read(tmp_path / "checkpoints" / alone.run_id, worker, alone.run.steps).arrays
            assert there.keys() == here.keys()
            for name, array in here.items():
                np.testing.assert_allclose(there[name], array, rtol=1e-3, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("framework", OF_FRAMEWORKS)
def test_a_run_listens_on_the_cluster_s_interface_alone_and_ends_with_its_driver(
    framework: str, nodes: Nodes, second: Host, tmp_path: Path
) -> None:
    # MXNet's driver freezes, and others are killed.
    strike = signal.SIGSTOP if framework == "MXNet" else signal.SIGKILL
    recipe = recipe_file(tmp_path / "mine.py", **{**JOINED, **OF_FRAMEWORKS[framework], **LONG})
    hosts = (nodes.head, second)
    with drive(nodes.head, recipe, tmp_path) as driver:
        for host in hosts:
            training(host, driver)
        for host in hosts:
            assert {address for address, _ in host.listening(of_runs=True)} <= {host.address}
        assert nodes.head.listening(of_runs=True)
        for process in nodes.head.processes("poc run"):
            process.send_signal(strike)
        for host in hosts:
            eventually(lambda host=host: not host.left_of_runs())
        for process in nodes.head.processes("poc run"):
            process.kill()
        driver.send_signal(signal.SIGCONT)  # what entered the host stops with what it started
        driver.communicate()


@needs_horovod
def test_horovod_on_a_host_whose_name_leads_nowhere_says_so(nodes: Nodes) -> None:
    host = nodes.wired.host("0")
    subprocess.run(host.command("hostname", "localhost"), check=True)
    code = "from poc import frameworks\nfrom tests.framework_worker import planned\n"
    code += "frameworks.open_session(planned('mxnet', devices=2, workers=2, kvstore='horovod').run)"
    environment = host.environment(HOROVOD_HOSTNAME=host.address)
    asked = host.command(sys.executable, "-W", "ignore", "-c", code)
    done = subprocess.run(asked, env=environment, capture_output=True, text=True)
    host.kill()
    assert "host name localhost resolves to 127.0.0.1" in done.stderr.splitlines()[-1]


def test_a_lost_process_is_started_again_and_a_killed_driver_s_run_goes_on_at_the_next_start(
    nodes: Nodes, second: Host, tmp_path: Path
) -> None:
    recipe = recipe_file(
        tmp_path / "mine.py", cases=[{**JOINED, "epochs": 5, "restarts": 2}, {"lr": 0.02, "epochs": 1}]
    )
    with nodes.another("late") as late:
        with nodes.hold(25) as hold_at, drive(nodes.head, recipe, tmp_path) as driver:
            training(second, driver)
            for process in second.processes("poc.run.worker"):
                process.kill()
            hold_at(35)
            training(second, driver, epoch=3)
            # Its host is given time by a worker that does not end: the other one tells first, of one that misses it.
            for process in nodes.head.processes("poc.run.worker"):
                process.suspend()
            for process in nodes.head.processes("reference.hub"):
                process.kill()
            hold_at(45)
            training(second, driver, epoch=4)
            eventually(lambda: COMPLETED in {record.outcome for record in of(tmp_path, "late")})
            for process in nodes.head.processes("poc run"):
                process.kill()
            driver.communicate()
        before = of(tmp_path, "late")
        driven(nodes.head, recipe, tmp_path)
        assert of(tmp_path, "late") == before
        eventually(lambda: not late.left_of_runs())
    (record,) = of(tmp_path, PAIR)
    assert record.outcome == COMPLETED
    causes = [("worker 1: ", "signal 9"), ("hub: ", "signal 9"), ("", "the run was interrupted")]
    for resumed, (victim, cause) in zip(record.resumed, causes):
        assert resumed.why.startswith(victim)
        assert cause in resumed.why
    assert len(record.resumed) == len(causes)
    assert all(resumed.step >= record.run.steps_per_epoch for resumed in record.resumed)
    assert [evaluation.epoch for evaluation in record.evaluations] == [1, 2, 3, 4, 5]


def test_a_node_that_comes_later_is_used_and_ctrl_c_ends_all(nodes: Nodes, second: Host, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", cases=[{**JOINED, **LONG}, {"lr": 0.02, "epochs": 1}])
    with nodes.hold(25), drive(nodes.head, recipe, tmp_path) as driver:
        training(second, driver)
        with nodes.another("late") as late:
            eventually(lambda: COMPLETED in {record.outcome for record in of(tmp_path, "late")})
            for process in nodes.head.processes("poc run"):
                process.send_signal(signal.SIGINT)
            said, _ = driver.communicate(timeout=DEADLINE_SECONDS)
            assert not late.left_of_runs()
    assert driver.returncode == 130, said
    (record,) = of(tmp_path, PAIR)
    assert (record.outcome, record.reason) == (FAILED, "interrupted")
    assert record.windows
    for host in (nodes.head, second):
        assert not host.left_of_runs()


def test_a_node_of_another_version_or_with_a_full_disk_or_other_data_is_named(
    nodes: Nodes, second: Host, tmp_path: Path
) -> None:
    def complaint(recipe: Path) -> str:
        said = driven(nodes.head, recipe, tmp_path, status=2).splitlines()[-1]
        return said.partition(f"poc: {odd.address} ({odd.address}): ")[2]

    small, other, link = recipe_file(tmp_path / "small.py", data=IMAGES), tmp_path / "other", tmp_path / "checkout"
    # The others have no way to the images either, and would train on made-up ones.
    images = recipe_file(tmp_path / "images.py", data=CIFAR10(), framework="mxnet", model="cifar_resnet8_v2")
    subprocess.run(["git", "clone", "-q", HOME, other], check=True)
    commit = ["-c", "user.name=x", "-c", "user.email=x", "commit", "-q", "--allow-empty", "-m", "another"]
    subprocess.run(["git", "-C", other, *commit], check=True)
    link.symlink_to(other)
    with nodes.another("odd", PYTHONPATH=str(link), POC_DATA=str(tmp_path)) as odd:
        assert complaint(small).startswith("the commit is ")
        link.unlink()
        link.symlink_to(HOME)
        assert complaint(images).startswith("data: ")
        cache = odd.folder / "cache"
        cache.mkdir(exist_ok=True)
        subprocess.run(odd.command("mount", "-t", "tmpfs", "-o", "size=1m", "none", cache), check=True)
        assert "disk" in complaint(small)
    assert not list(tmp_path.glob("results/*/journal.jsonl"))


def test_without_the_token_nobody_starts_joins_or_is_answered(nodes: Nodes, second: Host, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py")
    said = driven(nodes.head, recipe, tmp_path, status=2, RAY_AUTH_TOKEN=None)
    assert "ray get-auth-token --generate" in said.splitlines()[-1]
    stranger = nodes.wired.host("0")
    for environment in ({"RAY_AUTH_TOKEN": "f" * 64}, {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": None}):
        environment["RAY_NUM_REDIS_GET_RETRIES"] = "2"  # Ray asks twenty times, a second apart
        said = driven(nodes.head, recipe, tmp_path, status=2, **environment)
        assert "--cluster: cannot connect to" in said.splitlines()[-1]
        assert stranger.start_ray(head=nodes.head.address, label="pair", **environment).returncode != 0
    ask = (
        "import sys, urllib.request, urllib.error\n"
        "for port in sys.argv[2:]:\n"
        "    try: print(port, urllib.request.urlopen(f'http://{sys.argv[1]}:{port}/', timeout=5).read())\n"
        "    except urllib.error.HTTPError as error: assert error.code in (401, 403, 404), (port, error)\n"
        "    except OSError: pass\n"
        "    except Exception as error: assert 'BadStatusLine' in type(error).__name__, (port, error)\n"
    )
    ports = [port for _, port in nodes.head.listening()]
    assert len(ports) >= 3
    asked = stranger.command(sys.executable, "-c", ask, nodes.head.address, *ports)
    done = subprocess.run(asked, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    count = nodes.head.command(sys.executable, "-c", "import ray; ray.init('auto'); print(len(ray.nodes()))")
    counted = subprocess.run(count, env=nodes.head.environment(), capture_output=True, text=True, check=True)
    alive = [host for host in nodes.wired.hosts if not host.gone and host is not stranger]
    assert int(counted.stdout) >= len(alive)
    assert not list(tmp_path.glob("results/*/journal.jsonl"))


def ended(victim: Host) -> None:
    """A node that was struck ends what it had of the run, as soon as it can; then it is gone."""
    if not victim.gone:
        victim.send(signal.SIGCONT)
        eventually(lambda: not victim.left_of_runs())
        victim.kill()


def test_lost_nodes_are_named_and_others_go_on_from_the_last_checkpoint(nodes: Nodes, tmp_path: Path) -> None:
    strikes: tuple[Callable[[Host], None], ...] = (Host.kill, lambda host: host.send(signal.SIGSTOP), Host.cut)
    recipe = recipe_file(tmp_path / "mine.py", **{**JOINED, "epochs": 5, "restarts": len(strikes)})
    victims: list[Host] = []
    nodes.second()
    with nodes.hold(25) as hold_at, drive(nodes.head, recipe, tmp_path) as driver:
        for epoch, strike in enumerate(strikes, start=2):
            training(nodes.second(), driver, epoch=epoch)
            for before in victims:
                ended(before)
            victims.append(nodes.second())
            nodes.replace_second()  # before it is needed: the run waits half a minute for one
            strike(victims[-1])
            hold_at(10 * epoch + 15)
        said, _ = driver.communicate(timeout=DEADLINE_SECONDS)
    assert driver.returncode == 0, said
    ended(victims[-1])
    (record,) = of(tmp_path, PAIR)
    assert len(record.resumed) == len(strikes)
    for resumed, victim in zip(record.resumed, victims):
        assert resumed.step >= record.run.steps_per_epoch
        assert f"host {victim.address} ({victim.address}): " in resumed.why


def test_a_lost_node_without_another_fails_its_run_alone(nodes: Nodes, second: Host, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", cases=[{**JOINED, **LONG}, {"lr": 0.02, "epochs": 1}])
    with nodes.hold(25), drive(nodes.head, recipe, tmp_path) as driver:
        training(second, driver)
        second.kill()
        said, _ = driver.communicate(timeout=DEADLINE_SECONDS)
    assert driver.returncode == 1, said
    (record,) = of(tmp_path, PAIR)
    assert record.outcome == FAILED
    assert record.reason.startswith(f"host {second.address} ({second.address}): ")
    assert [one.outcome for one in of(tmp_path, "pair")] == ["skipped", COMPLETED]


def test_kills_at_random_moments_lose_no_record_and_leave_no_process(nodes: Nodes, tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"moments from seed {seed}")
    kill_at_random(nodes, tmp_path, 4, seed)


def test_this_machine_alone_is_a_cluster_too(nodes: Nodes, tmp_path: Path) -> None:
    alone = nodes.wired.host("0")
    for name in ("numpy", "psutil", "uuid"):  # the driver is started there, and nothing is imported from there
        (alone.folder / f"{name}.py").write_text("raise ValueError")
    driven(alone, recipe_file(tmp_path / "mine.py"), tmp_path, "--cluster", "local", RAY_AUTH_TOKEN=None)
    (record,) = journal.read(journal.paths(tmp_path / "results"))
    assert (record.outcome, record.infrastructure) == (COMPLETED, record.hardware.describe())
    eventually(lambda: len(alone.processes()) == 1)


def test_one_machine_neither_imports_nor_needs_ray() -> None:
    lines = (
        "import sys",
        "from poc.__main__ import main",
        "main(['plan', 'throughput'])",
        "sys.exit('ray' in sys.modules or 'poc.cluster' in sys.modules)",
    )
    done = python("\n".join(lines))
    assert done.returncode == 0, done.stderr
