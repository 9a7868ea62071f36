"""What the sensors read: of a real process, which counts for itself, of a made kernel tree and a recorded driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from poc.machine import nvml, sensors
from poc.machine.sensors import Reading
from tests.recorded_nvml import eight_cards

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

        with sensors.processes([worker.pid], cores=2) as [sensor]:
            earliest = tell("start")
            first = sensor.read(0.0)
            latest = tell("go on")
            assert first.utilisation is None
            for at, work in enumerate(["burn", "wait for a child that burns", "allocate"], start=1):
                spent = tell(work)
                reading = sensor.read(at)
                now = tell("go on")
                assert reading.utilisation is not None
                used = reading.utilisation * 2  # seconds of two cores, in one second
                assert spent - latest - ROUNDING <= used <= now - earliest + ROUNDING
                earliest, latest = spent, now
            assert first.memory_bytes is not None
            assert reading.memory_bytes is not None
            assert reading.memory_bytes - first.memory_bytes > 60 << 20
            worker.communicate()
            assert sensor.read(9.0) == Reading()


def kernel_tree(root: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


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
    with sensors.processes([os.getpid()], cores=1, system=packages(tmp_path, 900_000)) as [sensor]:
        watts = []
        for at in (0.0, 0.5, 1.0):
            packages(tmp_path, 900_000 + int(at * 800_000))
            watts.append(sensor.read(at).power_watts)
    assert watts == [None, pytest.approx(1.2), pytest.approx(1.2)]


@pytest.mark.parametrize("fault", ["absent", "one unreadable", "standing still"])
def test_power_that_is_not_told_is_none(fault: str, tmp_path: Path) -> None:
    if fault != "absent":
        packages(tmp_path, 100)
    with sensors.processes([os.getpid()], cores=1, system=tmp_path) as [sensor]:
        for at in (0.0, 1.0):
            if fault == "one unreadable":
                packages(tmp_path, 100 + 1000 * int(at))
                (tmp_path / "class/powercap/intel-rapl:1/energy_uj").unlink()
            reading = sensor.read(at)
    assert (reading.power_watts, reading.core_clock_mhz) == (None, None)
    assert reading.utilisation is not None


def test_clock_of_the_cores_that_may_be_used(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    files: dict[str, object] = {f"devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq": 2_400_000 for core in mine}
    files[f"devices/system/cpu/cpu{mine[-1] + 1}/cpufreq/scaling_cur_freq"] = 800_000  # another's
    with sensors.processes([os.getpid()], cores=1, system=kernel_tree(tmp_path, files)) as [sensor]:
        assert sensor.read(0.0).core_clock_mhz == 2400


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
    with sensors.gpus(2) as first_two:
        assert [sensor.device for sensor in first_two] == [f"gpu {card}" for card in cards[:2]]
