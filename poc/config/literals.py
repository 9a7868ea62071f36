"""Read fields of a recipe from text: `--set batch_per_device=256,512 --set "lr=Linear(base=0.1, per=256)"`."""

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from poc import config
from poc.values import UserError, suggest

CALLABLE: Mapping[str, Any] = {name: getattr(config, name) for name in config.__all__ if name != "Recipe"}
"""What a value may call, by name: what a recipe may import from `poc`."""
_WORD = re.compile(r"[A-Za-z][\w.-]*")
_MODEL = re.compile(r"""(["']).*?\1|[\w./-]+:[\w.-]+""")  # a text in quotes, or a name without, as timm:resnet18
_EXAMPLES = 'give a number, a word, a text in quotes, several with commas, or a call such as Folder("photos/a")'


def fields(settings: Sequence[str]) -> dict[str, Any]:
    """Return the fields that options FIELD=VALUE[,VALUE] set; several values are a list.

    Raises UserError for a text that is no such option.
    """
    parsed: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name.strip():
            raise UserError(f"--set: {setting!r} is not allowed; give FIELD=VALUE, e.g. batch_per_device=256,512")
        if name.strip() in parsed:
            raise UserError(f"--set {name.strip()}: it is set twice; several values are {name.strip()}=VALUE,VALUE")
        parsed[name.strip()] = _parse(name.strip(), text)
    return parsed


def _parse(name: str, text: str) -> Any:
    source = "[" + _MODEL.sub(lambda part: part[0] if part[1] else f'"{part[0]}"', text) + "]"
    try:
        tree = ast.parse(source, mode="eval").body
        values = _evaluate(tree, source) if isinstance(tree, ast.List) else []
    except UserError as error:
        raise UserError(f"--set {name}: {error}") from None
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        values = []
    if not values:
        raise UserError(f"--set {name}: {text!r} cannot be read; {_EXAMPLES}")
    return values if len(values) > 1 else values[0]


def _evaluate(node: ast.expr, source: str) -> Any:
    """Return the value of a literal, a list, a call of what `poc` offers, or a word without quotes.

    The name of a class alone is a call without arguments: SGD is SGD().
    """
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_evaluate(item, source) for item in node.elts]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id not in CALLABLE:
            raise UserError(f"there is no {node.func.id!r}; {suggest(node.func.id, CALLABLE)}")
        named = {str(keyword.arg): _evaluate(keyword.value, source) for keyword in node.keywords}
        return CALLABLE[node.func.id](*(_evaluate(argument, source) for argument in node.args), **named)
    word = ast.get_source_segment(source, node) or ""
    if isinstance(node, (ast.Name, ast.BinOp)) and _WORD.fullmatch(word):  # Python would subtract one with a hyphen
        offered = CALLABLE.get(word)
        return offered() if isinstance(offered, type) else word
    return ast.literal_eval(node)
