"""Throughput on more devices: the efficiency last measured, and an interval from published series."""

from __future__ import annotations

import csv
import functools
import math
from pathlib import Path

from poc.values import value

FILE = Path(__file__).with_name("scaling.csv")


@value
class Estimate:
    """A number with a 90% interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        median, low, high = (f"{number:,.0f}" if number >= 100 else f"{number:.3g}" for number in self.numbers)
        return median if low == high else f"{median} ({low} to {high})"

    @property
    def numbers(self) -> tuple[float, float, float]:
        """Return median, lower and upper end."""
        return self.median, self.low, self.high

    def times(self, factor: float) -> Estimate:
        """Return the estimate of `factor` times as much."""
        return Estimate(median=factor * self.median, low=factor * self.low, high=factor * self.high)

    def divide(self, amount: float) -> Estimate:
        """Return the estimate of `amount` / this number."""
        return Estimate(median=amount / self.median, low=amount / self.high, high=amount / self.low)


@functools.cache
def deviations() -> dict[tuple[int, bool], tuple[float, float]]:
    """Return the 90% interval of actual / predicted throughput, by doublings of devices and whether hosts are added.

    `tools/fit_scaling.py` writes the file.
    """
    with FILE.open(newline="", encoding="utf-8") as file:
        return {
            (int(line["doublings"]), line["hosts_added"] == "yes"): (float(line["low"]), float(line["high"]))
            for line in csv.DictReader(file)
        }


def predict(measured: Estimate, measured_devices: int, devices: int, *, hosts_added: bool = False) -> Estimate:
    """Predict samples/s on up to eight times the measured devices, at the same efficiency.

    The interval is that of the measurement, widened by how much published series deviate from such predictions.
    """
    factor = devices / measured_devices
    low, high = deviations()[math.ceil(math.log2(factor)), hosts_added]
    expected = measured.times(factor)
    return Estimate(median=expected.median, low=low * expected.low, high=high * expected.high)
