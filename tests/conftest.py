from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tabulate import tabulate

import poc  # noqa: F401  # before a test's own import of cv2, which reads poc's limit on the size of images only then

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
# Read once, when a test imports a framework, here or in a process that it starts: the cores are shared by the workers
# of this suite and by whatever else runs here, so a thread that has to wait gives its core away.
os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // WORKERS)))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Of runs in processes of their own: what they compute must not depend on what else runs here.
os.environ.setdefault("POC_THREADS", os.environ["OMP_NUM_THREADS"])
# Before poc.frameworks is imported, here and in every process that a test starts: there is a framework for tests, too.
os.environ["POC_FRAMEWORKS"] = str(Path(__file__).parent / "frameworks")
# How long an example takes depends on what else runs here.
settings.register_profile("here", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("here")


_kept = 0
"""Bytes of memory that this process held when it had given some back."""


def give_memory_back() -> None:
    """To the machine, which the C library would keep for this process: networks of MXNet refer to themselves."""
    global _kept
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    _kept = resident()


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.fixture(autouse=True)
def memory_is_given_back() -> Iterator[None]:
    yield
    # Not after every test: it takes a tenth of a second.
    if resident() - _kept > 16 << 20:
        give_memory_back()


@pytest.fixture
def pytorch_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are made as if PyTorch were installed."""
    monkeypatch.setattr("poc.frameworks.pytorch.versions", lambda name: {"torch": "2.13.0", "torchvision": "0.28.0"})


_made: Counter[str] = Counter()
_survived: Counter[str] = Counter()


@contextlib.contextmanager
def survives(fault: str, times: int = 1) -> Iterator[None]:
    """Counts for the table at the end: a fault is made so many times; where the block ends well nothing was lost."""
    _made[fault] += times
    yield
    _survived[fault] += times


@contextlib.contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """In the block no file of this process grows beyond `size` bytes: what a full disk is to a program that writes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def pytest_sessionfinish(session: Any) -> None:
    if told := getattr(session.config, "workeroutput", None):  # of a worker, to its controller
        told["faults"] = [dict(_made), dict(_survived)]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for counted, told in zip((_made, _survived), getattr(node, "workeroutput", {}).get("faults", ())):
        counted.update(told)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _made:
        rows = [(fault, tried, _survived[fault], tried - _survived[fault]) for fault, tried in _made.items()]
        terminalreporter.write_line(tabulate(rows, headers=["fault", "times tried", "survived", "lost"]))
