"""One engine in a process of its own, for the tests that hold the engines to the same numbers.

python -m tests.engine_worker ENGINE FOLDER

Trains every run in FOLDER/runs.json with ENGINE, from the weights that the other engine left of it in FOLDER, or from
its own where there are none, and leaves in FOLDER/ENGINE-NUMBER.npz the loss of every step and all parameters and batch
statistics, before and after, in the order of the network's layers.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from poc import data, engines
from poc.run import Run


def main() -> None:
    """Does what the command line says."""
    engine, folder = sys.argv[1], Path(sys.argv[2])
    for number, fields in enumerate(json.loads((folder / "runs.json").read_text())):
        run = dataclasses.replace(Run.from_json(fields), engine=engine)
        (given,) = [np.load(file) for file in folder.glob(f"*-{number}.npz")] or [None]
        np.savez(folder / f"{engine}-{number}.npz", **_trained(run, given))


def _trained(run: Run, weights: Any) -> dict[str, np.ndarray]:
    session = _opened(run, weights)
    dataset = data.load(run.data, source=None, cache=Path("unused"))
    before = session.arrays()
    losses = []
    for step, batch in enumerate(
        data.training_batches(dataset, run.data, total_batch=run.total_batch, seed=0, steps=run.steps)
    ):
        session.step(batch, run.schedule.rate(step), norms=run.gradient_noise is not None)
        losses.append(session.drain())
    found = session.evaluate(data.validation_batches(dataset, run.data, batch=70))
    return {
        "losses": np.array(losses),
        "norms": np.array(session.gradient_norms()),
        "evaluated": np.array([found.correct, found.samples, found.loss]),
        "parameters": np.array(session.parameters),
        **{f"before{number:03}": one for number, one in enumerate(before.values())},
        **{f"after{number:03}": one for number, one in enumerate(session.arrays().values())},
    }


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
