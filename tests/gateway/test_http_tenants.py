"""REQ-0017: what belongs to another tenant is answered like what does not exist, by every route."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from pyoco_server.domain.auth import Scope
from pyoco_server.domain.executions.events import Actor, ActorKind
from pyoco_server.domain.runs.logs import LogLine
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.http_api import create_app
from pyoco_server.http_api.middleware import is_protected
from pyoco_server.http_api.pages import SANDBOX_PATH
from pyoco_server.memory import open_memory_gateway_backend
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.executions.create import NewExecution
from pyoco_server.usecases.ports.stores import Versioned
from pyoco_server.wiring import new_run_id
from support.builders import NOW, OWNER, RUN_ID, a_snapshot
from support.gateway import RunningGateway, documented_paths, memory_app, new_key
from support.tables import every_row
from support.waiting import until
from support.watching import stream

MISSING = "0190aaaa-bbbb-7ccc-8ddd-eeeeffffffff"
SHARED = ("/workers", "/wheels")
EVENTS = "/api/workflow-"
"""Everything of events is its tenant's: test_events_more.py."""
"""The fleet and its code are everybody's: any worker runs any tenant's flows."""


@dataclass(frozen=True)
class Tenants:
    gateway: RunningGateway
    ours: dict[str, str]
    theirs: dict[str, str]

    async def ask(self, method: str, path: str, who: dict[str, str], **options: Any) -> httpx2.Response:
        return await self.gateway.client.request(method, path, headers=who, **options)

    async def submit(self, who: dict[str, str], path: str = "/runs", **body: Any) -> httpx2.Response:
        answer = await self.ask("POST", path, who, json=body or {"flow_name": "f"})
        assert answer.status_code == 200, answer.text
        return answer

    async def listed(self, who: dict[str, str], query: str = "") -> set[str]:
        found = (await self.ask("GET", f"/runs?{query}", who)).json()
        return {run["run_id"] for run in (found if isinstance(found, list) else found["items"])}


@pytest.fixture
async def tenants() -> AsyncIterator[Tenants]:
    async with memory_app(http_auth_mode="api_key") as gateway:
        keys = gateway.backend.api_keys
        ours = await new_key(keys, "acme", "key-a", *Scope)
        yield Tenants(gateway, ours, await new_key(keys, "other", "key-b", *Scope))


def documented_routes() -> list[tuple[str, str]]:
    return [(method.upper(), path) for path, methods in documented_paths().items() for method in methods]


def routes_of_runs() -> list[tuple[str, str]]:
    """Every documented route that names a run, so that a new one is tried as well."""
    return [route for route in documented_routes() if "{run_id}" in route[1]]


def routes_of_executions() -> list[tuple[str, str]]:
    return [route for route in documented_routes() if "{execution_id}" in route[1]]


def routes_of_schedules() -> list[tuple[str, str]]:
    """Each of one schedule that exists."""
    path = "/schedules/{schedule_id}"
    posts = [("POST", f"{path}/{what}") for what in ("pause", "resume", "trigger", "backfill")]
    return [("GET", path), ("DELETE", path), *posts, ("GET", f"{path}/ticks"), ("GET", f"{path}/preview")]


def other_routes() -> list[tuple[str, str]]:
    return [
        (method, path)
        for method, path in documented_routes()
        if "{run_id}" not in path and "{execution_id}" not in path and is_protected(path)
    ]


OPEN = {"/", "/health", "/ready", "/static", SANDBOX_PATH, "/docs", "/openapi.json"}
"""What a stranger may see: nothing in it belongs to anybody."""


def all_paths() -> set[str]:
    """Everything that the application answers, documented or not."""
    app = create_app(open_backend=open_memory_gateway_backend)
    return {route.path for route in app.router.routes if hasattr(route, "path")} | set(documented_paths())


def test_a1_whatever_is_not_open_wants_a_key() -> None:
    """A new path is a stranger's only after somebody wrote it down here."""
    assert {path for path in all_paths() if not is_protected(path)} <= OPEN


def test_a1_the_routes_that_this_file_knows_are_all_there_are() -> None:
    """Whoever adds a route says here whose things it shows."""
    known = {
        ("GET", "/runs"),
        ("GET", "/runs/watch"),
        ("POST", "/runs"),
        ("POST", "/runs/batch"),
        ("POST", "/runs/yaml"),
        ("GET", "/metrics"),
        ("GET", "/values/{sha256}"),  # test_large_values.py
        ("GET", "/flows"),  # test_http_flows.py
        ("GET", "/flows/{name}"),  # test_flow_settings.py
        ("PUT", "/flows/{name}"),
        ("GET", "/queues"),  # test_http_queues.py, also the next two
        ("POST", "/queues/{tag}/pause"),
        ("POST", "/queues/{tag}/resume"),
        ("GET", "/graphs"),
        ("PUT", "/graphs/{graph_id}"),
        ("GET", "/graphs/{graph_id}"),
        ("GET", "/executions"),
        ("POST", "/executions"),
        ("GET", "/waits"),
        ("GET", "/schedules"),
        ("POST", "/schedules/preview"),
        ("POST", "/graphs/preview"),
        ("PUT", "/schedules/{schedule_id}"),
        *routes_of_schedules(),
        ("GET", "/audit"),
        ("GET", "/api-keys"),  # test_http_api_keys.py, also the next two
        ("POST", "/api-keys"),
        ("DELETE", "/api-keys/{key_id}"),
        ("GET", "/dead-letters"),  # test_http_dead_letters.py, also the next three
        ("GET", "/dead-letters/{letter_id}"),
        ("POST", "/dead-letters/{letter_id}/redrive"),
        ("POST", "/dead-letters/{letter_id}/discard"),
        ("GET", "/bulk"),  # test_http_bulk.py, also the next four
        ("POST", "/bulk"),
        ("GET", "/bulk/{bulk_id}"),
        ("GET", "/bulk/{bulk_id}/watch"),
        ("POST", "/bulk/{bulk_id}/cancel"),
        ("GET", "/stats"),  # test_http_stats.py
        ("GET", "/alerts"),  # test_http_alerts.py, also the next ten
        ("PUT", "/alerts/{name}"),
        ("GET", "/alerts/{name}"),
        ("DELETE", "/alerts/{name}"),
        ("GET", "/channels"),
        ("PUT", "/channels/{name}"),
        ("GET", "/channels/{name}"),
        ("DELETE", "/channels/{name}"),
        ("GET", "/deliveries"),
        ("GET", "/deliveries/{delivery_id}"),
        ("POST", "/deliveries/{delivery_id}/replay"),
        ("GET", "/limits"),
        ("PUT", "/limits/{name}"),
        ("GET", "/limits/{name}"),
        ("DELETE", "/limits/{name}"),
        ("GET", "/limits/{name}/keys"),
        ("GET", "/secrets"),  # test_http_secrets.py, also the next seven
        ("PUT", "/secrets/{name}"),
        ("GET", "/secrets/{name}"),
        ("DELETE", "/secrets/{name}"),
        ("GET", "/variables"),
        ("PUT", "/variables/{name}"),
        ("GET", "/variables/{name}"),
        ("DELETE", "/variables/{name}"),
        ("POST", "/flows/{name}/pause"),
        ("POST", "/flows/{name}/resume"),
    }
    assert {route for route in other_routes() if not route[1].startswith((*SHARED, EVENTS))} == known
    assert len(routes_of_runs()) >= 5
    assert len(routes_of_executions()) >= 15


@pytest.fixture(params=[RunStatus.RUNNING, RunStatus.COMPLETED])
async def run(tenants: Tenants, request: pytest.FixtureRequest) -> Versioned[RunSnapshot]:
    """Of our tenant."""
    runs = tenants.gateway.backend.runs
    await runs.create(RUN_ID, a_snapshot(request.param, OWNER, tenant_id="acme"))
    stored = await runs.get(RUN_ID)
    assert stored is not None
    return stored


@every_row(("method", "path"), routes_of_runs)
async def test_a1_another_tenants_run_is_answered_like_a_missing_one(
    tenants: Tenants, run: Versioned[RunSnapshot], method: str, path: str
) -> None:
    """ERR-PYOCO-0005"""
    foreign = await tenants.ask(method, path.format(run_id=RUN_ID, name="a.csv"), tenants.theirs)
    missing = await tenants.ask(method, path.format(run_id=MISSING, name="a.csv"), tenants.theirs)
    assert (foreign.status_code, foreign.json()["err_id"]) == (404, "ERR-PYOCO-0005")
    assert (foreign.content, foreign.status_code) == (missing.content, missing.status_code)
    assert await tenants.gateway.backend.runs.get(RUN_ID) == run, "and nothing happened to it"


WAITING = {"nodes": {"ask": {"type": "wait", "prompt": "?"}}}
BODIES = {"/commands": {"command": "CancelExecution"}, "/messages": {"name": "go"}}


@pytest.fixture
async def _execution(tenants: Tenants) -> None:
    """Of our tenant."""
    assert (await tenants.ask("PUT", "/graphs/ask", tenants.ours, json=WAITING)).status_code == 201
    wanted = {"graph_id": "ask", "execution_id": "e-1", "start": False}
    assert (await tenants.ask("POST", "/executions", tenants.ours, json=wanted)).status_code == 201


@pytest.mark.usefixtures("_execution")
@every_row(("method", "path"), routes_of_executions)
async def test_another_tenants_execution_is_answered_like_a_missing_one(
    tenants: Tenants, method: str, path: str
) -> None:
    """ERR-PYOCO-0031"""
    body = next((body for end, body in BODIES.items() if path.endswith(end)), {})
    foreign, missing = [
        await tenants.ask(method, path.format(execution_id=name, node_id="ask"), tenants.theirs, json=body)
        for name in ("e-1", "e-2")
    ]
    assert (foreign.status_code, foreign.json()["err_id"]) == (404, "ERR-PYOCO-0031")
    assert foreign.content == missing.content
    state = (await tenants.ask("GET", "/executions/e-1", tenants.ours)).json()
    assert state["version"] == 2, "and nothing happened to it"


async def test_lists_and_the_inbox_show_the_tenants_own_executions(tenants: Tenants) -> None:
    for who, name in ((tenants.ours, "e-1"), (tenants.theirs, "e-2")):
        await tenants.ask("PUT", "/graphs/ask", who, json=WAITING)
        await tenants.ask("POST", "/executions", who, json={"graph_id": "ask", "execution_id": name})
    for who, name in ((tenants.ours, "e-1"), (tenants.theirs, "e-2")):
        for path in ("/executions", "/waits"):

            async def listed(path: str = path, who: dict[str, str] = who) -> list[str]:
                found = (await tenants.ask("GET", path, who)).json()["items"]
                return [item["execution_id"] for item in found]

            assert await until(listed) == [name]


@pytest.mark.parametrize(("method", "more"), [("GET", ""), ("DELETE", ""), ("GET", "/keys")])
async def test_another_tenants_limit_is_answered_like_a_missing_one(
    tenants: Tenants, method: str, more: str
) -> None:
    """ERR-PYOCO-0052"""
    body = {"match": {}, "max_running": 1}
    assert (await tenants.ask("PUT", "/limits/ours", tenants.ours, json=body)).status_code == 201
    foreign = await tenants.ask(method, f"/limits/ours{more}", tenants.theirs)
    assert (foreign.status_code, foreign.json()["err_id"]) == (404, "ERR-PYOCO-0052")
    assert (await tenants.ask("GET", "/limits", tenants.theirs)).json()["items"] == []
    assert (await tenants.ask("GET", "/limits/ours", tenants.ours)).status_code == 200


async def test_limits_and_pauses_of_a_tenant_concern_its_own_runs(tenants: Tenants) -> None:
    body = {"match": {}, "max_running": 1}
    await tenants.ask("PUT", "/limits/ours", tenants.ours, json=body)
    await tenants.ask("POST", "/flows/report/pause", tenants.ours)

    async def limits(who: dict[str, str]) -> Any:
        made = (await tenants.ask("POST", "/runs", who, json={"flow_name": "report"})).json()
        return (await tenants.ask("GET", f"/runs/{made['run_id']}", who)).json()

    assert (await limits(tenants.theirs))["limits"] is None
    ours = await limits(tenants.ours)
    assert ours["limits"] == [{"limit": "ours", "key": ""}]
    assert ours["waiting_for"]["paused"]["flow"] == "report"


async def test_an_execution_of_another_tenants_graph_cannot_be_made(tenants: Tenants) -> None:
    """ERR-PYOCO-0034"""
    await tenants.ask("PUT", "/graphs/ask", tenants.ours, json=WAITING)
    answer = await tenants.ask("POST", "/executions", tenants.theirs, json={"graph_id": "ask"})
    assert (answer.status_code, answer.json()["err_id"]) == (404, "ERR-PYOCO-0034")


@every_row(("method", "path"), lambda: [*routes_of_runs(), *routes_of_executions(), *other_routes()])
async def test_every_route_asks_for_a_key_before_anything_else(
    tenants: Tenants, run: Versioned[RunSnapshot], method: str, path: str
) -> None:
    """REQ-0016, ERR-PYOCO-0014: before the body is parsed, and before it is told what exists."""
    where = re.sub(r"{\w+}", "w", path.replace("{run_id}", RUN_ID))
    answer = await tenants.gateway.client.request(method, where, content=b"{")
    assert (answer.status_code, answer.json()["err_id"]) == (401, "ERR-PYOCO-0014")
    wrong = {"X-API-Key": f"pyoco_key-a.{'x' * 43}"}
    answer = await tenants.ask(method, where, wrong, content=b"{")
    assert (answer.status_code, answer.json()["err_id"]) == (403, "ERR-PYOCO-0015")


async def test_a_run_bears_the_marks_of_its_tenant(tenants: Tenants) -> None:
    run_id = (await tenants.submit(tenants.ours)).json()["run_id"]
    run = (await tenants.ask("GET", f"/runs/{run_id}", tenants.ours)).json()
    assert (run["tenant_id"], run["api_key_id"]) == ("acme", "key-a")


async def test_a_tenant_cannot_submit_for_another(tenants: Tenants) -> None:
    for forged in ({"tenant_id": "other"}, {"api_key_id": "key-b"}):
        body = {"flow_name": "f", **forged}
        assert (await tenants.ask("POST", "/runs", tenants.ours, json=body)).status_code == 422
        batch = await tenants.submit(tenants.ours, "/runs/batch", runs=[body])
        assert batch.json()["results"][0]["http_status"] == 422
    run_id = (await tenants.submit(tenants.ours)).json()["run_id"]
    run = (await tenants.ask("GET", f"/runs/{run_id}", tenants.ours)).json()
    assert (run["tenant_id"], run["api_key_id"]) == ("acme", "key-a")


@pytest.mark.parametrize(
    "query", ["", "status=PENDING", "flow=f", "tag=default", "updated_after=0", "include=full", "limit=200"]
)
async def test_a1_lists_never_cross(tenants: Tenants, query: str) -> None:
    ours = {(await tenants.submit(tenants.ours)).json()["run_id"] for _ in range(3)}
    batch = await tenants.submit(tenants.theirs, "/runs/batch", runs=[{"flow_name": "f"}] * 2)
    theirs = {result["run_id"] for result in batch.json()["results"]}
    nobodys = new_run_id()
    await tenants.gateway.backend.runs.create(nobodys, a_snapshot(run_id=nobodys))
    assert await tenants.listed(tenants.ours, query) == ours
    assert await tenants.listed(tenants.theirs, query) == theirs


async def test_a1_a_cursor_of_another_tenant_leads_nowhere(tenants: Tenants) -> None:
    """ERR-PYOCO-0017"""
    for who in (tenants.ours, tenants.theirs):
        for _ in range(3):
            await tenants.submit(who)
    page = (await tenants.ask("GET", "/runs?updated_after=0&limit=1", tenants.ours)).json()
    answer = await tenants.ask("GET", f"/runs?cursor={page['next_cursor']}", tenants.theirs)
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0017")


async def test_a_watch_of_the_list_shows_the_tenants_own_runs(tenants: Tenants) -> None:
    async with stream(
        tenants.gateway.app, "/runs/watch", **{"x-api-key": tenants.ours["X-API-Key"]}
    ) as watching:
        first = await watching.next()
        assert first.data["counts"]["PENDING"] == 0
        runs = tenants.gateway.backend.runs
        theirs = new_run_id()
        revision = await runs.create(theirs, a_snapshot(run_id=theirs, tenant_id="other"))
        await runs.remove(theirs, revision)
        await tenants.submit(tenants.ours)
        seen = await watching.next()
        while not seen.data["items"]:
            assert seen.data["removed"] == []
            seen = await watching.next()
        assert [item["tenant_id"] for item in seen.data["items"]] == ["acme"]
        assert (seen.data["removed"], seen.data["counts"]["PENDING"]) == ([], 1)


async def test_a_watch_shows_the_tenants_own_run(tenants: Tenants) -> None:
    run_id = (await tenants.submit(tenants.ours)).json()["run_id"]
    path = f"/runs/{run_id}/watch"
    async with stream(tenants.gateway.app, path, **{"x-api-key": tenants.ours["X-API-Key"]}) as watching:
        assert (await watching.next()).data["snapshot"]["tenant_id"] == "acme"
        answer = await tenants.ask("POST", f"/runs/{run_id}/cancel", tenants.ours)
        assert answer.json()["cancel_requested_by"] == "api_key:key-a"
        events = await watching.rest()
    assert events[-1].data["snapshot"]["status"] == "CANCELLED"


async def test_a1_logs_are_the_tenants_own(tenants: Tenants) -> None:
    await tenants.gateway.backend.runs.create(RUN_ID, a_snapshot(tenant_id="acme"))
    line = LogLine(attempt=1, n=1, task="t", stream="stdout", text="secret\n", ts=NOW)
    await tenants.gateway.backend.task_logs.append(RUN_ID, [line])
    answer = await tenants.ask("GET", f"/runs/{RUN_ID}/logs", tenants.ours)
    assert [shown["text"] for shown in answer.json()["lines"]] == ["secret\n"]
    assert "secret" not in (await tenants.ask("GET", f"/runs/{RUN_ID}/logs", tenants.theirs)).text


async def test_a1_a_run_without_a_tenant_is_nobodys(tenants: Tenants) -> None:
    """It was submitted while auth was off."""
    await tenants.gateway.backend.runs.create(RUN_ID, a_snapshot())
    for who in (tenants.ours, tenants.theirs):
        assert (await tenants.ask("GET", f"/runs/{RUN_ID}", who)).status_code == 404
        assert await tenants.listed(who) == set()


async def test_with_auth_off_everybody_sees_everything() -> None:
    async with memory_app() as gateway:
        await gateway.backend.runs.create(RUN_ID, a_snapshot(tenant_id="acme"))
        assert (await gateway.client.get(f"/runs/{RUN_ID}")).json()["tenant_id"] == "acme"


async def test_ids_of_executions_belong_to_their_tenant(tenants: Tenants) -> None:
    """D16: 409 told that another tenant's id exists, and ids could be squatted."""
    wanted = {"graph_id": "ask", "execution_id": "nightly"}
    for who in (tenants.ours, tenants.theirs):
        await tenants.ask("PUT", "/graphs/ask", who, json=WAITING)
        made = await tenants.ask("POST", "/executions", who, json=wanted)
        assert (made.status_code, made.json()["execution_id"]) == (201, "nightly")
        again = await tenants.ask("POST", "/executions", who, json=wanted)
        assert (again.status_code, again.json()["code"]) == (409, "EXECUTION_EXISTS")
    for who, tenant in ((tenants.ours, "acme"), (tenants.theirs, "other")):

        async def waits(who: dict[str, str] = who) -> list[dict[str, Any]]:
            return list((await tenants.ask("GET", "/waits", who)).json()["items"])

        assert [wait["execution_id"] for wait in await until(waits)] == ["nightly"]
        row = (await tenants.ask("GET", "/executions", who)).json()["items"][0]
        assert (row["execution_id"], row["tenant_id"], "given_id" in row) == ("nightly", tenant, False)
        state = (await tenants.ask("GET", "/executions/nightly", who)).json()
        assert (state["execution_id"], state["tenant_id"], "given_id" in state) == ("nightly", tenant, False)
        events = (await tenants.ask("GET", "/executions/nightly/events", who)).json()["items"]
        assert {event["execution_id"] for event in events} == {"nightly"}
    cancelled = await tenants.ask("POST", "/executions/nightly/cancel", tenants.theirs, json={})
    assert cancelled.json()["status"] == "CANCELED"
    assert (await tenants.ask("GET", "/executions/nightly", tenants.ours)).json()["status"] == "ACTIVE"
    again = await tenants.ask("POST", "/executions/nightly/rerun", tenants.theirs, json={})
    assert again.json()["rerun_of"] == "nightly"


async def test_executions_of_older_versions_are_found_under_the_id_they_were_stored_with(
    tenants: Tenants,
) -> None:
    """D16: those stored every id as it was given."""
    for who in (tenants.ours, tenants.theirs):
        await tenants.ask("PUT", "/graphs/ask", who, json=WAITING)
    create = tenants.gateway.app.state.gateway.levels.executions.create
    old = NewExecution(graph_id="ask", execution_id="old")
    await create(old, Caller(tenant_id="acme"), Actor(ActorKind.USER))
    assert (await tenants.ask("GET", "/executions/old", tenants.ours)).json()["execution_id"] == "old"
    assert (await tenants.ask("POST", "/executions/old/cancel", tenants.ours, json={})).status_code == 200
    wanted = {"graph_id": "ask", "execution_id": "old"}
    refused = await tenants.ask("POST", "/executions", tenants.ours, json=wanted)
    assert (refused.status_code, refused.json()["code"]) == (409, "EXECUTION_EXISTS")
    made = await tenants.ask("POST", "/executions", tenants.theirs, json=wanted)
    assert (made.status_code, made.json()["execution_id"]) == (201, "old")


async def test_a_command_records_who_was_authenticated_beside_who_is_claimed(tenants: Tenants) -> None:
    """D36: whoever had a key could act in any name without a trace."""
    await tenants.ask("PUT", "/graphs/ask", tenants.ours, json=WAITING)
    claim = {"kind": "user", "id": "the boss"}
    wanted = {"graph_id": "ask", "execution_id": "e-1", "actor": claim}
    assert (await tenants.ask("POST", "/executions", tenants.ours, json=wanted)).status_code == 201
    forged = {"actor": {**claim, "api_key_id": "key-b"}}
    refused = await tenants.ask("POST", "/executions/e-1/cancel", tenants.ours, json=forged)
    assert refused.status_code == 422
    await tenants.ask("POST", "/executions/e-1/cancel", tenants.ours, json={"actor": claim})
    events = (await tenants.ask("GET", "/executions/e-1/events", tenants.ours)).json()["items"]
    of = {event["type"]: event["actor"] for event in events}
    known = {"api_key_id": "key-a", "tenant_id": "acme"}
    assert of["EXECUTION_CREATED"] == of["EXECUTION_CANCEL_REQUESTED"] == {**claim, **known}


@pytest.mark.parametrize(("method", "path"), routes_of_schedules())
async def test_a1_another_tenants_schedule_is_answered_like_a_missing_one(
    tenants: Tenants, method: str, path: str
) -> None:
    """ERR-PYOCO-0048"""
    definition = {"target": {"flow": "f"}, "every_sec": 3600}
    client = tenants.gateway.client
    ours, theirs = tenants.ours, tenants.theirs
    assert (await client.put("/schedules/s", json=definition, headers=ours)).status_code == 201
    body = {"from": 0, "to": 1} if "backfill" in path else None
    foreign = await client.request(method, path.format(schedule_id="s"), json=body, headers=theirs)
    missing = await client.request(method, path.format(schedule_id="m"), json=body, headers=theirs)
    assert (foreign.status_code, foreign.json()["err_id"]) == (404, "ERR-PYOCO-0048")
    assert foreign.json()["detail"].replace(": s", ": m") == missing.json()["detail"]
    assert (await client.get("/audit", headers=theirs)).json()["items"] == []
    assert (await client.get("/audit", headers=ours)).json()["items"][0]["target"]["id"] == "s"
    assert (await client.get("/audit")).status_code == 401
    assert (await client.get("/schedules", headers=theirs)).json()["items"] == []
    assert len((await client.get("/schedules", headers=ours)).json()["items"]) == 1
    assert (await client.get("/schedules")).status_code == 401
