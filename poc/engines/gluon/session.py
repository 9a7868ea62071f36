"""One network on the devices of one process: MXNet Gluon's autograd, and the exchange that joins the replicas."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.contrib import amp

from poc.data import Views
from poc.engines import Evaluation
from poc.engines.gluon import exchange as exchanges
from poc.engines.gluon.networks import branch_ends, build, can_fuse
from poc.recipe import networks

if TYPE_CHECKING:
    from poc.data import Batch
    from poc.run import Run

_PRODUCTS = 6


class _Smoothed(gluon.loss.Loss):
    """Cross-entropy against labels of which a share is spread over all classes (Szegedy et al. 2016, section 7)."""

    def __init__(self, share: float) -> None:
        super().__init__(weight=None, batch_axis=0)
        self._share = share

    def hybrid_forward(self, F: Any, scores: Any, labels: Any) -> Any:  # noqa: N803
        logs = F.log_softmax(scores, axis=-1)
        own = F.pick(logs, labels, axis=-1)
        return -(1 - self._share) * own - self._share * F.mean(logs, axis=-1)


def _drops_out(net: Any) -> bool:
    found: list[bool] = []
    net.apply(lambda block: found.append(isinstance(block, gluon.nn.Dropout)))
    return any(found)


class GluonSession:
    """Trains the network of `run` on its contexts, or on one context that plays all of its devices in turn."""

    def __init__(self, run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> None:
        if run.dtype != "float32":
            # Casts around the operators that have the precision, whatever network is built after this.
            amp.init(run.dtype)
        self._virtual = run.devices if run.virtual else 1
        real = 1 if run.virtual else run.devices // run.workers
        self._contexts = [mx.gpu(i) if run.kind == "gpu" else mx.cpu(i) for i in range(real)]
        mx.random.seed(run.seed)
        np.random.seed(run.seed)
        network = networks.network(run.model)
        # MXNet has the fused operator for the CPU alone, and in bfloat16 its gradient is wrong where two layers use its
        # output, as those after a projecting unit's first norm do.
        fused = run.kind == "cpu" and run.dtype == "float32" and can_fuse()
        self._net = build(network, run.data.classes, fused=fused)
        # Those with a batch norm on the input get images as the study has them, 0 to 255 less the mean.
        self._scale = network.input_scale
        self._loss_scale = run.loss_scale
        self._dtype = run.dtype
        # He's normal initialisation, as the study had it: Gaussian with variance 2 / fan-in.
        he = mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2)
        self._net.initialize(he, ctx=self._contexts)
        if run.zero_gamma:
            for end in branch_ends(self._net):
                end.initialize(mx.init.Zero(), ctx=self._contexts, force_reinit=True)
        mean = np.array(networks.MEAN, dtype=np.float32).reshape(1, 3, 1, 1)
        self._mean = [mx.nd.array(mean, ctx=context) for context in self._contexts]
        # A first pass settles the shapes that GluonCV's blocks leave open.
        for context, mean in zip(self._contexts, self._mean):
            self._net((mx.nd.zeros((1, *run.data.input_shape), ctx=context) - mean) * self._scale)
        self._net.hybridize(static_alloc=True, static_shape=True)
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        self._loss.hybridize(static_alloc=True, static_shape=True)
        self._trained_loss = _Smoothed(run.label_smoothing) if run.label_smoothing else self._loss
        self._trained_loss.hybridize(static_alloc=True, static_shape=True)
        parameters = self._net.collect_params()
        for name, parameter in parameters.items():
            if name.endswith(("beta", "bias")) or (name.endswith("gamma") and not run.optimizer.decay_gammas):
                parameter.wd_mult = 0.0
        self._trained = [p for p in parameters.values() if p.grad_req != "null"]
        self._statistics = [p for p in parameters.values() if p.name.endswith(("running_mean", "running_var"))]
        self.parameters = int(sum(np.prod(p.shape) for p in self._trained))
        self.gradient_bytes = 4 * self.parameters
        self._replicas = run.devices
        self._two_bit = getattr(run.exchange, "two_bit", None)
        if state is not None:
            self._place(state)  # what servers are to start from
        self._exchange = exchanges.connect(run, self._trained, self._statistics, first_step)
        if state is not None:
            self._place(state)  # each worker's own, where it has just been given the first one's
            self._exchange.restore(state)
        self._slowed = run.straggler if self._exchange.rank == run.workers - 1 else 0.0
        # Each step draws its own masks, so that a run which goes on from a checkpoint draws those that it would have.
        self._masks = [run.seed, self._exchange.rank] if _drops_out(self._net) else None
        self._step = first_step
        self._crop = run.data.crop
        self._images: list[Any] = []
        self._height = self._width = 0
        self._held: Batch | None = None
        self._held_parts: list[tuple[Any, Any]] = []
        self._batch_per_device, self._total_batch = run.batch_per_device, run.total_batch
        self._norms: list[tuple[list[Any], Any]] = []
        self._losses: list[Any] = []
        self._samples = 0

    def step(self, batch: Batch, learning_rate: float, *, exchange: bool = True, norms: bool = False) -> None:
        """Enqueues one optimizer step over `batch` (n, 3, h, w), split evenly over the devices of this process."""
        began = time.monotonic()
        if self._masks is not None:
            (drawn,) = np.random.SeedSequence([*self._masks, self._step]).generate_state(1)
            mx.random.seed(int(drawn) >> 1)
        self._step += 1
        small: list[Any] = []
        norms = norms and self._exchange.sums
        if self._virtual > 1:
            small = self._accumulate(batch, norms)
        else:
            losses = []
            with autograd.record():
                for images, labels in self._parts(batch):
                    losses.append(self._trained_loss(self._net(images), labels))
                scaled = losses if self._loss_scale == 1 else [loss * self._loss_scale for loss in losses]
            autograd.backward(scaled)
            self._losses += [loss.sum() for loss in losses]
        self._samples += len(batch)
        if self._slowed:
            mx.nd.waitall()
            time.sleep(self._slowed * (time.monotonic() - began))
        if norms:
            small = small or [self._squares(device) for device in range(len(self._contexts))]
            self._exchange.exchange()
            self._norms.append((small, self._squares(0)))
            self._exchange.update(learning_rate)
        elif exchange:
            self._exchange.step(learning_rate)
        else:
            self._exchange.update(learning_rate)

    def hold(self, images: np.ndarray) -> None:
        """Takes all training images, (n, height, width, 3) with the grey around them, onto every context."""
        _, self._height, self._width, _ = images.shape
        self._images = [mx.nd.array(images.reshape(-1, 3), ctx=ctx, dtype=np.uint8) for ctx in self._contexts]

    def exchange(self) -> None:
        """Enqueues one exchange of the gradients as they are, without computing or updating anything."""
        self._exchange.exchange()

    def exchange_is_right(self) -> bool | None:
        """Whether an exchange gives every device the sum of what all had, for every gradient; overwrites gradients.

        Two bits say less, zero or the threshold, and keep the rest for the next exchange: their sum is checked, that
        of values far beyond the threshold, whatever was kept. None where the exchange makes no sums.
        """
        if not self._exchange.sums:
            return None
        first = self._exchange.rank * len(self._contexts)
        for parameter in self._trained:
            for index, gradient in enumerate(parameter.list_grad()):
                gradient[:] = first + index + 1 if self._two_bit is None else 1e6 * self._two_bit
        self.exchange()
        expected = self._replicas * ((self._replicas + 1) / 2 if self._two_bit is None else self._two_bit)
        return all(
            bool((gradient.asnumpy() == expected).all())
            for parameter in self._trained
            for gradient in parameter.list_grad()
        )

    def barrier(self) -> None:
        """Blocks until every worker is here."""
        self._exchange.barrier()

    def exchanged(self) -> dict[str, Any]:
        """What there is to say of the exchanges so far, as plain values for the record."""
        return self._exchange.told()

    def gradient_norms(self) -> list[tuple[float, float]]:
        """The norms taken up to the last `drain`: squared, of a device's mean gradient (mean over those here) and of
        all devices'."""
        found = []
        for small, large in self._norms:
            each = [float(one.asnumpy().sum()) for one in small]
            share, whole = (batch * self._loss_scale for batch in (self._batch_per_device, self._total_batch))
            found.append((sum(each) / len(each) / share**2, float(large.asnumpy().sum()) / whole**2))
        self._norms = []
        return found

    def _squares(self, device: int) -> Any:
        """The sum of squares of all gradients on one device, as an array of one."""
        # Not multi_sum_sq, which does not take oneDNN's blocked layout.
        return mx.nd.add_n(*(parameter.list_grad()[device].square().sum() for parameter in self._trained))

    def _accumulate(self, batch: Batch, norms: bool) -> list[Any]:
        """Plays the virtual devices in turn, summing their gradients; returns the first one's squares, if asked for.

        Real devices keep batch statistics of their own, which are averaged when they are read. An update of a running
        statistic is linear in it, so starting every virtual device from the same average and averaging what comes out
        gives just that, without a copy per device.
        """
        squares: list[Any] = []
        # Not MXNet's own grad_req "add", for which the casts of lower precisions give zeros.
        gradients: list[Any] = []
        before = [p.data().copy() for p in self._statistics]
        sums = [mx.nd.zeros_like(old) for old in before]
        each = len(batch) // self._virtual
        for device in range(self._virtual):
            for parameter, old in zip(self._statistics, before):
                old.copyto(parameter.data())
            ((images, labels),) = self._split(batch.part(device * each, (device + 1) * each))
            with autograd.record():
                loss = self._trained_loss(self._net(images), labels)
                scaled = loss if self._loss_scale == 1 else loss * self._loss_scale
            scaled.backward()
            self._losses.append(loss.sum())
            if norms and device == 0:
                squares = [self._squares(0)]
            # The backward pass updates the statistics behind the back of MXNet's engine, which does not order it before
            # those who read them.
            mx.nd.waitall()
            for parameter, total in zip(self._statistics, sums):
                total += parameter.data()
            if device == 0:
                gradients = [parameter.grad().copy() for parameter in self._trained]
            else:
                for parameter, total in zip(self._trained, gradients):
                    total += parameter.grad()
        for parameter, total in zip(self._statistics, sums):
            (total / self._virtual).copyto(parameter.data())
        for parameter, total in zip(self._trained, gradients):
            total.copyto(parameter.grad())
        return squares

    def _parts(self, batch: Batch) -> list[tuple[Any, Any]]:
        """What `_split` gives of a batch; of one that comes again what is on the devices already."""
        if batch is not self._held:
            self._held, self._held_parts = batch, self._split(batch)
        return self._held_parts

    def _split(self, batch: Batch) -> list[tuple[Any, Any]]:
        """A batch in equal contiguous parts, one on each context, as centred float32 images and labels."""
        edges = np.linspace(0, len(batch), len(self._contexts) + 1).astype(int).tolist()
        parts = []
        for number, (context, mean, first, last) in enumerate(zip(self._contexts, self._mean, edges, edges[1:])):
            if first == last:
                continue
            own = batch.part(first, last)
            if isinstance(own.images, Views):
                pixels = self._cut(own.images, number)
            else:
                pixels = mx.nd.array(own.images, ctx=context, dtype=np.uint8)
            centred = pixels.astype(np.float32) - mean
            centred = centred if self._scale == 1 else centred * self._scale
            parts.append((centred, mx.nd.array(own.labels, ctx=context)))
        return parts

    def _cut(self, views: Views, number: int) -> Any:
        """The views, (n, 3, crop, crop), of the images that context `number` holds."""
        context = self._contexts[number]
        images, tops, lefts, mirrored = (
            mx.nd.array(each.reshape(-1, 1, 1), ctx=context, dtype=np.int32)
            for each in (views.images, views.tops, views.lefts, views.mirrored)
        )
        along = mx.nd.arange(self._crop, ctx=context, dtype=np.int32)
        rows = mx.nd.broadcast_add(images * self._height + tops, along.reshape((1, -1, 1)))
        turned = mx.nd.broadcast_mul(mirrored, (self._crop - 1 - 2 * along).reshape((1, 1, -1)))
        columns = mx.nd.broadcast_add(mx.nd.broadcast_add(lefts, along.reshape((1, 1, -1))), turned)
        places = mx.nd.broadcast_add(rows * self._width, columns)
        return self._images[number].take(places).transpose((0, 3, 1, 2))

    def drain(self) -> float:
        """Blocks until everything enqueued is done; returns the mean loss, in nats, of the steps since the last one."""
        mx.nd.waitall()
        total = sum(float(loss.asscalar()) for loss in self._losses)
        mean = total / self._samples if self._samples else float("nan")
        self._losses, self._samples = [], 0
        return mean

    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        """Classifies every image once, after averaging the devices' batch statistics, as MXNet's Module does."""
        mx.nd.waitall()
        self._exchange.agree()
        right, losses, samples = [], [], 0
        for batch in batches:
            for images, labels in self._split(batch):
                scores = self._net(images)
                right.append((scores.argmax(axis=1) == labels).sum())
                losses.append(self._loss(scores, labels).sum())
            samples += len(batch)
        correct = sum(int(one.asscalar()) for one in right)
        loss = sum(float(one.asscalar()) for one in losses) / samples
        return Evaluation(correct=correct, samples=samples, loss=loss)

    def state(self) -> dict[str, np.ndarray]:
        """Every parameter, batch statistic and momentum of every device of this worker: "parameter/NAME/DEVICE"."""
        mx.nd.waitall()
        held = {
            f"parameter/{name}/{device}": array.asnumpy()
            for name, parameter in self._net._collect_params_with_prefix().items()
            for device, array in enumerate(parameter.list_data())
        }
        return {**held, **self._exchange.state()}

    def _place(self, state: Mapping[str, np.ndarray]) -> None:
        for name, parameter in self._net._collect_params_with_prefix().items():
            for device, array in enumerate(parameter.list_data()):
                # Not array[:] = ..., which oneDNN's blocked layout does not allow.
                mx.nd.array(state[f"parameter/{name}/{device}"], ctx=array.context).copyto(array)
        mx.nd.waitall()

    def arrays(self) -> dict[str, np.ndarray]:
        """Every parameter and batch statistic by its structural name, averaged over the devices, as float32 arrays."""
        mx.nd.waitall()
        return {name: p._reduce().asnumpy() for name, p in self._net._collect_params_with_prefix().items()}

    def peak_flops(self) -> float:
        """Operations a second of the fastest of several products of large square matrices, times the devices here.

        Contexts of a CPU share its cores, so they count as one.
        """
        context = self._contexts[0]
        size = 8192 if context.device_type == "gpu" else 2048
        left, right = (mx.nd.random.uniform(shape=(size, size), ctx=context) for _ in range(2))
        if self._dtype != "float32":
            short = amp.amp.bfloat16 if self._dtype == "bfloat16" else np.float16
            left, right = (mx.nd.amp_cast(one, dtype=short) for one in (left, right))
        best = float("inf")
        for _ in range(_PRODUCTS):
            mx.nd.waitall()
            start = time.perf_counter()
            # The operator of a dense layer, which oneDNN has in every precision that it has.
            mx.nd.FullyConnected(left, right, num_hidden=size, no_bias=True).wait_to_read()
            best = min(best, time.perf_counter() - start)
        return 2 * size**3 / best * (len(self._contexts) if context.device_type == "gpu" else 1)

    def peak_device_bytes(self) -> int | None:
        """The most memory taken on one device so far; None on a CPU, whose memory is the host's."""
        return None
