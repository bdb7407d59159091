"""A parsed condition as a tree, read from the form in which the CEL library serialises it.

That form is `cel.expr.CheckedExpr` (a protobuf message, published with the language) inside an `Any`. Rules
about conditions are decided on this tree: how a text looks and what the library understands may differ.
"""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

Fields = dict[int, list[Any]]


class Const(Struct, frozen=True):
    text: str | None
    """Of a string; None for other constants."""
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
    """A list, map or message that is written out."""

    items: tuple["Tree", ...]


class Loop(Struct, frozen=True):
    """What every macro that loops becomes."""

    variables: tuple[str, ...]
    over: "Tree"
    result_name: str
    initial: "Tree"
    condition: "Tree"
    step: "Tree"
    result: "Tree"


Tree = Const | Ident | Select | Call | Made | Loop


def tree_of(serialised: bytes) -> Tree:
    """Raises ValueError for anything that is not a serialised expression."""
    checked = _fields(_one(_fields(serialised), 2))
    return _tree(_one(checked, 4))


def walk(tree: Tree) -> Iterator[Tree]:
    yield tree
    for part in parts_of(tree):
        yield from walk(part)


def path_of(tree: Tree) -> tuple[str, ...] | None:
    """`a.b['c']` as ("a", "b", "c"). None for what is computed."""
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
    """All that is read, each path as far as it can be told beforehand."""
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


# From the messages of cel.expr (syntax.proto) to the tree. The numbers are those of their fields.


def _tree(data: bytes) -> Tree:
    expression = _fields(data)
    for number, read in _KINDS.items():
        if number in expression:
            return read(_fields(expression[number][-1]))
    raise ValueError("an expression of an unknown kind")


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
