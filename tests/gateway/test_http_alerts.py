"""Alerts over HTTP: definitions, masks, refusals; what is noticed, sent, left out and replayed."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.domain.dead_letters import DeadLetter, DlqReason
from pyoco_server.domain.events.retry import JobStatus, RetryJob
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.usecases.alerts.notice import STATE
from pyoco_server.wiring.run_level import Tuning
from support.builders import a_snapshot, a_worker
from support.gateway import RunningGateway, another_gateway, memory_app, new_key
from support.receivers import HttpReceiver, http_receiver
from support.waiting import until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - of the specification
FAST = {
    "alerts_allow_private": True,
    "workflow_event_retry_base_delay_seconds": 0.01,
    "worker_disconnect_timeout_sec": 0.2,
}
QUICK = {"tuning": Tuning(alert_scan_sec=0.05)}


@pytest.fixture
async def world() -> AsyncIterator[RunningGateway]:
    async with memory_app(given=QUICK, **FAST) as opened:
        yield opened


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as opened:
        yield opened


async def put_channel(world: RunningGateway, receiver: HttpReceiver, name: str = "ops", **more: Any) -> Any:
    body = {"type": "webhook", "url": receiver.url, "secret": SECRET, **more}
    answer = await world.client.put(f"/channels/{name}", json=body)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


async def put_alert(world: RunningGateway, *kinds: str, name: str = "pager", **more: Any) -> Any:
    body = {"on": list(kinds), "channel": "ops", "cooldown_sec": 0, **more}
    answer = await world.client.put(f"/alerts/{name}", json=body)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def a_run(number: int, status: RunStatus = RunStatus.FAILED, **changed: Any) -> RunSnapshot:
    now = time.time()
    given = {"submitted_at": now, "updated_at": now, "end_time": now, "error": "boom", **changed}
    return replace(a_snapshot(status), run_id=f"0190c0de-0000-7000-8000-{number:012d}", **given)


async def store(world: RunningGateway, *runs: RunSnapshot) -> None:
    for run in runs:
        await world.backend.runs.create(run.run_id, run)


async def received(receiver: HttpReceiver, count: int) -> list[dict[str, Any]]:
    async def look() -> int:
        return len(receiver.messages)

    await until(look, lambda found: found >= count)
    return receiver.verified(SECRET)


async def deliveries(world: RunningGateway, **query: str) -> list[dict[str, Any]]:
    answer = await world.client.get("/deliveries", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def test_a_failed_run_is_sent_signed_with_what_the_contract_names(
    world: RunningGateway, receiver: HttpReceiver
) -> None:
    await store(world, a_run(0))  # before the alert: no news
    await put_channel(world, receiver)
    await put_alert(world, "run.failed")
    run = a_run(1, tag="cpu", flow_name="etl")
    await store(world, run)
    (message,) = await received(receiver, 1)
    assert message["type"] == "run.failed"
    assert message["timestamp"].endswith("Z")
    wanted = {"alert": "pager", "run_id": run.run_id, "flow_name": "etl", "tag": "cpu", "status": "FAILED"}
    assert wanted.items() <= message["data"].items()
    assert message["data"]["error"] == "boom"
    assert message["data"]["suppressed"] == 0
    names = {"execution_id", "node_id", "schedule_id", "worker_id", "limit", "reason"}
    assert names <= set(message["data"])

    async def look() -> list[dict[str, Any]]:
        return await deliveries(world, status="DELIVERED")

    (delivery,) = await until(look)
    assert delivery["event_id"] == receiver.messages[0].event_id
    assert (delivery["alert"], delivery["channel"]) == ("pager", "ops")
    assert delivery["attempts"] >= 1
    assert delivery["last_error"] is None
    assert delivery["delivered_at"] > 0


async def test_a_refused_message_is_sent_again_with_the_same_id_then_given_up(
    world: RunningGateway, receiver: HttpReceiver
) -> None:
    await put_channel(world, receiver)
    await put_alert(world, "run.failed")
    receiver.refuses = 2
    await store(world, a_run(1))
    await received(receiver, 1)
    receiver.refuses = 99
    await store(world, a_run(2))

    async def look() -> list[dict[str, Any]]:
        return await deliveries(world, status="FAILED")

    (failed,) = await until(look)
    assert failed["attempts"] == 3
    assert failed["last_error"] == "answered with HTTP 503"
    assert failed["next_attempt_at"] is None
    # A replay keeps id and body.
    receiver.refuses = 0
    before = (await world.client.get(f"/deliveries/{failed['id']}")).json()
    answer = await world.client.post(f"/deliveries/{failed['id']}/replay")
    assert answer.status_code == 200
    assert (answer.json()["id"], answer.json()["status"]) == (failed["id"], "PENDING")
    await received(receiver, 2)
    assert receiver.messages[1].event_id == failed["event_id"]
    assert receiver.messages[1].json == before["body"]


async def test_cooldown_counts_per_flow_and_the_next_message_reports_it(
    world: RunningGateway, receiver: HttpReceiver
) -> None:
    await put_channel(world, receiver)
    await put_alert(world, "run.failed", cooldown_sec=5)
    now = time.time()
    await store(world, *(a_run(number, flow_name="etl", end_time=now + number / 10) for number in range(4)))
    await store(world, a_run(10, flow_name="other", end_time=now))
    await store(world, a_run(11, flow_name="etl", end_time=now + 6))
    messages = await received(receiver, 3)
    found = [(one["data"]["flow_name"], one["data"]["suppressed"]) for one in messages]
    assert sorted(found) == [("etl", 0), ("etl", 3), ("other", 0)]
    assert len(await deliveries(world)) == 3  # what was left out is not one


async def test_a_filter_chooses_and_one_without_a_result_lets_nothing_pass(
    world: RunningGateway, receiver: HttpReceiver
) -> None:
    await put_channel(world, receiver)
    await put_alert(world, "run.failed", filter='tag == "gpu" && "night" in tags && params.size > 3')
    await store(world, a_run(1, tag="gpu", tags=("night",), params={"size": 3}))
    await store(world, a_run(2, tag="gpu", tags=("night",), params={}))
    await store(world, a_run(3, tag="gpu", tags=("night",), params={"size": 4}))
    (message,) = await received(receiver, 1)
    assert message["data"]["run_id"].endswith("3")


async def test_what_lasts_too_long_is_sent_once(world: RunningGateway, receiver: HttpReceiver) -> None:
    await put_channel(world, receiver)
    await put_alert(world, "run.late", "run.stuck", "worker.lost", late_after_sec=0.1)
    late = a_run(1, RunStatus.PENDING, end_time=None)
    running = a_run(2, RunStatus.RUNNING, end_time=None, submitted_at=time.time() + 60)
    await store(world, late, running)
    worker = replace(a_worker(), worker_id="gone", last_seen_at=time.time(), last_heartbeat_at=time.time())
    await world.backend.workers.create("gone", worker)
    messages = await received(receiver, 3)
    kinds = {one["type"]: one["data"] for one in messages}
    assert kinds["run.late"]["run_id"] == late.run_id
    assert kinds["run.stuck"]["run_id"] == running.run_id
    assert kinds["worker.lost"]["worker_id"] == "gone"
    # A run that fails after it was late: the second message comes after the first.
    await put_alert(world, "run.late", "run.failed", late_after_sec=0.1)
    stored = await world.backend.runs.get(late.run_id)
    assert stored is not None
    ended = replace(late, status=RunStatus.FAILED, end_time=time.time(), updated_at=time.time())
    await world.backend.runs.update(late.run_id, ended, stored.revision)
    messages = await received(receiver, 4)
    assert [one["type"] for one in messages[3:]] == ["run.failed"]


async def test_a_run_whose_worker_reports_is_not_stuck(receiver: HttpReceiver) -> None:
    """With many runs, a worker writes each of them more rarely than its own record."""
    async with memory_app(given=QUICK, **{**FAST, "worker_disconnect_timeout_sec": 2.0}) as world:
        await put_channel(world, receiver)
        await put_alert(world, "run.stuck")
        attended = a_run(1, RunStatus.RUNNING, worker_id="w", instance_id="i", end_time=None)
        alone = a_run(2, RunStatus.RUNNING, worker_id="x", instance_id="i", end_time=None)
        await store(world, attended, alone)
        record = a_worker(worker_id="w", instance_id="i")
        revision = await world.backend.workers.create("w", record)
        while not receiver.messages:
            seen = replace(record, last_seen_at=time.time())
            revision = await world.backend.workers.update("w", seen, revision)
            await asyncio.sleep(0.05)
        assert [one["data"]["run_id"] for one in await received(receiver, 1)] == [alone.run_id]
        messages = await received(receiver, 2)  # and now the worker is silent
        assert messages[1]["data"]["run_id"] == attended.run_id


async def test_dead_letters_and_escalated_events_are_sent(
    world: RunningGateway, receiver: HttpReceiver
) -> None:
    await put_channel(world, receiver)
    await put_alert(world, "dead_letter", "event.escalated")
    letter = DeadLetter(timestamp=time.time(), reason=DlqReason.MAX_DELIVER, error="no", flow_name="etl")
    await world.backend.dead_letters.publish(letter, "cpu")
    job = RetryJob(
        id="a" * 32,
        template_id="monthly",
        template_name="Monthly",
        action="flow",
        idempotency_key="key",
        status=JobStatus.ESCALATED,
        max_attempts=3,
        next_retry_at=0.0,
        created_at=time.time(),
        updated_at=time.time(),
        is_told=True,
    )
    await world.backend.events.retry_jobs.create(f"=.{job.id}", job)
    found = {one["type"]: one["data"] for one in await received(receiver, 2)}
    assert found["dead_letter"]["reason"] == "max_deliver"
    assert found["dead_letter"]["dead_letter_id"] == "1"
    assert found["event.escalated"]["template_id"] == job.template_id


async def all_delivered(world: RunningGateway, count: int) -> None:
    async def delivered() -> int:
        answer = await world.client.get("/deliveries", params={"status": "DELIVERED", "limit": 200})
        return len(answer.json()["items"])

    await until(delivered, partial(int.__eq__, count))


async def test_a_second_gateway_carries_on_and_nothing_is_sent_twice(receiver: HttpReceiver) -> None:
    async with memory_app(given=QUICK, **FAST) as first:
        await put_channel(first, receiver)
        await put_alert(first, "run.failed")
        await store(first, *(a_run(number) for number in range(20)))
        await received(receiver, 20)
        await all_delivered(first, 20)  # a message whose delivery is not on record yet is sent again
        backend = first.backend
        # The state of before its last turn, as after a kill between deliveries and state.
        stored = await backend.alerts.state.get(STATE)
        assert stored is not None
    again = replace(stored.value, positions={})
    await backend.alerts.state.update(STATE, again, stored.revision)
    async with another_gateway(first, first.app.state.gateway.levels._setup.config) as second:
        await store(second, a_run(99))
        messages = await received(receiver, 21)
        assert [one["data"]["run_id"] for one in messages].count(a_run(99).run_id) == 1
        assert len(messages) == 21


async def test_without_an_alert_there_is_no_lease_and_no_reading(
    world: RunningGateway, receiver: HttpReceiver
) -> None:
    await put_channel(world, receiver)
    await store(world, a_run(1))
    assert await world.backend.leases.get("alerts") is None
    assert await world.backend.alerts.state.get(STATE) is None
    await put_alert(world, "run.failed")

    async def lease() -> Any:
        return await world.backend.leases.get("alerts")

    await until(lease)
    assert (await world.client.delete("/alerts/pager")).status_code == 200
    await until(lease, lambda found: found is None)
    state = await world.backend.alerts.state.get(STATE)
    assert state is not None
    assert state.value.positions == {}


async def test_get_masks_secrets_and_a_generated_secret_is_shown_once(
    world: RunningGateway, receiver: HttpReceiver
) -> None:
    answer = await world.client.put("/channels/ops", json={"type": "webhook", "url": receiver.url})
    assert answer.status_code == 201
    assert answer.headers["cache-control"] == "no-store"
    assert answer.json()["secret"].startswith("whsec_")
    again = await world.client.put("/channels/ops", json={"type": "webhook", "url": receiver.url})
    assert (again.status_code, again.json()["secret"]) == (200, "•••")  # it is kept
    shown = (await world.client.get("/channels/ops")).json()
    assert shown["url"] == f"http://127.0.0.1:{receiver.port}/•••"
    assert (shown["type"], shown["host"], shown["secret"]) == ("webhook", "127.0.0.1", "•••")
    mail = {
        "type": "email", "host": "mail.example", "port": 587, "security": "starttls", "username": "u",
        "password": "hunter2", "from": "pyoco@example.org", "to": ["ops@example.org"],
    }  # fmt: skip
    assert (await world.client.put("/channels/mail", json=mail)).status_code == 201
    shown = (await world.client.get("/channels/mail")).json()
    assert (shown["password"], shown["from"], shown["to"]) == (
        "•••",
        "pyoco@example.org",
        ["ops@example.org"],
    )
    listed = await world.client.get("/channels", params={"limit": 1})
    assert [one["name"] for one in listed.json()["items"]] == ["mail"]
    rest = await world.client.get("/channels", params={"cursor": listed.json()["next_cursor"]})
    assert [one["name"] for one in rest.json()["items"]] == ["ops"]
    trail = (await world.client.get("/audit")).text
    for secret in ("s3cret", "t0ken", "hunter2", answer.json()["secret"]):
        assert secret not in trail + listed.text + rest.text


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/x",
        "https://127.0.0.1/x",
        "https://localhost/x",
        "https://10.1.2.3/x",
        "https://192.168.1.1/x",
        "https://169.254.169.254/latest",
        "https://[::1]/x",
        "https://[::ffff:127.0.0.1]/x",
        "https://[::ffff:a9fe:a9fe]/x",
        "https://[fd00::1]/x",
        "https://[fe80::1]/x",
        "https://[64:ff9b::7f00:1]/x",
        "https://[2002:7f00:1::]/x",
        "https://2130706433/x",
        "https://0x7f000001/x",
        "https://0.0.0.0/x",
        "https://metadata.google.internal/x",
        "https://user@example.com/x",
        "https://user:password@example.com/x",
        "https://100.64.0.1/x",
        "ftp://example.com/x",
        "https:///x",
        "https://example.com:99999/x",
        "x",
    ],
)
async def test_private_targets_are_refused(url: str) -> None:
    async with memory_app() as world:
        for kind in ("webhook", "slack", "teams", "google_chat"):
            answer = await world.client.put("/channels/ops", json={"type": kind, "url": url})
            assert answer.status_code == 422, (url, answer.text)
            assert "password" not in answer.json()["detail"] or "must not have" in answer.json()["detail"]
        assert (await world.client.get("/channels")).json()["items"] == []


async def test_a_private_target_is_refused_again_when_a_message_is_sent(receiver: HttpReceiver) -> None:
    """As if a name led elsewhere since it was defined."""
    async with memory_app(given=QUICK, **FAST) as world:
        await put_channel(world, receiver)
        await put_alert(world, "run.failed")
        backend = world.backend
    settings = {**FAST, "alerts_allow_private": False}
    async with memory_app(given=QUICK, **settings) as strict:
        for key in ("channel.=.ops", "alert.=.pager"):
            stored = await backend.alerts.definitions.get(key)
            assert stored is not None
            value = stored.value
            if key.startswith("channel"):
                value = replace(value, url=f"https://localhost:{receiver.port}/x")
            await strict.backend.alerts.definitions.create(key, value)
        await store(strict, a_run(1))

        async def look() -> list[dict[str, Any]]:
            return await deliveries(strict, status="FAILED")

        (failed,) = await until(look)
        assert "private" in failed["last_error"]
        assert receiver.attempts == 0


async def test_a_redirect_is_a_failure(world: RunningGateway, receiver: HttpReceiver) -> None:
    receiver.location = receiver.url
    await put_channel(world, receiver)
    await put_alert(world, "run.failed")
    await store(world, a_run(1))

    async def look() -> list[dict[str, Any]]:
        return await deliveries(world, status="FAILED")

    (failed,) = await until(look)
    assert failed["last_error"] == "answered with HTTP 302"
    assert receiver.attempts == 3  # one per attempt


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"on": []}, "on"),
        ({"on": ["run.unknown"]}, "on"),
        ({"on": ["run.late"]}, "late_after_sec"),
        ({"on": ["wait.overdue"]}, "late_after_sec"),
        ({"on": ["limit.waiting"]}, "late_after_sec"),
        ({"late_after_sec": 0}, "late_after_sec"),
        ({"cooldown_sec": -1}, "cooldown_sec"),
        ({"filter": "flow == 'x'"}, "flow"),
        ({"filter": "tag =="}, "filter"),
        ({"filter": "1 + 1"}, "filter"),
        ({"channel": "nobody"}, "nobody"),
        ({"unknown": 1}, "unknown"),
    ],
)
async def test_a_bad_alert_is_refused_by_name(
    world: RunningGateway, receiver: HttpReceiver, changed: dict[str, Any], named: str
) -> None:
    await put_channel(world, receiver)
    body = {"on": ["run.failed"], "channel": "ops", "cooldown_sec": 0, **changed}
    answer = await world.client.put("/alerts/pager", json=body)
    assert answer.status_code == 422
    assert named in str(answer.json()["detail"])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"type": "webhook"}, "url"),
        ({"type": "pigeon", "url": "https://example.com"}, "type"),
        ({"type": "webhook", "url": "http://127.0.0.1", "secret": "short"}, "secret"),
        ({"type": "webhook", "url": "http://127.0.0.1", "secret": "•••"}, "secret"),
        ({"type": "slack", "url": "http://127.0.0.1", "secret": SECRET}, "secret"),
        ({"type": "webhook", "url": "http://127.0.0.1", "host": "x"}, "host"),
        ({"type": "email", "host": "x", "port": 25, "security": "none", "from": "a@b"}, "to"),
        ({"type": "email", "host": "x", "port": 0, "security": "none", "from": "a@b", "to": ["a@b"]}, "port"),
        (
            {
                "type": "email",
                "host": "x",
                "port": 25,
                "security": "none",
                "from": "a@b\r\nBcc: x@y",
                "to": ["a@b"],
            },
            "from",
        ),
    ],
)
async def test_a_bad_channel_is_refused_by_name(
    world: RunningGateway, body: dict[str, Any], named: str
) -> None:
    answer = await world.client.put("/channels/ops", json=body)
    assert answer.status_code == 422
    assert named in str(answer.json()["detail"])


async def test_a_channel_in_use_is_not_deleted(world: RunningGateway, receiver: HttpReceiver) -> None:
    await put_channel(world, receiver)
    await put_alert(world, "run.failed")
    answer = await world.client.delete("/channels/ops")
    assert answer.status_code == 409
    assert "pager" in answer.json()["detail"]
    assert (await world.client.delete("/alerts/pager")).json() == {"name": "pager", "deleted": True}
    assert (await world.client.delete("/channels/ops")).status_code == 200
    assert (await world.client.delete("/channels/ops")).status_code == 404
    assert (await world.client.get("/alerts/pager")).status_code == 404
    for path in ("/deliveries/x", "/deliveries/0190c0de-0000-7000-8000-000000000000"):
        assert (await world.client.get(path)).status_code == 404


async def test_tenants_see_and_get_only_their_own(receiver: HttpReceiver) -> None:
    async with memory_app(given=QUICK, http_auth_mode="api_key", **FAST) as world:
        a, b = [await new_key(world.backend.api_keys, tenant, tenant * 8) for tenant in ("a", "b")]
        for key in (a, b):
            body = {"type": "webhook", "url": receiver.url, "secret": SECRET}
            assert (await world.client.put("/channels/ops", json=body, headers=key)).status_code == 201
        alert = {"on": ["run.failed"], "channel": "ops"}
        assert (await world.client.put("/alerts/pager", json=alert, headers=a)).status_code == 201
        assert (await world.client.get("/alerts/pager", headers=b)).status_code == 404
        await store(world, a_run(1, tenant_id="b"), a_run(2, tenant_id="a"))
        (message,) = await received(receiver, 1)
        assert message["data"]["run_id"].endswith("2")
        (delivery,) = (await world.client.get("/deliveries", headers=a)).json()["items"]
        assert (await world.client.get("/deliveries", headers=b)).json()["items"] == []
        for method, path in (("GET", ""), ("POST", "/replay")):
            answer = await world.client.request(method, f"/deliveries/{delivery['id']}{path}", headers=b)
            assert answer.status_code == 404
