"""Gradient synchronisation and parameter updates: MXNet's kvstores within one process and between several."""

from __future__ import annotations

import functools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mxnet as mx
import numpy as np

from poc import config
from poc.config.run import Run
from poc.frameworks.loss_scale import START, LossScale
from poc.frameworks.mxnet import flat_buffers, launch, optimizers
from poc.host import processes

_POLL_SECONDS = 0.002
_threads = functools.cache(ThreadPoolExecutor)
"""A pool per number of devices, shared by all sessions of a process: what MXNet keeps for a thread outlives it."""


class Trainer:
    """Trainer of one process's devices: kvstore `device`, `local` or `nccl`, or no synchronisation.

    Each flat buffer is one key of the store and has an owner, one of the devices: it receives the buffer's summed
    gradients, updates it, and sends its parameters to the other devices. That moves as many bytes as if each device
    received the sums and did the same update, and spreads work and bytes over all links. NCCL gives its sums to all
    devices or none, so each device updates all buffers there.
    """

    rank = 0
    """Index of this worker."""
    _store: Any = None

    def __init__(self, run: Run, trained: list[Any], statistics: list[Any], first_step: int = 0) -> None:
        self._run, self._first_step = run, first_step
        self.trained, self.statistics = flat_buffers.flatten(trained), flat_buffers.flatten(statistics)
        self._devices = range(len(self.trained[0].values))
        # A thread per device issues its work: MXNet's calls take longer than what they enqueue.
        self.map_devices: Callable[..., Iterable[Any]] = _threads(len(self._devices)).map if self._devices[1:] else map
        self.loss_scale: LossScale | None = None
        if run.dtype == "float16":
            self.loss_scale = LossScale(mx.nd.full(1, START, ctx=self.trained[0].values[0].context))
        self._optimizers: dict[tuple[int, int], optimizers.Optimizer] = {}
        """Optimizers by buffer and device."""
        self._two_bit = getattr(run.kvstore, "two_bit", None)
        self._dtype = np.float16 if getattr(run.kvstore, "gradient_bits", 32) == 16 else np.float32
        self.replicas_agree = not isinstance(run.kvstore, config.NoSync)
        """Whether all devices have the same parameters after a step."""
        every_device = isinstance(run.kvstore, (config.NCCL, config.NoSync))
        self._owners: list[Sequence[int]] = [
            self._devices if every_device else [number % len(self._devices)] for number in range(len(self.trained))
        ]
        """The devices that update each buffer."""
        self._keys: list[int] = []
        """The kvstore's key of each buffer that is trained; none without synchronisation."""
        self._statistics_keys: list[int] = []
        self._key_count = 0
        self._connect()

    def _connect(self) -> None:
        """Prepare the first synchronisation."""
        if self._run.synchronises and self.replicas_agree:
            self._open_store()
            self._make_keys()

    def _open_store(self) -> None:
        name = self._run.kvstore.name
        self._store = mx.kv.create({"none": "dist_sync", "ssp": "dist_async"}.get(name, name))
        self.rank = self._store.rank
        if self._two_bit is not None:
            self._store.set_gradient_compression({"type": "2bit", "threshold": self._two_bit})

    def _make_keys(self) -> None:
        self._keys = [self._new_key(buffer.gradients[0].astype(self._dtype)) for buffer in self.trained]

    def _new_key(self, value: Any) -> int:
        self._key_count += 1
        self._store.init(self._key_count, value)
        return self._key_count

    def sync_gradients(self) -> None:
        """Enqueue the sums of all gradients, on the owners of each buffer."""
        self._reduce(self._owners)

    def all_reduce(self) -> None:
        """Enqueue the sums of all gradients, on every device."""
        self._reduce([self._devices] * len(self.trained))

    def _reduce(self, receivers: list[Sequence[int]]) -> None:
        """Enqueue the sum of each buffer's gradients, in place of those on its receiving devices."""
        for number, (key, buffer) in enumerate(zip(self._keys, self.trained)):
            sent = [gradients.astype(self._dtype, copy=False) for gradients in buffer.gradients]
            self._sum(key, sent, [sent[device] for device in receivers[number]], priority=-number)
            for device in receivers[number]:
                if sent[device] is not buffer.gradients[device]:
                    sent[device].astype(np.float32).copyto(buffer.gradients[device])

    def _sum(self, key: int, arrays: list[Any], out: list[Any], priority: int = 0) -> None:
        """Enqueue the sum of `arrays`, one per device, of all workers, in place of those of them that are `out`."""
        if self._two_bit is None:
            self._store.pushpull(key, arrays, out=out, priority=priority)
        else:
            self._store.push(key, arrays, priority=priority)
            self._store.pull(key, out=out, priority=priority)

    def apply_update(self, rate: float) -> None:
        """Enqueue the update of all devices' parameters by the sums on the owners."""
        self._update(rate, self._owners)

    def apply_local_update(self, rate: float) -> None:
        """Enqueue the update of every device's parameters by its own gradients."""
        self._update(rate, [self._devices] * len(self.trained))

    def _update(self, rate: float, updating: list[Sequence[int]]) -> None:
        """Update each buffer on its `updating` devices, and broadcast it if that is one; skip a step that overflows."""
        finite = self._unscale(self.loss_scale, updating) if self.loss_scale else None

        def update_on(device: int) -> None:
            for number, devices in enumerate(updating):
                if device in devices:
                    self._optimizer(number, device).step(rate, finite)

        list(self.map_devices(update_on, self._devices))
        for buffer, devices in zip(self.trained, updating):
            if len(devices) == 1:
                buffer.broadcast(devices[0])

    def _unscale(self, loss_scale: LossScale, updating: list[Sequence[int]]) -> Any:
        """Divide the gradients by the loss scale; return 1 if all of them are finite, else 0, without fetching it."""
        finite = mx.nd.ones_like(loss_scale.scale)
        for buffer, devices in zip(self.trained, updating):
            for gradient in (buffer.gradients[device] for device in devices):
                finite = finite * mx.nd.all_finite(gradient).as_in_context(finite.context)
                gradient[:] = mx.nd.broadcast_div(gradient, loss_scale.scale.as_in_context(gradient.context))
        loss_scale.update(finite)
        return finite

    def _optimizer(self, number: int, device: int) -> optimizers.Optimizer:
        if (number, device) not in self._optimizers:
            self._optimizers[number, device] = optimizers.build(self._run, self.trained[number], device)
        return self._optimizers[number, device]

    def sync_batch_stats(self) -> None:
        """Give every device of all workers the same parameters and the mean of all devices' batch statistics.

        With compression, and without synchronisation, only the devices of each worker average their statistics.
        """
        for buffer in self.statistics:
            buffer.average()
        for key, buffer in zip(self._statistics_keys, self.statistics):
            self._sum(key, buffer.values[:1], buffer.values[:1])
            buffer.values[0] /= self._run.workers
            buffer.broadcast()

    def _state_prefixes(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield the prefix in `state` of each buffer and owner; the same one for all owners if replicas agree."""
        for number, owners in enumerate(self._owners):
            for device in owners:
                yield f"optimizer/{number}/{owners[0] if self.replicas_agree else device}/", (number, device)

    def state(self) -> dict[str, np.ndarray]:
        """Return this process's optimizer state, "optimizer/BUFFER/DEVICE/NAME", and "loss_scale"."""
        arrays: dict[str, np.ndarray] = {}
        for prefix, key in self._state_prefixes():
            if key in self._optimizers:
                arrays.update({prefix + name: array for name, array in self._optimizers[key].state().items()})
        if self.loss_scale:
            numbers = self.loss_scale.scale, self.loss_scale.finite_steps
            arrays["loss_scale"] = np.array([number.asscalar() for number in numbers])
        return arrays

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore the optimizers' state."""
        for prefix, key in self._state_prefixes():
            arrays = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
            if arrays:
                self._optimizer(*key).load_state(arrays)
        if self.loss_scale:
            context = self.loss_scale.scale.context
            numbers = [mx.nd.array([number], ctx=context) for number in state["loss_scale"]]
            self.loss_scale.scale, self.loss_scale.finite_steps = numbers

    def barrier(self) -> None:
        """Block until every worker is here."""

    def stats(self) -> dict[str, Any]:
        """Return statistics of the synchronisations so far, for the record."""
        return {}


class DistributedTrainer(Trainer):
    """Trainer of several processes: kvstore `dist_sync` or `dist_device_sync`, which sum on MXNet's servers.

    Without synchronisation they start from the same state and send nothing after that.
    """

    def _connect(self) -> None:
        self._open_store()
        # Every worker starts from the values of the first one, and all have them before anything else is sent: servers
        # do not answer in the order of the requests.
        for buffer in [*self.trained, *self.statistics]:
            self._broadcast(buffer)
        mx.nd.waitall()
        if self.replicas_agree:
            self._make_keys()
        self.barrier()

    def _broadcast(self, buffer: flat_buffers.FlatBuffer) -> None:
        """Enqueue the overwriting of a buffer's values, on every worker, by the first worker's."""
        self._store.pull(self._new_key(buffer.values[0]), out=buffer.values)

    def _make_keys(self) -> None:
        super()._make_keys()
        # Compression would mistake the batch statistics for gradients.
        if self._two_bit is None:
            self._statistics_keys = [self._new_key(buffer.values[0]) for buffer in self.statistics]

    def barrier(self) -> None:
        mx.nd.waitall()
        self._store._barrier()


class HorovodTrainer(DistributedTrainer):
    """Horovod's ring all-reduce (Sergeev and Del Balso 2018): workers send to one another, without servers.

    Its own trainer fails on a CPU with gradients in oneDNN's blocked layout; flat buffers have a plain layout.
    """

    def _open_store(self) -> None:
        address = os.environ["HOROVOD_HOSTNAME"]
        os.environ["HOROVOD_GLOO_IFACE"] = processes.interface(address)
        launch.check_name_resolves(address)
        import horovod.mxnet  # optional: only for runs with this kvstore

        self._horovod = horovod.mxnet
        self._horovod.init()
        self.rank = self._horovod.rank()

    def _broadcast(self, buffer: flat_buffers.FlatBuffer) -> None:
        self._horovod.broadcast_(buffer.values[0], root_rank=0, name=f"start {self._new_key(buffer)}")
        buffer.broadcast()

    def _new_key(self, value: Any) -> int:
        self._key_count += 1
        return self._key_count

    def _sum(self, key: int, arrays: list[Any], out: list[Any], priority: int = 0) -> None:
        first, *copies = out
        for array in arrays:
            if array is not first:
                first += array.as_in_context(first.context)
        self._horovod.allreduce_(first, op=self._horovod.Sum, name=str(key), priority=priority)
        for copy in copies:
            first.copyto(copy)

    def barrier(self) -> None:
        mx.nd.waitall()
        self._horovod.allreduce_(mx.nd.zeros(1), op=self._horovod.Sum, name="barrier")
        mx.nd.waitall()


class AsyncTrainer(DistributedTrainer):
    """Kvstore `dist_async`: the servers update the parameters by each worker's gradients as they come.

    The learning rate's schedule is theirs, too: what a worker sets does not reach them. A run that resumes from a
    checkpoint does so without the servers' momentum, which no worker can ask for.
    """

    def _make_keys(self) -> None:
        self._keys = [self._new_key(buffer.values[0]) for buffer in self.trained]
        undecayed = [key for key, buffer in zip(self._keys, self.trained) if not buffer.decays]
        workers = range(self._run.workers)
        self._keys_by_worker = [[self._new_key(buffer.values[0]) for _ in workers] for buffer in self.statistics]
        """Keys of each buffer's statistics, one per worker."""
        self._clocks = mx.nd.zeros(self._run.workers)
        self._clock_key = self._new_key(self._clocks)
        if self.rank == 0:
            stored = [key for keys in self._keys_by_worker for key in keys]
            self._store.set_optimizer(ServerSGD(self._run, self._first_step, undecayed, stored, self._clock_key))

    def sync_gradients(self) -> None:
        """Enqueue the push of the gradients to the servers, which update, and the pull of the parameters."""
        self._push()
        self._pull()

    all_reduce = sync_gradients  # sends as much, but sums nothing over the workers

    def apply_update(self, rate: float) -> None:
        """Do nothing: the servers have updated the parameters."""

    def _push(self) -> None:
        for number, (key, buffer) in enumerate(zip(self._keys, self.trained)):
            self._store.push(key, buffer.gradients, priority=-number)

    def _pull(self) -> None:
        for number, (key, buffer) in enumerate(zip(self._keys, self.trained)):
            self._store.pull(key, out=buffer.values, priority=-number)

    def sync_batch_stats(self) -> None:
        self.barrier()
        self._pull()
        super().sync_batch_stats()
        for keys, buffer in zip(self._keys_by_worker, self.statistics):
            self._store.push(keys[self.rank], buffer.values[0].copy())
            self.barrier()
            # The store keeps what was pushed as its buffer for what comes, so that cannot be one of these.
            pulled = [mx.nd.zeros_like(buffer.values[0]) for _ in keys]
            for key, statistics in zip(keys, pulled):
                self._store.pull(key, out=statistics)
            buffer.values[0][:] = mx.nd.add_n(*pulled) / len(pulled)
            buffer.broadcast()
        self.barrier()


class SSPTrainer(AsyncTrainer):
    """Stale synchronous parallel (Ho et al. 2013) on top of `dist_async`.

    A worker continues only if the slowest one is at most `staleness` steps behind it. The workers' clocks, which count
    their steps, are one more array of the servers'.
    """

    def __init__(self, run: Run, trained: list[Any], statistics: list[Any], first_step: int = 0) -> None:
        super().__init__(run, trained, statistics, first_step)
        assert isinstance(run.kvstore, config.SSP)
        self._bound = run.kvstore.staleness
        self.seen: list[list[int]] = []
        """All workers' clocks after each step, when this worker was allowed to continue."""
        self._wait_seconds = 0.0

    def sync_gradients(self) -> None:
        """Push the gradients and tick; block until the slowest worker is within the bound; pull the parameters.

        The worker waits for its own messages, since what was sent before the tick must have arrived before it.
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
            time.sleep(_POLL_SECONDS)
        self._wait_seconds += time.monotonic() - start
        self.seen.append(clocks)
        self._pull()

    def stats(self) -> dict[str, Any]:
        """Return `staleness`: counts by steps ahead of the slowest worker; and `stale_wait_seconds`."""
        ahead = Counter(clocks[self.rank] - min(clocks) for clocks in self.seen)
        staleness = {str(steps): count for steps, count in sorted(ahead.items())}
        return {"staleness": staleness, "stale_wait_seconds": self._wait_seconds}


class ServerSGD(mx.optimizer.SGD):
    """The server's handling of what it receives: SGD with momentum for parameters; it stores or adds everything else.

    Each of n workers pushes the mean gradient of its own batch, and the rate is divided by n, so n pushes change the
    parameters about as far as one synchronous step, weight decay included.
    """

    def __init__(self, run: Run, first_step: int, undecayed: list[int], stored: list[int], added: int) -> None:
        super().__init__(
            momentum=run.optimizer.momentum,
            wd=run.optimizer.weight_decay,
            learning_rate=run.learning_rate,
            rescale_grad=run.workers / run.global_batch,
        )
        self.wd_mult = dict.fromkeys(undecayed, 0.0)
        self._run, self._first_step = run, first_step
        self._stored, self._added = stored, added

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Apply what one worker pushed for one key (in lists of one, as MXNet's updater has them)."""
        (key,), (stored,), (received,) = index, weight, grad
        if key == self._added:
            stored += received
        elif key in self._stored:
            stored[:] = received
        else:
            step = self._first_step + self._index_update_count.get(key, 0) // self._run.workers
            self.lr = self._run.rate(step) / self._run.workers
            super().update_multi_precision(index, weight, grad, state)


TRAINERS: dict[type[Any], type[Trainer]] = {
    config.Device: Trainer,
    config.Local: Trainer,
    config.NCCL: Trainer,
    config.DistSync: DistributedTrainer,
    config.DistDeviceSync: DistributedTrainer,
    config.DistAsync: AsyncTrainer,
    config.SSP: SSPTrainer,
    config.Horovod: HorovodTrainer,
    config.NoSync: DistributedTrainer,
}


def connect(run: Run, trained: list[Any], statistics: list[Any], first_step: int = 0) -> Trainer:
    """Return the trainer of `run` for the trained parameters and batch statistics of this worker's replicas.

    `first_step` is the number of its next step.
    """
    kind = TRAINERS[type(run.kvstore)]
    if run.workers == 1 and not issubclass(kind, AsyncTrainer):
        kind = Trainer
    return kind(run, trained, statistics, first_step)
