"""What a cluster costs and saves, on hosts of one core each that are namespaces of this machine.

.venv/bin/python -m tests.benchmark_cluster    (several minutes of two idle cores; prints a table)
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

# Before poc.engines is imported: the engine for tests.
import tests.conftest  # noqa: F401
from poc import Synthetic
from poc.records import journal
from poc.records.record import Record
from poc.records.timing import throughput
from tests.builders import executed, recipe_file
from tests.hosts import Host, Nodes, driven, switch

_RESNET: dict[str, Any] = {
    "model": "cifar_resnet20_v2",
    "engine": "gluon",
    "data": Synthetic(train=12_800, validation=250),
    "batch_per_device": 64,
    "epochs": 100,
    "evaluate": False,
}
_JOINED = {**_RESNET, "devices": 2, "workers": 2, "cores_per_worker": 1, "epochs": None, "steps": 120, "window": 5}
_EXCHANGES = {
    "dist_sync": {"exchange": "dist_sync"},
    "horovod": {"exchange": "horovod"},
    "pytorch": {"exchange": "device", "engine": "pytorch", "workers": 1},
}
_PAIRS = 3


def side_by_side(folder: Path) -> tuple[float, float]:
    """Seconds of two kinds of machine with two runs each: by one command, and one after the other."""
    recipe = recipe_file(folder / "mine.py", **{**_RESNET, "seconds": 15}, cases=[{"lr": 0.01}, {"lr": 0.02}])

    def timed(host: Host, name: str) -> float:
        began = time.monotonic()
        driven(host, recipe, folder / name)
        return time.monotonic() - began

    apart = 0.0
    for core, label in enumerate(("left", "right")):
        with switch(folder / label) as wired:
            alone = wired.host(str(core))
            alone.start_ray(label=label)
            apart += timed(alone, f"{label} alone")
    with switch(folder / "both") as wired:
        left, right = wired.host("0"), wired.host("1")
        left.start_ray(label="left")
        right.start_ray(head=left.address, label="right")
        return timed(left, "together"), apart


def joined(folder: Path) -> dict[str, list[float]]:
    """By exchange, what each pair gives: samples/s of a run over two hosts, in shares of two workers on one host."""
    found: dict[str, list[float]] = {name: [] for name in _EXCHANGES}
    with switch(folder / "joined") as wired:
        nodes = Nodes(wired, [str(core) for core in sorted(os.sched_getaffinity(0))])
        nodes.second()
        for pair in range(_PAIRS):
            apart = folder / f"pair{pair}"
            apart.mkdir()
            recipe = recipe_file(apart / "mine.py", **_JOINED, cases=list(_EXCHANGES.values()))
            driven(nodes.head, recipe, apart)
            records = journal.read(journal.paths(apart / "results"))
            over_two = {record.run_id: _speed(record) for record in records if record.windows}
            for name, fields in _EXCHANGES.items():
                alone = executed(apart, **{**_JOINED, **fields})
                found[name].append(over_two[alone.run_id] / _speed(alone))
    return found


def _speed(record: Record) -> float:
    measured = throughput(record.windows)
    assert measured is not None, record.in_words()
    return measured.median


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        together, apart = side_by_side(Path(name))
        print(f"two kinds: {together:.1f} s by one command, {apart:.1f} s one after the other: {together / apart:.2f}")
        for exchange, shares in joined(Path(name)).items():
            each = ", ".join(f"{share:.3f}" for share in shares)
            print(f"{exchange}: two hosts give {statistics.median(shares):.3f} of two workers on one ({each})")
