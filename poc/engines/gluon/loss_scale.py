"""The loss scale of float16 on MXNet's devices, where nothing is fetched to follow it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np

from poc.engines import loss_scale


class LossScale:
    """One scale, the same on all devices, each of which has a copy; steps that overflow are skipped on all alike."""

    def __init__(self, contexts: list[Any]) -> None:
        self.by_device = [mx.nd.full(1, loss_scale.START, ctx=context) for context in contexts]
        self._finite = [mx.nd.ones(1, ctx=context) for context in contexts]
        """Whether the gradients of the last step were, 1 or 0."""
        self._good = mx.nd.zeros(1, ctx=contexts[0])

    def unscale(self, gradients: list[Any]) -> None:
        """Divides `gradients`, all of a step, by the scale, and sets it for the next step."""
        first, finite = self.by_device[0].context, self._finite[0]
        finite[:] = 1
        scales = {scale.context: scale for scale in self.by_device}
        for gradient in gradients:
            finite *= mx.nd.all_finite(gradient).as_in_context(first)
            gradient[:] = mx.nd.broadcast_div(gradient, scales[gradient.context])
        scale, good = loss_scale.following(self.by_device[0], self._good, finite)
        self._set(scale, good)
        for copy in self._finite[1:]:
            finite.copyto(copy)

    def _set(self, scale: Any, good: Any) -> None:
        good.copyto(self._good)
        for copy in self.by_device:
            scale.copyto(copy)

    @contextlib.contextmanager
    def skipping(self, held: list[Any]) -> Iterator[None]:
        """Undoes what the block does to the arrays `held`, of one device, where the gradients were not finite."""
        before = [array.copy() for array in held]
        yield
        finite = next(flag for flag in self._finite if flag.context == held[0].context)
        for array, old in zip(held, before):
            array[:] = mx.nd.where(finite.broadcast_to(array.shape), array, old)

    def state(self) -> np.ndarray:
        """The scale and the good steps, (2,), for a checkpoint."""
        return np.array([self.by_device[0].asscalar(), self._good.asscalar()])

    def load_state(self, state: np.ndarray) -> None:
        """Takes over what `state` gave."""
        self._set(*(mx.nd.array([number], ctx=self._good.context) for number in state))
