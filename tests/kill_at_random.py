"""Kill a driver, node, worker or server at random moments of runs over hosts, and check that no record is lost.

.venv/bin/python -m tests.kill_at_random [KILLS]    (20 by default; exit code 1 if a record is lost)
"""

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
_JOINED = {**TWO_WORKERS, "data": Synthetic(train=320, validation=70), "cores_per_worker": 1, "epochs": 30}
_CASES = [{**_JOINED, "restarts": 3}, *({"lr": rate, "epochs": 15, "restarts": 3} for rate in (0.01, 0.02, 0.03))]
_LATEST_SECONDS = 6.0


def kill_at_random(nodes: Nodes, folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill so many processes in runs over two hosts and on one, until all runs are done; return the kills by victim."""
    moments, done, lines, status, rounds = random.Random(seed), Counter[str](), set[bytes](), -1, 0
    while done.total() < kills or status != 0:
        if status == 0:
            rounds += 1
        recipe = recipe_file(folder / "mine.py", cases=[{**case, "seeds": 1 + rounds} for case in _CASES])
        nodes.second()
        with drive(nodes.head, recipe, folder) as driver:
            victim = ""
            while done.total() < kills and driver.poll() is None and victim != "driver":
                time.sleep(moments.uniform(0.0, _LATEST_SECONDS))  # the random moment
                victim = VICTIMS[moments.randrange(len(VICTIMS))]
                done[victim] += _kill(victim, nodes, moments)
                nodes.second()
            output, _ = driver.communicate()
            status = driver.returncode
            assert "Traceback" not in output, output
        for host in (nodes.head, nodes.second()):
            eventually(lambda host=host: not host.left_of_runs())  # type: ignore[misc]
        paths = [path for path in journal.paths(folder / "results") if path.exists()]
        previous, lines = lines, {line for path in paths for line in path.read_bytes().splitlines(keepends=True)}
        assert previous <= lines, "a record was lost"
        assert len(journal.read(paths)) == len(lines), "a record was torn"
    return done


def _kill(victim: str, nodes: Nodes, moments: random.Random) -> bool:
    """Kill a process of that kind; return whether there was one."""
    if victim == "node":
        nodes.second().kill()
        return True
    module = {"driver": "poc run", "worker": "poc.run.worker", "server": "reference.hub"}[victim]
    hosts: list[Host] = [nodes.head, nodes.second()]
    processes = [process for host in hosts for process in host.processes(module)]
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
        if processes:
            processes[moments.randrange(len(processes))].kill()
            return True
    return False


if __name__ == "__main__":
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"moments from seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder) / "hosts") as nodes:
        kills = kill_at_random(nodes, Path(folder), int(sys.argv[1]) if len(sys.argv) > 1 else 20, seed)
    print(f"killed {dict(kills)}: no record was lost, and no process left")
