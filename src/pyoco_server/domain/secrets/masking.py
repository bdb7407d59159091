"""Secrets in what a flow returns, raises and prints, replaced by `•••`.

Masked are the value and the forms that Python and JSON write it in, each line of a value with several, and
a value that is printed in several pieces. What a flow computes from a secret cannot be recognised.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import quote, quote_plus

MASK = "•••"
MIN_LINE = 8
"""Shorter lines of a value with several lines occur in other texts, too: `}` or an empty one."""
MIN_HELD = 4
"""A line that ends with so many first characters of a secret waits for the next one."""

_CUT = "…"
Span = tuple[int, int]


def forms_of(value: str) -> set[str]:
    """The value as it may stand in a text."""
    once = {form for escaped in _ESCAPES for form in (value, escaped(value))}
    forms = once | {escaped(form) for escaped in _ESCAPES for form in once}
    raw = value.encode("utf-8", "surrogatepass")
    lines = [line.strip() for line in value.splitlines()]
    in_lines = {line for line in lines if len(line) >= MIN_LINE} if len(lines) > 1 else set()
    return forms | {quote(raw, safe=""), quote(raw), quote_plus(raw)} | in_lines


def _in_repr(value: str) -> str:
    """As in the repr of a text that has both kinds of quotes."""
    return repr(value + "'\"")[1:-4]


_ESCAPES: Sequence[Callable[[str], str]] = (
    lambda value: repr(value)[1:-1],
    _in_repr,
    lambda value: ascii(value)[1:-1],
    lambda value: repr(value.encode("utf-8", "surrogatepass"))[2:-1],
    lambda value: json.dumps(value)[1:-1],
    lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
)


class Masks:
    """The secrets of a run."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values = frozenset(value for value in values if value)
        forms = {form for value in self._values for form in forms_of(value) if form}
        self.forms = tuple(sorted(forms, key=len, reverse=True))

    def __bool__(self) -> bool:
        return bool(self.forms)

    def text(self, text: str) -> str:
        spans = self.spans(text)
        masked = _masked(text, spans) if spans else text
        return self._without_cut(masked) if masked.endswith(_CUT) else masked

    def _without_cut(self, text: str) -> str:
        """A preview may end within a secret."""
        begins = self.begins_at(text.removesuffix(_CUT))
        return text if begins is None else text[:begins] + MASK + _CUT

    def value(self, value: Any) -> Any:
        """The same object if there is nothing to mask."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            masked = {self.value(key): self.value(item) for key, item in value.items()}
            return value if _is_same(masked, value) else masked
        if isinstance(value, (list, tuple)):
            items = [self.value(item) for item in value]
            return value if all(map(_is, items, value)) else items
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return MASK if str(value) in self._values else value
        return value

    def spans(self, text: str) -> list[Span]:
        """All places of secrets, in order; those that overlap are one."""
        found: list[Span] = []
        for form in self.forms:
            start = text.find(form)
            while start >= 0:
                found.append((start, start + len(form)))
                start = text.find(form, start + 1)
        return _merged(sorted(found))

    def begins_at(self, text: str) -> int | None:
        """Where the end of the text may be the beginning of a secret; None: nowhere."""
        found = [start for form in self.forms if (start := _beginning(form, text)) is not None]
        return min(found, default=None)


NO_MASKS = Masks()


def _is(one: object, other: object) -> bool:
    return one is other


def _is_same(masked: dict[Any, Any], value: dict[Any, Any]) -> bool:
    return len(masked) == len(value) and all(
        key in value and value[key] is item for key, item in masked.items()
    )


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _masked(text: str, spans: list[Span]) -> str:
    parts, at = [], 0
    for start, end in spans:
        parts += [text[at:start], MASK]
        at = end
    return "".join([*parts, text[at:]])


def _beginning(form: str, text: str) -> int | None:
    """The first place from which the rest of the text is a beginning of the form, but not all of it."""
    if len(form) <= MIN_HELD:
        return None
    head, start = form[:MIN_HELD], max(0, len(text) - len(form) + 1)
    start = text.find(head, start)
    while start >= 0:
        if form.startswith(text[start:]):
            return start
        start = text.find(head, start + 1)
    return None


# Lines, as they are printed

T = TypeVar("T")


class LineMask(Generic[T]):
    """Masks lines of one stream. A secret may be split over lines; then the first of them wait.

    What belongs to a line (`about`) is given back with it.
    """

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self._held: list[tuple[str, T]] = []

    @property
    def is_empty(self) -> bool:
        return not self._held

    def add(self, line: str, about: T) -> list[tuple[str, T]]:
        """The lines that are complete now."""
        lines = self._masked([*self._held, (line, about)])
        bodies = [_body(text) for text, _ in lines]
        begins = self._masks.begins_at("".join(bodies))
        first = len(lines) if begins is None else _line_at(bodies, begins)
        self._held = lines[first:]
        return lines[:first]

    def rest(self) -> list[tuple[str, T]]:
        """At the end: what did not become a secret."""
        rest, self._held = self._held, []
        return rest

    def _masked(self, lines: list[tuple[str, T]]) -> list[tuple[str, T]]:
        spans = self._masks.spans("".join(_body(text) for text, _ in lines))
        if not spans:
            return lines
        masked, offset = [], 0
        for text, about in lines:
            body = _body(text)
            end = offset + len(body)
            own = [
                (max(s, offset) - offset, min(e, end) - offset) for s, e in spans if s < end and e > offset
            ]
            masked.append((_masked(body, own) + text[len(body) :], about))
            offset = end
        return masked


def _body(line: str) -> str:
    return line.removesuffix("\n")


def _line_at(bodies: Sequence[str], place: int) -> int:
    for index, body in enumerate(bodies):
        place -= len(body)
        if place < 0:
            return index
    return len(bodies)
