"""What the source says when it is read, not run: log actions; requirements and settings that tests name."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

ACTION_ARGUMENT = {"best_effort": 1, "surviving": 1, "Pulse": 1}
"""Calls that take an action by position, and at which. What they log is a warning."""
_LEVELS = {"exception": "error", **{level: level for level in ("debug", "info", "warning", "error")}}


_NAMED = re.compile(r"REQ-\d{4}|\b[DW]\d{2}\b|\b(?:PYOCO|AX)_[A-Z_]+\b")


class LogCall(NamedTuple):
    pattern: str
    """Of the action; what is put together at run time is a wildcard."""
    level: str | None
    """None where it is chosen at run time."""
    place: str


@cache
def log_calls() -> list[LogCall]:
    return list(_log_calls())


def _log_calls() -> Iterator[LogCall]:
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                for value in _action_values(node):
                    yield LogCall(_pattern(value), _level(node), f"{path.name}:{node.lineno}")


def _action_values(call: ast.Call) -> list[ast.expr]:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "action"]
    place = ACTION_ARGUMENT.get(getattr(call.func, "id", ""))
    by_position = [] if place is None else call.args[place : place + 1]
    return [v for v in [*named, *by_position] if isinstance(v, ast.JoinedStr) or _text(v) is not None]


def _level(call: ast.Call) -> str | None:
    if isinstance(call.func, ast.Name):
        return "warning" if call.func.id in ACTION_ARGUMENT else None
    return _LEVELS.get(getattr(call.func, "attr", ""))


def _text(value: ast.expr) -> str | None:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _pattern(value: ast.expr) -> str:
    if isinstance(value, ast.JoinedStr):
        return "".join(re.escape(_text(part) or "") or r"\w+" for part in value.values)
    return re.escape(_text(value) or "")


@cache
def proofs() -> dict[str, list[str]]:
    """Test files whose docstrings or ids name a requirement, defect or setting, as paths from the root."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for requirement in _requirements_named_in(path):
            found.setdefault(requirement, []).append(path.relative_to(ROOT).as_posix())
    return found


def _requirements_named_in(path: Path) -> set[str]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = list(ast.walk(ast.parse(path.read_text())))
    texts = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, documented)]
    texts += [_text(node.value) or "" for node in nodes if isinstance(node, ast.keyword) and node.arg == "id"]
    return {found for text in texts for found in _NAMED.findall(text)}
