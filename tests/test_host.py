"""What a host has: GPUs, limits of control groups, NUMA nodes; and the effects of other processes and variables."""

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from poc.__main__ import main
from poc.host import control_groups, environment, hardware, nvml, waiting
from poc.records.record import COMPLETED
from poc.run import launcher
from poc.values import UserError
from tests.builders import GLUON, executed, run_of
from tests.launch import HOME, eventually
from tests.recorded_nvml import GIB, RecordedNVML, eight_cards, kernel_tree


def use(library: RecordedNVML, monkeypatch: pytest.MonkeyPatch) -> RecordedNVML:
    """Replace the driver of this process, with all its cards visible to CUDA."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml, "pynvml", library)
    monkeypatch.setattr(hardware, "_product_seconds", lambda: 0.01)  # takes half a second of a process
    return library


@pytest.mark.parametrize(
    ("cpu", "label"),
    [
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "CPU: Intel Xeon Platinum 8481C, 2 cores"),
        ("AMD EPYC 7R13 Processor", "CPU: AMD EPYC 7R13 Processor, 2 cores"),
    ],
)
def test_the_label_of_a_cpu(cpu: str, label: str) -> None:
    assert hardware.Hardware(cpu=cpu, cores=2, memory_bytes=2**34, cpu_flops=1e11).describe() == label


# GPUs


@pytest.mark.parametrize(
    ("setting", "cards"),
    [("6, 1", [6, 1]), ("-1", []), ("5,99,1", [5]), ("GPU-5,GPU-3f", [5, 3]), ("4,GPU-", [4]), ("3,GPU-3,1", [])],
)
def test_the_cards_that_cuda_uses(setting: str, cards: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    use(eight_cards(), monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert nvml.visible_gpus() == cards


def test_a_lost_card_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for lost in ({"lost": 0}, {"lost": 0, "error": pynvml.NVML_ERROR_UNKNOWN}):
        use(eight_cards(), monkeypatch).cards[2].update(lost)
        with pytest.raises(UserError, match=r"^GPU 2 .*CUDA_VISIBLE_DEVICES"):
            hardware.detect()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,GPU-3f00")
        assert [gpu.index for gpu in hardware.detect().gpus] == [0, 1, 3]


def test_a_divided_card_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = use(eight_cards(), monkeypatch).cards
    cards[0]["nvmlDeviceGetMigMode"] = [0, 1]  # divided only after the next reset
    assert (len(hardware.detect().gpus), hardware.gpu_problem()) == (8, "")
    cards[1]["nvmlDeviceGetMigMode"] = [1, 1]
    assert [gpu.index for gpu in hardware.detect().gpus] == [0, *range(2, 8)]
    assert hardware.gpu_problem().startswith("GPU 1 ")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert hardware.gpu_problem() == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77")
    assert (hardware.detect().gpus, "MIG-5d5ba0d6" in hardware.gpu_problem()) == ((), True)
    for setting, is_problem in (("GPU-9", True), ("8", True), ("all", True), ("0,0", True), ("-1", False), ("", False)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
        assert (hardware.detect().gpus, bool(hardware.gpu_problem())) == ((), is_problem)


def test_cards_that_a_control_group_denies_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = use(eight_cards(), monkeypatch).cards
    for card in cards[:4]:
        card["denied"] = True
    for setting, own in ((None, [4, 5, 6, 7]), ("0", [4]), ("3,2", [7, 6]), ("4", []), ("GPU-0,GPU-6", [])):
        if setting:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
        assert [gpu.index for gpu in hardware.detect().gpus] == own
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert hardware.gpu_problem() == ""
    for card in cards:
        card["denied"] = True
    assert (hardware.detect().gpus, "--gpus" in hardware.gpu_problem()) == ((), True)


def test_workers_get_uuids_where_cuda_numbers_cards_unlike_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = use(eight_cards(), monkeypatch).cards
    assert nvml.cuda_setting([3, 2]) == "3,2"
    for card, changes in ((1, {"nvmlDeviceGetMigMode": [1, 1]}), (7, {"denied": True}), (1, {"lost": 0})):
        usual, cards[card] = cards[card], {**cards[card], **changes}
        assert nvml.cuda_setting([3, 2]) == "GPU-3f00,GPU-2f00"
        cards[card] = usual


# No error for the GPUs that workers get.
OF_WORKERS = "int(os.environ.get('CUDA_VISIBLE_DEVICES') != '0,1,2,3,4,5,6,7')"


@pytest.mark.parametrize(("answer", "problem"), [("0", ""), ("802", "error 802"), ("1 / 0", ""), (OF_WORKERS, "")])
def test_cuda_that_does_not_start_is_reported_whatever_a_preloaded_library_prints(
    answer: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, prints = subprocess.run, r"import os, atexit; os.write(1, b'\xff 7'); atexit.register(print, 'error 9')"

    def run_with_answer(command: list[str], **options: Any) -> Any:
        probe = command[-1].replace("ctypes.CDLL('libcuda.so.1').cuInit(0)", answer)
        return run([*command[:-1], f"{prints}; {probe}"], **options)

    monkeypatch.setattr(subprocess, "run", run_with_answer)
    use(eight_cards(), monkeypatch)
    assert (hardware.gpu_problem() != "", problem in hardware.gpu_problem()) == (problem != "", True)


NVIDIA_CARD, NVIDIA_DISPLAY = ("0x030200", "0x10de"), ("0x030000", "0x10de")
NVIDIA_BRIDGE, MI300X, RADEON_PRO_V520 = ("0x068000", "0x10de"), ("0x120000", "0x1002"), ("0x038000", "0x1002")
AMD_DISPLAY, AMD_AUDIO, ASPEED = ("0x030000", "0x1002"), ("0x040300", "0x1002"), ("0x030000", "0x1a03")


@pytest.mark.parametrize(
    ("devices", "vendor"),
    [
        ([NVIDIA_BRIDGE, NVIDIA_CARD], "an NVIDIA GPU"),
        ([NVIDIA_DISPLAY], "an NVIDIA GPU"),
        ([AMD_AUDIO, MI300X], "an AMD GPU"),
        ([RADEON_PRO_V520], "an AMD GPU"),
        ([NVIDIA_BRIDGE, AMD_DISPLAY, AMD_AUDIO, ASPEED], ""),
        ([], ""),
    ],
)
def test_a_card_without_a_driver_is_seen_on_the_bus_unless_it_is_a_screens(
    devices: list[tuple[str, str]], vendor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (device_class, vendor_id) in enumerate(devices):
        kernel_tree(tmp_path / f"0000:{number:02x}:00.0", {"class": device_class, "vendor": vendor_id})
    monkeypatch.setattr(hardware, "PCI_DEVICES", tmp_path)
    use(RecordedNVML([], driver=""), monkeypatch)
    assert vendor in hardware.gpu_problem()
    assert bool(vendor) == bool(hardware.gpu_problem())
    # A driver that lists no card may be too new for it. Cards that the user hides are no problem.
    use(RecordedNVML([], driver="595.71.05"), monkeypatch)
    assert bool(hardware.gpu_problem()) == bool(vendor)
    for library in (eight_cards(), RecordedNVML([], driver="")):
        use(library, monkeypatch)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        assert (hardware.detect().gpus, hardware.gpu_problem()) == ((), "")


def test_a_name_from_the_firmware_may_be_in_any_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "product_name").write_bytes(b"\xff\xff Server\n")
    monkeypatch.setattr(hardware, "PRODUCT_NAME", tmp_path / "product_name")
    assert main(["doctor"]) == 0


# Control groups

UNLIMITED = 0x7FFFFFFFFFFFF000  # in version 1
# Usable cores and memory; /proc/self/cgroup, and the files below /sys/fs/cgroup.
TREES: dict[str, tuple[tuple[int, int], str, dict[str, object]]] = {
    "no groups": ((4, 16 * GIB), "", {}),
    "Slurm, version 1": (
        (2, 5 * GIB),
        "8:memory:/slurm/job_42/step_batch/task_0\n4:cpu,cpuacct:/slurm/job_42/step_batch\n1:name=systemd:/",
        {
            "memory/memory.limit_in_bytes": UNLIMITED,
            "memory/slurm/job_42/memory.limit_in_bytes": 5 * GIB,
            "memory/slurm/job_42/step_batch/memory.limit_in_bytes": 6 * GIB,
            "memory/slurm/job_43/memory.limit_in_bytes": GIB,
            "cpu,cpuacct/slurm/job_42/cpu.cfs_quota_us": 250_000,
            "cpu,cpuacct/slurm/job_42/cpu.cfs_period_us": 100_000,
            "cpu,cpuacct/slurm/job_42/step_batch/cpu.cfs_quota_us": -1,
            "cpu,cpuacct/slurm/job_42/step_batch/cpu.cfs_period_us": 100_000,
        },
    ),
    "a slice of systemd, version 2": (
        (1, 4 * GIB),
        "0::/user.slice/user-1000.slice/run-r1.scope",
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
    "a pod, version 2": ((3, 3 * GIB), "0::/", {"cpu.max": "300000 100000", "memory.max": 3 * GIB}),
    "Docker, version 1, which mounts its own group": (
        (2, 8 * GIB),
        "3:memory:/docker/0a1b\n2:cpu,cpuacct:/docker/0a1b",
        {
            "memory/memory.limit_in_bytes": 8 * GIB,
            "cpu,cpuacct/cpu.cfs_quota_us": 100_000,
            "cpu,cpuacct/cpu.cfs_period_us": 50_000,
        },
    ),
    "both versions at once": (
        (1, 7 * GIB),
        "3:memory:/job/task\n0::/job/task",
        {"memory/job/memory.limit_in_bytes": 7 * GIB, "unified/job/cpu.max": "100000 100000"},
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_the_lowest_limit_of_all_groups_up_to_the_root_counts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=16 * GIB))
    limits, groups, files = TREES[name]
    kernel_tree(tmp_path, {"proc/self/cgroup": groups})
    kernel_tree(tmp_path / "sys/fs/cgroup", files)
    assert (hardware.usable_cores(tmp_path), hardware.usable_memory(tmp_path)) == limits


@pytest.mark.parametrize(
    ("groups", "files", "seconds"),
    [
        ("0::/pod/ctr", {"pod/cpu.max": "200000 100000", "pod/cpu.stat": "usage_usec 4500000\nuser_usec 1"}, 4.5),
        (
            "2:cpu,cpuacct:/d",
            {
                "cpu,cpuacct/d/cpu.cfs_quota_us": 200_000,
                "cpu,cpuacct/d/cpu.cfs_period_us": 100_000,
                "cpu,cpuacct/d/cpuacct.usage": 4_500_000_000,
            },
            4.5,
        ),
        ("0::/pod", {"pod/cpu.max": "200000 100000"}, None),  # unknown
        ("0::/pod", {"pod/cpu.max": "400000 100000", "pod/cpu.stat": "usage_usec 4500000"}, None),  # not the limit
    ],
)
def test_with_a_quota_only_its_group_s_processes_take_its_cores(
    groups: str, files: dict[str, Any], seconds: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    times = dict.fromkeys(("user", "nice", "system", "irq", "softirq", "steal"), 1.0)
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [SimpleNamespace(**times)] * 4)
    kernel_tree(tmp_path, {"proc/self/cgroup": groups})
    kernel_tree(tmp_path / "sys/fs/cgroup", files)
    cores, busy, stolen = hardware.core_times(tmp_path)
    assert (cores, busy, stolen) == ((2, seconds, 0.0) if seconds else (4, 20.0, 4.0))


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
    kernel_tree(tmp_path, {"proc/self/cgroup": groups})
    kernel_tree(tmp_path / "sys/fs/cgroup", files)
    assert control_groups.memory_kills(tmp_path) == kills


def test_the_speed_of_a_cpu_is_that_of_its_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_product_seconds", lambda: 1.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(control_groups, "core_quota", lambda *_: (2.0, Path()))
    machine = hardware.detect()
    assert (machine.cores, machine.cpu_flops) == (2, 2 * 1024**3 / 32)


def test_a_cpu_without_such_instructions_has_the_kernels_that_its_library_chooses(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """OpenBLAS takes a variable without a name for an unknown CPU: on Arm it then uses its oldest kernels."""
    monkeypatch.setenv("OPENBLAS_VERBOSE", "2")
    monkeypatch.setattr(hardware, "_cpuinfo", lambda field: "")
    assert hardware._product_seconds.__wrapped__() > 0
    assert "not found" not in capfd.readouterr().err


@contextlib.contextmanager
def memory_group(settings: Mapping[str, object]) -> Iterator[list[str]]:
    """Make a real control group with these settings and another inside it; yield the start of a command to run there.

    Skip the test if that is not possible.
    """
    version_1 = Path("/sys/fs/cgroup/memory")
    root = version_1 if version_1.is_dir() else version_1.parent
    outer = root / f"poc-test-{os.getpid()}"
    inner = outer / "inner"
    try:
        if root != version_1:
            (root / "cgroup.subtree_control").write_text("+memory")
        inner.mkdir(parents=True)
        for name, content in settings.items():
            if (outer / name).exists():
                (outer / name).write_text(str(content))
        yield ["sh", "-e", "-c", f'echo $$ > {inner}/cgroup.procs; exec "$@"', "sh"]
    except OSError as error:
        pytest.skip(f"no control groups can be made here: {error}")
    finally:
        for folder in (inner, outer):
            # The kernel takes a moment to see that a group is empty.
            eventually(lambda folder=folder: not folder.exists() or removed(folder))


def removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def test_the_limit_of_a_real_group_above_its_own_is_seen() -> None:
    command = [sys.executable, "-c", "from poc.host import control_groups; print(control_groups.memory_limit())"]
    with memory_group({"memory.limit_in_bytes": GIB, "memory.max": GIB}) as inside:
        shown = subprocess.run([*inside, *command], cwd=HOME, capture_output=True, check=True)
    assert int(shown.stdout) == GIB


# NUMA nodes

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
        assert hardware.numa_nodes(folder) == nodes
    use(eight_cards(), monkeypatch)
    assert [hardware.gpu_numa_node(card, system) for card in (5, 6, 7)] == [2, None, None]


ONE_NODE, OF_PAIRS = {0: [0, 1, 2, 3]}, {0: [0, 1, 4, 5], 1: [2, 3, 6, 7]}


@pytest.mark.parametrize(
    ("nodes", "siblings", "workers", "cores", "near", "groups"),
    [
        (TWO_NODES, "", 2, 4, None, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (TWO_NODES, "", 4, 2, None, [[0, 1], [4, 5], [2, 3], [6, 7]]),
        (TWO_NODES, "", 3, 2, [1, 1, 0], [[4, 5], [6, 7], [0, 1]]),
        (TWO_NODES, "", 2, 2, [None, 7], [[0, 1], [4, 5]]),
        ({0: [0, 1, 2], 1: [3, 4, 5]}, "", 3, 2, None, [[0, 1], [3, 4], [2, 5]]),  # the last has to have of both
        # Workers share no physical core.
        (ONE_NODE, "0-1 0-1 2-3 2-3", 2, 1, None, [[0], [2]]),
        (ONE_NODE, "0,2 1,3 0,2 1,3", 2, 2, None, [[0, 2], [1, 3]]),
        # A worker that fits on one node with its hyperthreads is not spread over two; else it has one of each core.
        (OF_PAIRS, "0,4 1,5 2,6 3,7 0,4 1,5 2,6 3,7", 1, 4, None, [[0, 4, 1, 5]]),
        (OF_PAIRS, "0,4 1,5 2,6 3,7 0,4 1,5 2,6 3,7", 2, 2, None, [[0, 1], [2, 3]]),
    ],
)
def test_cores_of_a_worker_are_of_one_node(
    nodes: dict[int, list[int]],
    siblings: str,
    workers: int,
    cores: int,
    near: Any,
    groups: list[list[int]],
    tmp_path: Path,
) -> None:
    for core, listed in enumerate(siblings.split()):
        kernel_tree(tmp_path, {f"devices/system/cpu/cpu{core}/topology/thread_siblings_list": listed})
    assert hardware.core_groups(nodes, workers, cores, near, tmp_path) == groups


def test_with_a_quota_workers_are_not_bound_to_the_first_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(workers=2, devices=2, kvstore="dist_sync", cores_per_worker=1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(96)))
    monkeypatch.setattr(hardware, "numa_nodes", lambda: {0: [*range(96)]})
    for cores, groups in ((96, [[0], [1]]), (2, [[*range(96)]] * 2)):
        monkeypatch.setattr(hardware, "usable_cores", lambda cores=cores: cores)
        assert launcher.own_cores(run, [[], []]) == groups


# Effects of other processes and of the environment on a run


CORES = 8


@pytest.mark.parametrize(
    ("cores", "others", "moment", "free"),
    [
        *((8, 0, 8, 8), (8, 0.2, 0.2, 8), (8, 1, 1, 7), (8, 2.1, 2.1, 6), (8, 8, 8, 1), (8, 30, 30, 1)),
        *((2, 6, 6, 2), (2, 7, 7, 1), (1, 8, 8, 1)),
        (8, 0, 4, 8),  # a moment's work costs no threads
    ],
)
def test_a_run_has_the_cores_that_others_leave_free(
    monkeypatch: pytest.MonkeyPatch, cores: int, others: float, moment: float, free: int
) -> None:
    """Others use `moment` cores at first and `others` later; sleeping takes 1.5 times as long as asked for."""
    clock = SimpleNamespace(now=0.0, busy=0.0, monotonic=lambda: clock.now)

    def sleep(seconds: float) -> None:
        clock.busy += 1.5 * seconds * (others if clock.now else moment)
        clock.now += 1.5 * seconds

    clock.sleep = sleep
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(hardware, "core_times", lambda: (CORES, clock.busy, 0.0))
    assert waiting.free_cores(cores) == free


def test_threads_may_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POC_THREADS", raising=False)
    assert waiting.chosen_threads() is None
    monkeypatch.setenv("POC_THREADS", "3")
    assert waiting.chosen_threads() == 3
    for wrong in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("POC_THREADS", wrong)
        with pytest.raises(UserError, match="POC_THREADS"):
            waiting.chosen_threads()


def test_spinning_is_short_while_others_need_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard gives the real library more threads than there are cores, and ends them when the others end."""
    ctypes.CDLL("libgomp.so.1")
    clock = SimpleNamespace(now=0.0, busy=0.0, others=0, process_time=lambda: 2 * clock.now)

    def monotonic() -> float:
        """Let a second pass, in which this process keeps two cores busy."""
        clock.now += 1
        clock.busy += 2 + clock.others
        return float(clock.now)

    def native_threads() -> int:
        return len(os.listdir("/proc/self/task"))

    clock.monotonic = monotonic
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(hardware, "core_times", lambda: (CORES, clock.busy, 0.0))
    monkeypatch.setattr(waiting, "_CHECK_SECONDS", 0.05)
    before, pool = native_threads(), len(os.sched_getaffinity(0)) + 1
    clock.others = 2  # 6 threads and 2 others have a core each
    with waiting.spin_guard(threads=6):
        eventually(lambda: clock.now > 4)
        assert native_threads() <= before + 1
        clock.others = 3
        eventually(lambda: native_threads() >= before + 1 + pool)  # the guard's own thread and the pool
        clock.others = 0
        eventually(lambda: native_threads() <= before + 1)
    eventually(lambda: native_threads() <= before)


def test_variables_of_others_are_not_inherited_and_those_that_change_speed_are_recorded() -> None:
    names = "OMP_PLACES OMP_NUM_THREADS GOMP_CPU_AFFINITY DMLC_ROLE RANK MXNET_KVSTORE_USETREE"
    removed = dict.fromkeys(names.split(), "0")
    speed = {"DNNL_MAX_CPU_ISA": "SSE41", "LD_PRELOAD": "libjemalloc.so", "MXNET_ENGINE_TYPE": "NaiveEngine"}
    names = "HOME PATH CUDA_VISIBLE_DEVICES MXNET_HOME CUDA_MPS_PIPE_DIRECTORY NCCL_DEBUG_FILE"
    neutral = dict.fromkeys(names.split(), "/home")
    variables = {**neutral, **removed, **speed, "MKL_NUM_THREADS": "1"}
    assert environment.inherited_variables(variables) == {**neutral, **speed}
    assert environment.speed_variables(variables) == speed


@pytest.mark.slow
def test_a_run_ignores_what_another_program_left_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POC_THREADS", "2")
    for name, setting in {"DMLC_ROLE": "server", "OMP_NUM_THREADS": "7", "OMP_THREAD_LIMIT": "1"}.items():
        monkeypatch.setenv(name, setting)
    monkeypatch.setenv("MXNET_ENGINE_TYPE", "NaiveEngine")
    record = executed(tmp_path, **GLUON, epochs=1)
    assert (record.outcome, record.threads) == (COMPLETED, 2)
    assert record.environment == {**environment.speed_variables(), "MXNET_ENGINE_TYPE": "NaiveEngine"}
