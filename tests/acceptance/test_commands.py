"""REQ-0021: the commands, as a user meets them."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.http_client import PyocoHttpClient, ServerUnavailable
from pyoco_server.processes import STOP_TIMEOUT_SEC
from support.nats_server import free_port
from support.programs import Program, Programs, command_of
from support.waiting import PATIENCE_SEC, until_now

NODES = ["node-1", "node-2"]
FLOWS = """
from pyoco import Flow, task

@task
def double(x):
    return 2 * x

def resolve(name):
    return {"double": Flow(name="double") >> double}[name]
"""


class Server:
    """A `pyoco-server up` that is ready."""

    def __init__(self, program: Program, url: str) -> None:
        self.program = program
        self.url = url
        self.nats_url = program.says(r"NATS +started here at (nats://[\d.:]+)")[1]


@contextmanager
def up(programs: Programs, *options: str, **environ: str) -> Iterator[Server]:
    port = free_port()
    command = ("pyoco-server", "up", "--port", str(port), "--durability", "fast", *options)
    with programs.started(*command, **environ) as program:
        program.says("Ctrl-C stops it")
        yield Server(program, f"http://127.0.0.1:{port}")


def until(look: Callable[[], Any], found: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + PATIENCE_SEC
    while not found(answer := look()):
        assert time.monotonic() < deadline, f"still {answer}"
        time.sleep(0.05)
    return answer


@pytest.mark.fresh_start
def test_the_demo_shows_a_run_and_its_result_and_leaves_nothing_behind(programs: Programs) -> None:
    done = programs.run("pyoco-server", "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    for task in ("fetch", "square", "report"):
        assert task in done.stdout
    assert "COMPLETED" in done.stdout
    assert '{"report": {"rows": 5, "sum": 55}}' in done.stdout
    assert programs.pids() == set()


@pytest.mark.slow
def test_a_filled_demo_has_something_of_everything_and_is_filled_once(programs: Programs) -> None:
    for _ in range(2):
        port = free_port()
        with programs.started("pyoco-server", "demo", "--fill", "--port", str(port)) as demo:
            demo.says("Dashboard")
            with PyocoHttpClient(f"http://127.0.0.1:{port}") as client:
                flows = {run["flow_name"] for run in client.list_runs(limit=200)}
                assert flows >= {
                    "orders-import",
                    "fraud-score",
                    "nightly-report",
                    "search-index",
                    "train-model",
                }
                reasons = {letter["reason"] for letter in client.dead_letters.list()["items"]}
                assert reasons == {"execution_error", "flow_not_found"}
                # A gateway that has just started has not read everything; a worker may still be starting.
                until_now(lambda: len(client.executions.waits()["items"]), lambda n: n == 4)
                assert len(client.schedules.list()["items"]) == 4
                assert len(client.limits.list()["items"]) == 2
                until_now(lambda: len(client.bulk.list()["items"]), lambda n: n == 1)
                until_now(
                    lambda: sorted(one["worker_id"] for one in client.get_workers()), lambda ids: ids == NODES
                )
        assert programs.are_gone()


@pytest.mark.fresh_start
def test_a_run_goes_from_the_client_through_server_and_worker_and_back(
    programs: Programs, tmp_path: Path
) -> None:
    """REQ-0002, REQ-0004, REQ-0008"""
    (tmp_path / "flows.py").write_text(FLOWS)
    with up(programs) as server:
        command = ("pyoco-client", "submit", "--flow-name", "double", "--params", '{"x": 21}')
        submitted = programs.run(*command, "--server", server.url)
        assert submitted.returncode == 0, submitted.stderr
        run_id = json.loads(submitted.stdout)["run_id"]
        worked = programs.run(
            *("pyoco-worker", "--flow-resolver", "flows.py:resolve", "--nats-url", server.nats_url),
            *("--run-once", "--poll-timeout", "20", "--worker-id", "w1"),
        )
        assert worked.returncode == 0, worked.stdout + worked.stderr
        got = programs.run("pyoco-client", "get", run_id, "--records", PYOCO_SERVER_URL=server.url)
        run = json.loads(got.stdout)
        assert (run["status"], run["result"], run["worker_id"]) == ("COMPLETED", {"double": 42}, "w1")
        assert run["task_records"]["double"]["inputs"] == {"x": 21}
        assert server.program.ends_after(signal.SIGTERM) == 0


def test_where_the_gateway_listens_may_come_from_the_environment(programs: Programs) -> None:
    port = str(free_port())
    with programs.started("pyoco-server", "up", PYOCO_HTTP_HOST="localhost", PYOCO_HTTP_PORT=port) as server:
        server.says(f"HTTP +http://localhost:{port} ")


def test_the_logs_of_a_worker_are_lines_of_json(programs: Programs, tmp_path: Path) -> None:
    """REQ-0013"""
    (tmp_path / "flows.py").write_text(FLOWS)
    with up(programs) as server, PyocoHttpClient(server.url) as client:
        run_id = client.submit_run("double", {"x": None})["run_id"]
        worked = programs.run(
            *("pyoco-worker", "--flow-resolver", "flows.py:resolve", "--nats-url", server.nats_url),
            *("--run-once", "--poll-timeout", "20"),
        )
    lines = [json.loads(line) for line in worked.stdout.splitlines()]
    (failure,) = [line for line in lines if line.get("action") == "run.execution_error"]
    assert (failure["service"], failure["run_id"]) == ("pyoco-server:worker", run_id)
    assert (failure["err_id"], failure["flow_name"]) == ("ERR-PYOCO-0007", "double")
    assert "TypeError" in failure["exc_traceback"]


@pytest.mark.parametrize(("sent", "expected"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_server_with_a_worker_ends_in_order(
    programs: Programs, sent: signal.Signals, expected: int
) -> None:
    with up(programs, "--with-worker") as server, PyocoHttpClient(server.url) as client:
        run_id = client.submit_run("sample", {"rows": 2})["run_id"]
        run = until(lambda: client.get_run(run_id), lambda run: run["status"] == "COMPLETED")
        assert run["result"] == {"report": {"rows": 2, "sum": 5}}
        assert server.program.ends_after(sent) == expected
    assert programs.are_gone()
    assert "Traceback" not in server.program.output


GATE = """
import time
from pathlib import Path
from pyoco import Flow, task

@task
def wait_for_go():
    Path("waiting").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    return "gone"

def resolve(name):
    return Flow(name="gate") >> wait_for_go
"""


@contextmanager
def up_with_a_run(programs: Programs, *options: str) -> Iterator[tuple[Server, str]]:
    """With a worker whose run waits for the file `go`."""
    (programs.directory / "gate.py").write_text(GATE)
    worker = ("--with-worker", "--flow-resolver", "gate.py:resolve")
    with up(programs, *worker, *options) as server, PyocoHttpClient(server.url) as client:
        run_id = client.submit_run("gate", {})["run_id"]
        until((programs.directory / "waiting").exists, bool)
        yield server, run_id


def test_a_server_waits_for_the_runs_of_its_worker(programs: Programs) -> None:
    """The worker was killed after 10 s, whatever it had been granted."""
    with up_with_a_run(programs, "--drain-timeout", "600") as (server, run_id):
        server.program.send(signal.SIGTERM)
        server.program.says("finishing active runs")
        time.sleep(STOP_TIMEOUT_SEC + 1.0)  # nothing is to happen in this time
        (programs.directory / "go").touch()
        assert server.program.exit_code() == 0
    with up(programs) as server, PyocoHttpClient(server.url) as client:
        run = until(lambda: client.get_run(run_id), lambda run: run["status"] != "RUNNING")
    assert (run["status"], run["attempt"]) == ("COMPLETED", 1)


def test_a_second_ctrl_c_gives_the_runs_of_a_servers_worker_back(programs: Programs) -> None:
    with up_with_a_run(programs, "--drain-timeout", "600") as (server, _):
        server.program.send(signal.SIGINT)
        server.program.says("waiting up to 600 s. Press Ctrl-C again")
        server.program.send(signal.SIGINT)
        assert server.program.exit_code() == 130
        assert "Returning the runs to the queue" in server.program.output
        assert '"message": "worker stopped"' in server.program.output
    assert programs.are_gone()


@pytest.mark.parametrize(("sent", "expected"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_worker_ends_in_order(programs: Programs, sent: signal.Signals, expected: int) -> None:
    with up(programs) as server:
        command = ("pyoco-worker", "--flow-resolver", "pyoco_server.engine.sample_flows:resolve")
        with programs.started(*command, "--nats-url", server.nats_url) as worker:
            worker.says("worker ready")
            assert worker.ends_after(sent) == expected
            assert '"message": "worker stopped"' in worker.output


def test_everything_ends_when_the_server_is_killed(programs: Programs) -> None:
    with up(programs, "--with-worker") as server:
        until(programs.pids, lambda pids: len(pids) >= 3)
        server.program.ends_after(signal.SIGKILL)
        assert programs.are_gone()


def test_a_nats_and_a_worker_that_die_are_started_again(programs: Programs) -> None:
    with up(programs, "--with-worker") as server, PyocoHttpClient(server.url) as client:

        def by_name(part: str) -> set[int]:
            return {pid for pid in programs.pids() if part in command_of(pid)}

        (worker,) = until(lambda: by_name("pyoco_server.cli.worker"), bool)
        (nats,) = by_name("nats-server")
        os.kill(nats, signal.SIGKILL)
        until(lambda: by_name("nats-server"), lambda pids: pids not in ({nats}, set()))
        os.kill(worker, signal.SIGKILL)
        server.program.says('"action": "stack.restart"')
        run_id = until(lambda: _submitted(client), lambda answer: answer is not None)
        until(lambda: client.get_run(run_id), lambda run: run["status"] == "COMPLETED")
        assert server.program.ends_after(signal.SIGTERM) == 0


def _submitted(client: PyocoHttpClient) -> str | None:
    try:
        return client.submit_run("sample")["run_id"]
    except ServerUnavailable:
        return None


@pytest.mark.parametrize(
    "command", [("pyoco-server", "up"), ("pyoco-worker", "--flow-resolver", "no.such:thing")]
)
def test_a_setting_that_cannot_be_used_stops_the_start_and_is_named(
    programs: Programs, command: tuple[str, ...]
) -> None:
    done = programs.run(*command, PYOCO_DLQ_MAX_MSGS="few", PYOCO_LOG_FORMAT="xml")
    assert done.returncode == 1
    assert "PYOCO_DLQ_MAX_MSGS='few'" in done.stderr
    assert "PYOCO_LOG_FORMAT='xml'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_in_use_is_told_with_what_to_do(programs: Programs, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = programs.run("pyoco-server", "up", "--port", str(port))
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: in use by " in done.stderr
    assert f"(pid {os.getpid()})" in done.stderr
    assert "choose another port" in done.stderr
    assert not (tmp_path / ".pyoco").exists()


def test_a_second_server_in_the_same_directory_is_told_with_what_to_do(programs: Programs) -> None:
    with up(programs):
        done = programs.run("pyoco-server", "up", "--port", str(free_port()))
    assert done.returncode == 1
    assert "is in use by another pyoco-server" in done.stderr


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("pyoco-client", "submit"), "flow-name"),
        (("pyoco-client", "submit", "--flow-name", "f", "--params", "{x"), "--params is not JSON"),
        (("pyoco-client", "submit", "--flow-name", "f", "--params", "[1]"), "must be a JSON object"),
        (("pyoco-client", "get", "x", "--server", "http://127.0.0.1:1"), "ERR-PYOCO-0001 no server answers"),
        (("pyoco-worker",), "flow-resolver"),
        (("pyoco-worker", "--flow-resolver", "nonsense"), "No module named 'nonsense'"),
        (("pyoco-worker", "--flow-resolver", "json"), "there is no pyoco Flow in json"),
        (("pyoco-worker", "--flow-resolver", ":f"), "is not module:function"),
        (("pyoco-worker", "--flows", "nowhere"), "--flows nowhere is not a directory"),
        (
            ("pyoco-worker", "--flows", ".", "--flow-resolver", "json:f"),
            "exactly one of --flow-resolver and --flows",
        ),
        (("pyoco-worker", "--flows", "."), "there is no pyoco Flow in"),
        (("pyoco-worker", "--flow-resolver", "no_such_module:f"), "No module named 'no_such_module'"),
        (("pyoco-worker", "--flow-resolver", "missing.py:f"), "there is no file missing.py"),
        (("pyoco-worker", "--flow-resolver", "json:f"), "json has no function 'f'"),
        (("pyoco-server", "up", "--port", "many"), "--port"),
        (("pyoco-server", "up", "--nonsense"), "--nonsense"),
        (("pyoco-server", "up", "--port", "70000"), "a port from 1 to 65535"),
        (("pyoco-server", "up", "--host", "192.0.2.1"), "use an address of this machine"),
        (("pyoco-server", "up", "--host", "no.such.host.invalid"), "use an address of this machine"),
        (("pyoco-client", "nonsense"), "nonsense"),
    ],
)
def test_wrong_arguments_end_with_1_and_say_what_is_wrong(
    programs: Programs, command: tuple[str, ...], told: str
) -> None:
    done = programs.run(*command)
    assert done.returncode == 1, done.stdout + done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_an_answer_that_is_an_error_ends_with_1_and_is_shown(programs: Programs) -> None:
    with up(programs) as server:
        done = programs.run("pyoco-client", "get", "nonsense", "--server", server.url)
    assert done.returncode == 1
    assert "HTTP 404" in done.stderr
    assert "ERR-PYOCO-0005" in done.stderr
