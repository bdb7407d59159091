"""The ports of workflow events, in memory and on JetStream."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.events.audit import AuditActor, AuditRecord, StoredEvent
from pyoco_server.domain.events.receipts import Receipt, ReceiptState
from pyoco_server.domain.events.requests import EventRequest
from pyoco_server.domain.events.retry import JobStatus, RetryJob
from pyoco_server.domain.events.templates import Step, Template, TriggerKind
from pyoco_server.jetstream.events import ListedKvStore, ReceiptBucket
from pyoco_server.jetstream.kv import KvStore
from pyoco_server.memory.events import MemoryEvents
from pyoco_server.usecases.ports.gateway import EventsBackend
from pyoco_server.usecases.ports.stores import WrongRevision
from pyoco_server.wiring import new_run_id, open_events
from support.builders import NOW
from support.nats_server import delete_streams_of, raw_nats, unique_config
from support.replicas import Behind

NewEvents = Callable[..., Awaitable[EventsBackend]]


@pytest.fixture(params=["memory", "jetstream"])
async def new_events(request: pytest.FixtureRequest) -> AsyncIterator[NewEvents]:
    on_jetstream = request.param == "jetstream"
    config = unique_config(request.getfixturevalue("nats_server").url if on_jetstream else "nats://nowhere")
    async with AsyncExitStack() as stack:

        async def opened(**settings: Any) -> EventsBackend:
            chosen = replace(config, **settings)
            if not on_jetstream:
                return MemoryEvents.new(chosen)
            return await stack.enter_async_context(open_events(chosen, "contract test"))

        yield opened
    if on_jetstream:
        await delete_streams_of(config)


@pytest.fixture
async def events(new_events: NewEvents) -> EventsBackend:
    return await new_events()


def a_template(name: str = "close") -> Template:
    step = Step(id="one", action="a", trigger_kind=TriggerKind.EXTERNAL_EVENT)
    return Template(id=name, name=name, steps=(step,), updated_at="now")


def a_receipt(key: str = "k", tenant_id: str | None = None) -> Receipt:
    return Receipt(
        tenant_id=tenant_id,
        template_id="close",
        idempotency_key=key,
        run_id=new_run_id(),
        content="",
        claimed_at=NOW,
        starting_since=NOW,
    )


def a_job(name: str = "j") -> RetryJob:
    return RetryJob(
        id=name,
        template_id="close",
        template_name="Close",
        action="a",
        idempotency_key="k",
        max_attempts=3,
        next_retry_at=NOW,
        created_at=NOW,
        updated_at=NOW,
    )


def a_record(ym: str = "2026-02", tenant_id: str | None = None) -> StoredEvent:
    record = AuditRecord(
        at="2026-02-01T00:00:00Z",
        event_id=new_run_id(),
        ym=ym,
        event_type="workflow_event",
        action="a",
        status="success",
        actor=AuditActor(tenant_id=tenant_id),
    )
    return StoredEvent(record=record, request=EventRequest(data={"x": [1]}))


async def names(events: EventsBackend, prefix: str) -> list[str]:
    return sorted(template.id for template in await events.templates.list_values(prefix))


async def test_values_are_listed_by_their_prefix(events: EventsBackend) -> None:
    assert await names(events, "acme.") == []
    for key in ("acme.a", "acme.b", "other.c", "=.d"):
        await events.templates.create(key, a_template(key[-1]))
    assert await names(events, "acme.") == ["a", "b"]
    assert await names(events, "=.") == ["d"]
    assert await names(events, "") == ["a", "b", "c", "d"]


async def test_a_list_shows_every_change_that_was_made_before_it(events: EventsBackend) -> None:
    revision = await events.templates.create("acme.a", a_template("a"))
    assert await names(events, "acme.") == ["a"]
    await events.templates.create("acme.b", a_template("b"))
    assert await names(events, "acme.") == ["a", "b"]
    await events.templates.update("acme.a", a_template("changed"), revision)
    assert await names(events, "acme.") == ["b", "changed"]
    await events.templates.remove("acme.b", None)
    assert await names(events, "acme.") == ["changed"]
    await events.templates.create("acme.b", a_template("b again"))
    assert await names(events, "acme.") == ["b again", "changed"]


async def test_a_list_shows_what_another_gateway_changed(new_events: NewEvents) -> None:
    first, second = await new_events(), await new_events()
    if isinstance(first, MemoryEvents):
        second = first
    assert await names(second, "acme.") == []
    await first.templates.create("acme.a", a_template("a"))
    assert await names(second, "acme.") == ["a"]
    await first.templates.remove("acme.a", None)
    assert await names(second, "acme.") == []


async def test_the_parts_of_a_bucket_do_not_mix(events: EventsBackend) -> None:
    await events.templates.create("acme.a", a_template())
    assert await events.actions.list_values() == []
    assert await events.sources.get("acme.a") is None


async def test_of_many_claims_of_one_key_one_succeeds(events: EventsBackend) -> None:
    async def claim() -> bool:
        try:
            await events.receipts.create("key", a_receipt())
        except WrongRevision:
            return False
        return True

    assert sum(await asyncio.gather(*(claim() for _ in range(20)))) == 1


async def test_a_removed_receipt_can_be_claimed_anew(events: EventsBackend) -> None:
    revision = await events.receipts.create("key", a_receipt())
    await events.receipts.remove("key", revision)
    assert await events.receipts.get("key") is None
    await events.receipts.create("key", a_receipt())


async def test_a_receipt_that_changed_is_not_removed(events: EventsBackend) -> None:
    receipt = a_receipt()
    revision = await events.receipts.create("key", receipt)
    await events.receipts.update("key", changed(receipt, state=ReceiptState.ACCEPTED), revision)
    with pytest.raises(WrongRevision):
        await events.receipts.remove("key", revision)
    assert await events.receipts.get("key") is not None


async def test_the_oldest_receipts_make_room(new_events: NewEvents) -> None:
    events = await new_events(workflow_event_max_receipts=3)
    for number in range(5):
        await events.receipts.create(f"key{number}", a_receipt(str(number)))
    kept = {receipt.idempotency_key for receipt in await events.receipts.list_values()}
    assert kept == {"2", "3", "4"}


async def kept_keys(events: EventsBackend) -> set[str]:
    return {receipt.idempotency_key for receipt in await events.receipts.list_values()}


async def test_one_tenants_receipts_never_make_room_for_anothers(new_events: NewEvents) -> None:
    """D53, D13: a tenant that sends many keys makes nobody forget but itself."""
    events = await new_events(workflow_event_max_receipts=3)
    for tenant in ("acme", None):
        await events.receipts.create(f"of-{tenant}", a_receipt(f"of {tenant}", tenant))
    for number in range(10):
        await events.receipts.create(f"key{number}", a_receipt(str(number), "loud"))
    assert await kept_keys(events) == {"of acme", "of None", "7", "8", "9"}


async def test_receipts_without_a_mark_stay_and_take_no_room(new_events: NewEvents) -> None:
    """D53: as older versions wrote them, or a gateway that died between the two writes."""
    events = await new_events(workflow_event_max_receipts=2)
    if isinstance(events, MemoryEvents):
        pytest.skip("marks are JetStream's")
    bucket = events.receipts
    assert isinstance(bucket, KvStore)
    await KvStore.create(bucket, "old", a_receipt("old"))
    for number in range(5):
        await bucket.create(f"key{number}", a_receipt(str(number)))
    assert await kept_keys(events) == {"old", "3", "4"}
    stored = await bucket.get("old")
    assert stored is not None
    await bucket.remove("old", stored.revision)
    assert await kept_keys(events) == {"3", "4"}


def counted(events: EventsBackend, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The tenants whose receipts were counted, each time; in memory that costs nothing."""
    found: list[str | None] = []
    if isinstance(events.receipts, ReceiptBucket):
        surplus = events.receipts._surplus

        async def counting(tenant_id: str | None) -> list[str]:
            found.append(tenant_id)
            return await surplus(tenant_id)

        monkeypatch.setattr(events.receipts, "_surplus", counting)
    return found


async def test_a_far_limit_of_receipts_is_counted_now_and_then(
    new_events: NewEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D53: a count is not paid for by every event, and is passed by a hundredth at most."""
    events = await new_events(workflow_event_max_receipts=300)
    counts = counted(events, monkeypatch)
    for number in range(340):
        await events.receipts.create(f"key{number}", a_receipt(str(number)))
        if number > 300:
            await events.receipts.create(f"given-back{number}", a_receipt("x"))
            stored = await events.receipts.get(f"given-back{number}")
            assert stored is not None
            await events.receipts.remove(f"given-back{number}", stored.revision)
    kept = sorted(map(int, await kept_keys(events)))
    assert 297 <= len(kept) <= 303
    assert kept == list(range(340 - len(kept), 340)), "the oldest went first"
    assert len(counts) < 340 // 2


async def test_a_key_that_was_given_back_takes_no_room(new_events: NewEvents) -> None:
    events = await new_events(workflow_event_max_receipts=2)
    await events.receipts.create("kept", a_receipt("kept"))
    for number in range(5):
        revision = await events.receipts.create(f"key{number}", a_receipt(str(number)))
        await events.receipts.remove(f"key{number}", revision)
    assert await events.receipts.get("kept") is not None


async def test_retry_jobs_are_counted(events: EventsBackend) -> None:
    assert await events.retry_jobs.count() == 0
    revision = await events.retry_jobs.create("=.a", a_job())
    await events.retry_jobs.create("=.b", a_job())
    await events.retry_jobs.update("=.a", changed(a_job(), status=JobStatus.RETRYING), revision)
    await events.retry_jobs.create("acme.c", a_job())
    assert (await events.retry_jobs.count("=."), await events.retry_jobs.count("acme.")) == (2, 1)
    assert await events.retry_jobs.count("nobody.") == 0
    await events.retry_jobs.remove("acme.c", None)
    assert await events.retry_jobs.count() == 2
    stored = await events.retry_jobs.get("=.b")
    assert stored is not None
    await events.retry_jobs.remove("=.b", stored.revision)
    assert await events.retry_jobs.count() == 1
    assert [job.status for job in await events.retry_jobs.list_values("=.")] == [JobStatus.RETRYING]


async def test_an_audit_record_is_written_once(events: EventsBackend) -> None:
    record = a_record()
    first = await events.audit.append(record)
    await events.audit.append(record)
    second = await events.audit.append(a_record())
    assert second > first
    assert len(await feed(events, 2)) == 2


async def feed(events: EventsBackend, count: int) -> list[StoredEvent]:
    found: list[StoredEvent] = []
    async for batch in events.audit_feed.follow(None):
        found += [change.value for change in batch.changes if change.value is not None]
        if len(found) >= count and batch.is_caught_up:
            break
    return found


async def test_the_feed_has_every_record_also_those_under_one_subject(events: EventsBackend) -> None:
    written = [a_record(tenant_id=tenant) for tenant in (None, "acme", "acme", "acme")]
    for record in written:
        await events.audit.append(record)
    assert await feed(events, 4) == [StoredEvent(record=one.record) for one in written]


async def test_an_event_is_found_by_its_id(events: EventsBackend) -> None:
    records = [a_record() for _ in range(5)]
    for record in records:
        await events.audit.append(record)
    assert await events.audit.find(records[3].record.event_id) == records[3]
    for missing in (new_run_id(), "nonsense", "0190aaaa-bbbb-4ccc-8ddd-eeeeffff0001"):
        assert await events.audit.find(missing) is None


async def test_d14_a_list_of_a_replica_that_is_behind_is_not_kept(config: NatsBackendConfig) -> None:
    """D14: with replicas a template could be resolved as it was, for an hour."""
    follower = f"{config.workflows_kv_bucket}_follower"
    async with raw_nats(config.nats_url) as nats:
        for bucket in (config.workflows_kv_bucket, follower):
            await nats.jetstream().create_key_value(bucket=bucket, direct=True)
    connection = Behind(config.nats_url, config.workflows_kv_bucket, follower)
    await connection.open()
    store = ListedKvStore(
        connection,
        config.workflows_kv_bucket,
        {"allow_direct": True, "num_replicas": 3},
        codec.decode_template,
        is_cached=True,
    )
    await store.create("t", a_template())
    listing = asyncio.ensure_future(store.list_values())
    done, _ = await asyncio.wait({listing}, timeout=0.3)
    assert not done or listing.result(), "it was listed without what the leader has"
    connection.is_behind = False
    assert [found.id for found in await listing] == [a_template().id]
    await connection.close()
    async with raw_nats(config.nats_url) as nats:
        await nats.jetstream().delete_key_value(follower)
