"""NUMA nodes: which cores and cards are near the same memory, and the cores to bind each worker to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from poc.machine import kernel, nvml


def nodes(system: Path = Path("/sys"), allowed: Iterable[int] | None = None) -> dict[int, list[int]]:
    """The logical cores of each NUMA node that this process may use (`allowed`), for the nodes that have any of them.

    Where the system does not tell, all are of one node.
    """
    usable = os.sched_getaffinity(0) if allowed is None else set(allowed)
    cores = {
        int(folder.name[4:]): sorted(usable & _cores_in(kernel.text(folder / "cpulist")))
        for folder in (system / "devices/system/node").glob("node[0-9]*")
    }
    return {node: cores[node] for node in sorted(cores) if cores[node]} or {0: sorted(usable)}


def node_of(card: int, system: Path = Path("/sys")) -> int | None:
    """The NUMA node that a GPU is attached to; None where the system does not tell."""
    address = nvml.address("nvmlDeviceGetPciInfo", card)
    if address is None:
        return None
    domain, bus, device = address
    return kernel.number(system / f"bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0/numa_node")


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


def _cores_in(text: str) -> set[int]:
    """The cores that the kernel's list names: "0-3,8"."""
    ranges = [part.split("-") for part in text.split(",") if part]
    return {core for ends in ranges for core in range(int(ends[0]), int(ends[-1]) + 1)}
