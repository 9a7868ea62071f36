"""Clusters on Ray, of hosts that are namespaces of this machine: their runs, the faults they survive, and access."""

import base64
import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from poc import CIFAR10, Recipe, Search, Synthetic, data
from poc.config.datasets import DataId
from poc.host.hardware import GPU
from poc.host.processes import ended_early
from poc.plan import Planned
from poc.records import journal, last_run, provenance
from poc.records.record import COMPLETED, FAILED, Record
from poc.run import checkpoint, schedule
from poc.run.launcher import HostResult
from poc.run.sweep import Sweep
from poc.run.workload import skipped
from poc.values import UserError
from tests.builders import GLUON, MACHINE, SMALL, TWO_WORKERS, end_of, executed, place_in, recipe_file, run_of
from tests.conftest import needs_ray
from tests.hosts import Host, Nodes, cluster, drive, driven
from tests.launch import DEADLINE_SECONDS, eventually

PAIR = "2 hosts, each pair"
IMAGES = Synthetic(train=320, validation=70)
JOINED: dict[str, Any] = {**TWO_WORKERS, "data": IMAGES, "cores_per_worker": 1, "epochs": 2}
MXNET = {**GLUON, "batch_per_device": 8}
FRAMEWORKS = {"MXNet": MXNET}
if find_spec("horovod"):
    FRAMEWORKS["Horovod"] = {**MXNET, "kvstore": "horovod"}
if find_spec("torch"):
    FRAMEWORKS["PyTorch"] = {**MXNET, "framework": "pytorch", "kvstore": "device", "workers": 1}
LONG: dict[str, Any] = {"epochs": 100_000, "window": 5}
SHORT = {"lr": 0.02, "epochs": 1}
two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two hosts need a core each")
pytestmark = [pytest.mark.slow, two_cores, needs_ray]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with cluster(tmp_path_factory.mktemp("hosts")) as nodes:
        yield nodes


@pytest.fixture
def second(nodes: Nodes) -> Host:
    return nodes.second()


def records_of(folder: Path, machine: str) -> list[Record]:
    return journal.read([journal.folder(folder / "results", machine) / journal.FILE])


def outcomes(folder: Path, machine: str) -> set[str]:
    return {record.outcome for record in records_of(folder, machine)}


def wait_for_training(host: Host, driver: subprocess.Popen[str], *, epoch: int = 2) -> None:
    """Wait until a worker there has written a window after that epoch: all workers have a checkpoint of it by then."""

    def look() -> bool:
        with contextlib.suppress(Exception):
            files = [file.path for file in host.processes("poc.run.worker")[0].open_files()]
            (events,) = (Path(file).read_text() for file in files if file.endswith(".jsonl"))
            return '"window"' in events.partition(f'"evaluation", "epoch": {epoch}')[2]
        return False

    eventually(look, unless=lambda: driver.poll() is not None)


def send_to_driver(host: Host, number: signal.Signals) -> None:
    for process in host.processes("poc run"):
        process.send_signal(number)


def test_node_types_share_a_command_and_one_without_the_data_is_named(
    nodes: Nodes, second: Host, tmp_path: Path
) -> None:
    recipe = recipe_file(tmp_path / "mine.py", lr=0.1, kind=["cpu", "gpu"], repeats=2)
    # The other nodes cannot read the images either, and would train on synthetic ones.
    images = recipe_file(tmp_path / "images.py", data=CIFAR10(), framework="mxnet", model="cifar_resnet8_v2")
    with nodes.another("other", POC_DATA=str(tmp_path)) as other:
        options = ("--set", "lr=0.01,0.02", "--set", "kind=cpu", "--verbose")
        output = driven(nodes.head, recipe, tmp_path, *options)
        refused = driven(nodes.head, images, tmp_path / "refused", status=2)
    assert refused.splitlines()[-1].startswith(f"poc: {other.address} ({other.address}): data: ")
    assert not list(tmp_path.glob("refused/results/*/journal.jsonl"))
    ids = {record.run_id for record in records_of(tmp_path, "pair")}
    assert all(run_id in output for run_id in ids)
    request = last_run.read(tmp_path / "results")
    assert request is not None
    assert (set(request.runs), request.recipes, request.skipped) == (ids, (str(recipe),), {})
    for machine in ("pair", "other"):
        records = records_of(tmp_path, machine)
        assert {record.run_id for record in records} == ids, output
        assert {record.run.learning_rate for record in records} == {0.01, 0.02}
        assert [record.outcome for record in records] == [COMPLETED] * 4, output
        assert {(record.infrastructure, record.hardware.cores) for record in records} == {(machine, 1)}
    order = [record.run_id for record in records_of(tmp_path, "other")]
    assert set(order[:2]) == set(order[2:]) == ids  # rounds of repeats


def test_two_hosts_train_as_two_workers_on_one(nodes: Nodes, second: Host, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py", **{**JOINED, "cases": [{}, *FRAMEWORKS.values()]})
    output = driven(nodes.head, recipe, tmp_path)
    assert outcomes(tmp_path, "pair") == {"skipped"}
    records = {record.run_id: record for record in records_of(tmp_path, PAIR)}
    assert len(records) == 1 + len(FRAMEWORKS)
    for fields in ({}, *FRAMEWORKS.values()):
        record = records[run_of(**{**JOINED, **fields}).id]
        assert (record.outcome, record.reason) == (COMPLETED, ""), output
        assert len(record.workers) == 2
        assert record.hardware.describe().startswith("2 hosts, each CPU")
        assert [device.device for device in record.monitor.devices] == ["cpu", "host 1 cpu"]
        (joined,) = (tmp_path / "checkpoints").glob(f"*-{record.run_id}")
        first, other = (checkpoint.read(joined, worker, record.run.steps).arrays for worker in (0, 1))
        names = [name for name in first if name.startswith("parameter/")]
        assert names
        for name in names:
            np.testing.assert_allclose(first[name], other[name], rtol=1e-5, atol=1e-6, err_msg=name)
        if not fields:
            alone = executed(tmp_path / "alone", **JOINED)
            for worker, arrays in enumerate((first, other)):
                expected = end_of(tmp_path / "alone", alone.run, worker)
                assert arrays.keys() == expected.keys()
                for name, array in expected.items():
                    np.testing.assert_allclose(arrays[name], array, rtol=1e-3, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_run_listens_on_the_cluster_s_interface_alone_and_ends_with_its_driver(
    framework: str, nodes: Nodes, second: Host, tmp_path: Path
) -> None:
    recipe = recipe_file(tmp_path / "mine.py", **{**JOINED, **FRAMEWORKS[framework], **LONG})
    hosts = (nodes.head, second)
    with drive(nodes.head, recipe, tmp_path) as driver:
        for host in hosts:
            wait_for_training(host, driver)
            assert host.listening() <= {host.address}
        assert nodes.head.listening()
        send_to_driver(nodes.head, signal.SIGINT if framework == "PyTorch" else signal.SIGKILL)
        for host in hosts:
            eventually(lambda host=host: not host.left_of_runs())
        driver.communicate(timeout=DEADLINE_SECONDS)
    if framework == "PyTorch":
        assert driver.returncode == 130
        (record,) = records_of(tmp_path, PAIR)
        assert (record.outcome, record.reason) == (FAILED, "interrupted")
        assert record.windows


def test_lost_processes_are_restarted_late_nodes_used_and_runs_of_a_killed_driver_continued(
    nodes: Nodes, second: Host, tmp_path: Path
) -> None:
    recipe = recipe_file(tmp_path / "mine.py", cases=[{**JOINED, "epochs": 5, "restarts": 2}, SHORT])
    with contextlib.ExitStack() as stack:
        with nodes.hold(25) as hold_at, drive(nodes.head, recipe, tmp_path) as driver:
            wait_for_training(second, driver)
            late = stack.enter_context(nodes.another("late"))  # joins the cluster while the run goes on
            for process in second.processes("poc.run.worker"):
                process.kill()
            hold_at(35)
            wait_for_training(second, driver, epoch=3)
            # The worker beside the hub hangs, so that the worker on the other host is the first to report a failure.
            for process in nodes.head.processes("poc.run.worker"):
                process.suspend()
            for process in nodes.head.processes("reference.hub"):
                process.kill()
            hold_at(45)
            wait_for_training(second, driver, epoch=4)
            eventually(lambda: COMPLETED in outcomes(tmp_path, "late"))
            send_to_driver(nodes.head, signal.SIGKILL)
            driver.communicate()
        before = records_of(tmp_path, "late")
        driven(nodes.head, recipe, tmp_path)
        assert records_of(tmp_path, "late") == before
        eventually(lambda: not late.left_of_runs())
    (record,) = records_of(tmp_path, PAIR)
    assert record.outcome == COMPLETED
    causes = [("worker 1: ", "signal 9"), ("hub: ", "signal 9"), ("", "the run was interrupted")]
    assert len(record.resumed) == len(causes)
    for resumed, (victim, cause) in zip(record.resumed, causes):
        assert resumed.why.startswith(victim)
        assert cause in resumed.why
        assert resumed.step >= record.run.steps_per_epoch
    assert [evaluation.epoch for evaluation in record.evaluations] == [1, 2, 3, 4, 5]


def test_without_the_token_nobody_starts(nodes: Nodes, tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path / "mine.py")
    output = driven(nodes.head, recipe, tmp_path, status=2, RAY_AUTH_TOKEN=None)
    assert "ray get-auth-token --generate" in output.splitlines()[-1]
    wrong = {"RAY_AUTH_TOKEN": "f" * 64, "RAY_NUM_REDIS_GET_RETRIES": "2"}  # Ray asks twenty times, a second apart
    output = driven(nodes.head, recipe, tmp_path, status=2, **wrong)
    assert "--cluster: cannot connect to" in output.splitlines()[-1]
    assert not list(tmp_path.glob("results/*/journal.jsonl"))


def test_lost_nodes_are_named_and_replaced_and_without_another_their_run_fails_alone(
    nodes: Nodes, tmp_path: Path
) -> None:
    faults = (Host.kill, Host.cut)
    recipe = recipe_file(tmp_path / "mine.py", cases=[{**JOINED, "epochs": 5, "restarts": len(faults)}, SHORT])
    victims: list[Host] = []
    nodes.second()
    # The worker on a host that is cut off ends by its patience.
    with nodes.hold(25) as hold_at, drive(nodes.head, recipe, tmp_path, "--patience", "45") as driver:
        for epoch, fault in enumerate(faults, start=2):
            wait_for_training(nodes.second(), driver, epoch=epoch)
            victims.append(nodes.second())
            if fault is not faults[-1]:
                added = nodes.second(replace=True)
                # The run does not wait long for one, whose start takes long on a busy machine.
                eventually(lambda added=added: added.processes("ray::Supervisor"), lambda: driver.poll() is not None)
            fault(victims[-1])
            hold_at(10 * epoch + 15)
        output, _ = driver.communicate(timeout=DEADLINE_SECONDS)
    assert driver.returncode == 1, output
    eventually(lambda: not victims[-1].left_of_runs())
    victims[-1].kill()
    (record,) = records_of(tmp_path, PAIR)
    assert record.outcome == FAILED
    assert len(record.resumed) == len(faults) - 1
    assert all(resumed.step >= record.run.steps_per_epoch for resumed in record.resumed)
    for reason, victim in zip([*(resumed.why for resumed in record.resumed), record.reason], victims):
        assert f"host {victim.address} ({victim.address}): " in reason
    assert outcomes(tmp_path, "pair") == {"skipped", COMPLETED}


def test_this_machine_alone_is_a_cluster_too(nodes: Nodes, tmp_path: Path) -> None:
    alone = nodes.host()
    for name in ("numpy", "psutil", "uuid"):  # nothing is imported from the driver's current folder
        (alone.folder / f"{name}.py").write_text("raise ValueError")
    unset: dict[str, str | None] = dict.fromkeys(("RAY_AUTH_TOKEN", "RAY_memory_monitor_refresh_ms"))
    with drive(alone, recipe_file(tmp_path / "mine.py"), tmp_path, "--cluster", "local", **unset) as driver:
        (server,) = eventually(lambda: alone.processes("gcs_server "), unless=lambda: driver.poll() is not None)
        (config,) = (word.partition("=")[2] for word in server.cmdline() if word.startswith("--config_list="))
        assert json.loads(base64.b64decode(config))["memory_monitor_refresh_ms"] == 0
        output, _ = driver.communicate(timeout=DEADLINE_SECONDS)
    assert driver.returncode == 0, output
    (record,) = journal.read(journal.paths(tmp_path / "results"))
    assert (record.outcome, record.infrastructure) == (COMPLETED, record.hardware.describe())
    eventually(lambda: len(alone.processes()) == 1)


def swept(
    folder: Path, machines: list[Any], fields: dict[str, Any], *, loses_node_in: str = "", until: float = math.inf
) -> list[Sweep]:
    """Do the runs of small recipes on fake nodes with these machines, all of the type "pair"; return the sweeps."""
    from poc.cluster import launcher, scheduler
    from tests.fake_ray import FakeRay

    fake, sweeps = FakeRay(*machines, loses_node_in=loses_node_in), list[Sweep]()
    with mock.patch.object(launcher, "ray", fake), mock.patch.object(scheduler, "ray", fake):
        scheduler.Cluster(
            recipes=[("mine", Recipe(**{**SMALL, **fields}))],
            results=folder / "results",
            context=place_in(folder, until=until),
            only=None,
            plan_options={},
            sweep_options={},
            note=lambda current: sweeps.__setitem__(slice(None), current),
        ).run()
    return sweeps


def _change_model(planned: list[Any]) -> None:
    planned[0] = dataclasses.replace(planned[0], run=dataclasses.replace(planned[0].run, model_hash="changed"))


def test_a_run_with_one_worker_is_never_of_several_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    little = dataclasses.replace(MACHINE, memory_bytes=2**20)  # nothing fits
    assert [sweep.context.infrastructure for sweep in swept(tmp_path, [little, MACHINE], {})] == ["pair"]
    assert outcomes(tmp_path, "pair") == {"skipped"}
    # The price of a node is an option of the pages, not of this command.
    assert 'poc report --price "pair=DOLLARS"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "change", "difference"),
    [
        ("describe", lambda described: described["versions"].update(commit="another"), "commit is another, on the "),
        (
            "plan",
            lambda planned: planned[1].update(images=DataId("other")),
            "images is other, on the ",
        ),
        ("plan", lambda planned: _change_model(planned[0]), "model cifar_mlp of mine is changed, on the "),
    ],
)
def test_a_node_of_another_version_or_with_other_files_is_named(
    method: str, change: Any, difference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from poc.cluster.launcher import Supervisor

    other, original = dataclasses.replace(MACHINE), getattr(Supervisor, method)

    def changed(self: Any, *words: Any, **options: Any) -> Any:
        returned = original(self, *words, **options)
        if self._local["machine"] is other:
            change(returned)
        return returned

    monkeypatch.setattr(data, "identify", lambda specs, **_: {"images": DataId("own")})
    monkeypatch.setattr(Supervisor, method, changed)
    with pytest.raises(UserError, match=f"^node1 .*: {difference}"):
        swept(tmp_path, [MACHINE, other], {})
    assert not list(tmp_path.glob("results/*/journal.jsonl"))


@pytest.mark.parametrize("changes", [{"cpu": "Other CPU"}, {"driver": "550.54"}])
def test_a_node_of_other_hardware_than_its_type_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    gpu = GPU(index=0, name="Test GPU", capability=(7, 0), memory_bytes=2**34)
    machine = dataclasses.replace(MACHINE, gpus=(gpu,))
    with pytest.raises(UserError, match=f"^node1 .*: {next(iter(changes))} is "):
        swept(tmp_path, [machine, dataclasses.replace(machine, **changes)], {})


def test_a_node_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from poc.cluster.launcher import Supervisor
    from tests.fake_ray import FakeRay

    silent, over, describe, wait = dataclasses.replace(MACHINE), threading.Event(), Supervisor.describe, FakeRay.wait

    def describe_unless_silent(self: Any) -> Any:
        if self._local["machine"] is silent:
            over.wait()
        return describe(self)

    def wait_for_one(*words: Any, **options: Any) -> Any:
        """Do not wait to the end for the silent one."""
        return wait(*words, **{**options, "num_returns": 1})

    monkeypatch.setattr(FakeRay, "wait", wait_for_one)
    monkeypatch.setattr(Supervisor, "describe", describe_unless_silent)
    try:
        swept(tmp_path, [MACHINE, silent], {"epochs": 1})
    finally:
        over.set()
    assert outcomes(tmp_path, "pair") == {COMPLETED}
    assert "not used: node1 " in capsys.readouterr().err


def test_a_search_goes_on_without_a_lost_node_and_its_run_has_no_result(tmp_path: Path) -> None:
    search = {"lr": Search(low=0.1, high=0.4, points=3), "epochs": 1}
    swept(tmp_path, [MACHINE, MACHINE], search, loses_node_in="train")
    lost, *others = records_of(tmp_path, "pair")
    assert (lost.outcome, lost.result) == (FAILED, None)
    assert [record.outcome for record in others] == [COMPLETED, COMPLETED]


@pytest.mark.parametrize(("later", "blamed"), [(signal.SIGKILL, "worker 1"), (signal.SIGABRT, "worker 0")])
def test_of_two_hosts_a_kill_is_blamed_first_and_an_abort_is_not(later: int, blamed: str, tmp_path: Path) -> None:
    from poc.cluster import launcher
    from tests.fake_ray import FakeRay

    def train(_: Any, request: Any, first: int, environments: Any) -> HostResult:
        time.sleep(0.3 * first)
        failure = f"worker {first}", ended_early(-later if first else 1)
        return HostResult(workers=(), failure=failure, interrupted=False, monitor=None, core_use={})

    fake, run = FakeRay(MACHINE, MACHINE), dataclasses.replace(run_of(), devices=2, workers=2)
    here = mock.patch.multiple(launcher.Supervisor, open=lambda *_: ({}, {}), train=train)
    with mock.patch.object(launcher, "ray", fake), here:
        nodes = [launcher.Node(entry) for entry in fake.nodes()]
        _, reason = launcher.RayLauncher(nodes, place_in(tmp_path), threading.Event(), lambda: None).attempt(run, {})
    assert reason.startswith(f"{blamed}: ")


def test_a_machine_on_which_ray_was_started_twice_is_not_two_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.fake_ray import FakeRay

    nodes = FakeRay.nodes
    same = {"NodeManagerAddress": "127.0.0.1"}
    monkeypatch.setattr(FakeRay, "nodes", lambda self: [{**entry, **same} for entry in nodes(self)])
    (sweep,) = swept(tmp_path, [dataclasses.replace(MACHINE, cores=1)] * 2, {**TWO_WORKERS, "cores_per_worker": 1})
    assert skipped(sweep.lines()) == {"needs 2 cores, this machine has 1": 1}


def test_the_images_of_nodes_that_have_none_are_synthetic_and_their_code_may_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from poc.cluster.launcher import Supervisor

    def planned(self: Any, *words: Any, **options: Any) -> Any:
        monkeypatch.setattr(provenance, "code_hash", lambda: "another")  # from now on
        return plan(self, *words, **options)

    plan = Supervisor.plan
    monkeypatch.setattr(Supervisor, "plan", planned)
    monkeypatch.setattr(data, "identify", lambda specs, **_: {"images": DataId("synthetic")})
    with pytest.raises(UserError, match=r"^node0 .*: code or packages changed"):
        swept(tmp_path, [MACHINE], {})
    assert "SYNTHETIC" in capsys.readouterr().err


def test_runs_of_several_hosts_are_not_skipped_with_other_cores_on_one(tmp_path: Path) -> None:
    machine = dataclasses.replace(MACHINE, cores=2)  # three workers have a core each of one host, two each of three
    one, three = swept(tmp_path, [machine] * 3, {"devices": 3, "workers": 3, "kvstore": "dist_sync"}, until=0.0)
    assert three.ids() != tuple(line.id for line in one.lines())
    assert skipped([*one.lines(), *three.lines()]) == {}


def test_a_candidate_of_a_search_and_the_same_run_of_a_grid_are_never_trained_at_once(tmp_path: Path) -> None:
    search, active, overlaps = Search(low=0.1, high=0.4, points=3), set[str](), set[str]()

    def do(sweep: Sweep, planned: Planned, launcher: Any = None) -> bool:
        ids = {*schedule.ids(planned)}
        overlaps.update(ids & active)
        active.update(ids)
        time.sleep(0.1)  # the other node is free
        active.difference_update(ids)
        return True

    with mock.patch.object(Sweep, "do", do):
        (sweep,) = swept(tmp_path, [MACHINE, MACHINE], {"cases": [{"lr": search}, {"lr": search.rates}], "epochs": 1})
    (searching,) = [planned for planned in sweep.plan if planned.searched]
    assert {planned.run.id for planned in sweep.plan} <= {*schedule.ids(searching)}
    assert not overlaps


def test_a_round_stays_on_its_node_when_others_join_or_are_lost(tmp_path: Path) -> None:
    from poc.cluster import scheduler

    made = scheduler.Cluster([], tmp_path, place_in(tmp_path), None, {}, {}, lambda sweeps: None)

    def node_of(round_number: int) -> Any:
        (node,) = made._reserve("pair", 1, round_number)
        made._busy.clear()
        return node

    assert made._reserve("pair", 1, 1) == []
    a, b, c = [mock.Mock(type="pair", lost="") for _ in range(3)]
    made._nodes = [b]
    assert [node_of(1), node_of(2)] == [b, b]
    made._nodes = [a, b, c]
    assert [node_of(1), node_of(2)] == [b, b]
    assert {node_of(3), node_of(4)} == {a, c}
    b.lost = "lost"
    assert node_of(1) in (a, c)
    assert node_of(1) == node_of(1)


def test_all_runs_of_a_round_of_repeats_are_done_by_one_node_and_others_by_any(tmp_path: Path) -> None:
    nodes: dict[int, set[str]] = {}

    def do(sweep: Sweep, planned: Planned, launcher: Any = None) -> bool:
        (node,) = launcher.nodes
        nodes.setdefault(planned.repeat, set()).add(node.name)
        time.sleep(0.1 if node.name.startswith("node0") else 0.15)
        return True

    with mock.patch.object(Sweep, "do", do):
        swept(tmp_path, [MACHINE, MACHINE], {"batch_per_device": [16, 32], "repeats": 3, "epochs": 1})
        repeated = nodes.copy()
        nodes.clear()
        swept(tmp_path / "once", [MACHINE, MACHINE], {"batch_per_device": [16, 32], "epochs": 1})
    assert [len(repeated[number]) for number in (1, 2, 3)] == [1, 1, 1]
    assert repeated[1] == repeated[3] != repeated[2]
    assert len(nodes[1]) == 2
