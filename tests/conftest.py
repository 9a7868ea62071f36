from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from tabulate import tabulate

# Read once, when a test imports mxnet in this process.
os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))

TellFault = Callable[[str, int], None]
_survived: dict[str, int] = {}


@pytest.fixture
def tell_fault() -> TellFault:
    """Notes for the table at the end that a fault, made so many times, cost nothing; called when all was looked at."""

    def tell(fault: str, times: int) -> None:
        _survived[fault] = _survived.get(fault, 0) + times

    return tell


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table of tests/faults.sh: a fault whose test failed is not in it, but among the failures above."""
    if _survived:
        table = [(fault, times, times, 0) for fault, times in _survived.items()]
        terminalreporter.write_line(tabulate(table, headers=["fault", "times tried", "survived", "lost"]))
