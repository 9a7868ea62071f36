"""Compare each framework's session with a bare training loop: ResNet-50, one fixed batch of 128, on the CPU.

    .venv/bin/python -m tools.benchmark_frameworks [ROUNDS]

Each framework has a process, in which windows of the session and of the loop are interleaved. The bare loop is what the
framework's tutorials show: the network, its own SGD and its own cross-entropy, the batch already in memory as floats.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from poc import frameworks
from poc.config import Recipe
from poc.config.datasets import synthetic
from poc.data import Batch
from poc.host.hardware import detect
from poc.plan import plan

HOME = Path(__file__).resolve().parents[1]
MODEL = "cifar_resnet50_v2"
STEPS = 4
BATCH, RATE, MOMENTUM, DECAY = 128, 0.01, 0.9, 1e-4


def bare_gluon(batch: Batch) -> Callable[[], None]:
    """Return a function that does `STEPS` steps of a loop as Gluon's tutorials write it."""
    import mxnet as mx
    from mxnet import autograd, gluon

    from poc.frameworks.mxnet.networks import can_fuse, registered

    net = registered(MODEL, 10, fused=can_fuse())
    net.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
    net.hybridize(static_alloc=True, static_shape=True)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    options = {"learning_rate": RATE, "momentum": MOMENTUM, "wd": DECAY}
    trainer = gluon.Trainer(net.collect_params(), "sgd", options, kvstore=None)
    images, labels = mx.nd.array(np.array(batch.images, np.float32) - 120), mx.nd.array(batch.labels)

    def steps() -> None:
        for _ in range(STEPS):
            with autograd.record():
                loss = loss_of(net(images), labels)
            loss.backward()
            trainer.step(BATCH)
        mx.nd.waitall()

    return steps


def bare_pytorch(batch: Batch) -> Callable[[], None]:
    """Return a function that does `STEPS` steps of a loop as PyTorch's tutorials write it, channels-last."""
    import torch

    from poc.frameworks.pytorch.networks import registered

    net = registered(MODEL, 10, zero_branches=False, seed=0).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    images = (torch.from_numpy(np.array(batch.images)).float() - 120).contiguous(memory_format=torch.channels_last)
    labels = torch.from_numpy(batch.labels).long()

    def steps() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()

    return steps


def compare(framework: str, rounds: int) -> dict[str, Any]:
    """Measure both; return medians in ms per step and the ratio of neighbouring windows. Round 0 is warm-up."""
    data = synthetic("cifar", size=28)
    recipe = Recipe(MODEL, framework=framework, kind="cpu", data=data, batch_per_device=BATCH, lr=RATE)
    session = frameworks.load(framework).open_session(plan("", recipe, detect())[0].run)
    pixels = np.random.default_rng(0).integers(0, 256, (BATCH, 3, 28, 28), np.uint8)
    batch = Batch(pixels, (np.arange(BATCH) % 10).astype(np.float32))
    bare = {"mxnet": bare_gluon, "pytorch": bare_pytorch}[framework](batch)

    def ours() -> None:
        for _ in range(STEPS):
            session.step(batch, RATE)
        session.drain()

    times: dict[str, list[float]] = {"session": [], "bare": []}
    for number in range(rounds + 1):
        # The one that goes first may find warmer caches, so the order alternates.
        for name, steps in [("session", ours), ("bare", bare)][:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            steps()
            if number:
                times[name].append((time.perf_counter() - start) / STEPS * 1e3)
    ratios = [own / other for own, other in zip(times["session"], times["bare"])]
    return {
        "framework": framework,
        "session (ms per step)": statistics.median(times["session"]),
        "bare loop (ms per step)": statistics.median(times["bare"]),
        "session / bare": statistics.median(ratios),
        "range": f"{min(ratios):.3f} to {max(ratios):.3f}",
        "pairs": len(ratios),
    }


def main() -> None:
    """Print the table, or with the name of a framework its row as JSON."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    if len(sys.argv) > 2:
        print(json.dumps(compare(sys.argv[2], rounds)))
        return
    rows = []
    for framework in frameworks.FRAMEWORKS:
        if framework == "pytorch" and find_spec("torch") is None:
            print("PyTorch is not installed: ./make_environment.sh --torch")
            continue
        command = [sys.executable, "-W", "ignore", "-m", "tools.benchmark_frameworks", str(rounds), framework]
        variables = {**os.environ, "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
        output = subprocess.check_output(command, cwd=HOME, env=variables, text=True)
        rows.append(json.loads(output.splitlines()[-1]))
    print(tabulate(rows, headers="keys", floatfmt=".3f"))


if __name__ == "__main__":
    main()
