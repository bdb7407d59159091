"""REQ-0021: what commands print: JSON, tables, ids; and how they fail for programs."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.http_client import PyocoHttpClient
from support.nats_server import free_port
from support.programs import SCRIPTS, Programs
from support.terminals import in_terminal
from support.waiting import PATIENCE_SEC, until_now
from support.wheels import a_wheel_file, wheel_name

FLOWS = """
from pyoco import Flow, task

@task
def double(x: int = 1) -> int:
    return x * 2

@task
def fail() -> None:
    raise ValueError("on purpose")

by_variable = Flow(name="double") >> double
bad = Flow(name="bad") >> fail
"""
GRAPH = "id: close\nnodes: {a: {type: task, flow: double}, b: {type: wait}}\nedges: [{from: a, to: b}]\n"


class Shell:
    """Commands in the directory of a running server, which they find there."""

    def __init__(self, programs: Programs, url: str) -> None:
        self.programs = programs
        self.url = url
        self.client = PyocoHttpClient(url)

    def __call__(self, *arguments: str, code: int = 0, program: str = "pyoco-client") -> tuple[str, str]:
        done = self.programs.run(program, *arguments)
        assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout, done.stderr

    def json(self, *arguments: str, **options: Any) -> Any:
        return json.loads(self(*arguments, **options)[0])

    def error(self, *arguments: str, **options: Any) -> dict[str, Any]:
        _, err = self(*arguments, "--output", "json", code=1, **options)
        found: dict[str, Any] = json.loads(err)["error"]
        return found


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """One for all tests here: none of them hurts it."""
    directory: Path = tmp_path_factory.mktemp("output")
    (directory / "flows").mkdir()
    (directory / "flows/some.py").write_text(FLOWS)
    (directory / "graph.yaml").write_text(GRAPH)
    programs = Programs(directory)
    port = free_port()
    command = ("pyoco-server", "up", "--port", str(port), "--durability", "fast", "--with-worker")
    with programs.started(*command, "--flows", "flows") as up:
        up.says("worker ready")
        running = Shell(programs, f"http://127.0.0.1:{port}")
        yield running
        running.client.close()


def test_flows_are_listed_with_what_their_runs_were_like(shell: Shell) -> None:
    until_now(lambda: [flow["name"] for flow in shell.client.list_flows()["items"]] == ["bad", "double"])
    shell.client.run("double", {"x": 3})
    (bad, double) = shell.json("flows")["items"]
    assert (bad["workers"], bad["tags"], bad["last_runs"]) == (["worker"], ["default"], [])
    assert (double["success_rate"], double["last_runs"][0]["status"]) == (1.0, "COMPLETED")
    header, *rows = shell("flows", "--output", "table")[0].splitlines()
    assert header.split() == ["flow", "tags", "workers", "last_run", "ended_at", "success", "p50", "p95"]
    assert rows[0].split() == ["bad", "default", "worker", "-", "-", "-", "-", "-"]
    assert rows[1].split()[:4] == ["double", "default", "worker", "COMPLETED"]
    assert shell("flows", "--quiet")[0] == "bad\ndouble\n"


def test_a_run_is_run_again_with_changed_params(shell: Shell, tmp_path: Path) -> None:
    shell.client.run("double", {"x": 3, "note": "kept"}, tags=["nightly"])
    first = shell.client.list_runs(flow="double")[0]["run_id"]
    again = shell.json("retry", first, "--param", "x=21", "--wait")
    assert again["run_id"] != first
    assert (again["params"], again["result"]) == ({"x": 21, "note": "kept"}, {"double": 42})
    assert ("nightly" in again["tags"], again["retried_from"]) == (True, first)
    same = shell.client.get_run(shell("rerun", first, "-q")[0].strip())
    assert (same["params"], same["tag"]) == ({"x": 3, "note": "kept"}, "default")
    (tmp_path / "flow.yaml").write_text('flow: {graph: "d"}\ntasks: {d: {callable: "os:getpid"}}\n')
    from_file = shell.json("submit-yaml", str(tmp_path / "flow.yaml"), "--flow-name", "mine", "--wait")
    assert shell.json("retry", from_file["run_id"], "--wait")["status"] == "COMPLETED"
    refused = shell("retry", first, "--from", "failed", code=1)[1]
    assert "all tasks of the run succeeded; retry it from the start" in refused


def test_quiet_prints_ids_and_no_progress(shell: Shell, tmp_path: Path) -> None:
    out, err = shell("submit", "double", "--wait", "-q")
    run_id = out.strip()
    assert (shell.client.get_run(run_id)["status"], err) == ("COMPLETED", "")
    assert run_id in shell("list", "-q")[0].splitlines()
    assert shell("cancel", run_id, "-q")[0].strip() == run_id
    assert shell("watch", run_id, "-q") == ("", "")
    assert shell("workers", "-q")[0] == "worker\n"
    assert shell("graphs", "put", "graph.yaml", "-q")[0] == "close\n"
    execution_id = shell("executions", "create", "close", "-q")[0].strip()
    until_now(lambda: bool(shell.client.executions.waits()["items"]))
    assert shell("waits", "-q")[0] == f"{execution_id} b\n"
    file = a_wheel_file(tmp_path)
    assert shell("wheel-upload", str(file), "-q")[0].strip() == wheel_name()
    assert len(shell.json("wheel-history", wheel_name())) == 1
    assert shell.json("wheel-delete", wheel_name())["deleted"] is True
    key = shell("api-key", "create", "acme", "-q", program="pyoco-server-admin")[0].strip()
    assert key.startswith("pyoco_")
    keys = shell("api-key", "list", "--output", "table", program="pyoco-server-admin")[0]
    key_id = key.removeprefix("pyoco_").partition(".")[0]
    assert [line.split()[:2] for line in keys.splitlines()] == [["key_id", "tenant_id"], [key_id, "acme"]]
    assert shell("api-key", "revoke", key_id, "-q", program="pyoco-server-admin")[0].strip() == key_id


def test_one_thing_is_a_table_of_its_fields(shell: Shell) -> None:
    shell.client.put_graph("close", GRAPH)
    execution_id = shell.client.executions.create("close")["execution_id"]
    until_now(lambda: shell.client.executions.get(execution_id)["nodes"]["b"]["status"] == "WAITING")
    with in_terminal(
        shell.programs, "pyoco-client", "executions", "get", execution_id, "--output", "table", lines=60
    ) as terminal:
        assert terminal.ends() == 0
        terminal.shows(rf"execution_id +{execution_id}")
        terminal.shows(r"SUCCEEDED +a ")
        terminal.shows(r"WAITING +b ")
    out, _ = shell("graphs", "get", "close", "--output", "table")
    assert out.splitlines()[0].split() == ["graph_id", "close"]
    out, _ = shell("executions", "events", execution_id, "--output", "table")
    assert out.split()[:4] == ["sequence", "occurred_at", "type", "details"]


def test_ticks_are_shown_in_the_time_zone_of_their_schedule(shell: Shell) -> None:
    shell.client.schedules.put("late", {"flow": "double"}, cron="30 2 * * *", timezone="Asia/Tokyo")
    period = ("2026-01-01T00:00Z", "2026-01-01T23:00Z")
    backfill = ("schedules", "backfill", "late", *period, "--dry-run")
    for command in (backfill, ("schedules", "preview", "late")):
        assert "02:30:00+09:00" in shell(*command, "--output", "table")[0]
    shell.client.schedules.delete("late")


# Failures for programs


def test_a_failure_is_json_for_those_who_asked_for_json(shell: Shell) -> None:
    missing = shell.error("get", "no-such-run")
    assert (missing["status"], missing["err_id"], missing["detail"]) == (
        404,
        "ERR-PYOCO-0005",
        "run not found",
    )
    assert missing["advice"] == "Check the run id: pyoco-client list"
    wrong = shell.error("list", "--limt", "3")
    assert (wrong["status"], wrong["err_id"]) == (None, "ERR-PYOCO-0018")
    assert wrong["detail"] == "--limt is not an option; did you mean --limit?"
    nobody = shell.error("list", "--server", "http://127.0.0.1:1")
    assert (nobody["status"], nobody["err_id"]) == (None, "ERR-PYOCO-0001")
    ended = shell.error("submit", "bad", "--wait")
    assert (ended["run_status"], ended["detail"]) == ("FAILED", "ValueError: on purpose")
    (shell.programs.directory / "wrong/schedules").mkdir(parents=True)
    (shell.programs.directory / "wrong/schedules/nightly.yaml").write_text("target: {flow: double}")
    refused = shell.error("apply", "wrong")
    assert (refused["path"], refused["detail"]) == (
        "wrong/schedules/nightly.yaml",
        "cron, every_sec: give exactly one",
    )
    denied = shell.error("backup", ".", program="pyoco-server-admin")
    assert denied["err_id"] == "ERR-PYOCO-0018"
    assert "is not empty" in denied["detail"]


def test_json_of_a_failure_is_english_everywhere(shell: Shell) -> None:
    said = [
        shell.programs.run("pyoco-client", *command, "--output=json", LC_ALL=locale).stderr
        for command in (("get", "x"), ("submit", "double", "--param", "y"))
        for locale in ("ja_JP.UTF-8",)
    ]
    assert [json.loads(line)["error"]["detail"] for line in said] == [
        "run not found",
        "--param 'y' is not key=value; example: --param rows=3",
    ]
    assert all(line.isascii() and "\\u" not in line for line in said)


def test_a_reader_that_ends_first_gets_no_traceback(shell: Shell) -> None:
    """As in `pyoco-client list | head -0`, with both streams in the pipe or with one."""
    for command, stderr in (
        (("list",), subprocess.PIPE),
        (("flows", "--output", "table"), subprocess.PIPE),
        (("nonsense",), subprocess.STDOUT),
    ):
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            [SCRIPTS / "pyoco-client", *command],
            cwd=shell.programs.directory,
            env=shell.programs.environ,
            stdout=writing,
            stderr=stderr,
            text=True,
            timeout=PATIENCE_SEC,
            check=False,
        )
        os.close(writing)
        assert done.returncode == 1
        assert "Traceback" not in (done.stderr or "")
        assert "BrokenPipe" not in (done.stderr or "")
