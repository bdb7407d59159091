"""Secrets and variables reach the flow, and nothing else: a gateway and a worker in memory."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from pyoco import Flow, task

from pyoco_server.config import NatsBackendConfig
from pyoco_server.testing import LocalServer
from support.events import URL, a_template

KEY = base64.urlsafe_b64encode(b"k" * 32).decode()
VALUE = "correct-horse\"battery'staple\\é"
"""With everything that is escaped somewhere."""
EVIL = "${secrets.db}"

seen: list[dict[str, Any]] = []


@task
def use(
    password: str, rows: Any = None, event: Any = None, notes: Any = None, dsn: Any = None
) -> dict[str, Any]:
    seen.append({"password": password, "rows": rows, "event": event, "notes": notes, "dsn": dsn})
    print("a", password[:7], sep="", end="")  # noqa: T201
    print(password[7:], repr(password), json.dumps(password))  # noqa: T201
    print(password[:9])  # noqa: T201
    print(password[9:])  # noqa: T201
    return {"rows": rows, "text": f"dsn://{password}@host", "list": [password], password: 1}


@task
def fail(password: str) -> None:
    raise ValueError(f"cannot log in with {password!r}")


class Server:
    def __init__(self, local: LocalServer, http: httpx2.Client) -> None:
        self.local = local
        self.http = http

    def put(self, path: str, body: Any) -> None:
        answer = self.http.put(path, json=body)
        assert answer.status_code in (200, 201), answer.text

    def submit(self, flow: str, **params: Any) -> httpx2.Response:
        return self.http.post("/runs", json={"flow_name": flow, "params": params})

    def ended(self, answer: httpx2.Response) -> dict[str, Any]:
        assert answer.status_code in (200, 202), answer.text
        self.local.settle()
        run: dict[str, Any] = self.http.get(f"/runs/{answer.json()['run_id']}?include=full").json()
        return run


@pytest.fixture
def server() -> Iterator[Server]:
    seen.clear()
    config = NatsBackendConfig(secrets_key=KEY, audit_log_path="", workflow_event_import_dir="")
    flows = [Flow(name="use") >> use, Flow(name="fail") >> fail]
    with LocalServer(flows, config=config) as local, httpx2.Client(base_url=local.url) as http:
        found = Server(local, http)
        found.put("/secrets/db", {"value": VALUE})
        found.put("/variables/rows", {"value": 100})
        yield found


def assert_unknown(server: Server, run_id: str) -> None:
    """Nothing that the gateway answers contains it, in any form."""
    of_run = (f"/runs/{run_id}", f"/runs/{run_id}/tasks", f"/runs/{run_id}/logs", "/runs?include=full")
    for path in (*of_run, "/audit", "/secrets", "/secrets/db", "/dead-letters"):
        answer = server.http.get(path)
        assert answer.status_code == 200, (path, answer.text)
        for form in ("correct-horse", "battery", "staple"):
            assert form not in answer.text, path


def test_a_flow_gets_the_values_and_everything_it_shows_is_masked(server: Server) -> None:
    run = server.ended(server.submit("use", password="${secrets.db}", rows="${vars.rows}"))  # noqa: S106
    assert (seen[0]["password"], seen[0]["rows"]) == (VALUE, 100)
    assert run["params"] == {"password": "${secrets.db}", "rows": "${vars.rows}"}
    assert run["result"]["use"] == {"rows": 100, "text": "dsn://•••@host", "list": ["•••"], "•••": 1}
    assert run["task_records"]["use"]["inputs"]["password"] == "•••"  # noqa: S105
    assert server.local.log(run["run_id"]) == "a••• '•••' \"•••\"\n•••\n•••\n"
    assert_unknown(server, run["run_id"])


def test_an_exception_shows_the_secret_nowhere(server: Server) -> None:
    run = server.ended(server.submit("fail", password="${secrets.db}"))  # noqa: S106
    assert run["error"] == "ValueError: cannot log in with '•••'"
    assert "cannot log in with '•••'" in run["failure"]["traceback"]
    assert_unknown(server, run["run_id"])


def test_an_event_that_names_a_secret_stays_text_all_the_way(server: Server) -> None:
    """In its data and its notes, which replace a param of the action; and in a retry of its run."""
    action = {"flow_name": "use", "params": {"password": "${secrets.db}", "notes": "${secrets.db}"}}
    server.put("/api/workflow-actions/a", action)
    server.put("/api/workflow-templates/t", a_template(action="a"))
    event = {"template_id": "t", "data": {"deep": [EVIL], "": EVIL}, "notes": EVIL}
    run = server.ended(server.http.post(URL, json=event))
    server.ended(server.http.post(f"/runs/{run['run_id']}/retry"))
    assert [one["password"] for one in seen] == [VALUE, VALUE]
    for one in seen:
        assert (one["event"], one["notes"]) == ({"deep": [EVIL], "": EVIL}, EVIL)
    assert_unknown(server, run["run_id"])


def test_an_execution_resolves_what_its_graph_names_and_nothing_of_its_input(server: Server) -> None:
    params = {
        "password": "${secrets.db}",
        "event": "${input.evil}",
        "dsn": "${input.evil}:${secrets.db}:${vars.rows}",
        "notes": "$${secrets.db}",
    }
    nodes = {
        "one": {"type": "task", "flow": "use", "params": params},
        "two": {"type": "task", "flow": "use", "params": {"password": "x", "event": "${nodes.one.output}"}},
    }
    graph = {"id": "g", "nodes": nodes, "edges": [{"from": "one", "to": "two"}]}
    server.put("/graphs/g", graph)
    answer = server.http.post("/executions", json={"graph_id": "g", "input": {"evil": EVIL}, "start": True})
    assert answer.status_code in (200, 201), answer.text
    server.local.settle()
    first, second = seen
    assert first["password"] == VALUE
    assert (first["event"], first["notes"]) == (EVIL, EVIL)
    assert first["dsn"] == f"{EVIL}:{VALUE}:100"
    assert second["event"]["use"]["text"] == "dsn://•••@host"
    execution_id = answer.json()["execution_id"]
    for path in (f"/executions/{execution_id}", f"/executions/{execution_id}/events"):
        assert "correct-horse" not in server.http.get(path).text


def test_defaults_of_a_flow_yaml_are_resolved(server: Server) -> None:
    text = """version: 1
flow:
  graph: use
  defaults: {password: "${secrets.db}", rows: "${vars.rows}", notes: "$${secrets.db}"}
tasks:
  use: {callable: "gateway_secret_flows:use"}
"""
    import sys  # noqa: PLC0415

    sys.modules["gateway_secret_flows"] = sys.modules[__name__]
    files = {"workflow": ("flow.yaml", text.encode())}
    run = server.ended(server.http.post("/runs/yaml", files=files, data={"flow_name": "mine"}))
    server.ended(server.http.post(f"/runs/{run['run_id']}/retry"))
    assert [(one["password"], one["rows"], one["notes"]) for one in seen] == [(VALUE, 100, EVIL)] * 2
    assert_unknown(server, run["run_id"])


def test_a_schedule_resolves_its_params_at_each_tick(server: Server) -> None:
    target = {"flow": "use", "params": {"password": "${secrets.db}"}}
    server.put("/schedules/s", {"every_sec": 3600, "target": target})
    assert server.http.post("/schedules/s/trigger").status_code == 200
    server.local.settle()
    server.put("/secrets/db", {"value": "another-value"})
    assert server.http.post("/schedules/s/trigger").status_code == 200
    server.local.settle()
    assert [one["password"] for one in seen] == [VALUE, "another-value"]


def test_what_would_stay_text_is_refused_where_it_is_written(server: Server) -> None:
    params = {"password": "${secrets.db}"}
    bad = {"password": "${secrets.}"}
    for path, body in (
        ("/api/workflow-actions/a", {"graph_id": "g", "params": params}),
        ("/api/workflow-actions/a", {"flow_name": "use", "params": bad}),
        ("/schedules/s", {"every_sec": 3600, "target": {"flow": "use", "params": bad}}),
        ("/graphs/g", {"nodes": {"ask": {"type": "wait", "prompt": "${secrets.db}"}}}),
    ):
        answer = server.http.put(path, json=body)
        assert answer.status_code == 422, (path, answer.text)


@pytest.mark.parametrize("name", ["secrets.unknown", "vars.unknown"])
def test_an_unknown_name_is_refused_at_submit(server: Server, name: str) -> None:
    """ERR-PYOCO-0083"""
    answer = server.submit("use", password=f"${{{name}}}")
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0083")
    assert "'unknown' does not exist" in answer.json()["detail"]


def test_a_secret_that_is_deleted_before_the_start_fails_the_run_before_any_task(server: Server) -> None:
    server.put("/api/workflow-actions/a", {"flow_name": "use", "params": {"password": "${secrets.gone}"}})
    server.put("/api/workflow-templates/t", a_template(action="a"))
    run = server.ended(server.http.post(URL, json={"template_id": "t"}))
    assert (run["status"], run["error"]) == ("FAILED", "secret 'gone' does not exist")
    assert (run["failure"]["kind"], run["tasks"], seen) == ("invalid_job", {}, [])


def test_a_retry_from_the_failed_task_does_not_reuse_a_masked_output(server: Server) -> None:
    run = server.ended(server.submit("use", password="${secrets.db}"))  # noqa: S106
    assert run["task_records"]["use"]["reusable"] == "not_exact"
