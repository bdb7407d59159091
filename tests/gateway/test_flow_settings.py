"""`PUT /flows/{name}`: defaults for the runs of a flow, whatever starts them."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.domain.fleet import WorkerState
from support.builders import NOW, a_worker
from support.events import ACTION, define
from support.gateway import RunningGateway, memory_app, new_key
from support.http_executions import Executions, graph, task
from support.waiting import until

RETRY = {
    "max_attempts": 3,
    "backoff_sec": 5.0,
    "factor": 2.0,
    "max_backoff_sec": 3600.0,
    "jitter": 0.1,
    "on": ["error", "timeout", "crash"],
}
DEFAULTS = {"retry": {"max_attempts": 3}, "timeout_sec": 60, "start_within_sec": 600, "priority": "low"}
SCHEMA = {
    "type": "object",
    "properties": {"month": {"type": "integer", "minimum": 1, "maximum": 12}},
    "required": ["month"],
    "additionalProperties": False,
}


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        yield running


async def put(gateway: RunningGateway, name: str, body: Any, **headers: str) -> dict[str, Any]:
    answer = await gateway.client.put(f"/flows/{name}", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def submit(gateway: RunningGateway, **body: Any) -> dict[str, Any]:
    """The run, as it was accepted."""
    answer = await gateway.client.post("/runs", json={"flow_name": "report", **body})
    assert answer.status_code == 200, answer.text
    return await run(gateway, answer.json()["run_id"])


async def run(gateway: RunningGateway, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await gateway.client.get(f"/runs/{run_id}")).json()
    return found


def defaults(run: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    return run["retry"], run["timeout_sec"], run["start_within_sec"], run["priority"]


async def test_what_is_set_is_shown_and_a_put_replaces_all_of_it(gateway: RunningGateway) -> None:
    found = await put(gateway, "report", {**DEFAULTS, "owner": "accounting", "description": "Monthly report"})
    assert (found["name"], found["retry"], found["timeout_sec"]) == ("report", RETRY, 60.0)
    assert (found["owner"], found["description"], found["params_schema"]) == (
        "accounting",
        "Monthly report",
        None,
    )
    assert (await gateway.client.get("/flows/report")).json() == found
    assert [flow["name"] for flow in (await gateway.client.get("/flows")).json()["items"]] == ["report"]
    changed = await put(gateway, "report", {"owner": "sales", "timeout_sec": None})
    assert (changed["owner"], changed["timeout_sec"], changed["retry"]) == ("sales", None, None)


async def test_a_flow_has_the_agreed_fields(gateway: RunningGateway) -> None:
    await put(gateway, "report", {"owner": "sales"})
    (flow,) = (await gateway.client.get("/flows")).json()["items"]
    assert flow == {
        "name": "report",
        "success_rate": None,
        "p50_sec": None,
        "p95_sec": None,
        "tags": [],
        "workers": [],
        "wheel_version": None,
        "limits": [],
        "schedules": [],
        "paused": None,
        "last_runs": [],
    }


async def test_nothing_set_is_nothing_stored(gateway: RunningGateway) -> None:
    await put(gateway, "report", DEFAULTS)
    gone = await put(gateway, "report", {"retry": None})
    assert (gone["retry"], gone["updated_at"]) == (None, None)
    answer = await gateway.client.get("/flows/report")
    assert (answer.status_code, answer.json()["err_id"]) == (404, "ERR-PYOCO-0006")
    assert defaults(await submit(gateway)) == (None, None, None, "normal")
    await put(gateway, "report", {"timeout_sec": 5})
    assert defaults(await submit(gateway)) == (None, 5, None, "normal")


async def test_changes_are_recorded(gateway: RunningGateway) -> None:
    for body in ({"owner": "a"}, {"owner": "a"}, {"owner": "b"}, {}, {}):
        await put(gateway, "report", body)
    found = (await gateway.client.get("/audit?target=flow/report")).json()["items"]
    owners = [tuple(state and state["owner"] for state in (one["before"], one["after"])) for one in found]
    assert owners == [("b", None), ("a", "b"), (None, "a")]
    assert {one["action"] for one in found} == {"flow.put"}


async def test_an_unknown_flow_is_answered_with_a_suggestion(gateway: RunningGateway) -> None:
    await submit(gateway)
    answer = await until(lambda: gateway.client.get("/flows/raport"), lambda it: "mean" in it.text)
    assert (answer.status_code, answer.json()["detail"]) == (
        404,
        "flow not found: raport (did you mean 'report'?)",
    )


@pytest.mark.parametrize("name", ["a/b", "売上 集計", "50%", "..", "x" * 200, "watch", "two\nlines\n"])
async def test_any_name_of_a_flow_can_be_set(gateway: RunningGateway, name: str) -> None:
    quoted = "".join(f"%{byte:02X}" for byte in name.encode())
    assert (await put(gateway, quoted, {"timeout_sec": 7}))["name"] == name
    assert defaults(await submit(gateway, flow_name=name)) == (None, 7, None, "normal")


async def test_a_run_has_the_defaults_of_its_flow(gateway: RunningGateway) -> None:
    await put(gateway, "report", DEFAULTS)
    assert defaults(await submit(gateway)) == (RETRY, 60, 600, "low")
    assert defaults(await submit(gateway, flow_name="other")) == (None, None, None, "normal")


async def test_the_fields_of_a_run_win(gateway: RunningGateway) -> None:
    await put(gateway, "report", DEFAULTS)
    found = await submit(gateway, timeout_sec=5, retry={"max_attempts": 1}, priority="high")
    assert defaults(found) == ({**RETRY, "max_attempts": 1}, 5, 600, "high")


async def test_runs_of_a_batch_and_of_a_flow_yaml_have_them(gateway: RunningGateway) -> None:
    await put(gateway, "report", DEFAULTS)
    batch = {"runs": [{"flow_name": "report"}, {"flow_name": "report", "timeout_sec": 1}]}
    results = (await gateway.client.post("/runs/batch", json=batch)).json()["results"]
    found = [await run(gateway, result["run_id"]) for result in results]
    assert [defaults(one)[1] for one in found] == [60, 1]
    text = "version: 1\nflow:\n  graph: a\n  defaults: {}\ntasks:\n  a: {callable: 'm:f'}\n"
    answer = await gateway.client.post(
        "/runs/yaml", files={"workflow": ("flow.yaml", text)}, data={"flow_name": "report"}
    )
    assert answer.status_code == 200, answer.text
    assert defaults(await run(gateway, answer.json()["run_id"])) == (RETRY, 60, 600, "low")


async def test_runs_of_schedules_have_them(gateway: RunningGateway) -> None:
    await put(gateway, "report", DEFAULTS)
    schedule = {"cron": "0 0 1 1 *", "target": {"flow": "report", "timeout_sec": 9}}
    assert (await gateway.client.put("/schedules/s", json=schedule)).status_code == 201
    started = (await gateway.client.post("/schedules/s/trigger")).json()
    assert defaults(await run(gateway, started["run_id"])) == (RETRY, 9, 600, "low")
    (flow,) = (await gateway.client.get("/flows")).json()["items"]
    assert flow["schedules"] == ["s"]


async def test_runs_of_nodes_have_them(gateway: RunningGateway) -> None:
    await put(gateway, "report", DEFAULTS)
    executions = Executions(gateway.client)
    await executions.register("g", graph({"a": task("report")}))
    created = await executions.create(graph_id="g")

    async def runs() -> Any:
        return (await gateway.client.get("/runs?flow=report")).json()

    (found,) = await until(runs, lambda found: len(found) == 1)
    whole = await run(gateway, found["run_id"])
    assert (whole["execution_id"], defaults(whole)) == (created["execution_id"], (RETRY, 60, 600, "low"))


async def test_runs_of_events_have_them(gateway: RunningGateway) -> None:
    await put(gateway, "report", DEFAULTS)
    await define(gateway.client, template_id="close")
    action = {"flow_name": "report", "timeout_sec": 11}
    assert (await gateway.client.put(f"/api/workflow-actions/{ACTION}", json=action)).is_success
    started = await gateway.client.post("/api/workflow-templates/close/start", json={})
    assert started.is_success, started.text
    assert defaults(await run(gateway, started.json()["run_id"])) == (RETRY, 11, 600, "low")


async def test_a_repeat_is_the_same_request_after_the_defaults_changed(gateway: RunningGateway) -> None:
    body, key = {"flow_name": "report", "params": {"month": 13}}, {"Idempotency-Key": "k"}
    await put(gateway, "report", {"timeout_sec": 60})
    first = await gateway.client.post("/runs", json=body, headers=key)
    for changed in ({"timeout_sec": 5}, {}, {"params_schema": SCHEMA}):
        await put(gateway, "report", changed)
        again = await gateway.client.post("/runs", json=body, headers=key)
        assert again.status_code == 200, again.text
        assert (again.json()["run_id"], again.headers["Idempotent-Replayed"]) == (
            first.json()["run_id"],
            "true",
        )
    assert defaults(await run(gateway, first.json()["run_id"])) == (None, 60, None, "normal")
    assert (await gateway.backend.queue.count()) == 1
    refused = await gateway.client.post("/runs", json=body, headers={"Idempotency-Key": "other"})
    assert refused.status_code == 422
    accepted = await gateway.client.post(
        "/runs", json={"flow_name": "report", "params": {"month": 1}}, headers={"Idempotency-Key": "other"}
    )
    assert accepted.status_code == 200, "what is refused does not use up its key"


async def test_a1_tenants_have_their_own_settings() -> None:
    async with memory_app(http_auth_mode="api_key") as gateway:
        ours = await new_key(gateway.backend.api_keys, "acme", "key-a")
        theirs = await new_key(gateway.backend.api_keys, "other", "key-b")
        await put(gateway, "report", {"timeout_sec": 60, "owner": "ours"}, **ours)
        assert (await gateway.client.get("/flows/report", headers=theirs)).status_code == 404
        assert (await gateway.client.get("/flows", headers=theirs)).json()["items"] == []
        answer = await gateway.client.post("/runs", json={"flow_name": "report"}, headers=theirs)
        found = await gateway.client.get(f"/runs/{answer.json()['run_id']}", headers=theirs)
        assert found.json()["timeout_sec"] is None
        assert (await gateway.client.put("/flows/report", json={})).status_code == 401


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"timeout": 5}, "unknown field 'timeout' (did you mean 'timeout_sec'?)"),
        ({"retry": {"max_attemps": 5}}, "unknown field 'max_attemps' (did you mean 'max_attempts'?)"),
        ({"timeout_sec": 0}, "greater than 0"),
        ({"timeout_sec": "5"}, "valid number"),
        ({"owner": "x" * 201}, "at most 200"),
        ({"params_schema": []}, "valid dictionary"),
        ([], "valid dictionary"),
    ],
)
async def test_what_cannot_be_set_is_refused(gateway: RunningGateway, body: Any, text: str) -> None:
    answer = await gateway.client.put("/flows/report", json=body)
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    assert text in answer.text


async def test_a_name_that_no_run_can_have_is_refused(gateway: RunningGateway) -> None:
    answer = await gateway.client.put(f"/flows/{'x' * 201}", json={"owner": "me"})
    assert (answer.status_code, answer.json()["detail"]) == (422, "flow name must have 1 to 200 characters")


# Params


async def test_params_are_checked_against_the_schema(gateway: RunningGateway) -> None:
    await put(gateway, "report", {"params_schema": SCHEMA})
    assert (await submit(gateway, params={"month": 12}))["status"] == "PENDING"
    answer = await gateway.client.post(
        "/runs", json={"flow_name": "report", "params": {"month": 13, "password": "hunter2"}}
    )
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    assert answer.json()["detail"] == (
        "params.month: the value is greater than the maximum of 12; "
        "params: Additional properties are not allowed ('password' was unexpected) "
        "(params_schema of the flow 'report')"
    )
    missing = await gateway.client.post("/runs", json={"flow_name": "report"})
    assert '"month" is a required property' in missing.json()["detail"]
    await put(gateway, "report", {"params_schema": {**SCHEMA, "required": []}})
    assert (await submit(gateway))["status"] == "PENDING"
    assert await gateway.backend.queue.count() == 2, "nothing is stored of those that were refused"


async def test_in_a_batch_only_the_run_with_bad_params_is_refused(gateway: RunningGateway) -> None:
    await put(gateway, "report", {"params_schema": SCHEMA})
    runs = [{"flow_name": "report", "params": {"month": month}} for month in (1, 13)]
    answer = (await gateway.client.post("/runs/batch", json={"runs": runs})).json()
    assert (answer["accepted"], answer["refused"]) == (1, 1)
    assert answer["results"][1]["http_status"] == 422


async def test_a_schedule_with_bad_params_is_refused_when_it_is_put(gateway: RunningGateway) -> None:
    await put(gateway, "report", {"params_schema": SCHEMA})
    schedule = {"cron": "0 0 1 1 *", "target": {"flow": "report", "params": {"month": "May"}}}
    answer = await gateway.client.put("/schedules/s", json=schedule)
    assert (answer.status_code, "params.month" in answer.json()["detail"]) == (422, True)


async def test_a_node_with_bad_params_fails_and_the_execution_reports_why(gateway: RunningGateway) -> None:
    await put(gateway, "report", {"params_schema": SCHEMA})
    executions = Executions(gateway.client)
    await executions.register("g", graph({"a": task("report")}))
    created = await executions.create(graph_id="g")

    async def state() -> Any:
        return (await gateway.client.get(f"/executions/{created['execution_id']}")).json()

    found = await until(state, lambda found: found["status"] == "FAILED")
    assert "is a required property" in str(found["nodes"]["a"]["error"])


# Flows that no worker has

FLEET = (
    a_worker(worker_id="a", tags=("default",), flows=("report",), flow_aliases=("r",), flows_complete=True),
    a_worker(worker_id="old", tags=("old",)),
    a_worker(
        worker_id="gone",
        tags=("default", "gpu"),
        state=WorkerState.STOPPED_GRACEFUL,
        flows=("left",),
        flows_complete=True,
    ),
)


async def with_fleet(gateway: RunningGateway) -> RunningGateway:
    for record in FLEET:
        await gateway.backend.workers.create(record.worker_id, record)

    async def seen() -> Any:
        return (await gateway.client.get("/workers?scope=all")).json()

    await until(seen, lambda found: len(found) == len(FLEET))
    return gateway


UNKNOWN_FLOW = "no live worker with the tag 'default' has the flow 'reprot' (did you mean 'report'?)"
UNKNOWN_TAG = "no live worker has the tag 'defualt' (did you mean 'default'?); the run waits for one"


@pytest.mark.parametrize(
    ("body", "warning"),
    [
        ({"flow_name": "report"}, None),
        ({"flow_name": "r"}, None),
        ({"flow_name": "reprot"}, UNKNOWN_FLOW),
        ({"flow_name": "left"}, "no live worker with the tag 'default' has the flow 'left'"),
        ({"flow_name": "anything", "tag": "old"}, None),
        ({"flow_name": "report", "tag": "defualt"}, UNKNOWN_TAG),
        ({"flow_name": "left", "tag": "gpu"}, "no live worker has the tag 'gpu'; the run waits for one"),
    ],
)
async def test_a_name_that_no_worker_has_is_accepted_with_a_warning_or_refused(
    body: dict[str, Any], warning: str | None
) -> None:
    """Strict: unless a worker that is away has it. Older workers report no flows, so nothing is claimed."""
    async with memory_app(given={"clock": lambda: NOW}) as running:
        gateway = await with_fleet(running)
        answer = await gateway.client.post("/runs", json=body)
        assert (answer.status_code, answer.json().get("warning")) == (200, warning)
    async with memory_app(given={"clock": lambda: NOW}, strict_flows=True) as running:
        gateway = await with_fleet(running)
        for path, sent in (("/runs", body), ("/runs/batch", {"runs": [body]})):
            answer = await gateway.client.post(path, json=sent)
            is_refused = warning in (UNKNOWN_FLOW, UNKNOWN_TAG)
            assert ("PYOCO_STRICT_FLOWS" in answer.text) is is_refused
            assert answer.status_code == (422 if is_refused and path == "/runs" else 200), answer.text
        keyed = await gateway.client.post("/runs", json=body, headers={"Idempotency-Key": "k"})
        assert keyed.status_code == (422 if is_refused else 200)


async def test_a_flow_yaml_needs_no_worker_that_has_its_flow() -> None:
    async with memory_app(given={"clock": lambda: NOW}, strict_flows=True) as running:
        gateway = await with_fleet(running)
        text = "version: 1\nflow:\n  graph: a\n  defaults: {}\ntasks:\n  a: {callable: 'm:f'}\n"
        answer = await gateway.client.post(
            "/runs/yaml", files={"workflow": ("flow.yaml", text)}, data={"flow_name": "reprot"}
        )
        assert (answer.status_code, answer.json().get("warning")) == (200, None)


async def test_without_workers_nothing_is_refused() -> None:
    async with memory_app(strict_flows=True) as gateway:
        answer = await gateway.client.post("/runs", json={"flow_name": "anything", "tag": "any"})
        assert answer.status_code == 200
