"""Read fields of a recipe from text: `--set batch_per_device=256,512 --set "lr=Linear(base=0.1, per=256)"`."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from poc import config
from poc.values import UserError, suggest

CALLABLE: Mapping[str, Any] = {name: getattr(config, name) for name in config.__all__ if name != "Recipe"}
"""What a value may call, by name: what a recipe may import from `poc`."""
_WORD = re.compile(r"[A-Za-z][\w.-]*")
_EXAMPLES = "give a number, a word, several with commas, or a call such as Linear(base=0.1, per=256)"


def fields(settings: Sequence[str]) -> dict[str, Any]:
    """Return the fields that options FIELD=VALUE[,VALUE] set; several values are a list.

    Raises UserError for a text that is no such option and for a field that is set twice.
    """
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UserError(f"--set: {setting!r} is not allowed; give FIELD=VALUE, e.g. batch_per_device=256,512")
        if name in parsed:
            raise UserError(f"--set {name}: it is set twice; give all its values at once, e.g. --set {name}=1,2")
        parsed[name] = _parse(name, text)
    return parsed


def _parse(name: str, text: str) -> Any:
    source = f"[{text}]"
    try:
        tree = ast.parse(source, mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            raise SyntaxError
        values = [_evaluate(node, source) for node in tree.elts]
    except UserError as error:
        raise UserError(f"--set {name}: {error}") from None
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise UserError(f"--set {name}: {text!r} cannot be read; {_EXAMPLES}") from None
    return values if len(values) > 1 else values[0]


def _evaluate(node: ast.expr, source: str) -> Any:
    """Return the value of a constant, a list, a call of what `poc` offers, or a word without quotes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, type(None))):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_evaluate(item, source) for item in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value  # type: ignore[operator]  # of a text: a TypeError
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id not in CALLABLE:
            raise UserError(f"there is no {node.func.id!r}; {suggest(node.func.id, CALLABLE)}")
        named = {str(keyword.arg): _evaluate(keyword.value, source) for keyword in node.keywords}
        return CALLABLE[node.func.id](*(_evaluate(argument, source) for argument in node.args), **named)
    word = ast.get_source_segment(source, node) or ""
    if not _WORD.fullmatch(word):  # a name, or several with hyphens, which Python would subtract
        raise ValueError(word)
    return word
