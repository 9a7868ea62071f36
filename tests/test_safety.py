"""What the code itself shows: nothing unpickled, unpacked or given to a shell; what raises says so."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch import HOME

MODULES = sorted((HOME / "poc").rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(HOME))


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


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_arrays_are_never_unpickled(path: Path) -> None:
    assert not re.search(r"allow_pickle=(?!False)", path.read_text())


def public_functions(module: ast.Module) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Each function without an underscore, with the docstrings of what it is in and its own."""
    for node in module.body:
        around, inside = ("", [node]) if isinstance(node, ast.FunctionDef) else ("", [])
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            around, inside = ast.get_docstring(node) or "", node.body
        for function in inside:
            public = isinstance(function, ast.FunctionDef) and re.match(r"[^_]|__init__", function.name)
            if public:
                yield function, around + (ast.get_docstring(function) or "")


def raised_in(function: ast.FunctionDef) -> set[str]:
    """The exceptions that it raises itself, by name, but for that of a method which subclasses write."""
    made = [node.exc for node in ast.walk(function) if isinstance(node, ast.Raise) and node.exc is not None]
    names = {ast.unparse(raised.func if isinstance(raised, ast.Call) else raised) for raised in made}
    return {name.rpartition(".")[2] for name in names if name.rpartition(".")[2][0].isupper()} - {"NotImplementedError"}


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_public_function_that_raises_says_what(path: Path) -> None:
    module = ast.parse(path.read_text())
    bases = {
        node.name: ast.unparse(node.bases[0]) for node in module.body if isinstance(node, ast.ClassDef) if node.bases
    }
    for function, text in public_functions(module):
        for name in raised_in(function):
            assert name in text or bases.get(name, name) in text, f"line {function.lineno}: {name}"
