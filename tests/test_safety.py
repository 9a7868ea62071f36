"""What the code itself shows: nothing unpickled, unpacked or given to a shell; docstrings name what is raised."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import HOME

MODULES = sorted((HOME / "poc").rglob("*.py"))


@pytest.mark.parametrize(
    ("unsafe", "rule"),
    [
        ("import pickle\npickle.loads(b'')", "S301"),
        ("import marshal\nmarshal.loads(b'')", "S302"),
        ("import subprocess\nsubprocess.run('ls', shell=True)", "S602"),
        ("import os\nos.system('ls ' + input())", "S605"),
        ("eval(input())", "S307"),
        ("import tarfile\ntarfile.open('x').extractall()", "S202"),
    ],
)
def test_the_linter_finds_what_is_unpickled_unpacked_or_given_to_a_shell(unsafe: str, rule: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--stdin-filename", "poc/data/unsafe.py", "-"]
    done = subprocess.run(command, cwd=HOME, input=unsafe, capture_output=True, text=True)
    assert done.returncode == 1
    assert rule in re.findall(r"S\d{3}", done.stdout)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(HOME)))
def test_arrays_are_never_unpickled_and_public_functions_name_what_they_raise(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"allow_pickle=(?!False)", text)
    module = ast.parse(text)
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    bases = {node.name: ast.unparse(node.bases[0]) for node in classes if node.bases}
    for parent in (module, *classes):
        for function in parent.body:
            if not isinstance(function, ast.FunctionDef) or not re.match(r"[^_]|__init__", function.name):
                continue
            if isinstance(parent, ast.ClassDef) and parent.name.startswith("_"):
                continue
            about = (ast.get_docstring(function) or "") + (ast.get_docstring(parent) or "")
            raised = [node.exc for node in ast.walk(function) if isinstance(node, ast.Raise) and node.exc]
            calls = [error.func if isinstance(error, ast.Call) else error for error in raised]
            names = {ast.unparse(call).rpartition(".")[2] for call in calls} - {"NotImplementedError"}
            for name in filter(lambda name: name[0].isupper(), names):
                assert name in about or bases.get(name, name) in about, f"line {function.lineno}: {name}"
