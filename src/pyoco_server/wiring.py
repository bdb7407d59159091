"""The composition root: the only place that knows which adapter stands behind which port."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace
from uuid_utils import uuid7

from pyoco_server.audit_file import AuditFile
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import wire
from pyoco_server.domain.api_keys import ApiKey
from pyoco_server.domain.compaction import fit
from pyoco_server.domain.events.leases import Lease, Slot
from pyoco_server.domain.events.notifications import NotificationSettings
from pyoco_server.domain.events.receipts import DAY_SEC
from pyoco_server.domain.events.resumes import KeptResume
from pyoco_server.domain.events.retry_jobs import RetryJob
from pyoco_server.domain.events.signatures import Source
from pyoco_server.domain.events.templates import Action, Template
from pyoco_server.domain.execution.codec import decode_commit, decode_record, encode_record
from pyoco_server.domain.execution.records import ExecutionRecord, LoggedCommit
from pyoco_server.domain.idempotency import Claim
from pyoco_server.domain.runs import RunSnapshot
from pyoco_server.domain.workers import WorkerRecord
from pyoco_server.engine.executor_messages import ExecutorSpec
from pyoco_server.engine.flow_files import follow_flow_files, version_of
from pyoco_server.engine.process_executors import Limits, ProcessExecutors
from pyoco_server.engine.thread_executors import ThreadExecutors
from pyoco_server.errors import SnapshotTooLarge
from pyoco_server.google_chat import GoogleChat
from pyoco_server.jetstream import backup, topology
from pyoco_server.jetstream.api_key_store import JetStreamApiKeys
from pyoco_server.jetstream.bootstrap_server import BootstrapNats
from pyoco_server.jetstream.bucket_feed import BucketFeed, StreamFeed
from pyoco_server.jetstream.connection import NatsConnection, without_credentials
from pyoco_server.jetstream.embedded_server import Durability, EmbeddedNats, running_embedded_url
from pyoco_server.jetstream.event_stores import (
    AuditFeed,
    AuditRecords,
    CountedBucket,
    ListedKvStore,
    ReceiptBucket,
)
from pyoco_server.jetstream.execution_log import JetStreamExecutionLog
from pyoco_server.jetstream.graph_store import JetStreamGraphs
from pyoco_server.jetstream.inspection import NatsReport, inspect
from pyoco_server.jetstream.job_source import JetStreamJobSources, ensure_consumer
from pyoco_server.jetstream.kv_store import KvStore
from pyoco_server.jetstream.run_signals import BucketSignals
from pyoco_server.jetstream.server_process import find_binary as find_nats_server
from pyoco_server.jetstream.streams import stream_config
from pyoco_server.jetstream.task_logs import LogStream
from pyoco_server.jetstream.undeliverable import JetStreamUndeliverable
from pyoco_server.jetstream.wheel_store import WheelHistoryBucket, WheelObjects
from pyoco_server.jetstream.work_queue import DlqStream, WorkQueue
from pyoco_server.logs import get_logger
from pyoco_server.read_model.sqlite_execution_index import SqliteExecutionIndex
from pyoco_server.read_model.sqlite_run_index import SqliteRunIndex
from pyoco_server.usecases.lease import LeaseRecord, decode_lease

__all__ = [
    "BootstrapNats",
    "Durability",
    "EmbeddedNats",
    "ExecutorSpec",
    "JetStreamBackend",
    "Limits",
    "NatsReport",
    "back_up",
    "ensure_resources",
    "find_nats_server",
    "inspect_nats",
    "new_api_key",
    "new_audit_log",
    "new_notifier",
    "new_run_id",
    "new_salt",
    "new_thread_executors",
    "open_backend",
    "open_events",
    "open_gateway_backend",
    "open_process_executors",
    "open_wheels",
    "open_worker_backend",
    "restore",
    "running_embedded_url",
    "without_credentials",
]

log = get_logger(__name__)
T = TypeVar("T")

HEADER_ROOM = 4_096
"""The server's limit is for a message with its headers."""


@dataclass(frozen=True)
class JetStreamWorkerBackend:
    connection: NatsConnection
    runs: KvStore[RunSnapshot]
    workers: KvStore[WorkerRecord]
    sources: JetStreamJobSources
    dead_letters: DlqStream
    task_logs: LogStream
    run_signals: BucketSignals

    @property
    def is_available(self) -> bool:
        return self.connection.is_connected


@dataclass(frozen=True)
class JetStreamBackend(JetStreamWorkerBackend):
    api_keys: JetStreamApiKeys
    queue: WorkQueue


@dataclass(frozen=True)
class JetStreamEvents:
    templates: ListedKvStore[Template]
    actions: ListedKvStore[Action]
    sources: ListedKvStore[Source]
    notification_settings: ListedKvStore[NotificationSettings]
    slots: ListedKvStore[Slot]
    leases: ListedKvStore[Lease]
    receipts: ReceiptBucket
    retry_jobs: CountedBucket[RetryJob]
    resumes: CountedBucket[KeptResume]
    audit: AuditRecords
    audit_feed: AuditFeed


@dataclass(frozen=True)
class JetStreamGatewayBackend(JetStreamBackend):
    events: JetStreamEvents
    claims: KvStore[Claim]
    wheels: WheelObjects
    wheel_history: WheelHistoryBucket
    graphs: JetStreamGraphs
    run_feed: BucketFeed[RunSnapshot]
    worker_feed: BucketFeed[WorkerRecord]
    undeliverable: JetStreamUndeliverable
    run_index: SqliteRunIndex
    execution_log: JetStreamExecutionLog
    execution_feed: StreamFeed[LoggedCommit]
    execution_cache: KvStore[ExecutionRecord]
    execution_index: SqliteExecutionIndex
    leases: KvStore[LeaseRecord]


@asynccontextmanager
async def open_worker_backend(config: NatsBackendConfig, name: str) -> AsyncIterator[JetStreamWorkerBackend]:
    """What a worker needs, on one connection. Raises NatsUnavailable when NATS is not there."""
    async with _connected(config, name, patiently=False) as connection:
        specs = topology.worker_resources(config)
        streams = await topology.ensure_resources(connection, config, specs)
        yield _worker_backend(connection, config, streams)


@asynccontextmanager
async def open_backend(config: NatsBackendConfig, name: str) -> AsyncIterator[JetStreamBackend]:
    """What a client needs, on one connection. Raises NatsUnavailable when NATS is not there."""
    async with _connected(config, name, patiently=False) as connection:
        yield await _backend(connection, config)


@asynccontextmanager
async def open_gateway_backend(config: NatsBackendConfig) -> AsyncIterator[JetStreamGatewayBackend]:
    """What a gateway needs; it waits for a NATS that is not there yet.

    Feeds and objects have connections of their own, so that a long history or a large wheel never delays a
    request's answer.
    """
    async with (
        _connected(config, "pyoco-server", patiently=True) as connection,
        _connected(config, "pyoco-server feeds", patiently=True) as feeds,
        _connected(config, "pyoco-server objects", patiently=True) as objects,
    ):
        backend = await _backend(connection, config)
        for tag in config.tags_of_queues:
            await ensure_consumer(connection, config, tag)
        restore = partial(topology.ensure_resources, feeds, config)
        tenants = config.http_auth_mode != "none"
        index = SqliteRunIndex(
            Path(config.read_model_path) if config.read_model_path else None, tenants=tenants
        )
        execution_index = SqliteExecutionIndex(tenants=tenants)
        try:
            yield JetStreamGatewayBackend(
                **{
                    **{field.name: getattr(backend, field.name) for field in fields(backend)},
                    "task_logs": LogStream(feeds, config.logs_stream, config.logs_subject_prefix),
                },
                claims=await _bucket(
                    connection, config.idempotency_kv_bucket, wire.encode, wire.decode_claim
                ),
                events=await _events(connection, feeds, config),
                wheels=WheelObjects(objects, config.wheel_object_store_bucket),
                wheel_history=WheelHistoryBucket(objects, config.wheel_history_kv_bucket),
                graphs=JetStreamGraphs(
                    connection,
                    config.graphs_kv_bucket,
                    await stream_config(connection, f"KV_{config.graphs_kv_bucket}") or {},
                ),
                run_feed=BucketFeed(feeds, config.runs_kv_bucket, wire.decode_run, restore),
                worker_feed=BucketFeed(feeds, config.workers_kv_bucket, wire.decode_worker, restore),
                undeliverable=JetStreamUndeliverable(feeds, config),
                run_index=index,
                execution_log=JetStreamExecutionLog(
                    connection, config.executions_stream, config.executions_subject_prefix
                ),
                execution_feed=StreamFeed(
                    feeds, config.executions_stream, config.executions_subject_prefix, decode_commit, restore
                ),
                execution_cache=await _bucket(
                    connection, config.executions_kv_bucket, encode_record, decode_record, restore
                ),
                execution_index=execution_index,
                leases=await _bucket(connection, config.leases_kv_bucket, wire.encode, decode_lease, restore),
            )
        finally:
            index.close()
            execution_index.close()


async def _bucket(
    connection: NatsConnection,
    bucket: str,
    encode: Callable[[T], bytes],
    decode: Callable[[bytes], T],
    restore: Callable[[], Awaitable[object]] | None = None,
) -> KvStore[T]:
    config = await stream_config(connection, f"KV_{bucket}") or {}
    return KvStore(connection, bucket, config, encode, decode, restore=restore)


@asynccontextmanager
async def open_events(config: NatsBackendConfig, name: str) -> AsyncIterator[JetStreamEvents]:
    """What is remembered of workflow events, for a command."""
    async with _connected(config, name, patiently=False) as connection:
        await topology.ensure_resources(connection, config)
        yield await _events(connection, connection, config)


async def _events(
    connection: NatsConnection, feeds: NatsConnection, config: NatsBackendConfig
) -> JetStreamEvents:
    bucket, receipts, jobs, resumes = (
        config.workflows_kv_bucket,
        config.workflow_receipts_kv_bucket,
        config.workflow_retry_kv_bucket,
        config.workflow_resumes_kv_bucket,
    )
    settings = {
        name: await stream_config(connection, f"KV_{name}") or {}
        for name in (bucket, receipts, jobs, resumes)
    }

    def part(name: str, decode: Callable[[bytes], T], *, is_cached: bool = False) -> ListedKvStore[T]:
        return ListedKvStore(connection, bucket, settings[bucket], decode, part=name, is_cached=is_cached)

    receipt_ttl = config.workflow_event_receipt_ttl_days * DAY_SEC
    job_ttl = config.workflow_event_retry_terminal_ttl_days * DAY_SEC
    return JetStreamEvents(
        templates=part("template.", wire.decode_template, is_cached=True),
        actions=part("action.", wire.decode_action),
        sources=part("source.", wire.decode_source),
        notification_settings=part("notification.", wire.decode_notification_settings),
        slots=part("slot.", wire.decode_slot),
        leases=part("lease.", wire.decode_lease),
        receipts=ReceiptBucket(
            connection, receipts, settings[receipts], wire.decode_receipt, ttl_of=lambda _: receipt_ttl
        ),
        retry_jobs=CountedBucket(
            connection,
            jobs,
            settings[jobs],
            wire.decode_retry_job,
            ttl_of=lambda job: None if job.status.is_active else job_ttl,
        ),
        resumes=CountedBucket(
            connection, resumes, settings[resumes], wire.decode_kept_resume, is_cached=True
        ),
        audit=AuditRecords(connection, config.audit_stream, config.audit_subject_prefix),
        audit_feed=AuditFeed(
            feeds,
            config.audit_stream,
            config.audit_subject_prefix,
            partial(topology.ensure_resources, feeds, config),
        ),
    )


def new_notifier(config: NatsBackendConfig) -> GoogleChat:
    return GoogleChat(config.google_chat_base_url)


def new_audit_log(config: NatsBackendConfig) -> AuditFile:
    return AuditFile(config.audit_log_path)


@asynccontextmanager
async def _connected(
    config: NatsBackendConfig, name: str, *, patiently: bool
) -> AsyncIterator[NatsConnection]:
    connection = NatsConnection(config.nats_url, name, config.jetstream_api_prefix)
    await connection.open(patiently=patiently)
    try:
        yield connection
    finally:
        await connection.close()


async def _backend(connection: NatsConnection, config: NatsBackendConfig) -> JetStreamBackend:
    streams = await topology.ensure_resources(connection, config)
    worker = _worker_backend(connection, config, streams)
    return JetStreamBackend(
        **{field.name: getattr(worker, field.name) for field in fields(worker)},
        api_keys=JetStreamApiKeys(connection, config.auth_kv_bucket, streams[f"KV_{config.auth_kv_bucket}"]),
        queue=WorkQueue(connection, config.work_stream, config.work_subject_prefix),
    )


def _worker_backend(
    connection: NatsConnection, config: NatsBackendConfig, streams: dict[str, dict[str, Any]]
) -> JetStreamWorkerBackend:
    return JetStreamWorkerBackend(
        connection=connection,
        runs=KvStore(
            connection,
            config.runs_kv_bucket,
            streams[f"KV_{config.runs_kv_bucket}"],
            partial(encode_within, min(config.max_run_snapshot_bytes, connection.max_payload - HEADER_ROOM)),
            wire.decode_run,
            partial(_retention, config.runs_retention_sec),
            named=lambda run, key: run if run.run_id == key else replace(run, run_id=key),
        ),
        workers=KvStore(
            connection,
            config.workers_kv_bucket,
            streams[f"KV_{config.workers_kv_bucket}"],
            wire.encode,
            wire.decode_worker,
            named=lambda worker, key: worker if worker.worker_id == key else replace(worker, worker_id=key),
        ),
        sources=JetStreamJobSources(connection, config),
        dead_letters=DlqStream(connection, config.dlq_stream, config.dlq_subject_prefix),
        task_logs=LogStream(connection, config.logs_stream, config.logs_subject_prefix),
        run_signals=BucketSignals(connection, config.runs_kv_bucket),
    )


def _retention(keep_sec: float, snapshot: RunSnapshot) -> float | None:
    """Only what has ended may expire."""
    return keep_sec if keep_sec > 0 and snapshot.status.is_terminal else None


def encode_within(limit: int, snapshot: RunSnapshot) -> bytes:
    fitted = fit(snapshot, limit, wire.encode)
    if not fitted.within_limit:
        log.error(
            "a snapshot is over its limit even without records; it is written all the same",
            action="run.snapshot_over_limit",
            run_id=snapshot.run_id,
            bytes=len(fitted.data),
            limit=limit,
            **SnapshotTooLarge().ids,
        )
    return fitted.data


async def inspect_nats(config: NatsBackendConfig) -> NatsReport:
    """What is there, without changing it. Raises NatsUnavailable or IncompatibleNats."""
    async with _connected(config, "pyoco-server doctor", patiently=False) as connection:
        return await inspect(connection, config)


async def ensure_resources(config: NatsBackendConfig | None = None) -> None:
    """Create the streams, buckets and the object store that are missing, and check those that exist."""
    settings = config or NatsBackendConfig.from_env()
    async with open_backend(settings, name="pyoco-server ensure-resources"):
        pass


async def back_up(config: NatsBackendConfig, directory: Path) -> dict[str, int]:
    """Every stream and bucket into a directory: how many messages of each, by name.

    Jobs come first: a run that ends meanwhile has a job too many, which is dropped, and not one too few.
    """
    saved = {}
    async with _connected(config, "pyoco-server-admin backup", patiently=False) as connection:
        for spec in topology.resources(config):
            stream = await backup.save_stream(connection, spec.name, directory)
            if stream is not None:
                saved[stream.name] = stream.messages
    return saved


async def restore(config: NatsBackendConfig, directory: Path) -> dict[str, int]:
    """What `back_up` saved, into a NATS that has nothing of it, with the replicas of the settings."""
    streams = backup.saved_streams(directory)
    async with _connected(config, "pyoco-server-admin restore", patiently=False) as connection:
        await backup.require_absent(connection, streams)
        for stream in streams:
            await backup.restore_stream(connection, stream, directory, config.jetstream_replicas)
    return {stream.name: stream.messages for stream in streams}


def new_thread_executors(
    flow_resolver: Callable[[str], Any], allowed_modules: tuple[str, ...] = ()
) -> ThreadExecutors:
    return ThreadExecutors(flow_resolver, allowed_modules)


@asynccontextmanager
async def open_wheels(config: NatsBackendConfig) -> AsyncIterator[WheelObjects]:
    """The registered wheels, on a connection of their own: a large one must not delay a heartbeat."""
    async with _connected(config, "pyoco-worker objects", patiently=True) as connection:
        yield WheelObjects(connection, config.wheel_object_store_bucket)


@asynccontextmanager
async def open_process_executors(
    spec: ExecutorSpec, concurrency: int, limits: Limits
) -> AsyncIterator[ProcessExecutors]:
    """The flows of `spec` may be a directory, whose files are loaded again when they change.

    Raises InvalidCliInput when the flows cannot be loaded.
    """
    directory = Path(spec.flow_resolver)
    version = version_of(directory)
    spec = replace(spec, version=version)
    executors = ProcessExecutors(spec, concurrency, limits)
    await executors.open()
    following = asyncio.ensure_future(follow_flow_files(directory, executors)) if version else None
    try:
        yield executors
    finally:
        if following is not None:
            following.cancel()
        await executors.close()


def new_run_id() -> str:
    """Time-ordered, so that ids of neighbouring runs stand together."""
    return str(uuid7())


def new_api_key() -> ApiKey:
    """256 random bits: what makes a fast hash of them enough."""
    return ApiKey(secrets.token_hex(12), secrets.token_urlsafe(32))


def new_salt() -> bytes:
    return secrets.token_bytes(16)
