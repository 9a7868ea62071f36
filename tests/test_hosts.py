"""Several hosts: how they find each other, and real ones, made of network namespaces, that train together."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from poc.train import hosts
from poc.train.hosts import Hosts
from poc.values import UserError

pytestmark = pytest.mark.slow

HOME = Path(__file__).parent.parent
RECIPE = """
from poc import Recipe, Synthetic
recipe = Recipe(
    model="cifar_resnet8_v2", data=Synthetic(size=16, crop=16, train=640, validation=70), kind="cpu", devices=2,
    {workers} batch_per_device=8, lr=0.01, epochs={epochs}, exchange="{exchange}", quick={{}},
    restarts={restarts}, engine="{engine}",
)
"""


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"POC_HOSTS": "2", "POC_HOST": "1", "POC_ADDRESS": "10.0.0.1"}, (1, 2, "10.0.0.1:9199")),
        ({"POC_HOSTS": "2", "POC_HOST": "0", "POC_ADDRESS": "node1:77"}, (0, 2, "node1:77")),
        ({"POC_HOSTS": "1", "POC_HOST": "0"}, None),
        (
            {"SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_JOB_NODELIST": "gpu[07-09,12],other1"},
            (3, 4, "gpu07:9199"),
        ),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "a1,b2"}, (0, 2, "a1:9199")),
        ({"SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "gpu[07-09]"}, None),  # a shell in a job, not srun
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "POC_ADDRESS": "h"}, (1, 2, "h:9199")),
        ({"PMI_SIZE": "2", "PMI_RANK": "0", "POC_ADDRESS": "h"}, (0, 2, "h:9199")),
        (
            {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "1", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.1.1.1"},
            (1, 2, "10.1.1.1:9199"),
        ),
        ({"WORLD_SIZE": "2", "RANK": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "node1"}, (1, 2, "node1:9199")),
    ],
)
def test_a_launcher_s_environment_is_recognised(
    environment: dict[str, str], found: tuple[int, int, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)  # no scontrol, whatever this machine has
    place = hosts.find(environment)
    assert place == (Hosts(number=found[0], count=found[1], address=found[2]) if found else None)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"POC_HOSTS": "2", "POC_HOST": "2", "POC_ADDRESS": "h"}, "POC_HOST: 2 is not allowed; .* 0 to 1"),
        ({"POC_HOSTS": "two", "POC_HOST": "0"}, "POC_HOSTS: 'two'"),
        ({"POC_HOSTS": "2", "POC_HOST": "0"}, "POC_ADDRESS: it is missing"),
        (
            {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            "2 processes were started on a host",
        ),
    ],
)
def test_a_mistake_in_it_is_one_line(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        hosts.find(environment)


def written(folder: Path, *, epochs: int, exchange: str, restarts: int = 0, engine: str = "gluon") -> Path:
    """The recipe that all these hosts run."""
    path = folder / "recipe.py"
    # With PyTorch each device has a process of its own anyway.
    workers = "workers=2, cores_per_worker=1," if engine == "gluon" else ""
    fields = {"epochs": epochs, "exchange": exchange, "restarts": restarts, "engine": engine, "workers": workers}
    path.write_text(RECIPE.format(**fields))
    return path


def host(number: int, address: str, recipe: Path, folder: Path, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
    """`poc run` on one of two hosts; without an address, `prefix` has the launcher that tells it."""
    environment = {"POC_CACHE": str(folder / "cache")}
    if address:
        environment.update(POC_HOSTS="2", POC_HOST=str(number), POC_ADDRESS=address)
    command = [sys.executable, "-m", "poc", "run", str(recipe), "--results", str(folder / f"results{number}")]
    return subprocess.Popen(
        [*prefix, *command],
        cwd=HOME,
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def record_of(folder: Path) -> dict[str, Any]:
    (line,) = (folder / "results0" / "journal.jsonl").read_text().splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


@contextlib.contextmanager
def ended(processes: list[subprocess.Popen[str]]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def two_hosts() -> Iterator[list[list[str]]]:
    """Two network namespaces joined by a cable (veth), at 10.77.0.1 and 10.77.0.2: the commands that enter them."""
    names = [f"poc{os.getpid()}{letter}" for letter in "ab"]
    ends = [f"v{os.getpid()}{letter}" for letter in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
        for number, (name, end) in enumerate(zip(names, ends), start=1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces are not allowed here: {getattr(error, 'stderr', '') or error}")
    try:
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def trained_together(members: list[subprocess.Popen[str]], folder: Path) -> dict[str, Any]:
    """Their record, once both have ended well: a worker on each, and all of the validation images counted once."""
    with ended(members):
        told = [member.communicate(timeout=120)[1] for member in members]
        assert [member.returncode for member in members] == [0, 0], "\n".join(told)
    record = record_of(folder)
    assert (record["outcome"], record["reason"]) == ("completed", "")
    assert [worker["worker"] for worker in record["workers"]] == [0, 1]
    assert record["evaluations"][-1]["samples"] == 70
    assert record["hardware"]["description"].startswith("2 hosts, each CPU")
    return record


needs_horovod = pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed")


@pytest.mark.parametrize("exchange", ["dist_sync", pytest.param("horovod", marks=needs_horovod)])
def test_two_hosts_train_together(exchange: str, two_hosts: list[list[str]], tmp_path: Path) -> None:
    recipe = written(tmp_path, epochs=2, exchange=exchange)
    named = [[*prefix, *_called(f"10.77.0.{number}")] for number, prefix in enumerate(two_hosts, start=1)]
    members = [host(number, "10.77.0.1:9199", recipe, tmp_path, prefix) for number, prefix in enumerate(named)]
    record = trained_together(members, tmp_path)
    assert [device["device"] for device in record["monitor"]["devices"]] == ["cpu", "host 1 cpu"]
    assert not (tmp_path / "results1").exists()  # the first host keeps the journal


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_torchrun_starts_both_hosts(two_hosts: list[list[str]], tmp_path: Path) -> None:
    recipe = written(tmp_path, epochs=2, exchange="device", engine="pytorch")
    launched = [
        [
            *(*prefix, *_called(f"10.77.0.{number + 1}"), sys.executable, "-m", "torch.distributed.run", "--no-python"),
            *("--nnodes=2", "--nproc-per-node=1", f"--node-rank={number}", "--master-addr=10.77.0.1"),
        ]
        for number, prefix in enumerate(two_hosts)
    ]
    members = [host(number, "", recipe, tmp_path, prefix) for number, prefix in enumerate(launched)]
    trained_together(members, tmp_path)


def _called(name: str) -> list[str]:
    """The command that starts another on a host of this name."""
    return ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "-"]


@needs_horovod
def test_horovod_on_a_host_whose_name_leads_nowhere_says_so(two_hosts: list[list[str]], tmp_path: Path) -> None:
    recipe = written(tmp_path, epochs=2, exchange="horovod")
    named = [[*prefix, *_called("localhost")] for prefix in two_hosts]
    members = [host(number, "10.77.0.1:9199", recipe, tmp_path, prefix) for number, prefix in enumerate(named)]
    with ended(members):
        told = [member.communicate(timeout=120)[1] for member in members]
    assert members[0].returncode == 1, told
    assert "this host's name, localhost, leads to 127.0.0.1" in record_of(tmp_path)["reason"]


def test_a_worker_lost_on_the_other_host_is_started_again(two_hosts: list[list[str]], tmp_path: Path) -> None:
    recipe = written(tmp_path, epochs=12, exchange="dist_sync", restarts=1)
    members = [host(number, "10.77.0.1:9199", recipe, tmp_path, prefix) for number, prefix in enumerate(two_hosts)]
    with ended(members):
        _kill_worker_once(members[1].pid, '"epoch": 2')
        told = [member.communicate(timeout=120)[1] for member in members]
        assert [member.returncode for member in members] == [0, 0], "\n".join(told)
    record = record_of(tmp_path)
    assert (record["outcome"], record["reason"]) == ("completed", "")
    assert record["resumed"][0]["step"] >= 40
    assert "host 1" in record["resumed"][0]["why"] or "worker 1" in record["resumed"][0]["why"]
    assert [one["epoch"] for one in record["evaluations"]] == list(range(1, 13))


def _kill_worker_once(pid: int, told: str) -> None:
    """Kills the worker that the host with process `pid` has started, when its file says `told`."""
    for _ in range(1200):
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(pid).children(recursive=True):
                files = [Path(file.path) for file in child.open_files() if file.path.endswith(".jsonl")]
                if files and told in files[0].read_text():
                    child.kill()
                    return
        time.sleep(0.05)
    raise AssertionError("no run came to pass")


def test_a_cut_link_ends_the_run_on_both_hosts(two_hosts: list[list[str]], tmp_path: Path) -> None:
    recipe = written(tmp_path, epochs=5000, exchange="dist_sync")
    members = [host(number, "10.77.0.1:9199", recipe, tmp_path, prefix) for number, prefix in enumerate(two_hosts)]
    with ended(members):
        time.sleep(12)  # until they train; wherever the cut falls, the same has to follow
        name = two_hosts[1][-1]
        subprocess.run(["ip", "-n", name, "link", "set", f"v{os.getpid()}b", "down"], check=True)
        told = [member.communicate(timeout=120)[1] for member in members]
        assert [member.returncode for member in members] == [1, 1], told
    record = record_of(tmp_path)
    assert record["outcome"] == "failed"
    assert record["reason"].startswith("host 1: ")
    assert "the link to another host is lost" in told[1]


def test_a_host_that_nobody_joins_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_JOIN_SECONDS", 0.5)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = Hosts(number=0, count=2, address=f"127.0.0.1:{port}")
    with pytest.raises(UserError, match=r"hosts \[1\] did not call"), hosts.gathered(alone):
        pass
    other = Hosts(number=1, count=2, address=f"127.0.0.1:{port}")
    with pytest.raises(UserError, match="nobody answers"), hosts.joined(other):
        pass
