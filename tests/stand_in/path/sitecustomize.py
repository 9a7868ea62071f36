"""Run first by every Python process of a stand-in machine: NVML says what was recorded, devices are the CPU's."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import sys
from typing import Any, Callable

_INSTALLED = {"mxnet-cu112": "1.9.1", "mxnet-cu102": "1.9.1", "torch": "2.13.0"}


def _mxnet(mx: Any) -> None:
    mx.gpu = mx.cpu
    create = mx.kv.create
    mx.kv.create = lambda name="local": create("device" if name == "nccl" else name)


def _torch(torch: Any) -> None:
    if "POC_CARD" in os.environ:
        from tests.stand_in import card

        return card.take_place()
    device = torch.device
    torch.device = lambda kind, *number: device("cpu")


def _session(session: Any) -> None:
    session.fastest = lambda product, size: 1e12  # a GPU's product takes a CPU minutes


_CHANGES: dict[str, Callable[[Any], None]] = {"mxnet": _mxnet, "torch": _torch, "poc.engines.session": _session}


class _Finder(importlib.abc.MetaPathFinder):
    """Changes a module right after it was imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        change = _CHANGES.get(name)
        spec = change and importlib.machinery.PathFinder.find_spec(name, path)
        if change and spec and spec.loader:
            execute = spec.loader.exec_module

            def changed(module: Any) -> None:
                execute(module)
                change(module)

            spec.loader.exec_module = changed  # type: ignore[method-assign]
        return spec or None


def _stand(name: str) -> None:
    import pynvml  # noqa: F401  # the recorded one answers with its constants

    from tests import stand_in

    sys.modules["pynvml"] = stand_in.library(name)  # type: ignore[assignment]
    sys.meta_path.insert(0, _Finder())
    version = importlib.metadata.version
    importlib.metadata.version = lambda package: _INSTALLED.get(package) or version(package)


if "POC_STAND_IN" in os.environ:
    _stand(os.environ["POC_STAND_IN"])
