"""What a step costs the threads that issue it, one for each device of a process, in MXNet, which computes in others.

    .venv/bin/python -m tests.benchmark_launches [STEPS]

ResNet-50 (153 parameters) at batch 1 on 1 and on 8 contexts of the CPU: the CPU time of the main thread, and of all
that issue (without MXNet's own), medians. PyTorch has a process for each device, and on a CPU computes in the thread
that issues.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from typing import Any

from tabulate import tabulate

from poc import Muon, engines
from tests.engine_worker import batches, planned


def issuing(optimizer: Any, devices: int, steps: int) -> tuple[float, float, float, float]:
    """Milliseconds of CPU time a step: the main thread's for the passes, for exchange and update, for both; of all."""
    fields = {"model": "cifar_resnet50_v2", "batch_per_device": 1, "optimizer": optimizer, "devices": devices}
    run = planned("gluon", **fields).run
    session: Any = engines.open_session(run)
    (batch,) = batches(run, steps=1)
    taken: list[tuple[float, float, float, float]] = []
    for _ in range(3 + steps):
        others = _of_other_threads()
        start = time.thread_time()
        session._backward(batch, exchange=True, norms=False)
        middle = time.thread_time()
        session._exchange.step(run.learning_rate)
        end = time.thread_time()
        whole = end - start
        times = (middle - start, end - middle, whole, whole + _of_other_threads() - others)
        taken.append(tuple(1e3 * seconds for seconds in times))
        session.drain()
    passes, rest, main, issued = map(statistics.median, zip(*taken[3:]))
    return passes, rest, main, issued


def _of_other_threads() -> float:
    """CPU seconds so far of Python's threads but the main one."""
    clocks = [time.pthread_getcpuclockid(each.ident) for each in threading.enumerate()[1:] if each.ident]
    return sum(map(time.clock_gettime, clocks))


def main() -> None:
    """Prints the table."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    rows = [
        (name, devices, *issuing(optimizer, devices, steps))
        for name, optimizer in (("SGD", "sgd"), ("Nesterov", "nesterov"), ("LARS", "lars"), ("Muon", Muon(rate=0.02)))
        for devices in (1, 8)
    ]
    headers = ("optimizer", "contexts", "passes (ms)", "exchange, update", "main thread", "all that issue")
    print(tabulate(rows, headers, floatfmt=".2f"))


if __name__ == "__main__":
    main()
