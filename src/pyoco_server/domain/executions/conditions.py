"""CEL expressions: the conditions of edges (`when`), the keys of limits, the filters of alerts and of events.

A condition can read `input` and `nodes.<id>.output`, `.status` and `.error`; the others, named fields. CEL
has no side effects and always terminates, but it can loop over lists and copy them, in an uninterruptible
library call. So the parsed expression is checked and its cost is bounded before evaluation:
docs/decisions/0009-conditions.md.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

import msgspec
from cel_expr_python import cel
from msgspec import Struct

from pyoco_server.domain.executions.condition_cost import (
    Call,
    Ident,
    Loop,
    Made,
    Names,
    Path,
    Tree,
    estimate,
    paths_in,
    text_size,
    tree_of,
    walk,
)
from pyoco_server.domain.executions.interpolation import NODE_FIELDS
from pyoco_server.domain.inputs import nearest

MAX_LENGTH = 1_000
MAX_DEPTH = 100
"""Depth limit of values, because the library recurses in C, where a stack overflow is a crash."""
MAX_READ = 200_000
"""Limit of values and hundreds of characters per condition: some 20 ms of library time."""
MAX_STEPS = 300_000
"""Limit per condition; see condition_cost.py."""
MAX_PASS = 3_000_000
"""Limit of values and steps for all conditions evaluated on one state."""

_ENVIRONMENT = cel.NewEnv(
    variables={
        "input": cel.Type.DYN,
        "nodes": cel.Type.Map(cel.Type.STRING, cel.Type.Map(cel.Type.STRING, cel.Type.DYN)),
    }
)
KEY_NAMES = ("flow_name", "params", "tag", "tags", "tenant_id")
_KEY_ENVIRONMENT = cel.NewEnv(variables=dict.fromkeys(KEY_NAMES, cel.Type.DYN))
FILTER_NAMES = ("flow_name", "params", "status", "tag", "tags", "type")
_TYPE = "typ_"
"""What the library knows `type` as, which is a name of CEL itself. As long, so that columns are right."""
_FILTER_ENVIRONMENT = cel.NewEnv(variables=dict.fromkeys((*FILTER_NAMES[:-1], _TYPE), cel.Type.DYN))
_TOKEN = re.compile(
    r'''(?P<text>[rRbB]{0,2}(?:"""(?s:\\.|.)*?"""|\'\'\'(?s:\\.|.)*?\'\'\'|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'))'''
    r"|(?P<name>(?<![\w.])type(?!\w)(?!\s*\())|(?P<own>(?<![\w.])typ_(?!\w))"
)
_MESSAGE = re.compile(r"ERROR: <input>:(\d+):(\d+): (.*)")
_CODE = re.compile(r"^[A-Z_]+: ")
_MAX_REASON = 300
_SCALARS = frozenset({int, float, bool, type(None)})


class ConditionError(Exception):
    """An invalid expression; the text contains the position."""


class ConditionFailed(Exception):
    """An expression without a result for these values; the text contains the reason."""


class TooHeavy(Exception):
    """The work exceeds the current allowance; it can be done in another thread."""


class _Condition(Struct, frozen=True):
    program: Any
    tree: Tree
    nodes: frozenset[str]
    paths: tuple[Path, ...]
    """The paths read from `input` and `nodes`; none is below another."""
    problem: str | None = None
    """The reason of a refusal; a graph registered by an older version may contain such a condition."""


def check(expr: str) -> None:
    """Raises ConditionError for an expression that is invalid for all values."""
    problem = _compiled(expr).problem
    if problem is not None:
        raise ConditionError(problem)


def check_key(expr: str) -> None:
    """Raises ConditionError for a key that is invalid for all runs."""
    problem = _compiled_key(expr).problem
    if problem is not None:
        raise ConditionError(problem)


def key_of(expr: str, run: Mapping[str, Any]) -> str:
    """The key of a run; `run` has a value for each of KEY_NAMES. Other values than strings as JSON.

    Raises ConditionFailed.
    """
    value = NamedValues(_KEY_ENVIRONMENT, run).value(expr, _compiled_key(expr))
    try:
        return value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic").decode()
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ConditionFailed(f"{_shown(expr)} gives a value that JSON cannot hold") from error


def check_filter(expr: str) -> None:
    """Raises ConditionError for a filter that is invalid for everything that happens."""
    problem = _compiled_filter(expr).problem
    if problem is not None:
        raise ConditionError(problem)


def passes(expr: str, values: Mapping[str, Any]) -> bool:
    """Whether a filter lets something pass; `values` has one for each of FILTER_NAMES.

    Raises ConditionFailed.
    """
    named = {_TYPE if name == "type" else name: value for name, value in values.items()}
    return NamedValues(_FILTER_ENVIRONMENT, named).truth(expr, _compiled_filter(expr))


def nodes_in(expr: str) -> frozenset[str]:
    """The ids of the nodes that `expr` reads. Raises ConditionError."""
    return _compiled(expr).nodes


def holds(expr: str, *, input: Any, nodes: Mapping[str, Mapping[str, Any]]) -> bool:  # noqa: A002 - the word of graphs
    """Raises ConditionFailed if a value is missing or of the wrong type, ConditionError as `check` does."""
    return Values(input, nodes).holds(expr)


class Allowance:
    """The amount of work before `TooHeavy` is raised."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def take(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooHeavy


class Values:
    """The values that conditions read from one state, each measured and converted once."""

    _environment = _ENVIRONMENT
    _advice = "Let a task compute it and test its output"

    def __init__(
        self,
        input: Any,  # noqa: A002 - the word of graphs
        nodes: Mapping[str, Mapping[str, Any]],
        allowance: Allowance | None = None,
    ) -> None:
        self._roots: dict[str, Any] = {"input": input, "nodes": nodes}
        self._allowance = allowance
        self._found: dict[Path, Any] = {}
        self._sizes: dict[Path, int] = {}
        self._handed: OrderedDict[tuple[Path, ...], tuple[Any, int]] = OrderedDict()
        self._spent = 0

    def holds(self, expr: str) -> bool:
        """Raises ConditionFailed, ConditionError, TooHeavy."""
        return self._truth(expr, _compiled(expr))

    def _truth(self, expr: str, condition: _Condition) -> bool:
        result = self._result(expr, condition)
        if result.type() != cel.Type.BOOL:
            raise ConditionFailed(f"{_shown(expr)} gives {_type_name(result.type())}, not true or false")
        return bool(result.value())

    def _result(self, expr: str, condition: _Condition) -> Any:
        if condition.problem is not None:
            raise ConditionFailed(condition.problem)
        try:
            activation = self._activation(expr, condition)
            self._charge(expr, condition)
        except RecursionError:
            raise ConditionFailed(_too_deep(expr)) from None
        return _answer(expr, condition.program, activation)

    def _activation(self, expr: str, condition: _Condition) -> Any:
        known = self._handed.get(condition.paths)
        if known is not None:
            self._handed.move_to_end(condition.paths)
            return known[0]
        size = sum(self._size(expr, path) for path in condition.paths)
        if size > MAX_READ:
            raise ConditionFailed(f"{_shown(expr)} reads more than {MAX_READ:,} values")
        self._spend(expr, size)
        made = self._environment.Activation(self._data(condition.paths)), size
        self._handed[condition.paths] = made
        while sum(held for _, held in self._handed.values()) > MAX_READ:
            self._handed.popitem(last=False)
        return made[0]

    def _charge(self, expr: str, condition: _Condition) -> None:
        names = Names(lambda path: self._size(expr, path), self._text)
        steps = estimate(condition.tree, names).steps
        if steps > MAX_STEPS:
            raise ConditionFailed(
                f"{_shown(expr)} may take {steps:,} steps with these values; {MAX_STEPS:,} are allowed. "
                f"{self._advice}"
            )
        self._spend(expr, steps)

    def _spend(self, expr: str, work: int) -> None:
        self._spent += work
        if self._spent > MAX_PASS:
            raise ConditionFailed(
                f"{_shown(expr)}: the conditions of the graph read more than {MAX_PASS:,} values together"
            )
        if self._allowance is not None:
            self._allowance.take(work)

    def _data(self, paths: tuple[Path, ...]) -> dict[str, Any]:
        """Only the values that are read. Missing values stay missing, so that the library reports them."""
        data: dict[str, Any] = {name: {} if name == "nodes" else None for name in self._roots}
        for path in paths:
            place: dict[str, Any] = data
            value: Any = self._roots
            for depth, step in enumerate(path):
                if not isinstance(value, Mapping) or step not in value:
                    break
                value = value[step]
                if depth + 1 == len(path) or not isinstance(value, Mapping):
                    place[step] = _plain(value)
                else:
                    held = place.get(step)
                    place[step] = place = held if isinstance(held, dict) else {}
        return data

    def _size(self, expr: str, path: Path) -> int:
        if path not in self._sizes:
            self._sizes[path] = _Measured(expr, self._allowance).size(self._value(path), 0)
        return self._sizes[path]

    def _text(self, path: Path) -> str | None:
        value = self._value(path)
        return value if isinstance(value, str) else None

    def _value(self, path: Path) -> Any:
        """The value at a path; None if missing. A path into a list ends at the list."""
        if path in self._found:
            return self._found[path]
        value: Any = self._roots
        for step in path:
            if not isinstance(value, Mapping):
                break
            value = value.get(step)
        self._found[path] = value
        return value


class NamedValues(Values):
    """Values under names of their own, for expressions from `compiled`."""

    _advice = "Use a simpler expression"

    def __init__(
        self, environment: Any, values: Mapping[str, Any], allowance: Allowance | None = None
    ) -> None:
        super().__init__(None, {}, allowance)
        self._environment = environment
        self._roots = dict(values)

    def truth(self, expr: str, condition: _Condition) -> bool:
        """Raises ConditionFailed, TooHeavy."""
        return self._truth(expr, condition)

    def value(self, expr: str, condition: _Condition) -> Any:
        """Raises ConditionFailed, TooHeavy."""
        return self._result(expr, condition).plain_value()


def _answer(expr: str, program: Any, activation: Any) -> Any:
    try:
        result = program.eval(activation)
    except RuntimeError as error:
        raise ConditionFailed(f"{_shown(expr)}: {_reason(str(error))}") from error
    if result.type() == cel.Type.ERROR:
        raise ConditionFailed(f"{_shown(expr)}: {_reason(result.value())}")
    return result


@lru_cache(maxsize=2_048)
def _compiled(expr: str) -> _Condition:
    program = _condition(expr, _ENVIRONMENT)
    tree = tree_of(program.serialize())
    paths = _shortest([path for path in paths_in(tree) if path[0] in ("input", "nodes")])
    nodes = frozenset(_node_names(expr, paths))
    return _Condition(program, tree, nodes, paths, _loop_problem(expr, tree))


def new_environment(names: Iterable[str]) -> Any:
    """For expressions that read these names, each of any type."""
    return cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN))


def compiled(expr: str, environment: Any, names: tuple[str, ...]) -> _Condition:
    """A condition that reads `names`. Raises ConditionError, also if it exceeds a limit."""
    condition = _over(expr, _condition(expr, environment), names)
    if condition.problem is not None:
        raise ConditionError(condition.problem)
    return condition


@lru_cache(maxsize=2_048)
def _compiled_key(expr: str) -> _Condition:
    return _over(expr, _program(expr, _KEY_ENVIRONMENT), KEY_NAMES)


@lru_cache(maxsize=2_048)
def _compiled_filter(expr: str) -> _Condition:
    try:
        program = _condition(_renamed(expr), _FILTER_ENVIRONMENT)
    except ConditionError as error:
        raise ConditionError(str(error).replace(_TYPE, "type")) from error
    return _over(expr, program, (*FILTER_NAMES[:-1], _TYPE))


def _renamed(expr: str) -> str:
    """With another word for the variable `type`: not in texts, in fields, or for the function."""

    def rename(token: re.Match[str]) -> str:
        if token["own"]:
            raise ConditionError(f"{_shown(expr)}: undeclared reference to a name of the server's own")
        return _TYPE if token["name"] else token[0]

    return _TOKEN.sub(rename, expr)


def _over(expr: str, program: Any, names: tuple[str, ...]) -> _Condition:
    tree = tree_of(program.serialize())
    paths = _shortest([path for path in paths_in(tree) if path[0] in names])
    return _Condition(program, tree, frozenset(), paths, _loop_problem(expr, tree))


def _condition(expr: str, environment: Any) -> Any:
    program = _program(expr, environment)
    if program.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
        raise ConditionError(f"{_shown(expr)} gives {_type_name(program.return_type())}, not true or false")
    return program


def _program(expr: str, environment: Any) -> Any:
    if len(expr) > MAX_LENGTH:
        raise ConditionError(f"the expression has {len(expr):,} characters; {MAX_LENGTH:,} are allowed")
    try:
        return environment.compile(expr)
    except RuntimeError as error:
        raise ConditionError(f"{_shown(expr)}: {_problem(str(error))}") from error
    except TypeError as error:  # half of a surrogate pair
        raise ConditionError(f"{_shown(expr)} is not valid UTF-8 text") from error


def _shortest(paths: list[Path]) -> tuple[Path, ...]:
    """Without paths below another one."""
    found: list[Path] = []
    for path in sorted(set(paths), key=lambda path: (len(path), path)):
        if not any(path[: len(above)] == above for above in found):
            found.append(path)
    return tuple(found)


def _node_names(expr: str, paths: tuple[Path, ...]) -> Iterator[str]:
    """Node ids are literal, never computed, so that the nodes an edge reads are known beforehand."""
    for root, *steps in paths:
        if root != "nodes":
            continue
        if not steps:
            raise ConditionError(
                f"{_shown(expr)}: nodes must be followed by a name: nodes.x.output or nodes['x'].output"
            )
        name, field = steps[0], steps[1] if steps[1:] else None
        if field not in NODE_FIELDS:
            wrong = (
                f"{field!r}{nearest(field, NODE_FIELDS)} is not a field of a node"
                if field
                else "a field is missing"
            )
            raise ConditionError(f"{_shown(expr)}: {wrong}; write nodes[{name!r}].output, .status or .error")
        yield name


def _loop_problem(expr: str, tree: Tree) -> str | None:
    loops = [part for part in walk(tree) if isinstance(part, Loop)]
    names = [_macro(loop) for loop in loops]
    if "map" in names:
        return f"{_shown(expr)}: map is not allowed; use all, exists or filter"
    if len(loops) > 1:
        return f"{_shown(expr)} has {len(loops)} loops ({', '.join(names)}); one is allowed"
    if loops and _adds(tree, loops[0].result_name):
        return f"{_shown(expr)}: + is not allowed beside {names[0]}, because it would copy in every iteration"
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
        return _reason(text)
    line, column, problem = found.groups()
    place = f"column {column}" if line == "1" else f"line {line}, column {column}"
    problem = problem.partition(" expecting {")[0].removesuffix(" (in container '')")
    return f"{place}: {problem}" if int(line) > 0 else problem


def _reason(text: str) -> str:
    """The start of a message, because the library may quote all values."""
    lines = text[:_MAX_REASON].splitlines()
    return _CODE.sub("", lines[0].partition(" [")[0]) if lines else "no reason given"


def _shown(expr: str) -> str:
    return repr(expr if len(expr) <= 100 else expr[:100] + "…")  # noqa: PLR2004 - as long as fits a line


def _type_name(kind: Any) -> str:
    return str(kind.name()).lower()


def _too_deep(expr: str) -> str:
    return f"{_shown(expr)} reads values that are nested more than {MAX_DEPTH} deep"


def _plain(value: Any) -> Any:
    """The value in types of the library; decoded JSON is used without a copy."""
    if isinstance(value, Enum):
        return value.value
    if type(value) in (dict, list) or not isinstance(value, (Mapping, tuple)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value]


class _Measured:
    """The size of a value, in values and hundreds of characters."""

    def __init__(self, expr: str, allowance: Allowance | None) -> None:
        self._expr = expr
        self._allowance = allowance
        self._size = 0

    def size(self, value: Any, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise ConditionFailed(_too_deep(self._expr))
        if isinstance(value, Mapping):
            self._add(1 + sum(text_size(str(key)) for key in value))
            self._items(value.values(), depth)
        elif isinstance(value, (list, tuple)):
            self._add(1)
            self._items(value, depth)
        else:
            self._add(text_size(value) if isinstance(value, str) else 1)
        return self._size

    def _items(self, items: Iterable[Any], depth: int) -> None:
        scalars = 0
        for item in items:
            if type(item) in _SCALARS:
                scalars += 1
            else:
                self.size(item, depth + 1)
        self._add(scalars)

    def _add(self, size: int) -> None:
        self._size += size
        if self._size > MAX_READ:
            raise ConditionFailed(f"{_shown(self._expr)} reads more than {MAX_READ:,} values")
        if self._allowance is not None:
            self._allowance.take(size)
