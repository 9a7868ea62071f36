"""What the hardware did during a run: use, memory, clocks, power and temperature, sampled once a second in a thread.

    with Monitor(sensors.gpus(count=8)) as watcher:
        ...
    watcher.summary()

It never raises into the run: what stops answering is named in the summary, beside what was sampled before. A counter
that does not exist is None, never zero.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

import numpy as np

from poc.machine import nvml
from poc.machine.sensors import Reading, Sensor, Source
from poc.values import value

# A driver in trouble can keep a caller waiting; the run does not wait longer than this for the last reading.
_PATIENCE_SECONDS = 5.0


@value
class DeviceUse:
    """What one device did during a run: means over the time sampled, and peaks; None where it has no such counter."""

    device: str
    seconds: float | None = None
    """Between the first and the last sample."""
    utilisation: float | None = None
    """A fraction of one."""
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    core_clock_mhz: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    memory_peak_bytes: float | None = None
    power_peak_watts: float | None = None
    temperature_peak_celsius: float | None = None
    joules: float | None = None
    """The integral of power over time."""
    lost: str = ""
    """Why, and when, it went away."""


@value
class Monitored:
    """What the hardware did during a run."""

    samples: int
    devices: tuple[DeviceUse, ...]
    lost: str = ""
    """Why nothing more could be sampled."""


class Monitor:
    """Samples every sensor of `source` on entering, every `interval` seconds, and on leaving, in a daemon thread.

    `source` is what `sensors.gpus` or `sensors.processes` return.
    """

    def __init__(self, source: Source, interval: float = 1.0) -> None:
        self._source, self._interval = source, interval
        self._devices: list[Device] = []
        self._lost = ""
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leaving.set()
        self._thread.join(_PATIENCE_SECONDS)

    def summary(self) -> Monitored:
        """What was sampled so far."""
        samples = max((len(device.samples) for device in self._devices), default=0)
        return Monitored(samples=samples, devices=tuple(device.summary() for device in self._devices), lost=self._lost)

    def _watch(self) -> None:
        try:
            with self._source as sensors:
                self._devices = [Device(sensor) for sensor in sensors]
                last = False
                while any([device.sample(time.monotonic()) for device in self._devices]) and not last:
                    last = self._leaving.wait(self._interval)
        except nvml.NoAnswer as error:
            self._lost = str(error)
        except Exception as error:  # the run goes on without its monitor, whatever went wrong in it
            self._lost = repr(error)


class Device:
    """What was sampled of one device."""

    def __init__(self, sensor: Sensor) -> None:
        self._sensor = sensor
        self._lost = ""
        self.samples: list[tuple[float, Reading]] = []
        """The time (s) and what was read. Those of a day are some 30 MB."""

    def sample(self, at: float) -> bool:
        """Reads the sensor at the time `at` (s); returns whether it answered. Once lost it is not asked again."""
        if self._lost:
            return False
        try:
            self.samples.append((at, self._sensor.read(at)))
        except nvml.NoAnswer as error:
            self._lost = f"{error}, after {at - self.samples[0][0]:.0f} s" if self.samples else str(error)
        return not self._lost

    def summary(self) -> DeviceUse:
        """What was sampled so far."""
        samples = list(self.samples)  # the thread may be adding to it
        counters = {counter: _over_time(samples, counter) for counter in Reading._fields}
        return DeviceUse(
            device=self._sensor.device,
            seconds=samples[-1][0] - samples[0][0] if samples else None,
            **{counter: statistics.mean for counter, statistics in counters.items() if counter != "memory_bytes"},
            memory_peak_bytes=counters["memory_bytes"].peak,
            power_peak_watts=counters["power_watts"].peak,
            temperature_peak_celsius=counters["temperature_celsius"].peak,
            joules=counters["power_watts"].integral,
            lost=self._lost,
        )


class _Statistics(NamedTuple):
    mean: float | None = None
    peak: float | None = None
    integral: float | None = None
    """Over time (s); None where none has passed."""


def _over_time(samples: Sequence[tuple[float, Reading]], counter: str) -> _Statistics:
    """A value stands for the time since the counter's last one: utilisation and a CPU's power are differences over it,
    and a card reports means over up to its last second."""
    known = [(at, amount) for at, reading in samples if (amount := getattr(reading, counter)) is not None]
    if not known:
        return _Statistics()
    start = samples[0][0]
    times, amounts = zip(*known)
    integral = float(np.diff(times, prepend=start) @ np.array(amounts))
    if times[-1] == start:
        return _Statistics(mean=amounts[-1], peak=max(amounts))
    return _Statistics(mean=integral / (times[-1] - start), peak=max(amounts), integral=integral)
