"""The scripts started from folders with files that are named like modules: none is imported, and nothing is lost."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from poc.host.hardware import detect
from poc.records.record import COMPLETED
from tests.builders import recipe_file
from tests.launch import DEADLINE_SECONDS, HOME, records, supported

STANDARD = ("csv", "random", "json", "typing", "dataclasses", "subprocess", "runpy", "types", "enum", "contextlib")
STANDARD += ("ctypes", "sysconfig", "venv", "ensurepip", "encodings", "site")
INSTALLED = ("numpy", "psutil", "tabulate", "torch", "mxnet")
PACKAGES = ("numpy", "mxnet", "ensurepip", "encodings")
SETTINGS = {
    "pyvenv.cfg": "home = /nowhere\ninclude-system-site-packages = true\n",
    "setup.cfg": "[install]\nprefix = /nowhere\n",
    ".python-version": "2.7.18\n",
}
WAYS: tuple[dict[str, str], ...] = (
    {},
    {"PYTHONPATH": "{folder}"},
    {"PYTHONPATH": ".", "PYTHONSTARTUP": "{folder}/csv.py", "PYTHONUSERBASE": "{folder}", "PYTHONINSPECT": "1"},
    {"PYTHONHOME": "{folder}", "PIP_TARGET": "{folder}", "PIP_USER": "1"},
    {"PYTHONHOME": "/nowhere", "PYTHONPATH": "{folder}", "PYTHONOPTIMIZE": "2", "PYTHONSAFEPATH": "1"},
)
ANYTHING = {"PIP_TARGET": "{folder}", "PIP_PREFIX": "{folder}", "PIP_ROOT": "{folder}", "PIP_REQUIREMENT": "none.txt"}
ANYTHING |= {"PIP_CONSTRAINT": "none.txt", "PIP_USER": "1", "PIP_DRY_RUN": "1", "PIP_PYTHON": "/nowhere", **WAYS[-1]}
LIGHT = """import importlib, sys

for name in {names}:
    importlib.import_module(name)
print(".venv requirements/mxnet.txt" if sys.argv[1] == "environment" else f"does {{sys.argv[1:]}}")
"""


class Checkout:
    """A copy of a checkout, committed, beside a note of what was imported of the folders that it is started from."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "check out"
        self.noted = folder / "imported"
        self.python = Path(sys.executable)

    def commit(self) -> Checkout:
        git = ["git", "-C", self.root, "-c", "user.name=x", "-c", "user.email=x"]
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
            subprocess.run([*git, *words], check=True)
        return self

    def state(self) -> tuple[str, dict[str, bytes]]:
        """What git says of it, and every byte of its results."""
        status = subprocess.check_output(["git", "-C", self.root, "status", "--porcelain"], text=True)
        results = [path for path in (self.root / "results").rglob("*") if path.is_file()]
        return status, {str(path): path.read_bytes() for path in results}

    def start(
        self, name: str, *arguments: object, folder: Path, variables: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        inherited = {name: held for name, held in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
        inherited.pop("HOME", None)
        given = {name: text.format(folder=folder) for name, text in variables.items()}
        return subprocess.run(
            [self.root / name, *map(str, arguments)],
            cwd=folder,
            env={**inherited, "PYTHON": str(self.python), **given},
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )

    def hostile(self, folder: Path, *names: str, raises: bool) -> Path:
        """The folder, with those of files and packages in it that note, when they are imported, that they were."""
        text = f"open({str(self.noted)!r}, 'a').write(__file__ + '\\n')\nprint('results of my runs loaded')\n"
        text += "raise ValueError('of the user')\n" * raises
        for name in names:
            package = name in (*PACKAGES, "poc")
            files = (
                [f"{name}/__init__.py", f"{name}/__main__.py"] if package else [name if "." in name else f"{name}.py"]
            )
            for file in files:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).write_text(SETTINGS.get(file, text))
        return folder


def wheel(folder: Path, name: str, *modules: str) -> str:
    """Makes a wheel of empty modules; the line of requirements that installs it."""
    path, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        for module in modules:
            file.writestr(f"{module}.py", "")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture
def light(tmp_path: Path) -> Checkout:
    """The real scripts, with a light package `poc` and light requirements, which a real pip installs in a second."""
    made, wheels = Checkout(tmp_path), tmp_path / "wheels"
    for name in ("run_all.sh", "make_environment.sh", "poc/host/isolated.py", ".gitignore"):
        (made.root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HOME / name, made.root / name)
    (made.root / "poc" / "__init__.py").touch()
    (made.root / "poc" / "__main__.py").write_text(LIGHT.format(names=(*STANDARD, *INSTALLED, "pip")))
    (made.root / "requirements").mkdir()
    wheels.mkdir()
    for name, modules in (("common", INSTALLED), ("mxnet", ("build",))):
        (made.root / "requirements" / f"{name}.txt").write_text(wheel(wheels, name, *modules))
    (made.root / "results" / "here").mkdir(parents=True)
    (made.root / "results" / "here" / "journal.jsonl").write_text('{"run_id": "1"}\n')
    return made.commit()


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.9", "3.12"])
def test_nothing_is_imported_from_the_folder_of_the_user_or_obeyed(
    light: Checkout, version: str, tmp_path: Path
) -> None:
    light.python = supported(version)
    before = light.state()
    index = {"PIP_FIND_LINKS": str(tmp_path / "wheels"), "PIP_NO_INDEX": "1"}
    single = [*STANDARD, *INSTALLED, *SETTINGS, "pip", "poc", "sitecustomize", "usercustomize"]
    assert len(single) > 20
    everything = light.hostile(tmp_path / "everything", *single, raises=False)
    done = light.start("make_environment.sh", folder=everything, variables={**index, **ANYTHING})
    assert done.returncode == 0, done.stderr
    assert (done.stdout, light.noted.exists(), light.state()) == ("", False, before)
    (tmp_path / "clean").mkdir()
    clean = light.start("run_all.sh", "quick", folder=tmp_path / "clean", variables={})
    assert (clean.returncode, clean.stdout, clean.stderr) == (0, "does ['run', 'quick']\n", "")
    for number, (name, way) in enumerate(zip(single, itertools.cycle(WAYS))):
        folder = light.hostile(tmp_path / str(number), name, raises=number % 2 == 0)
        done = light.start("run_all.sh", "quick", folder=folder, variables=way)
        assert (done.returncode, done.stdout, done.stderr) == (0, clean.stdout, ""), (name, way)
        assert not light.noted.exists(), (name, way)
    assert light.state() == before


@pytest.fixture
def whole(tmp_path: Path) -> Checkout:
    """This checkout, as it is in its folder."""
    made = Checkout(tmp_path)
    ignored = (".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(HOME, made.root, ignore=shutil.ignore_patterns(*ignored))
    return made.commit()


@pytest.mark.slow
def test_a_run_and_its_workers_import_nothing_from_there(whole: Checkout, tmp_path: Path) -> None:
    if not (stamps := list(Path(sys.prefix).glob("installed*"))) or detect().gpus:
        pytest.skip(
            "what make_environment.sh has made for a CPU is borrowed: start tests/run.sh on a machine without GPUs"
        )
    # Of its own it has only the interpreter.
    base, venv = Path(sys.base_prefix) / "bin" / Path(sys.executable).name, whole.root / ".venv"
    subprocess.run([base, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(str(Path(sys.prefix) / packages.relative_to(venv)))
    for stamp in stamps:
        shutil.copy(stamp, venv)
    whole.python, before = base, whole.state()
    names = (*STANDARD, *INSTALLED, *SETTINGS, "poc", "sitecustomize")
    # The checkout itself, too, may be where a user keeps such files; there is a package poc in it already.
    folders = [whole.hostile(tmp_path / "everything", *names, raises=True)]
    folders += [whole.hostile(whole.root, *(name for name in names if name != "poc"), raises=True)]
    ignored = "\n".join(f"/{path.name}" for path in whole.root.iterdir() if {path.stem, path.name} & {*names})
    (whole.root / ".git" / "info" / "exclude").write_text(ignored)
    recipe = recipe_file(tmp_path / "mine.py", epochs=1)
    for number, folder in enumerate(folders):
        variables = {
            **ANYTHING,
            "POC_FRAMEWORKS": str(HOME / "tests" / "frameworks"),
            "POC_CACHE": str(tmp_path / "cache"),
        }
        results = tmp_path / str(number) / "results"
        done = whole.start("run_all.sh", recipe, "--results", results, folder=folder, variables=variables)
        assert done.returncode == 0, done.stderr
        assert not whole.noted.exists(), whole.noted.read_text()
        assert [record.outcome for record in records(tmp_path / str(number))] == [COMPLETED]
    assert whole.state() == before


def test_a_clone_that_is_to_have_windows_line_ends_starts(whole: Checkout, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "-c", "core.autocrlf=true", "clone", "-q", whole.root, clone], check=True)
    scripts = [path.relative_to(clone) for path in (*clone.rglob("*.sh"), clone / ".ci" / "run")]
    assert len(scripts) >= 5
    for script in scripts:
        subprocess.run(["bash", "-n", clone / script], check=True)
    subprocess.run([clone / "run_all.sh", "--help"], stdout=subprocess.DEVNULL, check=True)
    for path in clone.rglob("*"):
        if path.suffix in (".sh", ".py", ".csv", ".jsonl", ".md", ".txt"):
            assert path.read_bytes() == (whole.root / path.relative_to(clone)).read_bytes(), path
