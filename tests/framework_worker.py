"""Sessions of the frameworks' tests: in the test's process, and in the workers of a run, each a process of its own.

    POC_TASKS=FOLDER/WORKER.json python -m tests.framework_worker

That file has the worker's runs, each with the name of a function below that is called with its session.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from poc import SGD, Fixed, Recipe, Synthetic, data, frameworks
from poc.config import networks
from poc.config.run import Run
from poc.data import Batch
from poc.frameworks import Session
from poc.frameworks.session import WrongSumError
from poc.host import processes
from poc.plan import Planned, plan
from poc.values import from_plain, to_plain
from tests.builders import MACHINE
from tests.launch import DEADLINE_SECONDS

MODELS = ("cifar_resnet8_v2", "cifar_mlp")
SUMS = 8
BOUNDS = (2, 0, None)
"""Steps that a worker may be ahead of the slowest; the first is that of the run."""
PLAIN = SGD(momentum=0.0, weight_decay=0.0)
Arrays = dict[str, np.ndarray]


def planned(framework: str, **fields: Any) -> Planned:
    """Plan five steps of a small network that the framework supports, at a learning rate that changes every step."""
    model = fields.get("model") or next(m for m in MODELS if m == MODELS[-1] or not planned(framework, model=m).skip)
    size = max(16, networks.NETWORKS[model].smallest if model in networks.NETWORKS else 32)
    base: dict[str, Any] = {
        "model": model,
        "framework": framework,
        "kind": "cpu",
        "data": Synthetic(size=size, crop=size, train=640, validation=70),
        # A larger one would amplify the rounding of sums in another order within the five steps.
        "lr": Fixed(base=0.01, decay="linear"),
        "batch_per_device": 8,
        "steps": 5,
    }
    (only,) = plan("test", Recipe(**{**base, **fields}), MACHINE)
    return only


def dataset_of(run: Run) -> data.Dataset:
    """Return the images of a run; in place of CIFAR-10, 640 of noise."""
    if run.data.name != "cifar10":
        return data.load(run.data, source=None, cache=Path("unused"))
    pixels = np.random.default_rng(0).integers(0, 256, (640, 32, 32, 3), np.uint8)
    split = data.Images(pixels, (np.arange(640) % 10).astype(np.int32))
    return data.Dataset("cifar10", split, split.part(np.arange(70)))


def batches(run: Run, worker: int = 0, first_step: int = 0, steps: int | None = None) -> Iterator[Batch]:
    return data.training_batches(
        dataset_of(run),
        run.data,
        global_batch=run.global_batch,
        accumulate=run.accumulate,
        seed=0,
        first_step=first_step,
        steps=run.steps - first_step if steps is None else steps,
        worker=worker,
        workers=run.workers,
    )


def validation(run: Run, batch: int, worker: int = 0) -> Iterator[Batch]:
    return data.validation_batches(dataset_of(run), run.data, batch=batch, worker=worker, workers=run.workers)


def parameters(session: Session) -> Arrays:
    """Return parameters and batch statistics, named as in `Session.state`."""
    return {
        name: array.copy()
        for name, array in session.state().items()
        if name.startswith("parameter/") and array.dtype == np.float32
    }


def trained(session: Session, run: Run, worker: int = 0, folder: Path = Path()) -> Arrays:
    """Return the parameters after all steps, and before as "start/NAME"; norms, evaluation, and losses of halves.

    The evaluation is of 32 images at a time; the last batch is shorter, and shorter than the devices divide.
    """
    start = {f"start/{name}": array for name, array in parameters(session).items()}
    losses = []
    if run.data.on_device:
        session.upload_images(data.device_images(dataset_of(run), run.data))
    for number, batch in enumerate(batches(run, worker), start=1):
        session.step(batch, run.rate(number - 1), norms=bool(run.gradient_noise))
        if number in (run.steps // 2, run.steps):
            losses.append(session.drain())
    evaluated = np.array(session.evaluate(validation(run, 32, worker)))
    summed = session.sum_over_workers(evaluated[:2])
    seen = {"evaluated": evaluated, "summed": summed, "losses": losses, "norms": session.gradient_norms()}
    return {**start, **parameters(session), **seen, "sums right": str(session.sync_is_correct())}


def gradients(session: Session, run: Run, worker: int = 0, folder: Path = Path()) -> Arrays:
    """Return what a step at rate 1 by the first batch subtracts from the first device's parameters.

    These are the gradients if the optimizer of `run` is PLAIN.
    """
    before = parameters(session)
    session.step(next(batches(run, worker)), 1.0, norms=bool(run.gradient_noise))
    return {
        name: before[name] - after
        for name, after in parameters(session).items()
        if "running" not in name and not name.endswith(("/1", "/2", "/3"))
    }


def placed_ahead(session: Session, run: Run, worker: int, folder: Path) -> Arrays:
    """Return the parameters after all steps of `run`, whose batches another thread has put on the device."""
    with data.prefetch(map(session.place, batches(run, worker)), depth=3) as (placed, _):
        for number, batch in enumerate(placed):
            session.step(batch, run.rate(number))
    return {**parameters(session), "losses": np.array(session.drain())}


def clocks(session: Any, run: Run, worker: int, folder: Path) -> Arrays:
    """Return every worker's clock as this one saw it after each step, with the fast one as far ahead as allowed.

    All steps are done with each of BOUNDS. The slow one waits with each until the other can go no further without it.
    Return parameters and evaluation, too: at the end the fast one has not received the slow one's last updates.
    """
    rank, steps = session._worker, [*enumerate(batches(run, worker), start=1)]
    assert session._bound == BOUNDS[0]
    for session._bound in BOUNDS:
        bound, allowed = session._bound, run.steps if session._bound is None else session._bound
        for number, batch in steps:
            until = time.monotonic() + DEADLINE_SECONDS / 2
            fast = folder / f"fast-{bound}-{min(number - 1 + allowed, run.steps)}"
            while rank and number + allowed > 1 and not fast.exists():
                assert time.monotonic() < until, f"the fast worker may go {allowed} steps ahead, and does not"
                time.sleep(0.01)
            session.step(batch, run.learning_rate)
            if not rank:
                (folder / f"fast-{bound}-{number}").touch()
        session.barrier()
    _, evaluated, _ = session.evaluate(validation(run, 32, worker))
    ends = {"evaluated": np.array(evaluated), "sums right": str(session.sync_is_correct()), **parameters(session)}
    return {"seen": np.array(session.seen), "rank": np.array(rank), **ends}


def sums(session: Any, run: Run, worker: int, folder: Path) -> Arrays:
    """Return the total of several all-reduces of the same gradients, uniform in -1 to 1, and what each sent."""
    generator = np.random.default_rng(worker)
    buffers = [parameter.list_grad()[0] for parameter in session._trained]
    sent = [generator.uniform(-1, 1, gradient.shape).astype(np.float32) for gradient in buffers]
    received = [np.zeros_like(array) for array in sent]
    for _ in range(SUMS):
        for gradient, array in zip(buffers, sent):
            gradient[:] = array
        session.all_reduce_gradients()
        for total, gradient in zip(received, buffers):
            total += gradient.asnumpy()
    return {"sent": np.concatenate([*map(np.ravel, sent)]), "received": np.concatenate([*map(np.ravel, received)])}


def counted(session: Any, run: Run, worker: int = 0, folder: Path = Path()) -> Arrays:
    """Return what `trained` does, how many arrays of gradients each step sums, and how many there are: flat buffers."""
    sent: list[object] = []
    counts: list[int] = []
    arrays, step = 0, session.step
    if getattr(session, "_ddp", None) is not None:
        distributed = sys.modules["torch.distributed"]

        def all_reduce(state, bucket):  # type: ignore[no-untyped-def]  # DistributedDataParallel checks annotations
            if bucket.is_last():
                sent.append(bucket.index())
            mean = distributed.all_reduce(bucket.buffer().div_(run.workers), async_op=True).get_future()
            return mean.then(lambda done: done.value()[0])

        session._ddp.register_comm_hook(None, all_reduce)
        arrays = 1  # all buckets of a backward pass
    elif hasattr(session, "_sum"):
        total, arrays = session._sum, len(session._gradients())
        session._sum = lambda key, *rest, **options: sent.append(key) or total(key, *rest, **options)
    else:
        reduce, arrays = session.all_reduce_gradients, 1
        session.all_reduce_gradients = lambda: sent.append(None) or reduce()

    def counted_step(*arguments: Any, **options: Any) -> None:
        before = len(sent)
        step(*arguments, **options)
        counts.append(len(sent) - before)

    session.step = counted_step
    seen = trained(session, run, worker, folder)
    return {**seen, "per step": np.array(counts), "arrays": np.array([arrays])}


def replayed(session: Any, run: Run, worker: int, folder: Path) -> Arrays:
    """Return what `trained` does where steps after the first eleven run again the first one that was recorded."""

    class Closure:
        def record(self, work: Callable[[], None]) -> None:
            self.replay = work
            work()

    session._replays = session._new_replays(Closure)
    seen = trained(session, run, worker, folder)
    return {**seen, "recorded": np.array(len(session._replays.recorded))}


def never_replayed(session: Any, run: Run, worker: int, folder: Path) -> Arrays:
    session._replays = session._new_replays(None)
    session._replays.is_warm = lambda kind: False
    return trained(session, run, worker, folder)


def wrong_sums(session: Any, run: Run, worker: int, folder: Path) -> Arrays:
    """Return whether sums are right, also without DistributedDataParallel's, what is sent, and the interfaces."""
    distributed, sent = sys.modules["torch.distributed"], []
    session.step(next(batches(run, worker)), run.learning_rate)
    before = session.sync_is_correct()

    def own_gradients(state, bucket):  # type: ignore[no-untyped-def]  # DistributedDataParallel checks annotations
        done = sys.modules["torch"].futures.Future()
        done.set_result(bucket.buffer())
        return done

    session._ddp.register_comm_hook(None, own_gradients)
    after = session.sync_is_correct()
    distributed.all_reduce = lambda tensor: sent.append(tensor.numel())
    session.all_reduce_alone()
    with contextlib.suppress(WrongSumError):
        session._check_exchange()
        raise AssertionError("wrong sums are not found")
    interfaces = [os.environ[f"{library}_SOCKET_IFNAME"] for library in ("GLOO", "NCCL")]
    return {"right": np.array([before, after]), "sent": np.array(sent[:1]), "interfaces": np.array(interfaces)}


TASKS = {
    task.__name__: task
    for task in (replayed, never_replayed, trained, gradients, placed_ahead, clocks, sums, counted, wrong_sums)
}


def workers(run: Run, folder: Path, task: str = "trained") -> list[Arrays]:
    """Return the result of each worker of `run`, in a process of its own."""
    (results,) = interleaved([(run, task)], folder)
    return results


def interleaved(asked: Sequence[tuple[Run, str]], folder: Path) -> list[list[Arrays]]:
    """Return what `workers` does for several runs of as many workers, one after another in the same processes."""
    folder.mkdir(exist_ok=True)
    count = asked[0][0].workers
    started: list[subprocess.Popen[str]] = []
    with contextlib.ExitStack() as stack:
        # As many threads as this process has: with another number, sums round differently, which training amplifies.
        cores = int(os.environ["OMP_NUM_THREADS"])
        clusters = [stack.enter_context(frameworks.load(run.framework).cluster(run, cores)) for run, _ in asked]
        stack.callback(processes.stop, started)
        for worker in range(count):
            tasks = []
            for (run, task), cluster in zip(asked, clusters):
                own = {**cluster.environments[worker], "OMP_NUM_THREADS": str(cores)}
                tasks.append({"run": to_plain(run), "task": task, "environment": own})
            path = folder / f"{worker}.json"
            path.write_text(json.dumps(tasks))
            environment = {**tasks[0]["environment"], "POC_TASKS": str(path), "PYTHONWARNINGS": "ignore"}
            started.append(processes.start("tests.framework_worker", environment))
        assert [process.wait(timeout=DEADLINE_SECONDS) for process in started] == [0] * count
    return [[dict(np.load(folder / f"{worker}-{n}.npz")) for worker in range(count)] for n in range(len(asked))]


def distance(left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> float:
    """Return the largest relative difference of any parameter or statistic of `left`.

    A device that `right` does not have is compared to its first one.
    """
    others = {name: right.get(name, right.get(f"{name[:-2]}/0")) for name in left if name.startswith("parameter/")}
    assert others
    return max(
        float(np.linalg.norm(left[name] - other) / max(np.linalg.norm(other), 1e-6)) for name, other in others.items()
    )


def main() -> None:
    path = Path(os.environ["POC_TASKS"])
    worker, sessions = int(path.stem), []
    for number, task in enumerate(json.loads(path.read_text())):
        os.environ.update(task["environment"])
        run = from_plain(Run, task["run"])
        session = frameworks.open_session(run)
        sessions.append(session)
        session.barrier()
        np.savez(path.parent / f"{worker}-{number}.npz", **TASKS[task["task"]](session, run, worker, path.parent))
        session.barrier()
        session.close()
        if distributed := sys.modules.get("torch.distributed"):
            assert not distributed.is_initialized()
    os._exit(0)  # before the sessions are freed, as in poc/run/worker.py


if __name__ == "__main__":
    main()
