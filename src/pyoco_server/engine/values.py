"""Values of users' tasks, as JSON can hold them."""

import math
from typing import Any

from pyoco_server.domain.json_values import MAX_INT

MAX_REPR = 1_000
MAX_DEPTH = 50


def json_safe(value: Any) -> Any:
    """A copy of `value` made of JSON types only; what JSON cannot hold becomes its (capped) repr."""
    try:
        return _converted(value, 0)
    except Exception:  # noqa: BLE001 - another task changes it meanwhile, or a container of the user's raises
        return _capped_repr(value)


def json_text(text: str) -> str:
    """Half a character (a lone surrogate) is legal in Python and in no JSON: it is escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def described(error: BaseException) -> str:
    """An exception in one text, even if it has none."""
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001 - a user's __str__ may do anything
        text = f"(its text raised {type(failure).__name__})"
    return json_text(f"{type(error).__name__}: {text}")


def _converted(value: Any, depth: int) -> Any:  # noqa: PLR0911 - one return per kind of value
    if value is None or type(value) is bool:
        return value
    if type(value) is str:
        return json_text(value)
    if type(value) is int:
        return value if -MAX_INT <= value <= MAX_INT else _capped_repr(value)
    if type(value) is float:
        return value if math.isfinite(value) else _capped_repr(value)
    if depth >= MAX_DEPTH:
        return _capped_repr(value)
    if isinstance(value, dict):
        return {
            json_text(key) if type(key) is str else _capped_repr(key): _converted(item, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_converted(item, depth + 1) for item in value]
    return _capped_repr(value)


def _capped_repr(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may do anything
        text = f"<{type(value).__name__}: its repr raised {type(error).__name__}>"
    return json_text(text if len(text) <= MAX_REPR else text[:MAX_REPR] + "…")
