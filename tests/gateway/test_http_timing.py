"""When a run starts and how often it is tried: the fields of a submit, on the memory backend."""

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from pyoco_server.domain.runs.jobs import pending
from pyoco_server.errors import TimersUnsupported
from pyoco_server.memory import MemoryGatewayBackend
from pyoco_server.usecases.executions.node_runs import NodeRuns
from pyoco_server.usecases.runs.submit import SubmitRun
from pyoco_server.usecases.values import StoreParams
from pyoco_server.wiring import new_run_id
from support.builders import a_job
from support.events import a_template
from support.gateway import new_memory_gateway
from support.waiting import until

World = tuple[httpx2.AsyncClient, MemoryGatewayBackend]
RETRY = {
    "max_attempts": 3,
    "backoff_sec": 1.5,
    "factor": 3.0,
    "max_backoff_sec": 60.0,
    "jitter": 0.0,
    "on": ["timeout"],
}
FLOW_YAML = "version: 1\nflow:\n  graph: |\n    a\ntasks:\n  a:\n    callable: os:getcwd\n"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with new_memory_gateway() as opened:
        yield opened


async def shown(client: httpx2.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await client.post("/runs", json={"flow_name": "f", **fields})
    assert answer.status_code == 200, answer.text
    run: dict[str, Any] = (await client.get(f"/runs/{answer.json()['run_id']}")).json()
    return run


async def test_a_plain_run_has_none_of_it(world: World) -> None:
    run = await shown(world[0])
    names = ("not_before", "start_within_sec", "timeout_sec", "retry", "tries", "failure")
    assert [run[name] for name in names] == [None, None, None, None, [], None]


async def test_a_run_shows_what_was_asked_for(world: World) -> None:
    run = await shown(world[0], delay_sec=60, start_within_sec=30, timeout_sec=5, retry=RETRY)
    assert run["status"] == "PENDING"
    assert run["not_before"] == pytest.approx(time.time() + 60, abs=30)
    assert (run["start_within_sec"], run["timeout_sec"], run["retry"]) == (30, 5, RETRY)
    (listed,) = (await world[0].get("/runs")).json()
    assert listed["not_before"] == run["not_before"]


async def test_a_policy_has_the_defaults_of_the_contract(world: World) -> None:
    run = await shown(world[0], retry={"max_attempts": 2})
    assert run["retry"] == {
        "max_attempts": 2,
        "backoff_sec": 5.0,
        "factor": 2.0,
        "max_backoff_sec": 3600.0,
        "jitter": 0.1,
        "on": ["error", "timeout", "crash"],
    }


async def test_a_start_is_a_time_with_an_offset_or_unix_seconds(world: World) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    short = at.isoformat().replace("+00:00", "Z")
    for text in (at.isoformat(), short, short.lower(), at.timestamp(), int(at.timestamp())):
        assert (await shown(world[0], run_at=text))["not_before"] == at.timestamp()


async def test_a_start_in_the_past_is_now(world: World) -> None:
    assert (await shown(world[0], run_at="2020-01-01T00:00:00+09:00"))["not_before"] is None
    assert (await shown(world[0], delay_sec=0))["not_before"] is None


@pytest.mark.parametrize(
    ("fields", "place", "meant"),
    [
        ({"run_at": "2030-01-01T00:00:00"}, ["run_at"], "must have an offset"),
        ({"run_at": "tomorrow"}, ["run_at"], "must be Unix seconds or RFC 3339"),
        ({"run_at": True}, ["run_at"], ""),
        ({"delay_sec": -1}, ["delay_sec"], "greater than or equal to 0"),
        ({"delay_sec": 366 * 86_400 + 1}, ["delay_sec"], "less than or equal to"),
        ({"delay_sec": "5"}, ["delay_sec"], "number"),
        ({"delay_sec": True}, ["delay_sec"], "number"),
        ({"delay_sec": 5, "run_at": 2_000_000_000}, [], "exclude each other"),
        ({"timeout_sec": 0}, ["timeout_sec"], "greater than 0"),
        ({"start_within_sec": 0}, ["start_within_sec"], "greater than 0"),
        ({"retry": {"max_attempts": 0}}, ["retry", "max_attempts"], "greater than or equal to 1"),
        ({"retry": {"max_attempts": 101}}, ["retry", "max_attempts"], "less than or equal to 100"),
        ({"retry": {"max_attempts": 2.5}}, ["retry", "max_attempts"], "integer"),
        ({"retry": {"backoff": 2}}, ["retry", "backoff"], ""),
        ({"retry": {"on": ["max_deliver"]}}, ["retry", "on", 0], "'error', 'timeout' or 'crash'"),
        ({"retry": {"on": []}}, ["retry", "on"], "at least 1 item"),
        ({"retry": 3}, ["retry"], ""),
    ],
)
async def test_a_field_that_cannot_be_used_is_refused(
    world: World, fields: dict[str, Any], place: list[Any], meant: str
) -> None:
    answer = await world[0].post("/runs", json={"flow_name": "f", **fields})
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    assert any(
        problem["loc"][1 : 1 + len(place)] == place and meant in problem["msg"]
        for problem in answer.json()["detail"]
    ), answer.text
    assert "Value error" not in answer.text


async def test_a_start_in_more_than_a_year_is_refused(world: World) -> None:
    answer = await world[0].post("/runs", json={"flow_name": "f", "run_at": "9999-01-01T00:00:00Z"})
    assert (answer.status_code, answer.json()["detail"]) == (422, "run_at: more than 366 days from now")


async def test_a_batch_has_the_same_fields_for_each_run(world: World) -> None:
    runs = [
        {"flow_name": "f", "delay_sec": 60, "retry": RETRY},
        {"flow_name": "f", "delay_sec": -1},
        {"flow_name": "f"},
    ]
    answer = (await world[0].post("/runs/batch", json={"runs": runs})).json()
    assert answer["accepted"] == 2
    assert "delay_sec" in answer["results"][1]["error"]["detail"]
    delayed = (await world[0].get(f"/runs/{answer['results'][0]['run_id']}")).json()
    assert delayed["not_before"] > time.time()


async def test_a_form_has_them_as_text(world: World) -> None:
    form = {"flow_name": "f", "run_at": "2020-01-01T00:00:00Z", "timeout_sec": "5", "retry": '{"jitter": 0}'}
    answer = await world[0].post("/runs/yaml", files={"workflow": ("flow.yaml", FLOW_YAML)}, data=form)
    assert answer.status_code == 200, answer.text
    run = (await world[0].get(f"/runs/{answer.json()['run_id']}")).json()
    assert (run["not_before"], run["timeout_sec"], run["retry"]["jitter"]) == (None, 5, 0)


@pytest.mark.parametrize("form", [{"timeout_sec": "soon"}, {"retry": "3"}, {"delay_sec": "-1"}])
async def test_a_form_with_a_bad_field_is_refused(world: World, form: dict[str, str]) -> None:
    answer = await world[0].post(
        "/runs/yaml", files={"workflow": ("flow.yaml", FLOW_YAML)}, data={"flow_name": "f", **form}
    )
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"][:2] == ["body", next(iter(form))]


async def test_a_repeat_with_a_key_is_the_same_run_with_the_same_start(world: World) -> None:
    body = {"flow_name": "f", "delay_sec": 60}
    first, again = [
        await world[0].post("/runs", json=body, headers={"Idempotency-Key": "k"}) for _ in range(2)
    ]
    assert first.json()["run_id"] == again.json()["run_id"]
    assert again.headers["Idempotent-Replayed"] == "true"
    assert await world[1].queue.count() == 1
    other = await world[0].post(
        "/runs", json={"flow_name": "f", "delay_sec": 61}, headers={"Idempotency-Key": "k"}
    )
    assert other.status_code == 422


@pytest.mark.parametrize("fields", [{"delay_sec": 1}, {"retry": {}}, {"start_within_sec": 1}])
async def test_a_nats_that_cannot_keep_time_refuses_them_and_nothing_else(
    world: World, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise TimersUnsupported("delays, retries and schedules require NATS 2.12 or newer; this is 2.11.4")

    monkeypatch.setattr(world[1].queue, "require_timers", refuse)
    answer = await world[0].post("/runs", json={"flow_name": "f", **fields})
    assert (answer.status_code, answer.json()["err_id"]) == (501, "ERR-PYOCO-0047")
    assert "NATS 2.12" in answer.json()["detail"]
    assert (await world[0].post("/runs", json={"flow_name": "f"})).status_code == 200


# Task nodes of graphs


def one_task(**fields: Any) -> dict[str, Any]:
    return {"id": "g", "nodes": {"close": {"type": "task", "flow": "f", **fields}}}


async def test_the_run_of_a_node_starts_as_the_node_says(world: World) -> None:
    client = world[0]
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    for fields, not_before in (
        ({"delay_sec": 600, "start_within_sec": 30}, time.time() + 600),
        ({"run_at": at.isoformat(), "start_within_sec": 30}, at.timestamp()),
        ({"run_at": at.timestamp(), "start_within_sec": 30}, at.timestamp()),
    ):
        answer = await client.put("/graphs/g", json=one_task(**fields, retry={"max_attempts": 3}))
        assert answer.is_success, answer.text
        execution_id = (await client.post("/executions", json={"graph_id": "g"})).json()["execution_id"]

        async def started(execution_id: str = execution_id) -> Any:
            node = (await client.get(f"/executions/{execution_id}")).json()["nodes"]["close"]
            return node["run_id"] and (await client.get(f"/runs/{node['run_id']}")).json()

        run = await until(started, lambda found: bool(found) and "not_before" in found)
        assert run["not_before"] == pytest.approx(not_before, abs=30)
        assert (run["start_within_sec"], run["retry"]) == (30, None), "the attempts are the node's"
        assert len(await world[1].queue.run_ids()) >= 1


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"delay_sec": -1}, "node close: delay_sec: expected float >= 0"),
        ({"delay_sec": 366 * 86_400 + 1}, "node close: delay_sec: expected float <="),
        ({"start_within_sec": 0}, "node close: start_within_sec: expected float > 0"),
        ({"run_at": "2030-01-01T00:00:00"}, "node close: run_at must have an offset"),
        ({"run_at": "tomorrow"}, "node close: run_at must be Unix seconds or RFC 3339"),
        ({"run_at": 2_000_000_000, "delay_sec": 5}, "node close has both delay_sec and run_at; keep one"),
        ({"delay_sec": 60, "timeout_sec": 60}, "node close: timeout_sec includes the delay"),
        ({"flow": None, "external": True, "delay_sec": 5}, "node close: delay_sec is only for tasks with a"),
        ({"flow": None, "type": "wait", "start_within_sec": 5}, "node close: start_within_sec is only for"),
    ],
)
async def test_a_field_of_a_node_that_cannot_be_used_is_refused(
    world: World, fields: dict[str, Any], problem: str
) -> None:
    answer = await world[0].put("/graphs/g", json=one_task(**fields))
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    assert problem.lower() in answer.json()["detail"].lower(), answer.text


async def test_a_graph_is_shown_with_these_fields(world: World) -> None:
    await world[0].put("/graphs/g", json=one_task(run_at="2030-01-01T00:00:00+09:00"))
    (node,) = (await world[0].get("/graphs/g")).json()["definition"]["nodes"].values()
    assert node["run_at"] == datetime.fromisoformat("2030-01-01T00:00:00+09:00").timestamp()


async def test_a_node_whose_start_is_too_far_away_fails_with_the_reason(world: World) -> None:
    client = world[0]
    await client.put("/graphs/g", json=one_task(run_at="9999-01-01T00:00:00Z"))
    execution_id = (await client.post("/executions", json={"graph_id": "g"})).json()["execution_id"]

    async def state() -> Any:
        return (await client.get(f"/executions/{execution_id}")).json()

    failed = await until(state, lambda found: found["status"] == "FAILED")
    error = failed["nodes"]["close"]["error"]
    assert (error["code"], error["message"]) == ("RUN_REFUSED", "run_at: more than 366 days from now")


async def test_a_delayed_run_of_a_node_that_lost_its_job_gets_a_delayed_one(world: World) -> None:
    _, backend = world
    submit = SubmitRun(backend.runs, backend.queue, time.time, new_run_id)
    nobody_cancels: Any = None
    node_runs = NodeRuns(
        backend.runs,
        backend.queue,
        submit,
        nobody_cancels,
        time.time,
        "default",
        store_params=StoreParams(backend.values),
    )
    for age in (0, 600):
        job = a_job(
            submitted_at=time.time() - age,
            not_before=time.time() + 900,
            start_within_sec=5.0,
            execution_id="e",
            node_id="n",
        )
        await backend.runs.create(job.run_id, pending(job))
        await node_runs.read([job.run_id])
        assert job.run_id in await backend.queue.run_ids()
    assert backend.queue.take(["pyoco.work.default"]) is None, "not before its time"


# Actions of events


async def put_action(client: httpx2.AsyncClient, **fields: Any) -> httpx2.Response:
    return await client.put("/api/workflow-actions/close.month", json={"flow_name": "f", **fields})


async def test_the_run_of_an_action_has_the_fields_of_the_action(world: World) -> None:
    client = world[0]
    fields = {"delay_sec": 600, "start_within_sec": 30, "timeout_sec": 5, "retry": RETRY}
    answer = await put_action(client, **fields)
    assert answer.status_code == 200, answer.text
    assert {name: answer.json()[name] for name in fields} == fields
    await client.put("/api/workflow-templates/close", json=a_template(action="close.month"))
    started = await client.post("/api/workflow-events", json={"template_id": "close"})
    assert started.status_code == 200, started.text
    run = (await client.get(f"/runs/{started.json()['run_id']}")).json()
    assert run["not_before"] == pytest.approx(time.time() + 600, abs=30)
    assert (run["start_within_sec"], run["timeout_sec"], run["retry"]) == (30, 5, RETRY)


async def test_a_step_among_several_has_them_as_a_node(world: World) -> None:
    client = world[0]
    simple = {"max_attempts": 3, "backoff_sec": 2}
    await put_action(client, delay_sec=600, timeout_sec=700, retry=simple)
    steps = [
        {"id": "one", "action": "close.month", "trigger_kind": "external_event"},
        {"id": "two", "action": "close.month", "trigger_kind": "after_previous"},
    ]
    await client.put("/api/workflow-templates/close", json={**a_template(), "steps": steps})
    started = await client.post("/api/workflow-events", json={"template_id": "close"})
    assert started.status_code == 200, started.text
    nodes = (await client.get("/graphs/template-close")).json()["definition"]["nodes"]
    assert [(node["delay_sec"], node["timeout_sec"], node["retry"]) for node in nodes.values()] == [
        (600, 700, simple)
    ] * 2
    await put_action(client, retry=RETRY)
    refused = await client.post("/api/workflow-events", json={"template_id": "close"})
    assert refused.status_code == 409
    assert "action 'close.month': retry: a step among several" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"delay_sec": -1}, "delay_sec"),
        ({"retry": {"max_attempts": 0}}, "retry"),
        ({"flow_name": None, "graph_id": "g", "timeout_sec": 5}, "action 'close.month': timeout_sec"),
    ],
)
async def test_a_field_of_an_action_that_cannot_be_used_is_refused(
    world: World, fields: dict[str, Any], place: str
) -> None:
    answer = await put_action(world[0], **fields)
    assert answer.status_code == 422
    assert place in str(answer.json()["detail"])
