"""One network on the device of one process: PyTorch's autograd, and DistributedDataParallel between the processes."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from poc.config import networks
from poc.data import Crops
from poc.frameworks import loss_scale
from poc.frameworks.pytorch import optimizers
from poc.frameworks.pytorch.networks import build
from poc.frameworks.session import Part, Placed, Session, fastest
from poc.host.processes import interface

if TYPE_CHECKING:
    from poc.config.run import Run
    from poc.data import Batch

_AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class TorchSession(Session):
    """Trains the network of `run` on this process's device, which may play all devices in turn.

    Gradients are those of the mean loss over the total batch, wherever its samples are: each process computes its
    share of them, and an exchange adds the shares up.
    """

    def __init__(self, run: Run, *, first_step: int = 0, state: Mapping[str, np.ndarray] | None = None) -> None:
        super().__init__(run, first_step)
        self._device = torch.device("cuda", 0) if run.kind == "gpu" else torch.device("cpu")
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            self._copies = torch.cuda.Stream()
            # Else a thread of its own issues the backward pass: the main thread's time would not be that of a step.
            torch.autograd.set_multithreading_enabled(False)
        else:
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
        for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
            backend.allow_tf32 = run.dtype == "tf32"
        torch.backends.cudnn.benchmark = True
        torch.manual_seed(run.seed)
        net = build(networks.network(run.model), run.data.classes, zero_branches=run.zero_init_gamma, seed=run.seed)
        self._layout = torch.channels_last if run.layout == "NHWC" else torch.contiguous_format
        self._net = net.to(device=self._device, memory_format=self._layout).train()
        self._mean = torch.tensor(networks.MEAN, device=self._device).reshape(1, 3, 1, 1)
        self._trained = [parameter for parameter in self._net.parameters() if parameter.requires_grad]
        self._statistics = [
            buffer for name, buffer in self._net.named_buffers() if name.endswith(("running_mean", "running_var"))
        ]
        self._drops_out = any(isinstance(layer, nn.Dropout) for layer in self._net.modules())
        self.parameters = sum(parameter.numel() for parameter in self._trained)
        self._loss_scale = self._good = torch.zeros((), device=self._device)
        """In float16 the scale, of the mean loss, and for how many steps it has been good."""
        if run.dtype == "float16":
            self._loss_scale = self._loss_scale + loss_scale.START * run.global_batch
        self._ready: tuple[Placed | None, list[Part]] = (None, [])
        """The last batch and its parts as the network takes them, which one that comes again has already."""
        self._optimizer = optimizers.make(run, self._trained, self._decays())
        self._replicated: DistributedDataParallel | None = None
        if run.workers > 1:
            self._init_process_group()
            # Batch statistics stay each device's own, as in the study. It gives all the first one's weights.
            self._replicated = DistributedDataParallel(self._net, broadcast_buffers=False, gradient_as_bucket_view=True)
        if state is not None:
            self._load_state(state)
        self._forward: Any = self._replicated or self._net
        if run.compile:
            self._forward = torch.compile(self._forward)

    def _init_process_group(self) -> None:
        """Joins the other workers, by torchrun's variables."""
        own = os.environ["POC_OWN_ADDRESS"]
        os.environ["GLOO_SOCKET_IFNAME"] = interface(own)
        if not own.startswith("127."):
            os.environ["NCCL_SOCKET_IFNAME"] = f"={interface(own)}"
        self._worker, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        meeting = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        # By itself the first one would listen on every interface.
        first = self._worker == 0
        listening = {"is_master": True, "master_listen_fd": socket.create_server(meeting).detach()} if first else {}
        store = dist.TCPStore(*meeting, workers, wait_for_workers=False, **listening)
        gpu = self._device.type == "cuda"
        # With the device NCCL connects at once, and never to a card that it makes out from the worker's number.
        how = {"store": store, "rank": self._worker, "world_size": workers}
        dist.init_process_group("nccl" if gpu else "gloo", device_id=self._device if gpu else None, **how)

    def _decays(self) -> list[bool]:
        """Of each trained parameter, whether it has weight decay: weights, and gammas unless the run spares them."""
        gammas = {id(layer.weight) for layer in self._net.modules() if isinstance(layer, nn.BatchNorm2d)}
        return [
            self._run.optimizer.decay_gammas if id(parameter) in gammas else parameter.dim() > 1
            for parameter in self._trained
        ]

    def _backward(self, batch: Batch, *, exchange: bool, norms: bool) -> Sequence[torch.Tensor]:
        together = exchange and self._sums and self._replicated is not None
        for parameter in self._trained:
            parameter.grad = None
        # DistributedDataParallel divides by the number of processes.
        share: Any = (self._run.workers if together else 1) / self._run.global_batch
        if self._run.dtype == "float16":
            share = share * self._loss_scale
        if self._run.emulated:
            summed: list[Any] = []
            if norms:  # each device's own gradients are looked at, else autograd adds them up
                for parameter in self._trained:
                    parameter.grad = torch.zeros_like(parameter)
                summed = self._gradients()

            def differentiate(parts: list[Part]) -> None:
                for gradient in summed:
                    gradient.zero_()
                self._differentiate(parts, share)

            return self._play(batch, differentiate, summed, self._statistics, norms)
        with contextlib.nullcontext() if together or self._replicated is None else self._replicated.no_sync():
            placed = self.placed(batch)
            if placed is not self._ready[0]:
                self._ready = placed, [self._prepared(*part) for part in placed.parts]
            self._differentiate(self._ready[1], share)
        return [self._squares()] if norms else []

    def _differentiate(self, parts: list[Part], share: Any) -> None:
        """Adds to the gradients `share` times those of the sum of the samples' losses."""
        for images, labels in parts:
            with self._autocast():
                scores = self._forward(images)
            loss = functional.cross_entropy(
                scores.float(), labels, reduction="sum", label_smoothing=self._run.label_smoothing
            )
            (loss * share).backward()
            self._lost(0, loss.detach())

    def _autocast(self) -> Any:
        """Inside it layers compute in the run's precision."""
        dtype = _AUTOCAST.get(self._run.dtype)
        return torch.autocast(self._device.type, dtype=dtype) if dtype else contextlib.nullcontext()

    def _update(self, learning_rate: float, *, exchange: bool, together: bool) -> None:
        if self._run.dtype != "float16":
            self._optimizer.update(learning_rate)
            return
        overflows = torch.zeros_like(self._good)
        torch._amp_foreach_non_finite_check_and_unscale_(self._gradients(), overflows, 1 / self._loss_scale)
        changed = [*self._optimizer.parameters, *self._optimizer.momenta]
        before = _flatten_dense_tensors(changed)
        self._optimizer.update(learning_rate)
        # Nothing is fetched: what an update after an overflow has done is undone on the device, of all tensors at once.
        with torch.no_grad():
            kept = torch.where(overflows > 0, before, _flatten_dense_tensors(changed))
            torch._foreach_copy_(changed, _unflatten_dense_tensors(kept, changed))
        self._loss_scale, self._good = loss_scale.following(self._loss_scale, self._good, 1 - overflows)

    def _on_devices(self, batch: Batch) -> list[Part]:
        return [self._prepared(*part) for part in self._ahead(batch)]

    def _ahead(self, batch: Batch) -> list[Part]:
        """As they are: their arithmetic is the step's."""
        if isinstance(batch.images, Crops):
            *views, labels = self._there(*batch.images, batch.labels)
            return [(Crops(*views), labels)]
        return [tuple(self._there(batch.images, batch.labels))]

    def _prepared(self, raw: torch.Tensor | Crops, labels: torch.Tensor) -> Part:
        pixels = self._cut(raw) if isinstance(raw, Crops) else raw
        images = pixels.to(dtype=torch.float32, memory_format=self._layout).sub_(self._mean)
        if self._scale != 1:
            images.mul_(self._scale)
        return images, labels.long()

    def _there(self, *arrays: np.ndarray) -> list[torch.Tensor]:
        """The arrays on the device: on a GPU copied beside what it computes, and there when this returns."""
        tensors = list(map(torch.from_numpy, arrays))
        if self._device.type == "cpu":
            return tensors
        with torch.cuda.stream(self._copies):
            sent = [tensor.pin_memory().to(self._device, non_blocking=True) for tensor in tensors]
        self._copies.synchronize()
        for tensor in sent:
            # Its memory is free for the next batch only behind what the steps have enqueued by then.
            tensor.record_stream(torch.cuda.default_stream())
        return sent

    @torch.no_grad()
    def _set_whitening(self, filters: np.ndarray) -> None:
        self._net.whitening.weight.copy_(torch.from_numpy(filters))

    def hold(self, images: np.ndarray) -> None:
        self._images = torch.from_numpy(np.ascontiguousarray(images)).to(self._device)

    def _cut(self, views: Any) -> torch.Tensor:
        """The views, (n, 3, crop, crop), of the images that the device holds."""
        crop = self._run.data.crop
        images, tops, lefts, mirrored = (values.long().reshape(-1, 1, 1) for values in views)
        along = torch.arange(crop, device=self._device)
        columns = lefts + along + mirrored * (crop - 1 - 2 * along)
        return self._images[images, tops + along.reshape(1, -1, 1), columns].permute(0, 3, 1, 2)

    def _gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self._trained if parameter.grad is not None]

    def _squares(self) -> torch.Tensor:
        squares = torch.stack(torch._foreach_norm(self._gradients())).square().sum()
        return squares / self._loss_scale.square() if self._run.dtype == "float16" else squares

    def exchange(self) -> None:
        if self._replicated is not None and self._sums:
            _sum(self._gradients())

    def sync_is_correct(self) -> bool | None:
        if not self._sums:
            return None
        for parameter in self._trained:
            parameter.grad = torch.full_like(parameter, self._worker + 1.0)
        self.exchange()
        expected = self._run.workers * (self._run.workers + 1) / 2
        return all(bool((gradient == expected).all()) for gradient in self._gradients())

    def barrier(self) -> None:
        self._synchronize()
        if self._run.workers > 1:
            dist.barrier()

    def close(self) -> None:
        if self._replicated is not None:
            self.barrier()
            dist.destroy_process_group()

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _seed(self, number: int) -> None:
        torch.manual_seed(number)

    def _sync_batch_stats(self) -> None:
        if self._run.workers > 1 and self._sums and self._statistics:
            _sum(self._statistics)
            torch._foreach_div_(self._statistics, self._run.workers)

    @torch.no_grad()
    def _scores(self, images: torch.Tensor) -> torch.Tensor:
        self._net.eval()
        with self._autocast():
            scores = self._net(images).float()
        self._net.train()
        return scores

    def _tally(self, scores: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        loss = functional.cross_entropy(scores, labels, reduction="sum", ignore_index=-1)
        return (scores.argmax(dim=1) == labels).sum(), loss

    def state(self) -> dict[str, np.ndarray]:
        self._synchronize()
        parameters = {f"parameter/{name}": tensor.cpu().numpy() for name, tensor in self._net.state_dict().items()}
        scale = {"loss_scale": np.array([float(self._loss_scale), float(self._good)])}
        return {**parameters, **self._optimizer.state(), **(scale if self._run.dtype == "float16" else {})}

    def _load_state(self, state: Mapping[str, np.ndarray]) -> None:
        names = self._net.state_dict().keys()
        self._net.load_state_dict({name: torch.from_numpy(np.array(state[f"parameter/{name}"])) for name in names})
        self._optimizer.load_state(state)
        if self._run.dtype == "float16":
            self._loss_scale, self._good = torch.tensor(state["loss_scale"], dtype=torch.float32, device=self._device)

    def peak_flops(self) -> float:
        size = 8192 if self._device.type == "cuda" else 2048
        dtype = _AUTOCAST.get(self._run.dtype, torch.float32)
        left, right = (torch.rand(size, size, device=self._device).to(dtype) for _ in range(2))

        def product() -> None:
            functional.linear(left, right)
            self._synchronize()

        return fastest(product, size)

    def peak_device_bytes(self) -> int | None:
        return torch.cuda.max_memory_reserved() if self._device.type == "cuda" else None


def _sum(tensors: list[torch.Tensor]) -> None:
    """Gives each of them, in all workers, the sum of all workers'."""
    flat = _flatten_dense_tensors(tensors)
    dist.all_reduce(flat)
    torch._foreach_copy_(tensors, _unflatten_dense_tensors(flat, tensors))
