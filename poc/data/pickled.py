"""CIFAR-10's Python version, whose files are pickles, read without unpickling: nothing that they name is run.

A pickle is a program. The standard library's `pickletools` splits it into instructions without following any. Those
that make a batch of CIFAR-10 are followed here: they build lists, dictionaries, text and numbers. Of NumPy's arrays
only the arguments are kept, and a function that a pickle asks for is never looked up.
"""

from __future__ import annotations

import pickletools
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from poc.values import UserError

_LITERALS = frozenset(
    (
        *("BININT", "BININT1", "BININT2", "LONG1", "GLOBAL"),
        *("BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "BINBYTES", "SHORT_BINBYTES"),
    )
)
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWFALSE": False, "NEWTRUE": True, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
# What such a file asks for; the name of NumPy's inner package changed with its version 2. Bytes that Python 3 writes
# for Python 2 are text to be encoded as Latin-1.
_ARRAY = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct", "numpy dtype")
_ENCODE = "_codecs encode"


def batch(content: bytes, where: object) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the pixels (samples, values of an image) and labels that the bytes of one file hold.

    Raises UserError, naming `where`, for anything that is no batch of CIFAR-10.
    """
    try:
        return _arrays(_build(content, where))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise UserError(
            f"data: {where} is not a CIFAR-10 batch (Python version), or damaged; download it again"
        ) from None


def _arrays(fields: dict[str, Any]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Make arrays of what a pickle says of them, which may be anything: nothing is taken at its word."""
    _, shape, dtype, in_columns, pixels = fields["data"].state
    labels = fields["labels"]
    if _text(dtype.arguments[0]) != "u1" or not all(type(label) is int for label in labels):
        raise TypeError
    raw = pixels.encode("latin-1") if isinstance(pixels, str) else pixels
    rows = np.frombuffer(raw, np.uint8).reshape((len(labels), -1), order="F" if in_columns else "C")
    if rows.shape != shape:
        raise ValueError
    return rows, np.array(labels, np.int64)


def _build(content: bytes, where: object) -> Any:
    """Follow the instructions of a pickle that build values, and return what they leave."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def above(place: int) -> list[Any]:
        values = stack[place:]
        del stack[place:]
        return values

    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "MARK":
            marks.append(len(stack))
        elif name in _TUPLES:
            stack.append(tuple(above(len(stack) - _TUPLES[name])))
        elif name == "TUPLE":
            stack.append(tuple(above(marks.pop())))
        elif name in ("APPEND", "APPENDS"):
            values = above(marks.pop() if name == "APPENDS" else len(stack) - 1)
            stack[-1].extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = above(marks.pop() if name == "SETITEMS" else len(stack) - 2)
            stack[-1].update(zip(map(_text, values[::2]), values[1::2]))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "REDUCE":
            function, arguments = above(len(stack) - 2)
            if function == _ENCODE:
                stack.append(arguments[0])
            elif function in _ARRAY:
                stack.append(SimpleNamespace(arguments=arguments, state=None))
            else:
                raise UserError(
                    f"data: {where} calls {_text(function)[:80]!r}, which no batch of CIFAR-10 does; nothing was "
                    "executed; download it again"
                )
        elif name == "BUILD":
            state = stack.pop()
            stack[-1].state = state
        elif name == "STOP":
            return stack.pop()
        elif name != "PROTO":
            raise ValueError
    raise ValueError


def _text(given: str | bytes) -> str:
    """Return text as it is, and the bytes of Python 2's text as text; raise TypeError for anything else."""
    return given if isinstance(given, str) else bytes.decode(given, "latin-1")
