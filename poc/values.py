"""Frozen values of named fields, checks of what a user gave, and the error that is the user's to mend."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, TypeVar, get_args

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[T], T]:
        return lambda decorated: decorated


T = TypeVar("T")
Check = Callable[[str, Any], object]
"""Takes the name of a field and what it holds; raises UserError where it may not hold that."""

_LARGEST_WHOLE = 2**31 - 1
# Beyond it products of what is allowed would no longer be finite.
_LARGEST_NUMBER = 1e12
_LARGEST_READ = 1e100
# Of something without end, such as a generator, as many values are read: more than anything here takes.
_MOST_VALUES = 100_000
_MOST_SHOWN = 100
_SCALARS: dict[str, Any] = {"str": str, "bool": bool, "int": int, "float": (int, float)}


class UserError(Exception):
    """A mistake in a recipe, an option or a file: one line that names it, what is allowed and how to mend it."""


def suggest(name: object, valid: Iterable[str]) -> str:
    """A hint such as "did you mean 'epochs'?", or the list of what is valid where nothing is near."""
    options = sorted(valid)
    close = difflib.get_close_matches(str(name), options, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "valid: " + ", ".join(options)


def invalid(name: str, given: object, allowed: str) -> UserError:
    """The error for a field that holds what it may not."""
    shown = " ".join(repr(given).split())
    shown = shown if len(shown) <= _MOST_SHOWN else shown[:_MOST_SHOWN] + "..."
    return UserError(f"{name}: {shown} is not allowed; {allowed}")


def plain(given: Any) -> Any:
    """Return Python's own number for one of NumPy's, a fraction or a decimal; anything else as it is.

    A float32 is read as it is printed: 0.1, and not 0.10000000149011612.
    """
    if isinstance(given, np.floating):
        return float(str(given))
    if isinstance(given, np.generic):
        return given.item()
    return float(given) if isinstance(given, (Fraction, Decimal)) else given


def several(given: Any) -> Any:
    """Return a list of the values of a list, tuple, range, array or generator; anything else as it is."""
    if isinstance(given, (str, bytes, Mapping, set, frozenset)) or not isinstance(given, Iterable):
        return given
    listed = given if isinstance(given, (list, tuple)) else itertools.islice(given, _MOST_VALUES)
    return [plain(each) for each in listed]


def whole(name: str, number: object, *, least: int = 1) -> None:
    """Raises UserError unless `number` is a whole number of at least `least`, and not absurdly large."""
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= _LARGEST_WHOLE:
        raise invalid(name, number, f"use a whole number from {least} to {_LARGEST_WHOLE}")


whole_or_zero = functools.partial(whole, least=0)


def positive(name: str, number: object, *, zero: bool = False) -> None:
    """Raises UserError unless `number` is a number above zero (or zero, where `zero` allows it)."""
    allowed = "zero or more" if zero else "above zero"
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not (number > 0 or (zero and number == 0)):
        raise invalid(name, number, f"use a number {allowed}")
    if number > _LARGEST_NUMBER:
        raise invalid(name, number, f"use at most {_LARGEST_NUMBER:g}")


positive_or_zero = functools.partial(positive, zero=True)


def share(name: str, number: Any) -> None:
    """Raises UserError unless `number` is from 0 to below 1."""
    positive_or_zero(name, number)
    if number >= 1:
        raise invalid(name, number, "use a number from 0 to below 1")


def flag(name: str, given: object) -> None:
    """Raises UserError unless `given` is True or False."""
    if not isinstance(given, bool):
        raise invalid(name, given, "use True or False")


def choice(valid: Sequence[Any]) -> Check:
    """A check that allows what is in `valid` alone."""

    def check(name: str, given: object) -> None:
        if not _is_one_of(given, valid):
            raise invalid(name, given, suggest(given, map(str, valid)))

    return check


def either(check: Check, *others: Any) -> Check:
    """A check that allows `others`, too, and whose UserError says so."""

    def check_others(name: str, given: object) -> None:
        try:
            if not _is_one_of(given, others):
                check(name, given)
        except UserError as error:
            raise UserError(f"{error}, or {' or '.join(map(repr, others))}") from None

    return check_others


def _is_one_of(given: object, valid: Sequence[Any]) -> bool:
    return (type(given), given) in [(type(one), one) for one in valid]  # True is 1, too, and 2.0 is 2


def field(*, default: Any = dataclasses.MISSING, check: Check | None = None, **metadata: Any) -> Any:
    """A field of a `value` with its default, the check of what it may hold, and what else is to be known of it."""
    return dataclasses.field(default=default, metadata={"check": check, **metadata})


def checked(held: Any, prefix: str = "") -> None:
    """Raises UserError for the first field of the value `held` that holds what it may not, named after `prefix`."""
    for declared in dataclasses.fields(held):
        if check := declared.metadata.get("check"):
            check(f"{prefix}{declared.name}", getattr(held, declared.name))


def words(held: Any) -> dict[str, str]:
    """Every field of the value `held` that has a label and is not at its default, by name: what it holds, in words.

    A label is a format ("lr {:g}") or a function of what the field holds.
    """
    said = {}
    for declared in dataclasses.fields(held):
        label, given = declared.metadata.get("label", ""), getattr(held, declared.name)
        if given != declared.default:
            said[declared.name] = label(given) if callable(label) else label.format(given)
    return {name: word for name, word in said.items() if word}


def to_plain(held: Any) -> Any:
    """What JSON can hold of a value, from which `from_plain` makes it again; it may have a `to_json` of its own."""
    if isinstance(held, (tuple, list)):
        return [to_plain(item) for item in held]
    if not dataclasses.is_dataclass(held) or isinstance(held, type):
        return held
    if hasattr(held, "to_json"):
        return held.to_json()
    return {declared.name: to_plain(getattr(held, declared.name)) for declared in dataclasses.fields(held)}


def from_plain(cls: type[T], plain: Mapping[str, Any]) -> T:
    """The value of type `cls` whose fields JSON held as `plain`; raises UserError where one does not fit its type.

    A missing field has its default. Types: str, bool, int, float, Any, other values, tuples and dicts of these, and
    None where the annotation says so. Numbers have to be finite.
    """
    names: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        names.update(vars(sys.modules[base.__module__]))
    if not isinstance(plain, Mapping):
        raise UserError(f"{cls.__name__}: {plain!r} is not a dict of fields")
    kinds = {declared.name: str(declared.type) for declared in dataclasses.fields(cls)}  # type: ignore[arg-type]
    held = {name: _from_plain(name, kinds.get(name, "Any"), given, names) for name, given in plain.items()}
    return cls(**held)


def _from_plain(name: str, kind: str, given: Any, names: Mapping[str, Any]) -> Any:
    if kind.endswith(" | None"):
        return None if given is None else _from_plain(name, kind[: -len(" | None")], given, names)
    container, _, inner = kind.removesuffix("]").partition("[")
    if container == "tuple" and isinstance(given, (list, tuple)):
        kinds = [inner[: -len(", ...")]] * len(given) if inner.endswith(", ...") else inner.split(", ")
        if len(kinds) == len(given):
            return tuple(_from_plain(name, *pair, names) for pair in zip(kinds, given))
    elif container == "dict" and isinstance(given, dict):
        kind = inner.partition(", ")[2]
        return {key: _from_plain(f"{name}.{key}", kind, entry, names) for key, entry in given.items()}
    elif container in _SCALARS:
        number = not isinstance(given, (int, float)) or abs(given) < _LARGEST_READ
        if isinstance(given, _SCALARS[container]) and isinstance(given, bool) == (container == "bool") and number:
            return given
    # Before Python 3.10 isinstance knows no Union.
    elif container == "Any" or isinstance(given, get_args(names[container]) or names[container]):
        return given
    elif dataclasses.is_dataclass(names[container]) and isinstance(given, dict):
        return from_plain(names[container], given)
    raise UserError(f"{name}: {str(given)[:40]!r} is not allowed")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field, dataclasses.field))
def value(cls: type[T]) -> type[T]:
    """A frozen dataclass whose fields are given by name; a mistake in them is a UserError that says what it is."""
    # A constructor of our own: dataclass(kw_only=True) needs Python 3.10, and does not say which field was meant.
    cls = dataclasses.dataclass(frozen=True, init=False)(cls)
    fields: dict[str, Any] = {declared.name: declared for declared in dataclasses.fields(cls)}  # type: ignore[arg-type]
    unset = dataclasses.MISSING
    required = [name for name, declared in fields.items() if declared.default is declared.default_factory is unset]
    nameless = required or list(fields)

    def construct(self: Any, *positional: Any, **given: Any) -> None:
        # The only field that has to be given may go without its name.
        if len(positional) == len(nameless) == 1 and nameless[0] not in given:
            given[nameless[0]] = positional[0]
        elif positional:
            raise UserError(f"{cls.__name__}: pass fields by name, e.g. {sorted(fields)[0]}=...; got {positional[0]!r}")
        for name in [*given, *required]:
            if name not in fields:
                raise UserError(f"{cls.__name__}: no field {name!r}; {suggest(name, fields)}")
            if name not in given:
                raise UserError(f"{cls.__name__}: field {name!r} is missing")
        for name, declared in fields.items():
            if name not in given:
                given[name] = declared.default_factory() if declared.default is unset else declared.default
            object.__setattr__(self, name, plain(given[name]))
        if hasattr(self, "__post_init__"):
            self.__post_init__()

    cls.__init__ = construct  # type: ignore[method-assign]
    return cls


def write_atomically(path: Path, text: str) -> None:
    """Replace the file at `path` by `text`, wholly or not at all; make its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(unfinished, 0o644)  # mkstemp's files are for their owner alone
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise
