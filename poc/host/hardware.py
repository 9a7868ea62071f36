"""Detect this machine's hardware: cores, memory, NUMA nodes and GPUs."""

import collections
import functools
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from poc.host import control_groups, matrix_product, nvml
from poc.host.control_groups import text
from poc.values import UserError, value

PRODUCT_NAME = Path("/sys/class/dmi/id/product_name")  # the firmware's, on AWS the instance type ("p4d.24xlarge")
PCI_DEVICES = Path("/sys/bus/pci/devices")
# Starts of the PCI classes of devices that somebody would rent to train on: VGA and 3D controllers of NVIDIA; of AMD 3D
# and display controllers and accelerators, since the chip of a server's or laptop's screen is a VGA controller, too.
_NVIDIA_CLASSES, _AMD_CLASSES = ("0x0300", "0x0302"), ("0x0302", "0x0380", "0x1200")
_CUDA_HINT = "restart the machine or the container; GPUs with NVSwitch also need nvidia-fabricmanager"


@value
class GPU:
    """A GPU as its driver describes it."""

    index: int
    name: str
    capability: tuple[int, int]  # CUDA compute capability, major and minor
    memory_bytes: int
    flops: float = 0.0  # peak float32 operations per second (2 per core and cycle), for estimates of time; 0 if unknown
    numa_node: int | None = None  # the NUMA node that it is attached to; None if unknown


@value
class Hardware:
    """The hardware of one machine, as far as this process may use it."""

    cpu: str
    cores: int  # logical cores, less those excluded by CPU affinity and the control groups' quota
    memory_bytes: int  # all memory, or the limit of the control groups
    cpu_flops: float  # operations per second of a float32 matrix product on all cores, for estimates of time
    bfloat16: bool = False  # whether the CPU has instructions for bfloat16 products (AVX-512 bf16)
    gpus: tuple[GPU, ...] = ()
    driver: str = ""
    numa_nodes: tuple[int, ...] = ()  # usable cores of each NUMA node that has any; empty if unknown
    hosts: int = 1  # number of machines like this one that run together

    def describe(self) -> str:
        """Return a line for tables: "8x Tesla P100-SXM2-16GB" or "CPU: AMD EPYC, 2 cores"."""
        names = sorted(collections.Counter(gpu.name for gpu in self.gpus).items())
        cpu = re.sub(r"\((R|TM)\)|( CPU)? @ .*", "", self.cpu)  # "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"
        cpu = f"CPU: {cpu}, {self.cores} core" + ("s" if self.cores != 1 else "")
        description = " + ".join(f"{count}x {name}" for name, count in names) or cpu
        return description if self.hosts == 1 else f"{self.hosts} hosts, each {description}"


def one_host(name: str) -> str:
    """Return the name of one machine of several that ran together, by which `Hardware.describe` named them."""
    return re.sub(r"^\d+ hosts, each ", "", name)


def detect() -> Hardware:
    """Detect this machine's hardware; raises UserError if a GPU does not answer its driver.

    GPUs that are divided (MIG) are left out. The fastest are first, as in CUDA, unless CUDA_VISIBLE_DEVICES is set.
    """
    try:
        gpus = tuple(_gpu(index) for index in nvml.visible_gpus() if not nvml.is_divided(index))
        if "CUDA_VISIBLE_DEVICES" not in os.environ:
            gpus = tuple(sorted(gpus, key=lambda gpu: -gpu.flops))
        driver = str(nvml.query("nvmlSystemGetDriverVersion") or "")
    except nvml.NoAnswerError:
        gpus, driver = (), ""
    # A product ends before a quota holds back its threads, one per core of the affinity.
    share = usable_cores() / len(os.sched_getaffinity(0))
    return Hardware(
        cpu=_cpuinfo("model name") or " ".join(filter(None, [platform.machine(), _cpuinfo("CPU part")])),
        cores=usable_cores(),
        memory_bytes=usable_memory(),
        cpu_flops=2 * 1024**3 / _product_seconds() * share,
        bfloat16="avx512_bf16" in _cpuinfo("flags").split(),
        gpus=gpus,
        driver=driver,
        numa_nodes=tuple(map(len, numa_nodes().values())),
    )


@functools.cache
def _product_seconds() -> float:
    """Return the seconds of a product of two matrices of 1,024 x 1,024 (`matrix_product.py`).

    NumPy 1.26 takes the kernels of very old CPUs for those that are newer than itself, unless their name is set before
    its import: 27 in place of 185 GFLOP/s on two cores of an Emerald Rapids Xeon.
    """
    flags = _cpuinfo("flags").split()
    kernels = "SkylakeX" if "avx512bw" in flags else "Haswell"
    command = [sys.executable, matrix_product.__file__]  # not as a module, which would import the package
    environment = {**({"OPENBLAS_CORETYPE": kernels} if "avx2" in flags else {}), **os.environ}
    return float(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def gpu_problem() -> str:
    """Return why a GPU of this machine cannot be used, in one line; empty if there is none, or the user hides them."""
    setting = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")
    if setting in ("", "-1", "NoDevFiles"):
        return ""
    if instances := re.findall(r"MIG-[^\s,]*", setting):
        return f"CUDA_VISIBLE_DEVICES: {instances[0]} is a MIG instance; use whole GPUs"
    try:
        divided = [index for index in nvml.visible_gpus() if nvml.is_divided(index)]
        if divided:
            advice = "use whole GPUs (sudo nvidia-smi -mig 0), or name the others in CUDA_VISIBLE_DEVICES"
            return f"GPU {divided[0]} is divided into MIG instances; {advice}"
        if nvml.query("nvmlDeviceGetCount"):
            if visible := nvml.visible_gpus():
                return _cuda_problem(visible)
            if setting == "unset":
                return "a control group denies all GPUs: request some for this job (Slurm: --gpus=1)"
            is_unknown = re.match(r"GPU-|\d|all$", setting)  # "all" is Docker's word, CUDA has none for it
            reason = f"CUDA_VISIBLE_DEVICES: {setting} is no GPU of this machine, or one named twice"
            return reason if is_unknown else ""
        why = f"driver {nvml.query('nvmlSystemGetDriverVersion')} does not support it"
    except nvml.NoAnswerError as error:
        why = str(error)
    return next(filter(None, (_unused(device, why) for device in sorted(PCI_DEVICES.glob("*")))), "")


def _cuda_problem(gpus: Sequence[int]) -> str:
    """Return why CUDA does not start on `gpus` that answer; empty if it does, or its library is elsewhere."""
    probe = "import ctypes; print('\\nCUDA: error', ctypes.CDLL('libcuda.so.1').cuInit(0))"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": nvml.cuda_setting(gpus)}  # in the numbers that workers get
    try:
        done = subprocess.run([sys.executable, "-I", "-c", probe], capture_output=True, timeout=60, env=environment)
    except subprocess.TimeoutExpired:
        return f"CUDA does not start within a minute: {_CUDA_HINT}"
    error = re.search(rb"^CUDA: error ([1-9]\d*)$", done.stdout, re.MULTILINE)  # a preloaded library may print, too
    return f"CUDA does not start (error {error[1].decode()}): {_CUDA_HINT}" if error else ""


def _unused(device: Path, why: str) -> str:
    """Return that a PCI device is a GPU without a working driver, because of `why`; empty if it is none."""
    vendor, device_class, name = text(device / "vendor"), text(device / "class"), f"PCI device {device.name}"
    if vendor == "0x1002" and device_class.startswith(_AMD_CLASSES):
        return f"{name} is an AMD GPU; only NVIDIA's are supported"
    if vendor == "0x10de" and device_class.startswith(_NVIDIA_CLASSES):
        return f"{name} is an NVIDIA GPU, but {why}; restart machine or container (with --gpus), or repair the driver"
    return ""


def usable_cores(system: Path = Path("/")) -> int:
    """Return the number of cores in this process's affinity, or the quota of its control groups if lower."""
    return max(1, int(min(len(os.sched_getaffinity(0)), control_groups.core_quota(system)[0])))


def usable_memory(system: Path = Path("/")) -> int:
    """Return the machine's memory in bytes, or the limit of this process's control groups if lower."""
    return int(min(psutil.virtual_memory().total, control_groups.memory_limit(system)))


def core_times(system: Path = Path("/")) -> tuple[int, float, float]:
    """Return the number of usable cores, and their busy and stolen core-seconds since the machine started.

    Busy counts all processes; stolen is the time in which the hypervisor ran other machines on these cores. With a
    lower quota busy is that of this process's control group: what others do on further cores leaves the quota free.
    """
    cores, usable = psutil.cpu_times(percpu=True), os.sched_getaffinity(0)
    quota, group = control_groups.core_quota(system)
    if quota < len(usable) and (used := control_groups.core_seconds(group)) is not None:
        return max(1, int(quota)), used, 0.0
    numbers = [*map(int, re.findall(r"^cpu(\d+) ", text(Path(psutil.PROCFS_PATH) / "stat"), re.MULTILINE))]
    if usable <= {*numbers} and len(numbers) == len(cores):  # a container may renumber its cores
        cores = [core for number, core in zip(numbers, cores) if number in usable]
    busy = sum(core.user + core.nice + core.system + core.irq + core.softirq for core in cores)
    return len(cores), busy, sum(core.steal for core in cores)


def numa_nodes(system: Path = Path("/sys")) -> dict[int, list[int]]:
    """Return the usable logical cores of each NUMA node that has any; a single node 0 if unknown."""
    usable = os.sched_getaffinity(0)
    nodes = {}
    for folder in (system / "devices/system/node").glob("node[0-9]*"):
        ranges = [part.split("-") for part in text(folder / "cpulist").split(",") if part]  # such as "0-3,8"
        cores = {core for ends in ranges for core in range(int(ends[0]), int(ends[-1]) + 1)}
        if cores & usable:
            nodes[int(folder.name[4:])] = sorted(cores & usable)
    return dict(sorted(nodes.items())) or {0: sorted(usable)}


def core_groups(
    nodes: Mapping[int, Sequence[int]],
    workers: int,
    cores_per_worker: int,
    near: Sequence[int | None] | None = None,
    system: Path = Path("/sys"),
) -> list[list[int]]:
    """Assign disjoint cores to each worker, all on one NUMA node while a node has enough free cores.

    A worker gets cores of the node in `near`, else of the node with most free cores: two workers on two nodes use the
    memory of both. The Theano-MPI study binds its processes to sockets in the same way. If there are enough
    physical cores, one hyperthread of each is used; otherwise those of a core follow each other.
    """

    def physical(core: int) -> int:
        siblings = re.match(r"\d+", text(system / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list"))
        return int(siblings[0]) if siblings else core  # such as "0,4" or "0-1"

    first = {physical(core): core for cores in nodes.values() for core in reversed(cores)}.values()
    largest = max(nodes.values(), key=len)
    # A worker that fits on a node with both hyperthreads of its cores is not spread over two nodes.
    would_spread = sum(core in first for core in largest) < cores_per_worker <= len(largest)
    has_enough = workers * cores_per_worker <= len(first) and not would_spread
    free = {
        node: sorted((core for core in cores if core in first or not has_enough), key=physical)
        for node, cores in nodes.items()
    }
    groups = []
    for worker in range(workers):
        preferred = near[worker] if near else None
        order = sorted(free, key=lambda node: (node != preferred, -len(free[node])))
        group = [core for node in order for core in free[node]][:cores_per_worker]
        free = {node: [core for core in cores if core not in group] for node, cores in free.items()}
        groups.append(group)
    return groups


def _cpuinfo(field: str) -> str:
    line = re.search(rf"^{field}\s*:(.*)$", text(Path("/proc/cpuinfo")), re.MULTILINE)
    return line[1].strip() if line else ""


def _gpu(index: int) -> GPU:
    try:
        memory = nvml.query("nvmlDeviceGetMemoryInfo", index)
        cores = nvml.query("nvmlDeviceGetNumGpuCores", index) or 0
        return GPU(
            index=index,
            name=nvml.query("nvmlDeviceGetName", index) or "unknown GPU",
            capability=tuple(nvml.query("nvmlDeviceGetCudaComputeCapability", index) or (0, 0)),
            memory_bytes=int(memory.total) if memory else 0,
            flops=2e6 * cores * (nvml.query("nvmlDeviceGetMaxClockInfo", index, nvml.SM_CLOCK) or 0),
            numa_node=gpu_numa_node(index),
        )
    except nvml.NoAnswerError as error:
        remedy = "restart the machine, or list only the other GPUs in CUDA_VISIBLE_DEVICES"
        raise UserError(f"GPU {index} does not answer ({error}); {remedy}") from None


def gpu_numa_node(index: int, system: Path = Path("/sys")) -> int | None:
    """Return the NUMA node that a GPU is attached to; None if unknown."""
    pci = nvml.query("nvmlDeviceGetPciInfo", index)
    if pci is None:
        return None
    node = text(system / f"bus/pci/devices/{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0/numa_node")
    return int(node) if node.isdigit() else None  # -1: not set
