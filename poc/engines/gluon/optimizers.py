"""The optimizers by which every device, or a server, updates parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx

if TYPE_CHECKING:
    from poc.plan import Run

# Coefficients of the quintic iteration of Jordan et al. 2024, "Muon", which brings singular values near to one.
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


def make(run: Run) -> mx.optimizer.Optimizer:
    """The optimizer of `run`, at its full learning rate."""
    common = {"learning_rate": run.learning_rate, "momentum": run.momentum, "wd": run.weight_decay}
    if run.optimizer == "nesterov":
        return mx.optimizer.NAG(**common)
    if run.optimizer == "lars":
        # It scales the rate of each weight by |weight| / |gradient| (You et al. 2017), not those of betas and gammas.
        return mx.optimizer.LARS(**common, momentum_correction=False)
    if run.optimizer == "muon":
        assert run.muon_rate is not None
        return Muon(share=run.muon_rate / run.learning_rate, **common)
    return CorrectedSGD(**common) if run.momentum_correction else mx.optimizer.SGD(**common)


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

    def create_state(self, index: int, weight: Any) -> Any:
        """The momentum, in the weight's shape."""
        return mx.nd.zeros(weight.shape, weight.context, dtype=weight.dtype)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """One step of one parameter (or of each of several, in lists)."""
        if isinstance(index, (list, tuple)):
            for each in zip(index, weight, grad, state):
                self.update(*each)
            return
        self._update_count(index)
        rate, decay = self._get_lr(index), self._get_wd(index)
        gradient = grad * self.rescale_grad
        matrix = len(weight.shape) == 4
        if not matrix:
            gradient = gradient + decay * weight
        state[:] = self._momentum * state + gradient
        direction = gradient + self._momentum * state
        if matrix:
            rate *= self._share
            direction = orthogonalised(direction) + decay * weight
        weight[:] = weight - rate * direction


def orthogonalised(direction: Any) -> Any:
    """The matrix (out, the rest) of a convolution with its singular values brought near to one, in its shape.

    Scaled by the root of rows / columns where there are more rows, so that the step of an output does not depend on
    how many there are.
    """
    rows = direction.shape[0]
    matrix = direction.reshape((rows, -1))
    columns = matrix.shape[1]
    tall = rows > columns
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    a, b, c = _NEWTON_SCHULZ
    for _ in range(_ITERATIONS):
        square = mx.nd.dot(x, x, transpose_b=True)
        x = a * x + mx.nd.dot(b * square + c * mx.nd.dot(square, square), x)
    x = x.T if tall else x
    return (x * max(1.0, rows / columns) ** 0.5).reshape(direction.shape)
