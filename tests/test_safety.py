"""What the code itself shows: nothing unpickled, unpacked or given to a shell; what raises says so."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent
MODULES = sorted((HOME / "poc").rglob("*.py"))
# Whatever unpickles, hands a string to a shell, or writes where a file says.
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
FORBIDDEN_CALLS = {"eval", "system", "popen", "getoutput", "getstatusoutput", "extract", "extractall", "unpack_archive"}


def named(path: Path) -> str:
    return str(path.relative_to(HOME))


def called(node: ast.Call) -> str:
    function = node.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_nothing_is_unpickled_unpacked_or_given_to_a_shell(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
            assert not {name.split(".")[0] for name in names} & FORBIDDEN_MODULES, node.lineno
        if isinstance(node, ast.Call):
            assert called(node) not in FORBIDDEN_CALLS, node.lineno
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            for option in ("shell", "allow_pickle"):
                if option in given:
                    value = given[option]
                    assert isinstance(value, ast.Constant), node.lineno
                    assert value.value is False, node.lineno


def public_functions(module: ast.Module) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Each function without an underscore, with the docstrings of what it is in and its own."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node, ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            around = ast.get_docstring(node) or ""
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and (not inner.name.startswith("_") or inner.name == "__init__"):
                    yield inner, around + (ast.get_docstring(inner) or "")


def raised_in(function: ast.FunctionDef) -> set[str]:
    """The exceptions that it raises itself, by name."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and node.exc is not None:
            made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(made, (ast.Name, ast.Attribute)):
                name = made.id if isinstance(made, ast.Name) else made.attr
                found |= {name} if name[0].isupper() else set()
    return found


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_public_function_that_raises_says_what(path: Path) -> None:
    for function, text in public_functions(ast.parse(path.read_text())):
        for name in raised_in(function):
            assert name in text, f"line {function.lineno}: {function.name} raises {name}"
