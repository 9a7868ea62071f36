"""What the hardware did during a run: use, memory, clocks, power and temperature, sampled once a second in a thread.

    with Monitor(gpus(range(8))) as watcher:
        ...
    watcher.summary()

It never raises into the run: what stops answering is named in the summary, beside what was sampled before. A counter
that does not exist is None, never zero.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np
import psutil

from poc.host import nvml
from poc.host.control_groups import number, text
from poc.host.processes import usage
from poc.values import value

# A driver in trouble can keep a caller waiting; the run does not wait longer than this for the last reading.
_PATIENCE_SECONDS = 5.0
# Asking for a clock interrupts its core, and cores at the same work run at the same clock: a few of them are enough.
_CLOCKS_READ = 4


@value
class DeviceUse:
    """What one device did in the stretches of time that count: means and peaks; None where it has no such counter."""

    device: str
    seconds: float | None = None
    """Of the stretches that count, between the first and the last sample."""
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
    """By the card's own counter of energy where it has one (Volta and later), else the integral of power over time."""
    throttled: dict[str, float] = dataclasses.field(default_factory=dict)
    """What held its clocks back (`nvml.THROTTLE_REASONS`), for which share of the time."""
    lost: str = ""
    """Why, and when, it went away."""


@value
class Monitored:
    """What the hardware did during a run."""

    samples: int
    devices: tuple[DeviceUse, ...]
    lost: str = ""
    """Why nothing more could be sampled."""
    of_windows: bool = False
    """What counts are all windows after warm-up; else, as in earlier versions, the time of the whole process."""


class Reading(NamedTuple):
    """What the counters of one device say at one time; None where it has no such counter."""

    utilisation: float | None = None
    """Of a GPU: fraction of the time in which it computed. Of a CPU: core-seconds used / core-seconds there were."""
    memory_bytes: float | None = None
    """Of a GPU: in use, by whomever. Of a CPU: resident, summed over the run's processes."""
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    core_clock_mhz: float | None = None
    """Of a CPU."""
    power_watts: float | None = None
    """Of a GPU: the whole board. Of a CPU: all packages (sockets), whoever uses them."""
    temperature_celsius: float | None = None
    joules: float | None = None
    """Of a GPU, since its driver was loaded."""
    throttled: int | None = None
    """Of a GPU: the driver's bits of what holds its clocks back."""


_AVERAGED = Reading._fields[: Reading._fields.index("joules")]
Spans = Sequence[tuple[float, float]]
"""Start and end (s, of `time.monotonic`) of stretches that count, one after another."""


class Device:
    """One device, and what was sampled of it.

    `read` takes the time (s), and raises nvml.NoAnswer where the device is gone.
    """

    def __init__(self, name: str, read: Callable[[float], Reading]) -> None:
        self.name, self.read = name, read
        self._lost = ""
        self.samples: list[tuple[float, Reading]] = []
        """The time (s) and what was read. Those of a day are some 30 MB."""

    def sample(self, at: float) -> bool:
        """Reads it at the time `at` (s); returns whether it answered. Once lost it is not asked again."""
        if self._lost:
            return False
        try:
            self.samples.append((at, self.read(at)))
        except nvml.NoAnswer as error:
            self._lost = f"{error}, after {at - self.samples[0][0]:.0f} s" if self.samples else str(error)
        return not self._lost

    def summary(self, spans: Spans | None = None) -> DeviceUse:
        """What was sampled in the `spans`, or at all.

        A value stands for the time since the counter's last one, and counts as far as that lies in a span: utilisation
        and a CPU's power are differences over it, and a card reports means over up to its last second.
        """
        samples = list(self.samples)  # the thread may be adding to it
        spans = [(-math.inf, math.inf)] if spans is None else spans
        start = [at for at, _ in samples[:1]]

        def known(counter: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            """A counter's values, the times of each, and the seconds that it counts for."""
            found = [(at, amount) for at, reading in samples if (amount := getattr(reading, counter)) is not None]
            times, amounts = np.array(found).reshape(-1, 2).T
            return amounts, times, _within(np.array([*start, *times]), spans)

        means, peaks, joules = {}, {}, None
        for counter in _AVERAGED:
            amounts, _, seconds = known(counter)
            if seconds.sum() > 0:
                means[counter] = float(seconds @ amounts / seconds.sum())
                peaks[counter] = float(amounts[seconds > 0].max())
                joules = float(seconds @ amounts) if counter == "power_watts" else joules
        means.pop("memory_bytes", None)
        energy, times, seconds = known("joules")
        if seconds[1:].sum() > 0:
            joules = float(np.diff(energy) / np.diff(times) @ seconds[1:])
        reasons, _, seconds = known("throttled")
        held = {name: seconds @ (reasons.astype(int) & bits != 0) for name, bits in nvml.THROTTLE_REASONS.items()}
        return DeviceUse(
            device=self.name,
            seconds=float(_within(np.array([at for at, _ in samples]), spans).sum()) if samples else None,
            **means,
            memory_peak_bytes=peaks.get("memory_bytes"),
            power_peak_watts=peaks.get("power_watts"),
            temperature_peak_celsius=peaks.get("temperature_celsius"),
            joules=joules,
            throttled={name: float(share / seconds.sum()) for name, share in held.items() if share > 0},
            lost=self._lost,
        )


def _within(times: np.ndarray, spans: Spans) -> np.ndarray:
    """Seconds of the `spans` from each of some times, ascending, to the next."""
    if not len(spans) or not len(times):
        return np.zeros(max(0, len(times) - 1))
    edges = np.clip(np.ravel(spans), times[0], times[-1])
    gone = np.cumsum(np.diff(edges, prepend=edges[0]) * (np.arange(len(edges)) % 2))
    return np.diff(np.interp(times, edges, gone))


Source = contextlib.AbstractContextManager[Sequence[Device]]


class Monitor:
    """Samples every device of `source`, which `gpus` or `processes` return, in a daemon thread: on entering, every
    `interval` seconds, and on leaving."""

    def __init__(self, source: Source, interval: float = 1.0) -> None:
        self._source, self._interval = source, interval
        self._devices: Sequence[Device] = ()
        self._lost = ""
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._leaving.set()
        self._thread.join(_PATIENCE_SECONDS)

    def summary(self, spans: Spans | None = None) -> Monitored:
        """What was sampled so far, in the `spans` of its timed windows, or at all."""
        samples = max((len(device.samples) for device in self._devices), default=0)
        devices = tuple(device.summary(spans) for device in self._devices)
        return Monitored(samples=samples, devices=devices, lost=self._lost, of_windows=spans is not None)

    def _watch(self) -> None:
        try:
            with self._source as devices:
                self._devices = devices
                last = False
                while any([device.sample(time.monotonic()) for device in self._devices]) and not last:
                    last = self._leaving.wait(self._interval)
        except nvml.NoAnswer as error:
            self._lost = str(error)
        except Exception as error:  # the run goes on without its monitor, whatever went wrong in it
            self._lost = repr(error)


@contextlib.contextmanager
def gpus(cards: Sequence[int]) -> Iterator[Sequence[Device]]:
    """These cards by the driver's indices, named by them, which are nvidia-smi's."""
    with nvml.session():
        yield [Device(f"gpu {card}", functools.partial(_card, card)) for card in cards]


@contextlib.contextmanager
def processes(pids: Sequence[int], cores: int, system: Path = Path("/sys")) -> Iterator[Sequence[Device]]:
    """The `cores` cores that the processes `pids` were given together, as one device named "cpu".

    Once all of them have ended, use and memory are None.
    """
    yield [Device("cpu", _Cores(pids, cores, system).read)]


def _card(card: int, at: float) -> Reading:
    rates = nvml.ask("nvmlDeviceGetUtilizationRates", card)
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", card)
    milliwatts = nvml.ask("nvmlDeviceGetPowerUsage", card)
    millijoules = nvml.ask("nvmlDeviceGetTotalEnergyConsumption", card)
    reading = Reading(
        utilisation=None if rates is None else rates.gpu / 100,
        memory_bytes=None if memory is None else memory.used,
        # A card that runs has clocks and draws power: where a driver says 0, it does not know.
        sm_clock_mhz=nvml.ask("nvmlDeviceGetClockInfo", card, nvml.SM_CLOCK) or None,
        memory_clock_mhz=nvml.ask("nvmlDeviceGetClockInfo", card, nvml.MEMORY_CLOCK) or None,
        power_watts=milliwatts / 1000 if milliwatts else None,
        temperature_celsius=nvml.ask("nvmlDeviceGetTemperature", card, nvml.CORE_TEMPERATURE),
        joules=millijoules / 1000 if millijoules else None,
        throttled=nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons", card),
    )
    if reading == Reading():
        raise nvml.NoAnswer("none of its counters can be read")
    return reading


class _Cores:
    """CPU time and memory of processes, clock and power of the cores that they run on."""

    def __init__(self, pids: Sequence[int], cores: int, system: Path) -> None:
        self._used = {psutil.Process(pid): (0.0, 0) for pid in pids}
        self._cores = cores
        allowed = sorted(os.sched_getaffinity(pids[0]))
        frequency = "devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
        self._clocks = [system / frequency.format(core) for core in allowed[:_CLOCKS_READ]]
        # AMD's processors are read by the same kernel driver, under the same name. Sub-zones (cores, memory) are parts
        # of a package, and "psys" is more than the packages.
        zones = sorted((system / "class/powercap").glob("intel-rapl:*"))
        self._packages = [zone for zone in zones if text(zone / "name").startswith("package")]
        self._microjoules: list[int | None] = []
        self._at: float | None = None

    def read(self, at: float) -> Reading:
        seconds = 0.0 if self._at is None else at - self._at
        self._at = at
        before = self._used
        self._used = alive = {process: used for process in before if (used := usage(process)) is not None}
        cpu_seconds = sum(now - before[process][0] for process, (now, _) in alive.items())
        kilohertz = [clock for clock in map(number, self._clocks) if clock]
        joules = self._joules()
        return Reading(
            utilisation=cpu_seconds / (seconds * self._cores) if alive and seconds else None,
            memory_bytes=sum(resident for _, resident in alive.values()) if alive else None,
            core_clock_mhz=sum(kilohertz) / len(kilohertz) / 1000 if kilohertz else None,
            power_watts=joules / seconds if joules and seconds else None,
        )

    def _joules(self) -> float | None:
        """Of all packages since the last reading; None where a counter cannot be read, which mostly only root may.

        0 where they stand still, as in some virtual machines.
        """
        before, self._microjoules = self._microjoules, [number(zone / "energy_uj") for zone in self._packages]
        ranges = [number(zone / "max_energy_range_uj") for zone in self._packages]
        joules = 0.0
        for earlier, later, restart in zip(before, self._microjoules, ranges):
            if earlier is None or later is None or restart is None:
                return None
            joules += (later - earlier) % restart / 1e6
        return joules
