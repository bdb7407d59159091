"""Checks of external input: names before they become part of a subject, a key or a file name; strict JSON."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from itertools import islice
from typing import Any
from unicodedata import category

import msgspec

from pyoco_server.domain.values import MAX_DEPTH, MAX_INT, MIN_INT
from pyoco_server.errors import InvalidRequest

_TAG = re.compile(r"[A-Za-z0-9_-]{1,64}")
_RUN_ID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_WORKER_ID = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
MAX_TAGS = 32
MAX_LABEL = 64
LABEL_RULE = f"1 to {MAX_LABEL} characters and no control characters"
_CONTROL = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Control characters, surrogates and line separators."""
MAX_FLOW_NAME = 200
MAX_WORKER_ID = 128
MAX_DELAY_SEC = 366 * 86_400.0


def is_tag(text: str) -> bool:
    """A tag is one token of a subject: no dots, wildcards or spaces."""
    return _TAG.fullmatch(text) is not None


def is_label(text: str) -> bool:
    """One of a run's `tags`: a label for filtering, not part of a subject."""
    return 1 <= len(text) <= MAX_LABEL and not any(category(character) in _CONTROL for character in text)


def is_run_id(text: str) -> bool:
    """A run id is a UUID in canonical form; nothing else reaches NATS."""
    return _RUN_ID.fullmatch(text) is not None


def is_worker_id(text: str) -> bool:
    """Worker ids are bucket keys and often host names, so inner dots are allowed."""
    return len(text) <= MAX_WORKER_ID and _WORKER_ID.fullmatch(text) is not None


def require_tag(text: str) -> str:
    if not is_tag(text):
        raise InvalidRequest(f"tag {text!r} must match [A-Za-z0-9_-]{{1,64}}")
    return text


def unix_time(value: float | str) -> float:
    """Of Unix seconds, or RFC 3339 with an offset: without one, the time would depend on the reader.

    Raises ValueError.
    """
    if not isinstance(value, str):
        return value
    try:
        at = datetime.fromisoformat(value.upper())  # RFC 3339 allows `t` and `z`
    except ValueError as error:
        raise ValueError("must be Unix seconds or RFC 3339, e.g. 2026-12-01T02:00:00+09:00") from error
    if at.tzinfo is None:
        raise ValueError("must have an offset, e.g. 2026-12-01T02:00:00+09:00")
    return at.timestamp()


def time_in_text(text: str) -> float:
    """The same, where numbers are text, too: queries and options. Raises ValueError."""
    return unix_time(float(text) if text.replace(".", "", 1).isdecimal() else text)


class Priority(StrEnum):
    """Which of the runs that wait for the same tag start first."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


# Suggestions for misspelled words

MAX_WORD = 64
MAX_KNOWN = 1_000
"""A comparison takes some 20 µs per word, so the number is limited per request."""


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean …?)` if there is a similar word, else an empty string."""
    if len(word) > MAX_WORD:
        return ""
    words = [other for other in islice(known, MAX_KNOWN) if len(other) <= MAX_WORD]
    found = get_close_matches(word, words, n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


# Strict JSON: no duplicate keys, no values beyond interoperable JSON

_TOO_DEEP = f"lists and objects are nested more than {MAX_DEPTH} deep"
_MANY_DIGITS = re.compile(rb"\d{19}")
"""An integer with fewer digits fits into 64 bits."""
_INT_DIGITS = len(str(MIN_INT))
_SURROGATE = "half of a surrogate pair is not a character"

Path = tuple[str | int, ...]


class Refused(Exception):
    """Invalid JSON, with its path and the problem."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    @property
    def place(self) -> str:
        return ".".join(map(str, self.path))

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}" if self.path else self.problem


def decode_json(body: bytes) -> Any:
    """Decode a request body or a part of it. Raises Refused.

    A second parser checks only suspicious bodies: with more colons than keys (a duplicate key, or a colon in
    a text), or with many digits in a row.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        for problem in _explained(body):
            raise problem from None
        raise Refused((), f"JSON: {error}") from error
    if body.count(b":") != _keys_in(value) or _MANY_DIGITS.search(body):
        for problem in _explained(body):
            raise problem
    return value


def read_json(text: str, name: str) -> Any:
    """Raises InvalidRequest with the problem and its place in the file `name`."""
    try:
        value = _parsed(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"{name}, {place}: {error.msg}") from error
    except RecursionError as error:
        raise InvalidRequest(f"{name}: {_TOO_DEEP}") from error
    for refused in _problems(value, (), 0):
        raise InvalidRequest(f"{name}: {refused}")
    return value


def _explained(body: bytes) -> Iterator[Refused]:
    """The problems with their places, as far as the body can be parsed."""
    try:
        yield from _problems(_parsed(body.decode()), (), 0)
    except RecursionError:
        yield Refused((), _TOO_DEEP)
    except ValueError:
        return


def _keys_in(value: Any) -> int:
    """The number of keys in all objects; -1 if nested too deep."""
    keys, level, depth = 0, [value], 0
    while level:
        if depth > MAX_DEPTH:
            return -1
        inner: list[Any] = []
        for item in level:
            if type(item) is dict:
                keys += len(item)
                inner += item.values()
            elif type(item) is list:
                inner += item
        level, depth = inner, depth + 1
    return keys


class _WithDuplicate(dict[str, Any]):
    """An object with a duplicate key."""

    key = ""


class _InvalidNumber:
    def __init__(self, problem: str) -> None:
        self.problem = problem


def _parsed(text: str) -> Any:
    """Parse with markers in place of invalid values, because the parser's hooks do not know the path."""
    return json.loads(
        text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_int, parse_float=_float
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    twice = _WithDuplicate(found)
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            twice.key = key
            break
        seen.add(key)
    return twice


def _constant(text: str) -> _InvalidNumber:
    return _InvalidNumber(f"{text} is not a number that JSON has; use null or a string")


def _int(text: str) -> int | _InvalidNumber:
    if len(text) > _INT_DIGITS or not MIN_INT <= int(text) <= MAX_INT:
        return _InvalidNumber(f"the number {text[:40]} has more than 64 bits; write it in quotes")
    return int(text)


def _float(text: str) -> float | _InvalidNumber:
    value = float(text)
    if not math.isfinite(value):
        return _InvalidNumber(f"the number {text[:40]} is too large; write it in quotes")
    return value


def _problems(value: Any, path: Path, depth: int) -> Iterator[Refused]:
    if depth > MAX_DEPTH:
        yield Refused(path[:3], _TOO_DEEP)
    elif type(value) is str:
        yield from _text_problems(value, path)
    elif type(value) is _InvalidNumber:
        yield Refused(path, value.problem)
    elif isinstance(value, dict):
        if isinstance(value, _WithDuplicate):
            yield Refused((*path, value.key[:64]), f"duplicate key {value.key[:64]!r}")
        for key, item in value.items():
            yield from _text_problems(key, path)
            yield from _problems(item, (*path, key[:64]), depth + 1)
    elif type(value) is list:
        for index, item in enumerate(value):
            yield from _problems(item, (*path, index), depth + 1)


def _text_problems(text: str, path: Path) -> Iterator[Refused]:
    try:
        text.encode()
    except UnicodeEncodeError:
        yield Refused(path, _SURROGATE)
