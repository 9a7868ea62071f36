"""What becomes of a run whose processes are killed or stopped: real ones, over real sockets."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from poc import Synthetic
from poc.records.record import COMPLETED, FAILED, Record
from tests.builders import GLUON, MACHINE, TWO_WORKERS, course, end_of, executed, recipe_file
from tests.extras import needs_horovod
from tests.launch import DEADLINE_SECONDS, family, records, start, struck

pytestmark = pytest.mark.slow

MXNET = {**GLUON, "batch_per_device": 8, "cores_per_worker": 1 if MACHINE.cores > 1 else None}
FRAMEWORKS: dict[str, dict[str, Any]] = {
    "reference": {"data": Synthetic(train=320, validation=70)},
    "mxnet": MXNET,
    "horovod": {**MXNET, "kvstore": "horovod"},
}
KILLED, STOPPED = signal.SIGKILL, signal.SIGSTOP


def two_workers(folder: Path, framework: str, **fields: Any) -> Record:
    return executed(folder, **{**TWO_WORKERS, **FRAMEWORKS[framework], **fields})


@pytest.mark.parametrize(
    ("framework", "victim", "number"),
    [
        ("reference", "worker 1", KILLED),
        ("reference", "worker 1", STOPPED),
        ("reference", "hub", KILLED),
        ("reference", "hub", STOPPED),
        ("mxnet", "server 0", STOPPED),
        ("mxnet", "scheduler", KILLED),
        pytest.param("horovod", "worker 1", KILLED, marks=needs_horovod),
        pytest.param("horovod", "worker 1", STOPPED, marks=needs_horovod),
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


@pytest.mark.parametrize(
    ("framework", "victim", "epochs"), [("reference", "worker 1", 6), ("reference", "hub", 6), ("mxnet", "server 0", 8)]
)
def test_a_restart_reaches_what_an_undisturbed_run_does(
    framework: str, victim: str, epochs: int, tmp_path: Path
) -> None:
    undisturbed = two_workers(tmp_path / "undisturbed", framework, epochs=epochs)
    # After an evaluation: a checkpoint of the epoch before, at least, is there.
    with struck(victim, KILLED, workers=2, after='"evaluation", "epoch": 2'):
        restarted = two_workers(tmp_path / "restarted", framework, epochs=epochs, restarts=1)
    assert (restarted.outcome, restarted.reason) == (COMPLETED, "")
    (resumed,) = restarted.resumed
    assert resumed.step >= restarted.run.steps_per_epoch
    assert resumed.why.startswith(f"{victim}: ")
    assert psutil.Process().children(recursive=True) == []
    if framework == "reference":
        assert course(restarted) == course(undisturbed)
        np.testing.assert_equal(*(end_of(tmp_path / name, restarted.run, 1) for name in ("restarted", "undisturbed")))
    for name in ("accuracy", "loss"):
        reached, wanted = ([getattr(each, name) for each in made.evaluations] for made in (restarted, undisturbed))
        assert reached == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=str)
def test_nothing_is_left_running_whatever_ends_the_launcher(number: signal.Signals, tmp_path: Path) -> None:
    with start(recipe_file(tmp_path / "mine.py", **TWO_WORKERS, epochs=100_000), tmp_path) as launcher:
        members = list(family(launcher.pid, workers=2).values())
        assert len(members) == 3
        launcher.send_signal(number)
        launcher.communicate(timeout=DEADLINE_SECONDS)
    _, alive = psutil.wait_procs(members, timeout=DEADLINE_SECONDS)
    assert not alive
    if number == signal.SIGINT:
        (record,) = records(tmp_path)
        assert (record.outcome, record.reason) == (FAILED, "interrupted")
        assert record.windows
