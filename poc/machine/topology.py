"""How this machine's processors are laid out: which cards are linked how, which to use together, which run slower.

The words for links are those of `nvidia-smi topo -m`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from poc.machine import nvml
from poc.values import value

# Levels of nvmlDeviceGetTopologyCommonAncestor. Two GPUs on one board (0) meet in the switch of that board.
_PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_MEANING = {
    "NV#": "that many NVLinks",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "through the CPU",
    "NODE": "through several PCIe hosts of one NUMA node",
    "SYS": "from one NUMA node to another",
}
_SLOWEST_FIRST = ["", "SYS", "NODE", "PHB", "PXB", "PIX"]
_MOST_NVLINKS = 18
# pynvml names these indices too, the first of them as a tuple by mistake.
_PEER_READ, _PEER_WRITE, _PEER_NVLINK = 0, 1, 2


@value
class Card:
    """One GPU and its clocks, in MHz; None where its driver does not tell."""

    index: int
    name: str
    sm_clock: int | None = None
    memory_clock: int | None = None
    max_sm_clock: int | None = None
    max_memory_clock: int | None = None
    application_sm_clock: int | None = None
    """What its owner has set it to run at under load."""
    application_memory_clock: int | None = None


@value
class Link:
    """The best way between two GPUs."""

    cards: tuple[int, int]
    """Their indices, the lower one first."""
    nvlinks: int = 0
    path: str = ""
    """Over PCIe: PIX, PXB, PHB, NODE or SYS, nearest first; empty where unknown."""
    peer: bool | None = None
    """Whether each can read and write the other's memory; None where unknown."""

    def __str__(self) -> str:
        return f"NV{self.nvlinks}" if self.nvlinks else self.path or "?"

    @property
    def rank(self) -> int:
        """Greater is faster: by number of NVLinks, then by how near on PCIe, then with peer access before without."""
        nearness = len(_SLOWEST_FIRST) + self.nvlinks if self.nvlinks else _SLOWEST_FIRST.index(self.path)
        return 2 * nearness + (self.peer is True)


@value
class Processors:
    """The CPU sockets; None where the system does not tell."""

    sockets: int | None = None
    cores: int | None = None
    """Physical ones."""
    threads: int | None = None
    """Logical ones: what the system schedules on."""
    numa_nodes: tuple[str, ...] = ()
    """The logical cores of each node, such as "0-31,64-95"."""
    lowest_mhz: float | None = None
    highest_mhz: float | None = None
    """What the hardware can do at most."""
    allowed_mhz: float | None = None
    """What the system's settings let it do at most."""


@value
class Topology:
    """What `detect` found."""

    cards: tuple[Card, ...] = ()
    links: tuple[Link, ...] = ()
    """One for each pair of cards."""
    processors: Processors = Processors()


def detect(driver: nvml.Driver | None = None, system: Path = Path("/sys")) -> Topology:
    """Reads the layout from the NVIDIA driver, if there is one, and from the kernel's tree `system`."""
    processors = _processors(system)
    try:
        with driver or nvml.Driver() as opened:
            cards = range(opened.count())
            return Topology(
                cards=tuple(_card(opened, index) for index in cards),
                links=_links(opened, cards),
                processors=processors,
            )
    except nvml.NoAnswer:
        return Topology(processors=processors)


def best_group(topology: Topology, count: int) -> tuple[int, ...]:
    """The `count` cards to train on together; empty where there are not so many.

    All cards of one kind, where that many are; then the group whose slowest link is fastest, since an exchange among
    all goes at its pace; then the one whose links are faster in sum; then the one whose slowest card is faster (by its
    clocks); then the lowest numbers.
    """
    ranks = {link.cards: link.rank for link in topology.links}

    def merit(group: tuple[Card, ...]) -> tuple[int, int, int, int, int]:
        links = [ranks.get((a.index, b.index), 0) for a, b in itertools.combinations(group, 2)]
        clocks = [_under_load(card) for card in group]
        return (
            -len({card.name for card in group}),
            min(links, default=0),
            sum(links),
            min(sm for sm, _ in clocks),
            min(memory for _, memory in clocks),
        )

    cards = sorted(topology.cards, key=lambda card: card.index)
    if not 1 <= count <= len(cards):
        return ()
    # Of groups that are equally good max returns the first, and combinations come in order of their numbers.
    return tuple(card.index for card in max(itertools.combinations(cards, count), key=merit))


def warnings(topology: Topology) -> list[str]:
    """A line for each clock in which cards of one kind differ, for the slowest sets the pace of all.

    In the Keras study three of six GTX 1070 had 1.683 GHz instead of 1.7715 and were 1 to 15% slower than the others.
    """
    found = []
    for name in sorted({card.name for card in topology.cards}):
        alike = [card for card in topology.cards if card.name == name]
        for clock, what in [
            ("max_sm_clock", "maximum SM clock"),
            ("max_memory_clock", "maximum memory clock"),
            ("application_sm_clock", "application SM clock"),
            ("application_memory_clock", "application memory clock"),
        ]:
            groups: dict[int, list[int]] = {}
            for card in alike:
                if getattr(card, clock) is not None:
                    groups.setdefault(getattr(card, clock), []).append(card.index)
            if len(groups) > 1:
                split = "; ".join(f"{mhz} MHz on GPU {_numbers(groups[mhz])}" for mhz in sorted(groups))
                found.append(f"cards of one kind ({name}) differ in {what}: {split}; the slowest sets the pace of all")
    return found


def numa_nodes(system: Path = Path("/sys"), allowed: Iterable[int] | None = None) -> dict[int, list[int]]:
    """The logical cores of each NUMA node that this process may use (`allowed`), for the nodes that have any of them.

    Where the system does not tell, all are of one node.
    """
    usable = os.sched_getaffinity(0) if allowed is None else set(allowed)
    found = {
        int(path.name[4:]): sorted(usable & _cores_in(_text(path / "cpulist")))
        for path in (system / "devices/system/node").glob("node[0-9]*")
    }
    return {node: found[node] for node in sorted(found) if found[node]} or {0: sorted(usable)}


def numa_node_of(driver: nvml.Driver, card: int, system: Path = Path("/sys")) -> int | None:
    """The NUMA node that a GPU is attached to; None where the system does not tell."""
    address = _address(_or_none(driver, "nvmlDeviceGetPciInfo", card))
    if address is None:
        return None
    domain, bus, device = address
    text = _text(system / f"bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0/numa_node")
    return int(text) if text.isdigit() else None  # the kernel says -1 where it does not know


def core_groups(
    nodes: Mapping[int, Sequence[int]], workers: int, each: int, near: Sequence[int | None] | None = None
) -> list[list[int]]:
    """`each` cores for every worker, no core twice, all of one NUMA node as long as one has so many left.

    A worker gets those of the node that it is to be `near`, else of the one that has most left: two workers on two
    nodes have the memory of both. The Theano-MPI study binds its processes to sockets so.
    """
    left = {node: list(cores) for node, cores in nodes.items()}
    groups = []
    for worker in range(workers):
        wanted = near[worker] if near else None
        fullest_first = sorted(left, key=lambda node: (node != wanted, -len(left[node])))
        group: list[int] = []
        for node in fullest_first:
            missing = each - len(group)
            group += left[node][:missing]
            left[node] = left[node][missing:]
        groups.append(group)
    return groups


def _cores_in(text: str) -> set[int]:
    """The cores that the kernel's list names: "0-3,8"."""
    ranges = [part.split("-") for part in text.split(",") if part]
    return {core for ends in ranges for core in range(int(ends[0]), int(ends[-1]) + 1)}


def lines(topology: Topology) -> list[str]:
    """The layout as text: cores, clocks of each card, links of each pair, which cards to use together, warnings."""
    found = [f"cores   {_describe(topology.processors)}"]
    for card in topology.cards:
        found.append(f"clocks  GPU {card.index}: {_clocks(card)}")
    if topology.links:
        found += _matrix(topology) + _groups(topology)
    return found + [f"warning {line}" for line in warnings(topology)]


def _card(driver: nvml.Driver, index: int) -> Card:
    def ask(question: str, *details: int) -> int | None:
        answer = driver.ask(question, index, *details)
        return int(answer) if answer else None  # a clock of 0 is one that the driver does not know

    try:
        return Card(
            index=index,
            name=str(driver.ask("nvmlDeviceGetName", index) or "unknown"),
            sm_clock=ask("nvmlDeviceGetClockInfo", nvml.SM_CLOCK),
            memory_clock=ask("nvmlDeviceGetClockInfo", nvml.MEMORY_CLOCK),
            max_sm_clock=ask("nvmlDeviceGetMaxClockInfo", nvml.SM_CLOCK),
            max_memory_clock=ask("nvmlDeviceGetMaxClockInfo", nvml.MEMORY_CLOCK),
            application_sm_clock=ask("nvmlDeviceGetApplicationsClock", nvml.SM_CLOCK),
            application_memory_clock=ask("nvmlDeviceGetApplicationsClock", nvml.MEMORY_CLOCK),
        )
    except nvml.NoAnswer as error:
        return Card(index=index, name=f"does not answer: {error}")


def _links(driver: nvml.Driver, cards: Sequence[int]) -> tuple[Link, ...]:
    ends = {card: _nvlink_ends(driver, card) for card in cards}
    addresses = {card: _address(_or_none(driver, "nvmlDeviceGetPciInfo", card)) for card in cards}
    known = {address for address in addresses.values() if address is not None}
    links = []
    for a, b in itertools.combinations(cards, 2):
        peer = [_or_none(driver, "nvmlDeviceGetP2PStatus", (a, b), way) for way in (_PEER_READ, _PEER_WRITE)]
        nvlinks = 0 if addresses[b] is None else ends[a].count(addresses[b])
        if not nvlinks and _or_none(driver, "nvmlDeviceGetP2PStatus", (a, b), _PEER_NVLINK) == 0:
            # Through NVLink switches: what leads to no card leads to them.
            nvlinks = min(sum(end not in known for end in ends[card]) for card in (a, b))
        links.append(
            Link(
                cards=(a, b),
                nvlinks=nvlinks,
                path=_PATHS.get(_or_none(driver, "nvmlDeviceGetTopologyCommonAncestor", (a, b)), ""),
                peer=None if None in peer else peer == [0, 0],
            )
        )
    return tuple(links)


def _nvlink_ends(driver: nvml.Driver, card: int) -> list[tuple[int, int, int] | None]:
    """The PCI address at the other end of each NVLink of a card that is up."""
    up = [link for link in range(_MOST_NVLINKS) if _or_none(driver, "nvmlDeviceGetNvLinkState", card, link)]
    return [_address(_or_none(driver, "nvmlDeviceGetNvLinkRemotePciInfo", card, link)) for link in up]


def _or_none(driver: nvml.Driver, question: str, cards: int | tuple[int, ...], *details: int) -> Any:
    try:
        return driver.ask(question, cards, *details)
    except nvml.NoAnswer:
        return None


def _address(pci: Any) -> tuple[int, int, int] | None:
    return None if pci is None else (pci.domain, pci.bus, pci.device)


def _under_load(card: Card) -> tuple[int, int]:
    """The SM and memory clock that a card is set to, or else its highest; 0 where neither is known."""
    return (
        card.application_sm_clock or card.max_sm_clock or 0,
        card.application_memory_clock or card.max_memory_clock or 0,
    )


def _processors(system: Path) -> Processors:
    cores = sorted((system / "devices/system/cpu").glob("cpu[0-9]*"))
    # A core that is switched off has no topology. Logical cores of one physical core list the same siblings.
    siblings = [text for text in (_text(core / "topology/thread_siblings_list") for core in cores) if text]
    packages = {_text(core / "topology/physical_package_id") for core in cores} - {"", "-1"}
    nodes = sorted((system / "devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:]))

    def megahertz(limit: str) -> list[float]:
        texts = [_text(core / "cpufreq" / limit) for core in cores]
        return [int(text) / 1000 for text in texts if text.isdigit()]

    return Processors(
        sockets=len(packages) or None,
        cores=len(set(siblings)) or None,
        threads=len(siblings) or None,
        numa_nodes=tuple(filter(None, (_text(node / "cpulist") for node in nodes))),
        lowest_mhz=min(megahertz("cpuinfo_min_freq"), default=None),
        highest_mhz=max(megahertz("cpuinfo_max_freq"), default=None),
        allowed_mhz=max(megahertz("scaling_max_freq"), default=None),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _describe(found: Processors) -> str:
    parts = [
        _count(found.sockets, "socket"),
        _count(found.cores, "physical core"),
        _count(found.threads, "logical core"),
        _count(len(found.numa_nodes) or None, "NUMA node"),
    ]
    text = ", ".join(part for part in parts if part) or "unknown"
    if len(found.numa_nodes) > 1:
        text += " (" + "; ".join(f"{node}: {cores}" for node, cores in enumerate(found.numa_nodes)) + ")"
    if found.lowest_mhz is None or found.highest_mhz is None:
        return f"{text}; the system does not tell its frequency limits"
    text += f"; {found.lowest_mhz:.0f} to {found.highest_mhz:.0f} MHz"
    if found.allowed_mhz is not None and found.allowed_mhz < found.highest_mhz:
        text += f", held to {found.allowed_mhz:.0f} MHz by the system's settings"
    return text


def _count(number: int | None, thing: str) -> str:
    return "" if number is None else f"{number} {thing}" + ("s" if number != 1 else "")


def _clocks(card: Card) -> str:
    def one(what: str, now: int | None, most: int | None, application: int | None) -> str:
        text = f"{what} {'?' if now is None else now} of {'?' if most is None else most} MHz"
        return text + (f" (set to {application} under load)" if application is not None else "")

    return ", ".join(
        [
            one("SM", card.sm_clock, card.max_sm_clock, card.application_sm_clock),
            one("memory", card.memory_clock, card.max_memory_clock, card.application_memory_clock),
        ]
    )


def _matrix(topology: Topology) -> list[str]:
    indices = [card.index for card in topology.cards]
    words = {link.cards: str(link) for link in topology.links}

    def cell(a: int, b: int) -> str:
        return "-" if a == b else words.get((min(a, b), max(a, b)), "?")

    found = ["links           " + " ".join(f"GPU {index:<2}" for index in indices).rstrip()]
    for a in indices:
        found.append(f"        GPU {a:<2}  " + " ".join(f"{cell(a, b):<6}" for b in indices).rstrip())
    used = {"NV#" if link.nvlinks else link.path for link in topology.links}
    legend = [f"{word}: {meaning}" for word, meaning in _MEANING.items() if word in used]
    if legend:
        found.append("        " + "; ".join(legend))
    for answer, what in [(False, "no peer access"), (None, "peer access unknown")]:
        pairs = [link.cards for link in topology.links if link.peer is answer]
        if pairs:
            which = "any" if len(pairs) == len(topology.links) else ", ".join(f"{a} and {b}" for a, b in pairs)
            found.append(f"        {what} between {which}")
    return found


def _groups(topology: Topology) -> list[str]:
    links = {link.cards: link for link in topology.links}
    count = len(topology.cards)
    kinds = {(card.name, _under_load(card)) for card in topology.cards}
    if count < 3 or (len({link.rank for link in topology.links}) == 1 and len(kinds) == 1):
        return []  # there is nothing to choose
    found = []
    for size in (size for size in (2, 4, 8, 16) if size < count):
        group = best_group(topology, size)
        slowest = min((links[pair] for pair in itertools.combinations(group, 2)), key=lambda link: link.rank)
        chosen = ",".join(map(str, group))
        found.append(
            f"use     {size} cards: GPU {_numbers(group)} (slowest link {slowest}), with CUDA_DEVICE_ORDER=PCI_BUS_ID "
            f"CUDA_VISIBLE_DEVICES={chosen}"
        )
    return [*found, "        cards of one kind; fastest slowest link, then fastest links in sum, then fastest clocks"]


def _numbers(indices: Iterable[int]) -> str:
    return ", ".join(map(str, indices))
