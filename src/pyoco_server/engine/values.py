"""Values of users' tasks, as JSON can hold them."""

import math
from typing import Any

MAX_REPR = 1_000
MAX_DEPTH = 50
MAX_INT = 2**63 - 1
"""Larger integers are valid JSON, but few readers keep them exact."""


def json_safe(value: Any, depth: int = 0) -> Any:  # noqa: PLR0911 - one return per kind of value
    """A copy of `value` made of JSON types only; what JSON cannot hold becomes its (capped) repr."""
    if value is None or type(value) in (str, bool):
        return value
    if type(value) is int:
        return value if -MAX_INT <= value <= MAX_INT else _capped_repr(value)
    if type(value) is float:
        return value if math.isfinite(value) else _capped_repr(value)
    if depth >= MAX_DEPTH:
        return _capped_repr(value)
    if isinstance(value, dict):
        return {
            key if type(key) is str else _capped_repr(key): json_safe(item, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [json_safe(item, depth + 1) for item in value]
    return _capped_repr(value)


def _capped_repr(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may do anything
        text = f"<{type(value).__name__}: its repr raised {type(error).__name__}>"
    return text if len(text) <= MAX_REPR else text[:MAX_REPR] + "…"
