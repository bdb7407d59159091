"""The graph grammar of pyoco before 0.7: Python operators on tasks.

    a >> b                      b after a
    (a & b) >> c                c after both
    (a | b) >> c                c after any
    flow >> [a, b] >> c         c after both
    flow >> body[3]             repeat
    flow >> body["$ctx.params.items as item"]    for each
    flow >> body % ("$ctx.params.done", 5)       until, at most 5 times
    flow >> switch("$ctx.params.mode")["x" >> a, "*" >> b]

Those versions pass the text to `exec`. Here it is only parsed and checked against this list; the flow is
built by applying the operators to pyoco's objects. The text is never executed.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Never

from pyoco_server.domain.strict_yaml import shown
from pyoco_server.engine import flow_expressions
from pyoco_server.errors import InvalidRequest

MAX_DEPTH = 50
MAX_TERMS = 4_096
MAX_LENGTH = 32_768
"""Characters. Python's parser needs a few hundred bytes for each."""
FLOW = "flow"
SWITCH = "switch"
WORDS = (FLOW, SWITCH)

_JOINS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_Join = tuple[type[ast.operator], ast.expr]
AllowedEnv = tuple[str, ...] | None
"""Environment variables that expressions may read; None: checked before."""


def tasks_in(graph: str, allowed_env: AllowedEnv = None) -> set[str]:
    """The names of all tasks in a graph. Raises InvalidRequest."""
    check = _Check(allowed_env)
    statements = _statements(graph)
    for statement in statements:
        check.chain(statement, 0, may_start_flow=True)
    if check.has_control:
        for statement in statements:
            _check_starts_flow(statement)
    return check.tasks


def build(graph: str, names: Mapping[str, Any]) -> None:
    """Apply a checked graph to `names`: the tasks, `flow` and `switch`."""
    for statement in _statements(graph):
        _applied(statement, names)


def _statements(graph: str) -> list[ast.expr]:
    if len(graph) > MAX_LENGTH:
        raise InvalidRequest(f"flow.graph has {len(graph):,} characters; {MAX_LENGTH:,} are allowed")
    try:
        body = ast.parse(graph.strip(" \t")).body
    except SyntaxError as error:
        problem = f"flow.graph, line {error.lineno or 1}, column {error.offset or 1}: {error.msg}"
        raise InvalidRequest(problem) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidRequest(
            "flow.graph is nested too deep or too long; write it in several lines"
        ) from error
    for statement in body:
        if not isinstance(statement, ast.Expr):
            _refuse(statement, f"{type(statement).__name__} is not part of the grammar; join tasks with >>")
    return [statement.value for statement in body if isinstance(statement, ast.Expr)]


def _joined(node: ast.expr) -> tuple[ast.expr, list[_Join]]:
    """`a >> b & c …` as its first operand and the rest: a long chain needs no recursion."""
    joins: list[_Join] = []
    while isinstance(node, ast.BinOp) and type(node.op) in _JOINS:
        joins.append((type(node.op), node.right))
        node = node.left
    return node, joins[::-1]


class _Check:
    def __init__(self, allowed_env: AllowedEnv) -> None:
        self.tasks: set[str] = set()
        self._allowed_env = allowed_env
        self.has_control = False
        self._terms = 0

    def chain(self, node: ast.expr, depth: int, *, may_start_flow: bool = False) -> None:
        first, joins = _joined(node)
        if may_start_flow and joins and _is_name(first, FLOW):
            if any(join is not ast.RShift for join, _ in joins):
                _refuse(first, "`flow` is followed by >> only; put & and | in parentheses")
        else:
            self._operand(first, depth)
        for join, right in joins:
            if join is ast.RShift and isinstance(right, (ast.List, ast.Tuple)):
                for item in right.elts:
                    self._operand(item, depth + 1)
            else:
                self._operand(right, depth)

    def _operand(self, node: ast.expr, depth: int) -> None:
        self._terms += 1
        if depth > MAX_DEPTH or self._terms > MAX_TERMS:
            _refuse(node, f"more than {MAX_DEPTH} levels of parentheses or {MAX_TERMS:,} terms")
        if isinstance(node, ast.Name):
            self._task(node)
        elif isinstance(node, ast.BinOp) and type(node.op) in _JOINS:
            self.chain(node, depth + 1)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            self.has_control = True
            _check_until(node.right, self._allowed_env)
            self._operand(node.left, depth + 1)
        elif isinstance(node, ast.Subscript):
            self.has_control = True
            self._bracketed(node, depth + 1)
        else:
            _refuse(node, f"{type(node).__name__} is not part of the grammar; {_ADVICE}")

    def _task(self, node: ast.Name) -> None:
        if node.id.startswith("__"):
            _refuse(node, f"{node.id!r} is not a valid name in a graph")
        if node.id in WORDS:
            _refuse(node, f"`{node.id}` is not allowed here; {_ADVICE}")
        self.tasks.add(node.id)

    def _bracketed(self, node: ast.Subscript, depth: int) -> None:
        if isinstance(node.value, ast.Call):
            _check_switch(node.value, self._allowed_env)
            cases = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if not cases:
                _refuse(node, "a switch needs at least one case")
            for case in cases:
                self._case(case, depth)
        else:
            _check_selector(node.slice, self._allowed_env)
            self._operand(node.value, depth)

    def _case(self, node: ast.expr, depth: int) -> None:
        if not (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.RShift)
            and isinstance(node.left, ast.Constant)
            and isinstance(node.left.value, (str, int, float))
        ):
            _refuse(node, 'a case is a value and a branch: "x" >> (a >> b)')
        self._operand(node.right, depth)


_ADVICE = "use names of tasks, >>, &, |, parentheses, body[…], body % … and `flow >> switch(…)[…]`"


def _check_until(node: ast.expr, allowed_env: AllowedEnv) -> None:
    if isinstance(node, ast.Tuple) and len(node.elts) == 2:  # noqa: PLR2004 - (expression, max_iter)
        _check_expression(node.elts[0], allowed_env)
        if _count(node.elts[1]) in (None, 0):
            _refuse(node, "the second value after % is the maximum number of iterations, at least 1")
    else:
        _check_expression(node, allowed_env)


def _check_selector(node: ast.expr, allowed_env: AllowedEnv) -> None:
    if _count(node) is None:
        _check_expression(node, allowed_env, alias=True)


def _check_switch(call: ast.Call, allowed_env: AllowedEnv) -> None:
    if not _is_name(call.func, SWITCH):
        _refuse(call, "calls are not part of the grammar, except switch(…)[…]")
    if call.keywords or len(call.args) != 1:
        _refuse(call, "switch takes one expression in quotes")
    _check_expression(call.args[0], allowed_env)


def _check_expression(node: ast.expr, allowed_env: AllowedEnv, *, alias: bool = False) -> None:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        _refuse(
            node,
            "expected a number or an expression in quotes" if alias else "expected an expression in quotes",
        )
    expression, _, name = node.value.partition(" as ") if alias else (node.value, "", "")
    if name and (not name.strip().isidentifier() or "__" in name):
        _refuse(node, f"{shown(name)} cannot be a name")
    if problem := flow_expressions.problem_in(expression.strip(), allowed_env):
        _refuse(node, problem)


def _count(node: ast.expr) -> int | None:
    """A number of iterations; `True` and -1 are not."""
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value < 10**9:
        return node.value
    return None


def _check_starts_flow(statement: ast.expr) -> None:
    first, joins = _joined(statement)
    if not joins or not _is_name(first, FLOW):
        # This pyoco runs only what is attached to the flow once there is control in it.
        _refuse(statement, "a graph with loops or switch must start each line with `flow >>` in this pyoco")


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _applied(node: ast.expr, names: Mapping[str, Any]) -> Any:
    first, joins = _joined(node)
    value = _value(first, names)
    for join, right in joins:
        value = _JOINS[join](value, _value(right, names))
    return value


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:  # noqa: PLR0911 - one return per kind of node
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List):
        return [_value(item, names) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(item, names) for item in node.elts)
    if isinstance(node, ast.Subscript):
        return _value(node.value, names)[_value(node.slice, names)]
    if isinstance(node, ast.Call):
        return names[SWITCH](*(_value(item, names) for item in node.args))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _value(node.left, names) % _value(node.right, names)
    if isinstance(node, ast.BinOp) and type(node.op) in _JOINS:
        return _applied(node, names)
    raise TypeError(f"{type(node).__name__} is not part of the grammar")


def _refuse(node: ast.AST, problem: str) -> Never:
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
    raise InvalidRequest(f"flow.graph, line {line}, column {column}: {problem}")
