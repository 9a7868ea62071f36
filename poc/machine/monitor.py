"""What the hardware did during a run: use, memory, clocks, power and temperature, sampled once a second in a thread.

    with Monitor(gpus(count=8)) as monitor:
        ...
    record["monitor"] = monitor.summary()

It never raises into the run: what stops answering is named in the summary, beside what was sampled before. A counter
that does not exist is None, never zero.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, NamedTuple

import psutil

from poc.machine import nvml
from poc.values import value

# A driver in trouble can keep a caller waiting; the run does not wait longer than this for the last reading.
_PATIENCE_SECONDS = 5.0
_CLOCKS_READ = 4


@value
class Reading:
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


class Sensor(NamedTuple):
    """One device to be sampled."""

    device: str
    read: Callable[[float], Reading]
    """Takes the time (s); raises nvml.NoAnswer where the device is gone."""


Source = contextlib.AbstractContextManager[Sequence[Sensor]]


class Monitor:
    """Samples every sensor of `source` on entering, every `interval` seconds, and on leaving, in a daemon thread.

    `source` is what `gpus` or `processes` return. `now` is the clock, in seconds.
    """

    def __init__(self, source: Source, interval: float = 1.0, now: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._interval = interval
        self._now = now
        self._samples = 0
        self._devices: list[_Device] = []
        self._lost: str | None = None
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)

    def __enter__(self) -> Monitor:
        try:
            self._thread.start()
        except RuntimeError as error:  # the system allows no further thread
            self._lost = _reason(error)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leaving.set()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE_SECONDS)

    def summary(self) -> dict[str, Any]:
        """What was sampled so far, as plain values for the record.

        `samples`; `lost`, why nothing more could be sampled, where that is so; and for each of `devices`: `device`, its
        name; `seconds` between its first and last sample; means over that time (`utilisation`, a fraction,
        `sm_clock_mhz`, `memory_clock_mhz`, `core_clock_mhz`, `power_watts`, `temperature_celsius`); peaks
        (`memory_peak_bytes`, `power_peak_watts`, `temperature_peak_celsius`); `joules`, the integral of power over
        time; and `lost` where it went away: why and when.
        """
        with self._lock:
            found: dict[str, Any] = {"samples": self._samples, "devices": [one.summary() for one in self._devices]}
            if self._lost is not None:
                found["lost"] = self._lost
            return found

    def _watch(self) -> None:
        try:
            with self._source as sensors:
                with self._lock:
                    self._devices = [_Device(sensor.device) for sensor in sensors]
                while True:
                    last = self._leaving.is_set()
                    answered = [self._sample(*pair) for pair in zip(sensors, self._devices)]
                    if not any(answered):
                        break
                    with self._lock:
                        self._samples += 1
                    if last:
                        break
                    self._leaving.wait(self._interval)
        except Exception as error:  # the run goes on without its monitor, whatever went wrong in it
            with self._lock:
                self._lost = _reason(error)

    def _sample(self, sensor: Sensor, device: _Device) -> bool:
        if device.lost is not None:
            return False
        at = self._now()
        try:
            reading = sensor.read(at)
        except Exception as error:  # one device's trouble is not the others'
            with self._lock:
                device.lose(at, _reason(error))
            return False
        with self._lock:
            device.add(at, reading)
        return True


class _Tally:
    """One counter's mean over time and its peak.

    A value stands for the time since the counter's last one: utilisation and a CPU's power are differences over it,
    and a card reports means over up to its last second.
    """

    def __init__(self, start: float) -> None:
        self._at = start
        self._latest: float | None = None
        self.seconds = 0.0
        self.integral = 0.0
        self.peak: float | None = None

    def add(self, at: float, found: float | None) -> None:
        if found is None:
            return
        self.seconds += at - self._at
        self.integral += (at - self._at) * found
        self.peak = found if self.peak is None else max(self.peak, found)
        self._at, self._latest = at, found

    def mean(self) -> float | None:
        return self.integral / self.seconds if self.seconds > 0 else self._latest


class _Device:
    """What was sampled of one device."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._start: float | None = None
        self._end = 0.0
        self._tallies: dict[str, _Tally] = {}
        self.lost: str | None = None

    def add(self, at: float, reading: Reading) -> None:
        if self._start is None:
            self._start = at
            self._tallies = {counter: _Tally(at) for counter in vars(reading)}
        self._end = at
        for counter, tally in self._tallies.items():
            tally.add(at, getattr(reading, counter))

    def lose(self, at: float, why: str) -> None:
        self.lost = why if self._start is None else f"{why}, after {at - self._start:.0f} s"

    def summary(self) -> dict[str, Any]:
        tallies = self._tallies or {counter: _Tally(0.0) for counter in vars(Reading())}
        power = tallies["power_watts"]
        found: dict[str, Any] = {
            "device": self._name,
            "seconds": None if self._start is None else self._end - self._start,
            **{counter: tally.mean() for counter, tally in tallies.items() if counter != "memory_bytes"},
            "memory_peak_bytes": tallies["memory_bytes"].peak,
            "power_peak_watts": power.peak,
            "temperature_peak_celsius": tallies["temperature_celsius"].peak,
            "joules": power.integral if power.seconds > 0 else None,
        }
        if self.lost is not None:
            found["lost"] = self.lost
        return found


@contextlib.contextmanager
def gpus(count: int, driver: nvml.Driver | None = None) -> Iterator[Sequence[Sensor]]:
    """The first `count` cards that CUDA uses (CUDA_VISIBLE_DEVICES), named by their number in nvidia-smi."""
    with driver or nvml.Driver() as opened:
        cards = opened.visible(os.environ.get("CUDA_VISIBLE_DEVICES"))[:count]
        yield [Sensor(f"gpu {card}", functools.partial(_card, opened, card)) for card in cards]


@contextlib.contextmanager
def processes(pids: Sequence[int], cores: int, system: Path = Path("/sys")) -> Iterator[Sequence[Sensor]]:
    """The `cores` cores that the processes `pids` and their descendants were given, as one device named "cpu".

    Once all of `pids` have ended, their use and memory are None.
    """
    yield [Sensor("cpu", _Processes(pids, cores, system).read)]


def _card(driver: nvml.Driver, card: int, at: float) -> Reading:
    rates = driver.ask("nvmlDeviceGetUtilizationRates", card)
    memory = driver.ask("nvmlDeviceGetMemoryInfo", card)
    milliwatts = driver.ask("nvmlDeviceGetPowerUsage", card)
    reading = Reading(
        utilisation=None if rates is None else rates.gpu / 100,
        memory_bytes=None if memory is None else memory.used,
        # A card that runs has clocks and draws power: where a driver says 0, it does not know.
        sm_clock_mhz=driver.ask("nvmlDeviceGetClockInfo", card, nvml.SM_CLOCK) or None,
        memory_clock_mhz=driver.ask("nvmlDeviceGetClockInfo", card, nvml.MEMORY_CLOCK) or None,
        power_watts=milliwatts / 1000 if milliwatts else None,
        temperature_celsius=driver.ask("nvmlDeviceGetTemperature", card, nvml.CORE_TEMPERATURE),
    )
    if reading == Reading():
        raise nvml.NoAnswer("it answers none of its counters")
    return reading


class _Processes:
    """CPU time and memory of processes and their descendants, clock and power of the cores that they run on."""

    def __init__(self, pids: Sequence[int], cores: int, system: Path) -> None:
        self._roots = [psutil.Process(pid) for pid in pids]
        self._descendants: list[psutil.Process] = []
        self._cores = cores
        self._readings = 0
        self._at: float | None = None
        self._used = 0.0
        self._used_by_root = [0.0] * len(pids)
        allowed = sorted(os.sched_getaffinity(pids[0])) if pids else []
        # Asking interrupts a core, and cores at the same work run at the same clock: a few of them are enough.
        self._clocks = [
            system / f"devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq" for core in allowed[:_CLOCKS_READ]
        ]
        # AMD's processors are read by the same kernel driver, under the same name. Sub-zones (cores, memory) are parts
        # of a package, and "psys" is more than the packages.
        zones = sorted((system / "class/powercap").glob("intel-rapl:*"))
        self._packages = [_Package(zone) for zone in zones if _text(zone / "name").startswith("package")]

    def read(self, at: float) -> Reading:
        seconds = 0.0 if self._at is None else at - self._at
        before = self._used
        resident = self._measure()
        kilohertz = [found for found in map(_number, self._clocks) if found]
        joules = [package.joules() for package in self._packages]
        energy = sum(found for found in joules if found is not None)
        self._at = at
        # A package cannot do with nothing: a counter that stands still, as in some virtual machines, is no counter.
        powered = seconds > 0 and None not in joules and energy > 0
        return Reading(
            utilisation=None if resident is None or not seconds else (self._used - before) / (seconds * self._cores),
            memory_bytes=resident,
            core_clock_mhz=sum(kilohertz) / len(kilohertz) / 1000 if kilohertz else None,
            power_watts=energy / seconds if powered else None,
        )

    def _measure(self) -> int | None:
        """Brings the CPU time used up to date; returns the resident bytes, None where all of the roots have ended."""
        self._readings += 1
        # Finding descendants means reading the whole process table: often at the start, where they appear, then rarely.
        if self._readings & (self._readings - 1) == 0 or self._readings % 64 == 0:
            self._descendants = list({child for root in self._roots for child in _children(root)} - set(self._roots))
        resident: int | None = None
        for number, root in enumerate(self._roots):
            found = _use(root)
            if found is not None:  # one that ended keeps what it had used
                self._used_by_root[number], bytes_here = found
                resident = (resident or 0) + bytes_here
        if resident is None:
            return None
        # What a descendant that ended had used has passed on to its parent.
        descendants = [found for found in map(_use, self._descendants) if found is not None]
        used = sum(self._used_by_root) + sum(seconds for seconds, _ in descendants)
        self._used = max(self._used, used)
        return resident + sum(bytes_there for _, bytes_there in descendants)


class _Package:
    """The energy counter of one processor package."""

    def __init__(self, zone: Path) -> None:
        self._counter = zone / "energy_uj"
        self._range = _number(zone / "max_energy_range_uj") or 0
        self._last = _number(self._counter)

    def joules(self) -> float | None:
        """Energy since it was last asked; None where the counter cannot be read, which mostly only root may."""
        last, self._last = self._last, _number(self._counter)
        if last is None or self._last is None:
            return None
        used = self._last - last
        return (used if used >= 0 else used + self._range) / 1e6


def _use(process: psutil.Process) -> tuple[float, int] | None:
    """CPU seconds used, by children that it has waited for too, and resident bytes; None where it has ended."""
    try:
        with process.oneshot():
            times = process.cpu_times()
            return times.user + times.system + times.children_user + times.children_system, process.memory_info().rss
    except psutil.Error:
        return None


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _reason(error: Exception) -> str:
    if isinstance(error, nvml.NoAnswer):
        return str(error)
    return f"{type(error).__name__}: {error}"
