"""How the gradients of all replicas come together: MXNet's kvstores, inside one process and between several."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from poc import recipe
from poc.engines import gluon as engine
from poc.engines.gluon import launch, optimizers
from poc.machine import processes

if TYPE_CHECKING:
    from poc.run import Run

# Gradients travel in arrays of about this size: few enough to cost little each, several where a network is large, so
# that the first are on their way while the others are computed. The size is that of PyTorch's DistributedDataParallel
# (Li et al. 2020, "PyTorch Distributed").
_BUCKET_BYTES = 25 * 2**20
_ASK_AGAIN_SECONDS = 0.002


class InProcess:
    """The devices of one process: kvstore `device`, `local` or `nccl`, or none, where each device goes its own way."""

    rank = 0
    """Number of this worker."""

    def __init__(self, run: Run, trained: list[Any], statistics: list[Any], first_step: int = 0) -> None:
        self._run, self._first_step = run, first_step
        self._statistics = statistics
        inside = run.exchanges and isinstance(run.exchange, (recipe.Device, recipe.Local, recipe.NCCL))
        self._trainer = gluon.Trainer(
            # Not the batch statistics: its first step would give all devices those of the first one.
            trained,
            optimizers.make(run, trained),
            kvstore=run.exchange.name if inside else None,
            compression_params=_compression(run) if inside else None,
            # Every device applies the same update to its own copy, so that the learning rate is set in one place.
            update_on_kvstore=False,
        )

    def step(self, rate: float) -> None:
        """Enqueues one exchange of the gradients, and the update of all parameters at learning rate `rate`."""
        self.exchange()
        self.update(rate)

    def update(self, rate: float) -> None:
        """Enqueues the update of every device's parameters by its own gradients, as they are."""
        self._trainer.set_learning_rate(rate)
        if isinstance(self._trainer.optimizer, optimizers.CorrectedSGD):
            self._trainer.optimizer.follow(rate)
        self._trainer.update(self._run.total_batch * self._run.loss_scale)

    def exchange(self) -> None:
        """Enqueues the exchange: every device's gradients become the sum of those of all devices of all workers."""
        self._trainer.allreduce_grads()

    def synchronize(self) -> None:
        """Gives every device, of all workers, the same parameters and the mean of all devices' batch statistics."""
        for parameter in self._statistics:
            if len(parameter.list_ctx()) > 1:
                # _reduce is how Gluon itself averages a parameter over its contexts when it saves one.
                parameter.set_data(parameter._reduce())

    def state(self) -> dict[str, np.ndarray]:
        """The optimizer's state, as far as it is in this process: "momentum/INDEX/DEVICE", and the "rate" before."""
        state = {
            f"momentum/{index}/{device}": momentum.asnumpy()
            for device, updater in enumerate(self._trainer._updaters)
            for index, momentum in updater.states.items()
            if momentum is not None
        }
        optimizer = self._trainer.optimizer
        if isinstance(optimizer, optimizers.CorrectedSGD) and optimizer.previous is not None:
            state["rate"] = np.array(optimizer.previous)
        return state

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes over what `state` gave."""
        if "rate" in state:
            self._trainer.optimizer.previous = float(state["rate"])
        for name, momentum in state.items():
            kind, *place = name.split("/")
            if kind == "momentum":
                index, device = map(int, place)
                context = self._trainer._contexts[device]
                updater = self._trainer._updaters[device]
                updater.states[index] = mx.nd.array(momentum, ctx=context, dtype=momentum.dtype)
                updater.states_synced[index] = True

    def barrier(self) -> None:
        """Blocks until every worker is here."""

    def stats(self) -> dict[str, Any]:
        """What there is to say of the exchanges so far, as plain values for the record."""
        return {}


class BetweenWorkers(InProcess):
    """The devices of several processes: kvstore `dist_sync` or `dist_device_sync`, sums made on MXNet's servers.

    A network has some hundred small gradients, and a message for each costs more than its bytes do. So the gradients
    lie side by side in a few long arrays, each of which is one key of the store, and the network's own are views of
    them: nothing is packed or copied.
    """

    _kvstore = ""
    """Of MXNet; empty: that of the exchange's name."""

    def __init__(self, run: Run, trained: list[Any], statistics: list[Any], first_step: int = 0) -> None:
        super().__init__(run, trained, statistics, first_step)
        self._compression = _compression(run)
        self._half = getattr(run.exchange, "gradient_bits", 32) == 16
        self._keys = 0
        self._connect()
        self._broadcast_start([*trained, *statistics])
        self._make_keys(trained)
        self.barrier()

    def _connect(self) -> None:
        """Joins the other workers; sets this one's number among them."""
        self._store = mx.kv.create(self._kvstore or self._run.exchange.name)
        self.rank = self._store.rank
        if self._compression:
            self._store.set_gradient_compression(self._compression)

    def _broadcast_start(self, parameters: list[Any]) -> None:
        """Gives every worker the values that the first one starts from.

        Gluon's trainer would do so during the first step, and not safely: the server does not answer in the order in
        which it was asked, so it may take in the first gradients before it has sent the weights out, and sends
        gradients instead; and `init` does not wait for arrays in oneDNN's blocked layout, which new arrays are not in.
        """
        start = _flatten(parameters)
        self._broadcast(start)
        _unflatten(start, parameters)
        mx.nd.waitall()

    def _broadcast(self, array: Any) -> None:
        """Enqueues the overwriting of `array`, on every worker, by the first one's."""
        self._store.pull(self._new_key(array), out=array)

    def _make_keys(self, trained: list[Any]) -> None:
        """Makes known to the servers what is exchanged later."""
        dtype = np.float16 if self._half else np.float32
        self._buckets = {}
        for _, bucket in _buckets(trained):
            sent = [flat.astype(dtype) for flat in bucket] if self._half else bucket
            self._buckets[self._new_key(mx.nd.zeros_like(sent[0]))] = (bucket, sent)
        # Compression would take the batch statistics for gradients.
        averaged = self._statistics and not self._compression
        self._statistics_key = self._new_key(_flatten(self._statistics)) if averaged else None

    def _new_key(self, value: Any) -> int:
        key = self._keys
        self._keys += 1
        self._store.init(key, value)
        return key

    def _sum(self, key: int, arrays: list[Any], priority: int = 0) -> None:
        """Enqueues the exchange of one key: each of `arrays`, one a device, becomes the sum of all workers'."""
        if self._compression:
            self._store.push(key, arrays, priority=priority)
            self._store.pull(key, out=arrays, priority=priority)
        else:
            self._store.pushpull(key, arrays, out=arrays, priority=priority)

    def exchange(self) -> None:
        for number, (key, (bucket, sent)) in enumerate(self._buckets.items()):
            if self._half:
                for full, half in zip(bucket, sent):
                    half[:] = full.astype(np.float16)
            self._sum(key, sent, priority=-number)
            if self._half:
                for full, half in zip(bucket, sent):
                    full[:] = half.astype(np.float32)

    def synchronize(self) -> None:
        """As of `InProcess`; with compression only the devices of each worker share their statistics."""
        if self._statistics_key is None:
            super().synchronize()
            return
        total = _flatten(self._statistics)
        self._sum(self._statistics_key, [total])
        _unflatten(total / self._run.workers, self._statistics)

    def barrier(self) -> None:
        mx.nd.waitall()
        self._store._barrier()


class Horovod(BetweenWorkers):
    """Horovod's ring all-reduce (Sergeev and Del Balso 2018): the workers send to one another, without servers.

    Its own trainer fails on a CPU, where it is given gradients in oneDNN's blocked layout; the long arrays are plain.
    """

    def _connect(self) -> None:
        address = os.environ["HOROVOD_HOSTNAME"]
        os.environ["HOROVOD_GLOO_IFACE"] = processes.interface(address)
        launch.check_name_resolves(address)
        import horovod.mxnet  # optional: only where a run asks for it

        self._horovod = horovod.mxnet
        self._horovod.init()
        self.rank = self._horovod.rank()

    def _broadcast(self, array: Any) -> None:
        self._horovod.broadcast_(array, root_rank=0, name="start")

    def _new_key(self, value: Any) -> int:
        self._keys += 1
        return self._keys

    def _sum(self, key: int, arrays: list[Any], priority: int = 0) -> None:
        first, *others = arrays
        for other in others:
            first += other.as_in_context(first.context)
        self._horovod.allreduce_(first, op=self._horovod.Sum, name=str(key), priority=priority)
        for other in others:
            first.copyto(other)

    def barrier(self) -> None:
        mx.nd.waitall()
        self._horovod.allreduce_(mx.nd.zeros(1), op=self._horovod.Sum, name="barrier")
        mx.nd.waitall()


class Independent(BetweenWorkers):
    """Several processes that start together, from the same state, and exchange nothing after that: the ceiling."""

    _kvstore = "dist_sync"

    def exchange(self) -> None:
        """Does nothing."""

    def synchronize(self) -> None:
        """Gives the devices of this worker, which are replicas of no other's, the mean of their batch statistics."""
        InProcess.synchronize(self)


class OnServers(BetweenWorkers):
    """Kvstore `dist_async`: the servers update the parameters by each worker's gradients as they come.

    The learning rate's schedule is theirs, too: what a worker sets does not reach them. Parameters travel in long
    arrays like the gradients, those with weight decay apart from those without. A run that goes on from a checkpoint
    does so without the servers' momentum, which no worker can ask for. Parameters are copied out of them, since
    oneDNN brings a network's weights into a layout of its own, which a view cannot have.
    """

    _kvstore = "dist_async"

    def _make_keys(self, trained: list[Any]) -> None:
        self._buckets_of_key: dict[int, tuple[list[Any], list[Any]]] = {}
        """Gradients and weights, an array a device."""
        self._copies: list[tuple[Any, Any]] = []
        undecayed = []
        for decays in (True, False):
            group = [parameter for parameter in trained if bool(parameter.wd_mult) is decays]
            for members, gradients in _buckets(group):
                weights = [mx.nd.zeros_like(flat) for flat in gradients]
                key = self._new_key(_flatten(members))
                self._buckets_of_key[key] = (gradients, weights)
                self._copies += [
                    pair
                    for flat, arrays in zip(weights, zip(*(p.list_data() for p in members)))
                    for pair in zip(_views(flat, members), arrays)
                ]
                undecayed += [] if decays else [key]
        workers = range(self._run.workers)
        # Of each worker the statistics, and its clock.
        self._statistics_keys = [
            self._new_key(mx.nd.zeros_like(_flatten(self._statistics))) for _ in workers if self._statistics
        ]
        self._clocks = mx.nd.zeros(len(workers))
        self._clock_key = self._new_key(self._clocks)
        if self.rank == 0:
            self._store.set_optimizer(
                ServerSGD(self._run, self._first_step, undecayed, self._statistics_keys, self._clock_key)
            )

    def step(self, rate: float) -> None:
        self.exchange()

    def exchange(self) -> None:
        """Enqueues the way of the gradients to the servers, which update, and of the parameters back from them."""
        self._push()
        self._pull()

    def _push(self) -> None:
        for number, (key, (gradients, _)) in enumerate(self._buckets_of_key.items()):
            self._store.push(key, gradients, priority=-number)

    def _pull(self) -> None:
        for number, (key, (_, weights)) in enumerate(self._buckets_of_key.items()):
            self._store.pull(key, out=weights, priority=-number)
        for received, parameter in self._copies:
            received.copyto(parameter)

    def synchronize(self) -> None:
        self.barrier()
        self._pull()
        if self._statistics_keys:
            pushed = _flatten(self._statistics)
            self._store.push(self._statistics_keys[self.rank], pushed)
            self.barrier()
            # The store keeps what was pushed as its buffer for what comes, so that cannot be one of these.
            pulled = [mx.nd.zeros_like(pushed) for _ in self._statistics_keys]
            for key, statistics in zip(self._statistics_keys, pulled):
                self._store.pull(key, out=statistics)
            _unflatten(mx.nd.add_n(*pulled) / len(pulled), self._statistics)
        self.barrier()


class BoundedStaleness(OnServers):
    """Stale synchronous parallel (Ho et al. 2013) on top of `dist_async`.

    A worker goes on only where the slowest is at most `bound` steps behind it. The workers' clocks, the steps that
    each has done, are one more array of the servers'.
    """

    def __init__(self, run: Run, trained: list[Any], statistics: list[Any], first_step: int = 0) -> None:
        super().__init__(run, trained, statistics, first_step)
        assert isinstance(run.exchange, recipe.Stale)
        self._bound = run.exchange.bound
        self.seen: list[list[int]] = []
        """Every worker's clock, as this one saw it when it was allowed to go on, step by step."""
        self._waited = 0.0

    def step(self, rate: float) -> None:
        """Sends the gradients and ticks; blocks until the slowest worker is near enough; fetches the parameters.

        It has to wait for its own messages, since what was sent before the tick must have arrived before it.
        """
        self._push()
        mx.nd.waitall()
        tick = mx.nd.zeros_like(self._clocks)
        tick[self.rank] = 1
        self._store.push(self._clock_key, tick)
        start = time.monotonic()
        while True:
            self._store.pull(self._clock_key, out=self._clocks)
            clocks = [int(clock) for clock in self._clocks.asnumpy()]
            if self._bound is None or clocks[self.rank] - min(clocks) <= self._bound:
                break
            time.sleep(_ASK_AGAIN_SECONDS)
        self._waited += time.monotonic() - start
        self.seen.append(clocks)
        self._pull()

    def stats(self) -> dict[str, Any]:
        """`staleness`: how often this worker was so many steps ahead of the slowest; `stale_wait_seconds`."""
        ahead = Counter(clocks[self.rank] - min(clocks) for clocks in self.seen)
        staleness = {str(steps): count for steps, count in sorted(ahead.items())}
        return {"staleness": staleness, "stale_wait_seconds": self._waited}


class ServerSGD(mx.optimizer.SGD):
    """What a server does with what it receives: SGD with momentum for parameters; what else it holds it keeps or adds.

    Each of n workers pushes the mean gradient of its own batch, and the rate is divided by n, so n pushes change the
    parameters about as far as one synchronous step, weight decay included.
    """

    def __init__(self, run: Run, first_step: int, undecayed: list[int], kept: list[int], added: int) -> None:
        super().__init__(
            momentum=run.optimizer.momentum,
            wd=run.optimizer.weight_decay,
            learning_rate=run.learning_rate,
            rescale_grad=run.workers / (run.total_batch * run.loss_scale),
        )
        self.wd_mult = dict.fromkeys(undecayed, 0.0)
        self._run, self._first_step = run, first_step
        self._kept, self._added = kept, added

    def create_state_multi_precision(self, index: int, weight: Any) -> Any:
        """Momentum for parameters, nothing for what is no parameter."""
        if index in self._kept or index == self._added:
            return None
        return super().create_state_multi_precision(index, weight)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Takes in what one worker pushed for one key (lists of one, as MXNet's updater has them)."""
        (key,), (held,), (received,) = index, weight, grad
        if key == self._added:
            held += received
        elif key in self._kept:
            held[:] = received
        else:
            step = self._first_step + self._index_update_count.get(key, 0) // self._run.workers
            self.lr = self._run.rate(step) / self._run.workers
            super().update_multi_precision(index, weight, grad, state)


def connect(run: Run, trained: list[Any], statistics: list[Any], first_step: int = 0) -> InProcess:
    """The exchange of `run` for the parameters `trained` and the batch `statistics` of this worker's replicas.

    The next step of it is number `first_step`.
    """
    kind: type[InProcess] = globals()[engine.EXCHANGES[type(run.exchange)]]
    if run.workers == 1 and not issubclass(kind, OnServers):
        kind = InProcess
    return kind(run, trained, statistics, first_step)


def _compression(run: Run) -> dict[str, Any] | None:
    threshold = getattr(run.exchange, "two_bit", None)
    return None if threshold is None else {"type": "2bit", "threshold": threshold}


def _buckets(parameters: list[Any]) -> list[tuple[list[Any], list[Any]]]:
    """Makes the gradients of `parameters` views of few long arrays; returns each one's parameters, and it, by context.

    The last parameters come first, as the backward pass finds them.
    """
    buckets = []
    rest = parameters[::-1]
    while rest:
        ends = np.cumsum([_size(parameter) for parameter in rest])
        count = max(1, int(np.searchsorted(ends, _BUCKET_BYTES / 4, side="right")))
        members, rest = rest[:count], rest[count:]
        bucket = [mx.nd.zeros(int(ends[count - 1]), ctx=context) for context in members[0].list_ctx()]
        for parameter, *views in zip(members, *(_views(flat, members) for flat in bucket)):
            parameter._grad = views
            autograd.mark_variables(parameter.list_data(), views, parameter.grad_req)
        buckets.append((members, bucket))
    return buckets


def _views(flat: Any, parameters: list[Any]) -> list[Any]:
    """The parts of a long array that belong to the parameters, in order, in their shapes."""
    ends = np.cumsum([_size(parameter) for parameter in parameters])
    return [
        flat[int(end) - _size(parameter) : int(end)].reshape(parameter.shape)
        for parameter, end in zip(parameters, ends)
    ]


def _flatten(parameters: list[Any]) -> Any:
    """The parameters' values, averaged over their contexts, in order in a new long array."""
    return mx.nd.concat(*(parameter._reduce().reshape(-1) for parameter in parameters), dim=0)


def _unflatten(flat: Any, parameters: list[Any]) -> None:
    """Gives the parameters, on all their contexts, the values that `_flatten` put into a long array."""
    for parameter, view in zip(parameters, _views(flat, parameters)):
        parameter.set_data(view)


def _size(parameter: Any) -> int:
    return int(np.prod(parameter.shape))
