"""What PyTorch's operators do below autograd: how many run, and a tape of them that stands in for a CUDA graph."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from poc.data import Batch

_LAUNCH_NOTHING = ("empty", "empty_like", "empty_strided", "detach", "_unsafe_view")


def _launches(operator: Any) -> bool:
    """Whether the operator would launch a kernel on a card: all but views and allocations."""
    namespace, _, name = operator._schema.name.partition("::")
    return namespace == "aten" and not operator.is_view and name not in _LAUNCH_NOTHING


class Operators(TorchDispatchMode):
    """Counts the operators that would launch kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if _launches(operator):
            self.counts[operator._schema.name] += 1
        return operator(*arguments, **(named or {}))


def of_a_step(session: Any, first: Batch, second: Batch) -> tuple[Operators, Operators]:
    """Return the operators of the passes and of the update of an eager step by `second`, after one by `first`."""
    session.step(first, 0.01)
    placed = session.place(second)
    with Operators() as computed:
        session.forward_backward(session._micro_batches(placed))
    with Operators() as updated:
        session.apply_update(0.01)
    return computed, updated


class Tape(TorchDispatchMode):
    """A CUDA graph's part on a CPU: each replay runs the recorded operators on the same memory, and no Python.

    As in a graph, numbers stay what they were, and nothing can be fetched.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def record(self, work: Callable[[], None]) -> None:
        with self:
            work()

    @torch.no_grad()
    def replay(self) -> None:
        assert self._calls
        for operator, arguments, named, results in self._calls:
            for there, new in zip(tree_leaves(results), tree_leaves(operator(*arguments, **named))):
                if isinstance(there, torch.Tensor) and there.data_ptr() != new.data_ptr():
                    there.copy_(new)

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = named or {}
        assert operator._schema.name != "aten::_local_scalar_dense", "a value is fetched"
        results = operator(*arguments, **named)
        if _launches(operator):
            self._calls.append((operator, arguments, named, results))
        return results
