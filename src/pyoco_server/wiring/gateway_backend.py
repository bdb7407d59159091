"""The level of executions: graphs, the log of what happens to their executions, what is derived from it.

And schedules.
"""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any, TypeVar

from pyoco_server.alert_adapters import MessagesOut
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.alerts.channels import Channel
from pyoco_server.domain.alerts.deliveries import Delivery, decode_delivery
from pyoco_server.domain.alerts.model import AlertRecord, decode_alert_record
from pyoco_server.domain.bulk import BulkChunk, BulkRecord
from pyoco_server.domain.events.imports import ImportMark
from pyoco_server.domain.events.receipts import DAY_SEC, KeptResume, Slot
from pyoco_server.domain.events.retry import NotificationSettings, RetryJob
from pyoco_server.domain.events.sources import Source
from pyoco_server.domain.events.templates import Action, Template
from pyoco_server.domain.executions.codec import decode_commit, decode_record, encode_record
from pyoco_server.domain.executions.records import ExecutionRecord, LoggedCommit
from pyoco_server.domain.fleet import LeaseRecord
from pyoco_server.domain.limits.holders import Holders, decode_holders
from pyoco_server.domain.limits.model import LimitRecord, decode_limit
from pyoco_server.domain.queues import QueueRecord
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.domain.schedules.model import Schedule, TickPage
from pyoco_server.domain.shares import Roster
from pyoco_server.domain.stats.records import (
    CountPosition,
    RunEnd,
    decode_count_position,
    decode_run_end,
    decode_stats,
)
from pyoco_server.event_adapters import AuditFile, EventFiles, GoogleChat
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.consumers import JetStreamLanes
from pyoco_server.jetstream.dead_letters import LetterFeed
from pyoco_server.jetstream.events import (
    AuditFeed,
    AuditRecords,
    CountedBucket,
    JetStreamChangeLog,
    ListedKvStore,
    ReceiptBucket,
)
from pyoco_server.jetstream.executions import JetStreamExecutionLog, JetStreamGraphs
from pyoco_server.jetstream.feed import BucketFeed, StreamFeed
from pyoco_server.jetstream.kv import KvStore
from pyoco_server.jetstream.stats import StatsBucket
from pyoco_server.jetstream.storage import JetStreamTime
from pyoco_server.jetstream.streams import audit_trail_names, ensure_streams, stream_config
from pyoco_server.read_model.executions import SqliteExecutionIndex
from pyoco_server.usecases.auth import ANONYMOUS, AskWho, Authenticate, Caller
from pyoco_server.usecases.coordination import SharedClock
from pyoco_server.usecases.ports.alerts import NoticedState, decode_noticed_state
from pyoco_server.usecases.ports.runs import ApiKeyStore
from pyoco_server.usecases.ports.stores import Clock
from pyoco_server.wiring.backends import (
    GatewayConnections,
    JetStreamRunLevel,
    bucket_config,
    bucket_of,
    connected,
    gateway_connections,
    index_path,
    open_run_level,
    restorer,
)


@dataclass(frozen=True)
class JetStreamExecutionLevel:
    graphs: JetStreamGraphs
    execution_log: JetStreamExecutionLog
    execution_feed: StreamFeed[LoggedCommit]
    execution_cache: KvStore[ExecutionRecord]
    execution_index: SqliteExecutionIndex
    leases: KvStore[LeaseRecord]
    rosters: KvStore[Roster]
    schedules: KvStore[Schedule]
    schedule_feed: BucketFeed[Schedule]
    tick_pages: KvStore[TickPage]
    change_log: JetStreamChangeLog
    queues: KvStore[QueueRecord]
    queue_feed: BucketFeed[QueueRecord]
    lanes: JetStreamLanes
    bulk_operations: KvStore[BulkRecord]
    bulk_feed: BucketFeed[BulkRecord]
    bulk_chunks: KvStore[BulkChunk]
    stats_records: StatsBucket
    count_positions: KvStore[CountPosition]
    run_end_feed: BucketFeed[RunEnd]
    limits: KvStore[LimitRecord]
    limit_feed: BucketFeed[LimitRecord]
    limit_holders: KvStore[Holders]
    limit_holder_feed: BucketFeed[Holders]


@asynccontextmanager
async def open_execution_level(
    connections: GatewayConnections, config: NatsBackendConfig
) -> AsyncIterator[JetStreamExecutionLevel]:
    """Its streams and buckets have to be there."""
    requests, feeds = connections.requests, connections.feeds
    stream, prefix = config.executions_stream, config.executions_subject_prefix
    restore = restorer(feeds, config)
    with closing(_execution_index(config)) as index:
        yield JetStreamExecutionLevel(
            graphs=await _graphs(requests, config),
            execution_log=await _execution_log(requests, config),
            execution_feed=StreamFeed(feeds, stream, prefix, decode_commit, restore),
            execution_cache=await bucket_of(
                requests, config.executions_kv_bucket, encode_record, decode_record, restore
            ),
            execution_index=index,
            leases=await bucket_of(
                requests, config.leases_kv_bucket, codec.encode, codec.decode_lease, restore
            ),
            rosters=await bucket_of(
                requests, config.leases_kv_bucket, codec.encode, codec.decode_roster, restore
            ),
            schedules=await bucket_of(
                requests, config.schedules_kv_bucket, codec.encode, codec.decode_schedule
            ),
            schedule_feed=BucketFeed(feeds, config.schedules_kv_bucket, codec.decode_schedule, restore),
            tick_pages=await bucket_of(
                requests, config.ticks_kv_bucket, codec.encode, codec.decode_tick_page, restore
            ),
            change_log=change_log(requests, config),
            queues=await bucket_of(
                requests, config.queues_kv_bucket, codec.encode, codec.decode_queue, restore
            ),
            queue_feed=BucketFeed(feeds, config.queues_kv_bucket, codec.decode_queue, restore),
            lanes=JetStreamLanes(requests, config),
            bulk_operations=await bucket_of(
                requests, config.bulk_kv_bucket, codec.encode, codec.decode_bulk, restore
            ),
            bulk_feed=BucketFeed(feeds, config.bulk_kv_bucket, codec.decode_bulk, restore),
            bulk_chunks=await bucket_of(
                requests, config.bulk_items_kv_bucket, codec.encode, codec.decode_bulk_chunk, restore
            ),
            stats_records=await _stats(feeds, config),
            count_positions=await bucket_of(
                requests, config.stats_kv_bucket, codec.encode, decode_count_position, restore
            ),
            run_end_feed=BucketFeed(feeds, config.runs_kv_bucket, decode_run_end, restore),
            limits=await bucket_of(requests, config.limits_kv_bucket, codec.encode, decode_limit, restore),
            limit_feed=BucketFeed(feeds, config.limits_kv_bucket, decode_limit, restore),
            limit_holders=await bucket_of(
                requests, config.limit_holders_kv_bucket, codec.encode, decode_holders, restore
            ),
            limit_holder_feed=BucketFeed(feeds, config.limit_holders_kv_bucket, decode_holders, restore),
        )


def _execution_index(config: NatsBackendConfig) -> SqliteExecutionIndex:
    """Beside the index of runs."""
    runs = index_path(config)
    path = None if runs is None else runs.with_stem(f"{runs.stem}-executions")
    return SqliteExecutionIndex(path, tenants=config.http_auth_mode != "none")


def change_log(connection: NatsConnection, config: NatsBackendConfig) -> JetStreamChangeLog:
    stream, _, subjects = audit_trail_names(config)
    return JetStreamChangeLog(connection, stream, subjects)


async def _graphs(connection: NatsConnection, config: NatsBackendConfig) -> JetStreamGraphs:
    bucket = config.graphs_kv_bucket
    return JetStreamGraphs(connection, bucket, await bucket_config(connection, bucket))


async def _stats(connection: NatsConnection, config: NatsBackendConfig) -> StatsBucket:
    bucket = config.stats_kv_bucket
    stream = await bucket_config(connection, bucket)
    restore = restorer(connection, config)
    return StatsBucket(connection, bucket, stream, codec.encode, decode_stats, restore=restore)


async def _execution_log(connection: NatsConnection, config: NatsBackendConfig) -> JetStreamExecutionLog:
    stream = await stream_config(connection, config.executions_stream) or {}
    return JetStreamExecutionLog(
        connection,
        config.executions_stream,
        config.executions_subject_prefix,
        is_replicated=stream.get("num_replicas", 1) > 1,
        allows_ttl=bool(stream.get("allow_msg_ttl")),
    )


# The level of workflow events: what is remembered of them, and who is notified.

T = TypeVar("T")


@dataclass(frozen=True)
class JetStreamDefinitions:
    """Seven kinds of things in one bucket."""

    templates: ListedKvStore[Template]
    actions: ListedKvStore[Action]
    sources: ListedKvStore[Source]
    notification_settings: ListedKvStore[NotificationSettings]
    slots: ListedKvStore[Slot]
    leases: ListedKvStore[LeaseRecord]
    imports: ListedKvStore[ImportMark]


@dataclass(frozen=True)
class JetStreamEvents(JetStreamDefinitions):
    receipts: ReceiptBucket
    retry_jobs: CountedBucket[RetryJob]
    resumes: CountedBucket[KeptResume]
    audit: AuditRecords
    audit_feed: AuditFeed


@asynccontextmanager
async def open_events(config: NatsBackendConfig, name: str) -> AsyncIterator[JetStreamEvents]:
    """What is remembered of workflow events, for a command."""
    async with connected(config, name, patiently=False) as connection:
        await ensure_streams(connection, config)
        yield await events_on(connection, connection, config)


async def events_on(
    requests: NatsConnection, feeds: NatsConnection, config: NatsBackendConfig
) -> JetStreamEvents:
    """Their streams and buckets have to be there."""
    stream, prefix = config.audit_stream, config.audit_subject_prefix
    return JetStreamEvents(
        **vars(await _definitions(requests, config)),
        receipts=await _receipts(requests, config),
        retry_jobs=await _retry_jobs(requests, config),
        resumes=await _resumes(requests, config),
        audit=AuditRecords(requests, stream, prefix),
        audit_feed=AuditFeed(feeds, stream, prefix, restorer(feeds, config)),
    )


async def _definitions(connection: NatsConnection, config: NatsBackendConfig) -> JetStreamDefinitions:
    bucket = config.workflows_kv_bucket
    stream = await bucket_config(connection, bucket)

    def part(name: str, decode: Callable[[bytes], T], **more: Any) -> ListedKvStore[T]:
        return ListedKvStore(connection, bucket, stream, decode, part=name, **more)

    return JetStreamDefinitions(
        templates=part("template.", codec.decode_template, is_cached=True),
        actions=part("action.", codec.decode_action, decode_listed=codec.decode_listed_action),
        sources=part("source.", codec.decode_source),
        notification_settings=part("notification.", codec.decode_notification_settings),
        slots=part("slot.", codec.decode_slot),
        leases=part("lease.", codec.decode_lease),
        imports=part("import.", codec.decode_import_mark),
    )


async def _receipts(connection: NatsConnection, config: NatsBackendConfig) -> ReceiptBucket:
    bucket = config.workflow_receipts_kv_bucket
    stream = await bucket_config(connection, bucket)
    return ReceiptBucket(
        connection,
        bucket,
        stream,
        max_receipts=config.workflow_event_max_receipts,
        keep_sec=config.workflow_event_receipt_ttl_days * DAY_SEC,
    )


async def _retry_jobs(connection: NatsConnection, config: NatsBackendConfig) -> CountedBucket[RetryJob]:
    """Only what has ended may expire."""
    bucket = config.workflow_retry_kv_bucket
    stream = await bucket_config(connection, bucket)
    keep_sec = config.workflow_event_retry_terminal_ttl_days * DAY_SEC
    return CountedBucket(
        connection,
        bucket,
        stream,
        codec.decode_retry_job,
        ttl_of=lambda job: None if job.status.is_active else keep_sec,
        decode_listed=codec.decode_listed_job,
    )


async def _resumes(connection: NatsConnection, config: NatsBackendConfig) -> CountedBucket[KeptResume]:
    bucket = config.workflow_resumes_kv_bucket
    stream = await bucket_config(connection, bucket)
    return CountedBucket(
        connection,
        bucket,
        stream,
        codec.decode_kept_resume,
        is_cached=True,
        decode_listed=codec.decode_listed_resume,
    )


def new_notifier(config: NatsBackendConfig) -> GoogleChat:
    return GoogleChat(config.google_chat_base_url)


def new_audit_log(config: NatsBackendConfig) -> AuditFile:
    return AuditFile(config.audit_log_path)


def new_event_files(config: NatsBackendConfig) -> EventFiles:
    return EventFiles(config.workflow_event_import_dir)


# Alerts: what is defined and delivered, and the feeds in which happenings are noticed


@dataclass(frozen=True)
class JetStreamAlerts:
    definitions: KvStore[AlertRecord]
    definition_feed: BucketFeed[AlertRecord]
    deliveries: KvStore[Delivery]
    delivery_feed: BucketFeed[Delivery]
    state: KvStore[NoticedState]
    runs: BucketFeed[RunSnapshot]
    executions: StreamFeed[LoggedCommit]
    schedules: BucketFeed[Schedule]
    letters: LetterFeed


async def alerts_on(
    requests: NatsConnection, feeds: NatsConnection, config: NatsBackendConfig
) -> JetStreamAlerts:
    """Feeds of their own: one that only this reads must not pass for the picture of all runs."""
    restore = restorer(feeds, config)
    alerts, deliveries = config.alerts_kv_bucket, config.deliveries_kv_bucket
    return JetStreamAlerts(
        definitions=await bucket_of(requests, alerts, codec.encode, decode_alert_record),
        definition_feed=BucketFeed(feeds, alerts, decode_alert_record, restore),
        deliveries=await bucket_of(requests, deliveries, codec.encode, decode_delivery, restore),
        delivery_feed=BucketFeed(feeds, deliveries, decode_delivery, restore),
        state=await bucket_of(requests, config.leases_kv_bucket, codec.encode, decode_noticed_state, restore),
        runs=BucketFeed(feeds, config.runs_kv_bucket, codec.decode_run, restore),
        executions=StreamFeed(
            feeds, config.executions_stream, config.executions_subject_prefix, decode_commit, restore
        ),
        schedules=BucketFeed(feeds, config.schedules_kv_bucket, codec.decode_schedule, restore),
        letters=LetterFeed(feeds, config.dlq_stream, config.dlq_subject_prefix, restore),
    )


def channel_store(connection: NatsConnection, config: NatsBackendConfig) -> ListedKvStore[Channel]:
    """Channels alone, with listing."""
    decode: Callable[[bytes], Channel] = decode_alert_record  # type: ignore[assignment]
    return ListedKvStore(connection, config.alerts_kv_bucket, {}, decode, part="channel.")


def new_outbound(config: NatsBackendConfig) -> MessagesOut:
    return MessagesOut(allow_private=config.alerts_allow_private)


# A gateway's backend: the three levels, on its connections.


@dataclass(frozen=True)
class JetStreamGatewayBackend(JetStreamRunLevel, JetStreamExecutionLevel):
    events: JetStreamEvents
    alerts: JetStreamAlerts
    shared_clock: SharedClock


@asynccontextmanager
async def open_gateway_backend(config: NatsBackendConfig) -> AsyncIterator[JetStreamGatewayBackend]:
    """What a gateway needs; it waits for a NATS that is not there yet."""
    async with (
        gateway_connections(config) as connections,
        open_run_level(connections, config) as runs,  # first: it makes the streams and buckets of all levels
        open_execution_level(connections, config) as executions,
    ):
        shared_clock = SharedClock(JetStreamTime(connections.requests, config.executions_stream))
        await shared_clock.measure()
        yield JetStreamGatewayBackend(
            **vars(runs),
            **vars(executions),
            events=await events_on(connections.requests, connections.feeds, config),
            alerts=await alerts_on(connections.requests, connections.feeds, config),
            shared_clock=shared_clock,
        )


# Who may call it


@asynccontextmanager
async def authentication(
    config: NatsBackendConfig, api_keys: ApiKeyStore, clock: Clock
) -> AsyncIterator[AskWho]:
    """What the settings ask for, for as long as the backend is open. `clock`: the store's."""
    if config.http_auth_mode == "none":
        yield let_everybody_in
        return
    async with api_keys.follow_keys() as feed:
        yield Authenticate(api_keys, feed, config.auth_pepper, secrets.token_bytes(32), clock)


async def let_everybody_in(_presented: str | None) -> Caller:
    return ANONYMOUS
