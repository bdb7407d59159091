"""JSON as users' files may use it, as strict as the YAML reader: each key once, nothing that few can read."""

import json
import math
from typing import Any, Never

from pyoco_server.domain.json_values import MAX_INT
from pyoco_server.domain.yaml_reading import MAX_DEPTH
from pyoco_server.errors import InvalidRequest


def read_json(text: str, name: str) -> Any:
    """Raises InvalidRequest, which says what of the file `name` is wrong."""
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_int, parse_float=_float
        )
        _check(value, 0)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"{name}, {place}: {error.msg}") from error
    except RecursionError as error:
        raise InvalidRequest(f"{name}: {_TOO_DEEP}") from error
    except _Refused as refused:
        raise InvalidRequest(f"{name}: {refused}") from refused
    return value


_TOO_DEEP = f"lists and objects are nested more than {MAX_DEPTH} deep"


class _Refused(Exception):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Refused(f"the key {key[:64]!r} is there twice in one object")
        found[key] = value
    return found


def _constant(text: str) -> Never:
    raise _Refused(f"{text} is not a number that JSON has")


def _int(text: str) -> int:
    if len(text) > len(str(-MAX_INT)) or abs(int(text)) > MAX_INT:
        raise _Refused(f"the number {text[:40]} has more than 64 bits; write it in quotes")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Refused(f"the number {text[:40]} is too large; write it in quotes")
    return value


def _check(value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _Refused(_TOO_DEEP)
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(key)
            _check(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check(item, depth + 1)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Refused("half of a surrogate pair is not a character") from error
