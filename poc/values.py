"""Frozen dataclasses, their JSON, checks of single values, and the error for a user's mistake."""

import dataclasses
import difflib
import functools
import itertools
import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import pydantic
from annotated_types import Ge, Gt, Le, Lt
from pydantic_core import to_jsonable_python
from typing_extensions import dataclass_transform

T = TypeVar("T")

LARGEST_INTEGER = 2**31 - 1
LARGEST_NUMBER = 1e12  # products of larger numbers would not be finite
Count = Annotated[int, pydantic.Strict(), Ge(1), Le(LARGEST_INTEGER)]
CountOrZero = Annotated[int, pydantic.Strict(), Ge(0), Le(LARGEST_INTEGER)]
Positive = Annotated[float, pydantic.Strict(), Gt(0), Le(LARGEST_NUMBER)]
PositiveOrZero = Annotated[float, pydantic.Strict(), Ge(0), Le(LARGEST_NUMBER)]
Share = Annotated[float, pydantic.Strict(), Ge(0), Lt(1)]
Flag = Annotated[bool, pydantic.Strict()]

_UNEXPECTED = "unexpected_keyword_argument"
# An iterator may have no end: more values than this fit nowhere.
_MOST_VALUES = 100_000
_MOST_SHOWN = 100
_MOST_LISTED = 60


class UserError(Exception):
    """A mistake in a recipe, an option or a file: one line with the field, the value and what is allowed."""


class UnknownFieldError(UserError):
    """A field that no configuration class of this version has."""


def suggest(name: object, valid: Iterable[str]) -> str:
    """Return a hint such as "did you mean 'epochs'?", or the list of valid names if none is similar."""
    options = sorted(valid)
    # Too many to list: the most similar one, however little that is.
    cutoff = 0.5 if len(options) <= _MOST_LISTED else 0.0
    close = difflib.get_close_matches(str(name), options, n=1, cutoff=cutoff)
    # The start of a long name, such as "batch" of batch_per_device, is not similar to it.
    close += [option for option in options if name and option.startswith(str(name))]
    return f"did you mean {close[0]!r}?" if close else "valid: " + ", ".join(options)


def counted(count: float, noun: str) -> str:
    """Return a whole number with its noun: "1 epoch", "12 epochs"."""
    return f"{count:,.0f} {noun}" if count == 1 else f"{count:,.0f} {noun}s"


def one_line(error: BaseException) -> str:
    """Return the line of an error's message that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Last error:" in lines[:-1]:  # of NCCL: the cause follows
        return lines[lines.index("Last error:") + 1]
    # MXNet puts it after the lines of its C++ stack. CUDA adds a link to its manual, with the name of the error.
    named = [line for line in lines if "Error" in line or "Check failed" in line]
    return [*(line for line in named[-1:] if not line.startswith("Search for")), *lines, ""][0]


def invalid(name: str, raw: object, allowed: str) -> UserError:
    """Return the error for a field with a value that is not allowed."""
    shown = " ".join(repr(raw).split())
    shown = shown if len(shown) <= _MOST_SHOWN else shown[:_MOST_SHOWN] + "..."
    return UserError(f"{name}: {shown} is not allowed; {allowed}")


def user_error(cls: type[Any], error: pydantic.ValidationError, prefix: str = "") -> UserError:
    """Return the first mistake that pydantic found in the fields of `cls` as a UserError; `prefix` precedes a field."""
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != _UNEXPECTED)
    first = details[0]
    path = ".".join(map(str, first["loc"])) or cls.__name__
    if first["type"] == "missing":
        return UserError(f"{cls.__name__}: field {path!r} is missing")
    if first["type"] == _UNEXPECTED:
        hint = suggest(path, [declared.name for declared in dataclasses.fields(cls)])
        return UnknownFieldError(f"{cls.__name__}: no field {path!r}; {hint}")
    of_field = [detail for detail in details if detail["loc"][:1] == first["loc"][:1]]
    return invalid(f"{prefix}{path.split('.')[0]}", first["input"], allowed(of_field))


def allowed(details: list[Any]) -> str:
    """Say what is allowed in a field, from an error for each type that it may have."""
    expected = [detail["ctx"]["expected"] for detail in details if detail["type"] == "literal_error"]
    words = re.findall(r"\w[\w-]*", " ".join(expected).replace(" or ", " "))
    raw = details[0]["input"]
    if words and (len(details) == 1 or difflib.get_close_matches(str(raw), words, n=1, cutoff=0.5)):
        return suggest(raw, words)
    if isinstance(raw, float) and not math.isfinite(raw):
        return "use a finite number"
    text = ", or ".join(dict.fromkeys(detail["msg"] for detail in details))
    text = text.replace("a valid boolean", "True or False").replace("a valid tuple", "a list")
    return text.replace(", or Input should be", " or").replace("Input should be", "it should be")


def checked(name: str, raw: Any, kind: Any) -> Any:
    """Return the value of the option `name` as the annotated type `kind`; raises UserError if it does not fit."""
    try:
        return _adapter(kind).validate_python(plain(raw))
    except pydantic.ValidationError as error:
        raise invalid(name, raw, allowed(error.errors(include_url=False))) from None


def plain(raw: Any) -> Any:
    """Return Python's own number for one of NumPy's; anything else as it is.

    A float32 is read as it is printed: 0.1, and not 0.10000000149011612.
    """
    if isinstance(raw, np.floating):
        return float(str(raw))
    return raw.item() if isinstance(raw, np.generic) else raw


def as_list(raw: Any) -> Any:
    """Return the values of a list, tuple, range, array or generator as a list; anything else as it is."""
    if isinstance(raw, (str, bytes, Mapping, set, frozenset)) or not isinstance(raw, Iterable):
        return raw
    values = raw if isinstance(raw, (list, tuple)) else itertools.islice(raw, _MOST_VALUES)
    return [plain(each) for each in values]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def value(cls: type[T]) -> type[T]:
    """Make a frozen dataclass with keyword arguments only; `from_plain` refuses NaN and infinity in it."""
    cls.__pydantic_config__ = pydantic.ConfigDict(allow_inf_nan=False)  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def to_plain(raw: Any) -> Any:
    """Return dataclasses as nested dicts and lists for JSON, from which `from_plain` makes them again."""
    return to_jsonable_python(raw, fallback=plain)


def from_plain(cls: type[T], fields: Mapping[str, Any]) -> T:
    """Return the dataclass that `to_plain` wrote; missing fields get their defaults. Raises UserError for a misfit."""
    try:
        return _adapter(cls).validate_python(fields)  # type: ignore[arg-type]
    except pydantic.ValidationError as error:
        raise user_error(cls, error) from None


@functools.cache
def _adapter(kind: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(kind)


def write_atomically(path: Path, content: str | memoryview) -> None:
    """Replace the file at `path` by `content`, wholly or not at all; make its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A text may have a file's name that is not UTF-8.
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".unfinished")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(unfinished, 0o644)  # mkstemp lets only the owner read
        os.replace(unfinished, path)
    except BaseException as error:
        os.unlink(unfinished)
        if isinstance(error, OSError) and not error.filename:  # that of a full disk
            error.filename = str(path)
        raise
