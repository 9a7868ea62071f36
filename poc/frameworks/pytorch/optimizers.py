"""Optimizers of PyTorch that take the same steps as MXNet's, and any other of `torch.optim`.

python -m poc.frameworks.pytorch.optimizers    (try a step of a `TorchOptimizer`, as JSON on the standard input)
"""

import inspect
import itertools
import json
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from poc import config
from poc.config.run import Run
from poc.values import UserError, from_plain, suggest

Tensors = Sequence[torch.Tensor]


class Momentum(Optimizer):
    """SGD with momentum, Nesterov's, or Muon's, orthogonalised in groups with `orthogonal` (Jordan et al. 2024).

    Weight decay is decoupled in these groups, and a part of the gradient in the others. A learning rate in a tensor is
    read on the device, by each replay of a CUDA graph.

    As in MXNet the momentum b contains the learning rate: b = m b + rate g, w = w - b. Muon's does not, nor does one
    that is corrected when the rate changes: b = m b + g, w = w - rate b, so that a change leaves b as it is.
    """

    def __init__(self, groups: Any, run: Run) -> None:
        super().__init__(groups, {"lr": 0.0})
        self._options: Any = run.optimizer
        is_muon = isinstance(run.optimizer, config.Muon)
        self._is_nesterov = is_muon or isinstance(run.optimizer, config.Nesterov)
        self._corrects = getattr(run.optimizer, "momentum_correction", False)
        self._contains_rate = not is_muon and not self._corrects
        # Jordan et al. orthogonalise in bfloat16, too.
        self._dtype = torch.bfloat16 if run.dtype == "bfloat16" else torch.float32

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update all parameters that have gradients."""
        for group in self.param_groups:
            if parameters := [parameter for parameter in group["params"] if parameter.grad is not None]:
                self._update(group, parameters)

    def _update(self, group: dict[str, Any], parameters: list[torch.Tensor]) -> None:
        rate, momentum, decay = group["lr"], self._options.momentum, group["weight_decay"]
        gradients: Any = [parameter.grad for parameter in parameters]
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        if decay and not group["orthogonal"]:
            gradients = torch._foreach_add(gradients, parameters, alpha=decay)
        if self._contains_rate:
            gradients, rate = torch._foreach_mul(gradients, rate), 1.0
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, gradients)
        if self._corrects:  # in MXNet a rate of 0 ends the momentum
            torch._foreach_mul_(buffers, (rate != 0) * 1.0)
        directions = torch._foreach_add(gradients, buffers, alpha=momentum) if self._is_nesterov else buffers
        if group["orthogonal"]:
            directions = orthogonalised(directions, self._dtype)
            if self._options.unit_weights:
                torch._foreach_mul_(parameters, _unit_scales(parameters))
            if decay:
                torch._foreach_mul_(parameters, 1 - rate * decay)
        if isinstance(rate, torch.Tensor):  # as `alpha` it would be fetched
            torch._foreach_add_(parameters, torch._foreach_mul(directions, -rate))
        else:
            torch._foreach_add_(parameters, directions, alpha=-rate)


def _unit_scales(weights: Tensors) -> list[torch.Tensor]:
    norms = torch._foreach_norm(weights)
    torch._foreach_add_(norms, 1e-7)
    torch._foreach_reciprocal_(norms)
    torch._foreach_mul_(norms, [len(weight) ** 0.5 for weight in weights])
    return list(norms)


def orthogonalised(directions: Tensors, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Bring the singular values of convolutions, seen as matrices (out, the rest), near to one.

    A matrix with more rows than columns is scaled by the root of rows / columns. The five Newton-Schulz iterations
    compute in `dtype`, convolutions of one shape together.
    """
    norms = torch._foreach_norm(directions)
    torch._foreach_add_(norms, 1e-7)
    directions = torch._foreach_div(directions, norms)
    indices_by_shape: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, direction in enumerate(directions):
        indices_by_shape[direction.shape[0], direction[0].numel()].append(index)
    orthogonal: dict[int, torch.Tensor] = {}
    a, b, c = config.Muon.coefficients
    for (rows, columns), indices in indices_by_shape.items():
        x = torch.stack([directions[index].reshape(rows, columns) for index in indices]).to(dtype)
        x = x.mT if rows > columns else x
        for _ in range(config.Muon.iterations):
            square = torch.bmm(x, x.mT)
            x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
        x = (x.mT if rows > columns else x).float()
        if rows > columns:
            x = x * (rows / columns) ** 0.5
        orthogonal.update(zip(indices, x))
    return [orthogonal[index].reshape(direction.shape) for index, direction in enumerate(directions)]


def build(run: Run, parameters: Tensors, decays: Sequence[bool], *, capturable: bool = False) -> Optimizer:
    """Return the optimizer of `run`; weight decay applies to the parameters with a true `decays`.

    If it is `capturable`, the step counts are on the device, too, so that nothing is fetched. Its state exists from the
    start, so that a first step which overflows in float16 can be undone, except for those of `torch.optim`.
    """
    # The steps before it is recorded are no mistake.
    warnings.filterwarnings("ignore", "This instance was constructed with capturable=True")
    options: Any = run.optimizer
    is_muon = isinstance(options, config.Muon)
    members: dict[tuple[bool, bool], list[torch.Tensor]] = defaultdict(list)
    for parameter, decay in zip(parameters, decays):
        members[decay, is_muon and parameter.dim() == 4].append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": group, "weight_decay": options.weight_decay if decay else 0.0, "orthogonal": orthogonal}
        for (decay, orthogonal), group in members.items()
    ]
    if isinstance(options, config.TorchOptimizer):
        return of_torch(options, groups, capturable)
    if isinstance(options, config.AdamW):
        names, betas = ["step", "exp_avg", "exp_avg_sq"], (options.beta1, options.beta2)
        optimizer = torch.optim.AdamW(groups, 0.0, betas, options.epsilon, foreach=True, capturable=capturable)
    else:
        for group in groups:
            if group["orthogonal"] and run.is_range_test:  # which varies the others' rate
                group["own_rate"] = options.lr
            elif group["orthogonal"]:
                group["lr_scale"] = options.lr / run.learning_rate
        names, optimizer = ["momentum_buffer"], Momentum(groups, run)
    for parameter in parameters:
        optimizer.state[parameter] = {
            name: torch.zeros((), device=parameter.device) if name == "step" else torch.zeros_like(parameter)
            for name in names
        }
    return optimizer


def of_torch(optimizer: config.TorchOptimizer, groups: Any, capturable: bool = False) -> Optimizer:
    """Return the optimizer of `torch.optim`; raises UserError for an unknown name."""
    kinds = {name: kind for name, kind in vars(torch.optim).items() if isinstance(kind, type) and kind is not Optimizer}
    if optimizer.algorithm not in kinds:
        raise UserError(f"no class {optimizer.algorithm!r}; {suggest(optimizer.algorithm, kinds)}")
    kind, options = kinds[optimizer.algorithm], dict(optimizer.options)
    accepted = inspect.signature(kind).parameters.keys() - {"params", "lr"}
    for name in options.keys() - accepted:
        raise UserError(f"{optimizer.algorithm} has no option {name!r}; {suggest(name, accepted)}")
    if capturable and "capturable" in accepted:
        options.setdefault("capturable", True)
    return kind(groups, lr=0.0, weight_decay=optimizer.weight_decay, **options)


def put_rates_on_device(optimizer: Optimizer, device: torch.device) -> bool:
    """Let steps read the learning rate from the device, where a recorded step finds it, if the optimizer is able to.

    Return False if it is not: its steps cannot be recorded.
    """
    if not isinstance(optimizer, Momentum) and not all(group.get("capturable") for group in optimizer.param_groups):
        return False
    for group in optimizer.param_groups:
        group["lr"] = torch.full((), group["lr"], device=device)
    return True


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        group_rate = group.get("own_rate", rate * group.get("lr_scale", 1.0))
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(group_rate)
        else:
            group["lr"] = group_rate


def state_tensors(optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Return the tensors of the optimizer's state, named "optimizer/PARAMETER/NAME"."""
    parameters = itertools.chain(*(group["params"] for group in optimizer.param_groups))
    return {
        f"optimizer/{index}/{name}": tensor
        for index, parameter in enumerate(parameters)
        for name, tensor in optimizer.state.get(parameter, {}).items()
    }


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """Return the values of a tensor, those in bfloat16, which NumPy does not have, in float32."""
    return (tensor.detach().float() if tensor.dtype == torch.bfloat16 else tensor.detach()).cpu().numpy()


@torch.no_grad()
def load_state(optimizer: Optimizer, arrays: Mapping[str, np.ndarray]) -> None:
    """Restore the state from a checkpoint's arrays, in place where it exists."""
    if present := state_tensors(optimizer):
        for name, tensor in present.items():
            tensor.copy_(torch.from_numpy(arrays[name]))
        return
    saved, tensors = optimizer.state_dict(), defaultdict[int, dict[str, torch.Tensor]](dict)
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
    of_torch(from_plain(config.TorchOptimizer, json.load(sys.stdin)), [weight]).step()
