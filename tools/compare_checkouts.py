"""Compare the time of a training step on the CPU in this checkout and in another one, step by step.

    .venv/bin/python -m tools.compare_checkouts FOLDER [--framework pytorch] [--model NAME] [--batch N] [--rounds N]

Each checkout has a process for the whole time, which does a step whenever it is its turn. So load from elsewhere, which
changes from one minute to the next, hits both, unlike with `poc ab`, whose runs take a minute each.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HOME = Path(__file__).resolve().parents[1]
WARM_UP = 3


def work(framework: str, model: str, batch_size: int) -> None:
    """Do a step for each line of standard input, and print its seconds. `poc` is that of the current folder."""
    from poc import frameworks
    from poc.config import Recipe
    from poc.config.datasets import synthetic
    from poc.data import Batch
    from poc.host.hardware import detect
    from poc.plan import plan

    data = synthetic("cifar", size=28)
    recipe = Recipe(model=model, framework=framework, kind="cpu", data=data, batch_per_device=batch_size, lr=0.01)
    session = frameworks.open_session(plan("", recipe, detect())[0].run)
    pixels = np.random.default_rng(0).integers(0, 256, (batch_size, 3, 28, 28), np.uint8)
    batch = Batch(pixels, (np.arange(batch_size) % 10).astype(np.float32))
    for _ in sys.stdin:
        start = time.perf_counter()
        session.step(batch, 0.01)
        session.drain()
        print(time.perf_counter() - start, flush=True)


def seconds_of_a_step(worker: subprocess.Popen[str]) -> float:
    """Let the worker do a step."""
    assert worker.stdin
    assert worker.stdout
    worker.stdin.write("\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def main() -> None:
    """Print the median of the ratios of neighbouring steps, this checkout over the other one, with its 95% interval."""
    parser = argparse.ArgumentParser(prog="python -m tools.compare_checkouts")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--framework", default="mxnet")
    parser.add_argument("--model", default="cifar_resnet20_v2")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=150)
    options = parser.parse_args()
    words = [sys.executable, "-W", "ignore", __file__, "work", options.framework, options.model, str(options.batch)]
    threads = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), "OMP_WAIT_POLICY": "PASSIVE"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [
        subprocess.Popen(words, cwd=folder, env={**os.environ, **threads, "PYTHONPATH": str(folder)}, **pipes)
        for folder in (HOME, options.folder.resolve())
    ]
    times: list[list[float]] = [[], []]
    for number in range(-WARM_UP, options.rounds):
        # The one that goes first may find warmer caches, so the order alternates.
        for index in (0, 1) if number % 2 else (1, 0):
            seconds = seconds_of_a_step(workers[index])
            if number >= 0:
                times[index].append(seconds)
    for worker in workers:
        worker.kill()
    ratios = [own / other for own, other in zip(*times)]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(1000))
    own, other = (1e3 * statistics.median(each) for each in times)
    print(
        f"{options.framework}, {options.model}, batch {options.batch}: {own:.1f} ms here, {other:.1f} ms there, ratio "
        f"{statistics.median(ratios):.3f} (95% interval {medians[25]:.3f} to {medians[974]:.3f}, n = {len(ratios)})"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
