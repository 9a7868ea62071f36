"""What only some tests need. Without it they are skipped, and the reason says how to get it."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec

import pytest


def _needs(module: str, name: str, option: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        find_spec(module) is None, reason=f"{name} is not installed: ./make_environment.sh {option}"
    )


needs_torch = _needs("torch", "PyTorch", "--torch (Python 3.10 or later)")
needs_horovod = _needs("horovod", "Horovod", "--horovod")
needs_ray = _needs("ray", "Ray", "--ray (Python 3.10 or later)")
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed: sudo apt-get install g++")
newer_python = pytest.mark.skipif(
    sys.version_info < (3, 10), reason="PyTorch needs Python 3.10 or later: PYTHON=python3.11"
)
