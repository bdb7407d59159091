"""References and expressions in a flow.yaml.

Inputs of tasks: `$node.a.output.x`, `$ctx.params.x`, `$env.X`. pyoco resolves them on the worker. Anyone who
may submit runs can write such a file: it may read outputs and params of its run, and the environment
variables that the operator lists.

Expressions in a graph: `$ctx.params.done`, `params.count`, `$ctx.loop.index >= 3 and not $env.DRY`. pyoco
evaluates them with Python's `eval`, so only arithmetic and comparisons of references and constants pass.
"""

import ast
import re

from pyoco.schemas.config import PyocoConfig

from pyoco_server.domain.strict_yaml import YamlDocument

_ENV = "$env."
_NODE = "$node."
_INTERNALS = frozenset(
    f"{owner}_{part}"
    for owner, parts in {
        "gi": ("frame", "code", "yieldfrom"),
        "cr": ("frame", "code", "await", "origin"),
        "ag": ("frame", "code", "await"),
        "tb": ("frame", "next"),
        "f": ("globals", "builtins", "locals", "back", "code"),
    }.items()
    for part in parts
)


def check_references(document: YamlDocument, config: PyocoConfig, allowed_env: tuple[str, ...]) -> None:
    """Raises InvalidRequest with the place of a forbidden reference."""
    for task, settings in config.tasks.items():
        for name, value in settings.inputs.items():
            problem = _problem_in(value, allowed_env) if isinstance(value, str) else None
            if problem is not None:
                document.refuse(("tasks", task, "inputs", name), problem)


def env_problem(name: str, allowed_env: tuple[str, ...]) -> str | None:
    if name in allowed_env:
        return None
    listed = f"allows {', '.join(allowed_env)}" if allowed_env else "allows none"
    return f"reads the environment variable {name!r} ($env); PYOCO_WORKER_ALLOWED_ENV {listed}"


def attribute_problem(steps: str) -> str | None:
    """Refuses attributes that lead from a value to the code that made it."""
    for step in steps.split("."):
        if "__" in step or step in _INTERNALS:
            return f"refers to {step[:64]!r}, which is not part of a value"
    return None


def _problem_in(value: str, allowed_env: tuple[str, ...]) -> str | None:
    if value.startswith(_ENV):
        return env_problem(value.removeprefix(_ENV)[:200], allowed_env)
    if value.startswith(_NODE):
        return attribute_problem(value.removeprefix(_NODE))
    return None


MAX_LENGTH = 1_000
PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_REFERENCE = re.compile(r"\$(ctx|env)((?:\.[^\W\d]\w*)+)")

_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd,
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod,
    ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn,
    ast.Constant, ast.Name, ast.Load,
)  # fmt: skip
# No `**`: a single one can keep a worker busy for hours, and cannot be cancelled.


def problem_in(expression: str, allowed_env: tuple[str, ...] | None = None) -> str | None:
    """The reason why an expression is refused; None: it is allowed.

    `allowed_env`: environment variables that it may read; None: checked before.
    """
    if len(expression) > MAX_LENGTH:
        return f"an expression has at most {MAX_LENGTH:,} characters"
    if "__" in expression:
        return "names with two underscores are not allowed in an expression"
    if problem := _problem_in_references(expression, allowed_env):
        return problem
    if PATH.fullmatch(expression):
        return None
    # A reference becomes a name in parentheses, so that the rest is Python and anything after it is a call.
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
