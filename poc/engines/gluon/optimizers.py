"""The optimizers by which every device, or a server, updates parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from poc import recipe
from poc.engines.muon import COEFFICIENTS, ITERATIONS

if TYPE_CHECKING:
    from poc.run import Run

_ALL = 1_000_000


def make(run: Run, trained: Sequence[Any]) -> mx.optimizer.Optimizer:
    """The optimizer of `run` for the parameters `trained`, at its full learning rate."""
    maker = globals()[run.optimizer.name]
    options = {
        "learning_rate": run.learning_rate,
        "momentum": run.optimizer.momentum,
        "wd": run.optimizer.weight_decay,
        # A trainer gives an optimizer no names, by which LARS spares betas and gammas.
        "param_idx2name": {index: parameter.name for index, parameter in enumerate(trained)},
    }
    made: mx.optimizer.Optimizer = maker(run.optimizer, options)
    return made


def sgd(chosen: recipe.SGD, options: dict[str, Any]) -> mx.optimizer.Optimizer:
    """SGD with momentum, which may follow the rate."""
    return CorrectedSGD(**options) if chosen.momentum_correction else mx.optimizer.SGD(**options)


def nesterov(chosen: recipe.Nesterov, options: dict[str, Any]) -> mx.optimizer.Optimizer:
    """SGD with Nesterov momentum."""
    return Nesterov(**options)


def lars(chosen: recipe.LARS, options: dict[str, Any]) -> mx.optimizer.Optimizer:
    """It scales the rate of each weight by |weight| / |gradient| (You et al. 2017), not those of betas and gammas."""
    return mx.optimizer.LARS(**options, momentum_correction=False)


def muon(chosen: recipe.Muon, options: dict[str, Any]) -> mx.optimizer.Optimizer:
    """Orthogonalised momentum for convolutions, whose rate is a share of the others'."""
    return Muon(share=chosen.rate / options["learning_rate"], **options)


class Nesterov(mx.optimizer.NAG):
    """MXNet's SGD with Nesterov momentum, to the same bits in every process.

    Its operator decays the momentum by the weight that it has just written, but only where it writes in place, which
    hangs on how the weight lies in memory. So the decay is in the gradient here, and the operator adds none.
    """

    def update_multi_precision(self, index: int, weight: Any, grad: Any, state: Any) -> None:
        """One step of one parameter; the name by which a trainer calls it."""
        decay, gradient = self._get_wd(index), grad * self.rescale_grad
        self._update_count(index)
        gradient = gradient + decay * weight if decay else gradient
        rate = self._get_lr(index)
        if state is None:
            mx.nd.sgd_update(weight, gradient, out=weight, lr=rate, wd=0.0)
        else:
            mx.nd.nag_mom_update(weight, gradient, state, out=weight, lr=rate, momentum=self.momentum, wd=0.0)

    update = update_multi_precision


class CorrectedSGD(mx.optimizer.SGD):
    """SGD with momentum whose velocity, which has the learning rate in it, follows when that changes.

    The momentum correction of Goyal et al. 2017 (section 3.1, remark 3).
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._plain_momentum: float = options["momentum"]
        self.previous: float | None = None
        """Learning rate of the last update."""

    def follow(self, rate: float) -> None:
        """Says that the next update is at learning rate `rate`."""
        before = self.previous
        self.momentum = self._plain_momentum * (rate / before if before else 1.0)
        self.previous = rate


class Muon(mx.optimizer.Optimizer):
    """SGD with Nesterov momentum whose direction for convolutions is orthogonalised (Jordan et al. 2024, "Muon").

    The momentum of a convolution, (out, in, height, width), is seen as a matrix (out, the rest) and brought near to the
    orthogonal one of the same singular vectors by five Newton-Schulz steps. Its rate is `share` of the others'. Weight
    decay is added to the gradients of all others and, decoupled, to convolutions.
    """

    def __init__(self, *, share: float, momentum: float, **options: Any) -> None:
        super().__init__(**options)
        self._share, self._momentum = share, momentum
        self.aggregate_num = _ALL  # parameters that `update` is given at once

    def create_state(self, index: int, weight: Any) -> Any:
        """The momentum, in the weight's shape."""
        return mx.nd.zeros(weight.shape, weight.context, dtype=weight.dtype)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """One step of one parameter, or of each of several, in lists."""
        if not isinstance(index, (list, tuple)):
            index, weight, grad, state = [index], [weight], [grad], [state]
        self._update_count(list(index))
        matrices, directions = [], []
        for number, parameter, raw, momentum in zip(index, weight, grad, state):
            rate, decay = self._get_lr(number), self._get_wd(number)
            matrix = len(parameter.shape) == 4
            gradient = raw * self.rescale_grad
            if decay and not matrix:
                gradient = gradient + decay * parameter
            momentum[:] = self._momentum * momentum + gradient
            direction = gradient + self._momentum * momentum
            if matrix:
                matrices.append((parameter, rate * self._share, decay))
                directions.append(direction)
            else:
                parameter[:] = parameter - rate * direction
        for (parameter, rate, decay), direction in zip(matrices, orthogonalised(directions)):
            parameter[:] = (1 - rate * decay) * parameter - rate * direction


def orthogonalised(directions: Sequence[Any]) -> list[Any]:
    """The matrices (out, the rest) of convolutions with their singular values brought near to one, in their shapes.

    Scaled by the root of rows / columns where there are more rows, so that the step of an output does not depend on
    how many there are. Those of one shape are done together: an operator for each costs more than its arithmetic.
    """
    alike: dict[tuple[int, int], list[int]] = {}
    for number, direction in enumerate(directions):
        alike.setdefault((direction.shape[0], int(np.prod(direction.shape[1:]))), []).append(number)
    orthogonal: dict[int, Any] = {}
    a, b, c = COEFFICIENTS
    for (rows, columns), members in alike.items():
        x = mx.nd.concat(*(directions[number].reshape((1, rows, columns)) for number in members), dim=0)
        size = x.reshape((len(members), -1)).norm(axis=1).reshape((-1, 1, 1))
        x = mx.nd.broadcast_div(x, size + 1e-7)
        tall = rows > columns
        x = x.transpose((0, 2, 1)) if tall else x
        for _ in range(ITERATIONS):
            square = mx.nd.linalg.gemm2(x, x, transpose_b=True)
            x = mx.nd.linalg.gemm(mx.nd.linalg.gemm(square, square, square, alpha=c, beta=b), x, x, beta=a)
        x = (x.transpose((0, 2, 1)) if tall else x) * max(1.0, rows / columns) ** 0.5
        separated = x.split(len(members), axis=0) if len(members) > 1 else [x]
        orthogonal.update(zip(members, separated))
    return [orthogonal[number].reshape(direction.shape) for number, direction in enumerate(directions)]
