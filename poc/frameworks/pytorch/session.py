"""One network on the device of one process: PyTorch's autograd, and DistributedDataParallel between the processes."""

import contextlib
import dataclasses
import datetime
import functools
import itertools
import os
import pickle
import random
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from poc.config.run import Run
from poc.data import Batch, Crops
from poc.frameworks.pytorch import DDP_EAGER_STEPS, EAGER_STEPS, graphs, optimizers
from poc.frameworks.pytorch.networks import LowPrecision, registered, stop_counting_batches
from poc.frameworks.pytorch.zoo import own
from poc.frameworks.session import LossScale, Part, Session, WrongSumError, crop_indices, fastest
from poc.host.processes import interface

_PROBE = 1 << 22  # values in the sum that checks the exchange; NCCL uses another protocol for few
_AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class TorchSession(Session):
    """Trains the network of `run` on this process's device, which may emulate all devices.

    Gradients are those of the mean loss over the global batch: each process computes its samples' part, and an
    all-reduce sums the parts. On a GPU most steps are replays of a CUDA graph (`graphs.py`); `new_graph` makes what
    takes its place in a test, with the methods of `graphs.CUDAGraph`.
    """

    def __init__(
        self,
        run: Run,
        *,
        first_step: int = 0,
        state: Mapping[str, np.ndarray] | None = None,
        new_graph: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(run, first_step)
        self._set_up_device()
        if self._device.type == "cuda" and run.graphs:
            new_graph = functools.partial(graphs.CUDAGraph, torch.cuda.graph_pool_handle())
        torch.manual_seed(run.seed)
        if run.has_own_model:
            net = own(run)
        else:
            net = registered(run.model, run.data.classes, zero_branches=run.zero_init_gamma, seed=run.seed)
        stop_counting_batches(net)
        self._layout = torch.channels_last if run.layout == "NHWC" else torch.contiguous_format
        self._net = net.to(device=self._device, memory_format=self._layout).train()
        self._mean = torch.from_numpy(self._pixel_mean).to(self._device)
        self._scale = self._input_scale
        if isinstance(self._scale, np.ndarray):
            self._scale = torch.from_numpy(self._scale).to(self._device)
        self._trained = [parameter for parameter in self._net.parameters() if parameter.requires_grad]
        self._has_dropout = run.has_own_model or any(isinstance(layer, nn.Dropout) for layer in self._net.modules())
        self.parameters = sum(parameter.numel() for parameter in self._trained)
        self._loss = torch.zeros((), device=self._device)
        self._loss_scale: LossScale | None = None
        if run.dtype == "float16":
            self._loss_scale = LossScale(torch.full((), LossScale.start(run.global_batch), device=self._device))
        capturable = self._device.type == "cuda" or new_graph is not None
        norms = nn.modules.batchnorm._BatchNorm
        gammas = {id(layer.weight) for layer in self._net.modules() if isinstance(layer, norms)}
        decays = [run.optimizer.decay_gammas if id(each) in gammas else each.dim() > 1 for each in self._trained]
        self._optimizer = optimizers.build(run, self._trained, decays, capturable=capturable)
        self._replays = self._new_replays(new_graph) if new_graph else None
        if self._loss_scale:
            self._buffer = _flatten([*self._trained, *optimizers.state_tensors(self._optimizer).values()])
        self._forward: Any = self._net
        if run.dtype in _AUTOCAST and not run.has_own_model and not run.compile:  # a compiler merges the casts
            self._forward = LowPrecision(self._net, _AUTOCAST[run.dtype])
        self._ddp: DistributedDataParallel | None = None
        if run.workers > 1:
            self._init_process_group()
            # Batch statistics stay each device's own, as in the study. It gives all the first one's weights.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # what 2.13 has in its place, earlier versions lack
                self._ddp = DistributedDataParallel(
                    self._forward, broadcast_buffers=False, gradient_as_bucket_view=True
                )
            # Spurious: the strides of dimensions of size 1, which cuDNN sets otherwise with NHWC, change nothing.
            warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
            self._forward = self._ddp
        if state is not None:
            self._load_state(state)
        if run.compile:
            self._forward = torch.compile(self._forward)

    def _set_up_device(self) -> None:
        """Choose this process's device, its streams and threads, and the precision of float32."""
        self._device = torch.device("cuda", 0) if self._run.kind == "gpu" else torch.device("cpu")
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            # Steps cannot be recorded on the default stream, or where a parameter has known another one.
            self._stream = torch.cuda.Stream()
            torch.cuda.set_stream(self._stream)
            self._copies = torch.cuda.Stream()
            # Else a thread of its own issues the backward pass: the main thread's time would not be that of a step.
            torch.autograd.set_multithreading_enabled(False)
        else:
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
        for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
            backend.allow_tf32 = self._run.dtype == "tf32"
        torch.backends.cudnn.benchmark = True

    def _new_replays(self, new_graph: Callable[[], Any]) -> graphs.RecordedSteps | None:
        """Return what records and replays steps; None if this run's steps are eager."""
        # A straggler is slowed down in the middle of a step; emulated devices are not there to be fast.
        is_eager = self._run.straggler or self._run.emulated
        if is_eager or not optimizers.put_rates_on_device(self._optimizer, self._device):
            return None
        return graphs.RecordedSteps(new_graph, DDP_EAGER_STEPS if self._run.workers > 1 else EAGER_STEPS)

    def _init_process_group(self) -> None:
        """Join the other workers, by torchrun's variables."""
        address = os.environ["POC_OWN_ADDRESS"]
        os.environ["GLOO_SOCKET_IFNAME"] = interface(address)
        os.environ["NCCL_SOCKET_IFNAME"] = f"={interface(address)}"
        self._worker, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        listening: dict[str, Any] = {}
        if self._worker == 0:
            # By itself it would listen on every interface.
            listening = {"is_master": True, "master_listen_fd": socket.create_server(master).detach()}
        # The parent ends a run that hangs, after the user's --patience.
        patient = {"timeout": datetime.timedelta(days=1)}
        store = dist.TCPStore(*master, workers, wait_for_workers=False, **patient, **listening)
        backend, device = ("nccl", self._device) if self._device.type == "cuda" else ("gloo", None)
        # With the device NCCL connects at once, and never to a card that it infers from the worker's number.
        dist.init_process_group(
            backend, store=store, rank=self._worker, world_size=workers, device_id=device, **patient
        )
        self._check_exchange()

    def _check_exchange(self) -> None:
        """Raise WrongSumError if numbers that the workers sum are not the sum: some GPUs copy zeros to each other."""
        sums = torch.full((_PROBE,), self._worker + 1.0, device=self._device)
        dist.all_reduce(sums)
        if not (sums == self._run.workers * (self._run.workers + 1) / 2).all():
            raise WrongSumError

    def step(self, batch: Batch, learning_rate: float, *, norms: bool = False) -> None:
        placed = self.place(batch)
        kind = self._syncs, *(tensor.shape for tensors in placed.uploaded for tensor in tensors)
        if norms or self._replays is None or not (self._replays.is_warm(kind) or self._has_recorded_like(kind)):
            super().step(placed, learning_rate, norms=norms)
            return

        def work(uploaded: graphs.Batch) -> None:
            recorded_batch = dataclasses.replace(placed, uploaded=uploaded, prepared={})
            before, drawn = self._attributes(), self._generators()
            self.forward_backward(self._micro_batches(recorded_batch))
            self._update()
            if changed := [name for name, each in self._attributes().items() if before.get(name) != each]:
                # Each replay would start from what was there before the recording.
                raise ValueError(f"the model replaces {changed[0]} in each step; change a tensor in place: copy_()")
            if self._generators() != drawn:  # each replay would repeat what this step did by them
                raise ValueError("the model draws random numbers on the CPU in each step")

        self._seed_step()
        optimizers.set_learning_rate(self._optimizer, learning_rate)
        if kind not in self._replays.recorded:
            self._optimizer.zero_grad()  # eager gradients, whose memory the recording cannot use
        self._replays.run(kind, placed.uploaded, work)
        self._step += 1
        self._samples += len(batch)

    def _attributes(self) -> dict[str, Any]:
        """Return where the tensors of the model are, and the numbers in attributes of its modules, by name."""
        attributes: dict[str, Any] = self._tensors()
        for path, module in self._net.named_modules():
            attributes.update((f"{path}.{name}", each) for name, each in vars(module).items())
        # A tensor with a gradient is made anew in each step: old weight normalisations keep one.
        tensors = {name: each for name, each in attributes.items() if isinstance(each, torch.Tensor)}
        dense = {name: each for name, each in tensors.items() if each.layout == torch.strided and each.grad_fn is None}
        numbers = {name: repr(each) for name, each in attributes.items() if isinstance(each, (int, float))}
        return {**{name: each.data_ptr() for name, each in dense.items()}, **numbers}

    def _generators(self) -> bytes:
        """Return the states of the generators of random numbers on the CPU, if it is not the device itself."""
        of_torch = torch.get_rng_state().numpy() if self._device.type == "cuda" else None
        return pickle.dumps((random.getstate(), np.random.get_state(), of_torch))

    def _has_recorded_like(self, kind: tuple[Any, ...]) -> bool:
        """Return whether a step is recorded that differs from this kind in the synchronisation alone.

        It has warmed up this one, too, whose eager steps would need memory of their own. A compiler compiles anew.
        """
        assert self._replays
        return not self._run.compile and any(other[1:] == kind[1:] for other in self._replays.recorded)

    def forward_backward(self, micro_batches: Iterable[list[Part]]) -> None:
        """Compute the gradients; DistributedDataParallel averages them during the last backward pass.

        The loss is scaled so that this average is the gradient of the global batch's mean loss.
        """
        averages = self._syncs and self._ddp is not None and self._run.kvstore.sums
        share = (self._run.workers if averages else 1) / self._run.global_batch
        self._optimizer.zero_grad()
        for number, ((images, labels),) in enumerate(micro_batches, start=1):
            is_last = averages and number == self._run.accumulate
            with contextlib.nullcontext() if self._ddp is None or is_last else self._ddp.no_sync():
                with self._autocast():
                    scores = self._forward(images)
                loss = functional.cross_entropy(
                    scores.float(), labels, reduction="sum", label_smoothing=self._run.label_smoothing
                )
                (loss * (share * self._loss_scale.scale if self._loss_scale else share)).backward()
                self._add_loss(0, loss.detach())

    def sync_gradients(self) -> None:
        """Do nothing: `forward_backward` has summed the gradients."""

    def all_reduce_gradients(self) -> None:
        if self._ddp is not None and self._run.kvstore.sums:
            _all_reduce(self._gradients())

    def all_reduce_alone(self) -> None:
        if self._ddp is not None and self._run.kvstore.sums:
            dist.all_reduce(self._zeros)

    @functools.cached_property
    def _zeros(self) -> torch.Tensor:
        """As many numbers as there are gradients."""
        return torch.zeros(self.parameters, device=self._device)

    def sync_is_correct(self) -> bool | None:
        """Check the sums of a pass with known gradients, too, which changes batch statistics."""
        is_correct = super().sync_is_correct()
        if self._ddp is None or is_correct is None:
            return is_correct
        # Each worker's gradients are its number from 1; the pass through the network is what starts the averaging.
        images = torch.zeros(2, *self._run.data.input_shape, device=self._device).to(memory_format=self._layout)
        with self._autocast():
            self._ddp(images)
        (sum(parameter.sum() for parameter in self._trained) * (self._worker + 1.0)).backward()
        expected = (self._run.workers + 1) / 2
        is_correct &= all(torch.allclose(each, torch.full_like(each, expected)) for each in self._gradients())
        torch._foreach_zero_(self._gradients())
        return is_correct

    def apply_update(self, learning_rate: float) -> None:
        optimizers.set_learning_rate(self._optimizer, learning_rate)
        self._update()

    def _update(self) -> None:
        """Apply the optimizer at the learning rate that is set."""
        if self._loss_scale:
            self._scaled_update(self._loss_scale)
        else:
            self._optimizer.step()

    @torch.no_grad()
    def _scaled_update(self, loss_scale: LossScale) -> None:
        """Divide the gradients by the loss scale and update, if they are finite; all without fetching anything."""
        overflow = torch.zeros_like(loss_scale.scale)
        torch._amp_foreach_non_finite_check_and_unscale_(self._gradients(), overflow, 1 / loss_scale.scale)
        before = self._buffer.clone()
        self._optimizer.step()
        # An update by gradients that are not finite is undone on the device, in all tensors together.
        self._buffer.copy_(torch.where(overflow > 0, before, self._buffer))
        loss_scale.update(1 - overflow)  # in place, where a replay finds it

    def _add_loss(self, device: int, loss: torch.Tensor) -> None:
        self._loss += loss

    def drain(self) -> float:
        self._losses = {0: self._loss}
        mean = super().drain()
        self._loss.zero_()
        return mean

    def _autocast(self) -> Any:
        """Return a context in which layers compute in the run's precision."""
        dtype = _AUTOCAST.get(self._run.dtype)
        return torch.autocast(self._device.type, dtype=dtype) if dtype else contextlib.nullcontext()

    def _upload(self, batch: Batch) -> list[torch.Tensor]:
        """Copy images, or crops to cut out on the device, and labels; on a GPU during its computation, and wait."""
        pixels = batch.images if isinstance(batch.images, Crops) else (batch.images,)
        tensors = [torch.from_numpy(array) for array in (*pixels, batch.labels)]
        if self._device.type == "cpu":
            return tensors
        with torch.cuda.stream(self._copies):
            copies = [tensor.pin_memory().to(self._device, non_blocking=True) for tensor in tensors]
        self._copies.synchronize()
        for tensor in copies:
            # Its memory is free for the next batch only after what the steps have enqueued by then.
            tensor.record_stream(self._stream)
        return copies

    def _prepare(self, uploaded: list[torch.Tensor]) -> list[Part]:
        *images, labels = uploaded
        if len(images) == 1:
            pixels = images[0]
        else:
            along = torch.arange(self._run.data.crop, device=self._device)
            pixels = self._images[crop_indices([numbers.long() for numbers in images], along)].permute(0, 3, 1, 2)
        scaled = pixels.to(dtype=torch.float32, memory_format=self._layout).sub_(self._mean)
        if isinstance(self._scale, torch.Tensor) or self._scale != 1:
            scaled.mul_(self._scale)
        return [(scaled, labels.long())]

    @torch.no_grad()
    def _set_whitening(self, filters: np.ndarray) -> None:
        self._net.whitening.weight.copy_(torch.from_numpy(filters))

    def upload_images(self, images: np.ndarray) -> None:
        self._images = torch.tensor(images, device=self._device)

    def _gradients(self, device: int = 0) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self._trained if parameter.grad is not None]

    def _squared_norm(self, device: int) -> torch.Tensor:
        return torch.stack(torch._foreach_norm(self._gradients())).square().sum()

    def sum_over_workers(self, values: np.ndarray) -> np.ndarray:
        if self._ddp is None:
            return values
        total = torch.from_numpy(values.astype(np.float32)).to(self._device)
        dist.all_reduce(total)
        return total.cpu().numpy()

    def barrier(self) -> None:
        self.wait()
        if self._run.workers > 1:
            dist.barrier()

    def close(self) -> None:
        if self._run.compile:  # until the compiler's processes have ended, their time counts as that of other programs
            from torch._inductor import async_compile  # seconds, for all other runs

            async_compile.shutdown_compile_workers()
        if self._ddp is not None:
            self.barrier()
            self._replays = None  # NCCL waits until no graph uses it
            dist.destroy_process_group()

    @torch.no_grad()
    def largest_parameter(self) -> float:
        return float(torch.stack([parameter.abs().max() for parameter in self._trained if parameter.numel()]).max())

    def wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _seed_dropout(self, seed: int) -> None:
        # torch.manual_seed() also formats the stack once for each kind of accelerator that is not there.
        torch.random.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _batch_stats(self) -> list[torch.Tensor]:
        names = ("running_mean", "running_var")  # each time anew: a model of the user's may replace them
        return [buffer for name, buffer in self._net.named_buffers() if name.endswith(names)]

    def _sync_batch_stats(self) -> None:
        if self._run.workers > 1 and self._run.kvstore.sums and (statistics := self._batch_stats()):
            _all_reduce(statistics)
            torch._foreach_div_(statistics, self._run.workers)

    @torch.no_grad()
    def _correct_and_loss(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._net.eval()
        with self._autocast():
            scores = self._net(images).float()
        self._net.train()
        loss = functional.cross_entropy(scores, labels, reduction="sum")
        return (scores.argmax(dim=1) == labels).sum(), loss

    def state(self) -> dict[str, np.ndarray]:
        tensors = {f"parameter/{name}": tensor for name, tensor in self._tensors().items()}
        tensors.update(optimizers.state_tensors(self._optimizer))
        arrays = {name: optimizers.to_array(tensor) for name, tensor in tensors.items()}
        if self._loss_scale:
            arrays["loss_scale"] = np.array([float(self._loss_scale.scale), float(self._loss_scale.finite_steps)])
        return arrays

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Return parameters and all buffers, also those that `state_dict` leaves out, by name, layer after layer."""
        return {
            name: tensor
            for path, module in self._net.named_modules()
            for tensors in (module.named_parameters, module.named_buffers)
            for name, tensor in tensors(path, recurse=False)
        }

    @torch.no_grad()
    def _load_state(self, state: Mapping[str, np.ndarray]) -> None:
        tensors = self._tensors()
        for key, array in state.items():
            kind, _, name = key.partition("/")
            if kind != "parameter":
                continue
            saved, tensor = torch.from_numpy(np.array(array)), tensors.get(name)
            if tensor is None or tensor.shape != saved.shape:  # a buffer that the first pass made
                path, _, leaf = name.rpartition(".")
                setattr(self._net.get_submodule(path), leaf, saved.to(self._device, getattr(tensor, "dtype", None)))
            elif not np.array_equal(optimizers.to_array(tensor), array):  # some constants cannot be written to
                tensor.copy_(saved)
        optimizers.load_state(self._optimizer, state)
        if self._loss_scale:
            for number, value in zip((self._loss_scale.scale, self._loss_scale.finite_steps), state["loss_scale"]):
                number.fill_(float(value))

    @contextlib.contextmanager
    def _profile(self, path: Path) -> Iterator[Any]:
        with torch.profiler.profile() as profile:
            yield torch.profiler.record_function
        profile.export_chrome_trace(str(path))

    def peak_flops(self) -> float:
        size = 8192 if self._device.type == "cuda" else 2048
        dtype = _AUTOCAST.get(self._run.dtype, torch.float32)
        a, b = (torch.rand(size, size, device=self._device).to(dtype) for _ in range(2))

        def product() -> None:
            functional.linear(a, b)
            self.wait()

        return fastest(product, size)

    def peak_device_bytes(self) -> int | None:
        if self._replays and self._replays.recorded:  # what a graph keeps for its steps is not counted as allocated
            return self.reserved_device_bytes()
        return torch.cuda.max_memory_allocated() if self._device.type == "cuda" else None

    def reserved_device_bytes(self) -> int | None:
        return torch.cuda.max_memory_reserved() if self._device.type == "cuda" else None

    def reset_peak_memory(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()


def _all_reduce(tensors: list[torch.Tensor]) -> None:
    """Give each tensor, in all workers, the sum of all workers'."""
    flat = _flatten_dense_tensors(tensors)
    dist.all_reduce(flat)
    torch._foreach_copy_(tensors, _unflatten_dense_tensors(flat, tensors))


def _flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Move tensors into one buffer, in which each keeps its strides, and return it."""
    # Each starts at a multiple of 128 bytes, as fast kernels may want it.
    ends = list(itertools.accumulate(-(-tensor.numel() // 32) * 32 for tensor in tensors))
    buffer = torch.zeros(ends[-1], device=tensors[0].device)
    for tensor, start in zip(tensors, [0, *ends]):
        view = buffer.as_strided(tensor.shape, tensor.stride(), start)
        tensor.data = view.copy_(tensor.detach())
    return buffer
