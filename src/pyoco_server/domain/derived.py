"""Types of answers that are stored types without some of their fields."""

from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, fields

T = TypeVar("T", bound=Struct)


def shown(kind: type[T], stored: Struct, **changed: Any) -> T:
    """`stored` as an answer: without the fields that `kind` does not have."""
    values = asdict(stored)
    for name in _hidden(kind, type(stored)):
        del values[name]
    values.update(changed)
    return kind(**values)


@cache
def _hidden(kind: type[Struct], stored: type[Struct]) -> tuple[str, ...]:
    return tuple(set(stored.__struct_fields__) - set(kind.__struct_fields__))


def without(hidden: tuple[str, ...], stored: type[Struct], name: str, **changed: Any) -> type[Struct]:
    """A stored type without some of its fields; `changed` are types that differ in the answer."""
    if not set(hidden) <= set(stored.__struct_fields__):  # renamed, it would be shown
        raise TypeError(f"{stored.__name__} does not have all of {hidden}")
    parts = [
        _part(field, changed.get(field.name, field.type))
        for field in fields(stored)
        if field.name not in hidden
    ]
    return msgspec.defstruct(name, parts, kw_only=True, module=__name__)


def _part(field: Any, kind: Any) -> Any:
    if field.required:
        return field.name, kind
    if field.default is msgspec.NODEFAULT:
        return field.name, kind, msgspec.field(default_factory=field.default_factory)
    return field.name, kind, field.default
