"""Sessions of workers that are several processes, or whose parameters are on servers: MXNet's kvstores, and Horovod."""

import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np

from poc import config
from poc.config.run import Run
from poc.frameworks.mxnet import ON_SERVERS
from poc.frameworks.mxnet.session import MXNetSession
from poc.host import processes

_POLL_SECONDS = 0.002


class DistributedSession(MXNetSession):
    """Several processes: kvstore `dist_sync` or `dist_device_sync`, which sum on MXNet's servers.

    They draw the same weights, from the run's seed. Without synchronisation they send nothing.
    """

    def _connect(self) -> None:
        self._number_keys: dict[int, int] = {}  # keys of `sum_over_workers`, by the length of its arrays
        self._open_store()
        if not isinstance(self._run.kvstore, config.NoSync):
            self._make_keys()
        self.barrier()

    def _average_statistics(self) -> None:
        super()._average_statistics()
        # Compression would mistake the batch statistics for gradients: then each worker has its own.
        if self._run.kvstore.sums and self._two_bit is None:
            for buffer in self._statistics_buffers:
                buffer.values[0][:] = self.sum_over_workers(buffer.values[0].asnumpy()) / self._run.workers
                buffer.broadcast()

    def sum_over_workers(self, values: np.ndarray) -> np.ndarray:
        total = mx.nd.array(values, ctx=self._contexts[0])
        if len(values) not in self._number_keys:
            self._number_keys[len(values)] = self._new_key(total)
        self._sum(self._number_keys[len(values)], [total], [total])
        return total.asnumpy()

    def barrier(self) -> None:
        mx.nd.waitall()
        self._store._barrier()


class HorovodSession(DistributedSession):
    """Horovod's ring all-reduce (Sergeev and Del Balso 2018): workers send to one another, without servers.

    Its own trainer fails on a CPU with gradients in oneDNN's blocked layout; flat buffers have a plain layout.
    """

    def _open_store(self) -> None:
        address = os.environ["HOROVOD_HOSTNAME"]
        os.environ["HOROVOD_GLOO_IFACE"] = interface = processes.interface(address)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
        # Horovod 0.28.1 forgets its interface when it connects a process set, and listens where the name resolves.
        name, resolved, is_same = socket.gethostname(), "nothing", False
        with contextlib.suppress(OSError):
            resolved = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
            is_same = address.startswith("127.") or processes.interface(resolved) == interface
        if not is_same:
            # `poc publish` leaves out a host that is named so.
            reason = f"Horovod needs this address, but its name resolves to {resolved} (/etc/hosts)"
            raise OSError(f"host {name} ({address}): {reason}")
        import horovod.mxnet  # optional: only for runs with this kvstore

        if self._run.kind == "gpu" and not horovod.mxnet.nccl_built():
            raise OSError("Horovod was built without NCCL, which GPUs need: HOROVOD_GPU_OPERATIONS=NCCL")
        self._horovod = horovod.mxnet
        self._horovod.init()
        self._worker = self._horovod.rank()

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


class AsyncSession(DistributedSession):
    """Kvstore `dist_async`: the servers update the parameters by each worker's gradients as they come.

    The learning rate's schedule is theirs, too: what a worker sets does not reach them. A run that resumes from a
    checkpoint does so without the servers' momentum, which no worker can ask for.
    """

    def _make_keys(self) -> None:
        self._keys = [self._new_key(buffer.values[0]) for buffer in self._buffers]
        undecayed = [key for key, buffer in zip(self._keys, self._buffers) if not buffer.decays]
        # The store receives into the array that was pushed last, so that cannot be one of the statistics' own.
        self._mean_keys = [self._new_key(buffer.values[0].copy()) for buffer in self._statistics_buffers]
        """Keys of the batch statistics, averaged over the workers."""
        self._clocks = mx.nd.zeros(self._run.workers)
        self._clock_key = self._new_key(self._clocks)
        if self._worker == 0:
            self._store.set_optimizer(ServerSGD(self._run, self._step, undecayed, [*self._mean_keys, self._clock_key]))

    def sync_gradients(self, receivers: Sequence[Sequence[int]] = ()) -> None:
        """Enqueue the push of the gradients to the servers, which update, and the pull of the parameters."""
        self._push()
        self._pull()

    def apply_update(self, learning_rate: float) -> None:
        """Update replicas by their own gradients only; else the servers have updated the parameters."""
        if not self._syncs:
            super().apply_update(learning_rate)

    def _push(self) -> None:
        for number, (key, buffer) in enumerate(zip(self._keys, self._buffers)):
            self._store.push(key, buffer.gradients, priority=-number)

    def _pull(self) -> None:
        for number, (key, buffer) in enumerate(zip(self._keys, self._buffers)):
            self._store.pull(key, out=buffer.values, priority=-number)

    def _average_statistics(self) -> None:
        self.barrier()
        self._pull()
        super()._average_statistics()
        means = [mx.nd.zeros_like(buffer.values[0]) for buffer in self._statistics_buffers]
        for key, mean in zip(self._mean_keys, means):
            self._store.pull(key, out=mean)
        self.barrier()
        # The servers add what they receive: each worker's part of the change of the mean.
        for key, buffer, mean in zip(self._mean_keys, self._statistics_buffers, means):
            self._store.push(key, (buffer.values[0] - mean) / self._run.workers)
        self.barrier()
        for key, buffer in zip(self._mean_keys, self._statistics_buffers):
            self._store.pull(key, out=buffer.values)
        self.barrier()


class SSPSession(AsyncSession):
    """Stale synchronous parallel (Ho et al. 2013) on top of `dist_async`.

    A worker continues only if the slowest one is at most `staleness` steps behind it. The workers' clocks, which count
    their steps, are one more array of the servers'.
    """

    def __init__(self, run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> None:
        super().__init__(run, first_step=first_step, state=state)
        assert isinstance(run.kvstore, config.SSP)
        self._bound = run.kvstore.staleness
        self.seen: list[list[int]] = []  # all workers' clocks after each step, when this worker was allowed to continue
        self._wait_seconds = 0.0

    def sync_gradients(self, receivers: Sequence[Sequence[int]] = ()) -> None:
        """Push the gradients and tick; block until the slowest worker is within the bound; pull the parameters.

        The worker waits for its own messages, since what was sent before the tick must have arrived before it.
        """
        self._push()
        mx.nd.waitall()
        tick = mx.nd.zeros_like(self._clocks)
        tick[self._worker] = 1
        self._store.push(self._clock_key, tick)
        start = time.monotonic()
        while True:
            self._store.pull(self._clock_key, out=self._clocks)
            clocks = [int(clock) for clock in self._clocks.asnumpy()]
            if self._bound is None or clocks[self._worker] - min(clocks) <= self._bound:
                break
            time.sleep(_POLL_SECONDS)
        self._wait_seconds += time.monotonic() - start
        self.seen.append(clocks)
        self._pull()

    def sync_stats(self) -> dict[str, Any]:
        """Return `staleness`: counts by steps ahead of the slowest worker; and `stale_wait_seconds`."""
        ahead = Counter(clocks[self._worker] - min(clocks) for clocks in self.seen)
        staleness = {str(steps): count for steps, count in sorted(ahead.items())}
        return {"staleness": staleness, "stale_wait_seconds": self._wait_seconds}


class ServerSGD(mx.optimizer.SGD):
    """The servers' optimizer: SGD with momentum for parameters; to everything else they add what they receive.

    Each of n workers pushes the mean gradient of its own batch, and the rate is divided by n, so n pushes change the
    parameters about as far as one synchronous step, weight decay included.
    """

    def __init__(self, run: Run, first_step: int, undecayed: list[int], added: list[int]) -> None:
        options = {"momentum": run.optimizer.momentum, "wd": run.optimizer.weight_decay}
        super().__init__(learning_rate=run.learning_rate, rescale_grad=run.workers / run.global_batch, **options)
        self.wd_mult = dict.fromkeys(undecayed, 0.0)
        self._run, self._first_step, self._added = run, first_step, added

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Apply what one worker pushed for one key (in lists of one, as MXNet's updater has them)."""
        (key,), (stored,), (received,) = index, weight, grad
        if key in self._added:
            stored += received
        else:
            step = self._first_step + self._index_update_count.get(key, 0) // self._run.workers
            self.lr = self._run.rate(step) / self._run.workers
            super().update_multi_precision(index, weight, grad, state)


def session_type(run: Run) -> type[MXNetSession]:
    """Return the session for the kvstore of `run`."""
    if run.workers == 1 and not isinstance(run.kvstore, ON_SERVERS):
        return MXNetSession
    kinds = {config.DistAsync: AsyncSession, config.SSP: SSPSession, config.Horovod: HorovodSession}
    return kinds.get(type(run.kvstore), DistributedSession)
