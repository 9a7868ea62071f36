"""How the gradients of all replicas come together: MXNet's kvstores, inside one process and between several."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable

import mxnet as mx
import numpy as np

from poc import config
from poc.frameworks import mxnet as framework
from poc.frameworks.mxnet import flat_buffers, launch, optimizers
from poc.frameworks.mxnet.loss_scale import LossScale
from poc.host import processes

if TYPE_CHECKING:
    from poc.config.run import Run

_ASK_AGAIN_SECONDS = 0.002
_threads = functools.cache(ThreadPoolExecutor)
"""So many, the same for every session of a process: what MXNet keeps for a thread outlives it."""


class InProcess:
    """The devices of one process: kvstore `device`, `local` or `nccl`, or none, where each device goes its own way.

    Each long array is one key of the store and has a home, the devices in turn: that one gets its sums, updates it, and
    gives the others its parameters. As many bytes travel as if each had the sums and did the same update, and work and
    bytes are spread over all links. NCCL gives its sums to all devices or none, so there each updates by itself.
    """

    rank = 0
    """Number of this worker."""
    _kvstore = ""
    """Of MXNet; empty: that of the exchange's name."""
    _store: Any = None

    def __init__(self, run: Run, trained: list[Any], statistics: list[Any], first_step: int = 0) -> None:
        self._run, self._first_step = run, first_step
        self.trained, self.statistics = flat_buffers.flatten(trained), flat_buffers.flatten(statistics)
        self._devices = range(len(self.trained[0].values))
        # What is done on a device is issued by a thread of its own: MXNet's calls take longer than what they enqueue.
        several = len(self._devices) > 1
        self.each: Callable[..., Iterable[Any]] = _threads(len(self._devices)).map if several else map
        """As `map`, with an argument for each device."""
        self.loss_scale = LossScale(self.trained[0].values[0].context) if run.dtype == "float16" else None
        self._optimizers: dict[tuple[int, int], optimizers.SGD] = {}
        """By array, and the device that it updates it on."""
        self._two_bit = getattr(run.kvstore, "two_bit", None)
        self._dtype = np.float16 if getattr(run.kvstore, "gradient_bits", 32) == 16 else np.float32
        self._apart = isinstance(run.kvstore, (config.NCCL, config.NoSync))
        """Whether each device updates its own parameters."""
        self.alike = not isinstance(run.kvstore, config.NoSync)
        """Whether all devices have the same parameters after a step."""
        self._keys: list[int] = []
        """Of each of the arrays that are trained."""
        self._statistics_keys: list[int] = []
        """Of the batch statistics, where workers share them."""
        self._made = 0
        self._connect()

    def _connect(self) -> None:
        """Makes all ready for the first exchange."""
        if self._run.synchronises and not isinstance(self._run.kvstore, config.NoSync):
            self._open_store()
            self._make_keys()

    def _open_store(self) -> None:
        self._store = mx.kv.create(self._kvstore or self._run.kvstore.name)
        self.rank = self._store.rank
        if self._two_bit is not None:
            self._store.set_gradient_compression({"type": "2bit", "threshold": self._two_bit})

    def _make_keys(self) -> None:
        self._keys = [self._new_key(array.gradients[0].astype(self._dtype)) for array in self.trained]

    def _new_key(self, value: Any) -> int:
        self._made += 1
        self._store.init(self._made, value)
        return self._made

    def step(self, rate: float) -> None:
        """Enqueues one exchange of the gradients, and the update of all parameters at learning rate `rate`."""
        self._add_up(everywhere=self._apart)
        self.update(rate)

    def _homes(self, number: int) -> Sequence[int]:
        """The devices that update array `number`."""
        return self._devices if self._apart else [number % len(self._devices)]

    def update(self, rate: float, *, apart: bool = False) -> None:
        """Enqueues the update of all devices' parameters by the sums that an exchange has left.

        Where `apart`, of every device's by its own gradients, as they are; in float16 of none where one is not finite.
        """
        homes = [self._devices if apart else self._homes(number) for number in range(len(self.trained))]
        if self.loss_scale:
            pairs = zip(self.trained, homes)
            self.loss_scale.unscale([array.gradients[device] for array, devices in pairs for device in devices])

        def on(device: int) -> None:
            for number, devices in enumerate(homes):
                if device in devices:
                    optimizer = self._optimizer(number, device)
                    with self.loss_scale.skipping(optimizer.held) if self.loss_scale else contextlib.nullcontext():
                        optimizer.update(rate)

        list(self.each(on, self._devices))
        for array, (home, *others) in zip(self.trained, homes):
            if not others:
                array.share(home)

    def _optimizer(self, number: int, device: int) -> optimizers.SGD:
        if (number, device) not in self._optimizers:
            self._optimizers[number, device] = optimizers.make(self._run, self.trained[number], device)
        return self._optimizers[number, device]

    def exchange(self) -> None:
        """Enqueues the exchange: every device's gradients become the sum of those of all devices of all workers."""
        self._add_up(everywhere=True)

    def _add_up(self, everywhere: bool) -> None:
        """Enqueues the sums of all gradients, in place of those at the arrays' homes, or of all here."""
        for number, (key, array) in enumerate(zip(self._keys, self.trained)):
            sent = [gradients.astype(self._dtype, copy=False) for gradients in array.gradients]
            receivers = self._devices if everywhere else self._homes(number)
            self._sum(key, sent, [sent[device] for device in receivers], priority=-number)
            for device in receivers:
                if sent[device] is not array.gradients[device]:
                    sent[device].astype(np.float32).copyto(array.gradients[device])

    def _sum(self, key: int, flats: list[Any], out: list[Any], priority: int = 0) -> None:
        """Enqueues the sum of `flats`, one a device, of all workers, in place of those of them that are `out`."""
        if self._two_bit is None:
            self._store.pushpull(key, flats, out=out, priority=priority)
        else:
            self._store.push(key, flats, priority=priority)
            self._store.pull(key, out=out, priority=priority)

    def synchronize(self) -> None:
        """Gives every device, of all workers, the same parameters and the mean of all devices' batch statistics.

        With compression, and without an exchange, only the devices of each worker share their statistics.
        """
        for array in self.statistics:
            array.average()
        for key, array in zip(self._statistics_keys, self.statistics):
            self._sum(key, array.values[:1], array.values[:1])
            array.values[0] /= self._run.workers
            array.share()

    def _kept(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Where `state` has the optimizer of each array and home: once where all devices are alike."""
        for number in range(len(self.trained)):
            for device in (homes := self._homes(number)):
                yield f"optimizer/{number}/{homes[0] if self.alike else device}/", (number, device)

    def state(self) -> dict[str, np.ndarray]:
        """The state of the optimizers, as far as it is in this process, "optimizer/ARRAY/DEVICE/NAME"; "loss_scale"."""
        made = {start: self._optimizers[key] for start, key in self._kept() if key in self._optimizers}
        state = {start + name: held for start, optimizer in made.items() for name, held in optimizer.state().items()}
        return {**state, "loss_scale": self.loss_scale.state()} if self.loss_scale else state

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        for start, key in self._kept():
            own = {name.removeprefix(start): held for name, held in state.items() if name.startswith(start)}
            if own:
                self._optimizer(*key).load_state(own)
        if self.loss_scale:
            self.loss_scale.load_state(state["loss_scale"])

    def barrier(self) -> None:
        """Blocks until every worker is here."""

    def stats(self) -> dict[str, Any]:
        """What there is to say of the exchanges so far, as plain values for the record."""
        return {}


class BetweenWorkers(InProcess):
    """The devices of several processes: kvstore `dist_sync` or `dist_device_sync`, sums made on MXNet's servers."""

    def _connect(self) -> None:
        self._open_store()
        # Every worker starts from the values of the first one, and all have them before anything else is sent: servers
        # do not answer in the order in which they are asked.
        for array in [*self.trained, *self.statistics]:
            self._broadcast(array)
        mx.nd.waitall()
        self._make_keys()
        self.barrier()

    def _broadcast(self, array: flat_buffers.FlatBuffer) -> None:
        """Enqueues the overwriting of an array's values, on every worker, by the first one's."""
        self._store.pull(self._new_key(array.values[0]), out=array.values)

    def _make_keys(self) -> None:
        super()._make_keys()
        # Compression would take the batch statistics for gradients.
        if self._two_bit is None:
            self._statistics_keys = [self._new_key(array.values[0]) for array in self.statistics]

    def barrier(self) -> None:
        mx.nd.waitall()
        self._store._barrier()


class Horovod(BetweenWorkers):
    """Horovod's ring all-reduce (Sergeev and Del Balso 2018): the workers send to one another, without servers.

    Its own trainer fails on a CPU, where it is given gradients in oneDNN's blocked layout; the long arrays are plain.
    """

    def _open_store(self) -> None:
        address = os.environ["HOROVOD_HOSTNAME"]
        os.environ["HOROVOD_GLOO_IFACE"] = processes.interface(address)
        launch.check_name_resolves(address)
        import horovod.mxnet  # optional: only where a run asks for it

        self._horovod = horovod.mxnet
        self._horovod.init()
        self.rank = self._horovod.rank()

    def _broadcast(self, array: flat_buffers.FlatBuffer) -> None:
        self._horovod.broadcast_(array.values[0], root_rank=0, name=f"start {self._new_key(array)}")
        array.share()

    def _new_key(self, value: Any) -> int:
        self._made += 1
        return self._made

    def _sum(self, key: int, flats: list[Any], out: list[Any], priority: int = 0) -> None:
        first, *others = out
        for flat in flats:
            if flat is not first:
                first += flat.as_in_context(first.context)
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

    def _make_keys(self) -> None:
        """None are needed."""


class OnServers(BetweenWorkers):
    """Kvstore `dist_async`: the servers update the parameters by each worker's gradients as they come.

    The learning rate's schedule is theirs, too: what a worker sets does not reach them. A run that goes on from a
    checkpoint does so without the servers' momentum, which no worker can ask for.
    """

    _kvstore = "dist_async"

    def _make_keys(self) -> None:
        self._keys = [self._new_key(array.values[0]) for array in self.trained]
        undecayed = [key for key, array in zip(self._keys, self.trained) if not array.decays]
        # Of the statistics: a key for each array and worker.
        self._keys_by_worker = [
            [self._new_key(array.values[0]) for _ in range(self._run.workers)] for array in self.statistics
        ]
        self._clocks = mx.nd.zeros(self._run.workers)
        self._clock_key = self._new_key(self._clocks)
        if self.rank == 0:
            kept = list(itertools.chain.from_iterable(self._keys_by_worker))
            self._store.set_optimizer(ServerSGD(self._run, self._first_step, undecayed, kept, self._clock_key))

    def step(self, rate: float) -> None:
        self.exchange()

    def exchange(self) -> None:
        """Enqueues the way of the gradients to the servers, which update, and of the parameters back from them."""
        self._push()
        self._pull()

    def _push(self) -> None:
        for number, (key, array) in enumerate(zip(self._keys, self.trained)):
            self._store.push(key, array.gradients, priority=-number)

    def _pull(self) -> None:
        for number, (key, array) in enumerate(zip(self._keys, self.trained)):
            self._store.pull(key, out=array.values, priority=-number)

    def synchronize(self) -> None:
        self.barrier()
        self._pull()
        super().synchronize()
        for keys, array in zip(self._keys_by_worker, self.statistics):
            self._store.push(keys[self.rank], array.values[0].copy())
            self.barrier()
            # The store keeps what was pushed as its buffer for what comes, so that cannot be one of these.
            pulled = [mx.nd.zeros_like(array.values[0]) for _ in keys]
            for key, statistics in zip(keys, pulled):
                self._store.pull(key, out=statistics)
            array.values[0][:] = mx.nd.add_n(*pulled) / len(pulled)
            array.share()
        self.barrier()


class BoundedStaleness(OnServers):
    """Stale synchronous parallel (Ho et al. 2013) on top of `dist_async`.

    A worker goes on only where the slowest is at most `bound` steps behind it. The workers' clocks, the steps that
    each has done, are one more array of the servers'.
    """

    def __init__(self, run: Run, trained: list[Any], statistics: list[Any], first_step: int = 0) -> None:
        super().__init__(run, trained, statistics, first_step)
        assert isinstance(run.kvstore, config.SSP)
        self._bound = run.kvstore.staleness
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
            rescale_grad=run.workers / run.global_batch,
        )
        self.wd_mult = dict.fromkeys(undecayed, 0.0)
        self._run, self._first_step = run, first_step
        self._kept, self._added = kept, added

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
    kind: type[InProcess] = globals()[framework.KVSTORES[type(run.kvstore)]]
    if run.workers == 1 and not issubclass(kind, OnServers):
        kind = InProcess
    return kind(run, trained, statistics, first_step)
