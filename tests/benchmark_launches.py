"""What a step costs the one thread that issues it for all devices of a process, in MXNet, which computes in others.

    .venv/bin/python -m tests.benchmark_launches [STEPS]

ResNet-50 (153 parameters) at batch 1 on 1 and on 8 contexts of the CPU: the main thread's CPU time, medians. PyTorch
has a process for each device, and on a CPU computes in the thread that issues.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from tabulate import tabulate

from poc import Muon, engines
from tests.engine_worker import batches, planned


def issuing(optimizer: Any, devices: int, steps: int) -> tuple[float, float]:
    """Milliseconds a step for forward and backward passes, and for exchange and update."""
    fields = {"model": "cifar_resnet50_v2", "batch_per_device": 1, "optimizer": optimizer, "devices": devices}
    run = planned("gluon", **fields).run
    session: Any = engines.open_session(run)
    (batch,) = batches(run, steps=1)
    taken: list[tuple[float, float]] = []
    for _ in range(3 + steps):
        start = time.thread_time()
        session._backward(batch, exchange=True, norms=False)
        middle = time.thread_time()
        session._exchange.step(run.learning_rate)
        taken.append((1e3 * (middle - start), 1e3 * (time.thread_time() - middle)))
        session.drain()
    passes, rest = zip(*taken[3:])
    return statistics.median(passes), statistics.median(rest)


def main() -> None:
    """Prints the table."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    rows = [
        (name, devices, *issuing(optimizer, devices, steps))
        for name, optimizer in (("SGD", "sgd"), ("Nesterov", "nesterov"), ("LARS", "lars"), ("Muon", Muon(rate=0.02)))
        for devices in (1, 8)
    ]
    headers = ("optimizer", "contexts", "forward, backward (ms)", "exchange, update (ms)")
    print(tabulate(rows, headers, floatfmt=".2f"))


if __name__ == "__main__":
    main()
