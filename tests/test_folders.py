"""The scripts started from folders with files that are named like modules: none is imported, and nothing is lost."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from poc.records.record import COMPLETED
from tests.builders import recipe_file
from tests.launch import DEADLINE_SECONDS, HOME, records, supported

STANDARD = ("csv", "random", "json", "typing", "dataclasses", "subprocess", "runpy", "types", "enum", "contextlib")
STANDARD += ("ctypes", "sysconfig", "venv", "ensurepip", "encodings", "site")
INSTALLED = ("numpy", "psutil", "tabulate", "torch", "mxnet")
SETTINGS = {
    "pyvenv.cfg": "home = /nowhere\ninclude-system-site-packages = true\n",
    "setup.cfg": "[install]\nprefix = /nowhere\n",
    "uv.toml": "no-index = 7\n",
    ".python-version": "2.7.18\n",
}
NAMES = (*STANDARD, *INSTALLED, *SETTINGS, "sitecustomize")
VARIABLES = (
    {},
    {"PYTHONPATH": ".", "PYTHONSTARTUP": "{folder}/csv.py", "PYTHONUSERBASE": "{folder}", "PYTHONINSPECT": "1"},
    {"PYTHONHOME": "{folder}", "PIP_TARGET": "{folder}", "PIP_USER": "1"},
    {"PYTHONHOME": "/nowhere", "PYTHONPATH": "{folder}", "PYTHONOPTIMIZE": "2", "PYTHONSAFEPATH": "1"},
)
HARMFUL = {"PIP_TARGET": "{folder}", "PIP_PREFIX": "{folder}", "PIP_ROOT": "{folder}", "PIP_REQUIREMENT": "none.txt"}
HARMFUL |= {"PIP_CONSTRAINT": "none.txt", "PIP_USER": "1", "PIP_DRY_RUN": "1", "PIP_PYTHON": "/", **VARIABLES[-1]}
LIGHT = """import importlib, sys

for name in {names}:
    importlib.import_module(name)
print(".venv requirements/mxnet.txt" if sys.argv[1] == "environment" else f"does {{sys.argv[1:]}}")
"""


def start(script: Path, *arguments: object, folder: Path, **variables: str) -> tuple[int, str, str]:
    """Start a script in `folder`; return its exit code and output."""
    inherited = {key: text for key, text in os.environ.items() if not key.startswith(("PYTHON", "PIP_", "HOME"))}
    environment = {key: text.format(folder=folder) for key, text in variables.items()}
    command, env = [script, *map(str, arguments)], {**inherited, **environment}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    return done.returncode, done.stdout, done.stderr


def hostile(folder: Path, imported: Path, *names: str) -> Path:
    """Write files and packages that record in the file `imported` that they were imported."""
    text = f"open({str(imported)!r}, 'a').write(__file__ + '\\n')\nprint('results of my runs loaded')\n"
    for name in names:
        package = name in ("numpy", "mxnet", "ensurepip", "encodings", "poc")
        modules = [f"{name}/__init__.py", f"{name}/__main__.py"] if package else [f"{name}.py"]
        for file in [name] if name in SETTINGS else modules:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(SETTINGS.get(file, text))
    return folder


def state(root: Path) -> dict[str, bytes]:
    """Return every file of a checkout outside its environment."""
    paths = [path for path in root.rglob("*") if path.is_file() and not {".venv", "__pycache__"} & set(path.parts)]
    return {str(path): path.read_bytes() for path in paths}


def wheel(folder: Path, name: str, *modules: str) -> str:
    """Make a wheel of empty modules; return the line of a list that installs it."""
    path, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    files = dict.fromkeys((f"{module}.py" for module in modules), "")
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture
def light(tmp_path: Path) -> Path:
    """Return a checkout of the real scripts with a light package `poc`, and light packages in the folder wheels."""
    root, wheels = tmp_path / "check out", tmp_path / "wheels"
    for folder in (wheels, root / "poc/host", root / "requirements", root / "results"):
        folder.mkdir(parents=True)
    for name in ("run_all.sh", "make_environment.sh", "poc/host/isolated.py"):
        shutil.copy(HOME / name, root / name)
    (root / "poc/__init__.py").touch()
    (root / "poc/__main__.py").write_text(LIGHT.format(names=(*STANDARD, *INSTALLED, "pip")))
    for name, modules in (("common", INSTALLED), ("mxnet", ("build",))):
        (root / f"requirements/{name}.txt").write_text(wheel(wheels, name, *modules))
    (root / "results/journal.jsonl").write_text('{"run_id": "1"}\n')
    return root


@pytest.mark.slow
@pytest.mark.parametrize(("version", "tools"), [("3.10", ""), ("3.12", f":{sys.prefix}/bin")], ids=["pip", "uv"])
def test_nothing_is_imported_from_the_folder_of_the_user_or_obeyed(
    light: Path, version: str, tools: str, tmp_path: Path
) -> None:
    before, imported = state(light), tmp_path / "imported"
    folder = hostile(tmp_path / "everything", imported, *NAMES, "pip", "poc", "usercustomize")
    index = {"PIP_FIND_LINKS": str(tmp_path / "wheels"), "PIP_NO_INDEX": "1", "PYTHON": str(supported(version))}
    path = os.environ["PATH"] + tools
    code, output, errors = start(light / "make_environment.sh", folder=folder, PATH=path, **HARMFUL, **index)
    assert (code, output, imported.exists(), state(light)) == (0, "", False, before), errors
    for variables in VARIABLES:
        done = start(light / "run_all.sh", "quick", folder=folder, **variables)
        assert (*done, imported.exists()) == (0, "does ['run', 'quick']\n", "", False), variables
    assert state(light) == before


@pytest.mark.slow
def test_a_run_and_its_workers_import_nothing_from_there(tmp_path: Path) -> None:
    root, imported = tmp_path / "check out", tmp_path / "imported"
    shutil.copytree(HOME / "poc", root / "poc", ignore=shutil.ignore_patterns("__pycache__"))
    recipe = recipe_file(tmp_path / "mine.py", epochs=1)
    # The checkout itself may be the folder where a user keeps such files.
    folders = [hostile(root, imported, *NAMES), hostile(tmp_path / "everything", imported, *NAMES, "poc")]
    before = state(root)
    for number, folder in enumerate(folders):
        results = tmp_path / str(number) / "results"
        command = ("-W", "ignore", "-I", root / "poc/host/isolated.py", "poc", "run", recipe, "--results", results)
        code, _, errors = start(Path(sys.executable), *command, folder=folder, POC_CACHE=str(tmp_path / "cache"))
        assert (code, imported.exists()) == (0, False), errors
        assert [record.outcome for record in records(tmp_path / str(number))] == [COMPLETED]
    assert state(root) == before


def test_a_clone_with_windows_line_ends_configured_is_the_same(tmp_path: Path) -> None:
    for folder, setting in (("windows", "true"), ("linux", "false")):
        command = ["git", "-c", f"core.autocrlf={setting}", "clone", "-q", HOME, tmp_path / folder]
        subprocess.run(command, check=True)
        shutil.rmtree(tmp_path / folder / ".git")
    files = {path.relative_to(tmp_path / "linux"): path for path in (tmp_path / "linux").rglob("*") if path.is_file()}
    for name, path in files.items():
        assert (tmp_path / "windows" / name).read_bytes() == path.read_bytes(), name
