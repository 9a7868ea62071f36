"""Marks of tests that need an extra. The reason for skipping says how to install it."""

from importlib.util import find_spec
from typing import Any

import pytest


def _needs(module: str, name: str, option: str) -> pytest.MarkDecorator:
    reason = f"{name} is not installed: ./make_environment.sh {option}"
    return pytest.mark.skipif(find_spec(module) is None, reason=reason)


needs_torch = _needs("torch", "PyTorch", "--torch")
needs_horovod = _needs("horovod", "Horovod", "--horovod")
needs_ray = _needs("ray", "Ray", "--ray")


def of_torch(test: Any) -> Any:
    """Mark a test that needs PyTorch and takes seconds."""
    return pytest.mark.slow(needs_torch(test))
