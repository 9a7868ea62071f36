"""What a cluster costs and saves, on hosts of one core each that are namespaces of this machine.

.venv/bin/python -m tests.benchmark_cluster    (several minutes of two idle cores; prints a table)
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from scipy import stats

# Before poc.engines is imported: the engine for tests.
import tests.conftest  # noqa: F401
from poc import Synthetic
from poc.records import journal
from poc.records.record import Record
from poc.records.timing import Window
from tests.builders import recipe_file
from tests.hosts import DEADLINE_SECONDS, Host, drive, driven, switch
from tests.launch import eventually, start

_RESNET: dict[str, Any] = {
    "model": "cifar_resnet20_v2",
    "engine": "gluon",
    "data": Synthetic(train=12_800, validation=250),
    "batch_per_device": 64,
    "epochs": 100,
    "evaluate": False,
}
# Longer than it is looked at.
_JOINED = {**_RESNET, "devices": 2, "workers": 2, "cores_per_worker": 1, "window": 1}
_EXCHANGES = {
    "dist_sync": {"exchange": "dist_sync"},
    "horovod": {"exchange": "horovod"},
    "pytorch": {"exchange": "device", "engine": "pytorch", "workers": 1},
}
# A cluster is silent while its turn is over: shorter than any of its deadlines, and than this machine keeps its speed.
_TURN_SECONDS = 3.0
_TURNS = 60
_START_SECONDS = 40.0
_PATIENT = {"RAY_health_check_period_ms": "60000", "RAY_health_check_timeout_ms": "60000"}


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


def joined(folder: Path, fields: dict[str, Any]) -> list[float]:
    """Samples/s of a run over two hosts, in shares of two workers on one host: a share of each pair of turns.

    A shared machine is faster in one minute than in the next, by more than what is looked for. So both runs go on at
    once, and each stands still while it is the other's turn, with all that belongs to it, Ray's processes too.
    """
    folder.mkdir()
    recipe = recipe_file(folder / "mine.py", **{**_JOINED, **fields})
    with switch(folder / "wired") as wired:
        first, second = (wired.host(str(core)) for core in sorted(os.sched_getaffinity(0)))
        for host, head in ((first, ""), (second, first.address)):
            assert host.start_ray(head=head, label="pair", **_PATIENT).returncode == 0
        with drive(first, recipe, folder) as driver, start(recipe, folder / "alone", cwd=folder) as alone:

            def over_two(number: signal.Signals) -> None:
                first.send(number)
                second.send(number)
                driver.send_signal(number)  # nsenter, which stops with what it started

            def on_one(number: signal.Signals) -> None:
                for process in [psutil.Process(alone.pid), *psutil.Process(alone.pid).children(recursive=True)]:
                    process.send_signal(number)

            eventually(lambda: all(host.processes("poc.train.worker") for host in (first, second)))
            time.sleep(_START_SECONDS)
            on_one(signal.SIGSTOP)
            for turn in range(2 * _TURNS + 2):
                time.sleep(_TURN_SECONDS)
                stopped, goes_on = (on_one, over_two) if turn % 2 else (over_two, on_one)
                stopped(signal.SIGSTOP)
                goes_on(signal.SIGCONT)
            on_one(signal.SIGCONT)
            alone.send_signal(signal.SIGINT)
            for process in first.processes("poc run"):
                process.send_signal(signal.SIGINT)
            for process in (driver, alone):
                process.communicate(timeout=DEADLINE_SECONDS)
    places = [folder / "results", folder / "alone" / "results"]
    turns = [_turns(next(filter(_trained, journal.read(journal.paths(place))))) for place in places]
    assert [len(each) for each in turns] == [_TURNS, _TURNS]
    return [over_two / on_one for over_two, on_one in zip(*turns)]


def _trained(record: Record) -> bool:
    return bool(record.windows)  # one node alone skips what two do


def _turns(record: Record) -> list[float]:
    """Samples/s in each turn of a run but the first and the last: of what lies between two times of standing still."""
    found: list[list[Window]] = [[]]
    for before, window in itertools.pairwise(record.windows):
        if window.start + window.seconds - before.start - before.seconds > _TURN_SECONDS:
            found.append([])
        else:
            found[-1].append(window)
    return [sum(one.samples for one in turn) / sum(one.seconds for one in turn) for turn in found[1:-1]]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what is started in the background ignores it
    with tempfile.TemporaryDirectory() as name:
        together, apart = side_by_side(Path(name))
        print(f"two kinds: {together:.1f} s by one command, {apart:.1f} s one after the other: {together / apart:.2f}")
        for exchange, fields in _EXCHANGES.items():
            shares = sorted(joined(Path(name) / exchange, fields))
            # Of the median: what order statistics hold it 95 times in a hundred, however the shares are distributed.
            least = int(stats.binom.ppf(0.025, len(shares), 0.5)) - 1
            low, high = shares[least], shares[-1 - least]
            each = ", ".join(f"{share:.2f}" for share in shares)
            middle = statistics.median(shares)
            print(f"{exchange}: two hosts give {middle:.3f} ({low:.3f} to {high:.3f}) of two workers on one: {each}")
