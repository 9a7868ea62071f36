"""Throughput on more devices: the efficiency last measured, an interval from published series, and what limits it."""

from __future__ import annotations

import csv
import dataclasses
import functools
import math
from pathlib import Path

from poc.data.images import MOST_THREADS
from poc.records.record import Record
from poc.values import value

FILE = Path(__file__).with_name("scaling.csv")
COMPUTATION = "devices"
"""The limit of a throughput that grows with the number of devices."""


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
    same_efficiency = measured.times(factor)
    return dataclasses.replace(same_efficiency, low=low * same_efficiency.low, high=high * same_efficiency.high)


def ceilings(record: Record, devices: int, *, workers: int, hosts: int = 1) -> dict[str, float]:
    """Return the samples/s that each part of a step allows on so many devices, given the step-time breakdown of a run.

    The run was on one host; `workers` are those on each host. Parts overlap at best, so the smallest value bounds the
    throughput (the roofline of Williams, Waterman and Patterson 2009):

    - devices: computation takes as long as it did.
    - link: an all-reduce sends 2 (n - 1) / n times the gradients (Patarasuk and Yuan 2009) over an equally fast link.
    - host: one thread per GPU issues its operations, as far as there are cores. Unknown on CPUs.
    - input pipeline: the threads of all workers prepare batches, as far as there are cores.
    """
    run, step, cores = record.run, record.detail, record.hardware.cores
    if step is None:
        return {}
    devices_per_host = devices / hosts
    seconds = {COMPUTATION: step.independent_step_seconds - step.data_seconds}
    if run.devices > 1:
        seconds["link"] = step.exchange_seconds * (1 - 1 / devices) / (1 - 1 / run.devices)
    if run.kind == "gpu" and step.issue_seconds:
        seconds["host"] = step.issue_seconds * max(devices_per_host, cores) / max(run.devices, cores)
    if step.pipeline_seconds:
        threads = 1 if run.kind == "cpu" else MOST_THREADS
        before, after = (min(cores, threads * count) for count in (run.workers, workers))
        seconds["input pipeline"] = step.pipeline_seconds * devices_per_host / run.devices * before / after
    batch = run.batch_per_device * devices
    return {part: batch / duration for part, duration in seconds.items() if duration > 0}


def lowest(by_part: dict[str, float]) -> str:
    """Return the part with the lowest ceiling, which limits the throughput; empty without ceilings."""
    return min(by_part, key=lambda part: by_part[part], default="")


def limited(predicted: Estimate, by_part: dict[str, float]) -> Estimate:
    """Return the prediction, lowered to the lowest of the ceilings `by_part`.

    That of computation does not lower it: devices may be faster than they were in the step-time breakdown.
    """
    limit = lowest(by_part)
    if limit in ("", COMPUTATION):
        return predicted
    return predicted.times(min(1.0, by_part[limit] / predicted.median))
