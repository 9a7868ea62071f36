"""What measuring costs: throughput watched, drained and told of as in any run, over throughput left alone, in pairs.

    .venv/bin/python -m tests.benchmark_measuring

Short stretches of one training alternate, so that both meet the machine in the same state: one is timed in two
windows, each told of in a file, while a monitor samples the hardware every second, as well as at the start and the
end; the other is drained at its end only. The monitor is a thread of the training process here, where a run has it in
a process of its own, and a run's windows are twice as long: the ratio shows rather too much than too little.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from poc import Recipe, Synthetic, data, engines
from poc.machine import hardware, monitor, sensors
from poc.plan import plan
from poc.records.timing import Clock, spread
from poc.train.loop import Loop

PAIRS = 60
STEPS = 20


def main() -> None:
    """Trains the pairs, each in the other order, and prints the ratios' median, spread and number."""
    machine = hardware.detect()
    os.environ["OMP_NUM_THREADS"] = str(machine.cores)
    images = Synthetic(train=20_000)
    recipe = Recipe(model="cifar_resnet20_v2", kind="cpu", data=images, steps=STEPS, window=10, evaluate=False, lr=0.05)
    run = plan("benchmark", recipe, machine)[0].run
    session = engines.load(run.engine).open_session(run)
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "events.jsonl").open("w") as events:
        dataset = data.load(images, source=None, cache=Path(folder))
        steps = STEPS * (2 * PAIRS + 1)
        stream = data.training_batches(dataset, images, total_batch=run.total_batch, seed=0, steps=steps)

        def tell(event: dict[str, Any]) -> None:
            events.write(json.dumps(event) + "\n")
            events.flush()

        def rate(batches: Any, *, measured: bool) -> float:
            """Samples a second over `STEPS` steps."""
            watched = monitor.Monitor(sensors.processes([os.getpid()], machine.cores))
            stretch = run if measured else dataclasses.replace(run, window=STEPS)
            with watched if measured else contextlib.nullcontext():
                clock = Clock()
                Loop(stretch, session, list, clock, tell if measured else lambda event: None).train(batches)
                return STEPS * run.total_batch / clock.elapsed()

        with data.Prefetch(stream, depth=run.window) as batches:
            rate(batches, measured=False)  # to warm up
            ratios = []
            for pair in range(PAIRS):
                order = (True, False) if pair % 2 else (False, True)
                rates = {measured: rate(batches, measured=measured) for measured in order}
                ratios.append(rates[True] / rates[False])
                print(f"pair {pair + 1}: {rates[True]:.1f} samples/s measured, {rates[False]:.1f} alone", flush=True)
    error = 1.2533 * spread(ratios) / PAIRS**0.5  # of a median, for a normal distribution
    print(
        f"measured / alone: median {statistics.median(ratios):.4f} +- {error:.4f} (standard error), "
        f"spread {spread(ratios):.4f}, n = {PAIRS} pairs"
    )


if __name__ == "__main__":
    main()
