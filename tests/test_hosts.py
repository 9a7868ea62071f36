"""Several hosts: how they find each other, and real ones, made of network namespaces, that train together."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from poc import Synthetic
from poc.records.record import COMPLETED, FAILED, Record
from poc.train import hosts
from poc.train.hosts import Hosts
from poc.values import UserError
from tests.builders import GLUON, TWO_WORKERS, recipe_file
from tests.launch import DEADLINE_SECONDS, family, records, start

needs_horovod = pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
IMAGES = Synthetic(train=320, validation=70)
MXNET = {**GLUON, "batch_per_device": 8, "cores_per_worker": 1}
# Each device has a process of its own anyway.
PYTORCH = {**MXNET, "engine": "pytorch", "exchange": "device", "workers": 1}
FIRST = "10.77.0.1"


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ("", None),
        ("POC_HOSTS=2 POC_HOST=1 POC_ADDRESS=10.0.0.1", (1, 2, "10.0.0.1:9199")),
        ("POC_HOSTS=2 POC_HOST=0 POC_ADDRESS=node1:77", (0, 2, "node1:77")),
        ("POC_HOSTS=1 POC_HOST=0", None),
        ("SLURM_NTASKS=4 SLURM_PROCID=3 SLURM_JOB_NODELIST=gpu[07-09,12],other1", (3, 4, "gpu07:9199")),
        ("SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_JOB_NODELIST=a1,b2", (0, 2, "a1:9199")),
        ("SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_JOB_NODELIST=r[2-3]n[5,7].x", (0, 2, "r2n5.x:9199")),
        ("SLURM_NTASKS=4 SLURM_JOB_NODELIST=gpu[07-09]", None),  # a shell in a job, not srun
        ("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 POC_ADDRESS=h", (1, 2, "h:9199")),
        ("PMI_SIZE=2 PMI_RANK=0 POC_ADDRESS=h", (0, 2, "h:9199")),
        ("HOROVOD_SIZE=2 HOROVOD_RANK=1 HOROVOD_GLOO_RENDEZVOUS_ADDR=10.1.1.1", (1, 2, "10.1.1.1:9199")),
        ("WORLD_SIZE=2 RANK=1 LOCAL_WORLD_SIZE=1 MASTER_ADDR=node1", (1, 2, "node1:9199")),
        ("POC_HOSTS=2 POC_HOST=2 POC_ADDRESS=h", "POC_HOST: 2 is not allowed; .* 0 to 1"),
        ("POC_HOSTS=two POC_HOST=0", "POC_HOSTS: 'two'"),
        ("POC_HOSTS=2 POC_HOST=0", "POC_ADDRESS: it is missing"),
        ("WORLD_SIZE=4 RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node1", "2 processes were started on a host"),
    ],
)
def test_a_launcher_s_environment_is_recognised_and_a_mistake_in_it_said(
    environment: str, found: tuple[int, int, str] | str | None
) -> None:
    variables = dict(word.split("=") for word in environment.split())
    if isinstance(found, str):
        with pytest.raises(UserError, match=found):
            hosts.find(variables)
    else:
        place = hosts.find(variables)
        assert (place and (place.number, place.count, place.address)) == found


Cable = list[list[str]]
"""For each of two hosts the command that starts another there."""


@pytest.fixture
def cable() -> Iterator[Cable]:
    """Two network namespaces joined by a cable (veth), at 10.77.0.1 and 10.77.0.2: the commands that enter them."""
    names = [f"poc{os.getpid()}{letter}" for letter in "ab"]
    ends = [f"v{os.getpid()}{letter}" for letter in "ab"]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
        for number, (name, end) in enumerate(zip(names, ends), start=1):
            _ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", end)
            _ip("-n", name, "link", "set", end, "up")
            _ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces are not allowed here: {getattr(error, 'stderr', '') or error}")
    try:
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def called(prefix: Sequence[str], name: str) -> list[str]:
    """The command that starts another on the host that `prefix` enters, as if that had this name."""
    return [*prefix, "unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "-"]


@contextlib.contextmanager
def both(folder: Path, prefixes: Cable, *, launched: bool = False, **fields: Any) -> Iterator[list[Any]]:
    """`poc run` of a recipe on two hosts, each with a folder of its own; `launched`: the prefixes tell their places."""
    recipe = recipe_file(folder / "mine.py", **{**TWO_WORKERS, "data": IMAGES, **fields})
    members = []
    try:
        for number, prefix in enumerate(prefixes):
            own = folder / f"host{number}"
            own.mkdir()
            told = {} if launched else {"POC_HOSTS": "2", "POC_HOST": str(number), "POC_ADDRESS": f"{FIRST}:9199"}
            members.append(start(recipe, own, prefix=prefix, environment=told, start_new_session=True))
        yield members
    finally:
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(member.pid, signal.SIGKILL)
            member.wait()


def ended(members: list[Any], folder: Path, status: int) -> tuple[Record, list[str]]:
    """The record of the first host, which keeps the journal, and what both said, once both ended with `status`."""
    said = [member.communicate(timeout=DEADLINE_SECONDS)[0] for member in members]
    assert [member.returncode for member in members] == [status, status], "\n".join(said)
    assert not (folder / "host1" / "results").exists()
    (record,) = records(folder / "host0")
    return record, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "launcher"),
    [
        ({}, ()),
        (MXNET, ()),
        pytest.param({**MXNET, "exchange": "horovod"}, (), marks=needs_horovod),
        pytest.param(PYTORCH, ("-m", "torch.distributed.run", "--no-python"), marks=needs_torch),
    ],
    ids=["reference", "MXNet", "Horovod", "torchrun"],
)
def test_two_hosts_train_together(
    fields: dict[str, Any], launcher: Sequence[str], cable: Cable, tmp_path: Path
) -> None:
    prefixes = [called(prefix, f"10.77.0.{number}") for number, prefix in enumerate(cable, start=1)]
    if launcher:
        common = [sys.executable, *launcher, "--nnodes=2", "--nproc-per-node=1", f"--master-addr={FIRST}"]
        prefixes = [[*prefix, *common, f"--node-rank={number}"] for number, prefix in enumerate(prefixes)]
    with both(tmp_path, prefixes, launched=bool(launcher), **fields, epochs=2) as members:
        record, _ = ended(members, tmp_path, 0)
    assert (record.outcome, record.reason) == (COMPLETED, "")
    assert [worker.worker for worker in record.workers] == [0, 1]
    assert record.evaluations[-1].samples == 70
    assert record.hardware.describe().startswith("2 hosts, each CPU")
    assert [device.device for device in record.monitor.devices] == ["cpu", "host 1 cpu"]


@pytest.mark.slow
@needs_horovod
def test_horovod_on_a_host_whose_name_leads_nowhere_says_so(cable: Cable, tmp_path: Path) -> None:
    prefixes = [called(prefix, "localhost") for prefix in cable]
    with both(tmp_path, prefixes, **{**MXNET, "exchange": "horovod"}, epochs=2) as members:
        said = [member.communicate(timeout=DEADLINE_SECONDS)[0] for member in members]
    assert members[0].returncode == 1, said
    (record,) = records(tmp_path / "host0")
    assert "this host's name, localhost, leads to 127.0.0.1" in record.reason


@pytest.mark.slow
def test_a_worker_lost_on_the_other_host_is_started_again(cable: Cable, tmp_path: Path) -> None:
    with both(tmp_path, cable, epochs=12, restarts=1) as members:
        family(members[1].pid, workers=1, after='"evaluation", "epoch": 2')["worker 1"].kill()
        record, _ = ended(members, tmp_path, 0)
    assert (record.outcome, record.reason) == (COMPLETED, "")
    (resumed,) = record.resumed
    assert resumed.step >= record.run.steps_per_epoch
    assert "host 1" in resumed.why or "worker 1" in resumed.why
    assert [evaluation.epoch for evaluation in record.evaluations] == list(range(1, 13))


@pytest.mark.slow
def test_a_cut_link_ends_the_run_on_both_hosts(cable: Cable, tmp_path: Path) -> None:
    with both(tmp_path, cable, epochs=100_000) as members:
        family(members[1].pid, workers=1)
        _ip("-n", cable[1][-1], "link", "set", f"v{os.getpid()}b", "down")
        record, said = ended(members, tmp_path, 1)
    assert record.outcome == FAILED
    assert record.reason.startswith("host 1: ")
    assert "the link to another host is lost" in said[1]


def test_a_host_that_nobody_joins_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_JOIN_SECONDS", 0.5)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(UserError, match=r"hosts \[1\] did not call"):
        hosts.gathered(Hosts(number=0, count=2, address=address)).__enter__()
    with pytest.raises(UserError, match="nobody answers"):
        hosts.joined(Hosts(number=1, count=2, address=address)).__enter__()


def test_messages_that_come_together_are_read_one_by_one_and_rubbish_breaks_the_link() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as there:
        link = hosts.Link(listener.accept()[0], "host 1")
        with contextlib.closing(link):
            there.sendall(b'{"task": 1}\n{}\n{"stop": true}\nrubbish\n')
            assert [link.receive(), link.receive()] == [{"task": 1}, {"stop": True}]
            for read in (link.receive, link.receive, link.poll):  # it stays lost
                with pytest.raises(hosts.LinkError, match="its link is broken"):
                    read()
