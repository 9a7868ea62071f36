"""One network on the device of one process: PyTorch's autograd, and DistributedDataParallel between the processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from poc.data import Views
from poc.engines import Evaluation
from poc.engines.pytorch import optimizers
from poc.engines.pytorch.networks import build
from poc.machine.network import interface
from poc.recipe import Independent, networks

if TYPE_CHECKING:
    from poc.data import Batch
    from poc.run import Run

_SHORT = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_PRODUCTS = 6


class TorchSession:
    """Trains the network of `run` on this process's device, which may play all devices in turn.

    Gradients are those of the mean loss over the total batch, wherever its samples are: each process computes its
    share of them, and an exchange adds the shares up.
    """

    def __init__(self, run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> None:
        self._run = run
        self._device = torch.device("cuda", 0) if run.kind == "gpu" else torch.device("cpu")
        if run.kind == "cpu":
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
        for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
            backend.allow_tf32 = run.dtype == "tf32"
        torch.backends.cudnn.benchmark = True
        torch.manual_seed(run.seed)
        network = networks.network(run.model)
        net = build(network, run.data.classes, zero_branches=run.zero_gamma, seed=run.seed)
        self._layout = torch.channels_last if run.layout == "NHWC" else torch.contiguous_format
        self._net = net.to(device=self._device, memory_format=self._layout)
        self._scale = network.input_scale
        self._mean = torch.tensor(networks.MEAN, device=self._device).reshape(1, 3, 1, 1)
        self._trained = [parameter for parameter in self._net.parameters() if parameter.requires_grad]
        self._statistics = [
            one for name, one in self._net.named_buffers() if name.endswith(("running_mean", "running_var"))
        ]
        self.parameters = sum(parameter.numel() for parameter in self._trained)
        self.gradient_bytes = 4 * self.parameters
        self._optimizer = optimizers.make(run, self._trained, self._decays())
        if state is not None:
            self._place(state)
        self._rank, self._workers = self._meet() if run.workers > 1 else (0, 1)
        self._replicated: DistributedDataParallel | None = None
        if self._workers > 1:
            # Batch statistics stay each device's own, as in the study. It gives all the first one's weights.
            self._replicated = DistributedDataParallel(self._net, broadcast_buffers=False, gradient_as_bucket_view=True)
        self._forward: Any = self._replicated or self._net
        if run.compile:
            self._forward = torch.compile(self._forward)
        self._loss_scale = run.loss_scale
        self._slowed = run.straggler if self._rank == run.workers - 1 else 0.0
        self._step = first_step
        self._drops_out = any(isinstance(layer, nn.Dropout) for layer in self._net.modules())
        self._held: Batch | None = None
        self._held_part: tuple[torch.Tensor, torch.Tensor] | None = None
        self._losses: list[torch.Tensor] = []
        self._samples = 0
        self._norms: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._net.train()

    def _meet(self) -> tuple[int, int]:
        """Joins the other workers, by torchrun's variables; returns this one's number and how many there are."""
        if "POC_OWN_ADDRESS" in os.environ:
            os.environ["GLOO_SOCKET_IFNAME"] = interface(os.environ["POC_OWN_ADDRESS"])
        dist.init_process_group("nccl" if self._run.kind == "gpu" else "gloo")
        return dist.get_rank(), dist.get_world_size()

    def _decays(self) -> list[bool]:
        """Of each trained parameter, whether it has weight decay: weights, and gammas unless the run spares them."""
        gammas = {id(one.weight) for one in self._net.modules() if isinstance(one, nn.BatchNorm2d)}
        return [
            self._run.optimizer.decay_gammas if id(parameter) in gammas else parameter.dim() > 1
            for parameter in self._trained
        ]

    def step(self, batch: Batch, learning_rate: float, *, exchange: bool = True, norms: bool = False) -> None:
        """Enqueues one optimizer step over `batch` (n, 3, h, w), this process's share of the total batch."""
        began = time.monotonic()
        if self._drops_out:
            # Each step draws its own masks, so that a run which goes on draws those that it would have.
            (drawn,) = np.random.SeedSequence([self._run.seed, self._rank, self._step]).generate_state(1)
            torch.manual_seed(int(drawn))
        self._step += 1
        norms = norms and self._sums
        together = exchange and not norms and self._replicated is not None and self._sums
        small = self._backward(batch, together=together, norms=norms)
        if self._slowed:
            self._finish()
            time.sleep(self._slowed * (time.monotonic() - began))
        if norms:
            self.exchange()
            self._norms.append((small, self._squares()))
        if self._loss_scale != 1:
            torch._foreach_div_([parameter.grad for parameter in self._trained], self._loss_scale)
        self._optimizer.update(learning_rate)

    @property
    def _sums(self) -> bool:
        """Whether an exchange makes sums."""
        return not isinstance(self._run.exchange, Independent)

    def _backward(self, batch: Batch, *, together: bool, norms: bool) -> torch.Tensor:
        """Leaves this process's share of the gradients, or with `together` that of all; returns a device's squares.

        A device's are those of the first that is played here.
        """
        for parameter in self._trained:
            parameter.grad = None
        played = self._run.devices if self._run.virtual else 1
        each = len(batch) // played
        # DistributedDataParallel divides by the number of processes.
        share = self._loss_scale * (self._workers if together else 1) / self._run.total_batch
        before = [one.clone() for one in self._statistics] if played > 1 else []
        sums = [torch.zeros_like(one) for one in before]
        small = torch.zeros((), device=self._device)
        for device in range(played):
            # Real devices keep batch statistics of their own, which are averaged when they are read. An update of a
            # running statistic is linear in it, so starting every virtual device from the same average and averaging
            # what comes out gives just that.
            for one, old in zip(self._statistics, before):
                one.copy_(old)
            images, labels = self._part(batch.part(device * each, (device + 1) * each) if played > 1 else batch)
            with contextlib.nullcontext() if together or self._replicated is None else self._replicated.no_sync():
                with self._short():
                    scores = self._forward(images)
                loss = functional.cross_entropy(
                    scores.float(), labels, reduction="sum", label_smoothing=self._run.label_smoothing
                )
                (loss * share).backward()
            self._losses.append(loss.detach())
            for one, total in zip(self._statistics, sums):
                total += one
            if norms and device == 0:
                small = self._squares()
        for one, total in zip(self._statistics, sums):
            one.copy_(total / played)
        self._samples += len(batch)
        return small

    def _short(self) -> Any:
        """Inside it layers compute in the run's precision."""
        dtype = _SHORT.get(self._run.dtype)
        return torch.autocast(self._device.type, dtype=dtype) if dtype else contextlib.nullcontext()

    def _part(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch on the device, as centred float32 images and labels; one that comes again is there already."""
        if batch is self._held and self._held_part is not None:
            return self._held_part
        pixels = self._cut(batch.images) if isinstance(batch.images, Views) else self._sent(batch.images)
        images = pixels.to(dtype=torch.float32, memory_format=self._layout).sub_(self._mean)
        if self._scale != 1:
            images.mul_(self._scale)
        self._held, self._held_part = batch, (images, self._sent(batch.labels).long())
        return self._held_part

    def _sent(self, array: np.ndarray) -> torch.Tensor:
        """The array on the device; the host does not wait until it is there."""
        tensor = torch.from_numpy(array)
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)

    def hold(self, images: np.ndarray) -> None:
        """Takes all training images, (n, height, width, 3) with the grey around them, onto the device."""
        self._images = torch.from_numpy(np.ascontiguousarray(images)).to(self._device)

    def _cut(self, views: Views) -> torch.Tensor:
        """The views, (n, 3, crop, crop), of the images that the device holds."""
        crop = self._run.data.crop
        images, tops, lefts, mirrored = (
            self._sent(each).long().reshape(-1, 1, 1)
            for each in (views.images, views.tops, views.lefts, views.mirrored)
        )
        along = torch.arange(crop, device=self._device)
        columns = lefts + along + mirrored * (crop - 1 - 2 * along)
        return self._images[images, tops + along.reshape(1, -1, 1), columns].permute(0, 3, 1, 2)

    def _gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self._trained if parameter.grad is not None]

    def _squares(self) -> torch.Tensor:
        """The sum of squares of all gradients here, without the loss scale."""
        return torch.stack(torch._foreach_norm(self._gradients())).square().sum() / self._loss_scale**2

    def exchange(self) -> None:
        """Enqueues one exchange: every process's gradients become the sum of all."""
        if self._workers == 1 or not self._sums:
            return
        gradients = self._gradients()
        long = _flatten_dense_tensors(gradients)
        dist.all_reduce(long)
        for gradient, total in zip(gradients, _unflatten_dense_tensors(long, gradients)):
            gradient.copy_(total)

    def exchange_is_right(self) -> bool | None:
        """Whether an exchange gives the sum of what all processes had, for every gradient; overwrites gradients."""
        if not self._sums:
            return None
        for parameter in self._trained:
            parameter.grad = torch.full_like(parameter, self._rank + 1.0)
        self.exchange()
        expected = self._workers * (self._workers + 1) / 2
        return all(bool((gradient == expected).all()) for gradient in self._gradients())

    def barrier(self) -> None:
        """Blocks until every worker is here."""
        self._finish()
        if self._workers > 1:
            dist.barrier()

    def exchanged(self) -> dict[str, Any]:
        """Nothing: there is no more to say of these exchanges than how long they took."""
        return {}

    def gradient_norms(self) -> list[tuple[float, float]]:
        """The norms taken up to the last `drain`: squared, of a device's mean gradient and of that of all devices."""
        to_mean = (self._run.total_batch / self._run.batch_per_device) ** 2
        found = [(float(small) * to_mean, float(large)) for small, large in self._norms]
        self._norms = []
        return found

    def drain(self) -> float:
        """Blocks until everything enqueued is done; returns the mean loss, in nats, of the steps since the last one."""
        self._finish()
        total = float(torch.stack(self._losses).double().sum()) if self._losses else 0.0
        mean = total / self._samples if self._samples else float("nan")
        self._losses, self._samples = [], 0
        return mean

    def _finish(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch]) -> Evaluation:
        """Classifies every image of this process once, after averaging the processes' batch statistics."""
        if self._workers > 1 and self._sums:
            for one in self._statistics:
                dist.all_reduce(one)
                one /= self._workers
        with self._evaluating():
            correct = torch.zeros((), dtype=torch.long, device=self._device)
            loss = torch.zeros((), dtype=torch.double, device=self._device)
            samples = 0
            for batch in batches:
                images, labels = self._part(batch)
                with self._short():
                    scores = self._net(images).float()
                correct += (scores.argmax(dim=1) == labels).sum()
                loss += functional.cross_entropy(scores, labels, reduction="sum")
                samples += len(batch)
            return Evaluation(correct=int(correct), samples=samples, loss=float(loss) / samples)

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        self._net.train(False)
        try:
            yield
        finally:
            self._net.train()
            self._held = self._held_part = None

    def state(self) -> dict[str, np.ndarray]:
        """Every parameter, batch statistic and momentum: "parameter/NAME" and "momentum/INDEX"."""
        self._finish()
        held = {f"parameter/{name}": one.cpu().numpy() for name, one in self._net.state_dict().items()}
        return {**held, **self._optimizer.state()}

    def _place(self, state: Mapping[str, np.ndarray]) -> None:
        kept = {name.removeprefix("parameter/"): one for name, one in state.items() if name.startswith("parameter/")}
        self._net.load_state_dict({name: torch.from_numpy(np.array(one)) for name, one in kept.items()})
        self._optimizer.restore(state)

    def arrays(self) -> dict[str, np.ndarray]:
        """Every parameter and batch statistic by its name in the module."""
        return {
            name: one.cpu().numpy().copy()
            for name, one in self._net.state_dict().items()
            if not name.endswith("num_batches_tracked")
        }

    def peak_flops(self) -> float:
        """Operations a second of the fastest of several products of large square matrices on this device."""
        size = 8192 if self._device.type == "cuda" else 2048
        dtype = _SHORT.get(self._run.dtype, torch.float32)
        left, right = (torch.rand(size, size, device=self._device).to(dtype) for _ in range(2))
        best = float("inf")
        with torch.no_grad():
            for _ in range(_PRODUCTS):
                self._finish()
                start = time.perf_counter()
                functional.linear(left, right)
                self._finish()
                best = min(best, time.perf_counter() - start)
        return 2 * size**3 / best

    def peak_device_bytes(self) -> int | None:
        """The most memory taken on the device so far; None on a CPU, whose memory is the host's."""
        return torch.cuda.max_memory_allocated() if self._device.type == "cuda" else None
