"""How many images a second the input pipeline makes, now and at an earlier commit: CIFAR-10, cropped and mirrored.

    POC_DATA=FOLDER .venv/bin/python -m tests.benchmark_data COMMIT [PAIRS]

The two take turns, a fresh process each time; POC_DATA is where the images are.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

from poc import data
from poc.recipe import CIFAR10
from poc.records.timing import spread

HOME = Path(__file__).parent.parent
BATCHES = (128, 1024)
IMAGES = 40_960


def take(cache: Path) -> None:
    """Prints the seconds, and those of all cores, that an image took: for each kind of batch [wall, CPU]."""
    dataset = data.load(CIFAR10(), source=Path(os.environ["POC_DATA"]), cache=cache)
    taken = []
    for jitter, batch in itertools.product((True, False), BATCHES):
        for steps in (2, IMAGES // batch):  # the first two are warm-up
            start = time.perf_counter(), time.process_time()
            for _ in data.training_batches(dataset, CIFAR10(jitter=jitter), total_batch=batch, seed=0, steps=steps):
                pass
        now = time.perf_counter(), time.process_time()
        taken.append([(after - before) / (IMAGES // batch * batch) for before, after in zip(start, now)])
    print(json.dumps(taken))


def main() -> None:
    """Prints the table: medians over the pairs, the ratio of the two of each pair, and its spread."""
    commit, pairs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 15
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", before, commit], cwd=HOME, check=True)
        try:
            takes: dict[Path, list[list[list[float]]]] = {before: [], HOME: []}
            for number in range(pairs + 1):
                for tree in list(takes)[:: 1 if number % 2 else -1]:
                    command = [sys.executable, __file__, "take", f"{folder}/cache"]
                    done = subprocess.run(
                        command, env={**os.environ, "PYTHONPATH": str(tree)}, check=True, capture_output=True, text=True
                    )
                    takes[tree] += [json.loads(done.stdout)] if number else []  # the first round fills the cache
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", before], cwd=HOME, check=True)
    rows = []
    for kind, (jitter, batch) in enumerate(itertools.product((True, False), BATCHES)):
        (old, old_cpu), (new, new_cpu) = (zip(*(each[kind] for each in takes[tree])) for tree in (before, HOME))
        ratios = [a / b for a, b in zip(old, new)]
        rows.append(
            {
                "colours moved": jitter,
                "batch": batch,
                "images/s then": round(1 / statistics.median(old)),
                "now": round(1 / statistics.median(new)),
                "now / then": f"{statistics.median(ratios):.2f}",
                "spread": f"{spread(ratios):.2f}",
                "CPU us an image then": f"{statistics.median(old_cpu) * 1e6:.1f}",
                "CPU us now": f"{statistics.median(new_cpu) * 1e6:.1f}",
            }
        )
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{pairs} pairs, {len(os.sched_getaffinity(0))} cores, load at the end {load}")
    print(tabulate(rows, headers="keys"))


if __name__ == "__main__":
    take(Path(sys.argv[2])) if sys.argv[1] == "take" else main()
