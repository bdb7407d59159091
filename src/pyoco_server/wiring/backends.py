"""Connections to NATS, the buckets on them, and NATS itself: start, inspect, back up, restore."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace
from uuid_utils import uuid7

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.auth import ApiKey
from pyoco_server.domain.dead_letters import LetterMark
from pyoco_server.domain.fleet import WorkerRecord
from pyoco_server.domain.flows import FlowSettings
from pyoco_server.domain.queues import Lane
from pyoco_server.domain.runs.claims import IdempotencyClaim
from pyoco_server.domain.runs.model import FlowFile, RunSnapshot
from pyoco_server.domain.runs.trimming import trim_snapshot
from pyoco_server.domain.secrets.model import SecretRecord, VariableRecord
from pyoco_server.errors import SnapshotTooLarge
from pyoco_server.jetstream import admin
from pyoco_server.jetstream.access import access_of
from pyoco_server.jetstream.admin import NatsReport, inspect
from pyoco_server.jetstream.auth import JetStreamApiKeys
from pyoco_server.jetstream.child_runs import NatsChildRuns
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.consumers import ensure_consumer
from pyoco_server.jetstream.dead_letters import DlqStream
from pyoco_server.jetstream.events import ListedKvStore
from pyoco_server.jetstream.feed import BucketFeed
from pyoco_server.jetstream.job_source import JetStreamJobSources
from pyoco_server.jetstream.kv import BucketSignals, KvStore, LogStream
from pyoco_server.jetstream.queue import JetStreamTimers, JetStreamUndeliverable, WorkQueue
from pyoco_server.jetstream.storage import JetStreamStorage
from pyoco_server.jetstream.streams import (
    ensure_streams,
    resources,
    stream_config,
    worker_resources,
)
from pyoco_server.jetstream.values import ValueObjects
from pyoco_server.jetstream.wheels import WheelHistoryBucket, WheelObjects
from pyoco_server.logs import get_logger
from pyoco_server.read_model.runs import SqliteRunIndex

T = TypeVar("T")


def check_nats_access(config: NatsBackendConfig) -> None:
    """Before a program starts to wait for NATS. Raises ConfigError for files that cannot be used."""
    access_of(config)


@asynccontextmanager
async def connected(
    config: NatsBackendConfig,
    name: str,
    *,
    patiently: bool,
) -> AsyncIterator[NatsConnection]:
    """Patiently: it waits for a NATS that is not there yet. Otherwise raises NatsUnavailable."""
    connection = NatsConnection(
        config.nats_url,
        name,
        config.jetstream_api_prefix,
        access=access_of(config),
        request_timeout_sec=config.jetstream_timeout_sec,
    )
    await connection.open(patiently=patiently)
    try:
        yield connection
    finally:
        await connection.close()


@dataclass(frozen=True)
class GatewayConnections:
    """Three of them, so that a long history or a large wheel never delays a request's answer."""

    requests: NatsConnection
    feeds: NatsConnection
    objects: NatsConnection


@asynccontextmanager
async def gateway_connections(config: NatsBackendConfig) -> AsyncIterator[GatewayConnections]:
    connect = partial(connected, config, patiently=True)
    async with (
        connect("pyoco-server") as requests,
        connect("pyoco-server feeds") as feeds,
        connect("pyoco-server objects") as objects,
    ):
        yield GatewayConnections(requests, feeds, objects)


def restorer(connection: NatsConnection, config: NatsBackendConfig) -> Callable[[], Awaitable[object]]:
    """Creates again what was removed while it is in use."""
    return partial(ensure_streams, connection, config)


async def bucket_config(connection: NatsConnection, bucket: str) -> dict[str, Any]:
    return await stream_config(connection, f"KV_{bucket}") or {}


async def bucket_of(
    connection: NatsConnection,
    bucket: str,
    encode: Callable[[T], bytes],
    decode: Callable[[bytes], T],
    restore: Callable[[], Awaitable[object]] | None = None,
) -> KvStore[T]:
    config = await bucket_config(connection, bucket)
    return KvStore(connection, bucket, config, encode, decode, restore=restore)


# The level of runs: what a worker, a client and a gateway need of it.

log = get_logger(__name__)

IN_MEMORY = ":memory:"
HEADER_ROOM = 4_096
"""The server's limit is for a message with its headers."""


@dataclass(frozen=True)
class JetStreamWorkerBackend:
    connection: NatsConnection
    runs: KvStore[RunSnapshot]
    workers: KvStore[WorkerRecord]
    queue: WorkQueue
    sources: JetStreamJobSources
    dead_letters: DlqStream
    task_logs: LogStream
    run_signals: BucketSignals
    secrets: ListedKvStore[SecretRecord]
    variables: ListedKvStore[VariableRecord]
    values: ValueObjects
    child_runs: NatsChildRuns

    @property
    def is_available(self) -> bool:
        return self.connection.is_connected


@dataclass(frozen=True)
class JetStreamBackend(JetStreamWorkerBackend):
    api_keys: JetStreamApiKeys


@dataclass(frozen=True)
class JetStreamRunLevel(JetStreamBackend):
    claims: KvStore[IdempotencyClaim]
    letter_marks: KvStore[LetterMark]
    flow_files: ListedKvStore[FlowFile]
    flows: KvStore[FlowSettings]
    flow_feed: BucketFeed[FlowSettings]
    wheels: WheelObjects
    wheel_history: WheelHistoryBucket
    run_feed: BucketFeed[RunSnapshot]
    worker_feed: BucketFeed[WorkerRecord]
    undeliverable: JetStreamUndeliverable
    timers: JetStreamTimers
    run_index: SqliteRunIndex
    storage: JetStreamStorage


@asynccontextmanager
async def open_worker_backend(config: NatsBackendConfig, name: str) -> AsyncIterator[JetStreamWorkerBackend]:
    """What a worker needs, on one connection. Raises NatsUnavailable when NATS is not there."""
    async with connected(config, name, patiently=False) as connection:
        specs = worker_resources(config)
        streams = await ensure_streams(connection, config, specs)
        yield _worker_backend(connection, config, streams, retention_sec=None)


@asynccontextmanager
async def open_backend(config: NatsBackendConfig, name: str) -> AsyncIterator[JetStreamBackend]:
    """What a client needs, on one connection. Raises NatsUnavailable when NATS is not there."""
    async with connected(config, name, patiently=False) as connection:
        yield await _backend(connection, config)


@asynccontextmanager
async def open_run_level(
    connections: GatewayConnections, config: NatsBackendConfig
) -> AsyncIterator[JetStreamRunLevel]:
    """What a gateway needs."""
    requests, feeds, objects = connections.requests, connections.feeds, connections.objects
    backend = await _backend(requests, config, scans=feeds)
    for tag in config.tags_of_queues:
        await ensure_consumer(requests, config, Lane(tag))
    restore = restorer(feeds, config)
    with closing(_run_index(config)) as index:
        yield JetStreamRunLevel(
            **{
                **vars(backend),
                "task_logs": _task_logs(feeds, config),
                "values": ValueObjects(objects, config.values_object_store_bucket),
            },
            claims=await bucket_of(requests, config.idempotency_kv_bucket, codec.encode, codec.decode_claim),
            letter_marks=await bucket_of(
                requests, config.dead_letters_kv_bucket, codec.encode, codec.decode_letter_mark, restore
            ),
            flow_files=await _flow_files(requests, config),
            flows=await bucket_of(
                requests, config.flows_kv_bucket, codec.encode, codec.decode_flow_settings, restore
            ),
            flow_feed=BucketFeed(feeds, config.flows_kv_bucket, codec.decode_flow_settings, restore),
            wheels=WheelObjects(objects, config.wheel_object_store_bucket),
            wheel_history=WheelHistoryBucket(objects, config.wheel_history_kv_bucket),
            run_feed=BucketFeed(feeds, config.runs_kv_bucket, codec.decode_run, restore),
            worker_feed=BucketFeed(feeds, config.workers_kv_bucket, codec.decode_worker, restore),
            undeliverable=JetStreamUndeliverable(feeds, config),
            timers=JetStreamTimers(requests, feeds, config),
            run_index=index,
            storage=JetStreamStorage(feeds, config),
        )


@asynccontextmanager
async def open_wheels(config: NatsBackendConfig) -> AsyncIterator[WheelObjects]:
    """The registered wheels, on a connection of their own: a large one must not delay a heartbeat."""
    async with connected(config, "pyoco-worker objects", patiently=True) as connection:
        yield WheelObjects(connection, config.wheel_object_store_bucket)


async def _backend(
    connection: NatsConnection, config: NatsBackendConfig, scans: NatsConnection | None = None
) -> JetStreamBackend:
    streams = await ensure_streams(connection, config)
    return JetStreamBackend(
        **vars(_worker_backend(connection, config, streams, scans, retention_sec=config.runs_retention_sec)),
        api_keys=JetStreamApiKeys(connection, config.auth_kv_bucket, streams[f"KV_{config.auth_kv_bucket}"]),
    )


def _worker_backend(
    connection: NatsConnection,
    config: NatsBackendConfig,
    streams: dict[str, dict[str, Any]],
    scans: NatsConnection | None = None,
    *,
    retention_sec: float | None,
) -> JetStreamWorkerBackend:
    return JetStreamWorkerBackend(
        connection=connection,
        runs=_runs(connection, config, streams[f"KV_{config.runs_kv_bucket}"], retention_sec),
        workers=_workers(connection, config, streams[f"KV_{config.workers_kv_bucket}"]),
        queue=WorkQueue(
            connection,
            config.work_stream,
            config.work_subject_prefix,
            scans=scans,
            retention_sec=retention_sec,
            allows_schedules=bool(streams[config.work_stream].get("allow_msg_schedules")),
        ),
        sources=JetStreamJobSources(connection, config),
        dead_letters=DlqStream(connection, config.dlq_stream, config.dlq_subject_prefix),
        task_logs=_task_logs(connection, config),
        run_signals=BucketSignals(connection, config.runs_kv_bucket),
        secrets=_secrets(connection, config, "secret.", codec.decode_secret),
        variables=_secrets(connection, config, "variable.", codec.decode_variable),
        values=ValueObjects(connection, config.values_object_store_bucket),
        child_runs=NatsChildRuns(connection, config.requests_subject_prefix),
    )


def _secrets(
    connection: NatsConnection, config: NatsBackendConfig, part: str, decode: Callable[[bytes], T]
) -> ListedKvStore[T]:
    """Asks the leader: a run must not fail because a replica does not know its secret yet."""
    return ListedKvStore(connection, config.secrets_kv_bucket, {}, decode, part=part)


def _runs(
    connection: NatsConnection,
    config: NatsBackendConfig,
    stream: dict[str, Any],
    retention_sec: float | None,
) -> KvStore[RunSnapshot]:
    return KvStore(
        connection,
        config.runs_kv_bucket,
        stream,
        partial(_run_bytes, connection, config.max_run_snapshot_bytes),
        codec.decode_run,
        partial(_retention, retention_sec),
        named=lambda run, key: run if run.run_id == key else replace(run, run_id=key),
    )


def _run_bytes(connection: NatsConnection, limit: int, snapshot: RunSnapshot) -> bytes:
    """With the message limit of now: after a reconnect it may be another."""
    return encode_within(min(limit, connection.max_payload - HEADER_ROOM), snapshot)


def _workers(
    connection: NatsConnection, config: NatsBackendConfig, stream: dict[str, Any]
) -> KvStore[WorkerRecord]:
    return KvStore(
        connection,
        config.workers_kv_bucket,
        stream,
        codec.encode,
        codec.decode_worker,
        named=lambda worker, key: worker if worker.worker_id == key else replace(worker, worker_id=key),
    )


def _task_logs(connection: NatsConnection, config: NatsBackendConfig) -> LogStream:
    return LogStream(connection, config.logs_stream, config.logs_subject_prefix)


async def _flow_files(connection: NatsConnection, config: NatsBackendConfig) -> ListedKvStore[FlowFile]:
    bucket = config.workflows_kv_bucket
    return ListedKvStore(
        connection,
        bucket,
        await bucket_config(connection, bucket),
        codec.decode_flow_file,
        part="flow_yaml.",
        decode_listed=codec.decode_listed_flow_file,
    )


def _run_index(config: NatsBackendConfig) -> SqliteRunIndex:
    return SqliteRunIndex(index_path(config), tenants=config.http_auth_mode != "none")


def index_path(config: NatsBackendConfig) -> Path | None:
    """Of the run index; None: in memory."""
    return None if config.read_model_path in ("", IN_MEMORY) else Path(config.read_model_path)


def _retention(keep_sec: float | None, snapshot: RunSnapshot) -> float | None:
    """Only what has ended may expire: as the gateway has set it that accepted it, else as this one.

    A worker has no word in this (None): if the run has none, gateways remove it when its time is over.
    """
    wanted = keep_sec if snapshot.retention_sec is None else snapshot.retention_sec
    return wanted if wanted and snapshot.status.is_terminal else None


def encode_within(limit: int, snapshot: RunSnapshot) -> bytes:
    fitted = trim_snapshot(snapshot, limit, codec.encode)
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


# Random and time-ordered values, given to use cases as arguments.


def new_run_id() -> str:
    """Time-ordered, so that ids of neighbouring runs stand together."""
    return str(uuid7())


def new_api_key() -> ApiKey:
    """256 random bits: what makes a fast hash of them enough."""
    return ApiKey(secrets.token_hex(12), secrets.token_urlsafe(32))


def new_salt() -> bytes:
    return secrets.token_bytes(16)


def new_key_and_salt() -> tuple[ApiKey, bytes]:
    return new_api_key(), new_salt()


# NATS itself: inspected, prepared, backed up, restored.


async def inspect_nats(config: NatsBackendConfig) -> NatsReport:
    """What is there, without changing it. Raises NatsUnavailable or IncompatibleNats."""
    async with connected(config, "pyoco-server doctor", patiently=False) as connection:
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
    async with connected(config, "pyoco-server-admin backup", patiently=False) as connection:
        for spec in resources(config):
            stream = await admin.save_stream(connection, spec.name, directory)
            if stream is not None:
                saved[stream.name] = stream.messages
    return saved


async def restore(config: NatsBackendConfig, directory: Path) -> dict[str, int]:
    """What `back_up` saved, into a NATS that has nothing of it, with the replicas of the settings."""
    streams = admin.saved_streams(directory)
    async with connected(config, "pyoco-server-admin restore", patiently=False) as connection:
        await admin.require_absent(connection, streams)
        for stream in streams:
            await admin.restore_stream(connection, stream, directory, config.jetstream_replicas)
    return {stream.name: stream.messages for stream in streams}
