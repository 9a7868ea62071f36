"""Batches of one worker, in the order of each epoch, made ahead by threads.

Every random number is a hash of seed, epoch and sample, so that a sample looks the same for any batch, number of
devices and number of workers. Pixels stay uint8 all the way to the device, which subtracts the mean.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from poc.config import Data, Synthetic
from poc.config.rates import steps_per_epoch
from poc.data.images import Crops, Dataset, Images, Indices, Labels, Pixels, usable_threads
from poc.data.randomness import ORDER, bits
from poc.host import hardware

T = TypeVar("T")
# Small batches are made several at a time: threads with little to do often wait for the interpreter's lock.
_BYTES_PER_JOB = 1 << 21


@dataclass(frozen=True, eq=False)
class Batch:
    """Input of one worker for one step."""

    images: Pixels | Crops  # (samples, 3, height, width), RGB, contiguous; or crops of the images that the devices hold
    labels: Labels  # (samples,), class numbers from 0

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, first: int, last: int) -> Batch:
        """Return samples `first` to `last`."""
        if isinstance(self.images, Crops):
            return Batch(Crops(*(values[first:last] for values in self.images)), self.labels[first:last])
        return Batch(self.images[first:last], self.labels[first:last])


def order(samples: int, *, seed: int, epoch: int) -> Indices:
    """Return the permutation of the `samples` indices in which an epoch visits them."""
    return np.argsort(bits(seed, epoch, np.arange(samples), ORDER), kind="stable")


def training_batches(
    dataset: Dataset,
    spec: Data,
    *,
    global_batch: int,
    seed: int,
    steps: int,
    accumulate: int = 1,
    first_step: int = 0,
    worker: int = 0,
    workers: int = 1,
    threaded: bool = True,
) -> Iterator[Batch]:
    """Yield one worker's part of `steps` global batches, from `first_step` (counted over all epochs).

    The parts of all workers and steps of an epoch are a partition of its whole batches; `workers` x `accumulate`
    divides `global_batch`, whose first part has the first micro-batches of all workers, the next one the second, and so
    on. A fixed batch is the same object every time. If `threaded`, several batches are made at once.
    """
    samples, share = len(dataset.train), global_batch // workers
    if isinstance(spec, Synthetic) and spec.fixed:
        yield from itertools.repeat(Batch(*dataset.train.center_crop(np.arange(share) % samples, spec)), steps)
        return
    in_epoch, end = steps_per_epoch(samples, global_batch), first_step + steps
    # Photos are decoded in threads that all work at one job: a larger one would hold up the first of its batches.
    in_memory = isinstance(dataset.train, Images)
    samples_per_job = _BYTES_PER_JOB // (3 * spec.crop**2) if in_memory else hardware.usable_cores()
    batches_per_job = max(1, samples_per_job // share)

    def jobs() -> Iterator[tuple[Indices, int]]:
        step = first_step
        while step < end:
            epoch, step_of_epoch = divmod(step, in_epoch)
            if step == first_step or step_of_epoch == 0:
                visited = order(samples, seed=seed, epoch=epoch)
            count = min(batches_per_job, in_epoch - step_of_epoch, end - step)
            indices = visited[step_of_epoch * global_batch :][: count * global_batch]
            yield indices.reshape(count * accumulate, workers, share // accumulate)[:, worker].ravel(), epoch
            step += count

    def make(indices: Indices, epoch: int) -> Batch:
        return Batch(*dataset.train.augment(indices, spec, seed=seed, epoch=epoch))

    # Images in files are decoded by threads of their own, which begin the next job while the last of one are at work.
    threads = usable_threads() if in_memory else 3
    if not threaded or threads == 1 or spec.on_device:  # choosing crops takes less time than starting a thread
        stream: Iterator[Batch] = itertools.starmap(make, jobs())
    else:
        stream = _in_threads(make, jobs(), threads)
    for batches in stream:
        for first in range(0, len(batches), share):
            yield batches.part(first, first + share)


def _in_threads(make: Callable[..., T], jobs: Iterable[tuple[Any, ...]], threads: int) -> Iterator[T]:
    """Like `itertools.starmap`, with one job more than there are threads in progress."""
    with ThreadPoolExecutor(threads, "batches") as pool:
        ahead: deque[Future[T]] = deque()
        for job in jobs:
            ahead.append(pool.submit(make, *job))
            if len(ahead) > threads:
                yield ahead.popleft().result()
        for future in ahead:
            yield future.result()


def validation_batches(
    dataset: Dataset, spec: Data, *, batch: int, worker: int = 0, workers: int = 1
) -> Iterator[Batch]:
    """Yield one worker's part of the validation set in batches of `batch`; the last may be shorter.

    The parts of all workers are a partition of the validation set.
    """
    validation = dataset.validation
    first, end = (len(validation) * number // workers for number in (worker, worker + 1))
    for start in range(first, end, batch):
        yield Batch(*validation.center_crop(np.arange(start, min(start + batch, end)), spec))


@contextlib.contextmanager
def prefetch(iterator: Iterator[T], depth: int = 20) -> Iterator[tuple[Iterator[T], Callable[[float], bool]]]:
    """Run an iterator ahead in a thread: `with prefetch(batches) as (ahead, is_ready): for batch in ahead: ...`.

    `is_ready` returns whether the next item comes within so many seconds. At most `depth` items wait. An exception is
    raised in place of its item. The thread stops when the block is left, after the item in progress.
    """
    thread = ThreadPoolExecutor(1, "prefetch")
    end = object()
    ahead = deque(thread.submit(next, iterator, end) for _ in range(depth))

    def next_item() -> Any:
        ahead.append(thread.submit(next, iterator, end))
        return ahead.popleft().result()

    try:
        yield iter(next_item, end), lambda seconds: bool(wait([ahead[0]], seconds).done)
    finally:
        thread.shutdown(cancel_futures=True)
