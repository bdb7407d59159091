"""REQ-0021: JSON on stdout is whole, and harmless in a terminal."""

import json

import pytest

from pyoco_server.cli.client_output import print_json, print_json_line

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
