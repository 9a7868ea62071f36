"""Prints how many images a second one core prepares: `.venv/bin/python -m tests.benchmark_data`."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from poc import data
from poc.recipe import CIFAR10, Synthetic
from poc.records.timing import spread

REPETITIONS = 15
STEPS = 40
BATCH = 128


def main() -> None:
    """Times augmentation alone, in this thread, on images of CIFAR-10's shape that are already in memory."""
    dataset = data.load(Synthetic(train=50_000, validation=1), source=None, cache=Path())
    for name, images in (("crop + mirror", CIFAR10(jitter=False)), ("crop + mirror + jitter", CIFAR10())):
        speeds = []
        for repetition in range(REPETITIONS + 1):
            start = time.perf_counter()
            for _ in data.training_batches(dataset, images, total_batch=BATCH, seed=repetition, steps=STEPS):
                pass
            speeds.append(STEPS * BATCH / (time.perf_counter() - start))
        warm = speeds[1:]
        median = statistics.median(warm)
        print(f"{name:24}{median:9,.0f} samples/s, one core, spread {spread(warm):,.0f}, n = {REPETITIONS}")


if __name__ == "__main__":
    main()
