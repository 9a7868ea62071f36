"""What a worker trains with: the session that every framework opens, and what is the same for all of them."""

from __future__ import annotations

import abc
import statistics
import time
import timeit
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from poc.config import networks
from poc.data import Batch, Crops, Pixels
from poc.frameworks import whitening
from poc.values import value

if TYPE_CHECKING:
    from poc.config.run import Run

Scalar = Any
"""A number on a device, as the framework has it."""
Part = tuple[Any, Any]
"""Images, (n, 3, h, w), centred and scaled as the network takes them, and labels, (n,), on one device."""


@dataclass(frozen=True, eq=False)
class Placed(Batch):
    """A batch with its parts on the devices, one for each, in order."""

    batch: Batch
    parts: list[Part]


@value
class Evaluation:
    """What a pass over the validation set gave."""

    correct: int
    samples: int
    loss: float
    """Mean cross-entropy of a sample, in nats."""


class Session(abc.ABC):
    """One network being trained on the devices of one process; work is asynchronous, so time is read after `drain`."""

    parameters: int
    """Trainable parameters of the network, counted once."""
    _worker = 0
    """Number of this process among those of the run."""
    _drops_out = False
    """Whether the network draws random masks."""
    _gradient_scale = 1.0
    """What gradients are here, in multiples of those of the mean loss over the total batch."""

    def __init__(self, run: Run, first_step: int = 0) -> None:
        self._run = run
        self._step = first_step
        self._scale = networks.network(run.model).input_scale
        """What pixels less their mean are multiplied by, where no batch norm on the input does that."""
        self._sums = run.kvstore.sums
        """Whether an exchange gives every device the sum of all gradients."""
        self._losses: dict[int, Scalar] = {}
        """Of each device's samples since the last `drain`, their sum."""
        self._samples = 0
        self._norms: list[tuple[Sequence[Scalar], Scalar]] = []
        self._placed: Placed | None = None

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients that one device sends in an exchange."""
        exchange = self._run.kvstore
        bits = 32 if getattr(exchange, "two_bit", None) is None else 2
        return self.parameters * min(bits, getattr(exchange, "gradient_bits", 32)) // 8

    def whiten(self, images: Pixels) -> None:
        """Gives the first convolution of a network that whitens the filters for `images` (n, 3, h, w), 0 to 255."""
        centred = images.astype(np.float32) - np.array(networks.MEAN, np.float32).reshape(1, 3, 1, 1)
        self._set_whitening(whitening.filters(centred * self._scale))

    def _set_whitening(self, filters: np.ndarray) -> None:
        raise NotImplementedError

    def step(self, batch: Batch, learning_rate: float, *, exchange: bool = True, norms: bool = False) -> None:
        """Enqueues one optimizer step over the whole batch of this process and returns at once.

        Without `exchange` every device updates its replica with its own gradients: the ceiling. With `norms` the
        gradients' norms are taken, where the exchange makes sums.
        """
        began = time.monotonic()
        norms = norms and self._sums
        if self._drops_out:
            # Each step draws masks of its own, so that a run which goes on draws those that it would have.
            (drawn,) = np.random.SeedSequence([self._run.seed, self._worker, self._step]).generate_state(1)
            self._seed(int(drawn))
        squares = self._backward(batch, exchange=exchange and not norms, norms=norms)
        self._step += 1
        self._samples += len(batch)
        if self._run.straggler and self._worker == self._run.workers - 1:
            self._synchronize()
            time.sleep(self._run.straggler * (time.monotonic() - began))
        if norms:
            self.exchange()
            self._norms.append((squares, self._squares()))
        self._update(learning_rate, exchange=exchange and not norms, together=exchange)

    def gradient_norms(self) -> list[tuple[float, float]]:
        """The norms taken up to the last `drain`, each once.

        Squared, of a device's mean gradient (mean over those looked at) and of that of all devices.
        """
        norms, self._norms = self._norms, []
        share = self._run.batch_per_device / self._run.global_batch
        return [
            (
                statistics.fmean(map(self._fetched, squares)) / (share * self._gradient_scale) ** 2,
                self._fetched(of_sum) / self._gradient_scale**2,
            )
            for squares, of_sum in norms
        ]

    def wait(self) -> None:
        """Blocks until everything enqueued here is done."""
        self._synchronize()

    def drain(self) -> float:
        """Blocks until everything enqueued is done; returns the mean loss, in nats, of the steps since the last one."""
        self._synchronize()
        mean = sum(map(self._fetched, self._losses.values())) / self._samples if self._samples else float("nan")
        self._losses, self._samples = {}, 0
        return mean

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        """Classify every image once, with the batch statistics averaged over the devices."""
        self._synchronize()
        self._sync_batch_stats()
        under_way: deque[tuple[Scalar, Scalar]] = deque()
        totals = np.zeros(2)
        samples = size = 0
        for batch in batches:
            size = max(size, len(batch))
            parts = self._on_devices(_padded(batch, size))
            under_way.extend(self._tally(self._scores(images), labels) for images, labels in parts)
            samples += len(batch)
            # Two batches stay under way while the next one is placed, not the images of all at once.
            while len(under_way) > 2 * len(parts):
                totals += [self._fetched(scalar) for scalar in under_way.popleft()]
        correct, loss = totals + np.sum([[self._fetched(scalar) for scalar in tally] for tally in under_way], axis=0)
        return Evaluation(correct=int(correct), samples=samples, loss=loss / samples)

    def largest_parameter(self) -> float:
        """The largest absolute value of any trained parameter here; not finite where one of them is not."""
        trained = [
            np.abs(values).max(initial=0.0)
            for name, values in self.state().items()
            if name.startswith("parameter/") and "running_" not in name
        ]
        return float(np.max(trained))  # unlike Python's, NumPy's does not pass over what is not a number

    def sync_stats(self) -> dict[str, Any]:
        """What there is to say of the exchanges so far, as plain values for the record; empty where nothing is."""
        return {}

    def peak_device_bytes(self) -> int | None:
        """The most memory taken on one device so far; None where the framework cannot tell."""
        return None

    def _lost(self, device: int, loss: Scalar) -> None:
        """Adds to the losses that `drain` fetches: that of a device's samples."""
        self._losses[device] = self._losses[device] + loss if device in self._losses else loss

    def placed(self, batch: Batch) -> Placed:
        """`batch` with its parts on the devices, where those of one that comes again are already.

        Safe in a thread of its own that does this ahead of the steps, one batch after another. A CPU device may share
        the batch's arrays: nobody writes to them from then on.
        """
        if isinstance(batch, Placed):
            return batch
        if self._placed is None or self._placed.batch is not batch:
            self._placed = Placed(batch.images, batch.labels, batch, self._ahead(batch))
        return self._placed

    def _ahead(self, batch: Batch) -> list[Part]:
        """The parts of a batch as `placed` leaves them."""
        return self._on_devices(batch)

    def close(self) -> None:  # noqa: B027  # a framework may have no others
        """Leaves the other workers once all are here; the session is done with."""

    @abc.abstractmethod
    def hold(self, images: np.ndarray) -> None:
        """Takes all training images, (n, height, width, 3), with the grey around them, onto the devices.

        Batches of views are cut out of them there.
        """

    @abc.abstractmethod
    def exchange(self) -> None:
        """Enqueues one exchange of gradients, without computing or updating anything."""

    @abc.abstractmethod
    def sync_is_correct(self) -> bool | None:
        """Whether an exchange gives every device the sum of all devices' gradients; overwrites them.

        None where the exchange is not meant to.
        """

    @abc.abstractmethod
    def barrier(self) -> None:
        """Blocks until every worker of the run is here."""

    @abc.abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """What `open_session` needs to go on from here: parameters, batch statistics and optimizer's state here.

        Parameters and statistics are named "parameter/NAME", or "parameter/NAME/DEVICE".
        """

    @abc.abstractmethod
    def peak_flops(self) -> float:
        """Floating-point operations a second of a large matrix product in the run's precision, on all devices here."""

    @abc.abstractmethod
    def _backward(self, batch: Batch, *, exchange: bool, norms: bool) -> Sequence[Scalar]:
        """Leaves the gradients on the devices, exchanged where `exchange` and the framework does both at once.

        Calls `_lost`. Returns with `norms` the `_squares` of those devices whose gradient can be seen alone.
        """

    def _play(
        self, batch: Batch, differentiate: Callable[..., None], summed: list[Any], averaged: list[Any], norms: bool
    ) -> list[Scalar]:
        """Plays the emulated devices in turn, each by `differentiate` of its parts; returns the squares of each.

        `summed` are what each leaves anew, such as gradients, and `averaged` the batch statistics, which real devices
        have each their own of and average when they are read. An update of a running statistic is linear in it, so
        starting every emulated device from the same average and averaging what comes out gives just that.
        """
        squares: list[Scalar] = []
        sums: list[Any] = []
        before = [held + 0 for held in averaged]  # copies, in any framework
        samples = self._run.batch_per_device
        for device in range(self._run.devices):
            for held, old in zip(averaged, before):
                held[:] = old
            differentiate(self._on_devices(batch.part(device * samples, (device + 1) * samples)))
            if norms:
                squares.append(self._squares())
            if device == 0:
                sums = [held + 0 for held in summed + averaged]
                continue
            for total, held in zip(sums, summed + averaged):
                total += held
        for held, total in zip(summed, sums):
            held[:] = total
        for held, total in zip(averaged, sums[len(summed) :]):
            held[:] = total / self._run.devices
        return squares

    @abc.abstractmethod
    def _squares(self) -> Scalar:
        """The sum of squares of all gradients on the first device."""

    @abc.abstractmethod
    def _update(self, learning_rate: float, *, exchange: bool, together: bool) -> None:
        """Updates the parameters: after an exchange where there is still to be one, or `together` where there was."""

    @abc.abstractmethod
    def _on_devices(self, batch: Batch) -> list[Part]:
        """The parts of a batch, one for each device, in order."""

    @abc.abstractmethod
    def _scores(self, images: Any) -> Any:
        """What the network gives each image for each class, (n, classes) in float32, as it is read in evaluation."""

    @abc.abstractmethod
    def _tally(self, scores: Any, labels: Any) -> tuple[Scalar, Scalar]:
        """How many of the images are classified correctly, and the sum of their losses; without those labelled -1."""

    def _sync_batch_stats(self) -> None:  # noqa: B027  # a network may have none
        """Gives all devices of all workers the mean of their batch statistics."""

    def _fetched(self, scalar: Scalar) -> float:
        """The number, once it is there."""
        return float(scalar)

    def _synchronize(self) -> None:  # noqa: B027  # a framework may enqueue nothing
        """Blocks until everything enqueued here is done."""

    def _seed(self, number: int) -> None:  # noqa: B027  # a network may draw none
        """Makes the masks that are drawn from now on depend on `number`, below 2^32, alone."""


def _padded(batch: Batch, size: int) -> Batch:
    """`batch` with its last sample repeated up to `size`, labelled -1: compiled networks have one size of batch."""
    rest = size - len(batch)
    if not rest:
        return batch
    assert not isinstance(batch.images, Crops)
    images = np.concatenate([batch.images, batch.images[-1:].repeat(rest, axis=0)])
    return Batch(images, np.concatenate([batch.labels, np.full(rest, -1, batch.labels.dtype)]))


def fastest(product: Callable[[], object], size: int) -> float:
    """Operations a second of `product`, of two square matrices of that size, at its fastest."""
    return 2 * size**3 / min(timeit.repeat(product, repeat=6, number=1))
