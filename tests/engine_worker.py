"""One engine in a process of its own, for the tests that hold the engines to the same numbers.

python -m tests.engine_worker RUN WEIGHTS FILE

Trains RUN from the arrays in WEIGHTS, or from its own where that is "-", and leaves in FILE, of numpy's format, the
loss of every step and all parameters and batch statistics, before and after, in the order of the network's layers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from poc import data, engines
from poc.plan import Run


def main() -> None:
    """Does what the command line says."""
    fields, weights, file = sys.argv[1:]
    run = Run.from_json(json.loads(fields))
    session = _opened(run, None if weights == "-" else np.load(weights))
    dataset = data.load(run.data, source=None, cache=Path("unused"))
    before = session.arrays()
    losses = []
    for step, batch in enumerate(
        data.training_batches(dataset, run.data, total_batch=run.total_batch, seed=0, steps=run.steps)
    ):
        looked = run.gradient_noise is not None
        session.step(batch, run.schedule.rate(step), norms=looked)
        losses.append(session.drain())
    found = session.evaluate(data.validation_batches(dataset, run.data, batch=70))
    after = session.arrays()
    np.savez(
        file,
        losses=np.array(losses),
        norms=np.array(session.gradient_norms()),
        evaluated=np.array([found.correct, found.samples, found.loss]),
        parameters=np.array(session.parameters),
        **{f"before{number:03}": one for number, one in enumerate(before.values())},
        **{f"after{number:03}": one for number, one in enumerate(after.values())},
    )


def _opened(run: Run, weights: Any) -> Any:
    session = engines.load(run.engine).open_session(run)
    if weights is None:
        return session
    state = session.state()
    names = [name for name in state if name.startswith("parameter/") and not name.endswith("num_batches_tracked")]
    given = [weights[name] for name in sorted(weights.files) if name.startswith("before")]
    assert [state[name].shape for name in names] == [one.shape for one in given]
    return engines.load(run.engine).open_session(run, state={**state, **dict(zip(names, given))})


if __name__ == "__main__":
    main()
