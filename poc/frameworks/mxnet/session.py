"""One network on the devices of one process: MXNet Gluon's autograd, and kvstores that sum gradients within it."""

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, profiler
from mxnet.contrib import amp

from poc import config
from poc.config.run import Run
from poc.data import Batch, Crops
from poc.frameworks.mxnet import optimizers
from poc.frameworks.mxnet.flat_buffers import flatten, share_out
from poc.frameworks.mxnet.networks import branch_ends, can_fuse, draw_by_mxnet, registered
from poc.frameworks.mxnet.zoo import own
from poc.frameworks.session import LossScale, Part, Session, crop_indices, fastest

_threads = functools.cache(ThreadPoolExecutor)
"""Pools by size and name, for all sessions: what MXNet keeps for a thread outlives it."""
_MOST_AHEAD = 4
"""Most steps that are enqueued on GPUs; without a limit the loop would use up the batches that are ready, and then wait
for more while the devices compute."""


def _map_in_own_threads(function: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
    """Call the function for each device at the same time, for the same one always in the same thread."""
    futures = [
        _threads(1, f"device {number}").submit(function, *of_device) for number, of_device in enumerate(zip(*arguments))
    ]
    return [future.result() for future in futures]


class _NetworkWithLoss(gluon.HybridBlock):
    """A network and its cross-entropy, with label smoothing over all classes (Szegedy et al. 2016, section 7)."""

    def __init__(self, net: Any, smoothing: float) -> None:
        super().__init__()
        self._net, self._smoothing = net, smoothing

    def hybrid_forward(self, F: Any, images: Any, labels: Any) -> Any:  # noqa: N803
        logs = F.log_softmax(self._net(images), axis=-1)
        true_class = F.pick(logs, labels, axis=-1)
        if not self._smoothing:
            return -true_class
        return -(1 - self._smoothing) * true_class - self._smoothing * F.mean(logs, axis=-1)


class MXNetSession(Session):
    """Trains the network of `run` on its contexts, or on one context that emulates all devices.

    Each flat buffer of parameters is one key of the kvstore and has an owner, one of the devices: it receives the
    buffer's summed gradients, updates it, and sends its parameters to the other devices. That moves as many bytes as if
    each device received the sums and did the same update, and spreads work and bytes over all links. NCCL gives its
    sums to all devices or none, so each device updates all buffers there.
    """

    _store: Any = None

    def __init__(self, run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> None:
        super().__init__(run, first_step)
        if run.dtype in ("float16", "bfloat16"):
            # Casts around the operators that have the precision, in every network built after this.
            amp.init(run.dtype)
        self._peak_bytes = 0
        context = mx.gpu if run.kind == "gpu" else mx.cpu
        self._contexts = [context(number) for number in self._devices]
        # A thread per device issues its work: MXNet's calls take longer than what they enqueue.
        self._map_devices: Callable[..., Iterable[Any]] = _map_in_own_threads if self._devices[1:] else map
        copies = run.kind == "gpu" and len(self._devices) > 1
        # A copy to a GPU blocks its thread. Those that issue work must not wait for it.
        self._map_copies: Callable[..., Iterable[Any]] = _threads(len(self._devices), "copies").map if copies else map
        self._enqueued: deque[list[Any]] = deque()  # losses of the last steps, on GPUs
        self._mean = [mx.nd.array(self._pixel_mean, ctx=context) for context in self._contexts]
        self._scale: list[Any] = [self._input_scale] * len(self._contexts)
        if isinstance(self._input_scale, np.ndarray):
            self._scale = [mx.nd.array(self._input_scale, ctx=context) for context in self._contexts]
        self._net = self._build()
        layers: list[Any] = []
        self._net.apply(layers.append)
        self._has_dropout = run.has_own_model or any(isinstance(layer, gluon.nn.Dropout) for layer in layers)
        parameters = self._net.collect_params()
        for name, parameter in parameters.items():
            if name.endswith(("beta", "bias")) or (name.endswith("gamma") and not run.optimizer.decay_gammas):
                parameter.wd_mult = 0.0
        self._trained = [p for p in parameters.values() if p.grad_req != "null"]
        updated = self._net(mx.sym.var("data")).list_auxiliary_states()  # by each forward pass; the names may be any
        self._statistics = [p for p in parameters.values() if p.name in updated]
        self.parameters = int(sum(np.prod(p.shape) for p in self._trained))
        self._gradient_scale = run.global_batch  # gradients are those of the sum over all samples
        if state is not None:
            self._load_parameters(state)  # before the servers start from the first worker's
        self._prepare_sync()
        if state is not None:
            self._load_optimizers(state)
        if run.has_own_model and run.evaluate:
            _ = self._evaluating_net  # now: its file may change while it trains

    def _prepare_sync(self) -> None:
        """Flatten the parameters into buffers, and join the devices by a kvstore."""
        run = self._run
        within_process = isinstance(run.kvstore, (config.Device, config.Local))
        self._buffers = flatten(self._trained, len(self._devices) if within_process else 1)
        self._statistics_buffers = flatten(self._statistics)
        self._loss_scale: LossScale | None = None
        if run.dtype == "float16":
            scale = LossScale.start(run.batch_per_device) / run.batch_per_device  # of each sample: losses are summed
            self._loss_scale = LossScale(mx.nd.full(1, scale, ctx=self._contexts[0]))
        self._optimizers: dict[tuple[int, int], optimizers.Optimizer] = {}  # optimizers by buffer and device
        self._two_bit = getattr(run.kvstore, "two_bit", None)
        self._sent_dtype = np.float16 if getattr(run.kvstore, "gradient_bits", 32) == 16 else np.float32
        self._owners: list[Sequence[int]] = [self._devices] * len(self._buffers)  # the devices that update each buffer
        if not isinstance(run.kvstore, (config.NCCL, config.NoSync)):
            self._owners = [[owner] for owner in share_out(self._buffers, len(self._devices))]
        self._keys: list[int] = []  # the kvstore's key of each buffer that is trained; none without synchronisation
        self._key_count = 0
        self._connect()

    def _connect(self) -> None:
        """Prepare the first synchronisation."""
        if self._run.synchronises and not isinstance(self._run.kvstore, config.NoSync):
            self._open_store()
            self._make_keys()

    def _open_store(self) -> None:
        name = self._run.kvstore.name
        self._store = mx.kv.create({"none": "dist_sync", "ssp": "dist_async"}.get(name, name))
        self._worker = self._store.rank
        if self._two_bit is not None:
            self._store.set_gradient_compression({"type": "2bit", "threshold": self._two_bit})

    def _make_keys(self) -> None:
        self._keys = [self._new_key(buffer.gradients[0].astype(self._sent_dtype)) for buffer in self._buffers]

    def _new_key(self, value: Any) -> int:
        self._key_count += 1
        self._store.init(self._key_count, value)
        return self._key_count

    def _build(self, *, evaluates: bool = False) -> Any:
        """Return the network on all contexts, initialised and compiled; without gradients if it only `evaluates`."""
        run = self._run
        mx.random.seed(run.seed)
        np.random.seed(run.seed)
        # MXNet has the fused operator for the CPU alone, and in bfloat16 its gradient is wrong where two layers use its
        # output, as those after a projecting unit's first norm do.
        fused = run.kind == "cpu" and run.dtype == "float32" and can_fuse()
        net = own(run) if run.has_own_model else registered(run.model, run.data.classes, fused=fused)
        if run.kind == "gpu":
            net.apply(draw_by_mxnet)
        if evaluates:
            net.collect_params().setattr("grad_req", "null")
            net.collect_params().setattr("init", mx.init.Zero())
        # He's normal initialisation, as in the study: Gaussian with variance 2 / fan-in.
        he_normal = mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2)
        for parameter in net.collect_params().values():
            # A model of the user's own may have weights already, or draw them when their shapes are known.
            if parameter._data is None and not parameter._deferred_init:
                parameter.initialize(ctx=self._contexts, default_init=he_normal)
        if run.has_own_model:
            net.collect_params().reset_ctx(self._contexts)
        if run.zero_init_gamma:
            for end in branch_ends(net):
                end.initialize(mx.init.Zero(), ctx=self._contexts, force_reinit=True)
        # A first pass infers the shapes that GluonCV's blocks leave open.
        net(mx.nd.zeros((1, *run.data.input_shape), ctx=self._contexts[0]))
        net.hybridize(static_alloc=True, static_shape=not evaluates)  # the last batch of an evaluation may be shorter
        return net

    @functools.cached_property
    def _evaluating_net(self) -> Any:
        """A second network for evaluation: there oneDNN changes weights to a layout that views cannot have."""
        return self._build(evaluates=True)

    def step(self, batch: Batch, learning_rate: float, *, norms: bool = False) -> None:
        super().step(batch, learning_rate, norms=norms)
        if self._run.kind == "gpu":
            self._enqueued.append([*self._losses.values()])
            if len(self._enqueued) > _MOST_AHEAD:
                for loss in self._enqueued.popleft():
                    loss.wait_to_read()

    def forward_backward(self, micro_batches: Iterable[list[Part]]) -> None:
        # A CPU's contexts share one source of random masks, so they have to draw in order.
        map_devices = map if self._has_dropout and self._run.kind == "cpu" else self._map_devices
        for number, parts in enumerate(micro_batches):
            with self._added_gradients(number > 0):
                list(map_devices(self._backward, self._compiled, range(len(parts)), parts))
            if self._run.emulated:
                # The backward pass updates the statistics without telling MXNet's engine, which does not order it
                # before those who read them.
                mx.nd.waitall()

    def _backward(self, compiled: tuple[Any, list[Any]], device: int, part: Part) -> None:
        """Compute a device's gradients of its part of a batch."""
        operator, arguments = compiled
        with autograd.record():
            losses = operator(*(part[value] if isinstance(value, int) else value for value in arguments))
        scales = None
        if self._loss_scale:
            scales = [self._loss_scale.scale.as_in_context(losses.context).broadcast_to(losses.shape)]
        autograd.backward([losses], scales)
        self._add_loss(device, losses.sum())

    @functools.cached_property
    def _compiled(self) -> list[tuple[Any, list[Any]]]:
        """Network and loss as one operator for each device, and its arguments: arrays, or the index into a `Part`.

        A hybridized block collects all parameters anew at every call, which takes longer than the call.
        """
        block = _NetworkWithLoss(self._net, self._run.label_smoothing)
        block.hybridize(static_alloc=True, static_shape=True)
        with autograd.train_mode():  # some blocks ask for it when they are traced
            block._build_cache(mx.nd.zeros(1), mx.nd.zeros(1))
        arguments = block._cached_op_args
        return [
            (block._cached_op, [value if is_input else value.data(context) for is_input, value in arguments])
            for context in self._contexts
        ]

    def sync_gradients(self, receivers: Sequence[Sequence[int]] = ()) -> None:
        """Enqueue the sum of each buffer's gradients, in place of those on its owners, or on its `receivers`."""
        for number, (key, buffer) in enumerate(zip(self._keys, self._buffers)):
            devices = (receivers or self._owners)[number]
            sent = [gradients.astype(self._sent_dtype, copy=False) for gradients in buffer.gradients]
            self._sum(key, sent, [sent[device] for device in devices], priority=-number)
            for device in devices:
                if sent[device] is not buffer.gradients[device]:
                    sent[device].astype(np.float32).copyto(buffer.gradients[device])

    def all_reduce_gradients(self) -> None:
        self.sync_gradients([self._devices for _ in self._buffers])

    def _sum(self, key: int, arrays: list[Any], out: list[Any], priority: int = 0) -> None:
        """Enqueue the sum of `arrays`, one per device, of all workers, in place of those of them that are `out`."""
        if self._two_bit is None:
            self._store.pushpull(key, arrays, out=out, priority=priority)
        else:
            self._store.push(key, arrays, priority=priority)
            self._store.pull(key, out=out, priority=priority)

    def apply_update(self, learning_rate: float) -> None:
        """Update each buffer on its owner and broadcast it; skip a step that overflows."""
        updating = self._owners if self._syncs else [self._devices for _ in self._buffers]
        finite = self._unscale(self._loss_scale, updating) if self._loss_scale else None

        def update_on(device: int) -> None:
            for number, devices in enumerate(updating):
                if device in devices:
                    self._optimizer(number, device).step(learning_rate, finite)

        list(self._map_devices(update_on, self._devices))
        for buffer, devices in zip(self._buffers, updating):
            if len(devices) == 1:
                buffer.broadcast(devices[0])

    def _optimizer(self, number: int, device: int) -> optimizers.Optimizer:
        """Return the optimizer of a buffer on a device, made at its first use."""
        if (number, device) not in self._optimizers:
            kind = getattr(optimizers, type(self._run.optimizer).__name__)
            self._optimizers[number, device] = kind(self._run, self._buffers[number], device)
        return self._optimizers[number, device]

    def _unscale(self, loss_scale: LossScale, updating: list[Sequence[int]]) -> Any:
        """Divide the gradients by the loss scale; return 1 if all of them are finite, else 0, without fetching it."""
        finite = mx.nd.ones_like(loss_scale.scale)
        for buffer, devices in zip(self._buffers, updating):
            for gradient in (buffer.gradients[device] for device in devices):
                finite = finite * mx.nd.all_finite(gradient).as_in_context(finite.context)
                gradient[:] = mx.nd.broadcast_div(gradient, loss_scale.scale.as_in_context(gradient.context))
        loss_scale.update(finite)
        return finite

    def _gradients(self, device: int = 0) -> list[Any]:
        return [buffer.gradients[device] for buffer in self._buffers]

    def _squared_norm(self, device: int) -> Any:
        return mx.nd.add_n(*(buffer.gradients[device].square().sum() for buffer in self._buffers))

    def _to_float(self, scalar: Any) -> float:
        return float(scalar.asscalar())

    def wait(self) -> None:
        mx.nd.waitall()
        if self._run.kind == "gpu":
            # MXNet keeps the memory that it has allocated, so its peak is what it has.
            free_and_total = [mx.context.gpu_memory_info(context.device_id) for context in self._contexts]
            self._peak_bytes = max(self._peak_bytes, *(total - free for free, total in free_and_total))

    def largest_parameter(self) -> float:
        return float(np.max([np.abs(buffer.values[0].asnumpy()).max() for buffer in self._buffers]))

    def peak_device_bytes(self) -> int | None:
        return self._peak_bytes or None

    def _seed_dropout(self, seed: int) -> None:
        if self._run.kind == "cpu":
            mx.random.seed(seed >> 1)
        else:  # each thread has generators of its own, which a seed for a context starts alike on all
            list(self._map_devices(mx.random.seed, [(seed >> 1) ^ device for device in self._devices], self._contexts))

    def upload_images(self, images: np.ndarray) -> None:
        _, self._height, self._width, _ = images.shape
        self._images = [mx.nd.array(images.reshape(-1, 3), ctx=ctx, dtype=np.uint8) for ctx in self._contexts]

    def _upload(self, batch: Batch) -> list[Part]:
        edges = np.linspace(0, len(batch), len(self._contexts) + 1).astype(int).tolist()
        parts = [batch.part(first, last) for first, last in itertools.pairwise(edges) if first < last]
        return list(self._map_copies(self._upload_part, range(len(parts)), parts))

    def _upload_part(self, device: int, part: Batch) -> Part:
        """Copy a part of a batch to a device, and normalise its images there."""
        context, scale = self._contexts[device], self._scale[device]
        images = part.images
        pixels = self._crop(images, device) if isinstance(images, Crops) else self._array(images, context)
        centred = pixels.astype(np.float32) - self._mean[device]
        centred = centred if isinstance(scale, float) and scale == 1 else centred * scale
        return centred, self._array(part.labels, context)

    def _array(self, values: np.ndarray, context: Any) -> Any:
        if self._run.kind == "gpu":
            return mx.nd.array(values, ctx=context, dtype=values.dtype)
        # Not copied at once: on a CPU that waits for MXNet's computation, and would be booked as waiting for data.
        return mx.nd.from_numpy(np.ascontiguousarray(values)).as_in_context(context)

    def _crop(self, crops: Crops, device: int) -> Any:
        """Cut the crops, (n, 3, crop, crop), out of the images on a device."""
        context = self._contexts[device]
        along = mx.nd.arange(self._run.data.crop, ctx=context, dtype=np.int32)
        image, row, column = crop_indices([self._array(numbers, context) for numbers in crops], along)
        pixels = (image * self._height + row) * self._width + column
        return self._images[device].take(pixels).transpose((0, 3, 1, 2))

    def _batch_stats(self) -> list[Any]:
        return [buffer.values[0] for buffer in self._statistics_buffers]

    def _sync_batch_stats(self) -> None:
        """Average the devices' batch statistics, as MXNet's Module does, and copy all to the evaluating network."""
        self._average_statistics()
        pairs = zip(self._net.collect_params().values(), self._evaluating_net.collect_params().values())
        for trained, parameter in pairs:
            for array, copy in zip(trained.list_data(), parameter.list_data()):
                array.copyto(copy)

    def _average_statistics(self) -> None:
        """Give every device of all workers the same parameters and the mean of all devices' batch statistics."""
        for buffer in self._statistics_buffers:
            buffer.average()

    def _correct_and_loss(self, images: Any, labels: Any) -> tuple[Any, Any]:
        scores = self._evaluating_net(images)
        losses = -mx.nd.pick(mx.nd.log_softmax(scores), labels)
        # float16 has no odd class above 2,048.
        return (scores.astype(np.float32).argmax(axis=1) == labels).sum(), losses.sum()

    def _set_whitening(self, filters: np.ndarray) -> None:
        self._net.whitening.weight.set_data(mx.nd.array(filters))

    def state(self) -> dict[str, np.ndarray]:
        mx.nd.waitall()
        arrays = {
            f"parameter/{name}/{device}": array.asnumpy()
            for name, parameter in self._net._collect_params_with_prefix().items()
            for device, array in enumerate(parameter.list_data())
            if device == 0 or parameter in self._statistics
        }
        for number, owners in enumerate(self._owners):
            if optimizer := self._optimizers.get((number, owners[0])):
                arrays.update({f"optimizer/{number}/{name}": array for name, array in optimizer.state().items()})
        if scale := self._loss_scale:
            arrays["loss_scale"] = np.array([scale.scale.asscalar(), scale.finite_steps.asscalar()])
        return arrays

    def _load_optimizers(self, state: Mapping[str, np.ndarray]) -> None:
        for number, owners in enumerate(self._owners):
            prefix = f"optimizer/{number}/"
            arrays = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
            for device in owners if arrays else ():
                self._optimizer(number, device).load_state(arrays)
        if self._loss_scale:
            self._loss_scale.scale[:], self._loss_scale.finite_steps[:] = state["loss_scale"].tolist()

    def _load_parameters(self, state: Mapping[str, np.ndarray]) -> None:
        for name, parameter in self._net._collect_params_with_prefix().items():
            for device, array in enumerate(parameter.list_data()):
                values = state.get(f"parameter/{name}/{device}", state[f"parameter/{name}/0"])
                # Not array[:] = ..., which oneDNN's blocked layout does not allow.
                mx.nd.array(values, ctx=array.context).copyto(array)
        mx.nd.waitall()

    @contextlib.contextmanager
    def _profile(self, path: Path) -> Iterator[Any]:
        @contextlib.contextmanager
        def new_range(name: str) -> Iterator[None]:
            event = profiler.Event(name)
            event.start()
            yield
            event.stop()

        # MXNet aborts if it starts to profile its API while a thread is in a call, and the one that places batches is.
        profiler.set_config(filename=str(path), profile_api=False, profile_memory=False)
        profiler.set_state("run")
        yield new_range
        profiler.set_state("stop")
        profiler.dump()

    def peak_flops(self) -> float:
        context = self._contexts[0]
        on_gpu = self._run.kind == "gpu"
        size = 8192 if on_gpu else 2048
        a, b = (mx.nd.random.uniform(shape=(size, size), ctx=context) for _ in range(2))
        if self._run.dtype in ("float16", "bfloat16"):
            short = amp.amp.bfloat16 if self._run.dtype == "bfloat16" else np.float16
            a, b = (mx.nd.amp_cast(matrix, dtype=short) for matrix in (a, b))
        # The operator of a dense layer, which oneDNN has in every precision that it has.
        product = fastest(lambda: mx.nd.FullyConnected(a, b, num_hidden=size, no_bias=True).wait_to_read(), size)
        # Contexts of a CPU share its cores, so they count as one.
        return product * (len(self._contexts) if on_gpu else 1)
