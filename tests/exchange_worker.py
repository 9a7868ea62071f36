"""One worker of the tests of the exchanges, a process of its own.

python -m tests.exchange_worker WORKER RUN FILE WHAT

It leaves in FILE, of numpy's format, what it was to find out: WHAT is a function below.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from poc import data, engines
from poc.run import Run

EXCHANGES = 8
SEEDS = (3, 4)
"""Of the weights that each worker draws; with some others a ReLU is so near its edge that the order of sums tips it."""


def trained(session: Any, run: Run, worker: int = 0) -> dict[str, np.ndarray]:
    """Parameters and batch statistics after all steps of `run`, at a rate that changes with every one."""
    dataset = data.load(run.data, source=None, cache=Path("unused"))
    batches = data.training_batches(
        dataset, run.data, total_batch=run.total_batch, seed=0, steps=run.steps, worker=worker, workers=run.workers
    )
    for step, batch in enumerate(batches):
        session.step(batch, run.schedule.rate(step))
    session.drain()
    found = session.evaluate(data.validation_batches(dataset, run.data, batch=70, worker=worker, workers=run.workers))
    return {**session.arrays(), "samples evaluated": np.array(found.samples)}


def clocks(session: Any, run: Run, worker: int) -> dict[str, np.ndarray]:
    """Every worker's clock as this one saw them, step by step, and which of them is its own."""
    trained(session, run, worker)
    return {"seen": np.array(session._exchange.seen), "rank": np.array(session._exchange.rank)}


def sums(session: Any, run: Run, worker: int) -> dict[str, np.ndarray]:
    """What several exchanges of the same gradients, uniform in -1 to 1, gave in all, beside what was sent each time."""
    generator = np.random.default_rng(worker)
    gradients = [parameter.list_grad()[0] for parameter in session._trained]
    own = [generator.uniform(-1, 1, gradient.shape).astype(np.float32) for gradient in gradients]
    total = [np.zeros_like(one) for one in own]
    for _ in range(EXCHANGES):
        for gradient, one in zip(gradients, own):
            gradient[:] = one
        session.exchange()
        for received, gradient in zip(total, gradients):
            received += gradient.asnumpy()
    return {
        "sent": np.concatenate([one.ravel() for one in own]),
        "received": np.concatenate([one.ravel() for one in total]),
    }


def main() -> None:
    """Does what the command line says."""
    worker, fields, file, what = sys.argv[1:]
    # Each worker draws weights of its own; all of them must start from those of one.
    run = Run.from_json({**json.loads(fields), "seed": SEEDS[int(worker)]})
    session = engines.load("gluon").open_session(run)
    session.barrier()
    np.savez(file, **globals()[what](session, run, int(worker)))
    session.barrier()


if __name__ == "__main__":
    main()
