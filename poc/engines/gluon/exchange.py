"""How the gradients of all replicas come together: MXNet's kvstores, inside one process and between several."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

if TYPE_CHECKING:
    from poc.plan import Run

# Gradients travel in arrays of about this size: few enough to cost little each, several where a network is large, so
# that the first are on their way while the others are computed. The size is that of PyTorch's DistributedDataParallel
# (Li et al. 2020, "PyTorch Distributed").
_BUCKET_BYTES = 25 * 2**20


class InProcess:
    """The devices of one process: kvstore `device` or `local`, or none, where each device goes its own way."""

    rank = 0
    """Number of this worker."""

    def __init__(self, run: Run, trained: list[Any], statistics: list[Any]) -> None:
        self._total_batch = run.total_batch
        self._statistics = statistics
        kvstore = run.exchange if run.devices > 1 and not run.virtual else "independent"
        self._trainer = gluon.Trainer(
            # Not the batch statistics: its first step would give all devices those of the first one.
            trained,
            "sgd",
            {"learning_rate": run.learning_rate, "momentum": run.momentum, "wd": run.weight_decay},
            kvstore=kvstore if kvstore in ("device", "local") else None,
            # Every device applies the same update to its own copy, so that the learning rate is set in one place.
            update_on_kvstore=False,
        )

    def update(self, learning_rate: float) -> None:
        """Enqueues the update of every device's parameters by its own gradients, as they are."""
        self._trainer.set_learning_rate(learning_rate)
        self._trainer.update(self._total_batch)

    def exchange(self) -> None:
        """Enqueues the exchange: every device's gradients become the sum of those of all devices of all workers."""
        self._trainer.allreduce_grads()

    def average_statistics(self) -> None:
        """Gives every device, of all workers, the mean of all devices' batch statistics."""
        for parameter in self._statistics:
            if len(parameter.list_ctx()) > 1:
                # _reduce is how Gluon itself averages a parameter over its contexts when it saves one.
                parameter.set_data(parameter._reduce())

    def barrier(self) -> None:
        """Blocks until every worker is here."""


class BetweenWorkers(InProcess):
    """The devices of several processes: kvstore `dist_sync` or `dist_device_sync`, sums made on MXNet's servers.

    A network has some hundred small gradients, and a message for each costs more than its bytes do. So the gradients
    lie side by side in a few long arrays, each of which is one key of the store, and the network's own are views of
    them: nothing is packed or copied.
    """

    def __init__(self, run: Run, trained: list[Any], statistics: list[Any]) -> None:
        super().__init__(run, trained, statistics)
        self._workers = run.workers
        self._store = mx.kv.create(run.exchange)
        self.rank = self._store.rank
        self._buckets = {f"gradients {number}": found for number, found in enumerate(_buckets(trained))}
        self._join(trained)

    def _join(self, trained: list[Any]) -> None:
        """Makes the keys known to the server, and gives every worker the state that the first one started from.

        Gluon's trainer would do so during the first step, and not safely: the server does not answer in the order in
        which it was asked, so it may take in the first gradients before it has sent the weights out, and sends
        gradients instead; and `init` does not wait for arrays in oneDNN's blocked layout, which new arrays are not in.
        """
        shared = [*trained, *self._statistics]
        state = _joined(shared)
        self._store.init("state", state)
        for key, bucket in self._buckets.items():
            self._store.init(key, mx.nd.zeros_like(bucket[0]))
        if self._statistics:
            self._store.init("statistics", _joined(self._statistics))
        self._store.pull("state", out=state)
        _separated(state, shared)
        self.barrier()

    def exchange(self) -> None:
        """Enqueues the exchange: every device's gradients become the sum of those of all devices of all workers."""
        for number, (key, bucket) in enumerate(self._buckets.items()):
            self._store.pushpull(key, bucket, out=bucket, priority=-number)

    def average_statistics(self) -> None:
        """Gives every device, of all workers, the mean of all devices' batch statistics."""
        if not self._statistics:
            return
        mean = _joined(self._statistics)
        self._store.push("statistics", mean)
        self._store.pull("statistics", out=mean)
        _separated(mean / self._workers, self._statistics)

    def barrier(self) -> None:
        """Blocks until every worker is here."""
        mx.nd.waitall()
        self._store._barrier()


class Apart(BetweenWorkers):
    """Several processes that start together, from the same state, and exchange nothing after that: the ceiling."""

    def __init__(self, run: Run, trained: list[Any], statistics: list[Any]) -> None:
        super().__init__(dataclasses.replace(run, exchange="dist_sync"), trained, statistics)

    def exchange(self) -> None:
        """Does nothing."""

    def average_statistics(self) -> None:
        """Gives the devices of this worker, which are replicas of no other's, the mean of their batch statistics."""
        InProcess.average_statistics(self)


def connect(run: Run, trained: list[Any], statistics: list[Any]) -> InProcess:
    """The exchange of `run` for the parameters `trained` and the batch `statistics` of this worker's replicas."""
    if run.workers == 1:
        return InProcess(run, trained, statistics)
    return (Apart if run.exchange == "independent" else BetweenWorkers)(run, trained, statistics)


def _buckets(trained: list[Any]) -> list[list[Any]]:
    """Makes the gradients of `trained` views of few long arrays; returns these: of each bucket, one a context.

    The last parameters come first, as the backward pass finds them.
    """
    buckets: list[list[Any]] = []
    rest = trained[::-1]
    while rest:
        sizes = np.cumsum([int(np.prod(parameter.shape)) for parameter in rest])
        count = max(1, int(np.searchsorted(sizes, _BUCKET_BYTES / 4, side="right")))
        members, rest = rest[:count], rest[count:]
        bucket = [mx.nd.zeros(int(sizes[count - 1]), ctx=context) for context in members[0].list_ctx()]
        for parameter, end in zip(members, sizes):
            start = int(end) - int(np.prod(parameter.shape))
            parameter._grad = [long[start : int(end)].reshape(parameter.shape) for long in bucket]
            autograd.mark_variables(parameter.list_data(), parameter.list_grad(), parameter.grad_req)
        buckets.append(bucket)
    return buckets


def _joined(parameters: list[Any]) -> Any:
    """The parameters' values, averaged over their contexts, one after the other in one new array."""
    return mx.nd.concat(*(parameter._reduce().reshape(-1) for parameter in parameters), dim=0)


def _separated(joined: Any, parameters: list[Any]) -> None:
    """Gives the parameters, on all their contexts, the values that `_joined` put into one array."""
    end = 0
    for parameter in parameters:
        start, end = end, end + int(np.prod(parameter.shape))
        parameter.set_data(joined[start:end].reshape(parameter.shape))
