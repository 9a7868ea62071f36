"""The optimizers by which a device updates parameters, as many at once as there are in a long array."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from poc import config

if TYPE_CHECKING:
    from poc.config.run import Run
    from poc.frameworks.mxnet.flat_buffers import FlatBuffer

_AT_ONCE = 50  # arrays in one of MXNet's operators for several, which have room for 60
_TRUST = 0.001  # LARS's coefficient eta
_PRODUCTS = threading.Lock()


class SGD:
    """SGD with momentum of the parameters in a long array, on one device.

    MXNet's velocity has the learning rate in it. With momentum correction it follows when that changes (Goyal et al.
    2017, section 3.1, remark 3).
    """

    def __init__(self, run: Run, array: FlatBuffer, device: int) -> None:
        self._array = array
        self._values, self._gradients = array.values[device], array.gradients[device]
        self._velocity = mx.nd.zeros_like(self._values)
        self._decay = run.optimizer.weight_decay * array.decays
        self._momentum = run.optimizer.momentum
        self._scale = 1.0 / run.global_batch
        self._corrected = getattr(run.optimizer, "momentum_correction", False)
        self._previous: float | None = None
        """Learning rate of the last update."""

    def update(self, rate: float) -> None:
        """Enqueues one step at learning rate `rate` by the gradients, of the sum over all samples, that are there."""
        momentum = self._momentum
        if self._corrected and self._previous:
            momentum *= rate / self._previous
        self._previous = rate
        mx.nd.sgd_mom_update(
            self._values,
            self._gradients,
            self._velocity,
            out=self._values,
            lr=rate,
            wd=self._decay,
            momentum=momentum,
            rescale_grad=self._scale,
        )

    @property
    def held(self) -> list[Any]:
        """What an update changes."""
        return [self._values, self._velocity]

    def state(self) -> dict[str, np.ndarray]:
        """What `load_state` takes: the "momentum", and the "rate" before."""
        state = {"momentum": self._velocity.asnumpy()}
        return state if self._previous is None else {**state, "rate": np.array(self._previous)}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._previous = float(state["rate"]) if "rate" in state else None
        self._velocity[:] = state["momentum"]


class Nesterov(SGD):
    """SGD with Nesterov momentum.

    MXNet's operator decays the momentum by the weight that it has just written, but only where it writes in place,
    which hangs on how the weight lies in memory. So the decay is in the gradient here, and the operator adds none.
    """

    def update(self, rate: float) -> None:
        gradient = self._gradients * self._scale
        gradient = gradient + self._decay * self._values if self._decay else gradient
        mx.nd.nag_mom_update(
            self._values, gradient, self._velocity, out=self._values, lr=rate, momentum=self._momentum, wd=0.0
        )


class LARS(SGD):
    """It scales the rate of each weight by |weight| / |gradient| (You et al. 2017), not those of betas and gammas."""

    def __init__(self, run: Run, array: FlatBuffer, device: int) -> None:
        super().__init__(run, array, device)
        self._views = [array.views(flat) for flat in (self._values, self._gradients, self._velocity)]

    def update(self, rate: float) -> None:
        if self._array.dimensions == 1:
            super().update(rate)
            return
        values, gradients, velocities = self._views
        rates, decays = (mx.nd.full(len(values), number, ctx=values[0].context) for number in (rate, self._decay))
        squares = (mx.nd.multi_sum_sq(*views, num_arrays=len(views)) for views in (values, gradients))
        rates = mx.nd.multi_lars(rates, *squares, decays, eta=_TRUST, eps=0.0, rescale_grad=self._scale)
        for first in range(0, len(values), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            mx.nd.preloaded_multi_sgd_mom_update(
                *itertools.chain.from_iterable(zip(values[part], gradients[part], velocities[part])),
                rates[part],
                decays[part],
                out=values[part],
                num_weights=len(values[part]),
                momentum=self._momentum,
                rescale_grad=self._scale,
            )


class Muon(SGD):
    """SGD with Nesterov momentum whose direction for convolutions is orthogonalised (Jordan et al. 2024, "Muon").

    The momentum of a convolution, (out, in, height, width), is seen as a matrix (out, the rest) and brought near to the
    orthogonal one of the same singular vectors by five Newton-Schulz steps. Its rate is a share of the others'. Weight
    decay is added to the gradients of all others and, decoupled, to convolutions.
    """

    def __init__(self, run: Run, array: FlatBuffer, device: int) -> None:
        super().__init__(run, array, device)
        assert isinstance(run.optimizer, config.Muon)
        self._share = run.optimizer.lr / run.learning_rate
        self._unit = run.optimizer.unit_weights
        beside_others = run.kind == "cpu" and len(array.values) > 1
        self._orthogonalised = _orthogonalised_alone if beside_others else orthogonalised

    def update(self, rate: float) -> None:
        own, decay, values = rate * self._share, self._decay, self._values
        matrices = self._array.dimensions == 4
        gradient = self._gradients * self._scale
        if decay and not matrices:
            gradient = gradient + decay * values
        self._velocity[:] = self._momentum * self._velocity + gradient
        direction = gradient + self._momentum * self._velocity
        if matrices:
            direction = self._array.joined(map(self._orthogonalised, self._array.stacks(direction)))
            if self._unit:
                values = self._array.joined(map(_of_unit_rows, self._array.stacks(values)))
            self._values[:] = (1 - own * decay) * values - own * direction
        else:
            values[:] = values - rate * direction


def make(run: Run, array: FlatBuffer, device: int) -> SGD:
    """The optimizer of `run` for the parameters in a long array, on one device."""
    made: SGD = globals()[type(run.optimizer).__name__](run, array, device)
    return made


def _of_unit_rows(stack: Any) -> Any:
    """Convolutions of one shape, each scaled so that the mean square of its outputs' norms is one."""
    flat = stack.reshape((len(stack), -1))
    scale = stack.shape[1] ** 0.5 / (mx.nd.norm(flat, axis=1, keepdims=True) + 1e-7)
    return (flat * scale).reshape(stack.shape)


class _Orthogonalised(mx.gluon.HybridBlock):
    """What `orthogonalised` does for one shape, as one operator: its own take longer to issue than to do."""

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


@functools.cache
def _orthogonalising(shape: tuple[int, ...], context: Any) -> _Orthogonalised:
    """One for each device: the first call compiles it, which two devices' threads cannot do at once."""
    return _Orthogonalised(shape)


def orthogonalised(stack: Any) -> Any:
    """Convolutions of one shape, seen as matrices (out, the rest), with their singular values brought near to one.

    Scaled by the root of rows / columns where there are more rows, so that the step of an output does not depend on
    how many there are.
    """
    return _orthogonalising(stack.shape, stack.context)(stack)


def _orthogonalised_alone(stack: Any) -> Any:
    """The same, while no other device of this process multiplies matrices.

    MXNet's OpenBLAS hangs for ever where a second thread enters a product that is shared out to threads: its wait for
    the first one (blas_server_omp.c, without C11's atomics) was compiled to a loop without end.
    """
    stack.wait_to_read()
    with _PRODUCTS:
        made = orthogonalised(stack)
        made.wait_to_read()
    return made
