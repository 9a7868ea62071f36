"""Compare a training step on the CPU with that of another checkout, or of a bare loop, step by step.

    .venv/bin/python -m tools.compare_steps FOLDER|bare [--framework pytorch] [--model NAME] [--batch N] [--pairs N]

Each side has a process, which does a step whenever it is its turn. So load from elsewhere, which changes from one
minute to the next, hits both, unlike with `poc ab`, whose runs take a minute each. Two processes of one commit may
differ by a fifth for as long as they live, so there are several pairs. The bare loop is what the framework's tutorials
show: its own SGD and its own cross-entropy, the batch already in memory as floats.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

HOME = Path(__file__).resolve().parents[1]
WARM_UP = 3
RATE, MOMENTUM, DECAY = 0.01, 0.9, 1e-4


def session(framework: str, model: str, pixels: np.ndarray, labels: np.ndarray) -> Callable[[], None]:
    """Return a function that does a step of the framework's session. `poc` is that of the current folder."""
    from poc import frameworks
    from poc.config import Recipe
    from poc.config.datasets import synthetic
    from poc.data import Batch
    from poc.host.hardware import detect
    from poc.plan import plan

    data = synthetic("cifar", size=28)
    recipe = Recipe(model=model, framework=framework, kind="cpu", data=data, batch_per_device=len(labels), lr=RATE)
    opened, batch = frameworks.open_session(plan("", recipe, detect())[0].run), Batch(pixels, labels)

    def step() -> None:
        opened.step(batch, RATE)
        opened.drain()

    return step


def bare_mxnet(model: str, pixels: np.ndarray, labels: np.ndarray) -> Callable[[], None]:
    """Return a function that does a step as Gluon's tutorials write it."""
    from poc.frameworks.mxnet import prepare

    prepare()
    import mxnet as mx
    from mxnet import autograd, gluon

    from poc.frameworks.mxnet.networks import can_fuse, registered

    net = registered(model, 10, fused=can_fuse())
    net.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
    net.hybridize(static_alloc=True, static_shape=True)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    options = {"learning_rate": RATE, "momentum": MOMENTUM, "wd": DECAY}
    trainer = gluon.Trainer(net.collect_params(), "sgd", options, kvstore=None)
    images, classes = mx.nd.array(pixels.astype(np.float32) - 120), mx.nd.array(labels)

    def step() -> None:
        with autograd.record():
            loss = loss_of(net(images), classes)
        loss.backward()
        trainer.step(len(labels))
        mx.nd.waitall()

    return step


def bare_pytorch(model: str, pixels: np.ndarray, labels: np.ndarray) -> Callable[[], None]:
    """Return a function that does a step as PyTorch's tutorials write it, channels-last."""
    import torch

    from poc.frameworks.pytorch.networks import registered

    net = registered(model, 10, zero_branches=False, seed=0).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    images = (torch.from_numpy(pixels).float() - 120).contiguous(memory_format=torch.channels_last)
    classes = torch.from_numpy(labels).long()

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), classes).backward()
        optimizer.step()

    return step


def work(side: str, framework: str, model: str, batch: int) -> None:
    """Do a step for each line of standard input, and print its seconds."""
    pixels = np.random.default_rng(0).integers(0, 256, (batch, 3, 28, 28), np.uint8)
    labels = (np.arange(batch) % 10).astype(np.float32)
    if side == "session":
        step = session(framework, model, pixels, labels)
    else:
        step = {"mxnet": bare_mxnet, "pytorch": bare_pytorch}[framework](model, pixels, labels)
    for _ in sys.stdin:
        start = time.perf_counter()
        step()
        print(time.perf_counter() - start, flush=True)


def seconds_of_a_step(worker: subprocess.Popen[str]) -> float:
    """Let the worker do a step."""
    assert worker.stdin
    assert worker.stdout
    worker.stdin.write("\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def step_times(commands: Sequence[tuple[Path, list[str]]], rounds: int, first: int) -> list[list[float]]:
    """Return the seconds of steps of the two sides, each in a fresh process; that of the side `first` starts first."""
    threads = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), "OMP_WAIT_POLICY": "PASSIVE"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = {}
    for index in (first, 1 - first):
        folder, words = commands[index]
        variables = {**os.environ, **threads, "PYTHONPATH": str(folder)}
        workers[index] = subprocess.Popen(words, cwd=folder, env=variables, **pipes)
    times: list[list[float]] = [[], []]
    for number in range(-WARM_UP, rounds):
        # The one that goes first may find warmer caches, so the order alternates.
        for index in (0, 1) if number % 2 else (1, 0):
            seconds = seconds_of_a_step(workers[index])
            if number >= 0:
                times[index].append(seconds)
    for worker in workers.values():
        worker.kill()
    return times


def main() -> None:
    """Print the ratio of neighbouring steps, this checkout over the other side, with its 95% interval over pairs."""
    parser = argparse.ArgumentParser(prog="python -m tools.compare_steps")
    parser.add_argument("other", metavar="FOLDER|bare")
    parser.add_argument("--framework", default="mxnet")
    parser.add_argument("--model", default="cifar_resnet20_v2")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=6, help="of processes")
    parser.add_argument("--rounds", type=int, default=25, help="of each pair")
    options = parser.parse_args()
    if options.pairs < 2:
        parser.error("--pairs: an interval needs at least 2")
    other_side = (HOME, "bare") if options.other == "bare" else (Path(options.other).resolve(), "session")
    settings = [options.framework, options.model, str(options.batch)]
    commands = [
        (folder, [sys.executable, "-W", "ignore", __file__, "work", side, *settings])
        for folder, side in ((HOME, "session"), other_side)
    ]
    times: list[list[float]] = [[], []]
    ratios = []
    for number in range(options.pairs):
        own, other = step_times(commands, options.rounds, number % 2)
        ratios.append(math.log(statistics.median(here / there for here, there in zip(own, other))))
        times = [times[0] + own, times[1] + other]
    half = stats.t.ppf(0.975, len(ratios) - 1) * statistics.stdev(ratios) / math.sqrt(len(ratios))
    low, ratio, high = (math.exp(statistics.mean(ratios) + side * half) for side in (-1, 0, 1))
    here, there = (1e3 * statistics.median(each) for each in times)
    print(
        f"{options.framework}, {options.model}, batch {options.batch}: {here:.1f} ms here, {there:.1f} ms there, ratio "
        f"{ratio:.3f} (95% interval {low:.3f} to {high:.3f}, n = {len(ratios)} pairs of {options.rounds} steps)"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        side, framework, model, batch = sys.argv[2:]
        work(side, framework, model, int(batch))
    else:
        main()
