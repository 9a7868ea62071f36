"""One network on the devices of one process: MXNet Gluon's autograd, and the exchange that joins the replicas."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.contrib import amp

from poc.config import networks
from poc.data import Crops
from poc.frameworks.mxnet import trainer as trainers
from poc.frameworks.mxnet.networks import branch_ends, build, can_fuse
from poc.frameworks.session import Part, Session, fastest

if TYPE_CHECKING:
    from poc.config.run import Run
    from poc.data import Batch


class _Smoothed(gluon.loss.Loss):
    """Cross-entropy against labels of which a share is spread over all classes (Szegedy et al. 2016, section 7)."""

    def __init__(self, share: float) -> None:
        super().__init__(weight=None, batch_axis=0)
        self._share = share

    def hybrid_forward(self, F: Any, scores: Any, labels: Any) -> Any:  # noqa: N803
        logs = F.log_softmax(scores, axis=-1)
        own = F.pick(logs, labels, axis=-1)
        return -(1 - self._share) * own - self._share * F.mean(logs, axis=-1)


class _Trained(gluon.HybridBlock):
    """A network and its loss."""

    def __init__(self, net: Any, loss: Any) -> None:
        super().__init__()
        self._net, self._loss = net, loss

    def hybrid_forward(self, F: Any, images: Any, labels: Any) -> Any:  # noqa: N803
        return self._loss(self._net(images), labels)


class GluonSession(Session):
    """Trains the network of `run` on its contexts, or on one context that plays all of its devices in turn."""

    def __init__(self, run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> None:
        super().__init__(run, first_step)
        if run.dtype in ("float16", "bfloat16"):
            # Casts around the operators that have the precision, whatever network is built after this.
            amp.init(run.dtype)
        self._peak_bytes = 0
        context = mx.gpu if run.kind == "gpu" else mx.cpu
        self._contexts = [context(number) for number in range(1 if run.emulated else run.devices // run.workers)]
        mean = np.array(networks.MEAN, dtype=np.float32).reshape(1, 3, 1, 1)
        self._mean = [mx.nd.array(mean, ctx=context) for context in self._contexts]
        self._net = self._build()
        layers: list[Any] = []
        self._net.apply(layers.append)
        self._drops_out = any(isinstance(layer, gluon.nn.Dropout) for layer in layers)
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        self._trained_loss = _Smoothed(run.label_smoothing) if run.label_smoothing else self._loss
        self._loss.hybridize(static_alloc=True, static_shape=True)
        parameters = self._net.collect_params()
        for name, parameter in parameters.items():
            if name.endswith(("beta", "bias")) or (name.endswith("gamma") and not run.optimizer.decay_gammas):
                parameter.wd_mult = 0.0
        self._trained = [p for p in parameters.values() if p.grad_req != "null"]
        self._statistics = [p for p in parameters.values() if p.name.endswith(("running_mean", "running_var"))]
        self.parameters = int(sum(np.prod(p.shape) for p in self._trained))
        self._gradient_scale = run.global_batch  # they are those of the sum over all samples
        if state is not None:
            self._load_parameters(state)  # what servers are to start from
        self._exchange = trainers.connect(run, self._trained, self._statistics, first_step)
        self._worker = self._exchange.rank
        if state is not None:
            self._load_parameters(state)  # each worker's own, where it has just been given the first one's
            self._exchange.load_state(state)

    def _build(self, *, evaluates: bool = False) -> Any:
        """The network on all contexts, initialised and compiled; one that only `evaluates` has neither gradients nor
        values of its own."""
        run = self._run
        mx.random.seed(run.seed)
        np.random.seed(run.seed)
        # MXNet has the fused operator for the CPU alone, and in bfloat16 its gradient is wrong where two layers use its
        # output, as those after a projecting unit's first norm do.
        fused = run.kind == "cpu" and run.dtype == "float32" and can_fuse()
        net = build(networks.network(run.model), run.data.classes, fused=fused)
        if evaluates:
            net.collect_params().setattr("grad_req", "null")
            net.collect_params().setattr("init", mx.init.Zero())
        # He's normal initialisation, as the study had it: Gaussian with variance 2 / fan-in.
        net.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2), ctx=self._contexts)
        if run.zero_init_gamma:
            for end in branch_ends(net):
                end.initialize(mx.init.Zero(), ctx=self._contexts, force_reinit=True)
        # A first pass settles the shapes that GluonCV's blocks leave open.
        for context, mean in zip(self._contexts, self._mean):
            net((mx.nd.zeros((1, *run.data.input_shape), ctx=context) - mean) * self._scale)
        net.hybridize(static_alloc=True, static_shape=True)
        return net

    @functools.cached_property
    def _evaluating(self) -> Any:
        """The network again: outside of training oneDNN brings weights into a layout that views cannot have."""
        return self._build(evaluates=True)

    def _backward(self, batch: Batch, *, exchange: bool, norms: bool) -> Sequence[Any]:
        if self._run.emulated:
            # Not MXNet's own grad_req "add", for which the casts of lower precisions give zeros.
            gradients = [array.gradients[0] for array in self._exchange.trained]
            statistics = [array.values[0] for array in self._exchange.statistics]
            return self._play(batch, self._differentiate_alone, gradients, statistics, norms)
        parts = self.placed(batch).parts
        # A CPU's contexts share one source of random masks, which they must draw from in order.
        each = map if self._drops_out and self._run.kind == "cpu" else self._exchange.each
        list(each(self._differentiate, self._compiled, range(len(parts)), parts))
        return [self._squares(device) for device in range(len(self._contexts))] if norms else []

    def _differentiate(self, compiled: tuple[Any, list[Any]], device: int, part: Part) -> None:
        """Leaves a device the gradient of its part of a batch."""
        cached, arguments = compiled
        with autograd.record():
            losses = cached(*(part[given] if isinstance(given, int) else given for given in arguments))
        scale = self._exchange.loss_scale
        autograd.backward([losses], [scale.on(losses.context).broadcast_to(losses.shape)] if scale else None)
        self._lost(device, losses.sum())

    def _differentiate_alone(self, parts: list[Part]) -> None:
        self._differentiate(self._compiled[0], 0, *parts)
        # The backward pass updates the statistics behind the back of MXNet's engine, which does not order it before
        # those who read them.
        mx.nd.waitall()

    @functools.cached_property
    def _compiled(self) -> list[tuple[Any, list[Any]]]:
        """For each device network and loss as one operator and its arguments: arrays, or which half of a part.

        A hybridized block gathers all parameters anew at every call, which takes longer than the call.
        """
        block = _Trained(self._net, self._trained_loss)
        block.hybridize(static_alloc=True, static_shape=True)
        block._build_cache(mx.nd.zeros(1), mx.nd.zeros(1))
        return [
            (block._cached_op, [held if is_given else held.data(context) for is_given, held in block._cached_op_args])
            for context in self._contexts
        ]

    def _squares(self, device: int = 0) -> Any:
        squares = mx.nd.add_n(*(array.gradients[device].square().sum() for array in self._exchange.trained))
        scale = self._exchange.loss_scale
        return squares / scale.on(squares.context).square() if scale else squares

    def _update(self, learning_rate: float, *, exchange: bool, together: bool) -> None:
        if exchange:
            self._exchange.step(learning_rate)
        else:
            self._exchange.update(learning_rate, apart=not together)

    def exchange(self) -> None:
        self._exchange.exchange()

    def sync_is_correct(self) -> bool | None:
        if not self._sums:
            return None
        # Two bits say less, zero or the threshold, and keep the rest for the next exchange: their sum is checked, that
        # of values far beyond the threshold, whatever was kept. Of several workers each sends its devices' sum.
        threshold = getattr(self._run.kvstore, "two_bit", None)
        first, devices = self._worker * len(self._contexts), self._run.devices
        senders = self._run.workers if self._run.workers > 1 else devices
        for parameter in self._trained:
            for number, gradient in enumerate(parameter.list_grad(), start=first + 1):
                gradient[:] = number if threshold is None else 1e6 * threshold
        self.exchange()
        expected = devices * (devices + 1) / 2 if threshold is None else senders * threshold
        return all(
            bool((gradient.asnumpy() == expected).all())
            for parameter in self._trained
            for gradient in parameter.list_grad()
        )

    def sync_stats(self) -> dict[str, Any]:
        return self._exchange.stats()

    def barrier(self) -> None:
        self._exchange.barrier()

    def _fetched(self, scalar: Any) -> float:
        return float(scalar.asscalar())

    def _synchronize(self) -> None:
        mx.nd.waitall()
        if self._run.kind == "gpu":
            # MXNet keeps what it has taken, so that its most is what it has.
            free_and_all = [mx.context.gpu_memory_info(context.device_id) for context in self._contexts]
            self._peak_bytes = max(self._peak_bytes, *(whole - free for free, whole in free_and_all))

    def peak_device_bytes(self) -> int | None:
        return self._peak_bytes or None

    def _seed(self, number: int) -> None:
        mx.random.seed(number >> 1)

    def hold(self, images: np.ndarray) -> None:
        _, self._height, self._width, _ = images.shape
        self._images = [mx.nd.array(images.reshape(-1, 3), ctx=ctx, dtype=np.uint8) for ctx in self._contexts]

    def _on_devices(self, batch: Batch) -> list[Part]:
        edges = np.linspace(0, len(batch), len(self._contexts) + 1).astype(int).tolist()
        parts = []
        for device, (context, mean, first, last) in enumerate(zip(self._contexts, self._mean, edges, edges[1:])):
            if first == last:
                continue
            part = batch.part(first, last)
            if isinstance(part.images, Crops):
                pixels = self._cut(part.images, device)
            else:
                pixels = self._array(part.images, context)
            centred = pixels.astype(np.float32) - mean
            centred = centred if self._scale == 1 else centred * self._scale
            parts.append((centred, self._array(part.labels, context)))
        return parts

    def _array(self, values: np.ndarray, context: Any) -> Any:
        if self._run.kind == "gpu":
            return mx.nd.array(values, ctx=context, dtype=values.dtype)
        # Not copied at once: on a CPU that waits for what MXNet computes, which would be booked as waiting for data.
        return mx.nd.from_numpy(np.ascontiguousarray(values)).as_in_context(context)

    def _cut(self, views: Crops, device: int) -> Any:
        """The views, (n, 3, crop, crop), of the images that a device holds."""
        context, crop = self._contexts[device], self._run.data.crop
        images, tops, lefts, mirrored = (
            self._array(values.reshape(-1, 1, 1), context)
            for values in (views.images, views.tops, views.lefts, views.flipped)
        )
        along = mx.nd.arange(crop, ctx=context, dtype=np.int32)
        rows = mx.nd.broadcast_add(images * self._height + tops, along.reshape((1, -1, 1)))
        turned = mx.nd.broadcast_mul(mirrored, (crop - 1 - 2 * along).reshape((1, 1, -1)))
        columns = mx.nd.broadcast_add(mx.nd.broadcast_add(lefts, along.reshape((1, 1, -1))), turned)
        places = mx.nd.broadcast_add(rows * self._width, columns)
        return self._images[device].take(places).transpose((0, 3, 1, 2))

    def _sync_batch_stats(self) -> None:
        """Averages the devices' batch statistics, as MXNet's Module does, and gives the evaluating network them all."""
        self._exchange.synchronize()
        pairs = zip(self._net.collect_params().values(), self._evaluating.collect_params().values())
        for trained, parameter in pairs:
            for array, copy in zip(trained.list_data(), parameter.list_data()):
                array.copyto(copy)

    def _scores(self, images: Any) -> Any:
        return self._evaluating(images)

    def _tally(self, scores: Any, labels: Any) -> tuple[Any, Any]:
        return (scores.argmax(axis=1) == labels).sum(), (self._loss(scores, labels) * (labels >= 0)).sum()

    def _set_whitening(self, filters: np.ndarray) -> None:
        self._net.whitening.weight.set_data(mx.nd.array(filters))

    def state(self) -> dict[str, np.ndarray]:
        mx.nd.waitall()
        parameters = {
            f"parameter/{name}/{device}": array.asnumpy()
            for name, parameter in self._net._collect_params_with_prefix().items()
            for device, array in enumerate(parameter.list_data())
            # What all devices have alike is the first one's.
            if device == 0 or not self._exchange.alike or parameter in self._statistics
        }
        return {**parameters, **self._exchange.state()}

    def _load_parameters(self, state: Mapping[str, np.ndarray]) -> None:
        for name, parameter in self._net._collect_params_with_prefix().items():
            for device, array in enumerate(parameter.list_data()):
                held = state.get(f"parameter/{name}/{device}", state[f"parameter/{name}/0"])
                # Not array[:] = ..., which oneDNN's blocked layout does not allow.
                mx.nd.array(held, ctx=array.context).copyto(array)
        mx.nd.waitall()

    def peak_flops(self) -> float:
        context = self._contexts[0]
        on_gpu = self._run.kind == "gpu"
        size = 8192 if on_gpu else 2048
        left, right = (mx.nd.random.uniform(shape=(size, size), ctx=context) for _ in range(2))
        if self._run.dtype in ("float16", "bfloat16"):
            short = amp.amp.bfloat16 if self._run.dtype == "bfloat16" else np.float16
            left, right = (mx.nd.amp_cast(matrix, dtype=short) for matrix in (left, right))
        # The operator of a dense layer, which oneDNN has in every precision that it has.
        product = fastest(lambda: mx.nd.FullyConnected(left, right, num_hidden=size, no_bias=True).wait_to_read(), size)
        # Contexts of a CPU share its cores, so they count as one.
        return product * (len(self._contexts) if on_gpu else 1)
