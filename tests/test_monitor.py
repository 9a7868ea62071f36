"""The monitor: on a recorded NVIDIA driver, on devices that fail or hang, and on real processes."""

import os
import resource
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from poc.host import monitor
from poc.host.monitor import Counters, Device, DeviceUse, Monitor
from tests.launch import NEVER
from tests.recorded_nvml import GIB, RecordedNVML, eight_cards, p100
from tests.test_host import use


def test_means_peaks_and_joules_of_recorded_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    library, devices = use(eight_cards(), monkeypatch), monitor.gpus(range(8))
    for library.now in range(11):
        for device in devices:
            device.sample(library.now)
    uses = [device.summary([(0.0, 10.0)]) for device in devices]
    joules = [pytest.approx(4 * (100 + number) + 6 * 200) for number in range(8)]
    assert uses[1] == DeviceUse(
        device="gpu 1",
        seconds=10.0,
        utilisation=pytest.approx(0.9),
        sm_clock_mhz=1328,
        power_watts=pytest.approx((4 * 101 + 6 * 200) / 10),
        temperature_celsius=pytest.approx(40 + 5.5),
        memory_peak_bytes=3 * GIB,
        joules=joules[1],
    )
    # What a card does not have, or no longer answers, is missing for that card only.
    assert [card.joules for card in uses] == [*joules[:3], None, None, pytest.approx(4 * 105 + 200), *joules[6:]]
    assert [card.sm_clock_mhz for card in uses[1:3]] == [1328, 1189]
    assert (uses[3].power_watts, uses[4].power_watts) == (None, None)
    assert uses[4].utilisation == 0.0  # idle, which is not the same as unknown
    assert [card.seconds for card in uses] == [10.0] * 5 + [5.0] + [10.0] * 2
    assert [number for number, card in enumerate(uses) if card.lost] == [5]
    assert uses[5].lost.endswith("GPU is lost, after 6 s")


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("nvmlInit", pynvml.NVMLError_LibraryNotFound()),
        ("nvmlDeviceGetPowerUsage", pynvml.NVMLError_ResetRequired()),
        ("nvmlDeviceGetPowerUsage", OSError("the library broke")),
        ("_answer", pynvml.NVMLError_Unknown()),
    ],
)
def test_a_driver_that_fails_is_recorded_and_never_reaches_the_run(
    function: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(use(RecordedNVML([p100(0)]), monkeypatch), function, fail, raising=False)
    with Monitor(monitor.gpus([0]), interval=0) as sampling:
        sampling._thread.join(NEVER)
    (device,) = sampling.summary([(0.0, 1e9)]).devices
    assert device == DeviceUse(device="gpu 0", lost=device.lost)
    assert device.lost


@pytest.mark.parametrize("hangs", [False, True])
def test_the_monitor_never_delays_the_end_of_a_run(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "_LAST_SAMPLE_SECONDS", 0.01 if hangs else NEVER)
    reading, released = threading.Event(), threading.Event()

    def read() -> Counters:
        reading.set()
        assert not hangs or released.wait(NEVER)
        return {}

    with Monitor([Device("gpu 0", read)], interval=3600) as sampling:
        assert reading.wait(NEVER)
    assert sampling.summary([]).samples == (0 if hangs else 2)  # on entering and on leaving
    released.set()
    sampling._thread.join(NEVER)


@pytest.mark.parametrize(("seconds", "pause"), [(1 / 1024, 0.1), (1 / 16, 1.25)])
def test_a_driver_that_answers_slowly_is_asked_less_often(
    seconds: float, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses = [0.0], []

    def read() -> Counters:
        now[0] += seconds
        return {}

    def wait(pause: float) -> bool:
        pauses.append(pause)
        return len(pauses) == 2

    monkeypatch.setattr(monitor, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sampling = Monitor([Device("gpu 0", read)], monitor.GPU_INTERVAL)
    monkeypatch.setattr(sampling, "_leaving", SimpleNamespace(wait=wait))
    sampling._watch()
    assert pauses == pytest.approx([pause] * 2)


def sampled(times: Any, readings: list[Counters]) -> Device:
    upcoming = iter(readings)
    device = Device("gpu 0", lambda: next(upcoming))
    assert all([device.sample(at) for at in times])
    return device


@pytest.mark.parametrize("counter", [False, True])
def test_only_samples_within_the_windows_count(counter: bool) -> None:
    # A card that computes from 2.5 s to 6 s, at 250 W and 90%, and idles at 50 W before and after.
    energy = [0.0, 50.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 1050.0, 1100.0] if counter else [None] * 9
    readings: list[Counters] = [
        {"utilisation": 0.9 * busy, "power_watts": 50.0 + 200 * busy, "memory_bytes": 9 * busy, "heat": busy}
        for busy in (0, 0, 0, 1, 1, 1, 1, 0, 0)
    ]
    for reading, joules in zip(readings, energy):
        reading["joules"] = joules
    readings[5].update(power_watts=None, memory_bytes=None)  # no answer at that moment
    device = sampled(range(100, 109), readings)
    use = device.summary([(103.0, 104.5), (104.5, 105.0), (105.5, 106.0)])
    assert (use.seconds, use.utilisation, use.power_watts, use.joules) == pytest.approx((2.5, 0.9, 250.0, 625.0))
    assert (use.memory_peak_bytes, use.throttled) == (9, {"heat": 1.0})
    # The energy counter includes what happened between two readings of power.
    assert device.summary([(102.0, 103.0)]).joules == pytest.approx(150.0 if counter else 250.0)
    for spans in ([], [(90.0, 95.0)], [(109.0, 120.0)]):
        use = device.summary(spans)
        assert (use.seconds, use.utilisation, use.joules, use.throttled) == (0.0, None, None, {})


def test_cpu_seconds_and_memory_of_processes_and_their_children() -> None:
    # The kernel rounds each of four times (user, system, also of children) down to ticks, at both readings.
    rounding = 8 / os.sysconf("SC_CLK_TCK")
    (device,) = monitor.processes([os.getpid()], cores=2)

    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    first, start = device.read(), used()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    while used() - start < 0.6:
        pass
    second, seconds = device.read(), used() - start
    assert 2 * (second["busy_seconds"] - first["busy_seconds"]) == pytest.approx(seconds, abs=rounding + 0.05)
    # A system that reclaims idle memory may take some of it between the two readings.
    assert second["memory_bytes"] == pytest.approx(psutil.Process().memory_info().rss, abs=4 << 20)
    assert device.sample(1.0)
    assert device.sample(2.0)
    assert 0 <= device.summary([(1.0, 2.0)]).utilisation < 1
    with subprocess.Popen(["sleep", "9999"]) as ended:
        (device,) = monitor.processes([ended.pid], cores=2)
        ended.kill()
        ended.wait()
        assert device.read() == {}
