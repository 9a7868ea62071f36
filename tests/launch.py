"""Start the command line and the processes of runs, wait for what they write, and send them signals."""

import atexit
import contextlib
import functools
import io
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
from unittest import mock

import psutil

from poc.cli import main
from poc.host import processes
from poc.records import journal
from poc.records.record import Record

T = TypeVar("T")
HOME = Path(__file__).resolve().parent.parent
DEADLINE_SECONDS = 600.0
NEVER = 300.0  # seconds: what has not happened by then never will
HELD_AT = 45  # before this step a run of the reference framework waits for the fault that a test injects
NO_PAGES = "tests.pageless_poc"  # is `poc`, but its runs write no pages, which takes seconds
# Before a command: a process that was started in the background ignores some signals, and so would its children. Not
# done by a preexec_fn, which hangs now and then if a framework has threads.
HEEDFUL = ("env", "--default-signal=INT,HUP")


@functools.cache
def _folder() -> str:
    """Return a folder, until this process ends, for files that take seconds to make and are always the same.

    It is made when it is needed: the processes that tests start import this module, too, and some of them are killed.
    """
    folder = tempfile.mkdtemp(prefix="tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process of Python's, with these environment variables added."""
    command, variables = [sys.executable, "-W", "ignore", "-c", code], {**os.environ, **environment}
    return subprocess.run(command, cwd=HOME, env=variables, capture_output=True, text=True, timeout=DEADLINE_SECONDS)


def git(checkout: Path, *words: str) -> str:
    """Run git in `checkout` with an author; return its output."""
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(checkout), *identity, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def nameless_user(folder: Path) -> list[str]:
    """Return the start of a command that root runs as a user without a name, who may write in `folder`."""
    for path in (folder, *folder.parents):
        if path.owner() == "root" and path.parent != Path("/"):
            path.chmod(0o777)
    # Root's capability to read, since Python may be in root's home, but not to write there.
    capabilities = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    return ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", *capabilities]


def eventually(look: Callable[[], T], unless: Callable[[], bool] = lambda: False) -> T:
    """Return the first true value of `look`; fail if `unless` is true before, or after minutes."""
    end = time.monotonic() + DEADLINE_SECONDS
    while True:
        began = time.thread_time()
        if value := look():
            return value
        assert time.monotonic() < end, "it never happened"
        assert not unless() or look(), "it did not happen before the end"
        # The processes need the core: looking uses a small part of one.
        time.sleep(0.005 + 5 * (time.thread_time() - began))


def start(
    recipe: Path, folder: Path, *, command: str = "run", module: str = NO_PAGES, **options: Any
) -> subprocess.Popen[str]:
    """Start `poc run`, or another `command`, with results and checkpoints in `folder`; "poc" as `module` writes pages.

    `options` are those of Popen; `environment` adds variables to this process's own, or removes them by None.
    """
    words = [*HEEDFUL, *options.pop("prefix", ()), sys.executable, "-W", "ignore", "-m", module]
    words += _arguments(recipe, folder, command)
    folders = {"POC_CACHE": f"{_folder()}/cache", "PYTHONPATH": str(HOME), "MPLCONFIGDIR": _folder()}
    variables = {**os.environ, **folders, **options.pop("environment", {})}
    environment = {name: value for name, value in variables.items() if value is not None}
    options = {"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
    return subprocess.Popen(words, env=environment, text=True, **options)


def _arguments(recipe: Path, folder: Path, command: str = "run") -> list[str]:
    words = [command, str(recipe), "--results", str(folder / "results")]
    if command == "run":
        words += ["--machine", "here", "--verbose", "--checkpoints", str(folder / "checkpoints")]
    return words


def finish(recipe: Path, folder: Path, *, status: int = 0, **options: Any) -> str:
    """Run `start` to its end; return its output, and fail if its exit code is another one."""
    with start(recipe, folder, **options) as process:
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == status, output
    return output


def run_here(recipe: Path, folder: Path, *options: str) -> str:
    """Do in this process what `finish` does, without pages, and fail as it does; workers are processes as always.

    `options` are those of `poc run`. Return what the command, but no worker, says.
    """
    environment = mock.patch.dict(os.environ, POC_CACHE=f"{_folder()}/cache")
    pageless = mock.patch("poc.cli.run.write_report")
    with environment, pageless, contextlib.redirect_stderr(io.StringIO()) as said:
        status = main([*_arguments(recipe, folder), *options])
    assert status == 0, said.getvalue()
    return said.getvalue()


def records(folder: Path) -> list[Record]:
    """Return the records of the runs that were done in `folder`."""
    return journal.read(journal.paths(folder / "results"))


def family(pid: int | None, workers: int, after: str = "", over: Callable[[], bool] = lambda: False) -> Any:
    """Return the processes that `pid` leads, by name, once each worker wrote a window event after the text `after`."""

    def look() -> dict[str, psutil.Process] | None:
        members, ready = {}, 0
        for child in psutil.Process(pid).children(recursive=True):
            # A process that asks git for the commit can have ended.
            with contextlib.suppress(psutil.Error, FileNotFoundError):
                events = [Path(file.path) for file in child.open_files() if file.path.endswith(".jsonl")]
                members[_name(child, events)] = child
                text = events[0].read_text() if events else ""
                ready += after in text and '"window"' in text[text.index(after) :]
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


def killed_at_40(recipe: Path, folder: Path) -> None:
    """Start a run of the reference framework, and kill it once the checkpoint after its step 40 is there."""
    hold = folder / "hold"
    # Held before the checkpoint after the next epoch, which a busy machine might write in the time until the kill.
    with held(hold, 42), start(recipe, folder, environment={"POC_HOLD": str(hold)}) as process:
        family(process.pid, 1)
        eventually(lambda: list(folder.glob("checkpoints/*/*-40.npz")), unless=lambda: process.poll() is not None)
        process.kill()
        process.communicate()


@contextlib.contextmanager
def struck(victim: str, number: signal.Signals, *, workers: int = 1, after: str = "") -> Iterator[None]:
    """Send the signal to a process of the run in the block, once all workers wrote a window event after `after`.

    A run of the reference framework with more than `HELD_AT` steps waits for it. After SIGSTOP the clock of this
    process runs hours ahead, so that its patience ends.
    """
    over = threading.Event()
    hold = Path(tempfile.mkdtemp(dir=_folder())) / "hold"
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
            processes._CHECK_SECONDS = 3600.0  # time beyond that does not count
            clock.ahead += 3600.0

    held_by = mock.patch.dict(os.environ, POC_HOLD=str(hold))
    patched = mock.patch.multiple(processes, time=clock, _CHECK_SECONDS=0.1, _GRACE_SECONDS=1.0)
    with held_by, patched, ThreadPoolExecutor(1) as pool:
        hold.write_text(str(HELD_AT))
        blow = pool.submit(strike)
        try:
            yield
        finally:
            over.set()
        blow.result()
