"""What becomes of a run whose processes are killed or stopped: real ones, over real sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from poc.train.run import Place, execute

from poc import Recipe, Synthetic
from poc.machine import hardware
from poc.plan import plan
from tests.conftest import heed_signals

pytestmark = pytest.mark.slow

HOME = Path(__file__).parent.parent
MACHINE = hardware.Hardware(cpu="Test CPU", cores=len(os.sched_getaffinity(0)), memory_bytes=2**34, cpu_flops=2e11)
RECIPE = """
from poc import Recipe, Synthetic
recipe = Recipe(
    model="cifar_resnet8_v2", data=Synthetic(size=16, crop=16, train=640, validation=70), kind="cpu", devices=2,
    workers=2, cores_per_worker=1, batch_per_device=8, lr=0.01, epochs=1000, exchange="dist_sync", quick={},
)
"""


def two_workers(folder: Path, epochs: int, *, exchange: str = "dist_sync", restarts: int = 0) -> Any:
    recipe = Recipe(
        model="cifar_resnet8_v2",
        data=Synthetic(size=16, crop=16, train=640, validation=70),
        kind="cpu",
        devices=2,
        workers=2,
        cores_per_worker=1 if MACHINE.cores > 1 else None,
        batch_per_device=8,
        lr=0.01,
        epochs=epochs,
        exchange=exchange,
        restarts=restarts,
    )
    (planned,) = plan("test", recipe, MACHINE)
    return execute(planned.run, Place(source=None, cache=folder, patience=4.0), MACHINE, "here")


def family(pid: int | None = None, *, after: str = "") -> dict[str, psutil.Process]:
    """The processes of a run by name, once both workers have finished a window and told of what is `after` it."""
    for _ in range(1200):
        found, windows = {}, 0
        for child in psutil.Process(pid).children(recursive=True):
            try:
                role = child.environ().get("DMLC_ROLE", "")
                files = [Path(file.path) for file in child.open_files() if file.path.endswith(".jsonl")]
            except psutil.Error:
                continue
            found[f"worker {files[0].stem[-1]}" if files else "server 0" if role == "server" else role] = child
            told = files[0].read_text() if files else ""
            windows += '"window"' in told and after in told
        if windows == 2:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no run came to pass: {found}")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("victim", ["worker 1", "server 0", "scheduler"])
def test_a_lost_process_ends_the_run_and_is_named(victim: str, number: signal.Signals, tmp_path: Path) -> None:
    # Nobody misses a stopped scheduler before the end.
    epochs = 4 if (victim, number) == ("scheduler", signal.SIGSTOP) else 1000
    striker = threading.Thread(target=lambda: family()[victim].send_signal(number))
    striker.start()
    record = two_workers(tmp_path, epochs)
    striker.join()
    assert record["outcome"] == "failed"
    assert record["reason"].startswith(f"{victim}: ")
    assert ("signal 9" if number == signal.SIGKILL else "SIGSTOP") in record["reason"]
    assert record["windows"]
    assert psutil.Process().children(recursive=True) == []


@pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_lost_worker_of_horovod_ends_the_run_and_is_named(number: signal.Signals, tmp_path: Path) -> None:
    striker = threading.Thread(target=lambda: family()["worker 1"].send_signal(number))
    striker.start()
    record = two_workers(tmp_path, 1000, exchange="horovod")
    striker.join()
    assert record["outcome"] == "failed"
    assert record["reason"].startswith("worker 1: ")
    assert ("signal 9" if number == signal.SIGKILL else "SIGSTOP") in record["reason"]
    assert psutil.Process().children(recursive=True) == []


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return two_workers(tmp_path_factory.mktemp("undisturbed"), 4)


@pytest.mark.parametrize("victim", ["worker 1", "server 0", "scheduler"])
def test_a_restart_reaches_what_an_undisturbed_run_does(victim: str, undisturbed: Any, tmp_path: Path) -> None:
    # After its second evaluation: the checkpoint of the first epoch, at least, is there.
    striker = threading.Thread(target=lambda: family(after='"epoch": 3').get(victim).send_signal(signal.SIGKILL))
    striker.start()
    restarted = two_workers(tmp_path / "restarted", 4, restarts=1)
    striker.join()
    assert (restarted["outcome"], restarted["reason"]) == ("completed", "")
    (resumed,) = restarted["resumed"]
    assert resumed["step"] in (80, 120)
    assert resumed["why"].startswith(f"{victim}: ")
    for name in ("accuracy", "loss"):
        reached = [one[name] for one in restarted["evaluations"]]
        assert reached == pytest.approx([one[name] for one in undisturbed["evaluations"]], abs=1e-6)
    assert psutil.Process().children(recursive=True) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_nothing_is_left_running_whatever_ends_the_launcher(number: signal.Signals, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE)
    command = [sys.executable, "-m", "poc", "run", str(recipe), "--results", str(tmp_path / "results")]
    environment = {**os.environ, "POC_CACHE": str(tmp_path / "cache")}
    piped: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True, "preexec_fn": heed_signals}
    with subprocess.Popen(command, cwd=HOME, env=environment, **piped) as launcher:
        members = list(family(launcher.pid).values())
        assert len(members) == 4
        launcher.send_signal(number)
        launcher.communicate(timeout=100)
    _, alive = psutil.wait_procs(members, timeout=30)
    assert not alive
    if number == signal.SIGINT:
        assert '"reason": "interrupted"' in (tmp_path / "results" / "journal.jsonl").read_text()
