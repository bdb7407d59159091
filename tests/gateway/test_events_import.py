"""Files of an earlier workflow server: imported once, at the first start, before an event is received."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.events.audit import iso
from pyoco_server.memory import open_memory_gateway_backend
from pyoco_server.usecases.events.transfer import export_events
from support.captured_logs import capture_logs
from support.events import ACTION, URL, WEBHOOK, define, run_ids
from support.gateway import RunningGateway, memory_app, new_key, on_backend

DIRECTORY = Path("artifacts/mfcloud-expense-receipt-reconcile/_workflow_events")
DAY = 86_400.0


@pytest.fixture
def now() -> float:
    return time.time()


@pytest.fixture
def logged() -> Iterator[list[dict[str, Any]]]:
    with capture_logs() as lines:
        yield lines


def write(name: str, content: Any, directory: Path = DIRECTORY) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))


def a_receipt(key: str, at: str, **changes: Any) -> dict[str, Any]:
    return {
        "template_id": "close",
        "template_name": "Close the month",
        "action_key": ACTION,
        "event_name": ACTION,
        "source": "erp",
        "idempotency_key": key,
        "run_id": f"run-of-{key}",
        "created_at": at,
        **changes,
    }


def receipts(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"receipts": {f"{one['template_id']}:{one['idempotency_key']}": one for one in entries}}


def a_job(key: str, at: str, **changes: Any) -> dict[str, Any]:
    return {
        "template_id": "close",
        "template_name": "Close the month",
        "action_key": ACTION,
        "event_name": ACTION,
        "source": "erp",
        "idempotency_key": key,
        "year": 2026,
        "month": 2,
        "status": "pending",
        "attempts": 1,
        "max_attempts": 3,
        "next_retry_at": at,
        "last_error": "busy",
        "created_at": at,
        "updated_at": at,
        **changes,
    }


def jobs(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"jobs": {f"{one['template_id']}:{one['idempotency_key']}": one for one in entries}}


def lines_with(logged: list[dict[str, Any]], action: str) -> list[dict[str, Any]]:
    return [line for line in logged if line.get("action") == action]


async def post(gateway: RunningGateway, key: str) -> dict[str, Any]:
    found: dict[str, Any] = (await gateway.client.post(URL, json={"idempotency_key": key})).json()
    return found


async def test_the_three_files_are_imported(now: float, logged: list[dict[str, Any]]) -> None:
    """D38"""
    await asyncio.to_thread(write, "receipts.json", receipts(a_receipt("a", iso(now - DAY))))
    await asyncio.to_thread(write, "retry_jobs.json", jobs(a_job("b", iso(now - 60))))
    settings = {"webhook_url": WEBHOOK, "updated_at": "2026-02-20T12:00:00Z"}
    await asyncio.to_thread(write, "notification_settings.json", settings)
    async with memory_app() as gateway:
        await define(gateway.client)
        again = await post(gateway, "a")
        assert (again["duplicate"], again["run_id"]) == (True, "run-of-a")
        assert "payload_mismatch" not in again, "what the first said is not known"
        listed = (await gateway.client.get(f"{URL}/retry-jobs")).json()
        (job,) = listed["jobs"]
        assert (job["action"], job["attempts"], job["status"], listed["due"]) == (ACTION, 1, "pending", 1)
        done = (await gateway.client.post(f"{URL}/retry-jobs/drain")).json()
        assert (done["succeeded"], len(run_ids(gateway))) == (1, 1)
        shown = (await gateway.client.get(f"{URL}/notification-settings")).json()
        assert (shown["configured"], shown["source"]) == (True, "file")
        assert shown["updated_at"] == "2026-02-20T12:00:00Z"
        counts = [(Path(one.path).name, one.count) for one in gateway.app.state.gateway.imported]
    assert counts == [("receipts.json", 1), ("retry_jobs.json", 1), ("notification_settings.json", 1)]
    assert [line["count"] for line in lines_with(logged, "events.imported")] == [1, 1, 1]
    assert "TOKTOKTOK" not in str(logged)


async def test_a_receipt_past_its_ttl_is_left_out_and_no_more_come_than_are_kept(now: float) -> None:
    """D38"""
    old = [a_receipt(f"old{number}", iso(now - 91 * DAY)) for number in range(3)]
    live = [a_receipt(f"k{number}", iso(now - DAY + number)) for number in range(5)]
    await asyncio.to_thread(write, "receipts.json", receipts(*old, *live))
    async with memory_app(workflow_event_max_receipts=3) as gateway:
        kept = await gateway.backend.events.receipts.list_values()
        assert [receipt.idempotency_key for receipt in kept] == ["k2", "k3", "k4"]


async def test_it_happens_once(now: float, logged: list[dict[str, Any]]) -> None:
    """D38: what was cleared since then does not come back with a restart."""
    await asyncio.to_thread(write, "notification_settings.json", {"webhook_url": WEBHOOK})
    config = NatsBackendConfig()
    async with open_memory_gateway_backend(config) as backend:
        async with on_backend(backend, config) as gateway:
            await gateway.client.post(f"{URL}/notification-settings", json={"webhook_url": ""})
        async with on_backend(backend, config) as gateway:
            shown = (await gateway.client.get(f"{URL}/notification-settings")).json()
            assert shown["configured"] is False
            assert gateway.app.state.gateway.imported == []
    assert len(lines_with(logged, "events.imported")) == 1


async def test_a_store_that_is_not_empty_is_left_alone(now: float, logged: list[dict[str, Any]]) -> None:
    """D38"""
    config = NatsBackendConfig()
    async with open_memory_gateway_backend(config) as backend:
        async with on_backend(backend, config) as gateway:
            await define(gateway.client)
            await post(gateway, "ours")
        await asyncio.to_thread(write, "receipts.json", receipts(a_receipt("a", iso(now))))
        for _ in range(2):
            async with on_backend(backend, config):
                kept = await backend.events.receipts.list_values()
                assert [receipt.idempotency_key for receipt in kept] == ["ours"]
    assert len(lines_with(logged, "events.import_skipped")) == 1


async def test_an_import_that_was_cut_off_is_finished(now: float) -> None:
    """D38: a gateway was killed with some of the receipts written."""
    await asyncio.to_thread(
        write, "receipts.json", receipts(*(a_receipt(key, iso(now)) for key in ("a", "b", "c")))
    )
    config = NatsBackendConfig()
    async with open_memory_gateway_backend(config) as complete, on_backend(complete, config):
        written = sorted(complete.events.receipts._values)
    for left in range(3):
        async with open_memory_gateway_backend(config) as backend:
            async with on_backend(backend, config):
                pass
            mark = await backend.events.imports.get("receipts")
            assert mark is not None
            unfinished = msgspec.structs.replace(mark.value, is_done=False)
            await backend.events.imports.update("receipts", unfinished, mark.revision)
            for key in written[left:]:
                backend.events.receipts._values.pop(key)
            async with on_backend(backend, config):
                assert sorted(backend.events.receipts._values) == written


BAD = {
    "no JSON": "{",
    "another form": "[1, 2]",
    "no receipts": "{}",
    "receipts are no object": '{"receipts": 5}',
    "deep": "[" * 5000,
    "no text": "\ufffd",
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
async def test_a_bad_file_is_a_line_in_the_log_and_no_crash(
    content: str, logged: list[dict[str, Any]]
) -> None:
    """D38"""
    for name in ("receipts.json", "retry_jobs.json", "notification_settings.json"):
        await asyncio.to_thread(write, name, content)
    async with memory_app() as gateway:
        await define(gateway.client)
        assert (await post(gateway, "a"))["triggered"] is True
    told = lines_with(logged, "events.import_failed")
    assert any("receipts.json" in line["path"] for line in told)
    assert all(line["problem"] for line in told)


async def test_a_file_that_cannot_be_read_is_a_line_in_the_log(logged: list[dict[str, Any]]) -> None:
    """D38"""
    await asyncio.to_thread((DIRECTORY / "receipts.json").mkdir, parents=True)
    async with memory_app():
        pass
    (told,) = lines_with(logged, "events.import_failed")
    assert "directory" in told["problem"].lower()


async def test_entries_that_cannot_be_used_are_left_out_and_named(
    now: float, logged: list[dict[str, Any]]
) -> None:
    """D38"""
    good = a_receipt("good", iso(now))
    bad = [
        {**a_receipt("no-time", "yesterday")},
        {**a_receipt("x", iso(now)), "idempotency_key": "a b"},
        {**a_receipt("y", iso(now)), "template_id": "a.b"},
        {**a_receipt("z", iso(now)), "run_id": None},
    ]
    await asyncio.to_thread(write, "receipts.json", receipts(good, *bad))
    await asyncio.to_thread(
        write, "notification_settings.json", {"webhook_url": "https://evil.example/?token=SECRET"}
    )
    async with memory_app() as gateway:
        kept = await gateway.backend.events.receipts.list_values()
        assert [receipt.idempotency_key for receipt in kept] == ["good"]
        assert await gateway.backend.events.notification_settings.list_values() == []
    told = lines_with(logged, "events.import_failed")
    assert told[0]["left_out"] == 4
    assert "close:no-time" in told[0]["problem"]
    assert "SECRET" not in str(logged)


async def test_with_api_keys_on_they_are_of_the_tenant_of_events(now: float) -> None:
    """D38"""
    await asyncio.to_thread(write, "receipts.json", receipts(a_receipt("a", iso(now))))
    async with memory_app(http_auth_mode="api_key", workflow_event_tenant="hooks") as gateway:
        gateway.client.headers.update(await new_key(gateway.backend.api_keys, "hooks", "key-h"))
        await define(gateway.client)
        assert (await post(gateway, "a"))["run_id"] == "run-of-a"


async def test_what_our_own_export_wrote_is_read(now: float, logged: list[dict[str, Any]]) -> None:
    """D38"""
    await asyncio.to_thread(write, "retry_jobs.json", jobs(a_job("b", iso(now - 60))))
    async with memory_app() as gateway:
        await define(gateway.client)
        first = await post(gateway, "a")
        await gateway.client.post(f"{URL}/notification-settings", json={"webhook_url": WEBHOOK})
        exported = await export_events(gateway.backend.events)
    for name in exported.__struct_fields__:
        content = msgspec.json.encode(getattr(exported, name)).decode()
        await asyncio.to_thread(write, f"{name}.json", content, Path("exported"))
    async with memory_app(workflow_event_import_dir="exported") as gateway:
        await define(gateway.client)
        again = await post(gateway, "a")
        assert (again["duplicate"], again["run_id"]) == (True, first["run_id"])
        assert (await gateway.client.get(f"{URL}/retry-jobs")).json()["total"] == 1
    (told,) = lines_with(logged, "events.import_failed")
    assert "masked" in told["problem"]


async def test_an_empty_directory_name_switches_it_off(now: float) -> None:
    """D38: nor does it mean the current directory."""
    for directory in (DIRECTORY, Path()):
        await asyncio.to_thread(write, "receipts.json", receipts(a_receipt("a", iso(now))), directory)
    async with memory_app(workflow_event_import_dir="") as gateway:
        assert await gateway.backend.events.receipts.list_values() == []
