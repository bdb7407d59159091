"""`when` of an edge: an expression in CEL that says whether the edge is taken.

It sees `input` and, of the nodes that it names, `nodes.<id>.output`, `.status` and `.error`. CEL has no
side effects and always ends, but it can loop over lists; see docs/decisions/0009-conditions.md for why
one loop is allowed and what it may do.
"""

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

from cel_expr_python import cel
from msgspec import Struct

from pyoco_server.domain.execution.templates import NODE_FIELDS
from pyoco_server.domain.suggestions import nearest

MAX_LENGTH = 1_000
MAX_DEPTH = 100
"""Of what a condition reads: the library recurses in C, where too deep is a crash."""
MAX_LOOPED = 500
"""Values, and hundreds of characters, that an expression with a loop may read: its cost is their square."""
LOOPS = frozenset({"all", "exists", "exists_one", "filter"})

_ENVIRONMENT = cel.NewEnv(
    variables={
        "input": cel.Type.DYN,
        "nodes": cel.Type.Map(cel.Type.STRING, cel.Type.Map(cel.Type.STRING, cel.Type.DYN)),
    }
)
_TOKEN = re.compile(
    r"""
    \s+ | //[^\n]*
  | (?P<text>  [bBrR]{0,2} (?: \'{3}.*?\'{3} | "{3}.*?"{3} | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" ) )
  | (?P<name>  [A-Za-z_]\w* | `[^`]*` )
  | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_MESSAGE = re.compile(r"ERROR: <input>:(\d+):(\d+): (.*)")
_CODE = re.compile(r"^[A-Z_]+: ")


class ConditionError(Exception):
    """An expression that can never be evaluated; the text says where it is wrong."""


class ConditionFailed(Exception):
    """An expression that has no answer for these values; the text says why."""


class _Condition(Struct, frozen=True):
    program: Any
    nodes: frozenset[str]
    loops: bool


def check(expr: str) -> None:
    """Raises ConditionError for what no values can make right."""
    _compiled(expr)


def nodes_in(expr: str) -> frozenset[str]:
    """The ids of the nodes that `expr` reads. Raises ConditionError."""
    return _compiled(expr).nodes


def holds(expr: str, *, input: Any, nodes: Mapping[str, Mapping[str, Any]]) -> bool:  # noqa: A002 - the word of graphs
    """Raises ConditionFailed if a value is missing or of the wrong type, ConditionError as `check` does."""
    condition = _compiled(expr)
    data = {
        "input": input if "input" in expr else None,
        "nodes": {name: nodes[name] for name in condition.nodes if name in nodes},
    }
    limit = MAX_LOOPED if condition.loops else None
    return _answer(expr, condition.program, _Plain(expr, limit).copy(data, 0))


def _answer(expr: str, program: Any, data: Any) -> bool:
    try:
        result = program.eval(data=data)
    except RuntimeError as error:
        raise ConditionFailed(f"{_shown(expr)}: {_reason(str(error))}") from error
    if result.type() == cel.Type.ERROR:
        raise ConditionFailed(f"{_shown(expr)}: {_reason(result.value())}")
    if result.type() != cel.Type.BOOL:
        raise ConditionFailed(f"{_shown(expr)} gives {_type_name(result.type())}, not true or false")
    return bool(result.value())


@lru_cache(maxsize=2_048)
def _compiled(expr: str) -> _Condition:
    if len(expr) > MAX_LENGTH:
        raise ConditionError(f"the expression has {len(expr):,} characters; {MAX_LENGTH:,} are allowed")
    program = _program(expr)
    if program.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
        raise ConditionError(f"{_shown(expr)} gives {_type_name(program.return_type())}, not true or false")
    tokens = [found.group() for found in _TOKEN.finditer(expr) if found.lastgroup]
    return _Condition(program, frozenset(_node_names(expr, tokens)), _has_loop(expr, tokens))


def _program(expr: str) -> Any:
    try:
        return _ENVIRONMENT.compile(expr)
    except RuntimeError as error:
        raise ConditionError(f"{_shown(expr)}: {_problem(str(error))}") from error
    except TypeError as error:  # half of a surrogate pair
        raise ConditionError(f"{_shown(expr)} is not text that UTF-8 can hold") from error


def _node_names(expr: str, tokens: list[str]) -> Iterator[str]:
    """All nodes are named in the text, so that a graph knows what an edge reads before anything runs."""
    for place, word in enumerate(tokens):
        if word != "nodes" or _is_field(tokens, place):
            continue
        name, end = _selected(tokens, place + 1)
        if name is None:
            raise ConditionError(
                f"{_shown(expr)}: nodes must be followed by a name: nodes.x.output or nodes['x'].output"
            )
        field, _ = _selected(tokens, end)
        if field not in NODE_FIELDS:
            wrong = (
                f"{field!r}{nearest(field, NODE_FIELDS)} is no field of a node" if field else "names no field"
            )
            raise ConditionError(f"{_shown(expr)}: {wrong}; write nodes[{name!r}].output, .status or .error")
        yield name


def _is_field(tokens: list[str], place: int) -> bool:
    """`input.nodes` is a field of something; `.nodes` at the start of a term is not."""
    if place < 2 or tokens[place - 1] != ".":  # noqa: PLR2004 - something and a dot
        return False
    last = tokens[place - 2][-1]
    return last.isalnum() or last in "_`)]}'\""


def _selected(tokens: list[str], place: int) -> tuple[str | None, int]:
    """The name that `.name` or `['name']` selects at `place`, and where it ends."""
    match tokens[place : place + 3]:
        case [".", name, *_] if name[0].isalpha() or name[0] in "_`":
            return name.strip("`"), place + 2
        case ["[", text, "]"] if text[-1] in "'\"":
            return text.lstrip("rR").strip("'\""), place + 3
        case _:
            return None, place


def _has_loop(expr: str, tokens: list[str]) -> bool:
    triples = zip(tokens, tokens[1:], tokens[2:], strict=False)
    calls = [name for before, name, after in triples if (before, after) == (".", "(")]
    if "map" in calls:
        raise ConditionError(
            f"{_shown(expr)}: map makes lists, which no condition needs; use all, exists or filter"
        )
    loops = [name for name in calls if name in LOOPS]
    if len(loops) > 1:
        raise ConditionError(f"{_shown(expr)} has {len(loops)} loops ({', '.join(loops)}); one is allowed")
    if loops and "+" in tokens:
        raise ConditionError(
            f"{_shown(expr)}: + is not allowed beside {loops[0]}, because it would copy in every round"
        )
    return bool(loops)


def _problem(text: str) -> str:
    """The first line of the library's report, with its place."""
    found = _MESSAGE.search(text)
    if found is None:
        return _reason(text)
    line, column, problem = found.groups()
    place = f"column {column}" if line == "1" else f"line {line}, column {column}"
    problem = problem.partition(" expecting {")[0].removesuffix(" (in container '')")
    return f"{place}: {problem}" if int(line) > 0 else problem


def _reason(text: str) -> str:
    return _CODE.sub("", text.splitlines()[0].partition(" [")[0]) if text else "no reason given"


def _shown(expr: str) -> str:
    return repr(expr if len(expr) <= 100 else expr[:100] + "…")  # noqa: PLR2004 - as long as fits a line


def _type_name(kind: Any) -> str:
    return str(kind.name()).lower()


class _Plain:
    """A copy in the types that the library takes, within its limits."""

    def __init__(self, expr: str, limit: int | None) -> None:
        self._expr = expr
        self._limit = limit
        self._read = 0

    def copy(self, value: Any, depth: int) -> Any:
        self._count(value, depth)
        if isinstance(value, Mapping):
            return {str(key): self.copy(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.copy(item, depth + 1) for item in value]
        return value.value if isinstance(value, Enum) else value

    def _count(self, value: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ConditionFailed(
                f"{_shown(self._expr)} reads values that are nested more than {MAX_DEPTH} deep"
            )
        self._read += 1 + (len(value) // 100 if isinstance(value, str) else 0)
        if self._limit is not None and self._read > self._limit:
            raise ConditionFailed(
                f"{_shown(self._expr)} loops over more than {self._limit:,} values or too long texts"
            )
