"""What batch norm and ReLU as one operator bring on this CPU: a network with and without it, in pairs.

python tests/benchmark_operators.py [NETWORK [PAIRS]]

Two sessions in one process train in turn on the same fixed batch, each pair in the other order.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from poc import Recipe, data, engines, synthetic
from poc.machine import hardware
from poc.plan import plan
from poc.recipe import networks

STEPS = 6


def main() -> None:
    """Trains the pairs and prints the ratios' median, its standard error, spread and number."""
    name = sys.argv[1] if len(sys.argv) > 1 else "cifar_resnet50_v2"
    pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    network, machine = networks.network(name), hardware.detect()
    os.environ["OMP_NUM_THREADS"] = str(machine.cores)
    small = network.classes == 10
    recipe = Recipe(
        model=name,
        data=synthetic("cifar" if small else "imagenet", size=network.input_size),
        kind="cpu",
        batch_per_device=128 if small else 8,
        lr=0.01,
    )
    run = plan("benchmark", recipe, machine)[0].run
    gluon = engines.load("gluon")
    fused: Any = gluon.open_session(run)
    from poc.engines.gluon import session  # mxnet may be imported from here on

    fusing, session.can_fuse = session.can_fuse, lambda: False
    plain: Any = gluon.open_session(run)
    session.can_fuse = fusing
    dataset = data.load(run.data, source=None, cache=Path("unused"))
    (batch,) = data.training_batches(dataset, run.data, total_batch=run.total_batch, seed=0, steps=1)

    def rate(one: Any) -> float:
        start = time.perf_counter()
        for _ in range(STEPS):
            one.step(batch, run.learning_rate)
        one.drain()
        return STEPS * len(batch) / (time.perf_counter() - start)

    rate(plain), rate(fused)  # to warm up
    ratios = []
    for pair in range(pairs):
        rates = {one is fused: rate(one) for one in ((fused, plain) if pair % 2 else (plain, fused))}
        ratios.append(rates[True] / rates[False])
        print(
            f"pair {pair + 1}: {rates[True]:.1f} samples/s fused, {rates[False]:.1f} not, {ratios[-1]:.3f}", flush=True
        )
    middle = statistics.median(ratios)
    spread = 1.4826 * statistics.median(abs(ratio - middle) for ratio in ratios)
    error = 1.2533 * spread / pairs**0.5
    print(f"{name}: median {middle:.3f} +- {error:.3f} (standard error), spread {spread:.3f}, n = {pairs} pairs")


if __name__ == "__main__":
    main()
