"""The monitor on a recorded NVIDIA driver, on sensors that fail or hang, and its statistics."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poc.machine import monitor, nvml, sensors
from poc.machine.monitor import Device, DeviceUse, Monitor
from poc.machine.sensors import Reading, Sensor
from tests.recorded_nvml import GIB, RecordedNVML, eight_cards, p100

SECONDS = 10
LONG = 300.0  # seconds: what has not happened by then never will


def play(times: Iterable[float], readings: Iterable[Reading]) -> DeviceUse:
    """The summary of a device that gives `readings` at `times`."""
    upcoming = iter(readings)
    device = Device(Sensor("gpu 0", lambda _: next(upcoming)))
    for at in times:
        assert device.sample(at)
    return device.summary()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[DeviceUse]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    library = eight_cards()
    monkeypatch.setattr(nvml, "pynvml", library)
    with sensors.gpus(8) as cards:
        devices = [Device(sensor) for sensor in cards]
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
    with Monitor(sensors.gpus(1), interval=0) as watching:
        watching._thread.join(LONG)
    summary = watching.summary()
    assert summary.samples == 0
    assert said in [summary.lost, *(device.lost for device in summary.devices)]
    for device in summary.devices:
        assert {value for key, value in vars(device).items() if key not in ("device", "lost")} == {None}


def test_it_stops_at_once_whatever_its_interval_and_lets_the_runs_own_errors_pass() -> None:
    sampled = threading.Event()

    def read(_: float) -> Reading:
        sampled.set()
        return Reading()

    watching = Monitor(contextlib.nullcontext([Sensor("gpu 0", read)]), interval=3600)

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

    with Monitor(contextlib.nullcontext([Sensor("gpu 0", hang)])) as watching:
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
    summary = play(times, readings)
    powers = [(at, power) for at, (_, power, _) in zip(times[1:], samples) if power is not None]
    watts = [power for _, power in powers]
    assert summary.memory_peak_bytes == max((m for _, _, m in samples if m is not None), default=None)
    assert summary.power_peak_watts == max([*watts, *filter(None, [first])], default=None)
    if powers:
        assert min(watts) * (1 - 1e-6) <= summary.power_watts <= max(watts) * (1 + 1e-6)
        assert summary.joules == pytest.approx(summary.power_watts * (powers[-1][0] - start))
    else:
        assert (summary.power_watts, summary.joules) == (first, None)
