"""Configuration classes: dataclasses that pydantic validates, and labels of their options."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Callable, TypeVar

import pydantic
import pydantic.dataclasses
from pydantic_core import core_schema
from typing_extensions import dataclass_transform

from poc.values import UserError, invalid, plain, suggest, user_error

T = TypeVar("T")


def field(*, default: Any = dataclasses.MISSING, label: str | Callable[[Any], str] = "", **metadata: Any) -> Any:
    """Declare a field of a configuration class.

    `label` describes a value that is not the default: a format ("lr {:g}") or a function of the value.
    """
    return dataclasses.field(default=default, metadata={"label": label, **metadata})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field, dataclasses.field))
def configuration(cls: type[T]) -> type[T]:
    """Make a frozen dataclass of validated keyword arguments; a mistake in them is a UserError.

    The only field without a default may be passed by position.
    """
    config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)
    validated: Any = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=config)(cls)
    validate = validated.__init__
    required = [field.name for field in dataclasses.fields(validated) if field.default is dataclasses.MISSING]
    # A recipe's own fields are named without a class.
    prefix = "" if "model" in required else f"{cls.__name__}."

    @functools.wraps(validate)
    def construct(self: Any, *positional: Any, **fields: Any) -> None:
        if positional:
            if len(positional) > 1 or len(required) != 1 or required[0] in fields:
                raise UserError(f"{cls.__name__}: pass fields by name; got {positional[0]!r}")
            fields[required[0]] = positional[0]
        try:
            validate(self, **{name: plain(value) for name, value in fields.items()})
        except pydantic.ValidationError as error:
            raise user_error(cls, error, prefix) from None

    validated.__init__ = construct
    return validated


class Or:
    """Annotation of a type that these words are values of, too; the plan replaces them by others of the type."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.union_schema([handler(source), core_schema.literal_schema(list(self.words))])


def by_name(option: str, kinds: Mapping[str, type[Any]]) -> pydantic.BeforeValidator:
    """Return a validator that turns one of `kinds`, or the name of one, into that kind with its defaults."""

    def convert(value: Any) -> Any:
        kind = kinds.get(value) if isinstance(value, str) else value
        if isinstance(kind, type) and kind in kinds.values():
            return kind()
        if isinstance(value, (dict, *kinds.values())):
            return value
        raise invalid(option, value, suggest(value, kinds))

    return pydantic.BeforeValidator(convert)


def labels(options: Any, marked: str = "") -> dict[str, str]:
    """Return the labels of all fields that are not at their default, or of those declared with `marked`, by name."""
    texts = {}
    for declared in dataclasses.fields(options):
        label, value = declared.metadata.get("label", ""), getattr(options, declared.name)
        if value != declared.default and (not marked or declared.metadata.get(marked)):
            texts[declared.name] = label(value) if callable(label) else label.format(value)
    return {name: text for name, text in texts.items() if text}


def changed(options: Any) -> dict[str, Any]:
    """Return for JSON the fields that are not at their default, those without one, and the tag `name`; no paths."""
    fields: dict[str, Any] = {}
    for declared in dataclasses.fields(options):
        value, is_local = getattr(options, declared.name), declared.metadata.get("local")
        if not is_local and (declared.name == "name" or value != declared.default):
            fields[declared.name] = changed(value) if dataclasses.is_dataclass(value) else value
    return fields


def local_fields(options: Any) -> dict[str, str]:
    """Return the paths, which are of one machine: the fields declared with `local=True`."""
    local = [declared.name for declared in dataclasses.fields(options) if declared.metadata.get("local")]
    return {name: getattr(options, name) for name in local}
