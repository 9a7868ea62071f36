"""What the tests of the frameworks do with a session: here, and in the workers of a run, each a process of its own.

    POC_TASKS=FOLDER/WORKER.json python -m tests.framework_worker

That file has the worker's runs, each with a function below that takes a session and says what it saw, and gets that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from poc import SGD, Fixed, Recipe, Synthetic, data, frameworks
from poc.config import networks
from poc.config.run import Run
from poc.data import Batch
from poc.frameworks import Session
from poc.host import processes
from poc.plan import Planned, plan
from tests.builders import MACHINE
from tests.launch import DEADLINE_SECONDS

MODELS = ("cifar_resnet8_v2", "cifar_mlp")
SUMS = 8
PLAIN = SGD(momentum=0.0, weight_decay=0.0)
Arrays = dict[str, np.ndarray]


def planned(framework: str, **fields: Any) -> Planned:
    """Five steps of a small network that the framework has, at a rate that changes with each of them."""
    model = fields.get("model") or next(m for m in MODELS if m == MODELS[-1] or not planned(framework, model=m).skip)
    size = max(16, networks.network(model).smallest)
    base: dict[str, Any] = {
        "model": model,
        "framework": framework,
        "kind": "cpu",
        "data": Synthetic(size=size, crop=size, train=640, validation=70),
        # More would amplify the rounding of sums in another order within the five steps.
        "lr": Fixed(base=0.01, decay="linear"),
        "batch_per_device": 8,
        "steps": 5,
    }
    (only,) = plan("test", Recipe(**{**base, **fields}), MACHINE)
    return only


def batches(run: Run, worker: int = 0, first_step: int = 0, steps: int | None = None) -> Iterator[Batch]:
    return data.training_batches(
        data.load(run.data, source=None, cache=Path("unused")),
        run.data,
        global_batch=run.global_batch,
        seed=0,
        first_step=first_step,
        steps=run.steps - first_step if steps is None else steps,
        worker=worker,
        workers=run.workers,
    )


def validation(run: Run, batch: int, worker: int = 0) -> Iterator[Batch]:
    dataset = data.load(run.data, source=None, cache=Path("unused"))
    return data.validation_batches(dataset, run.data, batch=batch, worker=worker, workers=run.workers)


def parameters(session: Session) -> Arrays:
    """Parameters and batch statistics, as named in `Session.state`."""
    return {
        name: array.copy()
        for name, array in session.state().items()
        if name.startswith("parameter/") and array.dtype == np.float32
    }


def evaluated(session: Session, run: Run, worker: int = 0) -> np.ndarray:
    """Correct, samples and loss over this worker's 32 at a time, of which the last are fewer than devices share."""
    result = session.evaluate(validation(run, 32, worker))
    return np.array([result.correct, result.samples, result.loss])


def trained(session: Session, run: Run, worker: int = 0, folder: Path = Path()) -> Arrays:
    """The parameters after all steps of `run`, and before as "start/NAME"; norms, evaluation, and losses of halves."""
    start = {f"start/{name}": array for name, array in parameters(session).items()}
    losses = []
    for step, batch in enumerate(batches(run, worker)):
        session.step(batch, run.rate(step), norms=run.gradient_noise is not None)
        if step + 1 in (run.steps // 2, run.steps):
            losses.append(session.drain())
    seen = {"evaluated": evaluated(session, run, worker), "losses": losses, "norms": session.gradient_norms()}
    after = parameters(session)
    return {**start, **after, **seen, "sums right": str(session.sync_is_correct())}


def gradients(session: Session, run: Run, worker: int = 0, folder: Path = Path(), **how: Any) -> Arrays:
    """What a step at rate 1 by the first batch subtracts from the first device's parameters.

    These are gradients where the optimizer of `run` is PLAIN.
    """
    before = parameters(session)
    session.step(next(batches(run, worker)), 1.0, **how)
    return {
        name: before[name] - after
        for name, after in parameters(session).items()
        if "running" not in name and not name.endswith(("/1", "/2", "/3"))
    }


def sent_ahead(session: Any, run: Run, worker: int, folder: Path) -> Arrays:
    """The parameters after all steps of `run`, each of whose batches another thread had put on the device."""
    with data.prefetch(map(session.placed, batches(run, worker)), depth=3) as there:
        for step, batch in enumerate(there):
            session.step(batch, run.rate(step))
    return {**parameters(session), "losses": np.array(session.drain())}


def clocks(session: Any, run: Run, worker: int, folder: Path) -> Arrays:
    """Every worker's clock as this one saw them after each step, where the fast one goes as far ahead as it may.

    The slow one waits with each step until the other can go no further without it.
    """
    rank, allowed = session._exchange.rank, run.steps if run.kvstore.staleness is None else run.kvstore.staleness
    for step, batch in enumerate(batches(run, worker), start=1):
        until = time.monotonic() + DEADLINE_SECONDS / 2
        while rank and not (folder / f"fast-{min(step - 1 + allowed, run.steps)}").exists() and step + allowed > 1:
            assert time.monotonic() < until, f"the fast worker may go {allowed} steps ahead, and does not"
            time.sleep(0.01)
        session.step(batch, run.learning_rate)
        if not rank:
            (folder / f"fast-{step}").touch()
    evaluated(session, run, worker)
    return {"seen": np.array(session._exchange.seen), "rank": np.array(rank)}


def sums(session: Any, run: Run, worker: int, folder: Path) -> Arrays:
    """What several exchanges of the same gradients, uniform in -1 to 1, gave in all, beside what was sent each time."""
    generator = np.random.default_rng(worker)
    held = [parameter.list_grad()[0] for parameter in session._trained]
    sent = [generator.uniform(-1, 1, gradient.shape).astype(np.float32) for gradient in held]
    received = [np.zeros_like(array) for array in sent]
    for _ in range(SUMS):
        for gradient, array in zip(held, sent):
            gradient[:] = array
        session.exchange()
        for total, gradient in zip(received, held):
            total += gradient.asnumpy()
    return {
        name: np.concatenate([a.ravel() for a in arrays]) for name, arrays in (("sent", sent), ("received", received))
    }


def workers(run: Run, folder: Path, what: str = "trained", seeds: tuple[int, ...] = ()) -> list[Arrays]:
    """What each worker of `run` saw, in a process of its own; they draw their weights from their `seeds`."""
    (seen,) = in_turn([(run, what)], folder, seeds)
    return seen


def in_turn(asked: Sequence[tuple[Run, str]], folder: Path, seeds: tuple[int, ...] = ()) -> list[list[Arrays]]:
    """What `workers` gives for each of several runs, with what to do of it: of as many workers, and in their processes
    one after the other."""
    folder.mkdir(exist_ok=True)
    count = asked[0][0].workers
    started: list[subprocess.Popen[str]] = []
    with contextlib.ExitStack() as stack:
        # As many threads as this process has: with another number, sums round differently, which training amplifies.
        cores = int(os.environ["OMP_NUM_THREADS"])
        around = [stack.enter_context(frameworks.load(run.framework).cluster(run, cores)) for run, _ in asked]
        stack.callback(processes.stop, started)
        for worker in range(count):
            tasks = []
            for (run, what), cluster in zip(asked, around):
                run = dataclasses.replace(run, seed=seeds[worker]) if seeds else run
                tasks.append({"run": run.to_json(), "what": what, "environment": cluster.environments[worker]})
            path = folder / f"{worker}.json"
            path.write_text(json.dumps(tasks))
            given = {"POC_TASKS": str(path), "PYTHONWARNINGS": "ignore"}
            started.append(processes.start("tests.framework_worker", {**around[0].environments[worker], **given}))
        assert [process.wait(timeout=DEADLINE_SECONDS) for process in started] == [0] * count
    return [[dict(np.load(folder / f"{worker}-{n}.npz")) for worker in range(count)] for n in range(len(asked))]


def distance(left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> float:
    """The largest relative difference of any parameter or statistic of `left`, each measured against its own size.

    A device that `right` does not have is held to its first one.
    """
    others = {name: right.get(name, right.get(f"{name[:-2]}/0")) for name in left if name.startswith("parameter/")}
    assert others
    return max(
        float(np.linalg.norm(left[name] - other) / max(np.linalg.norm(other), 1e-6)) for name, other in others.items()
    )


def main() -> None:
    tasks = Path(os.environ["POC_TASKS"])
    folder, worker = tasks.parent, int(tasks.stem)
    for number, task in enumerate(json.loads(tasks.read_text())):
        os.environ.update(task["environment"])
        run = Run.from_json(task["run"])
        session = frameworks.open_session(run)
        session.barrier()
        np.savez(folder / f"{worker}-{number}.npz", **globals()[task["what"]](session, run, worker, folder))
        session.barrier()
        session.close()
        if distributed := sys.modules.get("torch.distributed"):
            assert not distributed.is_initialized()


if __name__ == "__main__":
    main()
