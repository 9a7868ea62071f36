"""Run first by every Python process of a simulated machine: NVML is recorded, devices are the CPU's."""

import importlib.abc
import importlib.machinery
import importlib.metadata
import itertools
import os
import sys
import types
from typing import Any, Callable

_INSTALLED: dict[str, str] = {}


def _mxnet(mx: Any) -> None:
    from poc.host import nvml

    oldest = (3, 7) if "mxnet-cu102" in _INSTALLED else (5, 0)

    def gpu(number: int = 0) -> Any:
        card = nvml.visible_gpus()[number]
        if nvml.query("nvmlDeviceGetCudaComputeCapability", card) < oldest:
            raise mx.MXNetError(f"no kernel image is available for card {card}")
        return mx.cpu(number)

    mx.gpu = gpu
    mx.context.gpu_memory_info = lambda device: (14 * 2**30, 16 * 2**30)


def _torch(torch: Any) -> None:
    device = torch.device

    class Kind(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, device)

    class Device(metaclass=Kind):  # a class, since torch evaluates annotations such as `torch.device | None`
        def __new__(cls, *_: Any) -> Any:
            return device("cpu")

    torch.device = Device


def _session(session: Any) -> None:
    """Two samples a device in place of all, and little of an evaluation: what a GPU does in a second takes minutes."""
    session.fastest = lambda product, size: 1e12
    step, evaluate = session.Session.step, session.Session.evaluate

    def few(self: Any, batch: Any, *rate: float, **options: bool) -> None:
        run = self._run
        few = 2 * run.devices // run.workers
        step(self, batch if run.kind == "cpu" or run.emulated else batch.part(0, few), *rate, **options)

    session.Session.step = few
    session.Session.evaluate = lambda self, batches: evaluate(self, itertools.islice(batches, 1))


_CHANGES: dict[str, Callable[[Any], None]] = {
    "mxnet": _mxnet,
    "torch": _torch,
    "poc.frameworks.session": _session,
}


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

    from tests import fake_gpus

    sys.modules["pynvml"] = fake_gpus.library(name)  # type: ignore[assignment]
    _INSTALLED["mxnet-cu102" if name.endswith("CUDA 10.2") else "mxnet-cu112"] = "1.9.1"
    _INSTALLED["torch"] = "2.13.0" if fake_gpus.MACHINES[name][1] >= "580" else "2.10.0"
    sys.meta_path.insert(0, _Finder())
    version, distributions = importlib.metadata.version, importlib.metadata.distributions
    importlib.metadata.version = lambda package: _INSTALLED.get(package) or version(package)

    def fake_distributions(**options: Any) -> Any:
        package = options.get("name")
        if package in _INSTALLED:
            return [types.SimpleNamespace(version=_INSTALLED[package])]
        return distributions(**options)

    importlib.metadata.distributions = fake_distributions


if "POC_STAND_IN" in os.environ:
    _stand(os.environ["POC_STAND_IN"])
