"""What an agent reads: short, without empty fields, with times that need no arithmetic."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

MAX_CHARS = 24_000
"""Of an answer; about 8,000 tokens."""
MAX_DEPTH = 10
CUT = "…"


class _Room(NamedTuple):
    text: int
    """Characters of a text."""
    items: int
    """Entries of a list or an object."""


_ROOMS = (_Room(4_000, 100), _Room(1_000, 100), _Room(300, 100), _Room(150, 30), _Room(100, 8))
"""The first in which an answer is short enough is taken."""
_VERBATIM = frozenset(
    {"params", "params_schema", "result", "input", "inputs", "output", "data", "resume_data"}
)
"""Values of users: shortened, but not changed otherwise."""
_TIMES = frozenset({"at", "deadline", "not_before", "since", "until"})
_EMPTY: tuple[object, ...] = (None, "", [], {})


def answer(value: Mapping[str, Any]) -> str:
    """JSON of at most `MAX_CHARS` characters. What is left out is marked. An empty list is an answer, too."""
    shown = {name: _field(name, inner) for name, inner in value.items() if inner is not None}
    texts = (_json(_short(shown, room, MAX_DEPTH)) for room in _ROOMS)
    return next((text for text in texts if len(text) <= MAX_CHARS), None) or shortened(
        _json(shown), MAX_CHARS
    )


def readable(value: Any) -> Any:
    """Without fields that say nothing; times in ISO 8601."""
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {name: _field(name, inner) for name, inner in value.items() if inner not in _EMPTY}


def _field(name: str, value: Any) -> Any:
    if name in _VERBATIM:
        return value
    is_time = name in _TIMES or name.endswith(("_at", "_time"))
    if is_time and isinstance(value, int | float) and not isinstance(value, bool):
        return iso(value)
    return readable(value)


def iso(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def chosen(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """These fields, where there is something in them."""
    return {name: record[name] for name in names if record.get(name) not in _EMPTY}


def shortened(text: str, room: int) -> str:
    """Its beginning and its end: a traceback ends with what went wrong."""
    if len(text) <= room:
        return text
    mark = f" {CUT} {len(text) - room:,} characters left out {CUT} "
    head = room // 3
    return text[:head] + mark + text[len(text) - (room - head) :]


def _short(value: Any, room: _Room, depth: int) -> Any:
    if isinstance(value, str):
        return shortened(value, room.text)
    if not isinstance(value, Mapping | list):
        return value
    if depth == 0:
        return CUT
    if isinstance(value, list):
        items = [_short(item, room, depth - 1) for item in value[: room.items]]
        return items + _left_out(value, room)
    pairs = {
        shortened(name, room.text): _short(inner, room, depth - 1)
        for name, inner in islice(value.items(), room.items)
    }
    return pairs | dict.fromkeys(_left_out(value, room), CUT)


def _left_out(value: Mapping[str, Any] | list[Any], room: _Room) -> list[str]:
    more = len(value) - room.items
    return [f"{CUT} {more:,} more left out {CUT}"] if more > 0 else []


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


# Logs


class Line(NamedTuple):
    n: int
    """From 1, in the order of printing."""
    task: str | None
    stream: str
    text: str


HEAD_CHARS, TAIL_CHARS = 4_000, 14_000
"""A log ends with what went wrong."""
MAX_LINE = 600


def log_head_and_tail(lines: list[Line]) -> list[str]:
    head = _fitting(lines, HEAD_CHARS + TAIL_CHARS)
    if len(head) == len(lines):
        return head
    head = _fitting(lines, HEAD_CHARS)
    tail = _fitting(reversed(lines[len(head) :]), TAIL_CHARS)[::-1]
    first, last = len(head), len(lines) - len(tail)
    left_out = f"{CUT} {last - first:,} of {len(lines):,} lines left out here {CUT}"
    return [*head, left_out, *tail]


def log_from(lines: list[Line], first_line: int) -> list[str]:
    wanted = [line for line in lines if line.n >= first_line]
    shown = _fitting(wanted, HEAD_CHARS + TAIL_CHARS)
    if len(shown) == len(wanted):
        return shown
    return [*shown, f"{CUT} {len(wanted) - len(shown):,} more lines from line {wanted[len(shown)].n} {CUT}"]


def _fitting(lines: Iterable[Line], room: int) -> list[str]:
    """As many as there is room for, at least one."""
    shown: list[str] = []
    for line in lines:
        text = _shown_line(line)
        room -= len(text) + 1
        if room < 0 and shown:
            break
        shown.append(text)
    return shown


def _shown_line(line: Line) -> str:
    origin = "" if line.task is None else f" [{line.task}]"
    stream = "" if line.stream == "stdout" else f" {line.stream}:"
    return f"{line.n}{origin}{stream} {shortened(line.text, MAX_LINE)}"
