"""Templates, actions, sources, summaries, retry jobs and replays over HTTP; and whose they are."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.domain.events.sources import Source
from pyoco_server.usecases.events.receive import IN_FLIGHT
from pyoco_server.usecases.events.start import StartTemplate
from support.events import ACTION, URL, a_template, define, events_gateway, put, records, run_ids, run_params
from support.gateway import RunningGateway, memory_app, new_key
from support.waiting import until

TEMPLATES, ACTIONS, SOURCES = "/api/workflow-templates", "/api/workflow-actions", "/api/workflow-sources"
SECRET = "a-secret-that-is-long-enough"  # noqa: S105


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with events_gateway() as found:
        yield found


async def failing(self: StartTemplate, *_: Any) -> None:
    raise ZeroDivisionError


# Templates


async def test_a_template_is_made_read_changed_and_removed(gateway: RunningGateway) -> None:
    http = gateway.client
    made = await put(http, f"{TEMPLATES}/new", a_template(notes="x"))
    assert (made["id"], made["notes"], made["updated_at"][-1]) == ("new", "x", "Z")
    assert (await http.get(f"{TEMPLATES}/new")).json() == made
    assert [one["id"] for one in (await http.get(TEMPLATES)).json()["items"]] == ["close", "new"]
    assert (await http.delete(f"{TEMPLATES}/new")).json() == {"id": "new", "deleted": True}
    for method in ("GET", "DELETE"):
        answer = await http.request(method, f"{TEMPLATES}/new")
        assert (answer.status_code, answer.json()["err_id"]) == (404, "ERR-PYOCO-0042")


async def test_a_change_that_would_undo_somebodys_is_a_conflict(gateway: RunningGateway) -> None:
    http, where = gateway.client, f"{TEMPLATES}/close"
    read = (await http.get(where)).json()["updated_at"]
    newer = await put(http, where, a_template(name="mine"), **{"If-Match": f'"{read}"'})
    assert newer["updated_at"] != read
    lost = await http.put(where, json=a_template(name="yours"), headers={"If-Match": read})
    assert (lost.status_code, lost.json()["err_id"]) == (409, "ERR-PYOCO-0043")
    assert (await http.delete(where, headers={"If-Match": read})).status_code == 409
    assert (await http.get(where)).json()["name"] == "mine"
    absent = await http.put(f"{TEMPLATES}/absent", json=a_template(), headers={"If-Match": read})
    assert absent.status_code == 409


async def test_two_changes_within_a_millisecond_are_told_apart(gateway: RunningGateway) -> None:
    seen = [(await put(gateway.client, f"{TEMPLATES}/close", a_template()))["updated_at"] for _ in range(20)]
    assert len(set(seen)) == 20
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"steps": [{"id": "a", "action": "x", "trigger_kind": "after_previous"}]}, "step 1 ('a')"),
        ({"steps": []}, "steps"),
        ({"steps": [{"id": "a", "action": "x", "trigger_kind": "nonsense"}]}, "trigger_kind"),
        ({"year": 2026, "month": 0}, "year, month"),
        ({"surplus": 1}, "surplus"),
        ({"name": None}, "name"),
    ],
)
async def test_a_bad_template_is_refused_with_its_place(
    gateway: RunningGateway, changes: dict[str, Any], problem: str
) -> None:
    answer = await gateway.client.put(f"{TEMPLATES}/bad", json=a_template(**changes))
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    assert problem in answer.text


async def test_a_template_is_started_by_hand_whatever_starts_it_otherwise(gateway: RunningGateway) -> None:
    await define(gateway.client, "manual", trigger="manual_start")
    for template_id in ("manual", "close"):
        answer = await gateway.client.post(f"{TEMPLATES}/{template_id}/start", json={"data": {"x": 1}})
        assert answer.status_code == 200, answer.text
        params = await run_params(gateway, answer.json()["run_id"])
        assert (params["event"], params["trigger"]["source"]) == ({"x": 1}, "manual")
    assert [record.status for record in records(gateway, "workflow_template_start")] == ["success"] * 2
    assert records(gateway) == [], "it is no event"
    missing = await gateway.client.post(f"{TEMPLATES}/nope/start")
    assert (missing.status_code, missing.json()["reason_class"]) == (404, "template_not_found")


async def test_a_start_by_hand_with_a_key_happens_once(gateway: RunningGateway) -> None:
    answers = [
        (await gateway.client.post(f"{TEMPLATES}/close/start", json={"idempotency_key": "k"})).json()
        for _ in range(2)
    ]
    assert [answer["duplicate"] for answer in answers] == [False, True]
    assert len(run_ids(gateway)) == 1


# Actions


async def test_an_action_is_made_read_and_removed(gateway: RunningGateway) -> None:
    http = gateway.client
    made = await put(http, f"{ACTIONS}/a.b", {"flow_name": "f", "tag": "cpu", "concurrency": "one"})
    assert (made["key"], made["tag"], made["concurrency"], made["params"]) == ("a.b", "cpu", "one", {})
    assert (await http.get(f"{ACTIONS}/a.b")).json() == made
    assert [one["key"] for one in (await http.get(ACTIONS)).json()["items"]] == ["a.b", ACTION]
    assert (await http.delete(f"{ACTIONS}/a.b")).status_code == 200
    assert (await http.get(f"{ACTIONS}/a.b")).json()["detail"] == "Workflow action not found."
    assert (await http.delete(f"{ACTIONS}/a.b")).status_code == 404


@pytest.mark.parametrize("body", [{}, {"flow_name": "f", "graph_id": "g"}, {"flow_name": "f", "x": 1}, []])
async def test_a_bad_action_is_refused(gateway: RunningGateway, body: Any) -> None:
    assert (await gateway.client.put(f"{ACTIONS}/bad", json=body)).status_code == 422


# Signed events


def signed(body: bytes, **headers: str) -> dict[str, Any]:
    digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    return {"content": body, "headers": {"x-hub-signature-256": f"sha256={digest}", **headers}}


async def test_a_signed_event_needs_no_token_and_no_key() -> None:
    async with memory_app(http_auth_mode="api_key", workflow_event_token="x" * 20) as gateway:
        acme = await new_key(gateway.backend.api_keys, "acme", "key-a")
        gateway.client.headers.update(acme)
        await define(gateway.client, action="push")
        made = await put(gateway.client, f"{SOURCES}/gh", {"kind": "github", "secrets": [SECRET]})
        assert SECRET not in str(made)
        assert made["secrets"] == 1
        shown = (await gateway.client.get(SOURCES)).json()["items"]
        assert (shown, (await gateway.client.get(f"{SOURCES}/gh")).json()) == ([made], made)
        del gateway.client.headers["X-API-Key"]
        event = signed(b'{"ref": "main"}', **{"x-github-event": "push", "x-github-delivery": "d1"})
        answers = [await gateway.client.post(made["events_path"], **event) for _ in range(2)]
        assert [answer.json()["duplicate"] for answer in answers] == [False, True]
        run = await gateway.backend.runs.get(answers[0].json()["run_id"])
        assert run is not None
        assert (run.value.tenant_id, run.value.params["event"]) == ("acme", {"ref": "main"})


async def test_a_forged_event_is_refused_even_with_a_token() -> None:
    async with events_gateway(workflow_event_token="the-token") as gateway:  # noqa: S106
        await put(gateway.client, f"{SOURCES}/gh", {"kind": "github", "secrets": [SECRET]})
        token = {"x-workflow-event-token": "the-token"}
        forged = [
            {"params": {"source": "gh"}, "headers": token},
            {"params": {"signature_source": "gh"}, "headers": token},
            {"params": {"signature_source": "nobody"}, "headers": token},
            {"params": {"signature_source": "a.b"}, "headers": token},
            {"params": {"signature_source": "gh", "tenant": "acme"}, "headers": token},
        ]
        for options in forged:
            answer = await gateway.client.post(URL, json={}, **options)  # type: ignore[arg-type]
            assert (answer.status_code, answer.json()["detail"]) == (401, "Invalid workflow event signature.")
        assert [record.details.reason_class for record in records(gateway)] == ["auth"] * 5
        assert run_ids(gateway) == set()


async def test_a_source_that_is_not_registered_is_a_plain_field_of_the_query() -> None:
    """D37: `source` is a field of the contract; the token is asked for as ever."""
    async with events_gateway(workflow_event_token="the-token") as gateway:  # noqa: S106
        token = {"x-workflow-event-token": "the-token"}
        for query, body, expected in (("erp", {}, "erp"), ("erp", {"source": "cron"}, "cron")):
            answer = await gateway.client.post(URL, params={"source": query}, json=body, headers=token)
            assert answer.status_code == 200, answer.text
            params = await run_params(gateway, answer.json()["run_id"])
            assert params["trigger"]["source"] == expected
        stranger = await gateway.client.post(URL, params={"source": "erp"}, json={})
        assert (stranger.status_code, stranger.json()["detail"]) == (401, "Invalid workflow event token.")
        long = await gateway.client.post(URL, params={"source": "x" * 201}, json={}, headers=token)
        assert long.status_code == 422


async def test_githubs_ping_is_answered_and_recorded_and_starts_nothing(gateway: RunningGateway) -> None:
    """D43"""
    http = gateway.client
    await put(http, f"{SOURCES}/gh", {"kind": "github", "secrets": [SECRET]})
    await put(http, f"{SOURCES}/bound", {"kind": "github", "secrets": [SECRET], "template_id": "close"})
    ping = signed(b'{"zen": "Keep it logically awesome."}', **{"x-github-event": "ping"})
    for source in ("gh", "bound"):
        answer = await http.post(f"{URL}?source={source}", **ping)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert (found["status"], found["reason_code"], found["triggered"]) == ("ok", "ping", False)
        record = records(gateway)[-1]
        assert (record.event_id, record.status, record.details.event_name) == (
            found["event_id"],
            "skipped",
            "ping",
        )
        assert (record.details.reason_code, record.details.reason) == (
            "ping",
            "webhook ping; starts nothing",
        )
    assert run_ids(gateway) == set()
    forged = await http.post(f"{URL}?source=gh", content=b"{}", headers={"x-github-event": "ping"})
    assert forged.status_code == 401
    await define(http, "pings", action="ping")
    assert (await http.post(f"{URL}?source=gh", **ping)).json()["triggered"] is False


async def test_a_captured_github_event_starts_nothing_under_another_delivery_id(
    gateway: RunningGateway,
) -> None:
    """D57: what identifies an event is signed; the id of its delivery is not."""
    http = gateway.client
    await define(http, "on-push", action="push")
    await put(http, f"{SOURCES}/gh", {"kind": "github", "secrets": [SECRET]})

    async def deliver(body: bytes, delivery: str, **headers: str) -> dict[str, Any]:
        event = signed(body, **{"x-github-event": "push", "x-github-delivery": delivery, **headers})
        found: dict[str, Any] = (await http.post(f"{URL}?source=gh", **event)).json()
        return found

    first = await deliver(b'{"after": "1"}', "d-1")
    redelivered = await deliver(b'{"after": "1"}', "d-1")
    captured = await deliver(b'{"after": "1"}', "d-2", **{"x-idempotency-key": "other", "webhook-id": "w"})
    assert [one["duplicate"] for one in (first, redelivered, captured)] == [False, True, True]
    assert (await deliver(b'{"after": "2"}', "d-1"))["duplicate"] is False, "another event"
    settings = {"kind": "github", "secrets": [SECRET], "key_of": "delivery"}
    assert (await put(http, f"{SOURCES}/gh", settings))["key_of"] == "delivery"
    assert (await deliver(b'{"after": "1"}', "d-3"))["idempotency_key"] == "d-3", "as the operator wants it"


async def test_sources_are_their_tenants_and_older_ones_stay_where_they_are() -> None:
    """D57: an id is no name among all tenants, and says nothing about another's."""
    async with memory_app(http_auth_mode="api_key", workflow_event_tenant="acme") as gateway:
        http, secrets = gateway.client, {"acme": SECRET, "other": SECRET[::-1]}
        old = Source(id="old", kind="github", secrets=(SECRET,), updated_at="", tenant_id="other")
        await gateway.backend.events.sources.create("old", old)
        for tenant, secret in secrets.items():
            http.headers.update(await new_key(gateway.backend.api_keys, tenant, f"key-{tenant}"))
            await define(http, action="push")
            made = await put(http, f"{SOURCES}/gh", {"kind": "github", "secrets": [secret]})
            assert made["events_path"] == f"{URL}?signature_source=gh&tenant={tenant}"
        assert [one["id"] for one in (await http.get(SOURCES)).json()["items"]] == ["gh", "old"]
        rotated = {"kind": "github", "secrets": [SECRET[::-1], SECRET]}
        await put(http, f"{SOURCES}/old", rotated)
        assert await gateway.backend.events.sources.get("other.old") is None
        del http.headers["X-API-Key"]

        async def tenant_of(query: str, secret: str, body: bytes) -> str | None:
            digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
            headers = {"x-hub-signature-256": f"sha256={digest}", "x-github-event": "push"}
            answer = await http.post(f"{URL}?{query}", content=body, headers=headers)
            if answer.status_code != 200:
                assert answer.status_code == 401, answer.text
                return None
            run = await gateway.backend.runs.get(answer.json()["run_id"])
            assert run is not None
            return run.value.tenant_id

        assert await tenant_of("source=gh&tenant=acme", SECRET, b'{"n": 1}') == "acme"
        assert await tenant_of("source=gh", SECRET, b'{"n": 2}') == "acme", "the tenant of events"
        assert await tenant_of("signature_source=gh&tenant=other", SECRET[::-1], b'{"n": 3}') == "other"
        assert await tenant_of("signature_source=gh&tenant=other", SECRET, b'{"n": 4}') is None
        assert await tenant_of("source=old", SECRET, b'{"n": 5}') == "other", "as its sender knows it"
        assert await tenant_of("source=old&tenant=other", SECRET, b'{"n": 6}') == "other"
        assert await tenant_of("signature_source=old&tenant=acme", SECRET, b'{"n": 7}') is None
        assert await tenant_of("signature_source=gh&tenant=a.b", SECRET, b'{"n": 8}') is None


async def test_a_source_can_be_removed_and_must_be_well_formed(gateway: RunningGateway) -> None:
    await put(gateway.client, f"{SOURCES}/gh", {"kind": "github", "secrets": [SECRET]})
    assert (await gateway.client.delete(f"{SOURCES}/gh")).status_code == 200
    assert (await gateway.client.get(f"{SOURCES}/gh")).status_code == 404
    for body in ({"kind": "other", "secrets": [SECRET]}, {"kind": "hmac", "secrets": []}, {"kind": "hmac"}):
        assert (await gateway.client.put(f"{SOURCES}/gh", json=body)).status_code == 422


async def test_a_cloud_event_is_understood_on_the_same_post(gateway: RunningGateway) -> None:
    headers = {"ce-specversion": "1.0", "ce-type": ACTION, "ce-source": "/erp", "ce-id": "1"}
    answers = [(await gateway.client.post(URL, json={"x": 1}, headers=headers)).json() for _ in range(2)]
    assert [answer["duplicate"] for answer in answers] == [False, True]
    params = await run_params(gateway, answers[0]["run_id"])
    assert (params["event"], params["trigger"]["source"]) == ({"x": 1}, "/erp")


# The summary


async def test_a_month_without_events_adds_up_to_nothing(gateway: RunningGateway) -> None:
    found = (await gateway.client.get(f"{URL}/summary?ym=2026-01")).json()
    assert (found["total"], found["recent"], found["by_reason_class"]) == (0, [], {})
    assert found["receipt_retention"] == {"ttl_days": 90, "max_receipts": 1000}
    assert found["retry_queue"] == {
        "total": 0,
        "due": 0,
        "by_status": {"pending": 0, "retrying": 0, "succeeded": 0, "discarded": 0, "escalated": 0},
    }


@pytest.mark.parametrize(
    "query",
    [
        "",
        "ym=2026",
        "ym=2026-13",
        "ym=2026-1",
        "ym=x",
        "ym=٢٠٢٦-٠١",
        "ym=2026-01&recent_limit=0",
        "ym=2026-01&recent_limit=201",
    ],
)
async def test_a_bad_query_of_the_summary_is_refused(gateway: RunningGateway, query: str) -> None:
    assert (await gateway.client.get(f"{URL}/summary?{query}")).status_code == 422


async def test_twenty_recent_events_are_shown_unless_more_are_wanted(gateway: RunningGateway) -> None:
    for _ in range(25):
        await gateway.client.post(URL)
    for query, expected in (("", 20), ("&recent_limit=1", 1), ("&recent_limit=200", 25)):
        found = (await gateway.client.get(f"{URL}/summary?ym=2026-02{query}")).json()
        assert (len(found["recent"]), found["total"]) == (expected, 25)


async def test_notifications_and_retries_are_not_counted_as_events(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gateway.client.post(f"{URL}/notification-settings/test")
    with monkeypatch.context() as patch:
        patch.setattr(StartTemplate, "_place_run", failing)
        await gateway.client.post(URL, json={"idempotency_key": "k"})
        await gateway.client.post(f"{URL}/retry-jobs/drain", json={"force": True})
    found = (await gateway.client.get(f"{URL}/summary?ym=2026-02")).json()
    assert (found["total"], found["by_status"]["failed"]) == (1, 1)
    assert found["retry_queue"]["by_status"]["retrying"] == 1


# Retry jobs


async def test_jobs_that_are_listed_without_their_data_are_counted(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StartTemplate, "_place_run", failing)
    for key in ("a", "b", "c", "d", "e"):
        answer = await gateway.client.post(URL, json={"idempotency_key": key, "data": "x" * 240 * 1024})
        assert answer.json()["queued"] is True
    await gateway.client.post(URL, json={"idempotency_key": "f"})
    listed = (await gateway.client.get(f"{URL}/retry-jobs")).json()
    has_data = [job["data"] is not None for job in listed["jobs"]]
    assert (has_data, listed["data_omitted"]) == ([False, True, True, True, True, True], 0)
    await gateway.client.post(URL, json={"idempotency_key": "g", "data": "x" * 240 * 1024})
    listed = (await gateway.client.get(f"{URL}/retry-jobs")).json()
    has_data = [job["data"] is not None for job in listed["jobs"]]
    assert (has_data, listed["data_omitted"]) == ([True, False, True, True, True, True, False], 1)


async def test_a_queued_event_is_listed_drained_and_succeeds(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(StartTemplate, "_place_run", failing)
        refused = (await gateway.client.post(URL, json={"idempotency_key": "k", "notes": "n"})).json()
    assert refused["queued"] is True
    listed = (await gateway.client.get(f"{URL}/retry-jobs")).json()
    assert (listed["status"], listed["total"], listed["due"]) == ("ok", 1, 0)
    (job,) = listed["jobs"]
    assert (job["template_id"], job["status"], job["attempts"], job["notes"]) == ("close", "pending", 0, "n")
    assert job["next_retry_at"] == refused["next_retry_at"]
    assert "tenant_id" not in job
    assert listed["policy"] == {
        "max_attempts": 3,
        "base_delay_seconds": 30,
        "terminal_ttl_days": 30,
        "max_jobs": 2000,
    }
    done = (await gateway.client.post(f"{URL}/retry-jobs/drain", json={"force": True})).json()
    assert (done["status"], done["processed"], done["succeeded"]) == ("ok", 1, 1)
    assert (done["retrying"], done["escalated"], done["discarded"], done["remaining_due"]) == (0, 0, 0, 0)
    assert done["queue"]["by_status"]["succeeded"] == 1
    assert run_ids(gateway) == {done["queue"]["jobs"][0]["last_run_id"]}


async def test_the_run_of_a_retried_event_is_the_one_that_was_claimed(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(StartTemplate, "_place_run", failing)
        await gateway.client.post(URL, json={"idempotency_key": "k"})
    (receipt,) = await gateway.backend.events.receipts.list_values()
    await gateway.client.post(f"{URL}/retry-jobs/drain", json={"force": True})
    assert run_ids(gateway) == {receipt.run_id}


@pytest.mark.parametrize("limit", [-1, 0, 1, 200, 1000])
async def test_a_limit_out_of_range_is_clamped(gateway: RunningGateway, limit: int) -> None:
    assert (await gateway.client.get(f"{URL}/retry-jobs?limit={limit}")).status_code == 200
    answer = await gateway.client.post(f"{URL}/retry-jobs/drain", json={"limit": limit})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "body", [{"force": "yes"}, {"force": 1}, {"limit": "x"}, {"limit": 1.5}, {"forced": True}, []]
)
async def test_a_bad_drain_is_refused(gateway: RunningGateway, body: Any) -> None:
    """D27: a field that nobody reads is among what is bad."""
    answer = await gateway.client.post(f"{URL}/retry-jobs/drain", json=body)
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")


async def test_a_job_can_be_tried_again_or_given_up_by_hand(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(StartTemplate, "_place_run", failing)
        await gateway.client.post(URL, json={"idempotency_key": "k"})
    job_id = (await gateway.client.get(f"{URL}/retry-jobs")).json()["jobs"][0]["id"]
    given_up = await gateway.client.post(f"{URL}/retry-jobs/{job_id}/discard")
    assert given_up.json()["job"]["status"] == "discarded"
    again = await gateway.client.post(f"{URL}/retry-jobs/{job_id}/retry")
    assert again.json()["job"]["status"] == "pending"
    assert (await gateway.client.post(f"{URL}/retry-jobs/drain")).json()["succeeded"] == 1
    assert (await gateway.client.post(f"{URL}/retry-jobs/{job_id}/retry")).status_code == 409
    assert (await gateway.client.post(f"{URL}/retry-jobs/nope/retry")).status_code == 404


# Replay


async def test_an_event_that_started_something_is_started_again(gateway: RunningGateway) -> None:
    body = {"idempotency_key": "k", "data": {"x": 1}, "year": 2027, "month": 3}
    first = (await gateway.client.post(URL, json=body)).json()
    again = (await gateway.client.post(f"{URL}/{first['event_id']}/replay")).json()
    assert (again["triggered"], again["run_id"] != first["run_id"]) == (True, True)
    params = [await run_params(gateway, answer["run_id"]) for answer in (first, again)]
    assert [found["event"] for found in params] == [{"x": 1}] * 2
    assert [found["ym"] for found in params] == ["2027-03"] * 2
    assert records(gateway)[-1].details.replay_of == first["event_id"]


async def test_an_event_that_was_refused_has_its_key_tried_again(gateway: RunningGateway) -> None:
    refused = (await gateway.client.post(URL, json={"template_id": "later", "event_id": "k"})).json()
    await define(gateway.client, "later")
    replayed = (await gateway.client.post(f"{URL}/{refused['event_id']}/replay")).json()
    assert (replayed["triggered"], replayed["idempotency_key"]) == (True, "k")
    repeated = (await gateway.client.post(URL, json={"template_id": "later", "event_id": "k"})).json()
    assert (repeated["duplicate"], repeated["run_id"]) == (True, replayed["run_id"])


async def test_what_is_not_there_or_was_never_read_cannot_be_replayed(gateway: RunningGateway) -> None:
    for missing in ("nonsense", "0190aaaa-bbbb-7ccc-8ddd-eeeeffff0001"):
        assert (await gateway.client.post(f"{URL}/{missing}/replay")).status_code == 404
    unread = (await gateway.client.post(URL, content=b"{")).json()["event_id"]
    assert (await gateway.client.post(f"{URL}/{unread}/replay")).status_code == 409


# Tenants


async def test_everything_of_events_is_its_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    """REQ-0017"""
    async with memory_app(http_auth_mode="api_key") as gateway:
        http = gateway.client
        ours = await new_key(gateway.backend.api_keys, "acme", "key-a")
        theirs = await new_key(gateway.backend.api_keys, "other", "key-b")
        http.headers.update(ours)
        await define(http)
        await put(http, f"{SOURCES}/gh", {"kind": "github", "secrets": [SECRET]})
        await http.post(
            f"{URL}/notification-settings",
            json={"webhook_url": "https://chat.googleapis.com/v1/spaces/A/messages?key=k&token=t"},
        )
        started = (await http.post(URL, json={"idempotency_key": "k"})).json()
        run = await gateway.backend.runs.get(started["run_id"])
        assert run is not None
        assert (run.value.tenant_id, run.value.api_key_id) == ("acme", "key-a")
        assert records(gateway)[0].actor.api_key_id == "key-a"
        with monkeypatch.context() as patch:
            patch.setattr(StartTemplate, "_place_run", failing)
            await http.post(URL, json={"idempotency_key": "queued"})
        job_id = (await http.get(f"{URL}/retry-jobs")).json()["jobs"][0]["id"]
        http.headers.update(theirs)
        for path in (TEMPLATES, ACTIONS, SOURCES):
            assert (await http.get(path)).json()["items"] == []
        for path in (f"{TEMPLATES}/close", f"{ACTIONS}/{ACTION}", f"{SOURCES}/gh"):
            for method in ("GET", "DELETE"):
                assert (await http.request(method, path)).status_code == 404
        assert (await http.post(URL, json={"template_id": "close"})).status_code == 404
        assert (await http.post(URL, json={"event_name": ACTION})).status_code == 404
        assert (await http.post(f"{TEMPLATES}/close/start")).status_code == 404
        assert (await http.post(f"{URL}/{started['event_id']}/replay")).status_code == 404
        assert (await http.post(f"{URL}/retry-jobs/{job_id}/discard")).status_code == 404
        theirs_too = await http.put(f"{SOURCES}/gh", json={"kind": "github", "secrets": [SECRET]})
        assert theirs_too.status_code == 200
        await http.delete(f"{SOURCES}/gh")
        assert (await http.get(f"{URL}/summary?ym=2026-02")).json()["total"] == 0
        assert (await http.get(f"{URL}/retry-jobs")).json()["total"] == 0
        assert (await http.get(f"{URL}/notification-settings")).json()["configured"] is False
        drained = await http.post(f"{URL}/retry-jobs/drain", json={"force": True})
        assert drained.json()["processed"] == 0
        await define(http)
        other = (await http.post(URL, json={"idempotency_key": "k"})).json()
        assert (other["duplicate"], other["run_id"] != started["run_id"]) == (False, True)


async def test_one_tenants_full_queues_and_receipts_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """D53, A16: receipts, retry jobs and kept resumes are counted for each tenant by itself."""
    limits = {
        "workflow_event_max_receipts": 3,
        "workflow_event_retry_max_jobs": 2,
        "workflow_event_max_resumes": 2,
    }
    async with memory_app(http_auth_mode="api_key", **limits) as gateway:
        http = gateway.client
        quiet = await new_key(gateway.backend.api_keys, "quiet", "key-q")
        loud = await new_key(gateway.backend.api_keys, "loud", "key-l")
        for key in (quiet, loud):
            http.headers.update(key)
            await define(http)
        http.headers.update(quiet)
        first = (await http.post(URL, json={"idempotency_key": "k"})).json()
        http.headers.update(loud)
        for number in range(10):
            assert (await http.post(URL, json={"idempotency_key": f"k{number}"})).status_code == 200
        with monkeypatch.context() as patch:
            patch.setattr(StartTemplate, "_place_run", failing)
            queued = [(await http.post(URL, json={"event_id": f"q{number}"})).json() for number in range(4)]
            assert [answer["queued"] for answer in queued] == [True, True, False, False]
            kept = [await http.post(URL, json={"wait_key": f"w{number}"}) for number in range(3)]
            assert [answer.status_code for answer in kept] == [200, 200, 503]
            http.headers.update(quiet)
            assert (await http.post(URL, json={"event_id": "q"})).json()["queued"] is True
            assert (await http.post(URL, json={"wait_key": "w"})).json()["kept"] is True
        again = (await http.post(URL, json={"idempotency_key": "k"})).json()
        assert (again["duplicate"], again["run_id"]) == (True, first["run_id"])


async def test_slow_senders_keep_nobody_waiting(gateway: RunningGateway) -> None:
    """A16: a stranger who names a source and sends nothing has no turn among the events."""
    await put(gateway.client, f"{SOURCES}/gh", {"kind": "github", "secrets": [SECRET]})
    is_over, begun = asyncio.Event(), []

    async def nothing() -> AsyncIterator[bytes]:
        yield b"{"
        begun.append(1)
        await is_over.wait()

    async def have_begun() -> int:
        return len(begun)

    slow = [
        asyncio.ensure_future(gateway.client.post(f"{URL}?source=gh", content=nothing()))
        for _ in range(2 * IN_FLIGHT)
    ]
    await until(have_begun, lambda number: number >= IN_FLIGHT)
    async with asyncio.timeout(20):
        assert (await gateway.client.post(URL, json={})).json()["triggered"] is True
    is_over.set()
    assert {(await one).status_code for one in slow} == {401}
