"""How parameters follow gradients: by MXNet's formulas, so that both frameworks take the same steps.

PyTorch's own SGD keeps a velocity without the learning rate in it, MXNet's one with it: they part where the rate
changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from poc import config

if TYPE_CHECKING:
    from poc.config.run import Run


Tensors = Sequence[torch.Tensor]


class SGD:
    """SGD with momentum, which may follow the rate (Goyal et al. 2017).

    `decays` says of each parameter whether it has weight decay, which is added to its gradient.
    """

    def __init__(self, run: Run, parameters: Tensors, decays: Sequence[bool]) -> None:
        self.parameters = list(parameters)
        self.momenta = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.previous: float | None = None
        """Learning rate of the last update."""
        self._decayed = [number for number, decay in enumerate(decays) if decay]
        self._decay, self._momentum = run.optimizer.weight_decay, run.optimizer.momentum
        self._corrected = getattr(run.optimizer, "momentum_correction", False)

    @torch.no_grad()
    def update(self, rate: float) -> None:
        """One step at learning rate `rate` by the gradients that the parameters have."""
        gradients = self._gradients()
        momentum = self._momentum
        if self._corrected and self.previous:
            momentum *= rate / self.previous
        self.previous = rate
        torch._foreach_mul_(self.momenta, momentum)
        torch._foreach_add_(self.momenta, gradients, alpha=-rate)
        self._move(gradients, rate)

    def _move(self, gradients: Tensors, rate: float) -> None:
        torch._foreach_add_(self.parameters, self.momenta)

    def _gradients(self) -> list[torch.Tensor]:
        """Those of all parameters, with the weight decay in them."""
        gradients = [parameter.grad for parameter in self.parameters]
        if self._decay and self._decayed:
            chosen = [gradients[number] for number in self._decayed]
            weights = [self.parameters[number] for number in self._decayed]
            for number, decayed in zip(self._decayed, torch._foreach_add(chosen, weights, alpha=self._decay)):
                gradients[number] = decayed
        return gradients

    def state(self) -> dict[str, np.ndarray]:
        """What `load_state` takes: "momentum/INDEX", and the "rate" before."""
        state = {f"momentum/{number}": momentum.cpu().numpy() for number, momentum in enumerate(self.momenta)}
        return state if self.previous is None else {**state, "rate": np.array(self.previous)}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        self.previous = float(state["rate"]) if "rate" in state else None
        for number, momentum in enumerate(self.momenta):
            momentum.copy_(torch.from_numpy(state[f"momentum/{number}"]))


class Nesterov(SGD):
    """SGD with Nesterov momentum, as MXNet's NAG has it."""

    def _move(self, gradients: Tensors, rate: float) -> None:
        torch._foreach_add_(self.parameters, self.momenta, alpha=self._momentum)
        torch._foreach_add_(self.parameters, gradients, alpha=-rate)


class Muon(SGD):
    """SGD with Nesterov momentum whose direction for convolutions is orthogonalised (Jordan et al. 2024, "Muon").

    As with MXNet: a convolution is a matrix (out, the rest), its rate a share of the others', and its weight
    decay decoupled. In a run in bfloat16 it is orthogonalised in bfloat16, as Jordan et al. do.
    """

    def __init__(self, run: Run, parameters: Tensors, decays: Sequence[bool]) -> None:
        super().__init__(run, parameters, decays)
        assert isinstance(run.optimizer, config.Muon)
        self._share = run.optimizer.lr / run.learning_rate
        self._unit = run.optimizer.unit_weights
        self._dtype = torch.bfloat16 if run.dtype == "bfloat16" else torch.float32
        matrices = [number for number, parameter in enumerate(self.parameters) if parameter.dim() == 4]
        self._decayed = [number for number in self._decayed if number not in matrices]
        self._matrices, self._others = matrices, [n for n in range(len(self.parameters)) if n not in set(matrices)]

    @torch.no_grad()
    def update(self, rate: float) -> None:
        """One step: that of SGD at `rate` for all but convolutions, which have their share of it."""
        self.previous = rate
        gradients = self._gradients()
        torch._foreach_mul_(self.momenta, self._momentum)
        torch._foreach_add_(self.momenta, gradients)
        directions = torch._foreach_add(gradients, self.momenta, alpha=self._momentum)
        torch._foreach_add_(
            [self.parameters[number] for number in self._others],
            [directions[number] for number in self._others],
            alpha=-rate,
        )
        orthogonal = orthogonalised([directions[number] for number in self._matrices], self._dtype)
        weights = [self.parameters[number] for number in self._matrices]
        if self._unit:
            torch._foreach_mul_(weights, [len(weight) ** 0.5 / (weight.norm() + 1e-7) for weight in weights])
        torch._foreach_mul_(weights, 1 - rate * self._share * self._decay)
        torch._foreach_add_(weights, orthogonal, alpha=-rate * self._share)


def make(run: Run, parameters: Tensors, decays: Sequence[bool]) -> SGD:
    """The optimizer of `run` for these parameters, of which those that `decays` says have weight decay."""
    made: SGD = globals()[type(run.optimizer).__name__](run, parameters, decays)
    return made


def orthogonalised(directions: Tensors, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """The matrices (out, the rest) of convolutions with their singular values brought near to one, in their shapes.

    Scaled by the root of rows / columns where there are more rows. Computed in `dtype`, those of the same shape at
    once.
    """
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, direction in enumerate(directions):
        groups[(direction.shape[0], direction[0].numel())].append(number)
    orthogonal: dict[int, torch.Tensor] = {}
    a, b, c = config.Muon.coefficients
    for (rows, columns), members in groups.items():
        x = torch.stack([directions[number].reshape(rows, columns) for number in members])
        tall = rows > columns
        x = x.mT if tall else x
        x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(dtype)
        for _ in range(config.Muon.iterations):
            square = x @ x.mT
            x = a * x + (b * square + c * (square @ square)) @ x
        x = (x.mT if tall else x).float() * max(1.0, rows / columns) ** 0.5
        orthogonal.update(zip(members, x))
    return [orthogonal[number].reshape(direction.shape) for number, direction in enumerate(directions)]
