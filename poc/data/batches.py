"""Batches for one worker, in the order of each epoch, and made ahead by threads.

Every random number is a hash of the seed, the epoch and the sample's index, so a sample looks the same whatever the
batch, the number of devices or workers. Pixels stay uint8 all the way to the device, which subtracts the mean.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from poc.config import Data, Synthetic
from poc.config.rates import steps_per_epoch
from poc.data.images import Crops, Dataset, Images, Indices, Labels, Pixels, usable_threads
from poc.data.randomness import ORDER, bits

T = TypeVar("T")
# Small batches are made several together: threads that do little at a time often wait for the interpreter's lock.
_BYTES_AT_ONCE = 1 << 21


@dataclass(frozen=True, eq=False)
class Batch:
    """What one worker feeds to one step."""

    images: Pixels | Crops
    """(samples, 3, height, width), RGB, contiguous; or which views of the images that the devices hold."""
    labels: Labels
    """(samples,), class numbers from 0."""

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, first: int, last: int) -> Batch:
        """Samples `first` to `last`; the batch itself where these are all."""
        if (first, last) == (0, len(self)):
            return self
        labels = self.labels[first:last]
        if isinstance(self.images, Crops):
            return Batch(Crops(*(values[first:last] for values in self.images)), labels)
        return Batch(self.images[first:last], labels)


def order(samples: int, *, seed: int, epoch: int) -> Indices:
    """Returns the permutation of the `samples` indices in which an epoch visits them."""
    return np.argsort(bits(seed, epoch, np.arange(samples), ORDER), kind="stable")


def training_batches(
    dataset: Dataset,
    spec: Data,
    *,
    global_batch: int,
    seed: int,
    steps: int,
    first_step: int = 0,
    worker: int = 0,
    workers: int = 1,
    alone: bool = False,
) -> Iterator[Batch]:
    """Yields one worker's part of `steps` total batches, from `first_step` (counted over all epochs) on.

    Over all workers and steps of an epoch the parts are a partition of its whole batches; `workers` divides
    `global_batch`. A fixed batch is the same object every time. Batches are made by a thread for each of up to 16
    cores; `alone`, by none but the one that asks for them.
    """
    samples, share = len(dataset.train), global_batch // workers
    if isinstance(spec, Synthetic) and spec.fixed:
        yield from itertools.repeat(Batch(*dataset.train.center_crop(np.arange(share) % samples, spec)), steps)
        return
    in_epoch, end = steps_per_epoch(samples, global_batch), first_step + steps
    at_once = max(1, _BYTES_AT_ONCE // (share * 3 * spec.crop**2))

    def shares() -> Iterator[tuple[Indices, int]]:
        step = first_step
        while step < end:
            epoch, step_of_epoch = divmod(step, in_epoch)
            if step == first_step or step_of_epoch == 0:
                visited = order(samples, seed=seed, epoch=epoch)
            count = min(at_once, in_epoch - step_of_epoch, end - step)
            chosen = visited[step_of_epoch * global_batch :][: count * global_batch]
            yield chosen.reshape(count, workers, share)[:, worker].ravel(), epoch
            step += count

    def make(indices: Indices, epoch: int) -> Batch:
        return Batch(*dataset.train.augment(indices, spec, seed=seed, epoch=epoch))

    # Images in files are decoded in threads anyway; to say which views the devices cut takes less than to start one.
    threads = usable_threads()
    alone = alone or threads == 1 or spec.on_device or not isinstance(dataset.train, Images)
    for several in itertools.starmap(make, shares()) if alone else _in_threads(make, shares(), threads):
        for first in range(0, len(several), share):
            yield several.part(first, first + share)


def _in_threads(make: Callable[..., T], jobs: Iterable[tuple[Any, ...]], threads: int) -> Iterator[T]:
    """Like `itertools.starmap`, but as many as there are threads, and one more, are under way."""
    with ThreadPoolExecutor(threads, "batches") as pool:
        ahead: deque[Future[T]] = deque()
        for job in jobs:
            ahead.append(pool.submit(make, *job))
            if len(ahead) > threads:
                yield ahead.popleft().result()
        for made in ahead:
            yield made.result()


def validation_batches(
    dataset: Dataset, spec: Data, *, batch: int, worker: int = 0, workers: int = 1
) -> Iterator[Batch]:
    """Yields one worker's part of the validation set in batches of `batch`; the last may be shorter.

    Over all workers each image is there once.
    """
    validation = dataset.validation
    first, end = (len(validation) * number // workers for number in (worker, worker + 1))
    for start in range(first, end, batch):
        yield Batch(*validation.center_crop(np.arange(start, min(start + batch, end)), spec))


@contextlib.contextmanager
def prefetch(iterator: Iterator[T], depth: int = 20) -> Iterator[Iterator[T]]:
    """Runs an iterator ahead in a thread: `with prefetch(batches) as ahead: for batch in ahead: ...`.

    At most `depth` items wait. An exception of the iterator is raised where its item would have come. Leaving
    the block stops the thread once the item that it is making is done.
    """
    thread = ThreadPoolExecutor(1, "prefetch")
    end = object()
    ahead = deque(thread.submit(next, iterator, end) for _ in range(depth))

    def after_another() -> Any:
        ahead.append(thread.submit(next, iterator, end))
        return ahead.popleft().result()

    try:
        yield iter(after_another, end)
    finally:
        thread.shutdown(cancel_futures=True)
