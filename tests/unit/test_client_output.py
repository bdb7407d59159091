"""REQ-0021: JSON on stdout is whole, and harmless in a terminal."""

import json
import sys
from typing import Any

import httpx2
import pytest

from pyoco_server.cli import run_view
from pyoco_server.cli.client_params import NOT_FOLLOWED
from pyoco_server.cli.client_runs import _print_submitted
from pyoco_server.cli.output import Shown, fail_http, print_json, print_json_line
from pyoco_server.http_client import PyocoHttpClient

ANSWER = {"error": "\x1b[31m\u202e\U000e0001 売上 😀\n"}


def test_it_is_the_same_value_without_what_a_terminal_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(ANSWER)
    printed = capsys.readouterr().out
    assert json.loads(printed) == ANSWER
    assert "売上 😀" in printed
    assert all(character.isprintable() or character == "\n" for character in printed)


def test_a_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json_line(ANSWER)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == ANSWER


def test_a_warning_of_the_server_is_shown_beside_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """D45: a tag that no worker has."""
    answer: Any = {"run_id": "r1", "status": "PENDING", "warning": "no worker has the tag \x1b[31mgpu"}
    assert _print_submitted(PyocoHttpClient("http://127.0.0.1:1"), answer, NOT_FOLLOWED) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["run_id"] == "r1"
    assert said.err == "warning: no worker has the tag �[31mgpu\n"


def test_the_problems_of_a_body_are_shown_with_their_places(capsys: pytest.CaptureFixture[str]) -> None:
    detail = [
        {"loc": ["body"], "msg": "run_at and delay_sec exclude each other"},
        {"loc": ["body", "retry", "max_attempts"], "msg": "too large"},
    ]
    with pytest.raises(SystemExit):
        fail_http(httpx2.Response(422, json={"detail": detail, "err_id": "ERR-PYOCO-0002"}))
    shown = "ERR-PYOCO-0002 run_at and delay_sec exclude each other; retry.max_attempts: too large"
    assert shown in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--output", "json"], ["-q"]])
def test_who_stops_waiting_gets_to_know_the_run(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_view, "follow", interrupted)
    monkeypatch.setattr(sys, "argv", ["pyoco-client", "submit", "f", "--wait", *options])
    with pytest.raises(KeyboardInterrupt):
        run_view.follow_to_end(
            PyocoHttpClient("http://127.0.0.1:1"), "r1", None, Shown(quiet="-q" in options)
        )
    said = capsys.readouterr()
    assert said.out == ""
    if "json" in options:
        assert json.loads(said.err)["error"]["run_id"] == "r1"
    assert "pyoco-client cancel r1" in said.err
