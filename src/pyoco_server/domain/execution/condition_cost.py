"""What a condition may cost at most, counted before it is evaluated.

The library evaluates in one call that nothing can interrupt, so its work is bounded beforehand: from the
tree and from the sizes of the values it reads. One step is about a tenth of a microsecond. The count is an
upper bound that depends on nothing but expression and values, so every gateway comes to the same answer.
"""

import re
from collections.abc import Callable, Mapping
from functools import reduce
from operator import mul

from msgspec import Struct

from pyoco_server.domain.execution.condition_tree import (
    Call,
    Const,
    Ident,
    Loop,
    Made,
    Tree,
    parts_of,
    path_of,
)

CHARACTERS = 100
"""So many characters of a text count as one value."""

Path = tuple[str, ...]
SizeOf = Callable[[Path], int]

_LOGIC = frozenset({"_&&_", "_||_", "!_", "@not_strictly_false"})
_COMPARISONS = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"})
_REPEAT = re.compile(r"\{(\d{1,4})(?:,(\d{0,4}))?\}")
_MAX_REPEAT = 1_000
"""RE2 refuses more, also of repeats inside each other."""
_WIDE_CLASS, _ANY, _LITERAL = 400, 10, 2
"""States of the automaton per character of a pattern: Unicode classes, `.` and negations, anything else."""
_CHARACTERS_PER_STEP = 20


class Estimate(Struct, frozen=True):
    steps: int
    size: int
    """Of the result, in values."""


class Names(Struct, frozen=True):
    """What the names in an expression stand for."""

    size_of: SizeOf
    text_of: Callable[[Path], str | None]
    bound: Mapping[str, int] = {}
    """Sizes of the variables of loops."""


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
    """Steps of the function itself, and the size of what it gives."""
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
    """The step of a `filter`, which copies what it has so far: on average half of its result."""
    first = call.args[0]
    return isinstance(first, Ident) and first.name in names.bound and first.name.startswith("@")


def _of_pattern(call: Call, text_size_: int, pattern_size: int, names: Names) -> int:
    """RE2 takes time in proportion to the text and to the automaton, which repeats and classes make large."""
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
    """Only the characters of a text have to be counted; lists and objects know their size."""
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
