"""A11: whatever runs are called, given, print or fail with is shown as text, and obeyed by nobody."""

import json
import unicodedata
from urllib.parse import quote

import pytest

from pyoco_server.cli import output
from pyoco_server.cli.output import plain_lines, print_table
from pyoco_server.domain.runs.logs import LogLine
from pyoco_server.domain.runs.model import RunStatus
from support.builders import NOW, OWNER, RUN_ID, a_snapshot
from support.gateway import memory_app
from support.watching import stream

EVIL = [
    "\r\nSet-Cookie: a=b\r\n\r\n<html>",
    "\n\nevent: snapshot\ndata: {}\n\n",
    "\x1b[2J\x1b]0;title\x07",
    "\x9b2J",
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202egnp.exe\u2066",
    "\u2028\u2029\ufeff\x00\x7f",
]


def commands_in(text: str) -> list[str]:
    """Characters that a terminal acts upon instead of showing them."""
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and c != "\n"]


@pytest.mark.parametrize("evil", EVIL)
async def test_a11_the_api_gives_back_what_it_got_as_a_value_and_nothing_else(evil: str) -> None:
    async with memory_app() as gateway:
        snapshot = a_snapshot(RunStatus.FAILED, OWNER, flow_name=evil, error=evil, params={evil: evil})
        await gateway.backend.runs.create(RUN_ID, snapshot)
        line = LogLine(attempt=1, n=1, task=evil, stream="stdout", text=evil, ts=NOW)
        await gateway.backend.task_logs.append(RUN_ID, [line])
        run = await gateway.client.get(f"/runs/{RUN_ID}")
        logs = await gateway.client.get(f"/runs/{RUN_ID}/logs")
        for answer in (run, logs):
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "set-cookie" not in answer.headers
        assert (run.json()["flow_name"], run.json()["error"], run.json()["params"]) == (
            evil,
            evil,
            {evil: evil},
        )
        assert [(line["task"], line["text"]) for line in logs.json()["lines"]] == [(evil, evil)]


@pytest.mark.parametrize("evil", EVIL)
async def test_a11_a_text_cannot_end_an_event_and_begin_another(evil: str) -> None:
    async with memory_app() as gateway:
        snapshot = a_snapshot(RunStatus.COMPLETED, OWNER, flow_name=evil, params={evil: evil})
        await gateway.backend.runs.create(RUN_ID, snapshot)
        async with stream(gateway.app, f"/runs/{RUN_ID}/watch") as watching:
            events = await watching.rest()
    assert [event.name for event in events] == ["snapshot"]
    assert events[0].data["snapshot"]["flow_name"] == evil


async def test_a11_a_line_of_events_is_a_line_to_every_client() -> None:
    """Some clients also end lines where Unicode has other separators."""
    async with memory_app() as gateway:
        separators = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
        await gateway.backend.runs.create(RUN_ID, a_snapshot(RunStatus.COMPLETED, OWNER, error=separators))
        async with stream(gateway.app, f"/runs/{RUN_ID}/watch") as watching:
            text = await watching.text()
    assert text.splitlines() == text.split("\n")[:-1]


@pytest.mark.parametrize("evil", EVIL)
async def test_a11_what_a_request_says_wrong_comes_back_as_a_value(evil: str) -> None:
    async with memory_app() as gateway:
        for answer in (
            await gateway.client.get("/runs", params={"status": evil, "cursor": evil, "limit": evil}),
            await gateway.client.post("/runs", json={"flow_name": "f", "tag": evil}),
            await gateway.client.get(f"/runs/{quote(evil.replace('/', ''), safe='')}"),
        ):
            assert answer.status_code in (404, 422)
            assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("evil", EVIL)
def test_a11_a_terminal_is_given_no_commands(evil: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = {"run_id": RUN_ID, "flow_name": evil, "status": "FAILED", "tags": [evil], "error": evil}
    output.print_json(run)
    document = capsys.readouterr().out
    assert json.loads(document) == run
    print_table([run], ["run_id", "flow_name", "status", "tags", "error"])
    assert commands_in(document + capsys.readouterr().out) == []


@pytest.mark.parametrize("evil", EVIL)
def test_a11_what_a_flow_printed_is_text_in_a_terminal(evil: str) -> None:
    shown = plain_lines(f"before {evil} after\n")
    assert commands_in(shown) == []
    assert (shown.split(" ")[0], shown[-7:]) == ("before", " after\n")


def test_a11_colours_are_left_out_and_lines_stay_lines() -> None:
    assert plain_lines("\x1b[31mred\x1b[0m\n\n10%\r20%\r\nend") == "red\n\n10%\n20%\nend"
    assert plain_lines("") == ""
