"""The level of workflow events: what is remembered of them, and who is told."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from pyoco_server.audit_file import AuditFile
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import wire
from pyoco_server.domain.events.imports import ImportMark
from pyoco_server.domain.events.notifications import NotificationSettings
from pyoco_server.domain.events.receipts import DAY_SEC
from pyoco_server.domain.events.resumes import KeptResume
from pyoco_server.domain.events.retry_jobs import RetryJob
from pyoco_server.domain.events.signatures import Source
from pyoco_server.domain.events.slots import Slot
from pyoco_server.domain.events.templates import Action, Template
from pyoco_server.domain.leases import LeaseRecord
from pyoco_server.event_files import EventFiles
from pyoco_server.google_chat import GoogleChat
from pyoco_server.jetstream import topology
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.event_stores import (
    AuditFeed,
    AuditRecords,
    CountedBucket,
    ListedKvStore,
    ReceiptBucket,
)
from pyoco_server.wiring.connecting import bucket_config, connected, restorer

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
        await topology.ensure_resources(connection, config)
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

    def part(name: str, decode: Callable[[bytes], T], *, is_cached: bool = False) -> ListedKvStore[T]:
        return ListedKvStore(connection, bucket, stream, decode, part=name, is_cached=is_cached)

    return JetStreamDefinitions(
        templates=part("template.", wire.decode_template, is_cached=True),
        actions=part("action.", wire.decode_action),
        sources=part("source.", wire.decode_source),
        notification_settings=part("notification.", wire.decode_notification_settings),
        slots=part("slot.", wire.decode_slot),
        leases=part("lease.", wire.decode_lease),
        imports=part("import.", wire.decode_import_mark),
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
        wire.decode_retry_job,
        ttl_of=lambda job: None if job.status.is_active else keep_sec,
    )


async def _resumes(connection: NatsConnection, config: NatsBackendConfig) -> CountedBucket[KeptResume]:
    bucket = config.workflow_resumes_kv_bucket
    stream = await bucket_config(connection, bucket)
    return CountedBucket(connection, bucket, stream, wire.decode_kept_resume, is_cached=True)


def new_notifier(config: NatsBackendConfig) -> GoogleChat:
    return GoogleChat(config.google_chat_base_url)


def new_audit_log(config: NatsBackendConfig) -> AuditFile:
    return AuditFile(config.audit_log_path)


def new_event_files(config: NatsBackendConfig) -> EventFiles:
    return EventFiles(config.workflow_event_import_dir)
