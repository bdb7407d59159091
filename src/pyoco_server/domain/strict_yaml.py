"""Strict YAML for external files: JSON values only, without duplicate keys, with positions for errors.

Files are untrusted. They are read as a stream of events with limits that apply before any value is built,
and YAML features beyond JSON are refused.
"""

import math
import re
from copy import deepcopy
from typing import Any, Never

import yaml
from msgspec import Struct

from pyoco_server.domain.inputs import read_json
from pyoco_server.domain.values import MAX_INT, MIN_INT
from pyoco_server.errors import InvalidRequest

MAX_DEPTH = 50
MAX_ALIASES = 10
MARKED_DEPTH = 3
"""Positions are kept for keys down to `tasks.<name>.<key>`; deeper keys are user data."""

Path = tuple[str, ...]

# The C parser is some twenty times faster; PyYAML's wheels include it, but not every build does.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Mark(Struct, frozen=True):
    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


class YamlKind(Struct, frozen=True, kw_only=True):
    """The kind of file and its limits."""

    name: str
    max_nodes: int
    """Keys and values together."""
    text_keys: frozenset[str] = frozenset()
    """Keys to read as text although YAML 1.1 parses them as booleans: `on`."""


FLOW_YAML = YamlKind(name="flow.yaml", max_nodes=5_000)
"""The limit is more than a flow needs, and is read in some 20 ms."""
GRAPH_YAML = YamlKind(name="graph", max_nodes=100_000, text_keys=frozenset({"on"}))


class YamlDocument(Struct, frozen=True):
    kind: YamlKind
    value: Any
    marks: dict[Path, Mark]

    def refuse(self, path: Path, problem: str) -> Never:
        """Raise InvalidRequest for the value at `path`, or for a missing one."""
        place = ".".join(path)
        mark = next((self.marks[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.marks), None)
        raise InvalidRequest(
            f"{self.kind.name}, {mark or 'top level'}: {place}{' ' if place else ''}{problem}"
        )


class _Refused(Exception):
    def __init__(self, mark: Mark, problem: str) -> None:
        super().__init__(f"{mark}: {problem}")


def decode(data: bytes, kind: YamlKind = FLOW_YAML) -> str:
    """The text of a file. UTF-8 only, so that bytes, hash and text are equivalent."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InvalidRequest(f"{kind.name}, line 1, column 1: UTF-16; save the file as UTF-8")
    if b"\x00" in data:
        mark = _mark_in_bytes(data, data.index(0))
        raise InvalidRequest(f"{kind.name}, {mark}: NUL byte; save the file as UTF-8")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        mark = _mark_in_bytes(data, error.start)
        raise InvalidRequest(f"{kind.name}, {mark}: the file is not UTF-8") from error


def read_yaml(text: str, kind: YamlKind = FLOW_YAML) -> YamlDocument:
    """Raises InvalidRequest with line and column unless the text is one JSON-like document."""
    try:
        _check_characters(text)
        reader = _Reader(text, kind)
        return YamlDocument(kind, reader.document(), reader.marks)
    except _Refused as refused:
        raise InvalidRequest(f"{kind.name}, {refused}") from refused
    except yaml.MarkedYAMLError as error:
        where = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "not valid YAML"
        raise InvalidRequest(f"{kind.name}, {_mark(where)}: {problem}") from error
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{kind.name}: {error}") from error


def shown(value: str) -> str:
    """A text of the file for a message, short and on one line."""
    return repr(value if len(value) <= 60 else value[:60] + "…")  # noqa: PLR2004 - as long as fits a line


def place_in(text: str, index: int) -> Mark:
    return Mark(text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index))


def _check_characters(text: str) -> None:
    if text.startswith("\ufeff"):
        raise _Refused(Mark(1, 1), "byte order mark; save the file as UTF-8 without BOM")
    if found := _UNPRINTABLE.search(text):
        mark, number = place_in(text, found.start()), ord(found.group())
        raise _Refused(mark, f"the character U+{number:04X} is not allowed")


class _Reader:
    """One pass over the events of a text; limits apply before a node is built."""

    def __init__(self, text: str, kind: YamlKind) -> None:
        self.marks: dict[Path, Mark] = {}
        self._kind = kind
        self._events = yaml.parse(text, Loader=_LOADER)
        self._nodes = 0
        self._aliases = 0
        self._anchors: dict[str, Any] = {}

    def document(self) -> Any:
        self._next()  # the stream's start
        start = self._next()
        if isinstance(start, yaml.StreamEndEvent):
            _refuse(start, "the file is empty")
        value = self._node(self._next(), (), 0)
        self._next()  # the document's end
        after = self._next()
        if not isinstance(after, yaml.StreamEndEvent):
            _refuse(after, "second document; only one is allowed")
        return value

    def _next(self) -> Any:
        return next(self._events)

    def _node(self, event: Any, path: Path, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._copy(event, depth)
        self._count(event, 1)
        _refuse_tag(event)
        value = self._value(event, path, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _value(self, event: Any, path: Path, depth: int) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        _check_depth(event, depth + 1)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path, depth + 1)
        return self._sequence(path, depth + 1)

    def _mapping(self, path: Path, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            self._count(event, 1)
            key = _key(event, self._kind.text_keys)
            if key in mapping:
                _refuse(event, f"duplicate key {shown(key)}")
            place = (*path, key)
            if len(place) <= MARKED_DEPTH:
                self.marks[place] = _mark(event.start_mark)
            mapping[key] = self._node(self._next(), place, depth)
        return mapping

    def _sequence(self, path: Path, depth: int) -> list[Any]:
        items = []
        # Keys below a list get no position, because they would overwrite each other.
        below = (*path, *[""] * MARKED_DEPTH)
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._node(event, below, depth))
        return items

    def _copy(self, event: Any, depth: int) -> Any:
        """The value of an alias, counted as if written out, so that a small file stays a small value."""
        self._aliases += 1
        if self._aliases > MAX_ALIASES:
            _refuse(event, f"more than {MAX_ALIASES} aliases (*name); write out the values")
        if event.anchor not in self._anchors:
            _refuse(event, f"the alias *{event.anchor} has no preceding anchor &{event.anchor}")
        value = self._anchors[event.anchor]
        self._count(event, _size(value))
        _check_depth(event, depth + _height(value))
        return deepcopy(value)

    def _count(self, event: Any, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > self._kind.max_nodes:
            _refuse(event, f"more than {self._kind.max_nodes:,} keys and values")


def _key(event: Any, text_keys: frozenset[str]) -> str:
    if not isinstance(event, yaml.ScalarEvent):
        _refuse(event, "a key must be a plain string, not a list, an object or an alias")
    _refuse_tag(event)
    kind = _kind(event)
    if kind == "merge":
        _refuse(event, "merge keys (<<) are not allowed; write out the keys")
    if kind != "str" and event.value not in text_keys:
        _refuse(event, f"YAML does not read the key {shown(event.value)} as a string; write it in quotes")
    return _text(event)


def _scalar(event: Any) -> Any:
    kind = _kind(event)
    if kind == "timestamp":
        _refuse(event, f"{shown(event.value)} is a date, which JSON does not have; write it in quotes")
    if kind not in _CONSTRUCTORS:
        _refuse(event, f"{shown(event.value)} is not a JSON value; write it in quotes")
    if kind == "str":
        return _text(event)
    try:
        value = _CONSTRUCTORS[kind](yaml.ScalarNode(_TAG + kind, event.value))
    except ValueError:
        _refuse(event, f"{shown(event.value)} is not a number; write it in quotes")
    if isinstance(value, float) and not math.isfinite(value):
        _refuse(event, f"{shown(event.value)} is not a number that JSON has; write it in quotes")
    if isinstance(value, int) and not MIN_INT <= value <= MAX_INT:
        _refuse(event, f"the number {shown(event.value)} has more than 64 bits; write it in quotes")
    return value


_resolver = yaml.resolver.Resolver()
_constructor = yaml.constructor.SafeConstructor()
# Numbers and booleans as in pyoco, which reads the same file with PyYAML's safe loader.
_CONSTRUCTORS = {
    "null": _constructor.construct_yaml_null,
    "bool": _constructor.construct_yaml_bool,
    "int": _constructor.construct_yaml_int,
    "float": _constructor.construct_yaml_float,
    "str": _constructor.construct_yaml_str,
}


def _kind(event: Any) -> str:
    """The YAML 1.1 type of an untagged scalar, e.g. `str`, `int` or `timestamp`."""
    tag: str = _resolver.resolve(yaml.ScalarNode, event.value, event.implicit)
    return tag.removeprefix(_TAG)


def _text(event: Any) -> str:
    text: str = event.value
    try:
        text.encode()
    except UnicodeEncodeError:
        _refuse(event, "half of a surrogate pair is not a character")
    return text


def _refuse_tag(event: Any) -> None:
    if event.tag is not None:
        _refuse(event, f"the tag {shown(event.tag)} is not allowed")


def _check_depth(event: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        _refuse(event, f"lists and objects are nested more than {MAX_DEPTH} deep")


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(1 + _size(item) for item in value.values())
    return 1 + sum(map(_size, value)) if isinstance(value, list) else 1


def _height(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if items is None else 1 + max(map(_height, items), default=0)


def _refuse(event: Any, problem: str) -> Never:
    raise _Refused(_mark(event.start_mark), problem)


def _mark(mark: Any) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


def _mark_in_bytes(data: bytes, index: int) -> Mark:
    return Mark(data.count(b"\n", 0, index) + 1, index - data.rfind(b"\n", 0, index))


# Graphs, which may also be JSON


def graph_definition(text: str | bytes, content_type: str | None) -> dict[str, Any]:
    """The unvalidated definition in a text: JSON by content type, else YAML. Raises InvalidRequest."""
    if isinstance(text, bytes):
        text = decode(text, GRAPH_YAML)
    kind = (content_type or "").partition(";")[0].strip().lower()
    is_json = kind == "application/json" or kind.endswith("+json")
    definition = read_json(text, GRAPH_YAML.name) if is_json else read_yaml(text, GRAPH_YAML).value
    if not isinstance(definition, dict):
        raise InvalidRequest("graph: must be an object with id, nodes and edges")
    return definition
