"""REQ-0021: every command of `pyoco-client`, against a real server and worker."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.nats_server import free_port
from support.programs import Programs
from support.waiting import until_now
from support.wheels import a_wheel_file, wheel_name

FLOWS = """
import asyncio
import math
import time
from datetime import date
from decimal import Decimal
from pathlib import Path
from pyoco import Flow, task

@task
def double(x: int = 1) -> int:
    print("doubling", x)
    return x * 2

@task
def fail() -> None:
    raise ValueError("on purpose")

@task
def talk(lines: int = 3) -> None:
    for number in range(lines):
        print(f"line {number:05d}")

@task
def gate(marks: str) -> None:
    print("begun")
    while not (Path(marks) / "go").exists():
        time.sleep(0.01)
    print("done")

@task
def wait(ctx) -> None:
    while not ctx.is_cancelled:
        time.sleep(0.01)

class DataFrame:
    pass

@task
async def give(what: str):
    await asyncio.sleep(0)
    return {
        "fine": {"when": date(2026, 1, 2), "price": Decimal("1.10"), "tags": {"b", "a"}, "raw": b"x"},
        "nan": {"mean": math.nan},
        "frame": {"rows": DataFrame()},
        "large": "x" * 70_000_000,
    }[what]

FLOWS = {"double": double, "fail": fail, "wait": wait, "give": give, "talk": talk, "gate": gate}

def resolve(name):
    return Flow(name=name) >> FLOWS[name]
"""


class Shell:
    """Runs `pyoco-client` as a user would."""

    def __init__(self, programs: Programs, url: str) -> None:
        self._programs = programs
        self._url = url

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        done = self._programs.run("pyoco-client", *arguments, PYOCO_SERVER_URL=self._url)
        assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout, done.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments)[0])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all tests here: none of them hurts it, and each looks at what it made itself."""
    programs = Programs(tmp_path_factory.mktemp("server"))
    port = free_port()
    (programs.directory / "flows.py").write_text(FLOWS)
    command = ("pyoco-server", "up", "--port", str(port), "--durability", "fast")
    with programs.started(*command, "--with-worker", "--flow-resolver", "flows.py:resolve") as up:
        up.says("worker ready")
        yield f"http://127.0.0.1:{port}"
    assert programs.are_gone()


@pytest.fixture
def shell(programs: Programs, url: str) -> Shell:
    return Shell(programs, url)


def test_a_run_can_be_submitted_followed_and_looked_at(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text('{"x": 1}')
    out, err = shell(
        *("submit", "--flow-name", "double", "--params-file", "params.json", "--param", "x=21"),
        *("--tags", "a,b", "--wait"),
    )
    run = json.loads(out)
    assert (run["status"], run["result"], run["tags"]) == ("COMPLETED", {"double": 42}, ["a", "b"])
    assert "COMPLETED  double=SUCCEEDED" in err
    run_id = run["run_id"]

    assert shell.json("get", run_id, "--records")["task_records"]["double"]["output"] == 42
    assert shell.json("tasks", run_id)["tasks"] == {"double": "SUCCEEDED"}
    assert shell("logs", run_id)[0] == "doubling 21\n"
    assert shell.json("logs", run_id, "--output", "json")[0]["task"] == "double"
    assert (
        shell("watch", run_id, "--output", "status", "--until-terminal")[0] == "COMPLETED  double=SUCCEEDED\n"
    )
    assert [found["run_id"] for found in shell.json("list", "--flow", "double", "--tag", "b")] == [run_id]
    assert shell.json("list", "--flow", "double", "--status", "FAILED") == []
    assert shell.json("list-vnext", "--limit", "1")["items"][0]["run_id"] == run_id
    table = shell("list", "--output", "table")[0]
    assert "status" in table
    assert "COMPLETED" in table
    assert run_id in table


def test_the_whole_log_is_printed_unless_less_is_asked_for(shell: Shell) -> None:
    """D28"""
    out, _ = shell("submit", "--flow-name", "talk", "--param", "lines=2500", "--wait")
    run_id = json.loads(out)["run_id"]
    lines = [f"line {number:05d}" for number in range(2500)]
    assert shell("logs", run_id)[0].splitlines() == lines
    assert len(shell.json("logs", run_id, "--output", "json")) == 2500
    assert shell("logs", run_id, "--tail", "2", "--task", "talk")[0].splitlines() == lines[-2:]
    assert shell("logs", run_id, "--tail", "0")[0] == ""
    assert shell("logs", run_id, "--follow", "--tail", "3")[0].splitlines() == lines[-3:]
    out, _ = shell("logs", run_id, "-f", "--output", "json")
    assert [json.loads(line)["n"] for line in out.splitlines()] == list(range(2500))


def test_a_log_that_cannot_be_shown_says_why(shell: Shell) -> None:
    """D28"""
    run_id = json.loads(shell("submit", "--flow-name", "talk", "--wait")[0])["run_id"]
    assert "no such task in this run; its tasks: talk" in shell("logs", run_id, "--task", "walk", code=1)[1]
    assert "--tail -1: must be 0 or greater" in shell("logs", run_id, "--tail", "-1", code=1)[1]
    for follow in ([], ["--follow"]):
        _, err = shell("logs", run_id[:-4] + "0000", *follow, code=1)
        assert "HTTP 404 ERR-PYOCO-0005" in err


def test_the_exit_code_of_a_wait_is_the_outcome(shell: Shell) -> None:
    out, _ = shell("submit", "--flow-name", "fail", "--wait", code=1)
    assert json.loads(out)["error"] == "ValueError: on purpose"
    out, _ = shell("submit", "--flow-name", "nobody-has-it", "--wait", code=1)
    assert "flow not found" in json.loads(out)["error"]


def test_what_an_async_task_returns_follows_the_rule_of_values(shell: Shell) -> None:
    """D20, D21, D22: as a user meets it, in `submit --wait`, `get` and `watch`."""

    def submitted(what: str, code: int = 0) -> tuple[Any, str]:
        out, err = shell("submit", "--flow-name", "give", "--param", f"what={what}", "--wait", code=code)
        return json.loads(out), err

    fine, _ = submitted("fine")
    assert fine["result"] == {
        "give": {"when": "2026-01-02", "price": "1.10", "tags": ["a", "b"], "raw": {"$bytes": "eA=="}}
    }
    assert (fine["warnings"], fine["result_truncated"]) == ([], False)

    nan, err = submitted("nan")
    assert (nan["status"], nan["result"]) == ("COMPLETED", {"give": {"mean": None}})
    assert nan["warnings"] == ["task 'give' returned NaN at output.mean: null instead"]
    assert "warning: task 'give' returned NaN at output.mean: null instead" in err

    frame, _ = submitted("frame", code=1)
    assert (frame["status"], frame["tasks"]) == ("FAILED", {"give": "FAILED"})
    assert frame["error"] == (
        "task 'give' returned a DataFrame at output.rows: not JSON; "
        "return a list of rows or save it as an artifact"
    )

    large, err = submitted("large")
    assert (large["status"], large["result"], large["result_truncated"]) == ("COMPLETED", None, True)
    (warning,) = large["warnings"]
    assert warning == (
        "task 'give' returned more than 70,000,001 bytes of JSON; "
        "at most 67,108,864 bytes are kept (PYOCO_VALUE_MAX_BYTES)"
    )
    assert warning in err
    assert shell.json("get", large["run_id"])["warnings"] == [warning]
    assert warning in " ".join(shell("get", large["run_id"], "--output", "table")[0].split())
    (line,) = shell("watch", large["run_id"], "--output", "json")[0].splitlines()
    assert json.loads(line)["snapshot"]["result_truncated"] is True


def test_params_that_few_can_read_are_refused_by_the_command(shell: Shell) -> None:
    """D48"""
    for params, problem in (
        ('{"x": 18446744073709551616}', "x: the number 18446744073709551616 has more than 64 bits"),
        ('{"x": 1, "x": 2}', "x: duplicate key 'x'"),
        ('{"x": NaN}', "x: NaN is not a number that JSON has"),
    ):
        assert problem in shell("submit", "--flow-name", "double", "--params", params, code=1)[1]
    _, err = shell("submit", "--flow-name", "double", "--param", f"x={2**70}", code=1)
    assert "params.x: an int beyond 64 bits is not JSON" in err


def test_a_run_can_be_cancelled(shell: Shell) -> None:
    run_id = shell.json("submit", "--flow-name", "wait")["run_id"]
    while shell.json("get", run_id)["status"] != "RUNNING":
        time.sleep(0.05)
    cancelled = shell.json("cancel", "--run-id", run_id, "--reason", "enough", "--wait")
    assert (cancelled["status"], cancelled["cancel_reason"]) == ("CANCELLED", "enough")


def test_a_flow_file_brings_its_flow(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(
        'flow: {graph: "d", defaults: {x: 4}}\ntasks: {d: {callable: "flows:double"}}\n'
    )
    out, _ = shell("submit-yaml", "--workflow-file", "flow.yaml", "--flow-name", "mine", "--wait")
    assert json.loads(out)["result"] == {"d": 8}
    (tmp_path / "flow.yaml").write_text("flow: {grph: x}\n")
    _, err = shell("submit-yaml", "--workflow-file", "flow.yaml", "--flow-name", "mine", code=1)
    assert "did you mean 'graph'?" in err
    assert "ERR-PYOCO-0002" in err


def test_graphs_are_registered_and_looked_at(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(
        "id: close\n"
        "nodes: {a: {type: task, flow: double}, b: {type: wait}}\n"
        "edges: [{from: a, to: b, on: failure}]\n"
    )
    first = shell.json("graphs", "put", "graph.yaml")
    assert (first["graph_id"], first["version"], first["nodes"]) == ("close", 1, 2)
    assert shell.json("graphs", "put", "graph.yaml") == first
    (tmp_path / "other.json").write_text('{"nodes": {"a": {"type": "task", "flow": "double"}}}')
    assert shell.json("graphs", "put", "other.json", "--id", "close")["version"] == 2
    assert shell.json("graphs", "put", "other.json")["graph_id"] == "other"
    assert shell.json("graphs", "get", "close")["version"] == 2
    old = shell.json("graphs", "get", "close", "--version", "1")
    assert old["definition"]["edges"] == [{"from": "a", "to": "b", "on": "failure"}]
    assert [item["graph_id"] for item in shell.json("graphs", "list")["items"]] == ["close", "other"]
    assert "close" in shell("graphs", "list", "--output", "table")[0]

    _, err = shell("graphs", "get", "nobody", code=1)
    assert "ERR-PYOCO-0034" in err
    _, err = shell("graphs", "put", "graph.yaml", "--id", "another", code=1)
    assert "the id in the body is 'close'" in err
    (tmp_path / "graph.yaml").write_text("nodes: {a: {type: taks}}\n")
    _, err = shell("graphs", "put", "graph.yaml", code=1)
    assert "did you mean 'task'?" in err
    (tmp_path / "graph.yaml").write_text("a: 1\na: 2\n")
    _, err = shell("graphs", "put", "graph.yaml", code=1)
    assert "graph.yaml: graph, line 2, column 1: duplicate key 'a'" in err
    _, err = shell("graphs", "put", "nothing.yaml", code=1)
    assert "no such file" in err


def test_the_fleet_and_its_figures(shell: Shell) -> None:
    is_idle = [("worker", "IDLE")]
    until_now(
        lambda: [(w["worker_id"], w["state"]) for w in shell.json("workers")], lambda seen: seen == is_idle
    )
    assert shell.json("worker-hide", "worker")["hidden"] is True
    assert shell.json("workers") == []
    assert len(shell.json("workers", "--include-hidden", "--scope", "all", "--state", "IDLE")) == 1
    assert shell.json("worker-show", "worker")["hidden"] is False
    assert "IDLE" in shell("workers", "--output", "table")[0]
    assert "pyoco_workers_alive_total 1.0" in shell("metrics")[0]
    _, err = shell("worker-hide", "nobody", code=1)
    assert "ERR-PYOCO-0020" in err


def test_wheels_are_checked_registered_and_removed(shell: Shell, tmp_path: Path) -> None:
    """REQ-0025"""
    file = a_wheel_file(tmp_path)
    out, err = shell("wheel-upload", "--wheel-file", str(file), "--tags", "cpu")
    assert json.loads(out)["tags"] == ["cpu"]
    assert "no entry point group pyoco.tasks" in err
    _, err = shell("wheel-upload", "--wheel-file", str(file), code=1)
    assert "HTTP 409 ERR-PYOCO-0022" in err
    assert "Raise the wheel version" in err
    assert wheel_name() in shell("wheels", "--output", "table")[0].replace("\n", "")
    assert shell.json("wheel-delete", "--name", wheel_name()) == {"name": wheel_name(), "deleted": True}
    assert [event["action"] for event in shell.json("wheel-history", "--limit", "5")] == ["delete", "upload"]
    broken = tmp_path / wheel_name(version="2.0")
    broken.write_bytes(b"not a zip")
    _, err = shell("wheel-upload", "--wheel-file", str(broken), code=1)
    assert "not a zip archive" in err


WRONG = [
    (("submit", "--flow-name", "double", "--param", "x"), "example: --param rows=3"),
    (("submit-yaml", "--workflow-file", "missing", "--flow-name", "x"), "no such file"),
    (("wheel-upload", "--wheel-file", "missing.whl"), "python -m build --wheel"),
    (("get", "no-such-run"), "Check the run id: pyoco-client list"),
    (("list", "--limit", "999"), "less than or equal to 200"),
    (("list", "--bogus"), "--bogus"),
    (("submit",), "--flow-name"),
]


def test_what_goes_wrong_is_told_with_what_to_do(shell: Shell) -> None:
    """ERR-PYOCO-0018"""
    for arguments, said in WRONG:
        out, err = shell(*arguments, code=1)
        assert (out, said in " ".join(err.split())) == ("", True), f"{arguments}: {err}"
