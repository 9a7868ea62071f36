"""A torch that the user's Python has: a small fake one in a real environment, asked by the real probe."""

import json
import re
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from poc import frameworks
from poc.__main__ import main
from poc.frameworks import builds
from poc.frameworks.pytorch import probe
from tests.launch import HOME

TORCH = """
import sys
from types import SimpleNamespace
if {broken}:
    raise ImportError("libcudart.so.13: cannot open shared object file")
version = SimpleNamespace(cuda={cuda!r})
cuda = SimpleNamespace(is_available=lambda: {works}, get_arch_list=lambda: {code!r})
"""

FakePython = Callable[..., str]


@pytest.fixture
def fake_python(tmp_path: Path) -> FakePython:
    """Return a function that makes a Python with a fake torch, and returns its path."""

    def make(version: str = "2.12.1", *, without: str = "", **facts: Any) -> str:
        venv.create(tmp_path / "python", with_pip=False)
        (packages,) = (tmp_path / "python").glob("lib/python3*/site-packages")
        text = TORCH.format(**{"broken": False, "cuda": "13.0", "works": True, "code": ["sm_80", "sm_90a"], **facts})
        for name, module in (("torch", text), ("torchvision", "")):
            if name != without:
                (packages / name).mkdir()
                (packages / name / "__init__.py").write_text(module)
                metadata = packages / f"{name}-{version}.dist-info/METADATA"
                metadata.parent.mkdir()
                metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        return str(tmp_path / "python/bin/python")

    return make


@pytest.fixture
def environment(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that starts `poc environment`, and returns the exit code, the output and the messages."""

    def ask(*words: str, named: str) -> tuple[int, str, str]:
        monkeypatch.setattr(builds, "named_python", lambda: named)
        return main(["environment", *words]), *capsys.readouterr()

    return ask


@pytest.mark.parametrize(
    ("name", "facts", "reason"),
    [
        ("1 H100", {}, ""),
        ("1 H100", {"version": "2.10.0a0+145a3a7bda.nv25.10"}, ""),
        ("8 A100", {"code": ["sm_80", "compute_90"]}, ""),
        ("4 A10G", {"code": ["sm_75", "sm_80"]}, ""),  # 8.6 runs the code of 8.0
        ("no driver", {"works": False, "code": [], "cuda": None}, ""),
        ("1 H100", {"version": "2.9.1"}, "2.9.1"),
        ("1 H100", {"version": "2.100.0"}, "2.100.0"),
        ("1 H100", {"code": ["sm_80", "compute_90"]}, "compute capability 9.0"),
        ("4 V100", {}, "compute capability 7.0"),
        ("1 H100", {"works": False}, "for CUDA 13.0"),
        ("1 H100", {"works": False, "cuda": None}, "for CPUs"),
        ("1 H100", {"broken": True}, "libcudart.so.13"),
        ("1 H100", {"without": "torchvision"}, "torchvision"),
    ],
)
def test_a_torch_is_used_if_release_and_machine_code_fit(
    name: str, facts: dict[str, Any], reason: str, fake_python: FakePython, simulate: Any, environment: Any
) -> None:
    python, simulated = fake_python(**facts), simulate(name, installed=False)
    found = builds.find_installed("pytorch", python, simulated)
    assert isinstance(found, str) == bool(reason)
    assert reason in str(found)
    # The same for make_environment.sh. One that does not fit is a line, and the published build is installed.
    status, output, messages = environment("--framework", "pytorch", named=python)
    assert (status, output == ".venv-pytorch installed\n") == (0, not reason)
    assert ("requirements/torch-c" in output) == bool(reason)
    refusals = [line for line in messages.splitlines() if "is not used" in line and reason in line]
    assert refusals == ([f"pytorch: the installed version is not used: {found}"] if reason else [])
    # Without downloads an extra is not installed, either.
    status, output, _ = environment("--framework", "pytorch", "--installed", "--ray", named=python)
    assert (status, output) == ((2, "") if reason else (0, ".venv-pytorch installed\n"))


def test_without_a_torch_the_published_build_is_installed_silently(
    fake_python: FakePython, simulate: Any, environment: Any
) -> None:
    simulate("1 H100", installed=False)
    for named in (fake_python(without="torch"), ""):
        status, output, messages = environment(named=named)
        assert (status, "is not used" in messages) == (0, False)
        assert ".venv-pytorch requirements/torch-cu13.txt" in output


@pytest.mark.parametrize("release", ["2.11.0", "2.13.0"])  # the second one is pinned, too
def test_a_linked_environment_is_planned_with_its_own_release(
    release: str,
    fake_python: FakePython,
    simulate: Any,
    environment: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """As make_environment.sh leaves it: an environment of this project that lists the folders of the user's Python."""
    versions = frameworks.versions.__wrapped__
    python, simulated = fake_python(release), simulate("1 H100", installed=False)
    own = tmp_path / "own"
    venv.create(own, with_pip=False)
    (packages,) = own.glob("lib/python3*/site-packages")
    (theirs,) = Path(python).parents[1].glob("lib/python3*/site-packages")
    (packages / builds.LINK).write_text(f"{theirs}\n")
    monkeypatch.setattr(frameworks, "environment", lambda name: own if name == "pytorch" else tmp_path / "none")
    monkeypatch.setattr(frameworks, "versions", versions)
    assert frameworks.interpreter("pytorch") == str(own / "bin/python")
    assert versions("pytorch") == {"torch": release, "torchvision": release}
    assert frameworks.usable("pytorch", simulated) == list(simulated.gpus)
    assert frameworks.unsupported("pytorch", simulated.gpus[0], simulated) is None
    build = builds.choose(frameworks.available("pytorch", simulated), simulated)
    assert (str(build), build and build.code) == (f"torch {release}", ((8, 0), (9, 0)))
    # The next start of make_environment.sh keeps the link.
    assert environment("--framework", "pytorch", named=python)[:2] == (0, "own installed\n")


def test_another_release_in_the_environment_of_a_pinned_one_is_not_replaced_by_a_link(
    fake_python: FakePython, simulate: Any, environment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions, own = frameworks.versions.__wrapped__, Path(fake_python()).parents[1]
    simulate("1 H100", installed=False)
    monkeypatch.setattr(frameworks, "environment", lambda name: own)
    monkeypatch.setattr(frameworks, "versions", versions)
    status, output, _ = environment("--framework", "pytorch", named="")
    lists = [f"{own.name} requirements/{name}.txt" for name in ("torch", "torch-cu13")]
    assert (status, output.splitlines()) == (0, lists)


def test_workers_do_not_find_another_cudnn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packages, other, older, plain = (tmp_path / name for name in ("packages", "other", "older", "plain"))
    own = packages / "nvidia/cudnn/lib"
    libraries = {own: "libcudnn.so.9", other: "libcudnn.so.9", older: "libcudnn.so.8", plain: "libx.so"}
    for folder, library in libraries.items():
        folder.mkdir(parents=True)
        (folder / library).touch()
    monkeypatch.setattr(sys, "path", [str(packages)])
    monkeypatch.setattr(frameworks, "environment", lambda name: tmp_path / "none")
    kept = [str(folder) for folder in (own, older, plain)]
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join([str(other), *kept]))
    assert frameworks.library_path("pytorch") == {"LD_LIBRARY_PATH": ":".join(kept)}
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(kept))
    assert frameworks.library_path("pytorch") == {}
    monkeypatch.setenv("LD_LIBRARY_PATH", str(other))
    (own / "libcudnn.so.9").unlink()  # a torch that is built with the system's cuDNN
    assert frameworks.library_path("pytorch") == {}


def project() -> dict[str, Any]:
    """Return the section [project] of pyproject.toml."""
    return dict(pytest.importorskip("tomllib").loads((HOME / "pyproject.toml").read_text())["project"])


def test_the_supported_releases_are_those_of_the_package() -> None:
    extra = project()["optional-dependencies"]["torch"]
    (torch,) = (requirement for requirement in map(Requirement, extra) if requirement.name == "torch")
    supported = [minor for minor in range(30) if torch.specifier.contains(f"2.{minor}.0")]
    assert (supported[0], supported[-1]) == (probe.OLDEST[1], probe.NEWEST[1])


def test_packages_that_another_python_lacks_are_named_with_those_that_they_need(tmp_path: Path) -> None:
    script = tmp_path / "project/requirements/lacking.py"
    script.parent.mkdir(parents=True)
    script.write_text((HOME / "requirements/lacking.py").read_text())
    changed = [*project()["dependencies"][1:], "numpy>=99", "no-such-package>=1"]
    (tmp_path / "project/pyproject.toml").write_text(f"dependencies = {json.dumps(changed, indent=4)}\n")
    command = [sys.executable, "-I", str(script)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert [re.split("[<>=]", line)[0] for line in printed] == ["no-such-package", "numpy"]
