"""Optimizers of PyTorch that take the same steps as MXNet's, and any other of `torch.optim`.

python -m poc.frameworks.pytorch.optimizers    (try a step of a `TorchOptimizer`, as JSON on the standard input)
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from poc import config
from poc.config.run import Run
from poc.values import UserError, from_plain, suggest

Tensors = Sequence[torch.Tensor]


class Muon(Optimizer):
    """SGD with Nesterov momentum; in groups with `orthogonal`, its direction is orthogonalised (Jordan et al. 2024).

    Weight decay is decoupled in these groups, and a part of the gradient in the others.
    """

    def __init__(self, groups: Any, *, momentum: float, unit_weights: bool, dtype: torch.dtype) -> None:
        super().__init__(groups, {"lr": 0.0, "momentum": momentum, "weight_decay": 0.0, "orthogonal": False})
        self._unit_weights, self._dtype = unit_weights, dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update all parameters by their gradients."""
        for group in self.param_groups:
            parameters, rate, decay = group["params"], group["lr"], group["weight_decay"]
            gradients = [parameter.grad for parameter in parameters]
            buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
            if decay and not group["orthogonal"]:
                gradients = torch._foreach_add(gradients, parameters, alpha=decay)
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_add_(buffers, gradients)
            directions = torch._foreach_add(gradients, buffers, alpha=group["momentum"])
            if group["orthogonal"]:
                directions = orthogonalised(directions, self._dtype)
                if self._unit_weights:
                    scales = [len(weight) ** 0.5 / (weight.norm() + 1e-7) for weight in parameters]
                    torch._foreach_mul_(parameters, scales)
                torch._foreach_mul_(parameters, 1 - rate * decay)
            torch._foreach_add_(parameters, directions, alpha=-rate)


def orthogonalised(directions: Tensors, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Bring the singular values of convolutions, seen as matrices (out, the rest), near to one.

    A matrix with more rows than columns is scaled by the root of rows / columns. The five Newton-Schulz iterations
    compute in `dtype`, convolutions of one shape together.
    """
    indices_by_shape: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, direction in enumerate(directions):
        indices_by_shape[direction.shape[0], direction[0].numel()].append(index)
    orthogonal: dict[int, torch.Tensor] = {}
    a, b, c = config.Muon.coefficients
    for (rows, columns), indices in indices_by_shape.items():
        x = torch.stack([directions[index].reshape(rows, columns) for index in indices])
        x = x.mT if rows > columns else x
        x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(dtype)
        for _ in range(config.Muon.iterations):
            square = x @ x.mT
            x = a * x + (b * square + c * (square @ square)) @ x
        x = (x.mT if rows > columns else x).float() * max(1.0, rows / columns) ** 0.5
        orthogonal.update(zip(indices, x))
    return [orthogonal[index].reshape(direction.shape) for index, direction in enumerate(directions)]


def _sgd(run: Run, groups: Any) -> Optimizer:
    momentum = run.optimizer.momentum
    nesterov = isinstance(run.optimizer, config.Nesterov) and momentum > 0
    for group in groups:
        group["lr_in_velocity"] = not getattr(run.optimizer, "momentum_correction", False)
    return torch.optim.SGD(groups, lr=0.0, momentum=momentum, nesterov=nesterov, foreach=True)


def _muon(run: Run, groups: Any) -> Optimizer:
    options: Any = run.optimizer
    for group in groups:
        group["lr_scale"] = options.lr / run.learning_rate if group["orthogonal"] else 1.0
    # Jordan et al. orthogonalise in bfloat16, too.
    dtype = torch.bfloat16 if run.dtype == "bfloat16" else torch.float32
    return Muon(groups, momentum=options.momentum, unit_weights=options.unit_weights, dtype=dtype)


def _adamw(run: Run, groups: Any) -> Optimizer:
    options: Any = run.optimizer
    betas = options.beta1, options.beta2
    # On a GPU the step counts are there, too, so that nothing is fetched, and float16 can undo them.
    return torch.optim.AdamW(groups, 0.0, betas, options.epsilon, foreach=True, capturable=run.kind == "gpu")


def _torch_optim(run: Any, groups: Any) -> Optimizer:
    """Return the optimizer of `torch.optim` that a `TorchOptimizer` names; raises UserError for an unknown name."""
    optimizer: config.TorchOptimizer = run.optimizer
    kinds = {name: kind for name, kind in vars(torch.optim).items() if isinstance(kind, type) and kind is not Optimizer}
    if optimizer.algorithm not in kinds:
        raise UserError(f"no class {optimizer.algorithm!r}; {suggest(optimizer.algorithm, kinds)}")
    kind, options = kinds[optimizer.algorithm], dict(optimizer.options)
    known = inspect.signature(kind).parameters.keys() - {"params", "lr"}
    for name in options.keys() - known:
        raise UserError(f"{optimizer.algorithm} has no option {name!r}; {suggest(name, known)}")
    # On a GPU the step counts are there, too, so that nothing is fetched.
    capturable = {"capturable": True} if run.kind == "gpu" and "capturable" in known else {}
    return kind(groups, lr=0.0, weight_decay=optimizer.weight_decay, **{**capturable, **options})


BUILDERS: dict[type[Any], tuple[Callable[[Run, Any], Optimizer], tuple[str, ...]]] = {
    config.SGD: (_sgd, ("momentum_buffer",)),
    config.Nesterov: (_sgd, ("momentum_buffer",)),
    config.Muon: (_muon, ("momentum_buffer",)),
    config.AdamW: (_adamw, ("step", "exp_avg", "exp_avg_sq")),
    config.TorchOptimizer: (_torch_optim, ()),
}
"""The optimizers, and the names of their state; empty: they make it themselves."""


def build(run: Run, parameters: Tensors, decays: Sequence[bool]) -> Optimizer:
    """Return the optimizer of `run`; weight decay applies to the parameters with a true `decays`.

    Its state exists from the start, so that a first step which overflows in float16 can be undone, except for those of
    `torch.optim`.
    """
    members: dict[tuple[bool, bool], list[torch.Tensor]] = defaultdict(list)
    for parameter, decay in zip(parameters, decays):
        members[decay, isinstance(run.optimizer, config.Muon) and parameter.dim() == 4].append(parameter)
    groups = [
        {"params": group, "weight_decay": run.optimizer.weight_decay if decay else 0.0, "orthogonal": orthogonal}
        for (decay, orthogonal), group in members.items()
    ]
    builder, names = BUILDERS[type(run.optimizer)]
    optimizer = builder(run, groups)
    for parameter in parameters if names else ():
        optimizer.state[parameter] = {
            name: torch.zeros((), device=parameter.device) if name == "step" else torch.zeros_like(parameter)
            for name in names
        }
    return optimizer


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of the next step, so that SGD takes the steps of MXNet's.

    MXNet: v = m v - rate g, w = w + v. PyTorch: b = m b + g, w = w - rate b. So b is -v / rate, and is scaled by old
    rate / new rate when the rate changes. (Momentum correction scales v by new rate / old rate: that leaves b as it
    is.) After a rate of 0, which moves nothing, the momentum is 0.
    """
    for group in optimizer.param_groups:
        if group.get("lr_in_velocity") and rate and rate != group["lr"]:
            buffers = [optimizer.state[parameter]["momentum_buffer"] for parameter in group["params"]]
            torch._foreach_mul_(buffers, group["lr"] / rate)
        group["lr"] = rate * group.get("lr_scale", 1.0)


def state_tensors(optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Return the tensors of the optimizer's state, named "optimizer/PARAMETER/NAME"."""
    parameters = itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)
    return {
        f"optimizer/{index}/{name}": tensor
        for index, parameter in enumerate(parameters)
        for name, tensor in optimizer.state.get(parameter, {}).items()
    }


def state(optimizer: Optimizer) -> dict[str, np.ndarray]:
    """Return the state that `load_state` restores."""
    tensors = {name: tensor.cpu().numpy() for name, tensor in state_tensors(optimizer).items()}
    return {**tensors, "optimizer/lr": np.array([group["lr"] for group in optimizer.param_groups])}


@torch.no_grad()
def load_state(optimizer: Optimizer, arrays: Mapping[str, np.ndarray]) -> None:
    """Restore the state from a checkpoint's arrays."""
    saved, tensors = optimizer.state_dict(), defaultdict[int, dict[str, torch.Tensor]](dict)
    for group, rate in zip(saved["param_groups"], arrays["optimizer/lr"].tolist()):
        group["lr"] = rate
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, array in arrays.items():
        if match := re.fullmatch(r"optimizer/(\d+)/(\w+)", name):
            index, tensor = int(match[1]), torch.tensor(array)
            if array.shape == parameters[index].shape:  # in its layout, which a file does not have
                tensor = torch.empty_like(parameters[index], dtype=tensor.dtype, device="cpu").copy_(tensor)
            tensors[index][match[2]] = tensor
    optimizer.load_state_dict({**saved, "state": tensors})


if __name__ == "__main__":
    weight = torch.ones(2, 2, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    chosen = from_plain(config.TorchOptimizer, json.load(sys.stdin))
    _torch_optim(SimpleNamespace(optimizer=chosen, kind="cpu"), [weight]).step()
