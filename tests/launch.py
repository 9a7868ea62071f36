"""The command line and the processes of runs: started, waited for by what they write, and struck."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, TypeVar

import psutil
import pytest

from poc.host import processes
from poc.records import journal
from poc.records.record import Record

T = TypeVar("T")
HOME = Path(__file__).resolve().parent.parent
DEADLINE_SECONDS = 600.0
HELD_AT = 45
"""Before this step a run of the reference framework waits for the blow that a test gives it."""
HEEDFUL = ("env", "--default-signal=INT,HUP")
"""Before a command: what is started in the background ignores some signals, and so would all that it starts. Not done
by a preexec_fn, which hangs now and then where a framework has threads."""
_FOLDER = tempfile.mkdtemp(prefix="tests-")  # what takes seconds and is always the same: made once
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a process of Python's makes of `code`, beside this one's variables and others."""
    command, variables = [sys.executable, "-W", "ignore", "-c", code], {**os.environ, **environment}
    return subprocess.run(command, cwd=HOME, env=variables, capture_output=True, text=True, timeout=DEADLINE_SECONDS)


def supported(version: str) -> Path:
    """A Python of that version, which need not be the one that runs this; skips the test where there is none."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = shutil.which(f"python{version}")
    for python in (*sorted(root.glob(f"versions/{version}.*/bin/python")), *([Path(on_path)] if on_path else [])):
        asked = [python, "-c", "import ensurepip, venv"]
        if subprocess.run(asked, stderr=subprocess.DEVNULL).returncode == 0:
            return python
    pytest.skip(f"needs Python {version}: pyenv install {version}")


def eventually(look: Callable[[], T], unless: Callable[[], bool] = lambda: False) -> T:
    """What `look` gives as soon as that is true; fails where `unless` comes first, or after minutes."""
    end = time.monotonic() + DEADLINE_SECONDS
    while True:
        began = time.thread_time()
        if seen := look():
            return seen
        assert time.monotonic() < end, "it never came to pass"
        assert not unless() or look(), "it did not come to pass before the end"
        # What is waited for needs the core: looking takes a small part of one.
        time.sleep(0.005 + 5 * (time.thread_time() - began))


def start(recipe: Path, folder: Path, *, command: str = "run", **how: Any) -> subprocess.Popen[str]:
    """`poc run` on `recipe`, or another `command`, with its results and checkpoints in `folder`; `how`: of Popen, whose
    `environment` is added to this process's own, or taken out of it by None."""
    words = [*HEEDFUL, *how.pop("prefix", ()), sys.executable, "-W", "ignore", "-m", "poc"]
    words += [command, str(recipe), "--results", str(folder / "results")]
    if command == "run":
        words += ["--machine", "here", "--verbose", "--checkpoints", str(folder / "checkpoints")]
    places = {"POC_CACHE": f"{_FOLDER}/cache", "PYTHONPATH": str(HOME), "MPLCONFIGDIR": _FOLDER}
    variables = {**os.environ, **places, **how.pop("environment", {})}
    environment = {name: value for name, value in variables.items() if value is not None}
    how = {"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **how}
    return subprocess.Popen(words, env=environment, text=True, **how)


def finish(recipe: Path, folder: Path, *, status: int = 0, **how: Any) -> str:
    """What it said, once it has ended, which it has to with this exit code."""
    with start(recipe, folder, **how) as process:
        said, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == status, said
    return said


def records(folder: Path) -> list[Record]:
    """The records of the runs that were done in `folder`."""
    return journal.read(journal.paths(folder / "results"))


def family(pid: int | None, workers: int, after: str = "", over: Callable[[], bool] = lambda: False) -> Any:
    """The processes of a run that process `pid` leads, by name, once each worker told of a window after `after`."""

    def look() -> dict[str, psutil.Process] | None:
        members, ready = {}, 0
        for child in psutil.Process(pid).children(recursive=True):
            # Some, which only say which commit this is, are gone as soon as they are seen.
            with contextlib.suppress(psutil.Error, FileNotFoundError):
                events = [Path(file.path) for file in child.open_files() if file.path.endswith(".jsonl")]
                members[_name(child, events)] = child
                told = events[0].read_text() if events else ""
                ready += after in told and '"window"' in told[told.index(after) :]
        return members if ready == workers else None

    return eventually(look, over)


def _name(process: psutil.Process, events: list[Path]) -> str:
    if events:
        return events[0].stem.replace("worker", "worker ")
    command = process.cmdline() or ["ended"]
    role = process.environ().get("DMLC_ROLE") or command[-1].rpartition(".")[2]
    return "server 0" if role == "server" else role


@contextlib.contextmanager
def held(hold: Path, step: int = HELD_AT) -> Iterator[Callable[[int], object]]:
    """Stop runs of the reference framework at `step` inside the block, if their POC_HOLD names the file `hold`.

    The yielded function sets a later step.
    """
    hold.write_text(str(step))
    try:
        yield lambda later: hold.write_text(str(later))
    finally:
        hold.unlink(missing_ok=True)


@contextlib.contextmanager
def struck(victim: str, number: signal.Signals, *, workers: int = 1, after: str = "") -> Iterator[None]:
    """Sends `number` to a process of the run in the block, once all workers told of a window after the words `after`.

    A run of the reference framework waits for that, if it has more than `HELD_AT` steps. After SIGSTOP hours pass for
    this process, so that its patience has an end.
    """
    over = threading.Event()
    hold = Path(tempfile.mkdtemp(dir=_FOLDER)) / "hold"
    # A clock that can be put forward, so that the parent of the run need not wait out its patience.
    clock = SimpleNamespace(sleep=time.sleep, ahead=0.0, monotonic=lambda: time.monotonic() + clock.ahead)

    def strike() -> None:
        try:
            family(None, workers, after, over.is_set)[victim].send_signal(number)
        except BaseException:  # or the run would never end
            for child in psutil.Process().children():
                child.kill()
            raise
        finally:
            hold.unlink()
        while number == signal.SIGSTOP and not over.wait(1.0):
            clock.ahead += 3600.0

    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(1) as pool:
        patched.setattr(processes, "time", clock)
        patched.setenv("POC_HOLD", str(hold))
        hold.write_text(str(HELD_AT))
        blow = pool.submit(strike)
        try:
            yield
        finally:
            over.set()
        blow.result()
