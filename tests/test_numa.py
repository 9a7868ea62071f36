"""Cores and cards of NUMA nodes, by a kernel tree made for the test, and the cores that workers are bound to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from poc.machine import numa, nvml
from tests.recorded_nvml import eight_cards
from tests.test_sensors import kernel_tree

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
    assert numa.nodes(system, range(16)) == {0: [0, 1, 2, 3, 8, 9], 2: [4, 5, 6, 7], 10: [10]}
    assert numa.nodes(system, [9, 4]) == {0: [9], 2: [4]}
    assert numa.nodes(tmp_path / "nowhere", [3, 1]) == {0: [1, 3]}
    monkeypatch.setattr(nvml, "pynvml", eight_cards())
    assert [numa.node_of(card, system) for card in (5, 6, 7)] == [2, None, None]


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
    assert numa.core_groups(nodes, workers, cores, near) == groups
