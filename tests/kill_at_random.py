"""Kills a driver, a node, a worker or what serves workers at random moments of runs over hosts; nothing may be lost.

.venv/bin/python -m tests.kill_at_random [KILLS]    (20; what it did on standard output, exit code 1 where it failed)
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

# Before poc.frameworks is imported: the framework for tests.
import tests.conftest  # noqa: F401
from poc import Synthetic
from poc.records import journal
from tests.builders import TWO_WORKERS, recipe_file
from tests.hosts import Host, Nodes, cluster, drive
from tests.launch import eventually

VICTIMS = ("driver", "node", "worker", "server")
_JOINED = {**TWO_WORKERS, "data": Synthetic(train=320, validation=70), "cores_per_worker": 1, "epochs": 60}
_CASES = [{**_JOINED, "restarts": 3}, *({"lr": rate, "epochs": 15, "restarts": 3} for rate in (0.01, 0.02, 0.03))]
_LATEST_SECONDS = 12.0


def kill_at_random(nodes: Nodes, folder: Path, kills: int, seed: int) -> Counter[str]:
    """Makes so many kills in runs over two hosts and on one, until all of them are done; how many of each it made."""
    moments, made, before, status, rounds = random.Random(seed), Counter[str](), list[bytes](), -1, 0
    while made.total() < kills or status != 0:
        if status == 0:
            rounds += 1
        recipe = recipe_file(folder / "mine.py", cases=[{**case, "seeds": 1 + rounds} for case in _CASES])
        nodes.second()
        with drive(nodes.head, recipe, folder) as driver:
            victim = ""
            while made.total() < kills and driver.poll() is None and victim != "driver":
                time.sleep(moments.uniform(0.0, _LATEST_SECONDS))  # the moment is what is drawn
                victim = VICTIMS[moments.randrange(len(VICTIMS))]
                made[victim] += _killed(victim, nodes, moments)
                nodes.second()
            said, _ = driver.communicate()
            status = driver.returncode
            assert "Traceback" not in said, said
        for host in (nodes.head, nodes.second()):
            eventually(lambda host=host: not host.left_of_runs())  # type: ignore[misc]
        before = _checked(folder, before)
    return made


def _killed(victim: str, nodes: Nodes, moments: random.Random) -> bool:
    """Whether there was one to kill."""
    if victim == "node":
        nodes.second().kill()
        return True
    module = {"driver": "poc run", "worker": "poc.run.worker", "server": "reference.hub"}[victim]
    hosts: list[Host] = [nodes.head, nodes.second()]
    found = [process for host in hosts for process in host.processes(module)]
    with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself since it was looked for
        if found:
            found[moments.randrange(len(found))].kill()
            return True
    return False


def _checked(folder: Path, before: list[bytes]) -> list[bytes]:
    """The lines of the journals; each that was there has to be there still, and be a whole record."""
    paths = journal.paths(folder / "results")
    lines = [line for path in paths if path.exists() for line in path.read_bytes().splitlines(keepends=True)]
    assert set(before) <= set(lines), "a record was lost"
    assert len(journal.read(paths)) == len(lines), "a record was torn"
    return lines


if __name__ == "__main__":
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"moments from seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder) / "hosts") as nodes:
        made = kill_at_random(nodes, Path(folder), int(sys.argv[1]) if len(sys.argv) > 1 else 20, seed)
    print(f"killed {dict(made)}: no record was lost, and no process left")
