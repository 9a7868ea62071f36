"""What other processes and the environment do to a run: threads, spinning, variables that change speed."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from poc.host import environment, hardware, waiting
from poc.records.record import COMPLETED
from poc.values import UserError
from tests.builders import GLUON, build, executed, recipe_file
from tests.launch import finish, records

CORES = 8


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how many of eight cores other processes keep busy from now on."""
    state = {"rate": 0.0, "seconds": 0.0, "since": time.monotonic()}

    def seconds() -> float:
        return state["seconds"] + state["rate"] * (time.monotonic() - state["since"])

    def change(rate: float) -> None:
        state.update(seconds=seconds(), rate=rate, since=time.monotonic())

    monkeypatch.setattr(hardware, "core_times", lambda: (CORES, seconds() + time.process_time(), 0.0))
    monkeypatch.setattr(waiting, "_LOOK_SECONDS", 0.05)
    return change


class ScriptedCores:
    """Time that passes only in `sleep`, 1.5 times as long as asked for, and eight cores of which others use some."""

    def __init__(self, others: Callable[[float], float]) -> None:
        self.now = self.busy = 0.0
        self._others = others

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.busy += 1.5 * seconds * self._others(self.now)
        self.now += 1.5 * seconds

    def core_times(self) -> tuple[int, float, float]:
        return CORES, self.busy, 0.0


def free_cores(monkeypatch: pytest.MonkeyPatch, cores: int, others: Callable[[float], float]) -> int:
    scripted = ScriptedCores(others)
    monkeypatch.setattr(waiting, "time", scripted)
    monkeypatch.setattr(hardware, "core_times", scripted.core_times)
    return waiting.free_cores(cores)


@pytest.mark.parametrize(
    ("cores", "others", "free"),
    [(8, 0, 8), (8, 0.2, 8), (8, 1, 7), (8, 2.1, 6), (8, 8, 1), (8, 30, 1), (2, 6, 2), (2, 7, 1), (1, 8, 1)],
)
def test_a_run_has_the_cores_that_others_leave_free(
    monkeypatch: pytest.MonkeyPatch, cores: int, others: float, free: int
) -> None:
    assert free_cores(monkeypatch, cores, lambda now: others) == free


def test_a_moment_of_work_costs_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_cores(monkeypatch, CORES, lambda now: 4.0 if now == 0 else 0.0) == CORES


def test_threads_may_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POC_THREADS", raising=False)
    assert waiting.chosen_threads() is None
    monkeypatch.setenv("POC_THREADS", "3")
    assert waiting.chosen_threads() == 3
    for wrong in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("POC_THREADS", wrong)
        with pytest.raises(UserError, match="POC_THREADS"):
            waiting.chosen_threads()


def native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.fixture
def libgomp() -> ctypes.CDLL:
    return ctypes.CDLL("libgomp.so.1")


def test_spinning_is_short_while_others_need_the_cores(busy: Callable[[float], None], libgomp: ctypes.CDLL) -> None:
    """The real library is told by threads of its own, more than the cores; they go when the others do."""
    before, needed = native_threads(), len(os.sched_getaffinity(0)) + 1
    with waiting.SpinGuard(threads=6) as guard:
        busy(2)  # 6 threads and 2 others have a core each
        time.sleep(0.3)
        assert native_threads() <= before + 1
        assert guard.seconds == 0
        busy(3)
        # The guard, the thread that has the pool, and the pool's others.
        assert until(lambda: native_threads() >= before + 1 + needed)
        busy(0)
        assert until(lambda: native_threads() <= before + 1)
        assert 0 < guard.seconds < 20
    assert until(lambda: native_threads() <= before)


def test_variables_of_others_are_not_passed_on_and_those_that_change_speed_are_known() -> None:
    given = {
        **{"OMP_PLACES": "{0}", "OMP_PROC_BIND": "true", "OMP_THREAD_LIMIT": "1", "OMP_NUM_THREADS": "1"},
        **{"GOMP_CPU_AFFINITY": "0", "DMLC_ROLE": "worker", "RANK": "3", "MKL_NUM_THREADS": "1"},
        **{"DNNL_MAX_CPU_ISA": "SSE41", "MXNET_ENGINE_TYPE": "NaiveEngine", "LD_PRELOAD": "libjemalloc.so"},
        **{"HOME": "/home/me", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "MXNET_HOME": "/data"},
    }
    neutral = {name: given[name] for name in ("HOME", "PATH", "CUDA_VISIBLE_DEVICES", "MXNET_HOME")}
    speed = {name: given[name] for name in ("DNNL_MAX_CPU_ISA", "MXNET_ENGINE_TYPE", "LD_PRELOAD")}
    assert environment.without_decided(given) == {**neutral, **speed}
    assert environment.speed_variables(given) == speed


@pytest.mark.slow
def test_a_run_is_what_it_is_whatever_another_program_left_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POC_THREADS", "2")
    for name, given in {"DMLC_ROLE": "server", "OMP_NUM_THREADS": "7", "OMP_THREAD_LIMIT": "1"}.items():
        monkeypatch.setenv(name, given)
    monkeypatch.setenv("MXNET_ENGINE_TYPE", "NaiveEngine")
    record = executed(tmp_path, **GLUON, epochs=1)
    assert (record.outcome, record.threads) == (COMPLETED, 2)
    assert record.environment == {**environment.speed_variables(), "MXNET_ENGINE_TYPE": "NaiveEngine"}


@pytest.mark.slow
def test_a_run_in_another_environment_is_another_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_file(tmp_path / "mine.py", epochs=1)
    for value in ("1", "1", "2"):
        monkeypatch.setenv("MALLOC_ARENA_MAX", value)
        finish(recipe, tmp_path)
    known = [record.environment["MALLOC_ARENA_MAX"] for record in records(tmp_path)]
    assert known == ["1", "2"]
    assert build(*records(tmp_path)).setting.nunique() == 2
