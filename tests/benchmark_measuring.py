"""What measuring costs: throughput watched, drained and told of as in any run, over throughput left alone, in pairs.

python tests/benchmark_measuring.py

Short stretches of one training alternate, so that both meet the machine in the same state: one is timed in two
windows, each told of in a file, while a monitor samples the hardware every second, as well as at the start and the
end; the other is drained at its end only. The monitor is a thread of the training process here, where a run has it in
a process of its own, and a run's windows are twice as long: what is found is rather too much than too little.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from poc import Recipe, Synthetic, data, engines
from poc.machine import hardware, monitor, sensors
from poc.plan import plan
from poc.records import timing
from poc.run import Run
from poc.train import run as running

PAIRS = 60
STEPS = 20


def main() -> None:
    """Trains the pairs, each in the other order, and prints the ratios' median, spread and number."""
    machine = hardware.detect()
    os.environ["OMP_NUM_THREADS"] = str(machine.cores)
    recipe = Recipe(
        model="cifar_resnet20_v2", data=Synthetic(train=20_000), steps=STEPS, window=10, evaluate=False, lr=0.05
    )
    measured = plan("benchmark", recipe, machine)[0].run
    alone = dataclasses.replace(measured, window=STEPS)
    session = engines.load(measured.engine).open_session(measured)
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "events.jsonl").open("w") as events:
        stream = data.training_batches(
            data.load(measured.data, source=None, cache=Path(folder)),
            measured.data,
            total_batch=measured.total_batch,
            seed=0,
            steps=STEPS * (2 * PAIRS + 1),
        )
        with data.Prefetch(stream, depth=measured.window) as batches:

            def tell(event: dict[str, Any]) -> None:
                events.write(json.dumps(event) + "\n")
                events.flush()

            def rate(run: Run) -> float:
                watched = run is measured
                source = sensors.processes([os.getpid()], machine.cores)
                with monitor.Monitor(source) if watched else contextlib.nullcontext():
                    watch = timing.Clock()
                    running.train(run, session, batches, lambda: [], watch, tell if watched else lambda event: None)
                    return STEPS * run.total_batch / watch.elapsed()

            rate(alone)  # to warm up
            ratios = []
            for pair in range(PAIRS):
                rates = {run is measured: rate(run) for run in ((measured, alone) if pair % 2 else (alone, measured))}
                ratios.append(rates[True] / rates[False])
                print(
                    f"pair {pair + 1}: {rates[True]:.1f} samples/s measured, {rates[False]:.1f} alone, "
                    f"{ratios[-1]:.4f}",
                    flush=True,
                )
    middle = statistics.median(ratios)
    spread = 1.4826 * statistics.median(abs(ratio - middle) for ratio in ratios)
    error = 1.2533 * spread / PAIRS**0.5  # of a median, for a normal distribution
    print(
        f"measured / alone: median {middle:.4f} +- {error:.4f} (standard error), spread {spread:.4f}, n = {PAIRS} pairs"
    )


if __name__ == "__main__":
    main()
