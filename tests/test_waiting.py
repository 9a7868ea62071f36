"""Effects of other processes and of the environment on a run: threads, spinning, variables that change speed."""

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from poc.host import environment, hardware, waiting
from poc.records.record import COMPLETED
from poc.values import UserError
from tests.builders import GLUON, executed
from tests.launch import eventually

CORES = 8


@pytest.mark.parametrize(
    ("cores", "others", "moment", "free"),
    [
        *((8, 0, 8, 8), (8, 0.2, 0.2, 8), (8, 1, 1, 7), (8, 2.1, 2.1, 6), (8, 8, 8, 1), (8, 30, 30, 1)),
        *((2, 6, 6, 2), (2, 7, 7, 1), (1, 8, 8, 1)),
        (8, 0, 4, 8),  # a moment's work costs no threads
    ],
)
def test_a_run_has_the_cores_that_others_leave_free(
    monkeypatch: pytest.MonkeyPatch, cores: int, others: float, moment: float, free: int
) -> None:
    """Others use `moment` cores at first and `others` later; sleeping takes 1.5 times as long as asked for."""
    clock = SimpleNamespace(now=0.0, busy=0.0, monotonic=lambda: clock.now)

    def sleep(seconds: float) -> None:
        clock.busy += 1.5 * seconds * (others if clock.now else moment)
        clock.now += 1.5 * seconds

    clock.sleep = sleep
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(hardware, "core_times", lambda: (CORES, clock.busy, 0.0))
    assert waiting.free_cores(cores) == free


def test_threads_may_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POC_THREADS", raising=False)
    assert waiting.chosen_threads() is None
    monkeypatch.setenv("POC_THREADS", "3")
    assert waiting.chosen_threads() == 3
    for wrong in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("POC_THREADS", wrong)
        with pytest.raises(UserError, match="POC_THREADS"):
            waiting.chosen_threads()


def test_spinning_is_short_while_others_need_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard gives the real library more threads than there are cores, and ends them when the others end."""
    ctypes.CDLL("libgomp.so.1")
    clock = SimpleNamespace(now=0.0, busy=0.0, others=0, process_time=lambda: 2 * clock.now)

    def monotonic() -> float:
        """Let a second pass, in which this process keeps two cores busy."""
        clock.now += 1
        clock.busy += 2 + clock.others
        return float(clock.now)

    def native_threads() -> int:
        return len(os.listdir("/proc/self/task"))

    clock.monotonic = monotonic
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(hardware, "core_times", lambda: (CORES, clock.busy, 0.0))
    monkeypatch.setattr(waiting, "_CHECK_SECONDS", 0.05)
    before, pool = native_threads(), len(os.sched_getaffinity(0)) + 1
    clock.others = 2  # 6 threads and 2 others have a core each
    with waiting.spin_guard(threads=6):
        eventually(lambda: clock.now > 4)
        assert native_threads() <= before + 1
        clock.others = 3
        eventually(lambda: native_threads() >= before + 1 + pool)  # the guard's own thread and the pool
        clock.others = 0
        eventually(lambda: native_threads() <= before + 1)
    eventually(lambda: native_threads() <= before)


def test_variables_of_others_are_not_inherited_and_those_that_change_speed_are_recorded() -> None:
    removed = dict.fromkeys(("OMP_PLACES", "OMP_NUM_THREADS", "GOMP_CPU_AFFINITY", "DMLC_ROLE", "RANK"), "0")
    speed = {"DNNL_MAX_CPU_ISA": "SSE41", "LD_PRELOAD": "libjemalloc.so", "MXNET_ENGINE_TYPE": "NaiveEngine"}
    neutral = dict.fromkeys(("HOME", "PATH", "CUDA_VISIBLE_DEVICES", "MXNET_HOME"), "/home")
    variables = {**neutral, **removed, **speed, "MKL_NUM_THREADS": "1"}
    assert environment.inherited_variables(variables) == {**neutral, **speed}
    assert environment.speed_variables(variables) == speed


@pytest.mark.slow
def test_a_run_ignores_what_another_program_left_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POC_THREADS", "2")
    for name, setting in {"DMLC_ROLE": "server", "OMP_NUM_THREADS": "7", "OMP_THREAD_LIMIT": "1"}.items():
        monkeypatch.setenv(name, setting)
    monkeypatch.setenv("MXNET_ENGINE_TYPE", "NaiveEngine")
    record = executed(tmp_path, **GLUON, epochs=1)
    assert (record.outcome, record.threads) == (COMPLETED, 2)
    assert record.environment == {**environment.speed_variables(), "MXNET_ENGINE_TYPE": "NaiveEngine"}
