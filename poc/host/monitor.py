"""Sample use, memory, clocks, power and temperature of the hardware during a run in a thread.

    with Monitor(gpus(range(8))) as monitor:
        ...
    monitor.summary([(start, end)])

A device that fails ends its sampling, never the run. A counter that does not exist is None, never 0.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psutil

from poc.host import nvml
from poc.values import value

# A driver in trouble may block its caller; the run waits no longer than this for the last sample.
_LAST_SAMPLE_SECONDS = 5.0
GPU_INTERVAL = 0.1  # seconds; drivers renew their power sensors every 20 to 100 ms (Yang et al. 2024)
# Sampling takes at most this share of a core, however long the driver takes to answer.
_SHARE_OF_CORE = 0.05
_COUNTERS = (
    *("utilisation", "memory_bytes", "sm_clock_mhz", "power_watts", "temperature_celsius"),
    *("busy_seconds", "joules"),  # totals
    *nvml.THROTTLE_REASONS,  # 1 if it reduces the clocks, else 0
)
Counters = dict[str, "float | None"]  # values of `_COUNTERS`; None if the device has no such counter
Spans = Sequence[tuple[float, float]]  # start and end (s, of `time.monotonic`) of consecutive intervals


@value
class DeviceUse:
    """Means of one device's counters, and its peak memory, within the timed windows; None if it has no such counter."""

    device: str
    seconds: float | None = None  # time within the windows between the first and the last sample
    utilisation: float | None = None  # share of the time in which a GPU computed, of the core-seconds that a CPU used
    sm_clock_mhz: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    memory_peak_bytes: float | None = None  # of a GPU, by all its users, or resident memory of the run's processes
    joules: float | None = None  # by the GPU's energy counter if it has one (Volta and later), else from its power
    throttled: dict[str, float] = dataclasses.field(default_factory=dict)  # share of the time, by `THROTTLE_REASONS`
    lost: str = ""  # why and when the device stopped answering


@value
class Monitored:
    """Summary of a monitor's samples of all devices."""

    samples: int
    devices: tuple[DeviceUse, ...]


@dataclasses.dataclass(eq=False)
class Device:
    """A device and its samples; `read` may raise, which ends its sampling."""

    name: str
    read: Callable[[], Counters]
    samples: list[np.ndarray] = dataclasses.field(default_factory=list)  # time (s) and `_COUNTERS`, NaN if missing
    _lost: str = ""

    def sample(self, at: float) -> bool:
        """Read the device at the time `at` (s); False if it is lost, now or before."""
        if self._lost:
            return False
        try:
            self.samples.append(np.array([at, *map(self.read().get, _COUNTERS)], dtype=float))
        except Exception as error:  # whatever fails in the monitor, the run goes on
            when = f", after {at - self.samples[0][0]:.0f} s" if self.samples else ""
            self._lost = f"{type(error).__name__}: {error}{when}"
        return not self._lost

    def summary(self, spans: Spans) -> DeviceUse:
        """Summarise the samples within the `spans`.

        A sample counts for the time since the previous one, as far as that is within a span: totals are differences
        over that time, and a GPU reports means over up to its last second.
        """
        times, *columns = np.array(self.samples[:]).reshape(-1, 1 + len(_COUNTERS)).T
        counters, weights = dict(zip(_COUNTERS, columns)), _seconds_within(spans, times)

        def mean(values: np.ndarray) -> float | None:
            rows = (weights > 0) & ~np.isnan(values)
            return float(np.average(values[rows], weights=weights[rows])) if rows.any() else None

        def per_second(total: str, fallback: str) -> np.ndarray:
            rates = np.diff(counters[total], prepend=np.nan) / np.diff(times, prepend=np.nan)
            return np.where(np.isnan(rates), counters[fallback], rates)

        memory_bytes, seconds = counters["memory_bytes"][weights > 0], float(weights.sum())
        watts = mean(per_second("joules", fallback="power_watts"))
        means = {name: mean(counters[name]) for name in ("sm_clock_mhz", "power_watts", "temperature_celsius")}
        return DeviceUse(
            device=self.name,
            seconds=seconds if len(times) else None,
            utilisation=mean(per_second("busy_seconds", fallback="utilisation")),
            memory_peak_bytes=max(memory_bytes[~np.isnan(memory_bytes)].tolist(), default=None),
            joules=None if watts is None else watts * seconds,
            throttled={reason: share for reason in nvml.THROTTLE_REASONS if (share := mean(counters[reason]))},
            lost=self._lost,
            **means,
        )


def _seconds_within(spans: Spans, times: np.ndarray) -> np.ndarray:
    """Return the seconds of the `spans` between each of the ascending `times` and the previous one; 0 for the first."""
    edges = np.ravel(spans or [(0.0, 0.0)])
    span_seconds = np.diff(edges, prepend=edges[0]) * (np.arange(len(edges)) % 2)  # 0 between two spans
    elapsed = np.interp(times, edges, np.cumsum(span_seconds))
    return np.diff(elapsed, prepend=elapsed[:1])


class Monitor:
    """Sample devices in a thread: on entering, every `interval` seconds or less often if they are slow, on leaving."""

    def __init__(self, devices: Sequence[Device], interval: float = 1.0) -> None:
        self._devices, self._interval = devices, interval
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="monitor", daemon=True)

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._leaving.set()
        self._thread.join(_LAST_SAMPLE_SECONDS)

    def summary(self, spans: Spans) -> Monitored:
        """Summarise the samples within the `spans` of the timed windows."""
        samples = max((len(device.samples) for device in self._devices), default=0)
        devices = tuple(device.summary(spans) for device in self._devices)
        return Monitored(samples=samples, devices=devices)

    def _watch(self) -> None:
        is_last, start = False, time.monotonic()
        while any([device.sample(time.monotonic()) for device in self._devices]) and not is_last:
            is_last = self._leaving.wait(max(self._interval, (time.monotonic() - start) / _SHARE_OF_CORE))
            start = time.monotonic()


def gpus(indices: Sequence[int]) -> list[Device]:
    """Return the GPUs with these indices of the driver as devices "gpu 0" and so on."""
    return [Device(f"gpu {index}", functools.partial(_read_gpu, index)) for index in indices]


def _read_gpu(index: int) -> Counters:
    def query(function: str, *arguments: int) -> Any:
        return nvml.query(function, index, *arguments)

    rates, memory = query("nvmlDeviceGetUtilizationRates"), query("nvmlDeviceGetMemoryInfo")
    milliwatts, millijoules = query("nvmlDeviceGetPowerUsage"), query("nvmlDeviceGetTotalEnergyConsumption")
    throttle_bits = query("nvmlDeviceGetCurrentClocksThrottleReasons")
    counters: Counters = {
        "utilisation": rates and rates.gpu / 100,
        "memory_bytes": memory and memory.used,
        "temperature_celsius": query("nvmlDeviceGetTemperature", nvml.CORE_TEMPERATURE),
        # A driver that reports 0 for one of these does not know it.
        "sm_clock_mhz": query("nvmlDeviceGetClockInfo", nvml.SM_CLOCK) or None,
        "power_watts": milliwatts / 1000 if milliwatts else None,
        "joules": millijoules / 1000 if millijoules else None,
    }
    for reason, mask in nvml.THROTTLE_REASONS.items():
        counters[reason] = None if throttle_bits is None else float(throttle_bits & mask != 0)
    if set(counters.values()) == {None}:
        raise nvml.NoAnswerError("none of its counters can be read")
    return counters


def processes(pids: Sequence[int], cores: int) -> list[Device]:
    """Return the `cores` cores shared by the processes `pids` as a device "cpu"; no counters once all have ended."""
    cpu_seconds = dict.fromkeys(pids, 0.0)

    def read() -> Counters:
        resident_bytes = []
        for pid in pids:
            with contextlib.suppress(psutil.Error):  # it has ended
                process = psutil.Process(pid)
                resident_bytes.append(process.memory_info().rss)
                cpu_seconds[pid] = sum(process.cpu_times()[:4])  # user and system, also of children that have ended
        if not resident_bytes:
            return {}
        return {"busy_seconds": sum(cpu_seconds.values()) / cores, "memory_bytes": sum(resident_bytes)}

    return [Device("cpu", read)]
