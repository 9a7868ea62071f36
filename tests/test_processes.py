"""Processes of runs: blame for the first that fails, and real runs whose processes are killed."""

import dataclasses
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from poc import Recipe, Synthetic, frameworks
from poc.host import isolated, processes
from poc.plan import plan
from poc.records.record import COMPLETED, FAILED, Record
from poc.run.parent import execute
from tests.builders import GLUON, MACHINE, SMALL, TWO_WORKERS, course, end_of, executed, place_in
from tests.conftest import needs_horovod, needs_torch
from tests.launch import NEVER, struck

MXNET = {**GLUON, "batch_per_device": 8, "cores_per_worker": 1 if MACHINE.cores > 1 else None}
FRAMEWORKS: dict[str, dict[str, Any]] = {
    "reference": {"data": Synthetic(train=320, validation=70)},
    "mxnet": MXNET,
    "horovod": {**MXNET, "kvstore": "horovod"},
    "pytorch": {**MXNET, "framework": "pytorch", "kvstore": "device"},
}
KILLED, STOPPED = signal.SIGKILL, signal.SIGSTOP


def test_a_process_whose_parent_died_before_its_start_does_nothing(tmp_path: Path) -> None:
    command = [sys.executable, isolated.__file__, "--parent", "0", "compileall", "-d", "x", str(tmp_path)]
    (tmp_path / "module.py").touch()
    assert subprocess.run(command, capture_output=True).returncode == 1
    assert not (tmp_path / "__pycache__").exists()


def shells(**commands: str) -> dict[str, subprocess.Popen[str]]:
    return {name: subprocess.Popen(["sh", "-c", command], text=True) for name, command in commands.items()}


@pytest.mark.parametrize("seen_later", [False, True])
@pytest.mark.parametrize("victim", ["worker 1", "hub"])
def test_a_killed_process_is_blamed_before_a_worker_that_failed_without_it(
    victim: str, seen_later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_GRACE_SECONDS", NEVER)
    started = shells(**{"worker 0": "exit 1"})
    # A process that has ended can be sent signals until its exit status is read.
    until = f"while kill -0 {started['worker 0'].pid} 2>/dev/null; do sleep 0.01; done; " if seen_later else ""
    started |= shells(**{victim: f"{until}kill -KILL $$"})
    for process in [*started.values()][: 1 if seen_later else 2]:  # wait without reading the exit status
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    helpers = {"hub": started.pop("hub")} if victim == "hub" else {}
    blamed, reason = processes.watch(started, helpers, [], patience=NEVER) or ("", "")
    assert (blamed, "signal 9" in reason) == (victim, True)


def test_a_worker_that_aborts_later_is_not_blamed_for_the_first_failure() -> None:
    first = shells(**{"worker 1": "exit 1"})
    until = f"while kill -0 {first['worker 1'].pid} 2>/dev/null; do sleep 0.01; done"
    started = shells(**{"worker 0": f"{until}; sleep 0.2; kill -ABRT $$"}) | first
    assert processes.watch(started, {}, [], patience=NEVER) == ("worker 1", processes.ended_early(1))


def test_a_worker_that_crashes_after_its_work_does_not_end_the_others(tmp_path: Path) -> None:
    started = shells(**{"worker 0": "kill -SEGV $$", "worker 1": f"sleep 0.5; touch {tmp_path / 'ended'}"})
    lost = processes.watch(started, {}, [], patience=NEVER, has_completed=lambda name: name == "worker 0")
    assert lost is None
    assert (tmp_path / "ended").exists()


def test_a_worker_with_heartbeats_is_not_stalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, heartbeat = tmp_path / "count", tmp_path / "heartbeat"
    step = f"open({str(count)!r}, 'a').write('.'); time.sleep(0.1); os.utime({str(heartbeat)!r})"
    code = f"import os, time\nfor _ in range(9): {step}"
    for file in (count, heartbeat):
        file.touch()
    # A second passes with each step, however long the worker waits for a core.
    clock = SimpleNamespace(monotonic=lambda: float(count.stat().st_size), sleep=lambda _: time.sleep(0.02))
    monkeypatch.setattr(processes, "time", clock)
    with subprocess.Popen([sys.executable, "-c", code], text=True) as busy:
        assert processes.watch({"worker 0": busy}, {}, [heartbeat], patience=2.5) is None
    assert count.stat().st_size == 9


def test_time_in_which_all_processes_were_frozen_is_no_stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thawed = tmp_path / "thawed"
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 1e4 * thawed.exists(), sleep=time.sleep)
    monkeypatch.setattr(processes, "time", clock)
    monkeypatch.setattr(processes, "_CHECK_SECONDS", 0.02)
    frozen = shells(**{"worker 0": f"sleep 0.5; touch {thawed}; sleep 0.5"})
    assert processes.watch(frozen, {}, [], patience=60.0) is None


@pytest.mark.parametrize("command", ["exec sleep 9999", "ulimit -t 60; while true; do :; done"])
def test_workers_that_wait_or_only_spin_are_stalled(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were CPU time progress, the second one would be killed after a minute of it."""
    monkeypatch.setattr(processes, "_CHECK_SECONDS", 0.02)
    with subprocess.Popen(["sh", "-c", command], text=True) as idle:
        blamed, reason = processes.watch({"worker 0": idle}, {}, [], patience=0.5) or ("", "")
        # A worker that has done its work and hangs at its exit is no failure.
        completed = processes.watch({"worker 0": idle}, {}, [], 0.05, has_completed=lambda name: True)
        processes.stop([idle])
    assert completed is None
    assert (blamed, "--patience" in reason) == ("worker 0", True)


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("kill -TERM $$", "signal 15; .*another process"),
        ("kill -SEGV $$", "signal 11$"),
        ("kill -KILL $$", "signal 9; .*another process, .*ulimit -t"),
        ("exit 3", "exit code 3$"),
    ],
)
def test_the_reason_for_which_a_process_ended_early(command: str, hint: str) -> None:
    lost = processes.watch(shells(**{"worker 0": command}), {}, [], patience=NEVER)
    assert lost is not None
    assert re.search(hint, lost[1])


def two_workers(folder: Path, framework: str, **fields: Any) -> Record:
    workers = 1 if framework == "pytorch" else 2  # it has one per device anyway
    return executed(folder, **{**TWO_WORKERS, **FRAMEWORKS[framework], "workers": workers, **fields})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "victim", "number"),
    [
        ("reference", "hub", STOPPED),
        ("mxnet", "scheduler", KILLED),
        pytest.param("horovod", "worker 1", KILLED, marks=needs_horovod),
    ],
    ids=str,
)
def test_a_lost_process_ends_the_run_and_is_named(
    framework: str, victim: str, number: signal.Signals, tmp_path: Path
) -> None:
    with struck(victim, number, workers=2):
        record = two_workers(tmp_path, framework, epochs=100_000)
    assert record.outcome == FAILED
    assert record.reason.startswith(f"{victim}: ")
    assert ("signal 9" if number == KILLED else "SIGSTOP") in record.reason
    assert record.windows
    assert psutil.Process().children(recursive=True) == []


def trained_by(workers: int, framework: str, folder: Path, *, detail: int = 0, **fields: Any) -> Record:
    """Return the record of a run of so many workers, also if they are more than there are cores."""
    shared = {"devices": workers, "workers": 1 if framework == "pytorch" else workers}
    recipe = Recipe(**{**SMALL, **TWO_WORKERS, **FRAMEWORKS[framework], **shared, "cores_per_worker": None, **fields})
    (item,) = plan("test", recipe, dataclasses.replace(MACHINE, cores=max(workers, MACHINE.cores)))
    assert not item.skip
    run = dataclasses.replace(item.run, cores_per_worker=None)
    record, _ = execute(run, place_in(folder), detail=detail)
    assert len({sum(window.steps for window in worker.windows) for worker in record.workers}) == 1
    return record


LEARNS = {"data": Synthetic(train=2000, validation=400), "batch_per_device": 100, "lr": 0.01}
"""Fields with which the reference framework reaches 0.25 in the fourth epoch."""


@pytest.mark.slow
def test_all_workers_end_with_the_epoch_in_which_they_together_reach_the_target(tmp_path: Path) -> None:
    record = trained_by(3, "reference", tmp_path, **LEARNS, epochs=50, target_accuracy=0.25)
    assert (record.outcome, record.reason) == (COMPLETED, "")
    *before, last = [evaluation.accuracy for evaluation in record.evaluations]
    assert max(before, default=0.0) < 0.25 <= last
    assert {evaluation.samples for evaluation in record.evaluations} == {record.run.data.validation}
    assert len(record.workers) == 3


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["reference", pytest.param("pytorch", marks=needs_torch)])
def test_all_workers_end_after_the_same_step_when_the_time_is_up(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, statuses = processes.watch, []

    def watched(workers: Any, *rest: Any) -> Any:
        failure = watch(workers, *rest)
        statuses.extend(process.poll() for process in workers.values())
        return failure

    monkeypatch.setattr(processes, "watch", watched)
    fields = {"epochs": None, "steps": 10**6, "evaluate": False, "straggler": 0.5, "window": 2}
    record = trained_by(2, framework, tmp_path, **fields, seconds=1.0, detail=3)
    assert (record.outcome, record.reason, bool(record.detail)) == (COMPLETED, "", True)
    assert statuses == [0, 0]  # none hangs at its exit
    assert frameworks.versions(framework).items() <= record.versions.items()
    assert 2 <= sum(window.steps for window in record.windows) < 10**6
    # Each window is that of the slowest worker; the first one's clock decides, without the first five steps.
    first = record.workers[0].windows
    assert sum(window.seconds for window in first[3:-1]) < 1.0 <= sum(window.seconds for window in first[3:])


@pytest.mark.slow
def test_a_worker_that_is_killed_in_an_evaluation_is_named(tmp_path: Path) -> None:
    framework = "pytorch" if frameworks.versions("pytorch") else "reference"
    data = dataclasses.replace(FRAMEWORKS[framework]["data"], validation=40_000)
    with struck("worker 1", KILLED, workers=2):
        record = two_workers(tmp_path, framework, data=data, window=1000, epochs=9, target_accuracy=0.9)
    assert record.outcome == FAILED
    assert record.reason.startswith("worker 1: ")
    assert "signal 9" in record.reason
    assert (len(record.windows), record.evaluations) == (1, ())
    assert psutil.Process().children(recursive=True) == []


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], tuple[Record, Path]]:
    """Return a function that does a run once; it returns the record and the run's folder.

    It is one of two workers, or with MXNet of two devices in one process, which is the same without four processes.
    """

    @functools.cache
    def done(framework: str, epochs: int) -> tuple[Record, Path]:
        folder = tmp_path_factory.mktemp("undisturbed")
        if framework == "reference":
            return two_workers(folder, framework, epochs=epochs), folder
        return executed(folder, **MXNET, devices=2, epochs=epochs), folder

    return done


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "victim", "epochs"), [("reference", "worker 1", 6), ("reference", "hub", 6), ("mxnet", "server 0", 8)]
)
def test_a_restart_reaches_what_an_undisturbed_run_does(
    framework: str, victim: str, epochs: int, undisturbed: Callable[[str, int], tuple[Record, Path]], tmp_path: Path
) -> None:
    expected, place = undisturbed(framework, epochs)
    # After an evaluation: a checkpoint of the epoch before, at least, is there.
    with struck(victim, KILLED, workers=2, after='"evaluation", "epoch": 2'):
        restarted = two_workers(tmp_path, framework, epochs=epochs, restarts=1)
    assert (restarted.outcome, restarted.reason) == (COMPLETED, "")
    (resumed,) = restarted.resumed
    assert resumed.step >= restarted.run.steps_per_epoch
    assert resumed.why.startswith(f"{victim}: ")
    assert "signal 9" in resumed.why
    assert 0 < restarted.monitor.devices[0].seconds < sum(window.seconds for window in restarted.windows)
    assert psutil.Process().children(recursive=True) == []
    if framework == "reference":
        assert course(restarted) == course(expected)
        np.testing.assert_equal(*(end_of(folder, restarted.run, 1) for folder in (tmp_path, place)))
    for name in ("accuracy", "loss"):
        reached, wanted = ([getattr(each, name) for each in made.evaluations] for made in (restarted, expected))
        assert reached == pytest.approx(wanted, abs=1e-6)


def test_a_worker_that_waits_for_one_that_has_ended_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_END_SECONDS", 0.5)
    started = shells(**{"worker 0": "true", "worker 1": "sleep 300"})
    assert processes.watch(started, {}, [], patience=NEVER, has_completed=lambda name: True) is None
    assert started["worker 1"].poll() is None
    processes.stop(started.values())


def test_ports_are_free_ones_that_no_connection_gets() -> None:
    ports = {processes.free_port("127.0.0.1") for _ in range(20)}
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert len(ports) > 15
    assert max(ports) < first or first < 30_000  # the machine's owner may have chosen other ones
    with socket.create_server(("127.0.0.1", ports.pop())):
        pass
    with pytest.raises(OSError, match="address"):
        processes.free_port("192.0.2.1")
