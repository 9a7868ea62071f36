"""The monitor and the topology, on a recorded NVIDIA driver, on a kernel tree made for the test, on real processes."""
# ruff: noqa: N802 - the recorded driver has the function names of pynvml

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poc.machine import monitor, nvml, topology
from poc.machine.monitor import Monitor, Reading, Sensor
from poc.machine.topology import Card, Link, Topology

SECONDS = 10
GIB = 2**30


class Clock:
    """Shows each of `times` for one round of samples, and the last one from then on."""

    def __init__(self, times: Sequence[float]) -> None:
        self.times = list(times)
        self.done = threading.Event()

    def __call__(self) -> float:
        return self.times[0]

    def tick(self, _: float) -> Reading:
        if len(self.times) == 1:
            self.done.set()
        else:
            self.times.pop(0)
        return Reading()


def play(source: monitor.Source, clock: Clock) -> list[dict[str, Any]]:
    """What the monitor's thread says of the devices once it has sampled them at every time of `clock`."""

    @contextlib.contextmanager
    def ticking() -> Iterator[Sequence[Sensor]]:
        with source as sensors:
            yield [*sensors, Sensor("clock", clock.tick)]

    with Monitor(ticking(), interval=0, now=clock) as watching:
        assert clock.done.wait(30)
    devices = watching.summary()["devices"]
    assert devices.pop()["device"] == "clock"
    return list(devices)


class RecordedNVML:
    """pynvml's functions, played from a recording of cards: each a dict of what it has; what it lacks is not supported.

    `links` holds, for pairs of cards: the level of their common ancestor, whether they are peers, and by NVLink.
    """

    def __init__(self, cards: list[dict[str, Any]], clock: Clock | None = None, links: Any = None) -> None:
        self.cards, self.clock, self.links = cards, clock or Clock([0.0]), links or {}
        self.sessions = 0

    def nvmlInit(self) -> None:
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUtilizationRates(self, card: int) -> Any:
        return SimpleNamespace(gpu=self._play(card, "percent"))

    def nvmlDeviceGetMemoryInfo(self, card: int) -> Any:
        return SimpleNamespace(used=self._play(card, "memory"))

    def nvmlDeviceGetPowerUsage(self, card: int) -> Any:
        return self._play(card, "milliwatts")

    def nvmlDeviceGetTemperature(self, card: int, _: int) -> Any:
        return self._play(card, "celsius")

    def nvmlDeviceGetClockInfo(self, card: int, clock: int) -> Any:
        return self._play(card, {1: "sm", 2: "memory_clock"}[clock])

    def nvmlDeviceGetMaxClockInfo(self, card: int, clock: int) -> Any:
        return self._play(card, {1: "max_sm", 2: "max_memory"}[clock])

    def nvmlDeviceGetApplicationsClock(self, card: int, clock: int) -> Any:
        return self._play(card, {1: "application_sm", 2: "application_memory"}[clock])

    def nvmlDeviceGetName(self, card: int) -> Any:
        return self._play(card, "name")

    def nvmlDeviceGetUUID(self, card: int) -> Any:
        return f"GPU-{card}f00"

    def nvmlDeviceGetPciInfo(self, card: int) -> Any:
        return SimpleNamespace(domain=0, bus=card, device=0)

    def nvmlDeviceGetNvLinkState(self, card: int, link: int) -> int:
        if link >= len(self._play(card, "nvlinks")):
            raise pynvml.NVMLError_InvalidArgument
        return 1

    def nvmlDeviceGetNvLinkRemotePciInfo(self, card: int, link: int) -> Any:
        return self.nvmlDeviceGetPciInfo(self._play(card, "nvlinks")[link])

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:
        return int(self.links[a, b][0])

    def nvmlDeviceGetP2PStatus(self, a: int, b: int, index: int) -> int:
        _, peer, nvlink = self.links[a, b]
        return 0 if (nvlink if index == pynvml.NVML_P2P_CAPS_INDEX_NVLINK else peer) else 5

    def _play(self, card: int, what: str) -> Any:
        recorded = self.cards[card]
        if self.clock() >= recorded.get("lost_at", float("inf")):
            raise pynvml.NVMLError_GpuIsLost
        if what not in recorded:
            raise pynvml.NVMLError_NotSupported
        found = recorded[what]
        return found(self.clock()) if callable(found) else found


def p100(number: int, **other: Any) -> dict[str, Any]:
    """A card that draws 100 W plus its number until second 4, and 200 W from then on."""
    return {
        "name": b"Tesla P100",
        "percent": 90,
        "memory": lambda at: 3 * GIB if at == 2 else GIB,
        "milliwatts": lambda at: (100 + number) * 1000 if at <= 4 else 200_000,
        "celsius": lambda at: 40 + at,
        "sm": 1328,
        "memory_clock": 715,
        "max_sm": 1480,
        "max_memory": 715,
        "application_sm": 1328,
        "application_memory": 715,
        **other,
    }


def eight_cards(clock: Clock) -> RecordedNVML:
    """Cards 2 and 6 are clocked lower, 3 has no power counter, 4 idles and gives its power as 0, 5 disappears."""
    cards = [p100(number) for number in range(8)]
    cards[2].update(sm=1189, application_sm=1189)
    cards[6].update(sm=1189, application_sm=1189)
    del cards[3]["milliwatts"]
    cards[4].update(percent=0, milliwatts=0)
    cards[5].update(lost_at=6)
    return RecordedNVML(cards, clock, links={pair: (30, True, False) for pair in itertools.combinations(range(8), 2)})


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    clock = Clock(range(SECONDS + 1))
    library = eight_cards(clock)
    devices = play(monitor.gpus(8, nvml.Driver(library)), clock)
    assert library.sessions == 0
    return devices


def test_means_peaks_and_joules_of_a_recorded_card(recorded: list[dict[str, Any]]) -> None:
    assert [device["device"] for device in recorded] == [f"gpu {number}" for number in range(8)]
    joules = 4 * 101 + 6 * 200
    assert recorded[1] == {
        "device": "gpu 1",
        "seconds": SECONDS,
        "utilisation": pytest.approx(0.9),
        "sm_clock_mhz": 1328,
        "memory_clock_mhz": 715,
        "core_clock_mhz": None,
        "power_watts": joules / SECONDS,
        "temperature_celsius": pytest.approx(40 + 5.5),
        "memory_peak_bytes": 3 * GIB,
        "power_peak_watts": 200,
        "temperature_peak_celsius": 50,
        "joules": joules,
    }
    assert [recorded[number]["sm_clock_mhz"] for number in (1, 2, 6, 7)] == [1328, 1189, 1189, 1328]


def test_a_counter_that_one_card_lacks_is_none_for_that_card_only(recorded: list[dict[str, Any]]) -> None:
    for number in (3, 4):
        assert [recorded[number][key] for key in ("power_watts", "power_peak_watts", "joules")] == [None] * 3
        assert recorded[number]["temperature_celsius"] is not None
        assert "lost" not in recorded[number]
    assert recorded[4]["utilisation"] == 0.0  # idle, which is not the same as unknown
    assert recorded[2]["joules"] == 4 * 102 + 6 * 200


def test_of_a_card_that_disappears_what_was_sampled_stands(recorded: list[dict[str, Any]]) -> None:
    assert recorded[5]["lost"] == "GPU is lost, after 6 s"
    assert recorded[5]["seconds"] == 5
    assert recorded[5]["joules"] == 4 * 105 + 1 * 200
    assert [device["seconds"] for device in recorded[6:]] == [SECONDS] * 2


def fails(error: BaseException) -> Any:
    def raising(*_: Any) -> Any:
        raise error

    return raising


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        ("nvmlInit", pynvml.NVMLError_LibraryNotFound(), "no NVIDIA driver answers: NVML Shared Library Not Found"),
        ("nvmlDeviceGetCount", pynvml.NVMLError_Unknown(), "how many cards it has: Unknown Error"),
        ("nvmlDeviceGetHandleByIndex", pynvml.NVMLError_GpuIsLost(), "GPU is lost"),
        ("nvmlDeviceGetPowerUsage", pynvml.NVMLError_ResetRequired(), "GPU requires restart"),
        ("nvmlDeviceGetPowerUsage", OSError("the library broke"), "OSError: the library broke"),
        ("_play", pynvml.NVMLError_Unknown(), "it answers none of its counters"),
    ],
)
def test_whatever_fails_in_the_driver_is_told_and_never_reaches_the_run(
    function: str, error: BaseException, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = RecordedNVML([p100(0)])
    monkeypatch.setattr(library, function, fails(error))
    with Monitor(monitor.gpus(1, nvml.Driver(library)), interval=0) as watching:
        watching._thread.join(30)
    summary = watching.summary()
    assert summary["samples"] == 0
    assert said in " ".join([summary.get("lost", ""), *(device["lost"] for device in summary["devices"])])
    for device in summary["devices"]:
        assert {value for key, value in device.items() if key not in ("device", "lost")} == {None}


def test_it_stops_at_once_whatever_its_interval_and_lets_the_runs_own_errors_pass() -> None:
    sampled = threading.Event()

    def read(_: float) -> Reading:
        sampled.set()
        return Reading()

    watching = Monitor(contextlib.nullcontext([Sensor("gpu 0", read)]), interval=3600)

    def run() -> None:
        with watching:
            assert sampled.wait(30)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert not watching._thread.is_alive()
    assert watching.summary()["samples"] == 2  # on entering and on leaving


def test_a_driver_that_hangs_does_not_hold_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "_PATIENCE_SECONDS", 0.01)
    asked, released = threading.Event(), threading.Event()

    def hang(_: float) -> Reading:
        asked.set()
        released.wait(30)
        return Reading()

    with Monitor(contextlib.nullcontext([Sensor("gpu 0", hang)])) as watching:
        asked.wait(30)
    assert watching.summary()["samples"] == 0
    released.set()
    watching._thread.join(30)


counters = st.none() | st.floats(1, 500)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(0.01, 100), counters, counters), min_size=1, max_size=20), st.floats(0, 1e6))
def test_statistics_hold_for_any_sampling(samples: list[tuple[float, Any, Any]], start: float) -> None:
    times = list(itertools.accumulate((step for step, _, _ in samples), initial=start))
    # Before each time's reading is one that lasts no time: the first of all must not count.
    readings = iter([Reading(power_watts=700.0), *(Reading(power_watts=p, memory_bytes=m) for _, p, m in samples)])
    clock = Clock(times)
    [found] = play(contextlib.nullcontext([Sensor("gpu 0", lambda _: next(readings, Reading()))]), clock)
    powers = [power for _, power, _ in samples if power is not None]
    memories = [memory for _, _, memory in samples if memory is not None]
    assert found["memory_peak_bytes"] == max(memories, default=None)
    assert found["power_peak_watts"] == 700
    if powers:
        assert min(powers) * (1 - 1e-9) <= found["power_watts"] <= max(powers) * (1 + 1e-9)
        last = max(index for index, (_, power, _) in enumerate(samples, start=1) if power is not None)
        assert found["joules"] == pytest.approx(found["power_watts"] * (times[last] - times[0]))
    else:
        assert found["joules"] is None


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=20))
def test_joules_do_not_depend_on_when_it_was_sampled(steps: list[float]) -> None:
    clock = Clock(list(itertools.accumulate(steps, initial=0.0)))
    [found] = play(contextlib.nullcontext([Sensor("gpu 0", lambda _: Reading(power_watts=250.0))]), clock)
    assert found["joules"] == pytest.approx(250 * sum(steps))


WORKER = """
import subprocess, sys, time

def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    return "done"

def start():
    global child
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    child = subprocess.Popen([sys.executable, "-c", CODE], **pipes)
    return child.stdout.readline()

def tell(line):
    print(line, file=child.stdin, flush=True)
    return child.stdout.readline()

def end():
    child.communicate()
    return "ended"

def allocate():
    global held
    held = b"x" * (64 << 20)
    return "done"

print("ready", flush=True)
for line in sys.stdin:
    print(str(eval(line)).strip(), flush=True)
"""


def test_use_and_memory_of_a_process_and_its_descendants() -> None:
    code = f"CODE = {WORKER!r}\n{WORKER}"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )

    def tell(line: str) -> str:
        assert process.stdin
        assert process.stdout
        print(line, file=process.stdin, flush=True)
        return process.stdout.readline().strip()

    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    with monitor.processes([process.pid], cores=2) as [sensor]:
        first = sensor.read(0.0)
        assert first.utilisation is None
        assert first.memory_bytes is not None
        assert tell("start()") == "ready"
        sensor.read(1.0)  # the second reading finds the new child
        assert tell("burn(0.2)") == "done"
        assert tell("tell('burn(0.3)')") == "done"
        assert tell("allocate()") == "done"
        busy = sensor.read(2.0)
        assert busy.utilisation == pytest.approx((0.2 + 0.3) / 2, abs=0.05)  # core-seconds of two cores in one second
        assert busy.memory_bytes is not None
        assert busy.memory_bytes - first.memory_bytes > 60 << 20
        assert tell("end()") == "ended"
        # What the child had used is its parent's now: neither lost nor counted twice.
        assert sensor.read(3.0).utilisation == pytest.approx(0, abs=0.05)
        process.communicate()
        gone = sensor.read(4.0)
        assert (gone.utilisation, gone.memory_bytes) == (None, None)


def kernel_tree(root: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def packages(root: Path, microjoules: int) -> Path:
    """Two packages whose counters start over at 1 J; the second is half as busy; a part and a superset of them."""
    zone = "class/powercap/intel-rapl:"
    return kernel_tree(
        root,
        {
            f"{zone}0/name": "package-0",
            f"{zone}0/energy_uj": microjoules % 1_000_000,
            f"{zone}0/max_energy_range_uj": 1_000_000,
            f"{zone}1/name": "package-1",
            f"{zone}1/energy_uj": microjoules // 2 % 1_000_000,
            f"{zone}1/max_energy_range_uj": 1_000_000,
            f"{zone}0:0/name": "core",
            f"{zone}0:0/energy_uj": microjoules // 3,
            f"{zone}2/name": "psys",
            f"{zone}2/energy_uj": microjoules * 2,
        },
    )


def test_power_of_the_packages_from_counters_that_start_over(tmp_path: Path) -> None:
    packages(tmp_path, 900_000)
    with monitor.processes([os.getpid()], cores=1, system=tmp_path) as [sensor]:
        clock = Clock([0.0, 0.5, 1.0])

        def advance(at: float) -> Reading:
            packages(tmp_path, 900_000 + int(at * 800_000))
            return sensor.read(at)

        [found] = play(contextlib.nullcontext([Sensor("cpu", advance)]), clock)
    assert found["joules"] == pytest.approx(0.8 + 0.4)
    assert found["power_watts"] == pytest.approx(1.2)
    assert found["sm_clock_mhz"] is None


@pytest.mark.parametrize("fault", ["absent", "one unreadable", "standing still"])
def test_power_that_is_not_told_is_none(fault: str, tmp_path: Path) -> None:
    if fault != "absent":
        packages(tmp_path, 100)
    with monitor.processes([os.getpid()], cores=1, system=tmp_path) as [sensor]:
        for at in (0.0, 1.0):
            if fault == "one unreadable":
                packages(tmp_path, 100 + 1000 * int(at))
                (tmp_path / "class/powercap/intel-rapl:1/energy_uj").unlink()
            reading = sensor.read(at)
    assert reading.power_watts is None
    assert reading.core_clock_mhz is None
    assert reading.utilisation is not None


def test_clock_of_the_cores_that_may_be_used(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    files: dict[str, object] = {f"devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq": 2_400_000 for core in mine}
    files[f"devices/system/cpu/cpu{mine[-1] + 1}/cpufreq/scaling_cur_freq"] = 800_000  # another's
    with monitor.processes([os.getpid()], cores=1, system=kernel_tree(tmp_path, files)) as [sensor]:
        assert sensor.read(0.0).core_clock_mhz == 2400


def test_the_cores_of_each_numa_node_and_the_node_of_a_card(tmp_path: Path) -> None:
    files: dict[str, object] = {
        "devices/system/node/node0/cpulist": "0-3,8-9",
        "devices/system/node/node2/cpulist": "4-7",
        "devices/system/node/node10/cpulist": "10",
        "devices/system/node/node11/cpulist": "",  # memory alone
        "bus/pci/devices/0000:05:00.0/numa_node": 2,
        "bus/pci/devices/0000:06:00.0/numa_node": -1,
    }
    system = kernel_tree(tmp_path, files)
    assert topology.numa_nodes(system, range(16)) == {0: [0, 1, 2, 3, 8, 9], 2: [4, 5, 6, 7], 10: [10]}
    assert topology.numa_nodes(system, [9, 4]) == {0: [9], 2: [4]}
    assert topology.numa_nodes(tmp_path / "nowhere", [3, 1]) == {0: [1, 3]}
    with nvml.Driver(eight_cards(Clock([0.0]))) as driver:
        assert [topology.numa_node_of(driver, card, system) for card in (5, 6, 7)] == [2, None, None]


@pytest.mark.parametrize(
    ("nodes", "workers", "each", "near", "groups"),
    [
        ({0: [0, 1]}, 2, 1, None, [[0], [1]]),
        ({0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}, 2, 4, None, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ({0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}, 4, 2, None, [[0, 1], [4, 5], [2, 3], [6, 7]]),
        ({0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}, 2, 2, None, [[0, 1], [4, 5]]),
        ({0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}, 3, 2, [1, 1, 0], [[4, 5], [6, 7], [0, 1]]),
        ({0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}, 2, 2, [None, 7], [[0, 1], [4, 5]]),
        ({0: [0, 1, 2], 1: [3, 4, 5]}, 3, 2, None, [[0, 1], [3, 4], [2, 5]]),  # the last has to have of both
    ],
)
def test_cores_of_a_worker_are_of_one_numa_node(
    nodes: dict[int, list[int]], workers: int, each: int, near: Any, groups: list[list[int]]
) -> None:
    assert topology.core_groups(nodes, workers, each, near) == groups


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
    with monitor.gpus(2, nvml.Driver(eight_cards(Clock([0.0])))) as sensors:
        assert [sensor.device for sensor in sensors] == [f"gpu {card}" for card in cards[:2]]
    with nvml.Driver(eight_cards(Clock([0.0]))) as driver:
        assert driver.visible(setting) == cards


def detected(cards: list[dict[str, Any]], links: dict[tuple[int, int], Any], system: Path) -> Topology:
    return topology.detect(nvml.Driver(RecordedNVML(cards, links=links)), system)


def test_links_and_groups_of_two_islands(tmp_path: Path) -> None:
    """As in the Keras study, one switch an island and the CPU between them; here the even cards and the odd ones."""
    links = {(a, b): (10 if (a - b) % 2 == 0 else 30, True, False) for a, b in itertools.combinations(range(6), 2)}
    found = detected([p100(number) for number in range(6)], links, tmp_path)
    assert [str(link) for link in found.links if 0 in link.cards] == ["PHB", "PIX", "PHB", "PIX", "PHB"]
    assert [topology.best_group(found, count) for count in (1, 2, 3, 6, 7)] == [
        (0,),
        (0, 2),
        (0, 2, 4),
        (0, 1, 2, 3, 4, 5),
        (),
    ]
    text = "\n".join(topology.lines(found))
    assert "CUDA_VISIBLE_DEVICES=0,2" in text
    assert "PHB: through the CPU" in text
    assert "warning" not in text


def test_nvlinks_to_a_card_to_a_switch_and_to_the_cpu(tmp_path: Path) -> None:
    pairs = list(itertools.combinations(range(3), 2))
    direct = [p100(0, nvlinks=[1, 1, 2]), p100(1, nvlinks=[0, 0]), p100(2, nvlinks=[0])]
    found = detected(direct, {pair: (40, True, pair != (1, 2)) for pair in pairs}, tmp_path)
    assert [str(link) for link in found.links] == ["NV2", "NV1", "NODE"]
    switch = 99
    switched = [p100(number, nvlinks=[switch] * 12) for number in range(3)]
    found = detected(switched, {pair: (50, True, True) for pair in pairs}, tmp_path)
    assert [str(link) for link in found.links] == ["NV12"] * 3
    assert not [line for line in topology.lines(found) if line.startswith("use")]  # nothing to choose
    found = detected(switched, {pair: (50, True, False) for pair in pairs}, tmp_path)  # they lead to the CPU
    assert [str(link) for link in found.links] == ["SYS"] * 3


def test_ranks_go_by_link_and_then_by_peer_access() -> None:
    rising = [
        Link(cards=(0, 1)),
        Link(cards=(0, 1), path="SYS", peer=True),
        Link(cards=(0, 1), path="NODE"),
        Link(cards=(0, 1), path="PHB", peer=False),
        Link(cards=(0, 1), path="PHB", peer=True),
        Link(cards=(0, 1), path="PXB"),
        Link(cards=(0, 1), path="PIX", peer=True),
        Link(cards=(0, 1), path="SYS", nvlinks=1),
        Link(cards=(0, 1), path="PIX", nvlinks=2),
    ]
    ranks = [link.rank for link in rising]
    assert ranks == sorted(set(ranks))


def test_cards_clocked_lower_are_named_and_avoided(tmp_path: Path) -> None:
    found = topology.detect(nvml.Driver(eight_cards(Clock([0.0]))), tmp_path)
    [warning] = topology.warnings(found)
    assert "Tesla P100" in warning
    assert "application SM clock: 1189 MHz on GPU 2, 6; 1328 MHz on GPU 0, 1, 3, 4, 5, 7" in warning
    assert topology.best_group(found, 4) == (0, 1, 3, 4)
    assert topology.best_group(found, 6) == (0, 1, 3, 4, 5, 7)
    other = tuple(dataclasses.replace(card, name="Tesla K80") if card.index in (2, 6) else card for card in found.cards)
    assert topology.warnings(dataclasses.replace(found, cards=other)) == []  # of another kind they may differ


def test_a_card_that_is_gone_and_a_machine_without_driver(tmp_path: Path) -> None:
    links = {(0, 1): (10, True, False)}
    found = detected([p100(0), p100(1, lost_at=0)], links, tmp_path)
    assert [card.name for card in found.cards] == ["Tesla P100", "does not answer: GPU is lost"]
    library = RecordedNVML([])
    library.nvmlInit = fails(pynvml.NVMLError_DriverNotLoaded())  # type: ignore[method-assign]
    assert topology.detect(nvml.Driver(library), tmp_path) == Topology()


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(2, 6))
def test_no_other_group_has_a_faster_slowest_link(data: st.DataObject, count: int) -> None:
    paths = st.sampled_from(["PIX", "PXB", "PHB", "NODE", "SYS"])
    pairs = list(itertools.combinations(range(6), 2))
    links = tuple(
        Link(cards=pair, path=data.draw(paths), nvlinks=data.draw(st.sampled_from([0, 0, 1, 2]))) for pair in pairs
    )
    found = Topology(cards=tuple(Card(index=index, name="V100") for index in range(6)), links=links)

    def slowest(group: tuple[int, ...]) -> int:
        return min(link.rank for link in links if set(link.cards) <= set(group))

    best = topology.best_group(found, count)
    assert len(best) == count
    assert slowest(best) == max(slowest(group) for group in itertools.combinations(range(6), count))


def test_processors_from_the_kernels_tree(tmp_path: Path) -> None:
    nodes = "devices/system/node"
    files: dict[str, object] = {f"{nodes}/node0/cpulist": "0-1,4-5", f"{nodes}/node1/cpulist": "2-3,6-7"}
    for core in range(8):
        cpu = f"devices/system/cpu/cpu{core}"
        files[f"{cpu}/topology/thread_siblings_list"] = f"{core % 4},{core % 4 + 4}"
        files[f"{cpu}/topology/physical_package_id"] = core % 4 // 2
        files[f"{cpu}/cpufreq/cpuinfo_min_freq"] = 800_000
        files[f"{cpu}/cpufreq/cpuinfo_max_freq"] = 3_600_000 if core else 3_700_000
        files[f"{cpu}/cpufreq/scaling_max_freq"] = 2_200_000
    files["devices/system/cpu/cpu8/online"] = 0  # switched off
    kernel_tree(tmp_path, files)
    library = RecordedNVML([])
    [line] = topology.lines(topology.detect(nvml.Driver(library), tmp_path))
    assert line == (
        "cores   2 sockets, 4 physical cores, 8 logical cores, 2 NUMA nodes (0: 0-1,4-5; 1: 2-3,6-7); 800 to 3700 MHz, "
        "held to 2200 MHz by the system's settings"
    )


def test_processors_of_which_the_kernel_tells_nothing(tmp_path: Path) -> None:
    found = topology.detect(nvml.Driver(RecordedNVML([])), tmp_path)
    assert found.processors == topology.Processors()
    assert topology.lines(found) == ["cores   unknown; the system does not tell its frequency limits"]
