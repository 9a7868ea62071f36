"""Processes that die with their parent, are watched and blamed, and whose folders are swept up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from poc.machine import child, processes
from tests.launch import HOME

LONG = 300.0  # seconds: what has not happened by then never will


def test_a_process_dies_with_its_parent_whatever_ends_that() -> None:
    # An interactive interpreter, which says so first; what it reads from is this process's, and stays open.
    owner = "from poc.machine import processes\nprocesses.start('code', {}).wait()"
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", owner], cwd=HOME, text=True, **pipes) as parent:
        assert parent.stderr is not None
        assert parent.stderr.readline().startswith("Python")
        started = psutil.Process(parent.pid).children()
        assert len(started) == 1
        parent.kill()
        _, alive = psutil.wait_procs(started, timeout=LONG)
        for process in alive:
            process.kill()
    assert not alive


def test_a_process_whose_parent_died_before_it_could_tell_the_kernel_does_nothing(tmp_path: Path) -> None:
    command = [sys.executable, child.__file__, "0", "/usr/bin/touch", str(tmp_path / "done")]
    assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 1
    assert not (tmp_path / "done").exists()


def test_a_scratch_folder_goes_with_its_owner_or_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    owner = "from poc.machine import processes\nwith processes.scratch() as own: print(own, flush=True), input()"
    environment, pipes = {**os.environ, "TMPDIR": str(tmp_path)}, {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", owner], cwd=HOME, env=environment, text=True, **pipes) as other:
        assert other.stdout is not None
        others = Path(other.stdout.readline().strip())
        with processes.scratch() as own:
            assert set(tmp_path.iterdir()) == {own, others}
        other.kill()
    assert list(tmp_path.iterdir()) == [others]
    with processes.scratch() as own:
        assert list(tmp_path.iterdir()) == [own]
    assert list(tmp_path.iterdir()) == []


def shells(**commands: str) -> dict[str, subprocess.Popen[str]]:
    return {name: subprocess.Popen(["sh", "-c", command], text=True) for name, command in commands.items()}


@pytest.mark.parametrize("victim", ["worker 1", "hub"])
def test_a_killed_process_is_blamed_before_a_worker_that_failed_without_it(victim: str, tmp_path: Path) -> None:
    started = shells(**{"worker 0": "exit 1", victim: "kill -KILL $$"})
    for process in started.values():  # until it has ended, without taking note of it
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    helpers = {name: started.pop(name) for name in ("hub",) if name in started}
    lost = processes.watch(started, helpers, [tmp_path / "none"], patience=LONG)
    assert lost == (victim, processes.ended_early(-signal.SIGKILL))


def test_a_worker_that_crashes_once_it_has_done_its_work_keeps_no_other_from_ending(tmp_path: Path) -> None:
    started = shells(**{"worker 0": "kill -SEGV $$", "worker 1": f"sleep 0.5; touch {tmp_path / 'ended'}"})
    lost = processes.watch(started, {}, [tmp_path / "none"], patience=LONG, done=lambda name: name == "worker 0")
    assert lost is None
    assert (tmp_path / "ended").exists()


def test_a_worker_that_computes_is_not_taken_for_stalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import time\nwhile time.process_time() < 4: pass"
    with subprocess.Popen([sys.executable, "-c", code], text=True) as busy:

        def monotonic() -> float:
            """A second passes when the worker has had a core for one, however long others keep it waiting for that."""
            times = psutil.Process(busy.pid).cpu_times()
            return float(times.user + times.system)

        monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=monotonic))
        assert processes.watch({"worker 0": busy}, {}, [tmp_path / "none"], patience=2.0) is None


@pytest.mark.parametrize("stopped", [False, True])
def test_workers_that_do_nothing_are(stopped: bool, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "9999"], text=True) as idle:
        if stopped:
            idle.send_signal(signal.SIGSTOP)
        lost = processes.watch({"worker 0": idle}, {}, [tmp_path / "none"], patience=1.5)
        processes.stop([idle])
    assert lost is not None
    assert lost[0] == "worker 0"
    assert "nothing has gone on" in lost[1]
    assert ("SIGSTOP" in lost[1]) == stopped
