"""Expressions, parsed and checked: conditions of edges, keys of limits, filters of alerts and events.

CEL has no side effects and always terminates, but it can loop over lists and copy them, in an
uninterruptible library call. So the parsed expression is checked here and its cost is bounded before
evaluation (`values.py`): docs/decisions/0009-conditions.md.
"""

import re
from collections.abc import Iterable
from typing import Any

from cel_expr_python import cel
from msgspec import Struct

from pyoco_server.domain.cel.cost import Call, Ident, Loop, Made, Path, Tree, paths_in, tree_of, walk

MAX_LENGTH = 1_000
_MESSAGE = re.compile(r"ERROR: <input>:(\d+):(\d+): (.*)")
_CODE = re.compile(r"^[A-Z_]+: ")
_MAX_REASON = 300


class ConditionError(Exception):
    """An invalid expression; the text contains the position."""


class Expression(Struct, frozen=True):
    program: Any
    tree: Tree
    paths: tuple[Path, ...]
    """The paths that are read; none is below another."""
    problem: str | None = None
    """The reason of a refusal; what an older version stored may contain such an expression."""


def new_environment(names: Iterable[str]) -> Any:
    """For expressions that read these names, each of any type."""
    return cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN))


def checked(expression: Expression) -> Expression:
    """Raises ConditionError if it exceeds a limit."""
    if expression.problem is not None:
        raise ConditionError(expression.problem)
    return expression


def condition(expr: str, environment: Any, names: tuple[str, ...]) -> Expression:
    """An expression that is true or false. Raises ConditionError."""
    found = expression(expr, environment, names)
    kind = found.program.return_type()
    if kind not in (cel.Type.BOOL, cel.Type.DYN):
        raise ConditionError(f"{shown(expr)} gives {type_name(kind)}, not true or false")
    return found


def expression(expr: str, environment: Any, names: tuple[str, ...]) -> Expression:
    """An expression of any type that reads `names`. Raises ConditionError."""
    program = _program(expr, environment)
    tree = tree_of(program.serialize())
    paths = _shortest([path for path in paths_in(tree) if path[0] in names])
    return Expression(program, tree, paths, _loop_problem(expr, tree))


def _program(expr: str, environment: Any) -> Any:
    if len(expr) > MAX_LENGTH:
        raise ConditionError(f"the expression has {len(expr):,} characters; {MAX_LENGTH:,} are allowed")
    try:
        return environment.compile(expr)
    except RuntimeError as error:
        raise ConditionError(f"{shown(expr)}: {_problem(str(error))}") from error
    except TypeError as error:  # half of a surrogate pair
        raise ConditionError(f"{shown(expr)} is not valid UTF-8 text") from error


def _shortest(paths: list[Path]) -> tuple[Path, ...]:
    """Without paths below another one."""
    found: list[Path] = []
    for path in sorted(set(paths), key=lambda path: (len(path), path)):
        if not any(path[: len(above)] == above for above in found):
            found.append(path)
    return tuple(found)


def _loop_problem(expr: str, tree: Tree) -> str | None:
    loops = [part for part in walk(tree) if isinstance(part, Loop)]
    names = [_macro(loop) for loop in loops]
    if "map" in names:
        return f"{shown(expr)}: map is not allowed; use all, exists or filter"
    if len(loops) > 1:
        return f"{shown(expr)} has {len(loops)} loops ({', '.join(names)}); one is allowed"
    if loops and _adds(tree, loops[0].result_name):
        return f"{shown(expr)}: + is not allowed beside {names[0]}, because it would copy in every iteration"
    return None


def _macro(loop: Loop) -> str:
    """The macro from which a loop was expanded."""
    if isinstance(loop.initial, Made):
        return "filter" if _keeps_items(loop) else "map"
    if not isinstance(loop.result, Ident):
        return "exists_one"
    return "all" if isinstance(loop.step, Call) and loop.step.function == "_&&_" else "exists"


def _keeps_items(loop: Loop) -> bool:
    """Whether the step is `@result + [item]` under a condition."""
    match loop.step:
        case Call(
            function="_?_:_",
            args=(_, Call(function="_+_", args=(_, Made(items=(Ident(name=name),)))), Ident()),
        ):
            return name in loop.variables
    return False


def _adds(tree: Tree, result_name: str) -> bool:
    """Whether the author uses +, other than in the steps of `filter` and `exists_one`."""
    return any(
        isinstance(part, Call) and part.function == "_+_" and part.args[0] != Ident(result_name)
        for part in walk(tree)
    )


def _problem(text: str) -> str:
    """The first line of the library's message, with its position."""
    found = _MESSAGE.search(text)
    if found is None:
        return reason(text)
    line, column, problem = found.groups()
    place = f"column {column}" if line == "1" else f"line {line}, column {column}"
    problem = problem.partition(" expecting {")[0].removesuffix(" (in container '')")
    return f"{place}: {problem}" if int(line) > 0 else problem


def reason(text: str) -> str:
    """The start of a message, because the library may quote all values."""
    lines = text[:_MAX_REASON].splitlines()
    return _CODE.sub("", lines[0].partition(" [")[0]) if lines else "no reason given"


def shown(expr: str) -> str:
    return repr(expr if len(expr) <= 100 else expr[:100] + "…")  # noqa: PLR2004 - as long as fits a line


def type_name(kind: Any) -> str:
    return str(kind.name()).lower()
