"""The rule of values: what leaves a task, a run or a node as JSON, and what cannot.

One rule for params, results and the inputs and outputs of nodes; docs/values.md is its table. Types of other
libraries are recognized by what their classes are, so that none of them is imported here.

Bounded: a conversion stops as soon as its JSON must be larger than the limit, whatever it is made of.
"""

import base64
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from pathlib import PurePath
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from pyoco_server.domain.value_previews import article, bounded_repr, type_name
from pyoco_server.errors import InvalidRequest, RequestTooLarge

MAX_INT = 2**63 - 1
MIN_INT = -(2**63)
"""Integers are signed 64-bit: larger ones are valid JSON, but few readers keep them exact."""
MAX_DEPTH = 50
MAX_PARAMS_BYTES = 256 * 1024
"""Of a run's params, as JSON."""
MAX_WARNINGS = 20
_MAX_KEY = 64
_SMALL_MIN, _SMALL_MAX = -(2**53), 2**53
_SMALL_TEXT = 1_000
_PLAIN_BYTES = 2
"""The least that an item takes with its comma."""
_WORST_GROWTH = 24
"""A character can take 6 bytes and a number, counted as one, 24."""


class NotJson(Exception):
    """A value that JSON cannot hold: what it is, where it is, and what to do."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(what, advice)
        self.what = what
        self.advice = advice
        self.place = ""


class TooLarge(Exception):
    """The JSON is larger than allowed; it has `size` bytes, or more if it is not `exact`."""

    def __init__(self, size: int, *, exact: bool = False) -> None:
        super().__init__(size)
        self.size = size
        self.text = f"{size:,} bytes" if exact else f"more than {size - 1:,} bytes"


class Converted(Struct, frozen=True):
    value: Any
    size: int
    """Bytes of JSON at least."""
    nulls: tuple[str, ...] = ()
    """`NaN at output.x`: what became null, and where; no more than fit among the warnings."""
    null_count: int = 0


def plain_size(value: Any) -> int | None:
    """Of a small value that is JSON as it is: most are. None: it has to be converted to know."""
    kind = type(value)
    if value is None or kind is bool:
        return 4
    if kind is int:
        return 1 if _SMALL_MIN <= value <= _SMALL_MAX else None
    if kind is str:
        return len(value) + 2 if len(value) <= _SMALL_TEXT and value.isascii() else None
    return None


def to_json(value: Any, place: str, max_bytes: int) -> Converted:
    """`value` by the rule. Raises NotJson or TooLarge."""
    size = plain_size(value)
    if size is not None and size * _WORST_GROWTH <= max_bytes:
        return Converted(value, size)
    conversion = _Conversion(place, max_bytes)
    converted = conversion.value(value, 0)
    if conversion.size * _WORST_GROWTH > max_bytes:
        size = len(msgspec.json.encode(converted))
        if size > max_bytes:
            raise TooLarge(size, exact=True)
    return Converted(converted, conversion.size, tuple(conversion.nulls), conversion.null_count)


def from_caller(value: Any, place: str, max_bytes: int) -> Any:
    """What a program sends, by the same rule; nothing of it may be lost. Raises InvalidRequest."""
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
    """`value` as JSON for people: what the rule refuses is marked in its place. None: too large."""
    conversion = _Preview("", max_bytes)
    try:
        return Converted(conversion.value(value, 0), conversion.size)
    except (TooLarge, NotJson):
        return None


def marked(value: Any, *, is_large: bool = False) -> dict[str, str]:
    """What stands in a task's record for a value that JSON cannot hold, or that is too large to be kept."""
    name = type_name(value)
    has_own_repr = is_large and _is_convertible(type(value))
    text = f"<{name}: too large to be kept>" if has_own_repr else bounded_repr(value)
    return {"$repr": json_text(text), "type": json_text(name)}


def json_text(text: str) -> str:
    """Half a character (a lone surrogate) is legal in Python and in no JSON: it is escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def bounded_warnings(lines: Sequence[str], unlisted: int = 0) -> tuple[str, ...]:
    """The first lines, and how many more there are; `unlisted` are not even among `lines`."""
    more = max(0, len(lines) - MAX_WARNINGS) + unlisted
    return (*lines[:MAX_WARNINGS], f"{more:,} more") if more else tuple(lines)


class _Conversion:
    """One value on its way to JSON: where it is, and how large it has become."""

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
                f"{article(type_name(value))} that raised {type_name(error)} when it was read",
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
                raise self._refusal(f"a dict with two keys that become {_shown(name)}", "rename one of them")
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
        """JSON has no keys but strings; those of counters and groups become their text."""
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
            raise self._refusal(f"a value nested more than {MAX_DEPTH} deep", "return something flatter")
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
            raise self._refusal(*_refused(value, kind)) from None
        finally:
            self._open.discard(identity)

    def _refusal(self, what: str, advice: str) -> NotJson:
        error = NotJson(what, advice)
        error.place = self._place()
        return error

    def _place(self) -> str:
        return self._root + "".join(map(_step, self._path))


class _Preview(_Conversion):
    """Nothing but a value's size stops it."""

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
        """Inside a run the value is what it is: null would be another."""
        raise NotJson(what, "")


class _Unknown(Exception):
    """No row of the table has this type."""


_Converter = Callable[[_Conversion, Any, int], Any]


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.isidentifier() and len(step) <= _MAX_KEY else f"[{_shown(step)}]"


def _shown(key: str) -> str:
    return repr(key if len(key) <= _MAX_KEY else key[:_MAX_KEY] + "…")


# The rows of the table


def _as_number(conversion: _Conversion, value: Any, _depth: int) -> Any:
    """Numbers that are not plain: too large, not finite, or of a subclass."""
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
    except Exception:  # noqa: BLE001 - of several kinds, or a user's __lt__
        items = list(value)
    return conversion.array(items, depth)


def _as_fields(names_of: Callable[[type], Iterable[tuple[str, str]]]) -> _Converter:
    """An object with the attributes that its class declares."""

    def convert(conversion: _Conversion, value: Any, depth: int) -> Any:
        names = list(names_of(type(value)))
        return conversion.object(((shown, getattr(value, name)) for name, shown in names), depth, len(names))

    return convert


def _as_model(conversion: _Conversion, value: Any, depth: int) -> Any:
    """As the model dumps itself: without what it excludes, and with its own serializers."""
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
    # Items of an array of times are read one by one: `tolist` makes numbers of them.
    return conversion.array(list(value) if value.dtype.kind in "mMO" else value.tolist(), depth)


def _as_series(conversion: _Conversion, value: Any, depth: int) -> Any:
    if len(value) * _PLAIN_BYTES > conversion.limit:
        raise TooLarge(len(value) * _PLAIN_BYTES)
    return conversion.array(value.tolist(), depth)


def _as_missing(conversion: _Conversion, _value: Any, _depth: int) -> Any:
    return conversion.null("NA")


def _dataclass_fields(kind: Any) -> Iterable[tuple[str, str]]:
    from dataclasses import fields  # noqa: PLC0415 - most values need none of it

    return ((field.name, field.name) for field in fields(kind))


def _attrs_fields(kind: Any) -> Iterable[tuple[str, str]]:
    return ((attribute.name, attribute.name) for attribute in kind.__attrs_attrs__)


def _struct_fields(kind: Any) -> Iterable[tuple[str, str]]:
    return zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)


def _tuple_fields(kind: Any) -> Iterable[tuple[str, str]]:
    return ((name, name) for name in kind._fields)


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
    (msgspec.Struct, _as_fields(_struct_fields)),
)

_BY_ATTRIBUTE: tuple[tuple[str, _Converter], ...] = (
    ("__pydantic_serializer__", _as_model),
    ("__dataclass_fields__", _as_fields(_dataclass_fields)),
    ("__attrs_attrs__", _as_fields(_attrs_fields)),
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
    """Raises _Unknown. By the class, never by the object: that may answer anything."""
    if issubclass(kind, tuple):
        return _as_fields(_tuple_fields) if hasattr(kind, "_fields") else _as_array
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
    """Its `repr` is the user's, or made of that of all its fields: it may be as large as the value."""
    return any(hasattr(kind, attribute) for attribute, _ in _BY_ATTRIBUTE) or issubclass(kind, Struct)


def is_numpy_scalar(kind: type) -> bool:
    return any(base.__name__ == "generic" and base.__module__ == "numpy" for base in kind.__mro__)


_ADVICE = {
    "DataFrame": "return a list of rows or save it as an artifact",
    "complex": "return its real and its imaginary part",
    "generator": "return a list",
    "async_generator": "return a list",
    "coroutine": "await it: make the task an async def",
    "Task": "await it: make the task an async def",
    "Future": "await it: make the task an async def",
    "TextIOWrapper": "return what it holds, or its path",
    "BufferedReader": "return what it holds, or its path",
    "BufferedWriter": "return what it holds, or its path",
    "function": "return what it returns",
    "builtin_function_or_method": "return what it returns",
    "method": "return what it returns",
    "map": "return a list",
    "filter": "return a list",
    "zip": "return a list",
    "SecretStr": "leave secrets out",
}


def _refused(value: Any, kind: type) -> tuple[str, str]:
    if issubclass(kind, int):
        return "an int beyond 64 bits", "return it as a string"
    name = type_name(value)
    return article(name), _ADVICE.get(
        name, "return strings, numbers, lists and dicts, or save it as an artifact"
    )
