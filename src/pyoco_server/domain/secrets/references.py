"""`${secrets.x}` and `${vars.x}` in params: where they are, and their values in place of them.

A gateway notes the places when it reads params of somebody who may name secrets. A worker puts values into
these places and nowhere else, so the same text from an outside sender stays text. `$${secrets.x}` is the
literal text; other texts with `${` are not touched.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from pyoco_server.errors import InvalidRequest

Path = tuple[str | int, ...]


class Kind(StrEnum):
    SECRET = "secrets"  # noqa: S105 - the word of references
    VARIABLE = "vars"

    @property
    def word(self) -> str:
        return "secret" if self is Kind.SECRET else "variable"


class Named(Struct, frozen=True, order=True):
    """What a reference stands for."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.word} {self.name!r}"


class Reference(Struct, frozen=True):
    """A place in params: from `start` up to `end` of the text at `path`."""

    path: Path
    start: int
    end: int


References = tuple[Reference, ...]

MAX_REFERENCES = 1_000
NAME = r"[A-Za-z0-9_-]{1,64}"
_BEGIN = re.compile(r"(\$?)\$\{\s*(secrets|vars)(?=\s*[.\[])")
_WHOLE = re.compile(rf"\$\{{\s*(secrets|vars)\.({NAME})\s*\}}")


def read(params: dict[str, Any], of: str = "params") -> tuple[dict[str, Any], References | None]:
    """The params without escapes, and the places of references in them; None: neither was there.

    `of`: what they are called in errors. Raises InvalidRequest with the place of a reference that is none.
    """
    if not _may_refer(params):
        return params, None
    reading = _Reading()
    try:
        read_params = reading.of(params, ())
    except _NoReference as error:
        raise InvalidRequest(f"{of}{written(error.path)}".lstrip(".") + f": {error}") from None
    return (read_params, tuple(reading.found)) if reading.has_syntax else (params, None)


def _may_refer(params: dict[str, Any]) -> bool:
    """Whether any text could hold a reference; a hundred times faster than a walk through large params."""
    try:
        return b"${" in msgspec.json.encode(params)
    except (TypeError, ValueError, OverflowError):  # a caller's own objects, refused elsewhere
        return True


class _NoReference(Exception):
    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(problem)
        self.path = path


class _Reading:
    def __init__(self) -> None:
        self.found: list[Reference] = []
        self.has_syntax = False

    def of(self, value: Any, path: Path) -> Any:
        if isinstance(value, str):
            return self._text(value, path) if "${" in value else value
        if isinstance(value, dict):
            for key in value:
                _check_key(key, path)
            changed = self._changed(value.items(), path)
            return {**value, **changed} if changed else value
        if isinstance(value, list) and (changed := self._changed(enumerate(value), path)):
            return [changed.get(index, item) for index, item in enumerate(value)]
        return value

    def _changed(self, items: Iterable[tuple[Any, Any]], path: Path) -> dict[Any, Any]:
        """Only these: a copy of large params would take as much memory again."""
        return {step: read for step, item in items if (read := self.of(item, (*path, step))) is not item}

    def _text(self, text: str, path: Path) -> str:
        parts: list[str] = []
        length = end = 0
        for begin in _BEGIN.finditer(text):
            if begin.start() < end:
                continue
            self.has_syntax = True
            literal = text[end : begin.start()]
            length += len(literal)
            if begin[1]:
                parts.append(literal)
                end = begin.start() + 1  # without the first $
                parts.append(text[end : begin.end()])
                length += begin.end() - end
                end = begin.end()
                continue
            whole = _whole_at(text, begin.start(), path)
            self._note(path, length, length + len(whole))
            parts += literal, whole
            length += len(whole)
            end = begin.start() + len(whole)
        return "".join([*parts, text[end:]]) if parts else text

    def _note(self, path: Path, start: int, end: int) -> None:
        self.found.append(Reference(path, start, end))
        if len(self.found) > MAX_REFERENCES:
            raise _NoReference((), f"more than {MAX_REFERENCES:,} references to secrets and variables")


def _whole_at(text: str, start: int, path: Path) -> str:
    found = _WHOLE.match(text, start)
    if found is None:
        raise _NoReference(
            path,
            f"'{_short(text[start:])}' is not a reference like ${{secrets.name}}; "
            "write $${ for a literal ${",
        )
    return found.group()


def _check_key(key: object, path: Path) -> None:
    if "${" in str(key) and _BEGIN.search(str(key)):
        raise _NoReference(
            path,
            f"the key {_short(str(key))!r} names a secret or variable, "
            "but only values are resolved, not keys",
        )


def written(path: Path) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step[:64]}" for step in path)


def has_syntax(value: Any) -> bool:
    """Whether a value names secrets or variables anywhere."""
    try:
        return read({"": value})[1] is not None
    except InvalidRequest:
        return True


def named(text: str) -> Named | None:
    """What a whole `${…}` stands for."""
    found = _WHOLE.fullmatch(text)
    return None if found is None else Named(Kind(found[1]), found[2])


def named_in(params: dict[str, Any], references: Iterable[Reference]) -> list[Named]:
    """Each once, in order. Raises InvalidRequest."""
    return sorted({_named_at(params, reference)[1] for reference in references})


def _named_at(params: dict[str, Any], reference: Reference) -> tuple[str, Named]:
    """The text at its path, and what it names. The sender of a job is untrusted."""
    value: Any = params
    try:
        for step in reference.path:
            value = value[step]
    except (LookupError, TypeError):
        value = None
    found = named(value[reference.start : reference.end]) if isinstance(value, str) else None
    if found is None:
        raise InvalidRequest(f"params{written(reference.path)}: there is no reference at its noted place")
    return value, found


def under(references: References | None, keys: Iterable[str]) -> References:
    """Those below some keys of the params."""
    wanted = set(keys)
    return tuple(one for one in references or () if one.path and one.path[0] in wanted)


# Values in place of references


def resolved(params: dict[str, Any], references: References, values: Mapping[Named, Any]) -> dict[str, Any]:
    """A copy of the params with values. Raises InvalidRequest."""
    by_path: dict[Path, list[Reference]] = {}
    for reference in references:
        by_path.setdefault(reference.path, []).append(reference)
    copied: dict[str, Any] = _copied(params)
    for path, of_text in by_path.items():
        _put(copied, path, _filled(params, of_text, values))
    return copied


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _filled(params: dict[str, Any], references: list[Reference], values: Mapping[Named, Any]) -> Any:
    """A text that is one reference becomes the value itself; inside other text, other values are JSON."""
    parts, end, text = [], 0, ""
    for reference in sorted(references, key=lambda one: one.start):
        text, of = _named_at(params, reference)
        if (reference.start, reference.end) == (0, len(text)):
            return values[of]
        parts += [text[end : reference.start], as_text(values[of])]
        end = reference.end
    return "".join([*parts, text[end:]])


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _put(params: Any, path: Path, value: Any) -> None:
    *above, last = path
    for step in above:
        params = params[step]
    params[last] = value


def references_in(value: Any) -> Iterator[Named]:
    """What a template names, wherever: for a check before it is used. Raises InvalidRequest."""
    params, found = read({"params": value})
    yield from named_in(params, found or ())


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "…"  # noqa: PLR2004 - as long as fits a line
