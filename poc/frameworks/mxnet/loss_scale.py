"""The loss scale of float16 on MXNet's devices, where nothing is fetched to follow it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np

from poc.frameworks import loss_scale


class LossScale:
    """One scale for the gradients of all devices, which lies on `context`; a step that overflows is skipped on all."""

    def __init__(self, context: Any) -> None:
        self._scale = mx.nd.full(1, loss_scale.START, ctx=context)
        self._good, self._finite = mx.nd.zeros(1, ctx=context), mx.nd.ones(1, ctx=context)
        """Steps since the scale changed; whether the gradients of the last step were finite, 1 or 0."""

    def on(self, context: Any) -> Any:
        """The scale, (1,), on a device."""
        return self._scale.as_in_context(context)

    def unscale(self, gradients: list[Any]) -> None:
        """Divides `gradients`, all of a step, by the scale, and sets it for the next step."""
        scales = {context: self.on(context) for context in {gradient.context for gradient in gradients}}
        finite = mx.nd.ones_like(self._scale)
        for gradient in gradients:
            finite = finite * mx.nd.all_finite(gradient).as_in_context(finite.context)
            gradient[:] = mx.nd.broadcast_div(gradient, scales[gradient.context])
        self._finite = finite
        self._scale, self._good = loss_scale.following(self._scale, self._good, finite)

    @contextlib.contextmanager
    def skipping(self, held: list[Any]) -> Iterator[None]:
        """Undoes what the block does to the arrays `held`, of one device, where the gradients were not finite."""
        before = [array.copy() for array in held]
        yield
        finite = self._finite.as_in_context(held[0].context)
        for array, old in zip(held, before):
            array[:] = mx.nd.where(finite.broadcast_to(array.shape), array, old)

    def state(self) -> np.ndarray:
        """The scale and the good steps, (2,), for a checkpoint."""
        return np.array([self._scale.asscalar(), self._good.asscalar()])

    def load_state(self, state: np.ndarray) -> None:
        self._scale, self._good = (mx.nd.array([number], ctx=self._scale.context) for number in state)
