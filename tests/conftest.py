from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tabulate import tabulate

import poc  # noqa: F401  # before a test's own import of cv2, which reads poc's limit on the size of images only then

# Read once, when a test imports mxnet in this process.
os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
# Before poc.engines is imported, here and in every process that a test starts: there is an engine for tests, too.
os.environ["POC_ENGINES"] = str(Path(__file__).parent / "engines")


def heed_signals() -> None:
    """For Popen: what is started in the background ignores some, and so would all that it starts."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Faults:
    """Counts for the table at the end: each kind of fault, how often it was made, and how often nothing was lost."""

    def __init__(self) -> None:
        self._made: Counter[str] = Counter()
        self._survived: Counter[str] = Counter()

    def made(self, fault: str, times: int = 1) -> None:
        self._made[fault] += times

    def survived(self, fault: str, times: int = 1) -> None:
        """Called when all was looked at."""
        self._survived[fault] += times

    def table(self) -> str:
        """Empty where no fault was made."""
        rows = [(fault, n, self._survived[fault], n - self._survived[fault]) for fault, n in self._made.items()]
        return tabulate(rows, headers=["fault", "times tried", "survived", "lost"]) if rows else ""


_faults = Faults()


@pytest.fixture
def faults() -> Faults:
    return _faults


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if table := _faults.table():
        terminalreporter.write_line(table)
