"""The composition root: the only place that knows which adapter stands behind which port."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from uuid_utils import uuid7

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import wire
from pyoco_server.domain.compaction import fit
from pyoco_server.domain.runs import RunSnapshot
from pyoco_server.domain.workers import WorkerRecord
from pyoco_server.engine.thread_executor import ThreadExecutor
from pyoco_server.errors import SnapshotTooLarge
from pyoco_server.jetstream import topology
from pyoco_server.jetstream.connection import NatsConnection, without_credentials
from pyoco_server.jetstream.embedded_server import Durability, EmbeddedNats
from pyoco_server.jetstream.job_source import JetStreamJobSources
from pyoco_server.jetstream.kv_store import KvStore
from pyoco_server.jetstream.work_queue import DlqStream, WorkQueue
from pyoco_server.logs import get_logger

__all__ = [
    "Durability",
    "EmbeddedNats",
    "JetStreamBackend",
    "ensure_resources",
    "new_run_id",
    "new_thread_executor",
    "open_backend",
    "without_credentials",
]

log = get_logger(__name__)

HEADER_ROOM = 4_096
"""The server's limit is for a message with its headers."""


@dataclass(frozen=True)
class JetStreamBackend:
    connection: NatsConnection
    runs: KvStore[RunSnapshot]
    workers: KvStore[WorkerRecord]
    queue: WorkQueue
    sources: JetStreamJobSources
    dead_letters: DlqStream

    @property
    def is_available(self) -> bool:
        return self.connection.is_connected


@asynccontextmanager
async def open_backend(
    config: NatsBackendConfig, name: str, *, patiently: bool = False
) -> AsyncIterator[JetStreamBackend]:
    """Everything on one connection. `patiently` waits for a NATS that is not there yet."""
    connection = NatsConnection(config.nats_url, name)
    await connection.open(patiently=patiently)
    try:
        yield await _backend(connection, config)
    finally:
        await connection.close()


async def _backend(connection: NatsConnection, config: NatsBackendConfig) -> JetStreamBackend:
    streams = await topology.ensure_resources(connection, config)
    return JetStreamBackend(
        connection=connection,
        runs=KvStore(
            connection,
            config.runs_kv_bucket,
            streams[f"KV_{config.runs_kv_bucket}"],
            partial(encode_within, min(config.max_run_snapshot_bytes, connection.max_payload - HEADER_ROOM)),
            wire.decode_run,
        ),
        workers=KvStore(
            connection,
            config.workers_kv_bucket,
            streams[f"KV_{config.workers_kv_bucket}"],
            wire.encode,
            wire.decode_worker,
        ),
        queue=WorkQueue(connection, config.work_subject_prefix),
        sources=JetStreamJobSources(connection, config),
        dead_letters=DlqStream(connection, config.dlq_subject_prefix),
    )


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


async def ensure_resources(config: NatsBackendConfig | None = None) -> None:
    """Create the streams, buckets and the object store that are missing, and check those that exist."""
    settings = config or NatsBackendConfig.from_env()
    async with open_backend(settings, name="pyoco-server ensure-resources"):
        pass


def new_thread_executor(flow_resolver: Callable[[str], Any]) -> ThreadExecutor:
    return ThreadExecutor(flow_resolver)


def new_run_id() -> str:
    """Time-ordered, so that ids of neighbouring runs stand together."""
    return str(uuid7())
