"""What watching the hardware costs: throughput with the monitor over throughput without, pair by pair.

python tests/benchmark_measuring.py
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from poc import Recipe, Synthetic, clock, hardware, monitor
from poc import run as running
from poc.plan import plan

PAIRS = 7


class Unwatched:
    """Takes the monitor's place where nothing is to be watched."""

    def __init__(self, source: Any) -> None:
        """Takes what a monitor would, and leaves it alone."""

    def __enter__(self) -> Unwatched:
        return self

    def __exit__(self, *raised: Any) -> None:
        """Nothing to stop."""

    def summary(self) -> None:
        """Nothing was seen."""


def main() -> None:
    """Runs the pairs, each in the other order, and prints the ratios' median, spread and number."""
    os.chdir(Path(__file__).parent.parent)
    machine = hardware.detect()
    recipe = Recipe(
        model="cifar_resnet20_v2", data=Synthetic(train=20_000), steps=150, window=10, evaluate=False, lr=0.05
    )
    (planned,) = plan("benchmark", recipe, machine)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        place = running.Place(source=None, cache=Path(folder))

        def rate(watched: bool) -> float:
            running.monitor.Monitor = monitor_class if watched else Unwatched  # type: ignore[misc,assignment]
            record = running.execute(planned.run, place, machine, "benchmark")
            found = clock.throughput(clock.windows_from(record))
            assert found is not None
            return found.median

        monitor_class = monitor.Monitor
        for pair in range(PAIRS):
            rates = {watched: rate(watched) for watched in ((True, False) if pair % 2 else (False, True))}
            ratios.append(rates[True] / rates[False])
            print(f"pair {pair + 1}: {rates[True]:.1f} samples/s watched, {rates[False]:.1f} not, {ratios[-1]:.4f}")
    middle = statistics.median(ratios)
    spread = 1.4826 * statistics.median(abs(ratio - middle) for ratio in ratios)
    print(f"watched / not: median {middle:.4f}, spread {spread:.4f}, n = {PAIRS} pairs")


if __name__ == "__main__":
    main()
