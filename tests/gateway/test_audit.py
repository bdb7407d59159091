"""Every change leaves one record before it is answered, and a refused one leaves none. From OpenAPI."""

import asyncio
import re
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import httpx2
import pytest

from pyoco_server.domain.alerts.deliveries import given_up, new_delivery
from pyoco_server.domain.alerts.happenings import Happening
from pyoco_server.domain.alerts.model import Alert, AlertKind
from pyoco_server.domain.auth import Scope
from pyoco_server.domain.dead_letters import DeadLetter, DlqReason
from pyoco_server.domain.fleet import WorkerState
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.http_api.access import AUDIT_DOCS
from pyoco_server.wiring import new_run_id
from support.builders import NOW, a_snapshot, a_worker
from support.events import URL, WEBHOOK, a_template, google_chat
from support.gateway import RunningGateway, documented_paths, memory_app, new_key
from support.http_executions import APPROVAL, Executions
from support.wheels import a_wheel, wheel_name

ADDRESS = {"User-Agent": "a-browser", "X-Forwarded-For": "203.0.113.9"}
SCHEDULE = {"target": {"flow": "f"}, "cron": "0 * * * *"}
SOURCE_SECRET = "whsec_" + "c2VjcmV0" * 6
TEMPLATES, ACTIONS, SOURCES = (f"/api/workflow-{noun}" for noun in ("templates", "actions", "sources"))


@cache
def audited() -> dict[tuple[str, str], set[str]]:
    return {
        (method.upper(), path): set(operation[AUDIT_DOCS])
        for path, operations in documented_paths().items()
        for method, operation in operations.items()
        if AUDIT_DOCS in operation
    }


class Changes:
    """Makes changes one after the other, and looks for the record of each."""

    def __init__(self, gateway: RunningGateway, key: dict[str, str]) -> None:
        self.gateway = gateway
        self.http = gateway.client
        self.http.headers.update({**key, **ADDRESS})
        self.made: set[tuple[str, str]] = set()

    async def entries(self, **query: Any) -> list[dict[str, Any]]:
        answer = await self.http.get("/audit", params={"limit": 200, **query})
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["items"]
        return found

    async def make(self, method: str, route: str, *ids: str, **options: Any) -> dict[str, Any]:
        """The one record that the change left."""
        known = {entry["id"] for entry in await self.entries()}
        left = iter(ids)
        path = re.sub(r"\{\w+\}", lambda _: next(left), route)
        answer = await self.http.request(method, path, **options)
        assert answer.status_code < 300, (method, path, answer.text)
        new = [entry for entry in await self.entries() if entry["id"] not in known]
        assert [entry["action"] in audited()[method, route] for entry in new] == [True], (method, path, new)
        self.made.add((method, route))
        return new[0]


@pytest.fixture
async def changes() -> AsyncIterator[Changes]:
    async with (
        google_chat() as (base_url, _),
        memory_app(
            http_auth_mode="api_key",
            google_chat_base_url=base_url,
            workflow_event_retry_worker_enabled=False,
            secrets_key="k" * 43,
        ) as gateway,
    ):
        yield Changes(gateway, await new_key(gateway.backend.api_keys, "acme", "key-a", *Scope))


async def test_every_route_that_changes_something_leaves_a_record(changes: Changes) -> None:
    for part in (_runs, _fleet, _flows, _schedules, _executions, _commands, _events, _keys, _operations):
        await part(changes)
    assert changes.made == audited().keys(), "a new route needs a change above"
    for entry in await changes.entries():
        assert entry["actor"] == {
            "tenant_id": "acme",
            "api_key_id": "key-a",
            "claimed": entry["actor"]["claimed"],
        }
        assert entry["source"]["user_agent"] == ADDRESS["User-Agent"]
        assert entry["source"]["x_forwarded_for"] == ADDRESS["X-Forwarded-For"]
        assert entry["before"] is not None or entry["after"] is not None
        assert re.fullmatch(r"[a-z_]+\.[a-z_]+", entry["action"])


async def _runs(changes: Changes) -> None:
    run_id = (await changes.http.post("/runs", json={"flow_name": "f"})).json()["run_id"]
    assert await changes.entries() == [], "submitting is no change"
    entry = await changes.make("POST", "/runs/{run_id}/cancel", run_id, json={"reason": "wrong month"})
    assert (entry["target"], entry["before"]) == ({"kind": "run", "id": run_id}, {"status": "PENDING"})
    assert entry["after"] == {"status": "CANCELLING", "reason": "wrong month"}
    ended = new_run_id()
    snapshot = a_snapshot(RunStatus.COMPLETED, run_id=ended, tenant_id="acme", tag="default")
    await changes.gateway.backend.runs.create(ended, snapshot)
    entry = await changes.make("POST", "/runs/{run_id}/retry", ended)
    assert entry["after"]["run_id"] != ended


async def _fleet(changes: Changes) -> None:
    await changes.gateway.backend.workers.create("w", a_worker(worker_id="w"))
    entry = await changes.make("PATCH", "/workers/{worker_id}", "w", json={"hidden": True})
    assert (entry["action"], entry["before"], entry["after"]) == (
        "worker.hide",
        {"hidden": False},
        {"hidden": True},
    )
    entry = await changes.make("PATCH", "/workers/{worker_id}", "w", json={"hidden": False})
    assert entry["action"] == "worker.show"
    files = {"wheel": (wheel_name(), a_wheel(), "application/octet-stream")}
    entry = await changes.make("POST", "/wheels", files=files)
    assert entry["after"]["size_bytes"] == len(a_wheel())
    entry = await changes.make("DELETE", "/wheels/{wheel_name}", wheel_name())
    assert (entry["before"]["size_bytes"], entry["after"]) == (len(a_wheel()), None)
    await changes.make("POST", "/queues/{tag}/pause", "default")
    await changes.make("POST", "/queues/{tag}/resume", "default")


async def _flows(changes: Changes) -> None:
    await changes.make("PUT", "/flows/{name}", "f", json={"timeout_sec": 5})
    await changes.make("POST", "/flows/{name}/pause", "f")
    await changes.make("POST", "/flows/{name}/resume", "f")
    limit = {"match": {"flow": "f"}, "max_running": 2}
    channel = {"type": "slack", "url": "https://hooks.slack.com/services/T0/B0/s3cret"}
    entry = await changes.make("PUT", "/channels/{name}", "ops", json=channel)
    assert "s3cret" not in str(entry)
    await changes.make("PUT", "/alerts/{name}", "pager", json={"on": ["run.failed"], "channel": "ops"})
    happening = Happening(kind=AlertKind.RUN_FAILED, tenant_id="acme", at=NOW, subject="run", occurrence="")
    stored = await changes.gateway.backend.alerts.definitions.get("alert.acme.pager")
    assert stored is not None
    assert isinstance(stored.value, Alert)
    delivery = given_up(
        new_delivery(stored.value, happening, suppressed=0, number=1, turn=1, now=NOW), "no", NOW
    )
    await changes.gateway.backend.alerts.deliveries.create(delivery.id, delivery)
    await changes.make("POST", "/deliveries/{delivery_id}/replay", delivery.id)
    await changes.make("DELETE", "/alerts/{name}", "pager")
    await changes.make("DELETE", "/channels/{name}", "ops")
    await changes.make("PUT", "/limits/{name}", "two", json=limit)
    entry = await changes.make("DELETE", "/limits/{name}", "two")
    assert entry["before"]["max_running"] == 2
    entry = await changes.make("PUT", "/secrets/{name}", "db", json={"value": "hunter2"})
    assert (entry["action"], entry["target"]) == ("secret.put", {"kind": "secret", "id": "db"})
    assert (entry["before"], entry["after"]["value"]) == (None, "•••")
    entry = await changes.make("DELETE", "/secrets/{name}", "db")
    assert (entry["before"]["value"], entry["after"]) == ("•••", None)
    await changes.make("PUT", "/variables/{name}", "rows", json={"value": 5})
    entry = await changes.make("DELETE", "/variables/{name}", "rows")
    assert entry["before"] == {"value": 5}


async def _schedules(changes: Changes) -> None:
    route = "/schedules/{schedule_id}"
    await changes.make("PUT", route, "hourly", json=SCHEDULE)
    await changes.make("POST", f"{route}/pause", "hourly")
    await changes.make("POST", f"{route}/resume", "hourly")
    await changes.make("POST", f"{route}/trigger", "hourly")
    past = {"from": "2026-01-01T00:00:00+00:00", "to": "2026-01-01T03:00:00+00:00"}
    await changes.make("POST", f"{route}/backfill", "hourly", json=past)
    await changes.make("DELETE", route, "hourly")


async def _executions(changes: Changes) -> None:
    entry = await changes.make("PUT", "/graphs/{graph_id}", "approval", json=APPROVAL)
    assert (entry["before"], entry["after"]["version"]) == (None, 1)
    executions = Executions(changes.http)
    await executions.create(execution_id="e-1", start=False, input={"ym": "2026-02"})
    route = "/executions/{execution_id}"
    await changes.make("POST", f"{route}/start", "e-1")
    await executions.until_node("e-1", "book", "READY")
    await changes.make("POST", f"{route}/nodes/{{node_id}}/start", "e-1", "book")
    await changes.make("POST", f"{route}/nodes/{{node_id}}/progress", "e-1", "book", json={"progress": 50})
    await changes.make("POST", f"{route}/nodes/{{node_id}}/wait", "e-1", "book")
    await changes.make("POST", f"{route}/nodes/{{node_id}}/request-resume", "e-1", "book")
    claim = {"actor": {"kind": "external", "id": "erp"}, "data": {"card": "card-of-acme"}}
    entry = await changes.make("POST", f"{route}/nodes/{{node_id}}/resume", "e-1", "book", json=claim)
    assert (entry["action"], entry["target"]) == ("node.resume", {"kind": "execution", "id": "e-1"})
    assert entry["actor"]["claimed"] == "external:erp"
    assert "card-of-acme" not in str(entry), "values are in the execution's own log"
    await changes.make("POST", f"{route}/nodes/{{node_id}}/fail", "e-1", "book", json={"error": "late"})
    await changes.make("POST", f"{route}/cancel", "e-1")
    await executions.until_ended("e-1")
    await changes.make("POST", f"{route}/archive", "e-1")
    entry = await changes.make("POST", f"{route}/rerun", "e-1")
    assert entry["after"]["execution_id"] != "e-1"
    events = await executions.events("e-1")
    assert {event["actor"]["api_key_id"] for event in events if event["actor"]["kind"] != "system"} == {
        "key-a"
    }


async def _commands(changes: Changes) -> None:
    executions = Executions(changes.http)
    await executions.register("by-hand", {"nodes": {"a": {"type": "task", "external": True}}})
    await executions.create("by-hand", execution_id="e-2")
    await executions.until_node("e-2", "a", "READY")
    route = "/executions/{execution_id}"
    command = {"command": "StartNode", "node_id": "a"}
    entry = await changes.make("POST", f"{route}/commands", "e-2", json=command)
    assert (entry["action"], entry["before"]["node"]["status"], entry["after"]["node"]["status"]) == (
        "node.start",
        "READY",
        "RUNNING",
    )
    await changes.make("POST", f"{route}/nodes/{{node_id}}/succeed", "e-2", "a")
    await executions.register("chain", APPROVAL)
    await executions.create("chain", execution_id="e-3", input={"ym": "x"})
    await changes.make("POST", f"{route}/nodes/{{node_id}}/ready", "e-3", "report")
    await executions.register("shop", {"nodes": {"paid": {"type": "wait", "message": "paid"}}})
    await executions.create("shop", execution_id="e-4")
    message = {"name": "paid", "data": {"card": "card-of-acme"}}
    entry = await changes.make("POST", f"{route}/messages", "e-4", json=message)
    assert entry["action"] == "execution.message"
    assert "card-of-acme" not in str(entry)


async def _events(changes: Changes) -> None:
    action = {"flow_name": "f", "concurrency": "one"}
    await changes.make("PUT", f"{ACTIONS}/{{key}}", "close.month", json=action)
    await changes.make("PUT", f"{TEMPLATES}/{{template_id}}", "close", json=a_template())
    source = {"kind": "standard", "secrets": [SOURCE_SECRET]}
    entry = await changes.make("PUT", f"{SOURCES}/{{source_id}}", "erp", json=source)
    assert entry["after"]["secrets"] == ["•••"]
    first = await changes.http.post(URL, json={"idempotency_key": "a"})
    queued = await changes.http.post(URL, json={"idempotency_key": "b"})
    assert queued.json()["queued"] is True
    job_id = (await changes.http.get(f"{URL}/retry-jobs")).json()["jobs"][0]["id"]
    await changes.make("POST", f"{URL}/retry-jobs/{{job_id}}/discard", job_id)
    await changes.make("POST", f"{URL}/retry-jobs/{{job_id}}/retry", job_id)
    await changes.make("POST", f"{URL}/retry-jobs/drain")
    await changes.http.post(f"/runs/{first.json()['run_id']}/cancel")
    await changes.make("POST", f"{URL}/{{event_id}}/replay", first.json()["event_id"])
    settings = f"{URL}/notification-settings"
    entry = await changes.make("POST", settings, json={"webhook_url": WEBHOOK})
    assert "KEYKEYKEY" not in str(entry)
    await changes.make("POST", f"{settings}/test")
    for route, name in ((ACTIONS + "/{key}", "close.month"), (TEMPLATES + "/{template_id}", "close")):
        await changes.make("DELETE", route, name)
    entry = await changes.make("DELETE", f"{SOURCES}/{{source_id}}", "erp")
    assert SOURCE_SECRET not in str(entry)


async def _keys(changes: Changes) -> None:
    entry = await changes.make("POST", "/api-keys", json={"scopes": ["read"], "description": "page"})
    assert (entry["after"]["scopes"], entry["after"]["api_key"]) == (["read"], "•••")
    entry = await changes.make("DELETE", "/api-keys/{key_id}", entry["target"]["id"])
    assert (entry["before"]["revoked_at"], entry["after"]["revoked_at"] is None) == (None, False)


async def _operations(changes: Changes) -> None:
    """Dead letters, bulk operations and deletes."""
    backend, ended = changes.gateway.backend, [new_run_id() for _ in range(2)]
    for number, run_id in enumerate(ended):
        run = a_snapshot(RunStatus.FAILED, run_id=run_id, tenant_id="acme", tag="default")
        await backend.runs.create(run_id, run)
        letter = DeadLetter(
            timestamp=NOW,
            reason=DlqReason.EXECUTION_ERROR,
            error="no",
            run_id=run_id,
            flow_name="f",
            subject="pyoco.work.default",
        )
        await backend.dead_letters.publish(letter, "default", "acme")
        verb = ("redrive", "discard")[number]
        entry = await changes.make("POST", f"/dead-letters/{{letter_id}}/{verb}", str(number + 1))
        assert entry["target"] == {"kind": "dead_letter", "id": str(number + 1)}
    await changes.make("DELETE", "/runs/{run_id}", ended[0])
    await changes.make("DELETE", "/executions/{execution_id}", "e-1")
    await backend.workers.create("gone", a_worker(worker_id="gone", state=WorkerState.STOPPED_GRACEFUL))
    await changes.make("DELETE", "/workers/{worker_id}", "gone")
    slow = {"action": "retry", "ids": ended[1:], "max_per_sec": 0.1}
    entry = await changes.make("POST", "/bulk", json=slow)
    await changes.make("POST", "/bulk/{bulk_id}/cancel", entry["target"]["id"])


async def test_a_refused_change_leaves_no_record(changes: Changes) -> None:
    """By any route: with a body that is not JSON, of something that is not there, without the scope."""
    reading = await new_key(changes.gateway.backend.api_keys, "acme", "reading", Scope.READ)
    for method, route in audited():
        path = re.sub(r"\{\w+\}", "nothing", route)
        answer = await changes.http.request(method, path, headers=reading)
        assert answer.status_code == 403, (method, route)
        without_effect = ("/flows/{name}/resume", "/queues/{tag}/resume", f"{URL}/retry-jobs/drain")
        answer = await changes.http.request(method, path, content=b"{")
        assert answer.status_code >= 400 or route in without_effect, (method, route)
    assert await changes.entries() == []


async def test_a_schedule_that_could_not_be_triggered_leaves_no_record(changes: Changes) -> None:
    graph = {"nodes": {"a": {"type": "task", "flow": "f"}}}
    await changes.make("PUT", "/graphs/{graph_id}", "g", json=graph)
    await changes.make("PUT", "/schedules/{schedule_id}", "s", json={**SCHEDULE, "target": {"graph": "g"}})
    await changes.gateway.backend.graphs.remove("acme.g", None)
    count = len(await changes.entries())
    answer = await changes.http.post("/schedules/s/trigger")
    assert answer.status_code == 409, answer.text
    assert len(await changes.entries()) == count


async def test_what_changes_nothing_leaves_no_record(changes: Changes) -> None:
    run_id = (await changes.http.post("/runs", json={"flow_name": "f"})).json()["run_id"]
    await changes.make("POST", "/runs/{run_id}/cancel", run_id)
    await changes.make("PUT", "/graphs/{graph_id}", "g", json={"nodes": {"a": {"type": "task", "flow": "f"}}})
    count = len(await changes.entries())
    again = {"nodes": {"a": {"type": "task", "flow": "f"}}}
    for request in (
        changes.http.post(f"/runs/{run_id}/cancel"),
        changes.http.put("/graphs/g", json=again),
        changes.http.post("/flows/f/resume"),
    ):
        assert (await request).status_code == 200
    assert len(await changes.entries()) == count


async def test_the_trail_is_filtered_paged_and_exported(changes: Changes) -> None:
    for name in ("a", "b", "c"):
        await changes.make("PUT", "/schedules/{schedule_id}", name, json=SCHEDULE)
    other = await new_key(changes.gateway.backend.api_keys, "acme", "key-b", *Scope)
    answer = await changes.http.delete("/schedules/b", headers=other)
    assert answer.status_code == 200
    assert [entry["action"] for entry in await changes.entries(target="schedule/b")] == [
        "schedule.delete",
        "schedule.put",
    ]
    assert [entry["target"]["id"] for entry in await changes.entries(action="schedule.put")] == [
        "c",
        "b",
        "a",
    ]
    (deleted,) = await changes.entries(key_id="key-b")
    assert deleted["action"] == "schedule.delete"
    assert await changes.entries(since=deleted["at"] + 0.001) == []
    assert len(await changes.entries(until=deleted["at"])) == 4
    lines = await changes.http.get("/audit", params={"format": "jsonl", "action": "schedule.put"})
    assert lines.headers["content-type"].startswith("application/x-ndjson")
    assert len(lines.text.splitlines()) == 3


async def test_concurrent_cancels_of_a_run_are_each_answered(changes: Changes) -> None:
    run_id = (await changes.http.post("/runs", json={"flow_name": "f"})).json()["run_id"]
    answers: list[httpx2.Response] = await asyncio.gather(
        *(changes.http.post(f"/runs/{run_id}/cancel") for _ in range(5))
    )
    assert {answer.status_code for answer in answers} == {200}
    assert 1 <= len(await changes.entries(action="run.cancel")) <= 5
