"""REQ-0021, ERR-PYOCO-0018: what is wrong with arguments, how it is right, and in whose language."""

import sys
from collections.abc import Callable

import pytest

from pyoco_server import admin_cli
from pyoco_server.cli import client, server, worker
from pyoco_server.cli.terminal import help_texts
from tools.reference.commands import commands

PROGRAMS: dict[str, Callable[[], None]] = {
    "pyoco-client": client.main,
    "pyoco-server": server.main,
    "pyoco-server-admin": admin_cli.main,
    "pyoco-worker": worker.main,
}
HEAD = "ERR-PYOCO-0018 MSG-PYOCO-0018 The arguments are not valid (check the input format): "
HEAD_JA = "ERR-PYOCO-0018 MSG-PYOCO-0018 CLI引数が不正です（入力形式を確認してください）: "


@pytest.fixture(autouse=True)
def _own_formatters() -> None:
    for app in (client.app, server.app, admin_cli.app, worker.app):
        app.help_formatter = None


def typed(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What stderr says."""
    monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(SystemExit) as ended:
        PROGRAMS[line.split(maxsplit=1)[0]]()
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.splitlines()


WRONG = [
    ("pyoco-client submit", "--flow-name is missing", "pyoco-client submit --flow-name sample"),
    (
        "pyoco-client submit --flow-nam x",
        "--flow-nam is not an option; did you mean --flow-name?",
        "pyoco-client submit --flow-name sample",
    ),
    (
        "pyoco-client submit --flow-name",
        "--flow-name needs a value",
        "pyoco-client submit --flow-name sample",
    ),
    (
        "pyoco-client submti",
        "submti is not a command; did you mean submit?",
        "pyoco-client submit --flow-name sample",
    ),
    ("pyoco-client get", "RUN_ID is missing", "pyoco-client get RUN_ID"),
    ("pyoco-client get a b", "cannot be used here: b", "pyoco-client get RUN_ID"),
    (
        "pyoco-client list --limit many",
        "--limit many: must be a whole number",
        "pyoco-client list --limit 10",
    ),
    (
        "pyoco-client list --output xml",
        "--output xml: must be one of json, table",
        "pyoco-client list --output json",
    ),
    ("pyoco-server up --port x", "--port x: must be a whole number", "pyoco-server up --port 8000"),
    ("pyoco-worker --bogus", "--bogus is not an option", "pyoco-worker --flows flows"),
    (
        "pyoco-worker --concurrency x",
        "--concurrency x: must be a whole number",
        "pyoco-worker --flows flows --concurrency 10",
    ),
    (
        "pyoco-worker --tags a --tags b",
        "--tags is given more than once",
        "pyoco-worker --flows flows",
    ),
    (
        "pyoco-server-admin api-key create",
        "--tenant is missing",
        "pyoco-server-admin api-key create --tenant my-team",
    ),
]


@pytest.mark.parametrize(("line", "told", "example"), WRONG, ids=[line for line, _, _ in WRONG])
def test_wrong_arguments_are_answered_with_ids_and_an_example(
    line: str,
    told: str,
    example: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D33"""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    said = typed(line, capsys, monkeypatch)
    assert said[:2] == [HEAD + told, f"Example:  {example}"]
    assert said[2].endswith(" --help")


@pytest.mark.parametrize(
    ("line", "told", "example"),
    [
        (
            "pyoco-client submit",
            "--flow-name が指定されていません",
            "例:  pyoco-client submit --flow-name sample",
        ),
        (
            "pyoco-client submti",
            "submti というコマンドはありません。submit の間違いではありませんか",
            "例:  pyoco-client submit --flow-name sample",
        ),
        (
            "pyoco-worker",
            (
                "--flow-resolver か --flows のどちらか一方を指定してください。例: "
                "--flow-resolver my_package.flows:resolve   --flows ./flows"
            ),
            None,
        ),
    ],
)
def test_wrong_arguments_are_answered_in_japanese(
    line: str,
    told: str,
    example: str | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D33: MSG-PYOCO-0018 to the letter."""
    monkeypatch.setenv("LC_ALL", "ja_JP.UTF-8")
    said = typed(line, capsys, monkeypatch)
    assert said[0] == HEAD_JA + told
    assert example is None or said[1] == example


def test_help_is_in_the_language_of_the_locale(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D33"""
    monkeypatch.setattr(sys, "argv", ["pyoco-client", "submit", "--help"])
    for locale, text in (("C.UTF-8", "Submit a run and print its id."), ("ja_JP.UTF-8", "runを投入し、idを")):
        monkeypatch.setenv("LC_ALL", locale)
        with pytest.raises(SystemExit) as ended:
            client.main()
        assert not ended.value.code
        assert text in capsys.readouterr().out


def texts_of_help() -> set[str]:
    found = set()
    for command in commands():
        helps = [argument.parameter.help or "" for argument in command.arguments]
        found |= {" ".join(text.split()) for text in (command.purpose, *helps)}
    return found


def test_every_text_of_help_exists_in_japanese() -> None:
    """D33: add a new one to cli/help.ja.json, which is sorted."""
    assert sorted(texts_of_help() - set(help_texts())) == []
    assert list(help_texts()) == sorted(help_texts())
