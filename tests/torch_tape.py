"""A count of the operators that PyTorch runs below autograd."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

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
