"""Which cards to train on together, by a recorded driver; cores and cards of NUMA nodes, by a kernel tree made for the
test, and the cores that workers are bound to."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poc.machine import hardware, nvml, topology
from poc.machine.topology import Topology
from tests.recorded_nvml import GIB, Links, RecordedNVML, eight_cards, kernel_tree, p100

PAIRS = list(itertools.combinations(range(6), 2))


def detected(monkeypatch: pytest.MonkeyPatch, library: RecordedNVML) -> Topology:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml, "pynvml", library)
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


@settings(deadline=None, max_examples=40)
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
    monkeypatch.setattr(nvml, "pynvml", eight_cards())
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
