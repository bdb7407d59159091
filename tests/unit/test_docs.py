"""The documents say what the source does: settings, log actions, requirements."""

import ast
import re
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig, env_name

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DONE = [f"REQ-{number:04d}" for number in (*range(1, 21), *range(22, 27))]
PLANNED = ["REQ-0021"]

ACTION_ARGUMENT = {"best_effort": 1, "Pulse": 1}
"""Calls that take an action by position, and at which."""


def rows(page: str) -> dict[str, list[str]]:
    """The rows of a page's tables, by the first cell."""
    lines = (DOCS / page).read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    found = [row for row in cells if re.fullmatch(r"`[^`]+`|REQ-\d{4}", row[0])]
    assert len({row[0] for row in found}) == len(found), f"{page} says something twice"
    return {row[0].strip("`"): row[1:] for row in found}


# Settings


def test_every_setting_is_documented_and_no_other() -> None:
    assert list(rows("settings.md")) == [env_name(setting.name) for setting in fields(NatsBackendConfig)]


@pytest.mark.parametrize("setting", fields(NatsBackendConfig), ids=lambda setting: setting.name)
def test_the_documented_default_is_the_default(setting: "Field[Any]") -> None:
    default, meaning = rows("settings.md")[env_name(setting.name)]
    text = "" if default == "empty" else default.strip("`")
    environ = {"PYOCO_LOAD_DOTENV": "false", env_name(setting.name): text}
    assert getattr(NatsBackendConfig.from_env(environ), setting.name) == setting.default
    assert (default == "empty") == (setting.default == "")
    assert meaning


# Log actions


def actions_in_source() -> Iterator[tuple[str, str]]:
    """Patterns of the actions, and where they are. What is put together at run time is a wildcard."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                for value in _action_values(node):
                    yield _pattern(value), f"{path.name}:{node.lineno}"


def _action_values(call: ast.Call) -> list[ast.expr]:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "action"]
    place = ACTION_ARGUMENT.get(getattr(call.func, "id", ""))
    by_position = [] if place is None else call.args[place : place + 1]
    return [v for v in [*named, *by_position] if isinstance(v, ast.JoinedStr) or _text(v) is not None]


def _text(value: ast.expr) -> str | None:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _pattern(value: ast.expr) -> str:
    if isinstance(value, ast.JoinedStr):
        return "".join(re.escape(_text(part) or "") or r"\w+" for part in value.values)
    return re.escape(_text(value) or "")


def test_every_log_action_is_documented() -> None:
    documented = rows("log-actions.md")
    missing = [
        f"{action} ({place})"
        for action, place in actions_in_source()
        if not any(re.fullmatch(action, name) for name in documented)
    ]
    assert missing == []


def test_no_log_action_is_documented_that_does_not_exist() -> None:
    known = [action for action, _ in actions_in_source()]
    unknown = [
        name for name in rows("log-actions.md") if not any(re.fullmatch(action, name) for action in known)
    ]
    assert unknown == []


# Requirements


def requirements_named_in(path: Path) -> set[str]:
    """Those that the docstrings of a test file name."""
    tree = ast.parse(path.read_text())
    documented = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {found for node in documented for found in re.findall(r"REQ-\d{4}", ast.get_docstring(node) or "")}


@pytest.fixture(scope="module")
def tested() -> dict[str, set[str]]:
    """Test files, by requirement."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for requirement in requirements_named_in(path):
            found.setdefault(requirement, set()).add(path.relative_to(ROOT).as_posix())
    return found


@pytest.mark.parametrize("requirement", DONE)
def test_every_requirement_has_a_test(requirement: str, tested: dict[str, set[str]]) -> None:
    assert tested.get(requirement), f"no test's docstring names {requirement}"


def test_every_requirement_is_listed_with_its_state() -> None:
    listed = rows("requirements.md")
    assert sorted(listed) == sorted(DONE + PLANNED)
    assert [name for name, (_, state, _) in listed.items() if state.startswith("done")] == DONE


def test_the_listed_tests_name_their_requirement(tested: dict[str, set[str]]) -> None:
    wrong = [
        f"{name}: {file}"
        for name, (_, _, tests) in rows("requirements.md").items()
        for file in re.findall(r"\(\.\./([^)]+)\)", tests)
        if file not in tested.get(name, set())
    ]
    assert wrong == []


# Links


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *DOCS.rglob("*.md")], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []
