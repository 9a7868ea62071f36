"""Which GPUs to train on together: how fast each pair is linked, and which run slower than others of their kind."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from poc.host import nvml
from poc.host.hardware import GPU
from poc.values import value

_MOST_NVLINKS = 18
# pynvml names these indices too, the first of them as a tuple by mistake.
_PEER_READ, _PEER_WRITE, _PEER_NVLINK = 0, 1, 2


@value
class Topology:
    """GPUs by their indices, as the driver numbers them."""

    names: Mapping[int, str]
    clocks: Mapping[int, tuple[int, int]]
    """SM and memory clock under load (MHz): what the card's owner has set, else the highest; 0 where unknown."""
    link_ranks: Mapping[tuple[int, int], int]
    """Of each pair, the lower index first. Greater is faster: by number of NVLinks, then by how near the cards are on
    PCIe, then with access to each other's memory before without."""


def detect(gpus: Sequence[GPU]) -> Topology:
    """Asks the NVIDIA driver how these cards are clocked and linked; raises nvml.NoAnswer where one is lost."""
    indices = sorted(gpu.index for gpu in gpus)
    with nvml.session():
        clocks = {index: (_clock(index, nvml.SM_CLOCK), _clock(index, nvml.MEMORY_CLOCK)) for index in indices}
        return Topology(names={gpu.index: gpu.name for gpu in gpus}, clocks=clocks, link_ranks=_link_ranks(indices))


def best_group(topology: Topology, count: int) -> tuple[int, ...]:
    """The indices of the `count` cards to train on together; empty where there are not so many.

    All cards of one kind, where that many are; then the group whose slowest link is fastest, since an exchange among
    all goes at its pace; then the one whose links are faster in sum; then the one whose slowest card is faster (by its
    clocks); then the lowest numbers.
    """

    def merit(group: tuple[int, ...]) -> tuple[int, ...]:
        links = [topology.link_ranks[pair] for pair in itertools.combinations(group, 2)]
        sm_clocks, memory_clocks = zip(*(topology.clocks[card] for card in group))
        kinds = {topology.names[card] for card in group}
        return -len(kinds), min(links, default=0), sum(links), min(sm_clocks), min(memory_clocks)

    # Of groups that are equally good max returns the first, and combinations come in order of their numbers.
    return max(itertools.combinations(sorted(topology.clocks), count), key=merit, default=())


def warnings(topology: Topology) -> list[str]:
    """A line for each kind of cards whose clocks differ, for the slowest card sets the pace of all.

    In the Keras study three of six GTX 1070 had 1.683 GHz instead of 1.7715 and were 1 to 15% slower than the others.
    """
    cards_of: dict[str, dict[tuple[int, int], list[str]]] = {}
    for card, clocks in sorted(topology.clocks.items()):
        cards_of.setdefault(topology.names[card], {}).setdefault(clocks, []).append(str(card))
    return [
        f"the GPUs of type {name} have different clocks, the slowest limits all: "
        + "; ".join(f"SM {sm}, memory {memory} MHz on GPU {', '.join(cards[sm, memory])}" for sm, memory in cards)
        for name, cards in cards_of.items()
        if len(cards) > 1
    ]


def _clock(card: int, kind: int) -> int:
    set_by_owner = nvml.ask("nvmlDeviceGetApplicationsClock", card, kind)
    return int(set_by_owner or nvml.ask("nvmlDeviceGetMaxClockInfo", card, kind) or 0)


def _link_ranks(cards: Sequence[int]) -> dict[tuple[int, int], int]:
    addresses = {card: nvml.address("nvmlDeviceGetPciInfo", card) for card in cards}
    ends = {card: _nvlink_ends(card) for card in cards}
    ranks = {}
    for a, b in itertools.combinations(cards, 2):
        nvlinks = 0 if addresses[b] is None else ends[a].count(addresses[b])
        if not nvlinks and nvml.ask("nvmlDeviceGetP2PStatus", (a, b), _PEER_NVLINK) == 0:
            # Through NVLink switches: what leads to no card leads to them.
            nvlinks = min(sum(end not in addresses.values() for end in ends[card]) for card in (a, b))
        # From 0 on one board, over 10 behind one switch, to 50 between NUMA nodes.
        distance = nvml.ask("nvmlDeviceGetTopologyCommonAncestor", (a, b))
        nearness = 0 if distance is None else 6 - distance // 10
        peers = all(nvml.ask("nvmlDeviceGetP2PStatus", (a, b), way) == 0 for way in (_PEER_READ, _PEER_WRITE))
        ranks[a, b] = 2 * (6 + nvlinks if nvlinks else nearness) + peers
    return ranks


def _nvlink_ends(card: int) -> list[str | None]:
    """The PCI address at the other end of each NVLink of a card that is up."""
    up = [link for link in range(_MOST_NVLINKS) if nvml.ask("nvmlDeviceGetNvLinkState", card, link)]
    return [nvml.address("nvmlDeviceGetNvLinkRemotePciInfo", card, link) for link in up]
