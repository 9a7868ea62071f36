"""Where parameters lie: side by side in a few long arrays, so that what is done to all of them takes few operators."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd

# Few enough to cost little each, several where a network is large, so that the first gradients are on their way while
# others are computed. The size is that of PyTorch's DistributedDataParallel (Li et al. 2020, "PyTorch Distributed").
_BYTES = 25 * 2**20
# Each parameter begins on 256 bytes, as CUDA's libraries want it; the rest is zeros.
_ALIGNED = 64


class FlatBuffer:
    """Parameters of one kind, those of one shape next to each other; the network's own arrays become views of it."""

    def __init__(self, parameters: list[Any]) -> None:
        self.parameters = sorted(parameters, key=lambda parameter: parameter.shape)
        first = parameters[0]
        self.dimensions = len(first.shape)
        self.decays = bool(first.wd_mult)
        self.values = [mx.nd.zeros(sum(map(_room, parameters)), ctx=context) for context in first.list_ctx()]
        """Of the parameters, an array a device."""
        self.gradients = [mx.nd.zeros_like(flat) for flat in self.values if first.grad_req != "null"]
        for parameter, *views in zip(self.parameters, *map(self.views, self.values)):
            for old, view in zip(parameter.list_data(), views):
                old.copyto(view)
            parameter._data = views
        for parameter, *views in zip(self.parameters, *map(self.views, self.gradients)):
            if views:
                parameter._grad = views
                autograd.mark_variables(parameter._data, views, parameter.grad_req)

    def views(self, flat: Any) -> list[Any]:
        """The parts of an array like this that belong to the parameters, in order, in their shapes."""
        starts = itertools.accumulate(map(_room, self.parameters), initial=0)
        return [
            flat[start : start + _size(parameter)].reshape(parameter.shape)
            for parameter, start in zip(self.parameters, starts)
        ]

    def stacks(self, flat: Any) -> Iterator[Any]:
        """What `views` gives, those of one shape together: (how many, *shape)."""
        start = 0
        for shape, alike in itertools.groupby(self.parameters, key=lambda parameter: parameter.shape):
            members = list(alike)
            room = _room(members[0])
            rows = flat[start : start + len(members) * room].reshape((len(members), room))
            yield rows.slice_axis(axis=1, begin=0, end=_size(members[0])).reshape((-1, *shape))
            start += len(members) * room

    def joined(self, stacks: Iterable[Any]) -> Any:
        """An array like this of what `stacks` gives."""
        rows = []
        for stack in stacks:
            values = stack.reshape((len(stack), -1))
            if rest := -values.shape[1] % _ALIGNED:
                values = mx.nd.concat(values, mx.nd.zeros((len(stack), rest), ctx=stack.context), dim=1)
            rows.append(values.reshape(-1))
        return mx.nd.concat(*rows, dim=0)

    def share(self, device: int = 0) -> None:
        """Gives all devices the values of one of them."""
        for other in self.values:
            if other is not self.values[device]:
                self.values[device].copyto(other)

    def average(self) -> None:
        """Gives all devices the mean of their values."""
        if len(self.values) > 1:
            first = self.values[0].context
            mean = mx.nd.add_n(*(flat.as_in_context(first) for flat in self.values)) / len(self.values)
            mean.copyto(self.values[0])
            self.share()


def flatten(parameters: list[Any]) -> list[FlatBuffer]:
    """Makes all `parameters` views of long arrays, those that differ in weight decay or dimensions apart.

    The last parameters come first, as the backward pass finds them.
    """
    kinds: dict[tuple[int, bool], list[Any]] = {}
    for parameter in reversed(parameters):
        kinds.setdefault((len(parameter.shape), bool(parameter.wd_mult)), []).append(parameter)
    arrays = []
    for rest in kinds.values():
        while rest:
            ends = np.cumsum([_room(parameter) for parameter in rest])
            count = max(1, int(np.searchsorted(ends, _BYTES / 4, side="right")))
            arrays.append(FlatBuffer(rest[:count]))
            rest = rest[count:]
    return arrays


def _size(parameter: Any) -> int:
    return int(np.prod(parameter.shape))


def _room(parameter: Any) -> int:
    return -(-_size(parameter) // _ALIGNED) * _ALIGNED
