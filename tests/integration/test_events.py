"""Workflow events on a real NATS, with several gateways."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.wiring import EmbeddedNats, open_events
from pyoco_server.wiring.gateway import Tuning
from support.events import ACTION, URL, a_template, define, lines_of, put
from support.gateway import gateway
from support.nats_server import jobs_waiting, messages_in, raw_nats, unique_config
from support.waiting import until


def patient(config: NatsBackendConfig) -> AbstractAsyncContextManager[httpx2.AsyncClient]:
    """However busy this machine is: it is about how many runs there are, not about how soon.

    The thousand clients share the gateway's loop here, and may keep it from reading answers for seconds.
    """
    return gateway(replace(config, jetstream_timeout_sec=30.0), tuning=Tuning(event_repeat_sec=30.0))


@pytest.fixture
async def two(config: NatsBackendConfig) -> AsyncIterator[list[httpx2.AsyncClient]]:
    """Gateways on one NATS, each with a file of its own."""
    first, second = (replace(config, audit_log_path=f"audit-{number}.jsonl") for number in (1, 2))
    async with patient(first) as one, patient(second) as other:
        await define(one)
        yield [one, other]


async def post(client: httpx2.AsyncClient, key: str | None = "k", **fields: Any) -> dict[str, Any]:
    answer = await client.post(URL, json={"idempotency_key": key, **fields} if key else fields)
    return {**answer.json(), "http": answer.status_code}


async def summary(client: httpx2.AsyncClient, ym: str = "2026-02") -> dict[str, Any]:
    async def look() -> httpx2.Response:
        return await client.get(f"{URL}/summary", params={"ym": ym, "recent_limit": 200})

    found: dict[str, Any] = (await until(look, lambda answer: answer.status_code == 200)).json()
    return found


async def runs_of(config: NatsBackendConfig) -> int:
    return await messages_in(config, f"KV_{config.runs_kv_bucket}")


async def test_fifty_posts_with_one_key_on_two_gateways_start_one_run(
    two: list[httpx2.AsyncClient], config: NatsBackendConfig
) -> None:
    answers = await asyncio.gather(*(post(two[number % 2]) for number in range(50)))
    assert Counter((answer["http"], answer["duplicate"]) for answer in answers) == {
        (200, False): 1,
        (200, True): 49,
    }
    assert len({answer["run_id"] for answer in answers}) == 1
    assert (await runs_of(config), await jobs_waiting(config)) == (1, 1)
    assert await messages_in(config, config.audit_stream) == 50


@pytest.mark.slow
async def test_a_thousand_equal_events_at_once_start_one_run_and_leave_a_thousand_records(
    config: NatsBackendConfig,
) -> None:
    """F16"""
    async with patient(config) as client:
        await define(client)
        answers = await asyncio.gather(*(post(client) for _ in range(1000)))
        counted = Counter((answer["http"], answer.get("duplicate")) for answer in answers)
        assert counted == {(200, False): 1, (200, True): 999}, {answer.get("detail") for answer in answers}
        assert len({answer["run_id"] for answer in answers}) == 1
        assert (await runs_of(config), await jobs_waiting(config)) == (1, 1)
        assert await messages_in(config, config.audit_stream) == 1000
        found = await summary(client)
        assert (found["total"], found["by_status"]["success"], found["by_status"]["skipped"]) == (
            1000,
            1,
            999,
        )
        assert len(lines_of("reports/audit_log.jsonl")) == 1000


async def test_different_keys_at_once_are_all_started(
    two: list[httpx2.AsyncClient], config: NatsBackendConfig
) -> None:
    answers = await asyncio.gather(*(post(two[number % 2], f"k{number}") for number in range(40)))
    assert len({answer["run_id"] for answer in answers}) == 40
    assert await jobs_waiting(config) == 40


async def test_a_batch_that_two_gateways_get_at_once_starts_each_event_once(
    two: list[httpx2.AsyncClient], config: NatsBackendConfig
) -> None:
    event = {"specversion": "1.0", "type": ACTION, "source": "/erp"}
    body = msgspec.json.encode([{**event, "id": str(number), "data": number} for number in range(20)])
    headers = {"content-type": "application/cloudevents-batch+json"}
    both = await asyncio.gather(*(client.post(URL, content=body, headers=headers) for client in two))
    assert [answer.status_code for answer in both] == [200, 200]
    one, other = (answer.json()["results"] for answer in both)
    assert [result["run_id"] for result in one] == [result["run_id"] for result in other]
    assert Counter(result["duplicate"] for result in one + other) == {False: 20, True: 20}
    assert (await runs_of(config), await jobs_waiting(config)) == (20, 20)
    assert await messages_in(config, config.audit_stream) == 40


async def test_an_action_that_runs_one_at_a_time_does_so_on_all_gateways(
    two: list[httpx2.AsyncClient], config: NatsBackendConfig
) -> None:
    await put(two[0], f"/api/workflow-actions/{ACTION}", {"flow_name": "flow", "concurrency": "one"})
    answers = await asyncio.gather(*(post(two[number % 2], f"k{number}") for number in range(10)))
    assert Counter(answer["http"] for answer in answers) == {200: 1, 409: 9}
    refused = next(answer for answer in answers if answer["http"] == 409)
    assert (refused["reason_class"], refused["queued"]) == ("run_conflict", True)
    assert await runs_of(config) == 1


async def test_what_one_gateway_wrote_the_other_adds_up(two: list[httpx2.AsyncClient]) -> None:
    """From the writer to the summary, and what is refused too."""
    assert (await post(two[0], "a"))["http"] == 200
    assert (await post(two[1], "a"))["duplicate"] is True
    assert (await post(two[0], template_id="nope", year=2026, month=2))["http"] == 404
    for client in two:

        async def look(client: httpx2.AsyncClient = client) -> dict[str, Any]:
            return await summary(client)

        found = await until(look, lambda found: found["total"] == 3)
        assert found["by_status"] == {"success": 1, "skipped": 1, "rejected": 1, "failed": 0, "unknown": 0}
        assert found["by_reason_class"] == {"duplicate": 1, "template_not_found": 1}
        assert found["duplicate"] == {"true": 1, "false": 2, "unknown": 0}
        assert [recent["status"] for recent in found["recent"]] == ["rejected", "skipped", "success"]


async def test_a_summary_shows_at_once_what_the_same_gateway_was_told(two: list[httpx2.AsyncClient]) -> None:
    await summary(two[0])
    for number in range(1, 20):
        await post(two[0], f"k{number}")
        assert (await summary(two[0]))["total"] == number


async def test_a_new_gateway_reads_the_records_of_others(
    two: list[httpx2.AsyncClient], config: NatsBackendConfig
) -> None:
    for number in range(5):
        await post(two[0], f"k{number}")
    async with gateway(replace(config, audit_log_path="")) as third:
        assert (await summary(third))["total"] == 5


async def test_drains_during_posts_start_every_event_once(
    two: list[httpx2.AsyncClient], config: NatsBackendConfig
) -> None:
    await put(two[0], f"/api/workflow-actions/{ACTION}", {"flow_name": "flow", "concurrency": "one"})
    first = await post(two[0], "first")
    queued = await asyncio.gather(*(post(two[0], f"k{number}") for number in range(8)))
    assert all(answer["queued"] for answer in queued)
    await put(two[0], f"/api/workflow-actions/{ACTION}", {"flow_name": "flow"})

    async def drain(client: httpx2.AsyncClient) -> dict[str, Any]:
        answer = await client.post(f"{URL}/retry-jobs/drain", json={"force": True, "limit": 50})
        assert answer.status_code in (200, 409), answer.text
        found: dict[str, Any] = answer.json()
        return found

    await asyncio.gather(
        *(drain(client) for client in two for _ in range(3)),
        *(post(two[number % 2], f"k{number % 8}") for number in range(32)),
    )
    await drain(two[0])
    shown = (await two[1].get(f"{URL}/retry-jobs")).json()
    assert shown["by_status"]["succeeded"] == 8
    last = await asyncio.gather(*(post(two[1], f"k{number}") for number in range(8)))
    assert all(answer["duplicate"] for answer in last)
    assert {answer["run_id"] for answer in last} == {job["last_run_id"] for job in shown["jobs"]}
    assert await runs_of(config) == 9
    assert first["http"] == 200


async def test_another_limit_of_receipts_counts_for_a_bucket_that_is_there(
    config: NatsBackendConfig,
) -> None:
    async with gateway(config) as client:
        await define(client)
        for number in range(5):
            await post(client, f"k{number}")
    async with gateway(replace(config, workflow_event_max_receipts=2)) as client:
        assert (await post(client, "k4"))["duplicate"] is True
        assert (await post(client, "k0"))["duplicate"] is False


async def test_a_template_changed_on_one_gateway_counts_on_the_other_at_once(
    two: list[httpx2.AsyncClient],
) -> None:
    for number in range(10):
        await put(two[number % 2], "/api/workflow-templates/close", a_template(action=f"action.{number}"))
        answer = await post(two[(number + 1) % 2], None, event_name=f"action.{number}")
        assert "action is not executable" in answer["detail"], answer


async def test_without_nats_an_event_is_503_never_queued_and_its_record_is_written_later(
    own_nats: EmbeddedNats,
) -> None:
    config = unique_config(own_nats.url)
    async with gateway(config) as client:
        await define(client)
        await summary(client)
        own_nats.stop()
        answer = await client.post(URL, json={"idempotency_key": "k"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        body = answer.json()
        assert (body["reason_class"], body["reason_code"]) == ("infra", "http_503")
        assert (body["retry_advice"], body["queued"]) == ("retry_with_backoff", False)
        assert [line["status"] for line in lines_of("reports/audit_log.jsonl")] == ["failed"]
        own_nats.start()

        async def again() -> dict[str, Any]:
            return await post(client)

        assert (await until(again, lambda found: found["http"] == 200))["triggered"] is True
        body_month = lines_of("reports/audit_log.jsonl")[0]["ym"]

        async def recorded() -> bool:
            found = await client.get(f"{URL}/summary", params={"ym": body_month, "recent_limit": 200})
            return found.status_code == 200 and body["event_id"] in found.text

        await until(recorded)


async def test_before_nats_is_there_an_event_is_503_and_in_the_file(own_nats: EmbeddedNats) -> None:
    own_nats.stop()
    async with gateway(unique_config(own_nats.url)) as client:
        answer = await client.post(URL, json={"idempotency_key": "k"})
        assert (answer.status_code, answer.json()["reason_class"]) == (503, "infra")
        assert [line["status"] for line in lines_of("reports/audit_log.jsonl")] == ["failed"]


async def test_gateways_that_start_at_once_import_a_file_together(config: NatsBackendConfig) -> None:
    """D38: whichever is asked first, every key of the file is known."""
    now = time.time()
    entries = {
        f"close:k{number}": {
            "template_id": "close",
            "idempotency_key": f"k{number}",
            "run_id": f"run-{number}",
            "created_at": now - 1000 + number,
        }
        for number in range(120)
    }
    directory = Path("files")
    await asyncio.to_thread(directory.mkdir)
    await asyncio.to_thread(
        (directory / "receipts.json").write_bytes, msgspec.json.encode({"receipts": entries})
    )
    settings = replace(config, workflow_event_import_dir="files", audit_log_path="")

    async def all_keys_of_a_new_gateway() -> set[str]:
        async with patient(settings) as client:
            template = await client.get("/api/workflow-templates/close")
            if template.status_code == 404:
                await define(client)
            answers = [await post(client, f"k{number}") for number in (0, 60, 119)]
            assert all(answer["duplicate"] for answer in answers), answers
            return {answer["run_id"] for answer in answers}

    found = await asyncio.gather(*(all_keys_of_a_new_gateway() for _ in range(3)))
    assert found == [{"run-0", "run-60", "run-119"}] * 3
    assert await runs_of(config) == 0
    async with open_events(settings, "test") as events:
        assert len(await events.receipts.list_values()) == 120


async def test_receipts_expire_by_the_store_itself(config: NatsBackendConfig) -> None:
    """Also when nobody looks: the bucket does not fill up with what has no meaning any more."""
    async with gateway(config) as client:
        await define(client)
        await post(client)
        async with raw_nats(config.nats_url) as nats:
            stream = f"KV_{config.workflow_receipts_kv_bucket}"
            message = await nats.jetstream().get_msg(stream, seq=2)
            assert message.headers["Nats-TTL"] == str(90 * 86_400)
