"""Frozen values of named fields, whose constructors answer a misspelt field with the nearest valid name.

The only field of a value may go without its name.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from poc.errors import UserError

T = TypeVar("T")


def nearest(name: str, valid: Iterable[str]) -> str:
    """Returns a hint such as "did you mean 'epochs'?", or the list of what is valid where nothing is near."""
    options = sorted(valid)
    close = difflib.get_close_matches(str(name), options, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "valid: " + ", ".join(options)


def _value(cls: type[T]) -> type[T]:
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
