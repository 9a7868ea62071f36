"""Prints how many images a second one core prepares: `python tests/benchmark_data.py`."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from poc import data
from poc.recipe import CIFAR10, Synthetic

REPETITIONS = 15
STEPS = 40
BATCH = 128


def main() -> None:
    """Times augmentation alone, in this thread, on images of CIFAR-10's shape that are already in memory."""
    dataset = data.load(Synthetic(train=50_000, validation=1), source=None, cache=Path())
    for name, spec in (("crop + mirror", CIFAR10(jitter=False)), ("crop + mirror + jitter", CIFAR10())):
        speeds = []
        for repetition in range(REPETITIONS + 1):
            start = time.perf_counter()
            for _ in data.training_batches(dataset, spec, total_batch=BATCH, seed=repetition, steps=STEPS):
                pass
            speeds.append(STEPS * BATCH / (time.perf_counter() - start))
        warm = speeds[1:]
        median = statistics.median(warm)
        spread = 1.4826 * statistics.median(abs(speed - median) for speed in warm)
        print(f"{name:24}{median:9,.0f} samples/s, one core, spread {spread:,.0f}, n = {REPETITIONS}")


if __name__ == "__main__":
    main()
