"""The documents say what the source does: nothing is undocumented, stale or without a meaning."""

import re
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig, env_name
from tools.reference import DOCS, PAGES, ROOT, current, tables, written
from tools.reference.sources import proofs

DONE = [f"REQ-{number:04d}" for number in range(1, 27)]
PLANNED: list[str] = []


def rows(page: str) -> dict[str, list[str]]:
    """The cells beside the first of each row of a page's tables, by that."""
    lines = [line for line in current(page).splitlines() if tables.key_of(line) is not None]
    found = tables.rows(current(page))
    assert len(found) == len(lines), f"{page} says something twice"
    return {key: row[1:] for key, row in found.items()}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_as_the_code_wants_it(page: str) -> None:
    assert current(page) == written(page), "make reference"


@pytest.mark.parametrize(
    "page", ["settings.md", "log-actions.md", "reference/metrics.md", "reference/commands.md"]
)
def test_every_row_has_a_meaning(page: str) -> None:
    lines = current(page).splitlines()
    assert [line for line in lines if tables.key_of(line) and not tables.cells(line)[-1]] == []


# Settings


def test_every_setting_is_documented_and_no_other() -> None:
    assert list(rows("settings.md")) == [env_name(setting.name) for setting in fields(NatsBackendConfig)]


@pytest.mark.parametrize("setting", fields(NatsBackendConfig), ids=lambda setting: setting.name)
def test_the_documented_default_is_the_default(setting: "Field[Any]") -> None:
    default, _, _ = rows("settings.md")[env_name(setting.name)]
    text = "" if default == "empty" else default.strip("`")
    environ = {"PYOCO_LOAD_DOTENV": "false", env_name(setting.name): text}
    assert getattr(NatsBackendConfig.from_env(environ), setting.name) == setting.default
    assert (default == "empty") == (setting.default == "")


# Requirements


@pytest.mark.parametrize("requirement", DONE)
def test_every_requirement_has_a_test(requirement: str) -> None:
    assert proofs().get(requirement), f"no test's docstring names {requirement}"


def test_every_requirement_is_listed_with_its_state() -> None:
    listed = rows("requirements.md")
    assert sorted(listed) == sorted(DONE + PLANNED)
    assert [name for name, (_, state, _) in listed.items() if state.startswith("done")] == DONE


# Links


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *DOCS.rglob("*.md")], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []
