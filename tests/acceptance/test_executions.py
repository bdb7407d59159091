"""Executions as people use them: the command line, the client. The how-to is typed by test_pages.py."""

import json
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pyoco_server import PyocoHttpClient
from support.nats_server import free_port
from support.page import File, steps
from support.programs import Programs
from support.waiting import PATIENCE_SEC, until_now

HOWTO = Path(__file__).parents[2] / "docs/how-to/executions.md"

ASK = {
    "nodes": {"ask": {"type": "wait", "prompt": "go on?"}, "book": {"type": "task", "external": True}},
    "edges": [{"from": "ask", "to": "book"}],
}


class Shell:
    """What a user types, where the files of the how-to are."""

    def __init__(self, programs: Programs, url: str) -> None:
        self._programs = programs
        self.url = url

    def write(self, name: str, definition: dict[str, Any]) -> None:
        (self._programs.directory / name).write_text(json.dumps(definition))

    def __call__(self, command: str, code: int = 0) -> tuple[str, str]:
        done = self._programs.run(*shlex.split(command), PYOCO_SERVER_URL=self.url)
        assert done.returncode == code, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout, done.stderr

    def json(self, command: str) -> Any:
        return json.loads(self(command)[0])


@pytest.fixture
def shell(programs: Programs) -> Iterator[Shell]:
    """The server of the how-to, on a port of its own."""
    for file in steps(HOWTO):
        if isinstance(file, File):
            (programs.directory / file.path).write_text(file.text)
    port = free_port()
    command = ("pyoco-server", "up", "--port", str(port), "--durability", "fast")
    with programs.started(*command, "--with-worker", "--flow-resolver", "flows.py:resolve") as up:
        up.says("worker ready")
        yield Shell(programs, f"http://127.0.0.1:{port}")


@pytest.fixture
def client(shell: Shell) -> Iterator[PyocoHttpClient]:
    with PyocoHttpClient(shell.url) as found:
        found.put_graph("ask", ASK)
        yield found


def test_create_and_wait_tells_the_end_by_its_exit_code(shell: Shell) -> None:
    shell.write("broken.json", {"id": "broken", "nodes": {"only": {"type": "task", "flow": "unknown"}}})
    shell("pyoco-client graphs put broken.json")
    out, err = shell("pyoco-client executions create broken --wait", code=1)
    assert json.loads(out)["status"] == "FAILED"
    assert "EXECUTION_FAILED" in err
    fine = {"id": "fine", "nodes": {"only": {"type": "task", "flow": "extract", "params": {"ym": "x"}}}}
    shell.write("fine.json", fine)
    shell("pyoco-client graphs put fine.json")
    out, err = shell("pyoco-client executions create fine --wait")
    assert json.loads(out)["result"] == {"only": {"extract": {"ym": "x", "total": 1200}}}
    assert "NODE_SUCCEEDED only" in err


def test_what_is_refused_says_what_to_do(shell: Shell, client: PyocoHttpClient) -> None:
    assert client.executions.create("ask", execution_id="e")["status"] == "ACTIVE"
    until_now(
        lambda: client.executions.get("e")["nodes"]["ask"]["status"], lambda status: status == "WAITING"
    )
    refused = {
        "pyoco-client executions get nobody": ("ERR-PYOCO-0031", "executions list"),
        "pyoco-client executions create nothing": ("ERR-PYOCO-0034", "graphs list"),
        "pyoco-client resume e nobody": ("ERR-PYOCO-0032", "executions get"),
        "pyoco-client resume e book": ("ERR-PYOCO-0033", "(NODE_STATUS)"),
        "pyoco-client executions archive e": ("ERR-PYOCO-0033", "(EXECUTION_NOT_TERMINAL)"),
        "pyoco-client resume e ask --data nonsense": ("--data is not JSON", "example"),
        "pyoco-client executions command e Explode": ("ERR-PYOCO-0002", "command"),
    }
    for command, words in refused.items():
        _, err = shell(command, code=1)
        assert all(word in err for word in words), (command, err)


def test_tables_are_for_people_and_json_for_programs(shell: Shell, client: PyocoHttpClient) -> None:
    assert "no executions" in shell("pyoco-client executions list --output table")[1]
    assert "no waiting nodes" in shell("pyoco-client waits --output table")[1]
    for number in range(3):
        client.executions.create("ask", execution_id=f"e{number}")
        until_now(lambda: len(client.executions.waits()["items"]), (number + 1).__eq__)  # in this order
    out, err = shell("pyoco-client executions list --limit 2 --output table")
    assert all(word in out for word in ("execution_id", "e2", "e1", "ACTIVE")) and "e0" not in out  # noqa: PT018
    assert "--cursor" in err
    out, _ = shell("pyoco-client waits --output table")
    assert out.index("e0") < out.index("e1") < out.index("e2")
    page = shell.json("pyoco-client executions list --limit 2")
    rest = shell.json(f"pyoco-client executions list --cursor {page['next_cursor']}")
    assert [item["execution_id"] for item in page["items"] + rest["items"]] == ["e2", "e1", "e0"]


def test_every_call_of_the_client(client: PyocoHttpClient) -> None:
    calls = client.executions
    first = calls.create("ask", {"x": 1}, execution_id="e", start=False, idempotency_key="k")
    assert calls.create("ask", {"x": 1}, execution_id="e", start=False, idempotency_key="k") == first
    assert first["started_at"] is None
    calls.command("e", "StartExecution")
    until_now(lambda: calls.get("e")["nodes"]["ask"]["status"], lambda status: status == "WAITING")
    assert [wait["node_id"] for wait in calls.waits()["items"]] == ["ask"]
    seen: list[dict[str, Any]] = []
    watching = threading.Thread(target=lambda: seen.extend(calls.watch("e", after=2)))
    watching.start()
    calls.command("e", "RequestResumeNode", node_id="ask", data={"ok": True}, requested_by="eve")
    assert calls.waits()["items"][0]["resume_requested_by"] == "eve"
    calls.resume("e", "ask", {"ok": True}, idempotency_key="k")
    until_now(lambda: calls.get("e")["nodes"]["book"]["status"], lambda status: status == "READY")
    calls.command("e", "StartNode", node_id="book", worker_id="w")
    calls.command("e", "SucceedNode", node_id="book", output=7)
    watching.join(PATIENCE_SEC)
    ended = calls.get("e")
    assert (ended["status"], ended["result"]) == ("COMPLETED", {"book": 7})
    assert [event["sequence"] for event in seen] == list(range(3, ended["version"] + 1))
    assert calls.events("e", after=2)["items"] == seen
    assert calls.get("e", at_sequence=3)["version"] == 3
    again = calls.rerun("e")
    assert calls.cancel(again["execution_id"], "not now")["cancel_reason"] == "not now"
    until_now(lambda: calls.get(again["execution_id"])["status"], lambda status: status == "CANCELED")
    calls.archive(again["execution_id"])
    assert [item["execution_id"] for item in calls.list(archived=True)["items"]] == [again["execution_id"]]
    assert [item["execution_id"] for item in calls.list("COMPLETED", "ask")["items"]] == ["e"]
    with pytest.raises(httpx2.HTTPStatusError):
        calls.get("nobody")
