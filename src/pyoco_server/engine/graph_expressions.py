"""The expressions in a graph: `$ctx.params.done`, `params.count`, `$ctx.loop.index >= 3 and not $env.DRY`.

pyoco evaluates them with Python's `eval` while a flow runs. Only comparisons and sums of references and
constants pass here.
"""

import ast
import re

from pyoco_server.engine.flow_references import attribute_problem, env_problem

MAX_LENGTH = 1_000
PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_REFERENCE = re.compile(r"\$(ctx|env)((?:\.[^\W\d]\w*)+)")

_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd,
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod,
    ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn,
    ast.Constant, ast.Name, ast.Load,
)  # fmt: skip
# No `**`: one line of it can keep a worker busy for hours without a chance to cancel.


def problem_in(expression: str, allowed_env: tuple[str, ...] | None = None) -> str | None:
    """Why an expression is refused; None when it may be evaluated.

    `allowed_env`: the environment variables that it may read; None when that was checked before.
    """
    if len(expression) > MAX_LENGTH:
        return f"an expression has at most {MAX_LENGTH:,} characters"
    if "__" in expression:
        return "names with two underscores are not allowed in an expression"
    if problem := _problem_in_references(expression, allowed_env):
        return problem
    if PATH.fullmatch(expression):
        return None
    # A reference becomes a name in parentheses, so that what remains is Python; what touches it is a call.
    return _problem_in_python(_REFERENCE.sub("(_)", expression))


def _problem_in_references(expression: str, allowed_env: tuple[str, ...] | None) -> str | None:
    found = [match.groups() for match in _REFERENCE.finditer(expression)]
    if PATH.fullmatch(expression):  # `env.X` is `$env.X`, and everything else is in the context
        root, _, rest = expression.partition(".")
        found = [("env" if root == "env" and rest else "ctx", f".{rest}")]
    for root, steps in found:
        name = steps[1:].partition(".")[0]
        if root == "env" and allowed_env is not None and (problem := env_problem(name, allowed_env)):
            return problem
        if problem := attribute_problem(steps[1:]):
            return problem
    return None


def _problem_in_python(source: str) -> str | None:
    if "\\" in source:
        return "a backslash is not allowed in an expression"
    try:
        tree = ast.parse(source.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "this is not an expression; use references like $ctx.params.x, constants and comparisons"
    return next((problem for node in ast.walk(tree) if (problem := _problem_in_node(node))), None)


def _problem_in_node(node: ast.AST) -> str | None:
    if not isinstance(node, _ALLOWED):
        return f"{type(node).__name__} is not allowed in an expression"
    if isinstance(node, ast.Name) and node.id != "_":
        return f"{node.id!r} is not known in an expression; write $ctx.params.{node.id}"
    if isinstance(node, ast.Constant) and not isinstance(node.value, (str, int, float, type(None))):
        return "only texts, numbers, true and false can be compared"
    return None
