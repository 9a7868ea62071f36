import ctypes
import dataclasses
import gc
import json
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

import poc  # noqa: F401  # before a test imports cv2, which then reads poc's limit on the size of images
from poc.values import UserError

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
# OpenMP reads these once, at a framework's import. Test processes share the cores, so a waiting thread yields its core.
# Not by setdefault: a test process inherits what pytest's first process, which runs no test, has set here for itself.
os.environ["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // WORKERS))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The results of runs in processes of their own must not depend on the machine's load.
os.environ["POC_THREADS"] = os.environ["OMP_NUM_THREADS"]
# MXNet caches operators and workspaces by shape, 100 MB in the course of the tests: test processes have smaller caches.
# Not by os.environ, from which runs would inherit these variables and record them.
for _name, _number in {b"MXNET_MKLDNN_CACHE_NUM": b"8", b"MXNET_CPU_TEMP_COPY": b"1"}.items():
    ctypes.CDLL(None).setenv(_name, _number, 1)
# Set before poc.frameworks is imported: there is a framework for tests, too.
os.environ["POC_FRAMEWORKS"] = str(Path(__file__).parent / "frameworks")
settings.register_profile("here", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("here")


_kept = psutil.Process().memory_info().rss  # after memory was last given back: many tests leave a little each


def give_memory_back() -> None:
    """Return freed memory to the system, which the C library would keep: MXNet's networks refer to themselves."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(autouse=True)
def memory_is_given_back() -> Iterator[None]:
    yield
    global _kept
    if psutil.Process().memory_info().rss - _kept > 16 << 20:  # it takes a tenth of a second
        give_memory_back()
        _kept = psutil.Process().memory_info().rss


@pytest.fixture
def pytorch_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan as if PyTorch were installed."""
    monkeypatch.setattr("poc.frameworks.pytorch.versions", lambda name: {"torch": "2.13.0", "torchvision": "0.28.0"})


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Return a function that runs a command, and returns what it prints; as an object if that is JSON."""
    from poc.cli import main

    def run(*arguments: str) -> Any:
        assert main(arguments) == 0
        text = capsys.readouterr().out
        return json.loads(text) if "--json" in arguments else text

    return run


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that makes this machine the one of that name, with or without the builds for it."""
    from poc import frameworks
    from poc.host import hardware
    from tests import fake_gpus, test_host

    def simulated(name: str, installed: bool = True) -> hardware.Hardware:
        test_host.use(fake_gpus.library(name), monkeypatch)
        machine = hardware.detect()
        wanted = frameworks.wanted(machine) if installed else {}
        packages = {framework: {build.package: build.version} for framework, build in wanted.items()}
        monkeypatch.setattr(frameworks, "versions", lambda framework: packages.get(framework, {}))
        return dataclasses.replace(machine, memory_bytes=2**40)

    return simulated


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with what takes much memory, while test processes are small, then with the long tests, so that none of
    these is left alone at the end."""
    items.sort(key=lambda item: not {"slow", "faults"} & {mark.name for mark in item.iter_markers()})
    items.sort(key=lambda item: item.get_closest_marker("large") is None)


def pytest_collection_finish() -> None:
    """Leave modules and test items out of later garbage collections."""
    gc.collect()
    gc.freeze()


def _needs(module: str, name: str, option: str) -> pytest.MarkDecorator:
    reason = f"{name} is not installed: ./make_environment.sh {option}"
    return pytest.mark.skipif(find_spec(module) is None, reason=reason)


needs_torch = _needs("torch", "PyTorch", "--torch")
needs_horovod = _needs("horovod", "Horovod", "--horovod")
needs_ray = _needs("ray", "Ray", "--ray")


def of_torch(test: Any) -> Any:
    """Mark a test that needs PyTorch and takes seconds."""
    return pytest.mark.slow(needs_torch(test))


def refused(pattern: str) -> Any:
    """Expect a UserError of one line that matches."""
    return pytest.raises(UserError, match=pattern, check=lambda error: "\n" not in str(error))
