"""Upper bound for the cost of a condition, computed before its evaluation.

The library evaluates in one uninterruptible call, so the work is bounded beforehand from the expression tree
and the sizes of the values it reads. One step takes about a tenth of a microsecond. The bound depends only on
expression and values, so every gateway computes the same.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import mul
from typing import Any

from msgspec import Struct

# The expression tree, read from the serialized form of the CEL library: a `cel.expr.CheckedExpr` protobuf
# message inside an `Any`. Rules are checked on this tree, because the source text may be read differently.

Fields = dict[int, list[Any]]


class Const(Struct, frozen=True):
    text: str | None
    """The value of a string; None for other constants."""
    number: int | None = None


class Ident(Struct, frozen=True):
    name: str


class Select(Struct, frozen=True):
    operand: "Tree"
    field: str


class Call(Struct, frozen=True):
    function: str
    args: tuple["Tree", ...]
    """With the target of a member function first."""


class Made(Struct, frozen=True):
    """A list, map or message literal."""

    items: tuple["Tree", ...]


class Loop(Struct, frozen=True):
    """The expansion of every looping macro."""

    variables: tuple[str, ...]
    over: "Tree"
    result_name: str
    initial: "Tree"
    condition: "Tree"
    step: "Tree"
    result: "Tree"


Tree = Const | Ident | Select | Call | Made | Loop


def tree_of(serialised: bytes) -> Tree:
    """Raises ValueError unless the bytes are a serialized expression."""
    checked = _fields(_one(_fields(serialised), 2))
    return _tree(_one(checked, 4))


def walk(tree: Tree) -> Iterator[Tree]:
    yield tree
    for part in parts_of(tree):
        yield from walk(part)


def path_of(tree: Tree) -> tuple[str, ...] | None:
    """`a.b['c']` as ("a", "b", "c"). None for computed values."""
    match tree:
        case Ident(name=name):
            return (name,)
        case Select(operand=operand, field=field) if (path := path_of(operand)) is not None:
            return (*path, field)
        case Call(function="_[_]", args=(operand, Const(text=str(text)))) if (
            path := path_of(operand)
        ) is not None:
            return (*path, text)
    return None


def paths_in(tree: Tree) -> Iterator[tuple[str, ...]]:
    """All paths that are read, as far as known before evaluation."""
    path = path_of(tree)
    if path is not None:
        yield path
        return
    for part in parts_of(tree):
        yield from paths_in(part)


def parts_of(tree: Tree) -> tuple[Tree, ...]:
    match tree:
        case Select(operand=operand):
            return (operand,)
        case Call(args=args):
            return args
        case Made(items=items):
            return items
        case Loop():
            return (tree.over, tree.initial, tree.condition, tree.step, tree.result)
    return ()


# From the messages of cel.expr (syntax.proto) to the tree, by field number.


def _tree(data: bytes) -> Tree:
    expression = _fields(data)
    for number, read in _KINDS.items():
        if number in expression:
            return read(_fields(expression[number][-1]))
    raise ValueError("unknown kind of expression")


def _const(fields: Fields) -> Const:
    if 6 in fields:  # noqa: PLR2004 - string_value
        return Const(_name(fields, 6))
    numbers = fields.get(3) or fields.get(2)
    return Const(None, number=numbers[-1] if numbers else None)


def _ident(fields: Fields) -> Ident:
    return Ident(_name(fields, 1).lstrip("."))


def _select(fields: Fields) -> Select:
    return Select(_tree(_one(fields, 1)), _name(fields, 2))


def _call(fields: Fields) -> Call:
    args = [*fields.get(1, ()), *fields.get(3, ())]
    return Call(_name(fields, 2), tuple(_tree(arg) for arg in args))


def _list(fields: Fields) -> Made:
    return Made(tuple(_tree(item) for item in fields.get(1, ())))


def _struct(fields: Fields) -> Made:
    entries = [_fields(entry) for entry in fields.get(2, ())]
    return Made(tuple(_tree(part) for entry in entries for key in (3, 4) for part in entry.get(key, ())))


def _loop(fields: Fields) -> Loop:
    return Loop(
        variables=tuple(name for key in (1, 8) if (name := _name(fields, key))),
        over=_tree(_one(fields, 2)),
        result_name=_name(fields, 3),
        initial=_tree(_one(fields, 4)),
        condition=_tree(_one(fields, 5)),
        step=_tree(_one(fields, 6)),
        result=_tree(_one(fields, 7)),
    )


_KINDS: dict[int, Callable[[Fields], Tree]] = {
    3: _const,
    4: _ident,
    5: _select,
    6: _call,
    7: _list,
    8: _struct,
    9: _loop,
}


def _name(fields: Fields, number: int) -> str:
    found = fields.get(number)
    return _text(found[-1]) if found else ""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _one(fields: Fields, number: int) -> bytes:
    found = fields.get(number)
    if not found or not isinstance(found[-1], bytes):
        raise ValueError(f"field {number} is missing")
    return bytes(found[-1])


# The wire format of protobuf: a key (number and type) before each value.

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def _fields(data: bytes) -> Fields:
    found: Fields = {}
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        value, place = _value(data, place, key & 7)
        found.setdefault(key >> 3, []).append(value)
    return found


def _value(data: bytes, place: int, kind: int) -> tuple[Any, int]:
    if kind == _VARINT:
        return _varint(data, place)
    if kind == _BYTES:
        size, place = _varint(data, place)
    elif kind in (_FIXED64, _FIXED32):
        size = 8 if kind == _FIXED64 else 4
    else:
        raise ValueError(f"wire type {kind}")
    if place + size > len(data):
        raise ValueError("cut off")
    return data[place : place + size], place + size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(data):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a number
            return value, place
        shift += 7
    raise ValueError("cut off")


CHARACTERS = 100
"""Characters of a text per counted value."""

Path = tuple[str, ...]
SizeOf = Callable[[Path], int]

_LOGIC = frozenset({"_&&_", "_||_", "!_", "@not_strictly_false"})
_COMPARISONS = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"})
_REPEAT = re.compile(r"\{(\d{1,4})(?:,(\d{0,4}))?\}")
_MAX_REPEAT = 1_000
"""Repetition limit of RE2, also for nested repeats."""
_WIDE_CLASS, _ANY, _LITERAL = 400, 10, 2
"""States of the automaton per character of a pattern: Unicode classes, `.` and negations, anything else."""
_CHARACTERS_PER_STEP = 20


class Estimate(Struct, frozen=True):
    steps: int
    size: int
    """Size of the result, in values."""


class Names(Struct, frozen=True):
    """The values of the names in an expression."""

    size_of: SizeOf
    text_of: Callable[[Path], str | None]
    bound: Mapping[str, int] = {}
    """Sizes of loop variables."""


def estimate(tree: Tree, names: Names) -> Estimate:
    path = path_of(tree)
    if path is not None:
        return Estimate(len(path), _size_at(path, names))
    match tree:
        case Call():
            return _of_call(tree, names)
        case Loop():
            return _of_loop(tree, names)
        case Const(text=text):
            return Estimate(1, text_size(text or ""))
    parts = [estimate(part, names) for part in parts_of(tree)]
    size = _sum_of_sizes(parts) + 1 if isinstance(tree, Made) else max(part.size for part in parts)
    return Estimate(1 + sum(part.steps for part in parts), size)


def text_size(text: str) -> int:
    return 1 + len(text) // CHARACTERS


def _size_at(path: Path, names: Names) -> int:
    bound = names.bound.get(path[0])
    return names.size_of(path) if bound is None else bound


def _sum_of_sizes(parts: list[Estimate]) -> int:
    return sum(part.size for part in parts)


def _of_call(call: Call, names: Names) -> Estimate:
    args = [estimate(arg, names) for arg in call.args]
    steps, size = _work(call, args, names)
    return Estimate(1 + steps + sum(arg.steps for arg in args), size)


def _work(  # noqa: PLR0911 - one return per kind of function
    call: Call, args: list[Estimate], names: Names
) -> tuple[int, int]:
    """Steps of the function itself, and the size of its result."""
    sizes = [arg.size for arg in args]
    match call.function:
        case "_+_" if _appends(call, names):
            return 1 + sizes[0] // 2, sizes[0]
        case name if name in _LOGIC:
            return 1, 1
        case name if name in _COMPARISONS:
            return min(sizes), 1
        case "_?_:_":
            return 1, max(sizes)
        case "_[_]":
            return 1, sizes[0]
        case "contains":
            return reduce(mul, sizes, 1), 1
        case "matches":
            return _of_pattern(call, sizes[0], sizes[-1], names), 1
        case "size":
            return (sizes[0] if _may_be_text(call.args[0], names) else 1), 1
        case "@in" | "startsWith" | "endsWith":
            return sum(sizes), 1
    return sum(sizes), sum(sizes)


def _appends(call: Call, names: Names) -> bool:
    """The step of a `filter`, which copies the partial result: on average half of the result."""
    first = call.args[0]
    return isinstance(first, Ident) and first.name in names.bound and first.name.startswith("@")


def _of_pattern(call: Call, text_size_: int, pattern_size: int, names: Names) -> int:
    """RE2 takes time proportional to the text and the automaton, which repeats and classes enlarge."""
    pattern = _known_text(call.args[-1], names)
    if pattern is None:
        states = pattern_size * CHARACTERS * _MAX_REPEAT
    else:
        repeats = [int(most or least) for least, most in _REPEAT.findall(pattern)]
        states = len(pattern) * min(_MAX_REPEAT, reduce(mul, (max(1, n) for n in repeats), 1))
        states *= _weight(pattern)
    return states * (1 + text_size_ * CHARACTERS // _CHARACTERS_PER_STEP)


def _weight(pattern: str) -> int:
    if "\\p" in pattern or "\\P" in pattern or "(?i" in pattern:
        return _WIDE_CLASS
    return _ANY if "." in pattern or "[^" in pattern or "\\" in pattern else _LITERAL


def _may_be_text(tree: Tree, names: Names) -> bool:
    """Characters of a text are counted; lists and objects know their size."""
    path = path_of(tree)
    return path is None or path[0] in names.bound or names.text_of(path) is not None


def _known_text(tree: Tree, names: Names) -> str | None:
    if isinstance(tree, Const):
        return tree.text
    path = path_of(tree)
    if path is None or path[0] in names.bound:
        return None
    return names.text_of(path)


def _of_loop(loop: Loop, names: Names) -> Estimate:
    over = estimate(loop.over, names)
    initial = estimate(loop.initial, names)
    bound = {**names.bound, **dict.fromkeys(loop.variables, over.size)}
    bound[loop.result_name] = max(initial.size, over.size if isinstance(loop.initial, Made) else 1)
    inside = Names(names.size_of, names.text_of, bound)
    condition, step = estimate(loop.condition, inside), estimate(loop.step, inside)
    result = estimate(loop.result, inside)
    rounds = over.steps + initial.steps + over.size * (condition.steps + step.steps)
    return Estimate(rounds + result.steps, result.size)
