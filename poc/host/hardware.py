"""What this machine has: cores, memory, GPUs, which are near which, and the name under which results are published."""

from __future__ import annotations

import os
import platform
import re
import timeit
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from poc.host import control_groups, nvml
from poc.host.control_groups import number, text
from poc.values import UserError, from_plain, value

PRODUCT_NAME = Path("/sys/class/dmi/id/product_name")


@value
class GPU:
    """One graphics card as its driver describes it."""

    index: int
    name: str
    capability: tuple[int, int]
    """CUDA compute capability, major and minor."""
    memory_bytes: int
    flops: float = 0.0
    """Float32 operations a second at most: two for each core and tick of its highest clock; 0 where the driver does not
    tell. For estimates of time."""
    numa_node: int | None = None
    """The NUMA node that it is attached to; None where the system does not tell."""


@value
class Hardware:
    """One machine."""

    cpu: str
    cores: int
    """Cores this process may use: logical ones, less what affinity and the control groups' quota take away."""
    memory_bytes: int
    """What this process may use: all, or what the control groups' limit leaves."""
    cpu_flops: float
    """Floating-point operations a second in a float32 matrix product on all cores: for estimates of time."""
    bfloat16: bool = False
    """Whether the CPU has instructions for bfloat16 products (AVX-512 bf16)."""
    gpus: tuple[GPU, ...] = ()
    driver: str = ""
    numa_nodes: tuple[int, ...] = ()
    """Cores this process may use of each NUMA node that has any; empty where unknown."""
    hosts: int = 1
    """Machines like this one that run together."""

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Hardware:
        """The machine that a record of this version or an earlier one holds as plain values."""
        return from_plain(Hardware, {name: held for name, held in fields.items() if name != "description"})

    def describe(self) -> str:
        """One line for tables: "8x Tesla P100-SXM2-16GB" or "CPU: AMD EPYC, 2 cores"."""
        words = f"CPU: {self.cpu}, {self.cores} core" + ("s" if self.cores != 1 else "")
        if self.gpus:
            names = sorted({gpu.name for gpu in self.gpus})
            words = " + ".join(f"{sum(gpu.name == name for gpu in self.gpus)}x {name}" for name in names)
        return words if self.hosts == 1 else f"{self.hosts} hosts, each {words}"


def detect() -> Hardware:
    """Reads what this machine has from the operating system and the NVIDIA driver, if there is one.

    Raises UserError where one of the GPUs does not answer.
    """
    try:
        with nvml.session():
            gpus = tuple(map(_gpu, nvml.visible()))
            driver = str(nvml.ask("nvmlSystemGetDriverVersion", ()) or "")
    except nvml.NoAnswer:
        gpus, driver = (), ""
    return Hardware(
        cpu=_cpuinfo("model name") or platform.processor() or platform.machine(),
        cores=usable_cores(),
        memory_bytes=usable_memory(),
        cpu_flops=_cpu_flops(),
        bfloat16="avx512_bf16" in _cpuinfo("flags").split(),
        gpus=gpus,
        driver=driver,
        numa_nodes=tuple(map(len, nodes().values())),
    )


def usable_cores(system: Path = Path("/")) -> int:
    """Cores this process may use: its affinity, or the quota of its control groups where that is lower."""
    cores, quota = len(os.sched_getaffinity(0)), control_groups.core_quota(system)
    return cores if quota is None else min(cores, max(1, int(quota)))


def usable_memory(system: Path = Path("/")) -> int:
    """Bytes this process may use: the machine's, or the limit of its control groups where that is lower."""
    memory, limit = int(psutil.virtual_memory().total), control_groups.memory_limit(system)
    return memory if limit is None else min(memory, limit)


def product_name() -> str:
    """Return what the firmware calls this machine: on AWS its instance type, "p4d.24xlarge"; empty if unknown."""
    return text(PRODUCT_NAME)


def _cpu_flops() -> float:
    size = 1024
    matrix = np.ones((size, size), dtype=np.float32)
    # The first product also starts the library's threads.
    return 2 * size**3 / min(timeit.repeat(lambda: matrix @ matrix, number=1, repeat=3))


def core_times(stat: Path = Path("/proc/stat")) -> tuple[int, float, float]:
    """How many cores this process may use, for how many core-seconds since the machine started these were busy with any
    process, and for how many the hypervisor had them at work for other machines."""
    lines = [line.split() for line in text(stat).splitlines() if re.match(r"cpu\d", line)]
    usable = os.sched_getaffinity(0)
    cores = [ticks for name, *ticks in lines if int(name[3:]) in usable]
    if len(cores) < len(usable):  # a container may number its cores anew
        cores = [ticks for _, *ticks in lines]
    seconds = [sum(map(int, column)) / os.sysconf("SC_CLK_TCK") for column in zip(*cores)]
    user, nice, system, _, _, irq, softirq, stolen = (*seconds, *[0.0] * 8)[:8]
    return len(cores), user + nice + system + irq + softirq, stolen


def _cpuinfo(field: str) -> str:
    """What the kernel says of the first core; empty where it does not say."""
    line = re.search(rf"^{field}\s*:(.*)$", text(Path("/proc/cpuinfo")), re.MULTILINE)
    return line[1].strip() if line else ""


def _gpu(index: int) -> GPU:
    try:
        memory = nvml.ask("nvmlDeviceGetMemoryInfo", index)
        cores = nvml.ask("nvmlDeviceGetNumGpuCores", index) or 0
        return GPU(
            index=index,
            name=nvml.ask("nvmlDeviceGetName", index) or "unknown GPU",
            capability=tuple(nvml.ask("nvmlDeviceGetCudaComputeCapability", index) or (0, 0)),
            memory_bytes=int(memory.total) if memory else 0,
            flops=2e6 * cores * (nvml.ask("nvmlDeviceGetMaxClockInfo", index, nvml.SM_CLOCK) or 0),
            numa_node=node_of(index),
        )
    except nvml.NoAnswer as error:
        others = "restart the machine, or list only the other GPUs in CUDA_VISIBLE_DEVICES"
        raise UserError(f"GPU {index} does not answer ({error}); {others}") from None


def nodes(system: Path = Path("/sys")) -> dict[int, list[int]]:
    """The logical cores of each NUMA node that this process may use, for the nodes that have any of them.

    Where the system does not tell, all are of one node.
    """
    usable = os.sched_getaffinity(0)
    cores = {
        int(folder.name[4:]): sorted(usable & _cores_in(text(folder / "cpulist")))
        for folder in (system / "devices/system/node").glob("node[0-9]*")
    }
    return {node: cores[node] for node in sorted(cores) if cores[node]} or {0: sorted(usable)}


def node_of(card: int, system: Path = Path("/sys")) -> int | None:
    """The NUMA node that a GPU is attached to; None where the system does not tell."""
    address = nvml.address("nvmlDeviceGetPciInfo", card)
    return None if address is None else number(system / f"bus/pci/devices/{address}/numa_node")


def core_groups(
    nodes: Mapping[int, Sequence[int]], workers: int, cores_per_worker: int, near: Sequence[int | None] | None = None
) -> list[list[int]]:
    """The cores of each worker: no core twice, all of one NUMA node as long as one has so many left.

    A worker gets those of the node that it is to be `near`, else of the one that has most left: two workers on two
    nodes have the memory of both. The Theano-MPI study binds its processes to sockets so.
    """
    left = {node: list(cores) for node, cores in nodes.items()}
    groups = []
    for worker in range(workers):
        wanted = near[worker] if near else None
        group: list[int] = []
        for node in sorted(left, key=lambda node: (node != wanted, -len(left[node]))):
            missing = cores_per_worker - len(group)
            group += left[node][:missing]
            left[node] = left[node][missing:]
        groups.append(group)
    return groups


def _cores_in(ranges: str) -> set[int]:
    """The cores that the kernel's list names: "0-3,8"."""
    parts = [part.split("-") for part in ranges.split(",") if part]
    return {core for ends in parts for core in range(int(ends[0]), int(ends[-1]) + 1)}
