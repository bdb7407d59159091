"""REQ-0021: JSON on stdout is whole, and harmless in a terminal."""

import json
from typing import Any

import httpx2
import pytest

from pyoco_server.cli.client_params import NOT_FOLLOWED
from pyoco_server.cli.client_runs import _print_submitted
from pyoco_server.cli.output import fail_http, print_json, print_json_line
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
