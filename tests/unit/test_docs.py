"""The documents say what the source does: nothing is undocumented, stale or without a meaning."""

import re
import shlex
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig, env_name
from support.tables import every_row
from tools import client_types, llms_txt
from tools.reference import DOCS, PAGES, ROOT, commands, current, tables, written
from tools.reference.sources import proofs

DONE = [f"REQ-{number:04d}" for number in range(1, 27)]
PLANNED: list[str] = []
DEFECTS = [*(f"D{number:02d}" for number in range(1, 58)), *(f"W{number:02d}" for number in range(1, 8))]
SETTINGS = [
    "PYOCO_NATS_URL",
    "PYOCO_WORK_SUBJECT_PREFIX",
    "PYOCO_DEFAULT_TAG",
    "PYOCO_RUNS_KV_BUCKET",
    "PYOCO_WORKERS_KV_BUCKET",
    "PYOCO_HTTP_AUTH_MODE",
    "PYOCO_HTTP_API_KEY_HEADER",
    "PYOCO_AUTH_KV_BUCKET",
    "PYOCO_AUTH_PEPPER",
    "PYOCO_RUN_HEARTBEAT_INTERVAL_SEC",
    "PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC",
    "PYOCO_WORKERS_KV_TTL_SEC",
    "PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC",
    "PYOCO_CANCEL_GRACE_PERIOD_SEC",
    "PYOCO_CONSUMER_ACK_WAIT_SEC",
    "PYOCO_CONSUMER_MAX_DELIVER",
    "PYOCO_CONSUMER_MAX_ACK_PENDING",
    "PYOCO_ACK_PROGRESS_INTERVAL_SEC",
    "PYOCO_DLQ_STREAM",
    "PYOCO_DLQ_SUBJECT_PREFIX",
    "PYOCO_DLQ_PUBLISH_EXECUTION_ERROR",
    "PYOCO_DLQ_MAX_AGE_SEC",
    "PYOCO_DLQ_MAX_MSGS",
    "PYOCO_DLQ_MAX_BYTES",
    "PYOCO_MAX_RUN_SNAPSHOT_BYTES",
    "PYOCO_WORKFLOW_YAML_MAX_BYTES",
    "PYOCO_WHEEL_OBJECT_STORE_BUCKET",
    "PYOCO_WHEEL_MAX_BYTES",
    "PYOCO_WHEEL_SYNC_ENABLED",
    "PYOCO_WHEEL_SYNC_DIR",
    "PYOCO_WHEEL_SYNC_INTERVAL_SEC",
    "PYOCO_WHEEL_INSTALL_TIMEOUT_SEC",
    "PYOCO_WHEEL_HISTORY_KV_BUCKET",
    "PYOCO_WHEEL_HISTORY_TTL_SEC",
    "PYOCO_DASHBOARD_LANG",
    "PYOCO_LOAD_DOTENV",
    "PYOCO_ENV_FILE",
    "PYOCO_LOG_LEVEL",
    "PYOCO_LOG_FORMAT",
    "PYOCO_LOG_UTC",
    "PYOCO_LOG_INCLUDE_TRACEBACK",
]
"""Of the contract's appendix I."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def rows(page: str) -> dict[str, list[str]]:
    """The cells beside the first of each row of a page's tables, by that."""
    lines = [line for line in current(page).splitlines() if tables.key_of(line) is not None]
    found = tables.rows(current(page))
    assert len(found) == len(lines), f"{page} says something twice"
    return {key: row[1:] for key, row in found.items()}


@every_row("page", PAGES)
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


def test_a_time_in_the_meaning_of_a_setting_is_its_default() -> None:
    page = current("settings.md")
    found = re.findall(r"^\| `\w+` \| `([\d.]+)` \| seconds.*\((\d+) days\)", page, re.MULTILINE)
    assert found
    assert [float(default) for default, _ in found] == [int(days) * 86_400.0 for _, days in found]


@every_row("setting", fields(NatsBackendConfig))
def test_the_documented_default_is_the_default(setting: "Field[Any]") -> None:
    default, _, _ = rows("settings.md")[env_name(setting.name)]
    text = "" if default == "empty" else default.strip("`")
    environ = {"PYOCO_LOAD_DOTENV": "false", env_name(setting.name): text}
    assert getattr(NatsBackendConfig.from_env(environ), setting.name) == setting.default
    assert (default == "empty") == (setting.default == "")


# Requirements


@every_row("requirement", DONE)
def test_every_requirement_has_a_test(requirement: str) -> None:
    assert proofs().get(requirement), f"no test's docstring names {requirement}"


def test_every_requirement_is_listed_with_its_state() -> None:
    listed = rows("requirements.md")
    assert sorted(listed) == sorted(DONE + PLANNED + DEFECTS + SETTINGS)
    assert [name for name, cells in listed.items() if cells[1].startswith("done")] == DONE


@every_row("setting", SETTINGS)
def test_every_setting_of_the_contract_has_a_test_of_its_effect(setting: str) -> None:
    assert proofs().get(setting), f"no test's docstring or id names {setting}"


@every_row("defect", DEFECTS)
def test_every_defect_has_a_test(defect: str) -> None:
    assert proofs().get(defect), f"no test's docstring names {defect}"


# Commands


def commands_on(page: Path) -> list[str]:
    """What a reader is told to type of ours, without variables in front and pipes behind."""
    typed = re.findall(
        r"^(?: {4})?\$ (?:\w+=\S+ )*(?:\w+=\$\()?(pyoco-[^|\n]+)", page.read_text(), re.MULTILINE
    )
    return [line.strip() for line in typed]


@every_row("page", [page for page in (*ROOT.glob("README*.md"), *DOCS.rglob("*.md")) if commands_on(page)])
def test_commands_and_their_options_exist(page: Path) -> None:
    for line in commands_on(page):
        program, *arguments = shlex.split(line, comments=True)
        commands.PROGRAMS[program].parse_args(arguments, exit_on_error=False, print_error=False)


@every_row("page", [*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
def test_python_compiles(page: Path) -> None:
    """The tutorial and the how-to pages are run by acceptance/test_pages.py."""
    for block in re.findall(r"^```python[^\n]*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        compile(block, page.name, "exec")


# Links


@every_row("page", [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "deploy" / "README.md"])
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@every_row("page", [*DOCS.rglob("*.md")])
def test_links_of_the_site_stay_in_it(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [t for t in targets if not (page.parent / t).resolve().is_relative_to(DOCS)] == []


def test_every_page_has_its_place_in_the_site() -> None:
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert {page for page in pages if not page.startswith("decisions/0")} == listed


def test_every_page_of_the_site_opens_with_a_sentence() -> None:
    """It is what the index for language models shows of the page."""
    lines = [line for line in llms_txt.index().splitlines() if line.startswith("- ")]
    assert [line for line in lines if not re.search(r"\): `?[A-Z][^|#]{15,}\.$", line)] == []


def test_the_index_for_language_models_has_every_page_of_the_site(tmp_path: Path) -> None:
    llms_txt.write(tmp_path)
    index = (tmp_path / "llms.txt").read_text()
    linked = re.findall(r"\]\((\S+\.md)\)", index)
    assert sorted(linked) == sorted(
        re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    )
    assert [page for page in linked if (tmp_path / page).read_bytes() != (DOCS / page).read_bytes()] == []


# The map


SOURCE = ROOT / "src" / "pyoco_server"
MAPS = [
    ROOT / "CONTRIBUTING.md",
    *sorted((DOCS / "explanation").glob("*.md")),
    *sorted((DOCS / "decisions").glob("*.md")),
]


def files_named_in(page: Path) -> set[str]:
    """Paths below the package, such as `domain/runs/changes.py`."""
    rooms = "|".join(sorted(room.name for room in SOURCE.iterdir() if room.is_dir()))
    return set(re.findall(rf"(?<![\w/])(?:src/pyoco_server/)?((?:{rooms})/[\w/]*\.py)\b", page.read_text()))


@every_row("page", MAPS)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    assert {named for named in files_named_in(page) if not (SOURCE / named).is_file()} == set()


def test_the_map_shows_the_way_of_a_run_a_command_and_an_event() -> None:
    named = files_named_in(ROOT / "CONTRIBUTING.md")
    assert {"http_api/routes/runs.py", "http_api/routes/executions.py", "http_api/routes/events.py"} <= named


# The client's types


def test_the_clients_types_are_those_of_the_answers() -> None:
    found = {path.name: path.read_text() for path in client_types.TARGET.glob("*.py")}
    assert found == client_types.modules(), "make types"
