"""The counters of GPUs, and of the cores that a run's processes were given."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable, NamedTuple

import psutil

from poc.machine import kernel, nvml
from poc.machine.processes import usage

# Asking for a clock interrupts its core, and cores at the same work run at the same clock: a few of them are enough.
_CLOCKS_READ = 4


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


class Sensor(NamedTuple):
    """One device to be sampled."""

    device: str
    read: Callable[[float], Reading]
    """Takes the time (s); raises nvml.NoAnswer where the device is gone."""


Source = contextlib.AbstractContextManager[Sequence[Sensor]]


@contextlib.contextmanager
def gpus(count: int) -> Iterator[Sequence[Sensor]]:
    """The first `count` cards that CUDA uses (CUDA_VISIBLE_DEVICES), named by their number in nvidia-smi."""
    with nvml.session():
        yield [Sensor(f"gpu {card}", functools.partial(_card, card)) for card in nvml.visible()[:count]]


@contextlib.contextmanager
def processes(pids: Sequence[int], cores: int, system: Path = Path("/sys")) -> Iterator[Sequence[Sensor]]:
    """The `cores` cores that the processes `pids` were given together, as one device named "cpu".

    Once all of them have ended, use and memory are None.
    """
    yield [Sensor("cpu", _Cores(pids, cores, system).read)]


def _card(card: int, at: float) -> Reading:
    rates = nvml.ask("nvmlDeviceGetUtilizationRates", card)
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", card)
    milliwatts = nvml.ask("nvmlDeviceGetPowerUsage", card)
    reading = Reading(
        utilisation=None if rates is None else rates.gpu / 100,
        memory_bytes=None if memory is None else memory.used,
        # A card that runs has clocks and draws power: where a driver says 0, it does not know.
        sm_clock_mhz=nvml.ask("nvmlDeviceGetClockInfo", card, nvml.SM_CLOCK) or None,
        memory_clock_mhz=nvml.ask("nvmlDeviceGetClockInfo", card, nvml.MEMORY_CLOCK) or None,
        power_watts=milliwatts / 1000 if milliwatts else None,
        temperature_celsius=nvml.ask("nvmlDeviceGetTemperature", card, nvml.CORE_TEMPERATURE),
    )
    if reading == Reading():
        raise nvml.NoAnswer("it answers none of its counters")
    return reading


class _Cores:
    """CPU time and memory of processes, clock and power of the cores that they run on."""

    def __init__(self, pids: Sequence[int], cores: int, system: Path) -> None:
        self._cpu_seconds = {psutil.Process(pid): 0.0 for pid in pids}
        self._cores = cores
        allowed = sorted(os.sched_getaffinity(pids[0]))
        frequency = "devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
        self._clocks = [system / frequency.format(core) for core in allowed[:_CLOCKS_READ]]
        # AMD's processors are read by the same kernel driver, under the same name. Sub-zones (cores, memory) are parts
        # of a package, and "psys" is more than the packages.
        zones = sorted((system / "class/powercap").glob("intel-rapl:*"))
        self._packages = [zone for zone in zones if kernel.text(zone / "name").startswith("package")]
        self._microjoules: list[int | None] = []
        self._at: float | None = None

    def read(self, at: float) -> Reading:
        seconds = 0.0 if self._at is None else at - self._at
        self._at = at
        alive = {process: spent for process in self._cpu_seconds if (spent := usage(process)) is not None}
        used = sum(cpu_seconds - self._cpu_seconds[process] for process, (cpu_seconds, _) in alive.items())
        self._cpu_seconds.update((process, cpu_seconds) for process, (cpu_seconds, _) in alive.items())
        kilohertz = [clock for clock in map(kernel.number, self._clocks) if clock]
        joules = self._joules()
        return Reading(
            utilisation=used / (seconds * self._cores) if alive and seconds else None,
            memory_bytes=sum(resident for _, resident in alive.values()) if alive else None,
            core_clock_mhz=sum(kilohertz) / len(kilohertz) / 1000 if kilohertz else None,
            power_watts=joules / seconds if joules and seconds else None,
        )

    def _joules(self) -> float | None:
        """Of all packages since the last reading; None where a counter cannot be read, which mostly only root may.

        0 where they stand still, as in some virtual machines.
        """
        before, self._microjoules = self._microjoules, [kernel.number(zone / "energy_uj") for zone in self._packages]
        ranges = [kernel.number(zone / "max_energy_range_uj") for zone in self._packages]
        joules = 0.0
        for earlier, later, restart in zip(before, self._microjoules, ranges):
            if earlier is None or later is None or restart is None:
                return None
            joules += (later - earlier) % restart / 1e6
        return joules
