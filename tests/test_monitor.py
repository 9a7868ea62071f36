"""The monitor on a recorded NVIDIA driver, on devices that fail or hang, its statistics, and what it reads: of a real
process, which counts for itself, and of a kernel tree made for the test."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poc.machine import monitor, nvml
from poc.machine.monitor import Device, DeviceUse, Monitor, Reading
from tests.recorded_nvml import GIB, RecordedNVML, eight_cards, kernel_tree, p100

SECONDS = 10
LONG = 300.0  # seconds: what has not happened by then never will


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[DeviceUse]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    library = eight_cards()
    monkeypatch.setattr(nvml, "pynvml", library)
    with monitor.gpus(range(8)) as devices:
        for library.now in range(SECONDS + 1):
            for device in devices:
                device.sample(library.now)
    assert library.sessions == 0
    return [device.summary() for device in devices]


def test_means_peaks_and_joules_of_a_recorded_card(recorded: list[DeviceUse]) -> None:
    assert [device.device for device in recorded] == [f"gpu {number}" for number in range(8)]
    joules = 4 * 101 + 6 * 200
    assert recorded[1] == DeviceUse(
        device="gpu 1",
        seconds=SECONDS,
        utilisation=pytest.approx(0.9),
        sm_clock_mhz=1328,
        memory_clock_mhz=715,
        core_clock_mhz=None,
        power_watts=joules / SECONDS,
        temperature_celsius=pytest.approx(40 + 5.5),
        memory_peak_bytes=3 * GIB,
        power_peak_watts=200,
        temperature_peak_celsius=50,
        joules=joules,
    )
    assert [recorded[number].sm_clock_mhz for number in (1, 2, 6, 7)] == [1328, 1189, 1189, 1328]


def test_what_a_card_lacks_or_loses_is_missing_for_that_card_only(recorded: list[DeviceUse]) -> None:
    joules = [4 * (100 + number) + 6 * 200 for number in range(8)]
    assert [card.joules for card in recorded] == [*joules[:3], None, None, 4 * 105 + 1 * 200, *joules[6:]]
    for card in recorded[3:5]:
        assert (card.power_watts, card.power_peak_watts) == (None, None)
        assert card.temperature_celsius is not None
    assert recorded[4].utilisation == 0.0  # idle, which is not the same as unknown
    assert [card.seconds for card in recorded] == [SECONDS] * 5 + [5] + [SECONDS] * 2
    assert [card.lost for card in recorded] == [""] * 5 + ["GPU is lost, after 6 s"] + [""] * 2


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        ("nvmlInit", pynvml.NVMLError_LibraryNotFound(), "no NVIDIA driver answers: NVML Shared Library Not Found"),
        ("nvmlDeviceGetHandleByIndex", pynvml.NVMLError_GpuIsLost(), "GPU is lost"),
        ("nvmlDeviceGetPowerUsage", pynvml.NVMLError_ResetRequired(), "GPU requires restart"),
        ("nvmlDeviceGetPowerUsage", OSError("the library broke"), "OSError('the library broke')"),
        ("_answer", pynvml.NVMLError_Unknown(), "it answers none of its counters"),
    ],
)
def test_whatever_fails_in_the_driver_is_told_and_never_reaches_the_run(
    function: str, error: BaseException, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    library = RecordedNVML([p100(0)])
    monkeypatch.setattr(library, function, fail, raising=False)
    monkeypatch.setattr(nvml, "pynvml", library)
    with Monitor(monitor.gpus([0]), interval=0) as watching:
        watching._thread.join(LONG)
    summary = watching.summary()
    assert summary.samples == 0
    assert said in [summary.lost, *(device.lost for device in summary.devices)]
    for device in summary.devices:
        assert {value for key, value in vars(device).items() if key not in ("device", "lost", "throttled")} == {None}


def test_it_stops_at_once_whatever_its_interval_and_lets_the_runs_own_errors_pass() -> None:
    sampled = threading.Event()

    def read(_: float) -> Reading:
        sampled.set()
        return Reading()

    watching = Monitor(contextlib.nullcontext([Device("gpu 0", read)]), interval=3600)

    def run() -> None:
        with watching:
            assert sampled.wait(LONG)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    watching._thread.join(LONG)
    assert watching.summary().samples == 2  # on entering and on leaving


def test_a_driver_that_hangs_does_not_hold_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "_PATIENCE_SECONDS", 0.01)
    asked, released = threading.Event(), threading.Event()

    def hang(_: float) -> Reading:
        asked.set()
        assert released.wait(LONG)
        return Reading()

    with Monitor(contextlib.nullcontext([Device("gpu 0", hang)])) as watching:
        assert asked.wait(LONG)
    assert watching.summary().samples == 0
    released.set()
    watching._thread.join(LONG)


counters = st.none() | st.floats(1, 500)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.01, 100), counters, counters), min_size=1, max_size=20),
    st.sampled_from([None, 700.0]),
    st.floats(0, 1e6),
)
def test_statistics_hold_for_any_sampling(
    samples: list[tuple[float, Any, Any]], first: float | None, start: float
) -> None:
    times = list(itertools.accumulate((step for step, _, _ in samples), initial=start))
    # The first reading lasts no time and must not count in a mean.
    readings = [Reading(power_watts=first), *(Reading(power_watts=p, memory_bytes=m) for _, p, m in samples)]
    upcoming = iter(readings)
    device = Device("gpu 0", lambda _: next(upcoming))
    assert all([device.sample(at) for at in times])
    summary = device.summary()
    powers = [(at, power) for at, (_, power, _) in zip(times[1:], samples) if power is not None]
    watts = [power for _, power in powers]
    assert summary.memory_peak_bytes == max((m for _, _, m in samples if m is not None), default=None)
    assert summary.power_peak_watts == max(watts, default=None)
    if powers:
        assert min(watts) * (1 - 1e-6) <= summary.power_watts <= max(watts) * (1 + 1e-6)
        assert summary.joules == pytest.approx(summary.power_watts * (powers[-1][0] - start))
    else:
        assert (summary.power_watts, summary.joules) == (None, None)


# Of a card that computes from 2.5 s on, at 250 W and 90%, and idles at 50 W before and from 6 s on.
READINGS = [
    Reading(utilisation=0.9 * busy, power_watts=50.0 + 200 * busy, memory_bytes=9 * busy, throttled=4 * busy + 1)
    for busy in (0, 0, 0, 1, 1, 1, 1, 0, 0)
]


@pytest.mark.parametrize("counter", [False, True])
def test_what_falls_into_the_windows_counts(counter: bool) -> None:
    readings = iter(READINGS)
    device = Device("gpu 0", lambda _: next(readings))
    if counter:  # it counts what the readings of power, taken once a second, miss
        energy = [0.0, 50.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 1050.0, 1100.0]
        both = iter([reading._replace(joules=joules) for reading, joules in zip(READINGS, energy)])
        device = Device("gpu 0", lambda _: next(both))
    for at in range(len(READINGS)):
        device.sample(100.0 + at)
    use = device.summary([(103.0, 104.5), (104.5, 105.0), (105.5, 106.0)])
    assert use.seconds == pytest.approx(2.5)
    assert (use.utilisation, use.power_watts, use.joules) == pytest.approx((0.9, 250.0, 625.0))
    assert (use.memory_peak_bytes, use.power_peak_watts) == (9, 250.0)
    assert use.throttled == {"power cap": 1.0}
    # Of a window before it computed at full speed, the counter tells and power does not.
    use = device.summary([(102.0, 103.0)])
    assert use.joules == pytest.approx(150.0 if counter else 250.0)
    for spans in ([], [(90.0, 95.0)], [(109.0, 120.0)]):
        use = device.summary(spans)
        assert (use.seconds, use.utilisation, use.joules, use.throttled) == (0.0, None, None, {})
    assert device.summary().utilisation == pytest.approx(0.9 * 4 / 8)


# After each line it tells the CPU seconds that it has used, and those of children that it has waited for.
WORKER = """
import resource, subprocess, sys, time
BURN = "import time\\nuntil = time.process_time() + 0.5\\nwhile time.process_time() < until: pass"
for line in map(str.strip, sys.stdin):
    if line == "burn":
        exec(BURN)
    elif line == "wait for a child that burns":
        subprocess.run([sys.executable, "-c", BURN])
    elif line == "allocate":
        held = b"x" * (64 << 20)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(time.process_time() + children.ru_utime + children.ru_stime, flush=True)
"""
# The kernel rounds each of four times (user, system, of the children too) down to whole ticks, at both readings.
ROUNDING = 8 / os.sysconf("SC_CLK_TCK")


def test_use_and_memory_are_what_the_process_says_of_itself() -> None:
    command = [sys.executable, "-c", WORKER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as worker:

        def tell(line: str) -> float:
            assert worker.stdin
            assert worker.stdout
            worker.stdin.write(f"{line}\n")
            return float(worker.stdout.readline())

        with monitor.processes([worker.pid], cores=2) as [device]:
            earliest = tell("start")
            first = device.read(0.0)
            latest = tell("go on")
            assert first.utilisation is None
            for at, work in enumerate(["burn", "wait for a child that burns", "allocate"], start=1):
                spent = tell(work)
                reading = device.read(at)
                now = tell("go on")
                assert reading.utilisation is not None
                used = reading.utilisation * 2  # seconds of two cores, in one second
                assert spent - latest - ROUNDING <= used <= now - earliest + ROUNDING
                earliest, latest = spent, now
            assert first.memory_bytes is not None
            assert reading.memory_bytes is not None
            assert reading.memory_bytes - first.memory_bytes > 60 << 20
            worker.communicate()
            assert device.read(9.0) == Reading()


def packages(root: Path, microjoules: int) -> Path:
    """Two packages whose counters start over at 1 J; the second is half as busy; a part and a superset of them."""
    zones = {
        "0": ("package-0", microjoules % 1_000_000),
        "1": ("package-1", microjoules // 2 % 1_000_000),
        "0:0": ("core", microjoules // 3),
        "2": ("psys", microjoules * 2),
    }
    files: dict[str, object] = {}
    for zone, (name, energy) in zones.items():
        files[f"class/powercap/intel-rapl:{zone}/name"] = name
        files[f"class/powercap/intel-rapl:{zone}/energy_uj"] = energy
        files[f"class/powercap/intel-rapl:{zone}/max_energy_range_uj"] = 1_000_000
    return kernel_tree(root, files)


def test_power_of_the_packages_from_counters_that_start_over(tmp_path: Path) -> None:
    with monitor.processes([os.getpid()], cores=1, system=packages(tmp_path, 900_000)) as [device]:
        watts = []
        for at in (0.0, 0.5, 1.0):
            packages(tmp_path, 900_000 + int(at * 800_000))
            watts.append(device.read(at).power_watts)
    assert watts == [None, pytest.approx(1.2), pytest.approx(1.2)]


@pytest.mark.parametrize("fault", ["absent", "one unreadable", "standing still"])
def test_power_that_is_not_told_is_none(fault: str, tmp_path: Path) -> None:
    if fault != "absent":
        packages(tmp_path, 100)
    with monitor.processes([os.getpid()], cores=1, system=tmp_path) as [device]:
        for at in (0.0, 1.0):
            if fault == "one unreadable":
                packages(tmp_path, 100 + 1000 * int(at))
                (tmp_path / "class/powercap/intel-rapl:1/energy_uj").unlink()
            reading = device.read(at)
    assert (reading.power_watts, reading.core_clock_mhz) == (None, None)
    assert reading.utilisation is not None


def test_clock_of_the_cores_that_may_be_used(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    files: dict[str, object] = {f"devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq": 2_400_000 for core in mine}
    files[f"devices/system/cpu/cpu{mine[-1] + 1}/cpufreq/scaling_cur_freq"] = 800_000  # another's
    with monitor.processes([os.getpid()], cores=1, system=kernel_tree(tmp_path, files)) as [device]:
        assert device.read(0.0).core_clock_mhz == 2400


@pytest.mark.parametrize(
    ("setting", "cards"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("4,5", [4, 5]),
        ("6, 1", [6, 1]),
        ("", []),
        ("-1", []),
        ("5,99,1", [5]),
        ("GPU-3f00,GPU-7", [3, 7]),
        ("GPU-", []),  # begins every card's
    ],
)
def test_the_cards_that_cuda_uses(setting: str | None, cards: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    monkeypatch.setattr(nvml, "pynvml", eight_cards())
    assert nvml.visible() == cards
