"""Runs started from folders with files that are named like modules: none is imported, and nothing is lost."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from poc.records.record import COMPLETED
from tests.builders import recipe_file
from tests.launch import DEADLINE_SECONDS, HOME, records

NAMES = ("csv", "random", "json", "typing", "dataclasses", "subprocess", "runpy", "types", "enum", "contextlib")
NAMES += ("ctypes", "sysconfig", "site", "sitecustomize", "usercustomize", "psutil", "tabulate", "torch")
PACKAGES = ("encodings", "numpy", "mxnet")


def hostile(folder: Path, imported: Path, *packages: str) -> Path:
    """Write modules and packages that record in the file `imported` that they were imported."""
    text = f"open({str(imported)!r}, 'a').write(__file__ + '\\n')\n"
    for file in [*(f"{name}.py" for name in NAMES), *(f"{name}/__init__.py" for name in packages)]:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    return folder


def state(root: Path) -> dict[str, bytes]:
    """Return the contents of every file, and every folder, without those that Python compiles."""
    paths = [path for path in root.rglob("*") if "__pycache__" not in path.parts]
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else b"" for path in paths}


@pytest.mark.slow
def test_a_run_imports_nothing_from_there_and_writes_only_results_and_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, imported = tmp_path / "check out", tmp_path / "imported"
    shutil.copytree(HOME / "poc", root / "poc", ignore=shutil.ignore_patterns("__pycache__"))
    recipe = recipe_file(tmp_path / "mine.py", epochs=1)
    hostile(root, imported, *PACKAGES)  # the checkout itself may be the folder where a user keeps such files
    folder = hostile(tmp_path / "everything", imported, *PACKAGES, "poc")
    before, names = [state(root), state(folder)], {"HOME": "home", "TMPDIR": "temporary", "POC_CACHE": "cache"}
    for variable, name in names.items():
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    for variable in ("PYTHONPATH", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"):
        monkeypatch.delenv(variable, raising=False)
    command = [sys.executable, "-W", "ignore", "-I", root / "poc/host/isolated.py", "poc", "run", recipe]
    command += ["--results", tmp_path / "results"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert (done.returncode, imported.exists()) == (0, False), done.stderr
    assert [record.outcome for record in records(tmp_path)] == [COMPLETED]
    assert [state(root), state(folder)] == before
    assert [*(tmp_path / "home").iterdir(), *(tmp_path / "temporary").iterdir()] == []
    kept = {root.name, folder.name, recipe.name, "results", *names.values()}
    assert {path.name for path in tmp_path.iterdir()} == kept
