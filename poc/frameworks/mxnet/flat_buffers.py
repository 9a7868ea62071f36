"""Parameters flattened into a few contiguous buffers, so that an update or all-reduce calls few operators."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd

# Few enough to cost little each, several for a large network, so that the first gradients are sent while others are
# computed. The size is that of PyTorch's DistributedDataParallel (Li et al. 2020, "PyTorch Distributed").
_BYTES = 25 * 2**20
# Of buffers with owners: each device is to have a share, since what one of them alone receives, updates and sends takes
# longest. With eight devices a buffer takes the host 0.35 ms per step, in which PCIe 3 carries 7 x 0.5 MB.
_LEAST_BYTES = 2**19
# Each parameter begins on 256 bytes, as CUDA's libraries want it; the rest is zeros.
_ALIGNED = 64


class FlatBuffer:
    """Parameters of one kind, those of one shape next to each other; the network's own arrays become views of it."""

    def __init__(self, parameters: list[Any]) -> None:
        self.parameters = sorted(parameters, key=lambda parameter: parameter.shape)
        first = parameters[0]
        self.dimensions = len(first.shape)
        self.decays = bool(first.wd_mult)
        self.values = [mx.nd.zeros(sum(map(_padded_size, parameters)), ctx=context) for context in first.list_ctx()]
        """The parameters, an array per device."""
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
        """Return views of a flat array, one per parameter in order, in their shapes."""
        starts = itertools.accumulate(map(_padded_size, self.parameters), initial=0)
        return [flat[start : start + _size(each)].reshape(each.shape) for each, start in zip(self.parameters, starts)]

    def stacks(self, flat: Any) -> Iterator[Any]:
        """Yield the parameters in a flat array, those of one shape stacked: (count, *shape)."""
        start = 0
        for shape, group in itertools.groupby(self.parameters, key=lambda parameter: parameter.shape):
            members = list(group)
            room = _padded_size(members[0])
            rows = flat[start : start + len(members) * room].reshape((len(members), room))
            yield rows.slice_axis(axis=1, begin=0, end=_size(members[0])).reshape((-1, *shape))
            start += len(members) * room

    def joined(self, stacks: Iterable[Any]) -> Any:
        """Return a flat array of what `stacks` yields."""
        rows = []
        for stack in stacks:
            values = stack.reshape((len(stack), -1))
            if padding := -values.shape[1] % _ALIGNED:
                values = mx.nd.concat(values, mx.nd.zeros((len(stack), padding), ctx=stack.context), dim=1)
            rows.append(values.reshape(-1))
        return mx.nd.concat(*rows, dim=0)

    def broadcast(self, device: int = 0) -> None:
        """Give all devices the values of one of them."""
        for number, values in enumerate(self.values):
            if number != device:
                self.values[device].copyto(values)

    def average(self) -> None:
        """Give all devices the mean of their values."""
        if len(self.values) > 1:
            first = self.values[0].context
            mean = mx.nd.add_n(*(flat.as_in_context(first) for flat in self.values)) / len(self.values)
            mean.copyto(self.values[0])
            self.broadcast()


def flatten(parameters: list[Any], owners: int = 1) -> list[FlatBuffer]:
    """Make all `parameters` views of flat buffers, one kind of weight decay and number of dimensions in each.

    The last parameters come first, in the order of the backward pass. There are enough for so many `owners`.
    """
    share = 4 * sum(map(_padded_size, parameters)) // owners
    limit = _BYTES if owners == 1 else min(_BYTES, max(_LEAST_BYTES, share))
    kinds: dict[tuple[int, bool], list[Any]] = {}
    for parameter in reversed(parameters):
        kinds.setdefault((len(parameter.shape), bool(parameter.wd_mult)), []).append(parameter)
    buffers = []
    for remaining in kinds.values():
        while remaining:
            ends = np.cumsum([_padded_size(parameter) for parameter in remaining])
            count = max(1, int(np.searchsorted(ends, limit / 4, side="right")))
            buffers.append(FlatBuffer(remaining[:count]))
            remaining = remaining[count:]
    return buffers


def share_out(buffers: Sequence[FlatBuffer], devices: int) -> list[int]:
    """Return an owner for each buffer: the largest first, each goes to the device that has the fewest bytes so far.

    So does MXNet's kvstore with the devices that add them up, so that sums are mostly where they are needed.
    """
    sizes, owners = [0] * devices, dict[int, int]()
    for number in sorted(range(len(buffers)), key=lambda number: -buffers[number].values[0].size):
        owners[number] = sizes.index(min(sizes))
        sizes[owners[number]] += buffers[number].values[0].size
    return [owners[number] for number in range(len(buffers))]


def _size(parameter: Any) -> int:
    return int(np.prod(parameter.shape))


def _padded_size(parameter: Any) -> int:
    return -(-_size(parameter) // _ALIGNED) * _ALIGNED
