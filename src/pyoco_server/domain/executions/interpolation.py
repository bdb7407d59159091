"""`${…}` in the params of a node: references to values of the execution.

A path is `input` or `nodes.<id>.output` (or `.status`, `.error`), followed by `.key`, `['any key']` and
`[0]`. A text that consists of one `${…}` becomes the value itself; inside other text, strings are inserted as
they are and other values as JSON. `$${` is a literal `${`. There are no computations; use conditions and
tasks.

`${secrets.x}` and `${vars.x}` of the graph stay as they are, and their places are noted: a worker puts the
values there, later. What an input or an output contains is inserted before, and is never a reference.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Never

import msgspec
from msgspec import Struct

from pyoco_server.domain.executions.stored import CannotOpen, Stored
from pyoco_server.domain.inputs import nearest
from pyoco_server.domain.large_values import Place, Step, at_place, with_value
from pyoco_server.domain.secrets.references import Kind, Path, Reference, References, named

NODE_FIELDS = ("output", "status", "error")
"""The readable fields of a node."""
MAX_DEPTH = 100
"""Depth limit, because deeper values would exceed Python's stack."""
MAX_PATH = 500
MAX_RENDERED = 1024 * 1024
"""Approximate limit of a rendered value in bytes; the message limit of NATS."""
BYTES_PER_STEP = 100
MAX_KEPT = 1_000
"""Length limit of texts whose parts are cached."""

_PART = re.compile(r"""\$\$\{|\$\{((?:[^}'"]|'[^']*'|"[^"]*")*)(\}?)""")
_STEP = re.compile(r"\.([A-Za-z0-9_-]+)|\[(\d{1,9})\]|\['([^']*)'\]|\[\"([^\"]*)\"\]")
_ROOT = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN_KEYS = 10
_LATER = frozenset(kind.value for kind in Kind)
"""Roots whose values are put in by a worker."""
_LOCAL = ("iteration", "item", "items", "index")
"""Roots that only the params inside a certain node have."""
_WHERE = {
    "iteration": "in the params of the task inside a repeat",
    "item": "in the params or the input of a map without batch",
    "items": "in the params or the input of a map with batch",
    "index": "in the params or the input of a map",
}
_ROOTS = ("input", "nodes", *Kind, *_LOCAL)
NOTHING_STORED = Stored(None)


class TemplateError(Exception):
    """An invalid template; the text contains the fix."""


class TemplateFailed(Exception):
    """A referenced value does not exist; the text contains the existing part of the path."""


class _Reference(Struct, frozen=True):
    """The path of one `${…}`."""

    text: str
    root: str
    steps: tuple[Step, ...]

    @property
    def path(self) -> Place:
        return (self.root, *map(str, self.steps))


def check(value: object, *, allows_secrets: bool = True, local: tuple[str, ...] = ()) -> frozenset[str]:
    """The ids of the nodes that `value` reads. Raises TemplateError."""
    found = list(_references(value, 0))
    if unknown := next((one for one in found if one.root in _LOCAL and one.root not in local), None):
        raise TemplateError(f"'${{{unknown.text}}}' is only available {_WHERE[unknown.root]}")
    if not allows_secrets and (secret := next((one for one in found if one.root in _LATER), None)):
        raise TemplateError(f"'${{{secret.text}}}' is only resolved in the params of a task")
    return frozenset(str(reference.steps[0]) for reference in found if reference.root == "nodes")


def is_reference(text: str) -> bool:
    """Whether a text is one `${…}` and nothing else. Raises TemplateError."""
    parts = _parts(text)
    return len(parts) == 1 and isinstance(parts[0], _Reference)


def has_references(value: object) -> bool:
    """Raises TemplateError."""
    return next(_references(value, 0), None) is not None


def found_at(
    text: str,
    *,
    input: Any,  # noqa: A002 - the word of graphs
    nodes: Mapping[str, Mapping[str, Any]],
    stored: Stored = NOTHING_STORED,
) -> tuple[Any, tuple[Place, ...]]:
    """The value of one `${…}`, whose size does not matter, and the places of stored values in it.

    The value itself is opened if it is stored. Raises TemplateFailed, Lacking.
    """
    part = _parts(text)[0]
    assert isinstance(part, _Reference)  # noqa: S101 - checked at registration
    roots = {"input": input, "nodes": nodes}
    noted = stored.noted(part.path)
    if any(len(place) <= len(part.path) for place in noted):
        return _opened(part, roots, stored), ()
    return _found(part, roots), tuple(place[len(part.path) :] for place in noted)


class Rendered(Struct, frozen=True):
    value: Any
    size: int
    """Approximate, in bytes."""
    references: References
    """Places in `value` that name secrets and variables."""
    values: tuple[Place, ...] = ()
    """Places in `value` with references to stored values."""


def render(value: Any, *, input: Any, nodes: Mapping[str, Mapping[str, Any]]) -> Any:  # noqa: A002 - the word of graphs
    """`value` with every `${…}` replaced. Raises TemplateFailed, or TemplateError as `check` does."""
    return rendered(value, input=input, nodes=nodes).value


def rendered(
    value: Any,
    *,
    input: Any,  # noqa: A002 - the word of graphs
    nodes: Mapping[str, Mapping[str, Any]],
    local: Mapping[str, Any] | None = None,
    stored: Stored = NOTHING_STORED,
) -> Rendered:
    """Like `render`, with more about it. `local`: what only this node can read.

    Raises Lacking for a stored value inside a text.
    """
    rendering = _Rendering({"input": input, "nodes": nodes, **(local or {})}, stored)
    whole = rendering.of(value, ())
    return Rendered(whole, rendering.size, tuple(rendering.references), tuple(rendering.values))


def _references(value: object, depth: int) -> Iterator[_Reference]:
    _check_depth(depth)
    if isinstance(value, str):
        yield from (part for part in _parts(value) if isinstance(part, _Reference))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_key(key)
            yield from _references(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _references(item, depth + 1)


class _Rendering:
    """Counts before building, because references may repeat a large value many times."""

    def __init__(self, roots: Mapping[str, Any], stored: Stored) -> None:
        self._roots = roots
        self._stored = stored
        self.size = 0
        self.references: list[Reference] = []
        self.values: list[Place] = []

    def of(self, value: Any, path: Path) -> Any:
        _check_depth(len(path))
        if isinstance(value, str):
            return self._text(_parts(value), path)
        if isinstance(value, Mapping):
            return {key: self.of(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.of(item, (*path, index)) for index, item in enumerate(value)]
        return value

    def _text(self, parts: tuple[str | _Reference, ...], path: Path) -> Any:
        if len(parts) == 1 and isinstance(parts[0], _Reference) and parts[0].root not in _LATER:
            value = self._whole(parts[0], path)
            self._add(parts[0].text, _size(value))
            return value
        texts: list[str] = []
        at = 0
        for part in parts:
            texts.append(text := self._part(part))
            if isinstance(part, _Reference) and part.root in _LATER:
                self.references.append(Reference(path, at, at + len(text)))
            at += len(text)
        return "".join(texts)

    def _whole(self, reference: _Reference, path: Path) -> Any:
        """Stored values in it, or above it, stay references."""
        wanted, to = reference.path, tuple(map(str, path))
        noted = self._stored.noted(wanted)
        above = next((place for place in noted if len(place) < len(wanted)), None)
        if above is None:
            self.values += [(*to, *place[len(wanted) :]) for place in noted]
            return _found(reference, self._roots)
        self.values.append(to)
        whole = at_place(self._roots, above)
        return {**whole, "part": [*whole.get("part", ()), *reference.steps[len(above) - 1 :]]}

    def _part(self, part: str | _Reference) -> str:
        if isinstance(part, str):
            self._add(part, len(part))
            return part
        if part.root in _LATER:
            self._add(part.text, len(part.text))
            return f"${{{part.text}}}"
        text = _as_text(_opened(part, self._roots, self._stored))
        self._add(part.text, len(text))
        return text

    def _add(self, where: str, size: int) -> None:
        self.size += size
        if self.size > MAX_RENDERED:
            raise TemplateFailed(
                f"at '{_short(where)}': more than {MAX_RENDERED:,} bytes; "
                "pass references to large values instead of the values"
            )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return len(msgspec.json.encode(value)) if isinstance(value, (Mapping, list, tuple)) else 1


def _opened(reference: _Reference, roots: Mapping[str, Any], stored: Stored) -> Any:
    """With stored values in place of references to them. Raises TemplateFailed, Lacking."""
    noted = stored.noted(reference.path)
    try:
        values = {place: stored.look(roots, place) for place in noted}
    except CannotOpen as error:
        raise TemplateFailed(f"${{{reference.text}}}: {error}") from None
    return _found(reference, filled(roots, values))


def filled(roots: Mapping[str, Any], values: Mapping[Place, Any]) -> Mapping[str, Any]:
    """With other values at some places."""
    for place, value in values.items():
        roots = with_value(roots, place, value)
    return roots


def _found(reference: _Reference, roots: Mapping[str, Any]) -> Any:
    if reference.root not in roots:
        _missing(reference, f"it is only available {_WHERE[reference.root]}")
    value, path = roots[reference.root], reference.root
    for step in reference.steps:
        value = _below(value, step, path, reference)
        path += _written(step)
    return value


def _below(value: Any, step: Step, path: str, reference: _Reference) -> Any:
    if isinstance(step, str) and isinstance(value, Mapping):
        if step in value:
            return value[step]
        _missing(reference, f"{path} has no {step!r}{nearest(step, map(str, value))}; {_keys_of(value)}")
    if isinstance(step, int) and isinstance(value, (list, tuple)):
        if step < len(value):
            return value[step]
        _missing(reference, f"{path} has {len(value)} items, so [{step}] does not exist")
    wanted = "a list" if isinstance(step, int) else "an object"
    return _missing(
        reference, f"{path} is {kind_of(value)}, not {wanted}, so {_written(step)} does not exist"
    )


def _missing(reference: _Reference, problem: str) -> Never:
    raise TemplateFailed(f"${{{reference.text}}}: {problem}")


def _keys_of(value: Mapping[Any, Any]) -> str:
    if not value:
        return "it is empty"
    shown = ", ".join(str(key) for key in list(value)[:_SHOWN_KEYS])
    return f"it has {shown}{', …' if len(value) > _SHOWN_KEYS else ''}"


def kind_of(value: Any) -> str:
    """The kind of a value; the value itself may be confidential."""
    if value is None:
        return "null"
    kinds = {bool: "a boolean", str: "a string", int: "a number", float: "a number"}
    if isinstance(value, Mapping):
        return "an object"
    return kinds.get(type(value), "a list" if isinstance(value, (list, tuple)) else type(value).__name__)


def _written(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _ROOT.fullmatch(step) else f"[{step!r}]"


def _parts(text: str) -> tuple[str | _Reference, ...]:
    return _kept_parts(text) if len(text) <= MAX_KEPT else _cut(text)


@lru_cache(maxsize=4_096)
def _kept_parts(text: str) -> tuple[str | _Reference, ...]:
    return _cut(text)


def _cut(text: str) -> tuple[str | _Reference, ...]:
    """The text split into literals and references; adjacent literals are merged."""
    parts: list[str | _Reference] = []
    literal: list[str] = []
    end = 0
    for found in _PART.finditer(text):
        literal.append(text[end : found.start()])
        if found.group() == "$${":
            literal.append("${")
        else:
            _add_text(parts, literal)
            parts.append(_reference(found))
        end = found.end()
    literal.append(text[end:])
    _add_text(parts, literal)
    return tuple(parts) or ("",)


def _add_text(parts: list[str | _Reference], literal: list[str]) -> None:
    if text := "".join(literal):
        parts.append(text)
    literal.clear()


def _reference(found: re.Match[str]) -> _Reference:
    text = found[1].strip()
    if not found[2]:
        raise TemplateError(f"'${{{_short(text)}' has no closing }}; write $${{ for a literal ${{")
    if len(text) > MAX_PATH:
        raise TemplateError(f"'${{{_short(text)}}}' has more than {MAX_PATH} characters")
    root, steps = _path(text)
    if root not in _ROOTS:
        raise TemplateError(
            f"'${{{_short(text)}}}' must begin with input, nodes, secrets or vars{nearest(root, _ROOTS)}; "
            "write $${ for a literal ${"
        )
    if root in _LATER and named(f"${{{text}}}") is None:
        raise TemplateError(f"'${{{_short(text)}}}' is not a reference like ${{{root}.name}}")
    if root == "nodes":
        _check_node_path(text, steps)
    return _Reference(text, root, steps)


def _path(text: str) -> tuple[str, tuple[Step, ...]]:
    root = _ROOT.match(text)
    if root is None:
        raise TemplateError(f"'${{{_short(text)}}}' is not a path like input.a.b[0] or nodes.x.output.y")
    steps: list[Step] = []
    end = root.end()
    while end < len(text):
        step = _STEP.match(text, end)
        if step is None:
            raise TemplateError(
                f"'${{{_short(text)}}}' is invalid at {_short(text[end:])!r}: "
                "a path continues with .key, ['any key'] or [0]"
            )
        steps.append(int(step[2]) if step[2] else step[step.lastindex or 0])
        end = step.end()
    return root.group(), tuple(steps)


def _check_node_path(text: str, steps: tuple[Step, ...]) -> None:
    if not steps or not isinstance(steps[0], str):
        raise TemplateError(f"'${{{_short(text)}}}' has no node id; write nodes.<id>.output")
    if len(steps) == 1 or steps[1] not in NODE_FIELDS:
        field = (
            f"{steps[1]!r}{nearest(str(steps[1]), NODE_FIELDS)} is not a field"
            if steps[1:]
            else "missing field"
        )
        raise TemplateError(
            f"'${{{_short(text)}}}': {field} of a node; write nodes.{steps[0]}.output, .status or .error"
        )


def _check_key(key: object) -> None:
    if "${" in str(key):
        raise TemplateError(
            f"the key {_short(str(key))!r} contains ${{, but only values are rendered, not keys"
        )


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise TemplateError(f"lists and objects are nested more than {MAX_DEPTH} deep")


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "…"  # noqa: PLR2004 - as long as fits a line
