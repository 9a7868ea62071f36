"""Frozen values of named fields, checks of what a user gave, and the error that is the user's to mend."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Callable, TypeVar

T = TypeVar("T")

_LARGEST_WHOLE = 2**31 - 1
# Beyond it products of what is allowed would no longer be finite.
_LARGEST_NUMBER = 1e12


class UserError(Exception):
    """A mistake in a recipe, an option or a file: one line that names it, what is allowed and how to mend it."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Returns a hint such as "did you mean 'epochs'?", or the list of what is valid where nothing is near."""
    options = sorted(valid)
    close = difflib.get_close_matches(str(name), options, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "valid: " + ", ".join(options)


def whole(name: str, number: object, *, least: int = 1) -> None:
    """Raises UserError unless `number` is a whole number of at least `least`, and not absurdly large."""
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise UserError(f"{name}: {number!r} is not allowed; give a whole number of at least {least}")
    if number > _LARGEST_WHOLE:
        raise UserError(f"{name}: {number} is not allowed; give at most {_LARGEST_WHOLE}")


def positive(name: str, number: object, *, zero: bool = False) -> None:
    """Raises UserError unless `number` is a number above zero (or zero, where `zero` allows it)."""
    allowed = "zero or more" if zero else "above zero"
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not (number > 0 or (zero and number == 0)):
        raise UserError(f"{name}: {number!r} is not allowed; give a number {allowed}")
    if number > _LARGEST_NUMBER:
        raise UserError(f"{name}: {number!r} is not allowed; give at most {_LARGEST_NUMBER:g}")


def _value(cls: type[T]) -> type[T]:
    # The only field of a value may go without its name.
    cls = dataclasses.dataclass(frozen=True)(cls)
    generated: Callable[..., None] = cls.__init__
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    names = {field.name for field in fields}
    required = {
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    # dataclass(kw_only=True) needs Python 3.10, and its TypeError does not say which field was meant.
    def construct(self: Any, *positional: Any, **given: Any) -> None:
        if len(positional) == len(fields) == 1 and not given:
            given = {fields[0].name: positional[0]}
        elif positional:
            raise UserError(f"{cls.__name__}: fields are named, e.g. {sorted(names)[0]}=...; got {positional[0]!r}")
        for name in given:
            if name not in names:
                raise UserError(f"{cls.__name__}: no field {name!r}; {nearest(name, names)}")
        missing = [field.name for field in fields if field.name in required - given.keys()]
        if missing:
            raise UserError(f"{cls.__name__}: field {missing[0]!r} is missing")
        generated(self, **given)

    cls.__init__ = construct  # type: ignore[method-assign]
    return cls


if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    @dataclass_transform(frozen_default=True, kw_only_default=True)
    def value(cls: type[T]) -> type[T]: ...
else:
    value = _value
