"""`pyoco_server.testing`: a whole server inside a test, with time under control."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyoco import Flow, task

from pyoco_server import testing
from pyoco_server.config import NatsBackendConfig
from pyoco_server.http_client import PyocoHttpClient, RunFailed
from pyoco_server.testing import LocalServer
from support.waiting import PATIENCE_SEC, until_now

DAY_SEC = 86_400.0
MINUTE_SEC = 60.0


@task
def doubled(n: int) -> int:
    print(f"doubling {n}")  # noqa: T201 - what a flow prints is captured
    return n * 2


@task
def refused(n: int) -> int:
    raise ValueError(f"{n} is not possible")


@task
def unstorable() -> Any:
    return {"handle": object()}


class Gate:
    """A flow that ends when the test wants, and fails as often as it wants."""

    def __init__(self) -> None:
        self.failures = 0
        self.entered = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def flow(self) -> Flow:
        @task
        def gate() -> str:
            self.entered.set()
            self.open.wait(PATIENCE_SEC)
            if self.failures:
                self.failures -= 1
                raise RuntimeError("not yet")
            return "open"

        return Flow(name="gate") >> gate


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def pyoco_flows(gate: Gate) -> list[Flow]:
    return [
        Flow(name="doubled") >> doubled,
        Flow(name="refused") >> refused,
        Flow(name="unstorable") >> unstorable,
        gate.flow(),
    ]


def graph(server: LocalServer, **nodes: Any) -> str:
    """An execution of nodes one after the other."""
    order = list(nodes)
    edges = [{"from": one, "to": other} for one, other in pairwise(order)]
    server.client.put_graph("g", {"id": "g", "nodes": nodes, "edges": edges})
    execution_id: str = server.client.executions.create("g")["execution_id"]
    return execution_id


def test_a_flow_is_run_as_a_client_would_have_it_run(pyoco_server: LocalServer) -> None:
    assert pyoco_server.run("doubled", {"n": 4}) == {"doubled": 8}
    with PyocoHttpClient(pyoco_server.url) as client:
        run = client.list_runs()[0]
    assert (run["status"], pyoco_server.log(run["run_id"])) == ("COMPLETED", "doubling 4\n")


def test_a_failure_has_the_traceback_of_the_flow_alone(pyoco_server: LocalServer) -> None:
    with pytest.raises(RunFailed, match="ValueError: 3 is not possible") as caught:
        pyoco_server.run("refused", {"n": 3})
    [note] = caught.value.__notes__
    assert note.startswith("Traceback (most recent call last):\n")
    assert note.count('  File "') == 1
    assert f'File "{__file__}"' in note
    assert note == pyoco_server.traceback(caught.value.run_id or "")


def test_what_a_flow_returns_must_be_json_as_on_any_worker(pyoco_server: LocalServer) -> None:
    with pytest.raises(RunFailed, match=r"task 'unstorable' returned an object at output.handle: not JSON"):
        pyoco_server.run("unstorable")


def test_a_flow_that_is_not_there_is_named(pyoco_server: LocalServer) -> None:
    with pytest.raises(RunFailed, match="flow not found: doubles; did you mean doubled"):
        pyoco_server.run("doubles")


def test_an_execution_is_settled_when_it_waits(pyoco_server: LocalServer) -> None:
    executions = pyoco_server.client.executions
    started = graph(
        pyoco_server,
        first={"type": "task", "flow": "doubled", "params": {"n": 1}},
        approve={"type": "wait"},
        last={"type": "task", "flow": "doubled", "params": {"n": "${nodes.approve.output.n}"}},
    )
    pyoco_server.settle()
    assert [wait["node_id"] for wait in executions.waits()["items"]] == ["approve"]
    executions.resume(started, "approve", {"n": 21})
    pyoco_server.settle()
    ended = executions.get(started)
    assert (ended["status"], ended["result"]) == ("COMPLETED", {"last": {"doubled": 42}})


def test_a_day_passes_at_once_and_a_second_less_is_not_a_day(pyoco_server: LocalServer) -> None:
    executions = pyoco_server.client.executions
    started = graph(pyoco_server, approve={"type": "wait", "timeout_sec": DAY_SEC})
    pyoco_server.settle()
    pyoco_server.advance(DAY_SEC - MINUTE_SEC)
    assert executions.get(started)["status"] == "ACTIVE"
    pyoco_server.advance(MINUTE_SEC)
    assert executions.get(started)["status"] == "FAILED"


def test_what_becomes_due_one_after_the_other_happens_at_its_time(
    pyoco_server: LocalServer, gate: Gate
) -> None:
    """Each attempt is scheduled by the failure of the one before, while the time passes."""
    gate.failures = 2
    retry = {"max_attempts": 3, "backoff_sec": MINUTE_SEC}
    started = graph(pyoco_server, work={"type": "task", "flow": "gate", "retry": retry})
    pyoco_server.advance(3.5 * MINUTE_SEC)
    assert pyoco_server.client.executions.get(started)["status"] == "COMPLETED"
    runs: list[Any] = sorted(pyoco_server.client.list_runs(), key=lambda run: run["submitted_at"] or 0)
    assert [run["status"] for run in runs] == ["FAILED", "FAILED", "COMPLETED"]
    waited = [after["submitted_at"] - before["submitted_at"] for before, after in pairwise(runs)]
    assert waited == pytest.approx([MINUTE_SEC, 2 * MINUTE_SEC], abs=2.0)


def test_every_clock_moves(pyoco_server: LocalServer) -> None:
    client = pyoco_server.client
    first: Any = client.get_run(client.submit_run("doubled", {"n": 1})["run_id"])
    pyoco_server.settle()
    pyoco_server.advance(DAY_SEC)
    started = graph(pyoco_server, approve={"type": "wait"})
    run_id = client.submit_run("doubled", {"n": 1})["run_id"]
    pyoco_server.settle()
    second: Any = client.get_run(run_id)
    [worker] = client.get_workers()
    moments = [
        *(second[name] for name in ("submitted_at", "start_time", "end_time", "updated_at")),
        worker["last_heartbeat_at"],
        client.executions.get(started)["updated_at"],
        client.list_graphs()["items"][0]["registered_at"],
    ]
    assert all(DAY_SEC <= moment - first["submitted_at"] < DAY_SEC + 600 for moment in moments), moments


def test_a_long_flow_stays_with_its_worker_while_hours_pass(pyoco_server: LocalServer, gate: Gate) -> None:
    """Its job is not redelivered: the worker goes on reporting progress on it."""
    gate.open.clear()
    run_id = pyoco_server.client.submit_run("gate")["run_id"]
    assert gate.entered.wait(PATIENCE_SEC)
    pyoco_server.advance(10 * MINUTE_SEC)
    running = pyoco_server.client.get_run(run_id)
    assert (running["status"], running["attempt"]) == ("RUNNING", 1)
    assert [worker["state"] for worker in pyoco_server.client.get_workers()] == ["RUNNING"]
    gate.open.set()
    until_now(lambda: pyoco_server.client.get_run(run_id), lambda run: run["status"] == "COMPLETED")


def test_an_event_starts_what_its_template_names(pyoco_server: LocalServer) -> None:
    events = pyoco_server.client.events
    events.put_action("double", {"flow_name": "doubled"})
    step = {"id": "s", "title": "Double", "action": "double", "trigger_kind": "external_event"}
    template = {"name": "T", "year": 2026, "month": 3, "notes": "", "steps": [step]}
    events.put_template("t", template)
    events.send(template_id="t", idempotency_key="once", data={"n": 2})
    pyoco_server.settle()
    assert len(pyoco_server.client.list_runs()) == 1


def test_settings_and_tags_are_those_of_the_test(pyoco_flows: list[Flow]) -> None:
    config = NatsBackendConfig(default_tag="cpu", audit_log_path="", workflow_event_import_dir="")
    with LocalServer(pyoco_flows, config=config, tags=["cpu", "gpu"]) as server:
        assert server.run("doubled", {"n": 1}) == {"doubled": 2}
        assert server.run("doubled", {"n": 1}, tag="gpu") == {"doubled": 2}
        assert {run["tag"] for run in server.client.list_runs()} == {"cpu", "gpu"}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "_shared.py").write_text("GREETING = 'hello'\n")
    (tmp_path / "greet.py").write_text(
        "from pyoco import Flow, task\nfrom _shared import GREETING\n"
        "@task\ndef greet():\n    return GREETING\nflow = Flow(name='greet') >> greet\n"
    )
    yield tmp_path
    sys.modules.pop("_shared", None)
    sys.modules.pop("pyoco_flow_files.greet", None)


def test_a_directory_of_flows_leaves_nothing_behind(directory: Path) -> None:
    before = (list(sys.path), sys.dont_write_bytecode, threading.active_count())
    with LocalServer(directory) as server:
        assert server.run("greet") == {"greet": "hello"}
    until_now(lambda: threading.active_count() <= before[2])
    assert (list(sys.path), sys.dont_write_bytecode) == before[:2]


@pytest.mark.parametrize("flows", [3, "no/such/directory"])
def test_flows_that_cannot_be_had_are_refused_before_anything_starts(flows: Any) -> None:
    threads = threading.active_count()
    with pytest.raises((TypeError, Exception), match=r"flows must be a path|no/such/directory"):
        LocalServer(flows).start()
    assert threading.active_count() == threads


def test_what_tests_imported_before_is_still_here() -> None:
    assert {"MemoryApiKeys", "MemoryBackend", "MemoryGatewayBackend", "open_memory_backend"} < {
        *testing.__all__
    }
    assert all(hasattr(testing, name) for name in testing.__all__)


def test_the_plugin_costs_a_pytest_run_that_does_not_use_it_nothing() -> None:
    program = (
        "import pytest, sys; before = {*sys.modules}; import pyoco_server.pytest_plugin; "
        "print(*sorted({*sys.modules} - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pyoco_server", "pyoco_server.pytest_plugin"]
