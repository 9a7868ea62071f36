"""What a machine has and did: the monitor on a recorded NVIDIA driver and on devices that fail or hang; which cards and
cores work together; processes that die with their parent, are watched and blamed."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poc.host import child, control_groups, hardware, monitor, nvml, processes, topology
from poc.host.monitor import Device, DeviceUse, Monitor, Reading
from poc.host.topology import Topology
from poc.values import UserError
from tests.launch import HOME, eventually
from tests.recorded_nvml import GIB, Links, RecordedNVML, eight_cards, kernel_tree, p100

SECONDS = 10
LONG = 300.0  # seconds: what has not happened by then never will


def use(library: RecordedNVML, monkeypatch: pytest.MonkeyPatch) -> RecordedNVML:
    """Has the driver of this process be that one, with all its cards visible."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml, "pynvml", library)
    return library


def sampled(times: Sequence[float], readings: Sequence[Reading]) -> Device:
    """A device that said this at these times."""
    upcoming = iter(readings)
    device = Device("gpu 0", lambda _: next(upcoming))
    assert all([device.sample(at) for at in times])
    return device


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[DeviceUse]:
    library = use(eight_cards(), monkeypatch)
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
        (
            "nvmlInit",
            pynvml.NVMLError_LibraryNotFound(),
            "the NVIDIA driver does not answer: NVML Shared Library Not Found",
        ),
        ("nvmlDeviceGetHandleByIndex", pynvml.NVMLError_GpuIsLost(), "GPU is lost"),
        ("nvmlDeviceGetPowerUsage", pynvml.NVMLError_ResetRequired(), "GPU requires restart"),
        ("nvmlDeviceGetPowerUsage", OSError("the library broke"), "OSError('the library broke')"),
        ("_answer", pynvml.NVMLError_Unknown(), "none of its counters can be read"),
    ],
)
def test_whatever_fails_in_the_driver_is_told_and_never_reaches_the_run(
    function: str, error: BaseException, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(use(RecordedNVML([p100(0)]), monkeypatch), function, fail, raising=False)
    with Monitor(monitor.gpus([0]), interval=0) as watching:
        watching._thread.join(LONG)
    summary = watching.summary()
    assert summary.samples == 0
    assert said in [summary.lost, *(device.lost for device in summary.devices)]
    for device in summary.devices:
        assert {value for key, value in vars(device).items() if key not in ("device", "lost", "throttled")} == {None}


def test_it_stops_at_once_whatever_its_interval_and_lets_the_runs_own_errors_pass() -> None:
    started = threading.Event()

    def read(_: float) -> Reading:
        started.set()
        return Reading()

    watching = Monitor(contextlib.nullcontext([Device("gpu 0", read)]), interval=3600)

    def run() -> None:
        with watching:
            assert started.wait(LONG)
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


@settings(max_examples=60)
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
    summary = sampled(times, readings).summary()
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
    # A counter of energy counts what the readings of power, taken once a second, miss.
    energy = [0.0, 50.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 1050.0, 1100.0] if counter else [None] * 9
    readings = [reading._replace(joules=joules) for reading, joules in zip(READINGS, energy)]
    device = sampled(range(100, 109), readings)
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


# The kernel rounds each of four times (user, system, of the children too) down to whole ticks, at both readings.
ROUNDING = 8 / os.sysconf("SC_CLK_TCK")


def test_use_and_memory_are_what_the_process_says_of_itself() -> None:
    def spent() -> float:
        """CPU seconds of this process and of the children that it has waited for."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    with monitor.processes([os.getpid()], cores=2) as [device]:
        earliest = spent()
        first = device.read(0.0)
        latest = spent()
        assert first.utilisation is None
        for at, work in enumerate(["burn", "wait for a child that burns", "allocate"], start=1):
            until = time.process_time() + 0.5
            while work == "burn" and time.process_time() < until:
                pass
            if work == "wait for a child that burns":
                subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
            # Read right before: a system that reclaims idle memory takes some of it meanwhile.
            resident = psutil.Process().memory_info().rss
            held = b"x" * (64 << 20) if work == "allocate" else b""
            before = spent()
            reading = device.read(at)
            now = spent()
            used = reading.utilisation * 2  # seconds of two cores, in one second
            assert before - latest - ROUNDING <= used <= now - earliest + ROUNDING
            earliest, latest = before, now
        assert reading.memory_bytes - resident > len(held) - (4 << 20)
    with subprocess.Popen(["sleep", "9999"]) as ended, monitor.processes([ended.pid], cores=2) as [device]:
        ended.kill()
        ended.wait()
        assert device.read(9.0) == Reading()


def packages(root: Path, microjoules: int) -> Path:
    """Two packages whose counters start over at 1 J; the second is half as busy; a part and a superset of them."""
    zones = {"0": ("package-0", microjoules), "1": ("package-1", microjoules // 2)}
    zones |= {"0:0": ("core", microjoules // 3), "2": ("psys", microjoules * 2)}
    files: dict[str, object] = {}
    for zone, (name, energy) in zones.items():
        told = {"name": name, "energy_uj": energy % 1_000_000, "max_energy_range_uj": 1_000_000}
        files.update({f"class/powercap/intel-rapl:{zone}/{file}": content for file, content in told.items()})
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
    use(eight_cards(), monkeypatch)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert nvml.visible() == cards


def test_cards_that_no_run_can_have_are_named_and_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    library = use(eight_cards(), monkeypatch)
    library.cards[2].update(lost=0)
    with pytest.raises(UserError, match=r"^GPU 2 does not answer .*CUDA_VISIBLE_DEVICES"):
        hardware.detect()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,GPU-3f00")
    assert [gpu.index for gpu in hardware.detect().gpus] == [0, 1, 3]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77")
    with pytest.raises(UserError, match="MIG"):
        hardware.detect()


# Control groups

UNLIMITED = 0x7FFFFFFFFFFFF000  # as version 1 says it
V2 = "29 23 0:26 {root} /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = """\
30 25 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,mode=755
34 30 0:30 {root} /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:15 - cgroup cgroup rw,cpu,cpuacct
35 30 0:31 {root} /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory"""
# What a machine shows: the process's groups, the mounts, and below /sys/fs/cgroup the files of the groups.
TREES: dict[str, tuple[str, str, dict[str, object]]] = {
    "no groups": ("", "", {}),
    "Slurm, version 1": (
        "8:memory:/slurm/uid_1000/job_42/step_batch/task_0\n4:cpu,cpuacct:/slurm/uid_1000/job_42/step_batch\n1:name=systemd:/",
        V1.format(root="/"),
        {
            "memory/memory.limit_in_bytes": UNLIMITED,
            "memory/slurm/uid_1000/job_42/memory.limit_in_bytes": 5 * GIB,
            "memory/slurm/uid_1000/job_42/step_batch/memory.limit_in_bytes": 6 * GIB,
            "memory/slurm/uid_1000/job_42/step_batch/task_0/memory.limit_in_bytes": UNLIMITED,
            "memory/slurm/uid_1000/job_43/memory.limit_in_bytes": GIB,
            "cpu,cpuacct/slurm/uid_1000/job_42/cpu.cfs_quota_us": 250_000,
            "cpu,cpuacct/slurm/uid_1000/job_42/cpu.cfs_period_us": 100_000,
            "cpu,cpuacct/slurm/uid_1000/job_42/step_batch/cpu.cfs_quota_us": -1,
            "cpu,cpuacct/slurm/uid_1000/job_42/step_batch/cpu.cfs_period_us": 100_000,
        },
    ),
    "a slice of systemd, version 2": (
        "0::/user.slice/user-1000.slice/run-r1.scope",
        V2.format(root="/"),
        {
            "user.slice/cpu.max": "50000 100000",
            "user.slice/memory.max": "max",
            "user.slice/user-1000.slice/cpu.max": "max 100000",
            "user.slice/user-1000.slice/memory.max": 5 * GIB,
            "user.slice/user-1000.slice/memory.high": 4 * GIB,
            "user.slice/user-1000.slice/run-r1.scope/memory.max": 6 * GIB,
            "system.slice/memory.max": GIB,
        },
    ),
    "a pod of Kubernetes, version 2": (
        "0::/",
        V2.format(root="/"),
        {"cpu.max": "300000 100000", "memory.max": 3 * GIB, "memory.high": "max"},
    ),
    "a pod, mounted by the node": (
        "0::/",
        V2.format(root="/../../.."),
        {"cpu.max": "300000 100000", "memory.max": 3 * GIB},
    ),
    "Docker, version 1, in a limited group that it does not show": (
        "3:memory:/docker/0a1b\n2:cpu,cpuacct:/docker/0a1b",
        V1.format(root="/docker/0a1b"),
        {
            "memory/memory.limit_in_bytes": 8 * GIB,
            "memory/memory.stat": f"cache 0\nhierarchical_memory_limit {2 * GIB}\ntotal_cache 0",
            "cpu,cpuacct/cpu.cfs_quota_us": 100_000,
            "cpu,cpuacct/cpu.cfs_period_us": 50_000,
        },
    ),
    "both versions at once": (
        "3:memory:/job/task\n0::/job/task",
        V1.format(root="/") + "\n" + V2.format(root="/").replace(" /sys/fs/cgroup ", " /sys/fs/cgroup/uni\\040fied "),
        {"memory/job/memory.limit_in_bytes": 7 * GIB, "uni fied/job/cpu.max": "100000 100000"},
    ),
}


@pytest.mark.parametrize(
    ("tree", "cores", "memory"),
    [
        ("no groups", 4, 16 * GIB),
        ("Slurm, version 1", 2, 5 * GIB),
        ("a slice of systemd, version 2", 1, 4 * GIB),
        ("a pod of Kubernetes, version 2", 3, 3 * GIB),
        ("a pod, mounted by the node", 3, 3 * GIB),
        ("Docker, version 1, in a limited group that it does not show", 2, 2 * GIB),
        ("both versions at once", 1, 7 * GIB),
    ],
)
def test_the_lowest_limit_of_all_groups_up_to_the_root_counts(
    tree: str, cores: int, memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * GIB))
    groups, mounts, files = TREES[tree]
    kernel_tree(tmp_path, {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts})
    kernel_tree(tmp_path / "sys/fs/cgroup", files)
    assert hardware.usable_cores(tmp_path) == cores
    assert hardware.usable_memory(tmp_path) == memory


@pytest.mark.parametrize(
    ("groups", "files", "kills"),
    [
        ("0::/pod/ctr", {"pod/memory.events": "oom 9\noom_kill 9", "pod/ctr/memory.events": "oom 3\noom_kill 2"}, 2),
        ("5:memory:/job", {"memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4"}, 4),
        ("0::/", {"../../../proc/vmstat": "pgfault 70\noom_kill 6\nnuma_hit 1"}, 6),
        ("0::/", {}, None),
    ],
)
def test_kills_for_memory_are_those_of_the_own_group_or_else_of_the_machine(
    groups: str, files: dict[str, object], kills: int | None, tmp_path: Path
) -> None:
    mounts = V1.format(root="/") if "memory" in groups else V2.format(root="/")
    kernel_tree(tmp_path, {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts})
    kernel_tree(tmp_path / "sys/fs/cgroup", files)
    assert control_groups.memory_kills(tmp_path) == kills


@contextlib.contextmanager
def nested_groups(controllers: Mapping[str, Mapping[str, object]]) -> Iterator[list[str]]:
    """Real groups with these settings, and one without any in each; gives the start of a command that runs in those.

    Skips the test where this machine does not have them, or lets nobody make them.
    """
    made: list[Path] = []
    try:
        for controller, settings in controllers.items():
            version_1 = Path("/sys/fs/cgroup", controller).is_dir()
            root = Path("/sys/fs/cgroup", controller if version_1 else "")
            if not version_1:
                (root / "cgroup.subtree_control").write_text("+cpu +memory +cpuset")
            outer = root / f"poc-test-{os.getpid()}"
            for folder in (outer, outer / "inner"):
                if folder not in made:
                    folder.mkdir()
                    made.append(folder)
                for name, content in settings.items() if folder == outer else ():
                    if (outer / name).exists():
                        (outer / name).write_text(str(content))
        joined = "".join(f"echo $$ > {folder}/cgroup.procs; " for folder in made if folder.name == "inner")
        yield ["sh", "-e", "-c", f'{joined}exec "$@"', "sh"]
    except OSError as error:
        pytest.skip(f"no control groups can be made here: {error}")
    finally:
        for folder in reversed(made):
            # The kernel takes a moment to see that a group is empty.
            eventually(lambda folder=folder: not folder.exists() or removed(folder))


def removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def test_doctor_sees_the_limits_of_a_real_group_above_its_own() -> None:
    memory = {"memory.limit_in_bytes": GIB, "memory.max": GIB}
    quota = {"cpu.cfs_quota_us": 100_000, "cpu.max": "100000 100000"}
    with nested_groups({"memory": memory, "cpu": quota}) as inside:
        said = subprocess.run(
            [*inside, sys.executable, "-W", "ignore", "-m", "poc", "doctor"], cwd=HOME, capture_output=True, text=True
        )
    assert said.returncode == 0, said.stderr
    assert re.search(r"\b1 cores?, 1 GiB ", said.stdout)


def test_cores_that_a_real_cpuset_above_takes_away_are_not_counted() -> None:
    (first, *_), memory_nodes = sorted(os.sched_getaffinity(0)), "0"
    settings = {"cpuset.mems": memory_nodes, "cpuset.cpus": first, "cgroup.clone_children": 1}
    code = "from poc.host import hardware; print(hardware.usable_cores(), hardware.nodes())"
    with nested_groups({"cpuset": settings}) as inside:
        said = subprocess.run([*inside, sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True)
    assert said.stdout == f"1 {{0: [{first}]}}\n", said.stderr


# Cards by a recorded driver, cores and nodes by a kernel tree made for the test

PAIRS = list(itertools.combinations(range(6), 2))


def detected(monkeypatch: pytest.MonkeyPatch, library: RecordedNVML) -> Topology:
    use(library, monkeypatch)
    machine = hardware.detect()
    assert (len(machine.gpus), machine.driver) == (len(library.cards), "535.161")
    assert {(gpu.capability, gpu.memory_bytes) for gpu in machine.gpus} == {((6, 0), 16 * GIB)}
    return topology.detect(machine.gpus)


def test_cards_of_one_island_train_best_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the Keras study, one switch an island and the CPU between them; here the even cards and the odd ones."""
    links: Links = {(a, b): (10 if (a - b) % 2 == 0 else 30, True, False) for a, b in PAIRS}
    islands = detected(monkeypatch, RecordedNVML([p100(number) for number in range(6)], links))
    groups = [topology.best_group(islands, count) for count in (1, 2, 3, 4, 6, 7)]
    assert groups == [(0,), (0, 2), (0, 2, 4), (0, 1, 2, 4), (0, 1, 2, 3, 4, 5), ()]
    assert topology.warnings(islands) == []


def test_cards_clocked_lower_are_named_and_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    library = eight_cards()
    [warning] = topology.warnings(detected(monkeypatch, library))
    assert "Tesla P100" in warning
    assert "SM 1189, memory 715 MHz on GPU 2, 6" in warning
    assert "SM 1328, memory 715 MHz on GPU 0, 1, 3, 4, 5, 7" in warning
    assert topology.best_group(detected(monkeypatch, library), 4) == (0, 1, 3, 4)
    assert topology.best_group(detected(monkeypatch, library), 6) == (0, 1, 3, 4, 5, 7)
    for card in (2, 6):
        library.cards[card].update(nvmlDeviceGetName=b"Tesla K80")
    assert topology.warnings(detected(monkeypatch, library)) == []  # of another kind they may differ


@pytest.mark.parametrize(("peers_by_nvlink", "as_if"), [(True, {"nvlinks": 12}), (False, {"level": 50})])
def test_nvlinks_lead_to_a_card_to_a_switch_or_to_the_cpu(
    peers_by_nvlink: bool, as_if: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    triangle = [p100(0, nvlinks=[1, 1, 2]), p100(1, nvlinks=[0, 0]), p100(2, nvlinks=[0])]
    links: Links = {pair: (50, True, pair != (1, 2)) for pair in itertools.combinations(range(3), 2)}
    by_links = detected(monkeypatch, RecordedNVML(triangle, links)).link_ranks
    assert by_links[0, 1] > by_links[0, 2] > by_links[1, 2]
    switch = 99
    switched = [p100(number, nvlinks=[switch] * 12) for number in range(3)]
    links = {pair: (50, True, peers_by_nvlink) for pair in links}
    found = detected(monkeypatch, RecordedNVML(switched, links))
    assert set(found.link_ranks.values()) == {rank(monkeypatch, peer=True, **as_if)}


def rank(monkeypatch: pytest.MonkeyPatch, level: int | None = 50, peer: bool = False, nvlinks: int = 0) -> int:
    """Of the link between two cards."""
    cards = [p100(0, nvlinks=[1] * nvlinks), p100(1, nvlinks=[0] * nvlinks)]
    return detected(monkeypatch, RecordedNVML(cards, {(0, 1): (level, peer, nvlinks > 0)})).link_ranks[0, 1]


def test_links_rank_by_nvlinks_then_by_nearness_and_then_by_peer_access(monkeypatch: pytest.MonkeyPatch) -> None:
    nearer = [(None, False), (50, True), (40, False), (30, False), (30, True), (20, False), (10, True), (0, False)]
    ranks = [rank(monkeypatch, level, peer) for level, peer in nearer]
    ranks += [rank(monkeypatch, level=50, nvlinks=1), rank(monkeypatch, level=10, nvlinks=2)]
    assert ranks == sorted(set(ranks))


@settings(max_examples=40)
@given(st.lists(st.integers(0, 20), min_size=len(PAIRS), max_size=len(PAIRS)), st.integers(2, 6))
def test_no_other_group_has_a_faster_slowest_link(ranks: list[int], count: int) -> None:
    links = dict(zip(PAIRS, ranks))
    cards = Topology(names=dict.fromkeys(range(6), "V100"), clocks=dict.fromkeys(range(6), (0, 0)), link_ranks=links)

    def slowest(group: tuple[int, ...]) -> int:
        return min(links[pair] for pair in itertools.combinations(group, 2))

    best = topology.best_group(cards, count)
    assert len(best) == count
    assert slowest(best) == max(slowest(group) for group in itertools.combinations(range(6), count))


TWO_NODES = {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}


def test_the_cores_of_each_node_and_the_node_of_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, object] = {
        "devices/system/node/node0/cpulist": "0-3,8-9",
        "devices/system/node/node2/cpulist": "4-7",
        "devices/system/node/node10/cpulist": "10",
        "devices/system/node/node11/cpulist": "",  # memory alone
        "bus/pci/devices/0000:05:00.0/numa_node": 2,
        "bus/pci/devices/0000:06:00.0/numa_node": -1,
    }
    system = kernel_tree(tmp_path, files)
    for folder, allowed, nodes in [
        (system, range(16), {0: [0, 1, 2, 3, 8, 9], 2: [4, 5, 6, 7], 10: [10]}),
        (system, [9, 4], {0: [9], 2: [4]}),
        (tmp_path / "nowhere", [3, 1], {0: [1, 3]}),
    ]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=allowed: set(cores))
        assert hardware.nodes(folder) == nodes
    use(eight_cards(), monkeypatch)
    assert [hardware.node_of(card, system) for card in (5, 6, 7)] == [2, None, None]


@pytest.mark.parametrize(
    ("nodes", "workers", "cores", "near", "groups"),
    [
        ({0: [0, 1]}, 2, 1, None, [[0], [1]]),
        (TWO_NODES, 2, 4, None, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (TWO_NODES, 4, 2, None, [[0, 1], [4, 5], [2, 3], [6, 7]]),
        (TWO_NODES, 2, 2, None, [[0, 1], [4, 5]]),
        (TWO_NODES, 3, 2, [1, 1, 0], [[4, 5], [6, 7], [0, 1]]),
        (TWO_NODES, 2, 2, [None, 7], [[0, 1], [4, 5]]),
        ({0: [0, 1, 2], 1: [3, 4, 5]}, 3, 2, None, [[0, 1], [3, 4], [2, 5]]),  # the last has to have of both
    ],
)
def test_cores_of_a_worker_are_of_one_node(
    nodes: dict[int, list[int]], workers: int, cores: int, near: Any, groups: list[list[int]]
) -> None:
    assert hardware.core_groups(nodes, workers, cores, near) == groups


# Processes, and their scratch folders


def test_a_process_whose_parent_died_before_it_could_tell_the_kernel_does_nothing(tmp_path: Path) -> None:
    command = [sys.executable, child.__file__, "0", "/usr/bin/touch", str(tmp_path / "done")]
    assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 1
    assert not (tmp_path / "done").exists()


def test_a_scratch_folder_goes_with_its_owner_or_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    owner = "from poc.host import processes\nwith processes.scratch() as own: print(own, flush=True), input()"
    environment, pipes = {**os.environ, "TMPDIR": str(tmp_path)}, {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", owner], cwd=HOME, env=environment, text=True, **pipes) as other:
        assert other.stdout is not None
        others = Path(other.stdout.readline().strip())
        with processes.scratch() as own:
            assert set(tmp_path.iterdir()) == {own, others}
        other.kill()
    assert list(tmp_path.iterdir()) == [others]
    with processes.scratch() as own:
        assert list(tmp_path.iterdir()) == [own]
    assert list(tmp_path.iterdir()) == []


def shells(**commands: str) -> dict[str, subprocess.Popen[str]]:
    return {name: subprocess.Popen(["sh", "-c", command], text=True) for name, command in commands.items()}


@pytest.mark.parametrize("seen_later", [False, True])
@pytest.mark.parametrize("victim", ["worker 1", "hub"])
def test_a_killed_process_is_blamed_before_a_worker_that_failed_without_it(
    victim: str, seen_later: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_GRACE_SECONDS", LONG)
    started = shells(**{"worker 0": "exit 1"})
    # A process that has ended can be sent signals until note is taken of its end.
    until = f"while kill -0 {started['worker 0'].pid} 2>/dev/null; do sleep 0.01; done; " if seen_later else ""
    started |= shells(**{victim: f"{until}kill -KILL $$"})
    for process in [*started.values()][: 1 if seen_later else 2]:  # until it has ended, without taking note of it
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    helpers = {name: started.pop(name) for name in ("hub",) if name in started}
    lost = processes.watch(started, helpers, [tmp_path / "none"], patience=LONG)
    assert lost is not None
    assert (lost[0], "signal 9" in lost[1]) == (victim, True)


def test_a_worker_that_crashes_once_it_has_done_its_work_keeps_no_other_from_ending(tmp_path: Path) -> None:
    started = shells(**{"worker 0": "kill -SEGV $$", "worker 1": f"sleep 0.5; touch {tmp_path / 'ended'}"})
    lost = processes.watch(started, {}, [tmp_path / "none"], patience=LONG, done=lambda name: name == "worker 0")
    assert lost is None
    assert (tmp_path / "ended").exists()


def test_a_worker_that_gives_signs_of_life_is_not_taken_for_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, sign = tmp_path / "count", tmp_path / "sign"
    step = f"open({str(count)!r}, 'a').write('.'); time.sleep(0.1); os.utime({str(sign)!r})"
    code = f"import os, time\nfor _ in range(9): {step}"
    for file in (count, sign):
        file.touch()
    # A second passes with each sign, however long others keep the worker waiting for a core.
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: float(count.stat().st_size)))
    monkeypatch.setattr(processes, "_LOOK_SECONDS", 0.02)
    with subprocess.Popen([sys.executable, "-c", code], text=True) as busy:
        assert processes.watch({"worker 0": busy}, {}, [sign], patience=2.5) is None
    assert count.stat().st_size == 9


@pytest.mark.parametrize("command", ["sleep 9999", "while true; do :; done"])
def test_workers_that_wait_or_only_spin_are(command: str, tmp_path: Path) -> None:
    with subprocess.Popen(["sh", "-c", command], text=True) as idle:
        lost = processes.watch({"worker 0": idle}, {}, [tmp_path / "none"], patience=1.5)
        # One that has told all and hangs at its end is no loss.
        told = processes.watch({"worker 0": idle}, {}, [tmp_path / "none"], 0.5, done=lambda name: True)
        processes.stop([idle])
    assert told is None
    assert lost is not None
    assert (lost[0], "--patience" in lost[1]) == ("worker 0", True)


@pytest.mark.parametrize(
    ("limits", "command", "hint"),
    [
        # The kernel kills at the hard limit, and tells at the soft one.
        ((1, 1), "while true; do :; done", "signal 9; .*ulimit -t: 1 s"),
        ((1, 60), "while true; do :; done", f"signal {signal.SIGXCPU:d}; .*ulimit -t"),
        (None, "kill -TERM $$", "signal 15; .*another process"),
        (None, "kill -BUS $$", f"signal {signal.SIGBUS:d}; .*/dev/shm"),
        (None, "kill -SEGV $$", "signal 11$"),
        (None, "exit 3", "exit code 3$"),
    ],
)
def test_a_process_that_ended_early_is_said_to_have_for_what_ended_it(
    limits: tuple[int, int] | None, command: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = resource.getrlimit(resource.RLIMIT_CPU)
    if limits and before[1] != resource.RLIM_INFINITY:
        pytest.skip("CPU time is limited here already")
    if limits:  # of what this process starts: its own is its parent's to know
        monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
        command = f"ulimit -S -t {limits[0]}; ulimit -H -t {limits[1]}; {command}"
    started = shells(**{"worker 0": command})
    lost = processes.watch(started, {}, [tmp_path / "none"], patience=LONG)
    assert lost is not None
    assert re.search(hint, lost[1])
    assert "memory" not in lost[1]
