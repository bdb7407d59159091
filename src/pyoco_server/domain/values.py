"""Conversion of Python values to JSON: one rule for params, results and the inputs and outputs of nodes.

docs/values.md has the rule as a table. Types of other libraries are recognized by their classes, without an
import. A conversion stops as soon as its JSON must exceed the limit.
"""

import base64
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from pathlib import PurePath
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from pyoco_server.domain import value_previews as previews
from pyoco_server.domain.value_previews import article, bounded_repr, json_text, type_name
from pyoco_server.errors import InvalidRequest, RequestTooLarge

MAX_INT = 2**63 - 1
MIN_INT = -(2**63)
"""Integers are signed 64-bit; larger ones are valid JSON, but few readers keep them exact."""
MAX_DEPTH = 50
MAX_PARAMS_BYTES = 256 * 1024
"""Limit for the params of a run, as JSON."""
MAX_WARNINGS = 20
_SMALL_MIN, _SMALL_MAX = -(2**53), 2**53
_SMALL_TEXT = 1_000
_PLAIN_BYTES = 2
"""Minimum size of an item with its comma."""
WORST_GROWTH = 24
"""A character may take 6 bytes; a number, counted as one, 24."""


class NotJson(Exception):
    """A value that JSON cannot represent: what it is, where it is, and advice."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(what, advice)
        self.what = what
        self.advice = advice
        self.place = ""


class TooLarge(Exception):
    """The JSON exceeds the limit; it has `size` bytes, or more unless `exact`."""

    def __init__(self, size: int, *, exact: bool = False) -> None:
        super().__init__(size)
        self.size = size
        self.text = f"{size:,} bytes" if exact else f"more than {size - 1:,} bytes"


class Converted(Struct, frozen=True):
    value: Any
    size: int
    """Minimum size as JSON."""
    nulls: tuple[str, ...] = ()
    """`NaN at output.x`: values replaced by null, up to the warning limit."""
    null_count: int = 0


def plain_size(value: Any) -> int | None:
    """Size of a small value that is JSON already, as most are. None: conversion needed."""
    kind = type(value)
    if value is None or kind is bool:
        return 4
    if kind is int:
        return 1 if _SMALL_MIN <= value <= _SMALL_MAX else None
    if kind is str:
        return len(value) + 2 if len(value) <= _SMALL_TEXT and value.isascii() else None
    return None


def to_json(value: Any, place: str, max_bytes: int) -> Converted:
    """`value` as JSON. Raises NotJson or TooLarge."""
    size = plain_size(value)
    if size is not None and size * WORST_GROWTH <= max_bytes:
        return Converted(value, size)
    conversion = _Conversion(place, max_bytes)
    converted = conversion.value(value, 0)
    if conversion.size * WORST_GROWTH > max_bytes:
        size = len(msgspec.json.encode(converted))
        if size > max_bytes:
            raise TooLarge(size, exact=True)
    return Converted(converted, conversion.size, tuple(conversion.nulls), conversion.null_count)


def from_caller(value: Any, place: str, max_bytes: int) -> Any:
    """A caller's value as JSON, without any loss. Raises InvalidRequest."""
    try:
        converted = to_json(value, place, max_bytes)
    except NotJson as error:
        raise InvalidRequest(f"{error.place.lstrip('.')}: {error.what} is not JSON") from None
    except TooLarge as error:
        raise RequestTooLarge(f"{place}: {error.text} of JSON; at most {max_bytes:,} are allowed") from None
    for null in converted.nulls:
        what, _, where = null.partition(" at ")
        raise InvalidRequest(f"{where.lstrip('.')}: {what} is not JSON; use null or a string")
    return converted.value


def to_preview(value: Any, max_bytes: int) -> Converted | None:
    """`value` as JSON for display, with markers for unsupported parts. None: too large."""
    conversion = _Preview("", max_bytes)
    try:
        return Converted(conversion.value(value, 0), conversion.size)
    except (TooLarge, NotJson):
        return None


def marked(value: Any, *, is_large: bool = False) -> dict[str, str]:
    """The marker in a task record for a value that is not JSON or too large to store."""
    name = type_name(value)
    has_own_repr = is_large and _is_convertible(type(value))
    text = f"<{name}: too large to store>" if has_own_repr else bounded_repr(value)
    return {"$repr": json_text(text), "type": json_text(name)}


def bounded_warnings(lines: Sequence[str], unlisted: int = 0) -> tuple[str, ...]:
    """The first lines and the number of further ones, including `unlisted`."""
    more = max(0, len(lines) - MAX_WARNINGS) + unlisted
    return (*lines[:MAX_WARNINGS], f"{more:,} more") if more else tuple(lines)


class _Conversion:
    """Conversion of one value, with the current path and size."""

    def __init__(self, place: str, max_bytes: int) -> None:
        self._root = place
        self._path: list[str | int] = []
        self._open: set[int] = set()
        self.limit = max_bytes
        self.size = 0
        self.nulls: list[str] = []
        self.null_count = 0

    def value(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return self.text(value)
        if value is None or kind is bool:
            self.size += 4
            return value
        if kind is int and MIN_INT <= value <= MAX_INT:
            self.size += 1
            return value
        if kind is float and math.isfinite(value):
            self.size += 3
            return value
        try:
            return self._other(value, kind, depth)
        except (NotJson, TooLarge):
            raise
        except Exception as error:  # noqa: BLE001 - a user's property or __iter__ may do anything
            raise self._refusal(
                f"{article(type_name(value))} that raised {type_name(error)} on access",
                "return plain values",
            ) from None

    def take(self, size: int) -> None:
        self.size += size
        if self.size > self.limit:
            raise TooLarge(self.size)

    def null(self, what: str) -> None:
        self.null_count += 1
        if len(self.nulls) < MAX_WARNINGS:
            self.nulls.append(f"{what} at {self._place()}")
        self.take(3)

    def array(self, items: Iterable[Any], depth: int, length: int | None = None) -> list[Any]:
        if length is not None and length * _PLAIN_BYTES > self.limit - self.size:
            raise TooLarge(self.size + length * _PLAIN_BYTES)
        found = []
        path = self._path
        for index, item in enumerate(items):
            path.append(index)
            found.append(self.value(item, depth + 1))
            path.pop()
            self.take(1)
        self.take(1)
        return found

    def object(self, items: Iterable[tuple[Any, Any]], depth: int, length: int) -> dict[str, Any]:
        if length * _PLAIN_BYTES > self.limit - self.size:
            raise TooLarge(self.size + length * _PLAIN_BYTES)
        found: dict[str, Any] = {}
        path = self._path
        for key, item in items:
            name = self.text(key) if type(key) is str else self._key(key)
            if name in found:
                raise self._refusal(
                    f"a dict with two keys that become {previews.shown_key(name)}", "rename one of them"
                )
            path.append(name)
            found[name] = self.value(item, depth + 1)
            path.pop()
            self.take(2)
        self.take(1)
        return found

    def text(self, text: str) -> str:
        self.take(len(text) + 2)
        return text if text.isascii() else json_text(text)

    def _key(self, key: Any) -> str:
        """JSON keys are strings; integers, booleans and enums become their text."""
        kind = type(key)
        if issubclass(kind, Enum):
            return self._key(key.value)
        if issubclass(kind, str):
            return self.text(str.__str__(key))
        if kind is bool:
            return self.text("true" if key else "false")
        if issubclass(kind, int) or (is_numpy_scalar(kind) and key.dtype.kind in "iu"):
            return self.text(str(int(key)))
        raise self._refusal(f"a dict with {article(type_name(key))} as a key", "use strings as keys")

    def _other(self, value: Any, kind: type, depth: int) -> Any:
        if depth >= MAX_DEPTH:
            raise self._refusal(f"a value nested more than {MAX_DEPTH} deep", "return a flatter structure")
        identity = id(value)
        if identity in self._open:
            raise self._refusal(f"{article(type_name(value))} that contains itself", "return a tree")
        self._open.add(identity)
        try:
            if kind is dict:
                return self.object(value.items(), depth, len(value))
            if kind is list:
                return self.array(value, depth, len(value))
            return converter_of(kind)(self, value, depth)
        except _Unknown:
            raise self._refusal(*previews.refusal_of(value, kind)) from None
        finally:
            self._open.discard(identity)

    def _refusal(self, what: str, advice: str) -> NotJson:
        error = NotJson(what, advice)
        error.place = self._place()
        return error

    def _place(self) -> str:
        return self._root + "".join(map(previews.path_step, self._path))


class _Preview(_Conversion):
    """A conversion that fails on size only."""

    def value(self, value: Any, depth: int) -> Any:
        at = len(self._path)
        try:
            return super().value(value, depth)
        except NotJson:
            del self._path[at:]
            preview = marked(value)
            self.take(len(preview["$repr"]) + len(preview["type"]) + 22)
            return preview

    def null(self, what: str) -> None:
        """Show the value itself, because inside a run it is not null."""
        raise NotJson(what, "")


class _Unknown(Exception):
    """The table has no row for this type."""


_Converter = Callable[[_Conversion, Any, int], Any]


# Converters: the rows of the table


def _as_number(conversion: _Conversion, value: Any, _depth: int) -> Any:
    """Large or non-finite numbers, and subclasses."""
    conversion.take(1)
    if isinstance(value, int):
        whole = int.__index__(value)
        if not MIN_INT <= whole <= MAX_INT:
            raise _Unknown
        return whole
    number = float.__float__(value)
    if math.isfinite(number):
        return number
    return conversion.null("NaN" if math.isnan(number) else f"{'-' * (number < 0)}Infinity")


def _as_text(conversion: _Conversion, value: Any, _depth: int) -> Any:
    return conversion.text(str.__str__(value) if isinstance(value, str) else str(value))


def _as_time(conversion: _Conversion, value: Any, _depth: int) -> Any:
    if type_name(value) == "NaTType":
        return conversion.null("NaT")
    return conversion.text(value.isoformat())


def _as_seconds(conversion: _Conversion, value: Any, depth: int) -> Any:
    return conversion.value(float(value.total_seconds()), depth)


def _as_enum(conversion: _Conversion, value: Any, depth: int) -> Any:
    return conversion.value(value.value, depth)


def _as_bytes(conversion: _Conversion, value: Any, _depth: int) -> Any:
    conversion.take(memoryview(value).nbytes * 4 // 3 + 13)
    return {"$bytes": base64.b64encode(bytes(value)).decode()}


def _as_object(conversion: _Conversion, value: Any, depth: int) -> Any:
    return conversion.object(value.items(), depth, len(value))


def _as_array(conversion: _Conversion, value: Any, depth: int) -> Any:
    return conversion.array(value, depth, len(value))


def _as_sorted(conversion: _Conversion, value: Any, depth: int) -> Any:
    if len(value) * _PLAIN_BYTES > conversion.limit:
        raise TooLarge(len(value) * _PLAIN_BYTES)
    try:
        items = sorted(value)
    except Exception:  # noqa: BLE001 - mixed types, or a user's __lt__
        items = list(value)
    return conversion.array(items, depth)


def _as_fields(names_of: Callable[[Any], Iterable[tuple[str, str]]]) -> _Converter:
    """An object with the declared attributes of the class."""

    def convert(conversion: _Conversion, value: Any, depth: int) -> Any:
        names = list(names_of(type(value)))
        return conversion.object(((shown, getattr(value, name)) for name, shown in names), depth, len(names))

    return convert


def _as_model(conversion: _Conversion, value: Any, depth: int) -> Any:
    """The model's own dump, with its exclusions and serializers."""
    dumped = value.model_dump() if hasattr(type(value), "model_dump") else value.dict()
    return conversion.value(dumped, depth)


def _as_numpy_scalar(conversion: _Conversion, value: Any, depth: int) -> Any:
    if value.dtype.kind == "M":
        text = str(value)
        return conversion.null("NaT") if text == "NaT" else conversion.text(text)
    if value.dtype.kind == "m":
        microseconds = value.astype("timedelta64[us]").item()
        return conversion.null("NaT") if microseconds is None else conversion.value(microseconds, depth)
    item = value.item()
    return conversion.value(float(value) if type(item) is type(value) else item, depth)


def _as_numpy_array(conversion: _Conversion, value: Any, depth: int) -> Any:
    if value.size * _PLAIN_BYTES > conversion.limit:
        raise TooLarge(value.size * _PLAIN_BYTES)
    if value.ndim == 0:
        return conversion.value(value[()], depth)
    # Times are converted one by one, because `tolist` would turn them into numbers.
    return conversion.array(list(value) if value.dtype.kind in "mMO" else value.tolist(), depth)


def _as_series(conversion: _Conversion, value: Any, depth: int) -> Any:
    if len(value) * _PLAIN_BYTES > conversion.limit:
        raise TooLarge(len(value) * _PLAIN_BYTES)
    return conversion.array(value.tolist(), depth)


def _as_missing(conversion: _Conversion, _value: Any, _depth: int) -> Any:
    return conversion.null("NA")


_as_named_tuple = _as_fields(lambda kind: zip(kind._fields, kind._fields, strict=True))

_BY_BASE: tuple[tuple[type | tuple[type, ...], _Converter], ...] = (
    (Enum, _as_enum),
    (str, _as_text),
    ((int, float), _as_number),
    (dict, _as_object),
    (list, _as_array),
    ((set, frozenset), _as_sorted),
    ((deque, range, type({}.keys()), type({}.values()), type({}.items())), _as_array),
    ((bytes, bytearray, memoryview), _as_bytes),
    ((date, datetime, time), _as_time),
    (timedelta, _as_seconds),
    ((Decimal, UUID, PurePath, IPv4Address, IPv6Address), _as_text),
    (
        msgspec.Struct,
        _as_fields(lambda kind: zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)),
    ),
)

_BY_ATTRIBUTE: tuple[tuple[str, _Converter], ...] = (
    ("__pydantic_serializer__", _as_model),
    ("__dataclass_fields__", _as_fields(lambda kind: ((field.name, field.name) for field in fields(kind)))),
    (
        "__attrs_attrs__",
        _as_fields(lambda kind: ((found.name, found.name) for found in kind.__attrs_attrs__)),
    ),
)

_BY_NAME: dict[tuple[str, str], _Converter] = {
    ("numpy", "generic"): _as_numpy_scalar,
    ("numpy", "ndarray"): _as_numpy_array,
    ("pandas", "Series"): _as_series,
    ("pandas", "NAType"): _as_missing,
    ("pandas", "NaTType"): _as_time,
    ("pydantic", "BaseModel"): _as_model,
}


def converter_of(kind: type) -> _Converter:
    """Chosen by the class, because an object's attributes may be dynamic. Raises _Unknown."""
    if issubclass(kind, tuple):
        return _as_named_tuple if hasattr(kind, "_fields") else _as_array
    for bases, converter in _BY_BASE:
        if issubclass(kind, bases):
            return converter
    for attribute, converter in _BY_ATTRIBUTE:
        if hasattr(kind, attribute):
            is_plain_dataclass = attribute == "__pydantic_serializer__" and not hasattr(kind, "model_dump")
            if not is_plain_dataclass:
                return converter
    for base in kind.__mro__:
        found = _BY_NAME.get((base.__module__.partition(".")[0], base.__name__))
        if found is not None:
            return found
    raise _Unknown


def _is_convertible(kind: type) -> bool:
    """Whether its `repr` may be as large as the value, as for classes with fields."""
    return any(hasattr(kind, attribute) for attribute, _ in _BY_ATTRIBUTE) or issubclass(kind, Struct)


def is_numpy_scalar(kind: type) -> bool:
    return any(base.__name__ == "generic" and base.__module__ == "numpy" for base in kind.__mro__)
