"""Optimizers of MXNet, named as in `poc.config`; each updates all parameters of a flat buffer together."""

import functools
import itertools
from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np

from poc import config
from poc.config.run import Run
from poc.frameworks.mxnet.flat_buffers import FlatBuffer

_ARRAYS_PER_CALL = 50  # MXNet's operators for several arrays have room for 60
_TRUST = 0.001  # LARS's coefficient eta


class Optimizer:
    """Updates the parameters of a flat buffer on one device."""

    arrays: tuple[str, ...] = ("momentum",)
    """Names of the arrays on the device that `step` changes, which a checkpoint contains."""

    def __init__(self, run: Run, buffer: FlatBuffer, device: int) -> None:
        self._run, self._buffer = run, buffer
        self._options: Any = run.optimizer
        self._values, self._gradients = buffer.values[device], buffer.gradients[device]
        self._decay = run.optimizer.weight_decay * buffer.decays
        self._scale = 1.0 / run.global_batch
        likes = {name: self._values[:1] if name.endswith("of_ones") else self._values for name in self.arrays}
        self._state: dict[str, Any] = {name: mx.nd.zeros_like(like) for name, like in likes.items()}
        self._previous_rate = 0.0

    def update(self, rate: float) -> None:
        """Enqueue one step at learning rate `rate` by the gradients of the loss summed over all samples."""
        raise NotImplementedError

    def step(self, rate: float, finite: Any = None) -> None:
        """Enqueue `update`; undo it on the device if `finite`, an array of one value, is 0."""
        changed = [self._values, *self._state.values()]
        before = [array.copy() for array in changed] if finite is not None else []
        self.update(rate)
        self._previous_rate = rate
        for array, old in zip(changed, before):
            array[:] = mx.nd.where(finite.as_in_context(array.context).broadcast_to(array.shape), array, old)

    def state(self) -> dict[str, np.ndarray]:
        """Return what `load_state` restores."""
        arrays = {name: array.asnumpy() for name, array in self._state.items()}
        return {**arrays, "rate": np.array(self._previous_rate)}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._previous_rate = float(state["rate"])
        for name, array in self._state.items():
            array[:] = state[name]


class SGD(Optimizer):
    """SGD with momentum, by MXNet's operator, whose velocity contains the learning rate.

    With momentum correction the velocity is scaled when the rate changes (Goyal et al. 2017, section 3.1, remark 3).
    """

    def step(self, rate: float, finite: Any = None) -> None:
        if finite is not None and (correction := self._correction(rate)) != 1:
            self._state["momentum"] *= correction  # which stays if the step is undone
            self._previous_rate = rate
        super().step(rate, finite)

    def _correction(self, rate: float) -> float:
        """Return the factor of the velocity at a learning rate after the previous one."""
        corrects = getattr(self._options, "momentum_correction", False) and self._previous_rate
        return rate / self._previous_rate if corrects else 1.0

    def update(self, rate: float) -> None:
        momentum = self._options.momentum * self._correction(rate)
        options = {"lr": rate, "wd": self._decay, "momentum": momentum, "rescale_grad": self._scale}
        mx.nd.sgd_mom_update(self._values, self._gradients, self._state["momentum"], out=self._values, **options)


class Nesterov(Optimizer):
    """SGD with Nesterov momentum.

    MXNet's operator decays the momentum by the weight that it has just written, but only where it writes in place,
    which depends on the weight's layout in memory. So the decay is in the gradient here, and the operator adds none.
    """

    def update(self, rate: float) -> None:
        gradient = self._gradients * self._scale
        gradient = gradient + self._decay * self._values if self._decay else gradient
        options = {"lr": rate, "wd": 0.0, "momentum": self._options.momentum}
        mx.nd.nag_mom_update(self._values, gradient, self._state["momentum"], out=self._values, **options)


class LARS(SGD):
    """SGD whose rate for each weight is scaled by |weight| / |gradient| (You et al. 2017), not for betas and gammas."""

    @functools.cached_property
    def _views(self) -> list[list[Any]]:
        return [self._buffer.views(flat) for flat in (self._values, self._gradients, self._state["momentum"])]

    def update(self, rate: float) -> None:
        if self._buffer.dimensions == 1:
            super().update(rate)
            return
        values, gradients, velocities = self._views
        rates, decays = (mx.nd.full(len(values), number, ctx=values[0].context) for number in (rate, self._decay))
        squares = (mx.nd.multi_sum_sq(*views, num_arrays=len(views)) for views in (values, gradients))
        rates = mx.nd.multi_lars(rates, *squares, decays, eta=_TRUST, eps=0.0, rescale_grad=self._scale)
        options = {"momentum": self._options.momentum, "rescale_grad": self._scale}
        for first in range(0, len(values), _ARRAYS_PER_CALL):
            part = slice(first, first + _ARRAYS_PER_CALL)
            arrays = itertools.chain(*zip(values[part], gradients[part], velocities[part]), (rates[part], decays[part]))
            count = len(values[part])
            mx.nd.preloaded_multi_sgd_mom_update(*arrays, out=values[part], num_weights=count, **options)


class Muon(Optimizer):
    """SGD with Nesterov momentum whose direction for convolutions is orthogonalised (Jordan et al. 2024, "Muon").

    The momentum of a convolution, (out, in, height, width), is seen as a matrix (out, the rest), and five Newton-Schulz
    iterations bring it near to the orthogonal matrix of the same singular vectors. Convolutions have a learning rate of
    their own, a multiple of the others'; in a range test, which varies the others', it stays. Weight decay is decoupled
    for them, and a part of the gradient for the others.
    """

    def update(self, rate: float) -> None:
        decay, values, momentum, velocity = self._decay, self._values, self._options.momentum, self._state["momentum"]
        are_matrices = self._buffer.dimensions == 4
        gradient = self._gradients * self._scale
        if decay and not are_matrices:
            gradient = gradient + decay * values
        velocity[:] = momentum * velocity + gradient
        direction = gradient + momentum * velocity
        if not are_matrices:
            values[:] = values - rate * direction
            return
        rate = self._options.lr if self._run.is_range_test else rate * self._options.lr / self._run.learning_rate
        direction = self._buffer.joined(map(orthogonalised, self._buffer.stacks(direction)))
        if self._options.unit_weights:
            values = self._buffer.joined(map(_with_unit_rows, self._buffer.stacks(values)))
        self._values[:] = (1 - rate * decay) * values - rate * direction


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    The bias corrections, 1 - beta^steps, are means of ones as the others are of gradients, and like these on the
    device, where a step that overflows is undone.
    """

    arrays = ("mean", "square", "mean_of_ones", "square_of_ones")

    def update(self, rate: float) -> None:
        gradient = self._gradients * self._scale
        for name, values in zip(self.arrays, (gradient, gradient.square(), 1.0, 1.0)):
            beta = self._options.beta1 if name.startswith("mean") else self._options.beta2
            self._state[name][:] = beta * self._state[name] + (1 - beta) * values
        mean = mx.nd.broadcast_div(self._state["mean"], self._state["mean_of_ones"])
        square = mx.nd.broadcast_div(self._state["square"], self._state["square_of_ones"])
        step = mean / (square.sqrt() + self._options.epsilon)
        self._values[:] = (1 - rate * self._decay) * self._values - rate * step


def _with_unit_rows(stack: Any) -> Any:
    """Scale convolutions of one shape so that the mean square of their outputs' norms is one."""
    flat = stack.reshape((len(stack), -1))
    scale = stack.shape[1] ** 0.5 / (mx.nd.norm(flat, axis=1, keepdims=True) + 1e-7)
    return (flat * scale).reshape(stack.shape)


class _NewtonSchulz(mx.gluon.HybridBlock):
    """`orthogonalised` for convolutions of one shape, as one operator: issuing its own takes longer than they do."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self._rows, self._columns = shape[1], int(np.prod(shape[2:]))
        self.hybridize()

    def hybrid_forward(self, F: Any, stack: Any) -> Any:  # noqa: N803
        a, b, c = config.Muon.coefficients
        x = F.reshape(stack, (-1, self._rows, self._columns))
        size = F.reshape(F.norm(F.reshape(x, (0, -1)), axis=1), (-1, 1, 1))
        x = F.broadcast_div(x, size + 1e-7)
        tall = self._rows > self._columns
        x = F.transpose(x, (0, 2, 1)) if tall else x
        for _ in range(config.Muon.iterations):
            square = F.linalg.gemm2(x, x, transpose_b=True)
            x = F.linalg.gemm(F.linalg.gemm(square, square, square, alpha=c, beta=b), x, x, beta=a)
        x = (F.transpose(x, (0, 2, 1)) if tall else x) * max(1.0, self._rows / self._columns) ** 0.5
        return F.reshape_like(x, stack)


# One operator per device: the first call compiles it, which two devices' threads cannot do at once.
_newton_schulz = functools.cache(lambda shape, context: _NewtonSchulz(shape))


def orthogonalised(stack: Any) -> Any:
    """Bring the singular values of convolutions of one shape, seen as matrices (out, the rest), near to one.

    A matrix with more rows than columns is scaled by the root of rows / columns: no output's step depends on them.
    """
    return _newton_schulz(stack.shape, stack.context)(stack)
