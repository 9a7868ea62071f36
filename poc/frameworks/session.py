"""The session that every framework opens to train one model, and the code that all frameworks share."""

import abc
import contextlib
import random
import statistics
import time
import timeit
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ContextDecorator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poc.config.run import Run
from poc.data import Batch, Pixels

WHITENING_IMAGES = 5_000
"""Number of training images that are enough for `Session.whiten`."""
_WHITENING_EPSILON = 5e-4
Scalar = Any
"""A number on a device, as the framework has it."""
Part = tuple[Any, Any]
"""One device's images, (n, 3, h, w), normalised as the model expects them, and labels, (n,)."""


@dataclass(frozen=True, eq=False)
class PlacedBatch(Batch):
    """A batch that has been copied to the devices, in micro-batches that are trained one after another."""

    source: Batch
    uploaded: list[Any]
    """Each micro-batch as `Session._upload` returned it."""
    prepared: dict[int, list[Part]]
    """The model's input on each device, by micro-batch: of the latest only, or of all if the batch is used again."""


class WrongSumError(Exception):
    """The gradient synchronisation does not give the sum of all devices' gradients."""

    def __str__(self) -> str:
        return (
            "the gradient synchronisation does not give the sum of all devices' gradients; on GPUs a small /dev/shm "
            "may be the reason, or copies between them that fail: MXNET_ENABLE_GPU_P2P=0, NCCL_P2P_DISABLE=1"
        )


class LossScale:
    """Dynamic loss scaling for float16 (Micikevicius et al. 2018, Mixed Precision Training).

    float16 has no values below 6e-8, which gradients have: the loss is multiplied by a scale before the backward pass,
    and the gradients are divided by it after. The scale doubles after 2,000 finite steps in a row, and halves after a
    step that overflows, which is skipped. That is the rule of PyTorch's GradScaler; nothing is fetched to follow it.
    """

    def __init__(self, start: Any) -> None:
        self.scale = start
        """A number, or an array of any framework with one value."""
        self.finite_steps = start * 0
        """Steps since the scale changed or a step overflowed."""

    @staticmethod
    def start(samples: int) -> float:
        """Return the scale of the mean loss of so many samples in the first step: at most that of GradScaler, 65,536.

        1,024 per sample of a batch of thousands would overflow in the first steps.
        """
        return 1024.0 * min(samples, 64)

    def update(self, finite: Any) -> None:
        """Set the scale of the next step, in place: `finite` is 1.0 after a step with finite gradients, else 0.0."""
        self.finite_steps += 1
        self.finite_steps *= finite
        grows = (self.finite_steps >= 2000) * finite
        self.scale *= 0.5 + 0.5 * finite + grows
        self.finite_steps *= 1 - grows


class Session(abc.ABC):
    """Training of one model on the devices of one process.

    Work is asynchronous, so time is read after `drain`. The other methods suit a framework that enqueues nothing.
    """

    parameters: int
    """Trainable parameters of the model, counted once."""
    _worker = 0
    """Index of this process among those of the run."""
    _has_dropout = False
    _syncs = True
    """Whether steps sum the gradients of all devices."""
    _gradient_scale = 1.0
    """Factor between the gradients on the devices and those of the mean loss over the global batch."""

    def __init__(self, run: Run, first_step: int = 0) -> None:
        self._run = run
        self._step = first_step
        mean, scale = (np.asarray(values, np.float32).reshape(1, -1, 1, 1) for values in run.normalisation)
        self._pixel_mean: np.ndarray = mean
        """Mean of the pixels, (1, 3, 1, 1), in 0..255."""
        self._input_scale: Any = scale if scale.size == 3 else run.normalisation[1]
        """Multiplied with the pixels less their mean, (1, 3, 1, 1) or a number; 1 if a batch norm on the input does."""
        self._losses: dict[int, Scalar] = {}
        """Summed loss of each device's samples since the last `drain`."""
        self._samples = 0
        self._norms: list[tuple[Sequence[Scalar], Scalar]] = []
        self._placed: PlacedBatch | None = None

    def step(self, batch: Batch, learning_rate: float, *, norms: bool = False) -> None:
        """Enqueue one optimizer step over this process's batch and return at once.

        With `norms` the gradients' norms are recorded for `gradient_norms`.
        """
        began = time.monotonic()
        self._seed_step()
        compute = self._measure_norms if norms else self.forward_backward
        compute(self._micro_batches(self.place(batch)))
        self._step += 1
        self._samples += len(batch)
        if self._run.straggler and self._worker == self._run.workers - 1:
            self.wait()
            time.sleep(self._run.straggler * (time.monotonic() - began))
        if self._syncs and not norms:
            self.sync_gradients()
        self.apply_update(learning_rate)

    @contextlib.contextmanager
    def without_sync(self) -> Iterator[None]:
        """Let each replica be updated by its own gradients in the steps within: the upper bound of the speed."""
        self._syncs = False
        try:
            yield
        finally:  # a trace of synchronised steps may follow
            self._syncs = True

    def _seed_step(self) -> None:
        """Give the step random numbers of its own, the same ones in a resumed run.

        Workers of MXNet's servers may have swapped their numbers, and then their dropout masks.
        """
        if self._has_dropout:
            (seed,) = np.random.SeedSequence([self._run.seed, self._worker, self._step]).generate_state(1)
            self._seed_dropout(int(seed))
        if self._run.has_own_model:  # which may draw by these: all workers the same, as they may leave out layers
            (seed,) = np.random.SeedSequence([self._run.seed, self._step]).generate_state(1)
            random.seed(int(seed))
            np.random.seed(seed)

    def _micro_batches(self, placed: PlacedBatch) -> Iterator[list[Part]]:
        """Return the inputs of a batch's micro-batches, each of which is trained before the next one is prepared.

        Emulated devices are micro-batches, too. Real devices have running statistics of their own, which are averaged
        when they are read. Their update is linear, so each emulated device may start from the same average.
        """
        emulated = self._run.devices if self._run.emulated else 1
        averaged = self._batch_stats() if emulated > 1 else []
        for number in range(len(placed.uploaded)):
            if number % emulated == 0:
                start = [values + 0 for values in averaged]  # copies, in any framework
                sums = [values * 0 for values in averaged]
            for values, old in zip(averaged, start):
                values[:] = old
            yield self._inputs(placed, number)
            for total, values in zip(sums, averaged):
                total += values
                if (number + 1) % emulated == 0:
                    values[:] = total / emulated

    def _measure_norms(self, micro_batches: Iterable[list[Part]]) -> None:
        """Compute gradients as `forward_backward`, sum them over all devices, and record the norms before and after."""
        squares: list[Scalar] = []
        for number, parts in enumerate(micro_batches):
            with self._added_gradients(number > 0), self.without_sync():
                self.forward_backward([parts])
                squares += map(self._squared_norm, self._devices)
        self.all_reduce_gradients()
        self._norms.append((squares, self._squared_norm(0)))

    def _inputs(self, placed: PlacedBatch, number: int) -> list[Part]:
        if number not in placed.prepared:
            if not self._run.data.fixed:
                placed.prepared.clear()  # memory for one micro-batch is enough
            placed.prepared[number] = self._prepare(placed.uploaded[number])
        return placed.prepared[number]

    @property
    def _devices(self) -> range:
        """Numbers of the devices of this process."""
        return range(1 if self._run.emulated else self._run.devices // self._run.workers)

    @contextlib.contextmanager
    def _added_gradients(self, adds: bool) -> Iterator[None]:
        """Add the present gradients to those that the block computes in their place, if `adds`."""
        devices = self._devices if adds else ()
        before = [values + 0 for device in devices for values in self._gradients(device)]
        yield
        after = [values for device in devices for values in self._gradients(device)]
        for values, old in zip(after, before):
            values += old

    @abc.abstractmethod
    def forward_backward(self, micro_batches: Iterable[list[Part]]) -> None:
        """Compute the sum of each device's gradients of its parts of the micro-batches, and add its losses.

        A framework whose all-reduce overlaps the last backward pass does it here; its `sync_gradients` is empty.
        """

    def sync_gradients(self) -> None:
        """Sum the gradients of all devices of all workers where `apply_update` reads them."""
        self.all_reduce_gradients()

    @abc.abstractmethod
    def all_reduce_gradients(self) -> None:
        """Give every device the sum of the gradients of all devices of all workers."""

    def all_reduce_alone(self) -> None:
        """Enqueue an all-reduce of as many bytes as a step's, for the step-time breakdown, without other operators."""
        self.all_reduce_gradients()

    @abc.abstractmethod
    def apply_update(self, learning_rate: float) -> None:
        """Apply the optimizer to all replicas by the summed gradients, or to each by its own `without_sync`."""

    def place(self, batch: Batch) -> PlacedBatch:
        """Copy a batch to the devices; a batch that comes again is there already.

        May run in one other thread, ahead of the steps. CPU devices may share its arrays, so nobody writes to them.
        """
        if isinstance(batch, PlacedBatch):
            return batch
        if self._placed is None or self._placed.source is not batch:
            samples = len(batch) // (self._run.accumulate * (self._run.devices if self._run.emulated else 1))
            parts = [batch.part(first, first + samples) for first in range(0, len(batch), samples)]
            self._placed = PlacedBatch(batch.images, batch.labels, batch, [*map(self._upload, parts)], {})
        return self._placed

    def _add_loss(self, device: int, loss: Scalar) -> None:
        """Add the loss of a device's samples to the mean that `drain` returns."""
        self._losses[device] = self._losses[device] + loss if device in self._losses else loss

    def wait(self) -> None:  # noqa: B027
        """Block until everything enqueued is done."""

    def drain(self) -> float:
        """Block until everything enqueued is done; return the mean loss, in nats, of the steps since the last drain."""
        self.wait()
        mean = sum(map(self._to_float, self._losses.values())) / self._samples if self._samples else float("nan")
        self._losses, self._samples = {}, 0
        return mean

    def gradient_norms(self) -> list[tuple[float, float]]:
        """Return the norms recorded before the last `drain`, each once.

        They are pairs of squares: of one device's mean gradient, averaged over the devices, and of the mean gradient.
        """
        norms, self._norms = self._norms, []
        scale = self._gradient_scale
        local_scale = self._run.batch_per_device / self._run.global_batch * scale
        return [
            (statistics.fmean(map(self._to_float, squares)) / local_scale**2, self._to_float(total) / scale**2)
            for squares, total in norms
        ]

    def evaluate(self, batches: Iterable[Batch]) -> tuple[int, int, float]:
        """Classify every image once, with the batch statistics averaged over the devices.

        Return how many images are classified correctly, of how many, and their mean cross-entropy in nats.
        """
        self.wait()
        self._sync_batch_stats()
        pending: deque[tuple[Scalar, Scalar]] = deque()
        totals = np.zeros(2)
        samples = 0
        for batch in batches:
            parts = self._prepare(self._upload(batch))
            pending.extend(self._correct_and_loss(images, labels) for images, labels in parts)
            samples += len(batch)
            # Two batches stay in progress while the next one is placed, not the images of all at once.
            while len(pending) > 2 * len(parts):
                totals += [self._to_float(scalar) for scalar in pending.popleft()]
        correct, loss = totals + np.sum([[self._to_float(scalar) for scalar in pair] for pair in pending], axis=0)
        return int(correct), samples, loss / max(1, samples)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients that one device sends per synchronisation."""
        kvstore = self._run.kvstore
        bits = 32 if getattr(kvstore, "two_bit", None) is None else 2
        return self.parameters * min(bits, getattr(kvstore, "gradient_bits", 32)) // 8

    def whiten(self, images: Pixels) -> None:
        """Set the filters, (24, 3, 2, 2), of a whitening first convolution from `images` (n, 3, h, w), 0 to 255.

        They whiten patches of 2 x 2: the eigenvectors of the patches' second moments, each divided by the root of its
        eigenvalue, and each of them negated (Jordan 2024, after Page 2019).
        """
        centred = images.astype(np.float32) - self._pixel_mean
        patches: Any = np.lib.stride_tricks.sliding_window_view(centred * self._input_scale, (2, 2), axis=(2, 3))  # type: ignore[call-overload]
        patches = patches.transpose(0, 2, 3, 1, 4, 5).reshape(-1, 12).astype(np.float64)
        values, vectors = np.linalg.eigh(patches.T @ patches / len(patches))
        filters = (vectors / np.sqrt(values + _WHITENING_EPSILON)).T[::-1].reshape(-1, 3, 2, 2)
        self._set_whitening(np.concatenate([filters, -filters]).astype(np.float32))

    def largest_parameter(self) -> float:
        """Return the largest absolute value of any trained parameter; not finite if one of them is not."""
        state = self.state()
        trained = [name for name in state if name.startswith("parameter/") and "running_" not in name]
        # Unlike Python's max, NumPy's does not ignore nan.
        return float(np.max([np.abs(state[name]).max(initial=0.0) for name in trained]))

    def sync_is_correct(self) -> bool | None:
        """Check that `all_reduce_gradients` sums over all devices; overwrites the gradients. None if it need not."""
        run = self._run
        if not (run.synchronises and run.kvstore.sums) or getattr(run.kvstore, "two_bit", None) is not None:
            return None
        for device in self._devices:
            for gradient in self._gradients(device):
                gradient[:] = self._worker * len(self._devices) + device + 1
        self.all_reduce_gradients()
        expected = run.devices * (run.devices + 1) / 2
        gradients = [gradient for device in self._devices for gradient in self._gradients(device)]
        is_correct = all(self._to_float(abs(gradient - expected).max()) == 0 for gradient in gradients)
        for gradient in gradients:
            gradient[:] = 0  # in padding, too, which no backward pass overwrites
        return is_correct

    def sum_over_workers(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of all workers' `values`, (n,), numbers below 2^24; all workers call it, with the same n."""
        return values

    def barrier(self) -> None:  # noqa: B027
        """Block until every worker of the run is here."""

    @contextlib.contextmanager
    def trace(self, path: Path) -> Iterator[None]:
        """Write Chrome's trace events of the steps within to the file `path`, with ranges for steps and their parts.

        It is the last use of a session: steps before it are not slower, those after it would be.
        """
        with self._profile(path) as new_range:
            for name in ("step", "forward_backward", "sync_gradients", "apply_update"):
                setattr(self, name, new_range(name)(getattr(self, name)))
            yield

    def _profile(self, path: Path) -> AbstractContextManager[Callable[[str], ContextDecorator]]:
        """Profile what is done within into the file `path`; give a function that makes a range of that name."""
        raise NotImplementedError("its framework has no profiler")

    def sync_stats(self) -> dict[str, Any]:
        """Return statistics of the synchronisations so far, for the record."""
        return {}

    def peak_device_bytes(self) -> int | None:
        """Return the peak memory of one device so far; None if the framework cannot tell."""
        return None

    def reserved_device_bytes(self) -> int | None:
        """Return the peak so far of what an allocator holds of one device; None if the framework cannot tell."""
        return None

    def reset_peak_memory(self) -> None:  # noqa: B027
        """Reset the peak, if the framework can, so that memory for trying algorithms does not count."""

    def close(self) -> None:  # noqa: B027
        """Leave the other workers once all are here; the session cannot be used after it."""

    @abc.abstractmethod
    def upload_images(self, images: np.ndarray) -> None:
        """Copy all training images, (n, height, width, 3), padded, to the devices, which cut `Crops` out of them."""

    @abc.abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """Return what `open_session` resumes from: parameters, batch statistics and this process's optimizer state.

        Parameters and statistics are named "parameter/NAME", or "parameter/NAME/DEVICE".
        """

    @abc.abstractmethod
    def peak_flops(self) -> float:
        """Measure operations per second of a large matrix product in the run's precision, on all devices here."""

    @abc.abstractmethod
    def _upload(self, batch: Batch) -> Any:
        """Copy a batch to the devices, in the thread that calls `place`."""

    def _prepare(self, uploaded: Any) -> list[Part]:
        """Compute the model's input on each device from what `_upload` returned, as a part of the step."""
        return uploaded

    @abc.abstractmethod
    def _correct_and_loss(self, images: Any, labels: Any) -> tuple[Scalar, Scalar]:
        """Return the number of images that the model classifies correctly and the sum of their losses."""

    @abc.abstractmethod
    def _gradients(self, device: int = 0) -> list[Any]:
        """Return the arrays of gradients on a device of this process."""

    @abc.abstractmethod
    def _squared_norm(self, device: int) -> Scalar:
        """Return the sum of squares of all gradients on a device of this process."""

    def _batch_stats(self) -> list[Any]:
        """Return the arrays of batch statistics on the first device of this process."""
        return []

    def _sync_batch_stats(self) -> None:  # noqa: B027
        """Give all devices of all workers the mean of their batch statistics."""

    def _to_float(self, scalar: Scalar) -> float:
        return float(scalar)

    def _seed_dropout(self, seed: int) -> None:  # noqa: B027
        """Seed the generator of dropout masks; `seed` is below 2^32."""

    def _set_whitening(self, filters: np.ndarray) -> None:
        raise NotImplementedError


def crop_indices(crops: Any, along: Any) -> tuple[Any, Any, Any]:
    """Return the image, row and column of all pixels of `crops`; they broadcast to (n, crop, crop).

    `crops` has arrays of any framework, (n,), as `Crops`; `along` counts up to the crop's size.
    """
    image, first_row, first_column, flipped = (values.reshape((-1, 1, 1)) for values in crops)
    column = along.reshape((1, 1, -1))
    return image, first_row + along.reshape((1, -1, 1)), first_column + column + flipped * (len(along) - 1 - 2 * column)


def fastest(product: Callable[[], object], size: int) -> float:
    """Return operations per second of the fastest of 6 calls of `product`, of two square matrices of that size."""
    return 2 * size**3 / min(timeit.repeat(product, repeat=6, number=1))
