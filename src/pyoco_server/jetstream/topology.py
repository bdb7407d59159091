"""The streams and buckets that the product requires in JetStream, and a check that they store."""

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from pyoco_server.config import NatsBackendConfig
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.streams import (
    StreamSpec,
    deletable_bucket,
    ensure_stream,
    history_bucket,
    kept_stream,
    kv_bucket,
    limits_stream,
    max_deliveries_subject,
    object_store,
    receipts_bucket,
    stream_config,
    work_stream,
)
from pyoco_server.logs import get_logger

ADVISORIES_MAX_AGE_SEC = 604_800.0
"""Advisory retention; after a longer outage the sweep finds such jobs."""
TICKS_MAX_AGE_SEC = 90 * 86_400.0


def worker_resources(config: NatsBackendConfig) -> list[StreamSpec]:
    """The resources that a worker requires. It may have no right to change them."""
    return [replace(spec, follows={}) for spec in _run_resources(config)]


def _run_resources(config: NatsBackendConfig) -> list[StreamSpec]:
    return [
        work_stream(config.work_stream, "work queue", config.work_subject_prefix),
        limits_stream(
            config.dlq_stream,
            "dead letter",
            config.dlq_subject_prefix,
            max_age_sec=config.dlq_max_age_sec,
            max_msgs=config.dlq_max_msgs,
            max_bytes=config.dlq_max_bytes,
        ),
        limits_stream(
            config.logs_stream,
            "task log",
            config.logs_subject_prefix,
            max_age_sec=config.logs_max_age_sec,
            max_msgs=-1,
            max_bytes=config.logs_max_bytes,
        ),
        kv_bucket(config.runs_kv_bucket, "run snapshot"),
        # No TTL: a worker without heartbeat is shown as disconnected, it does not disappear.
        kv_bucket(config.workers_kv_bucket, "worker registry"),
    ]


def resources(config: NatsBackendConfig) -> list[StreamSpec]:
    return [
        *_run_resources(config),
        limits_stream(
            config.advisories_stream,
            "advisory",
            max_deliveries_subject(config.work_stream),
            max_age_sec=ADVISORIES_MAX_AGE_SEC,
            max_msgs=-1,
            max_bytes=-1,
        ),
        work_stream(config.timers_stream, "timer", config.timers_subject_prefix),
        kv_bucket(config.idempotency_kv_bucket, "idempotency key", ttl_sec=config.idempotency_ttl_sec),
        kv_bucket(config.auth_kv_bucket, "API key"),
        kv_bucket(config.wheel_history_kv_bucket, "wheel history", ttl_sec=config.wheel_history_ttl_sec),
        object_store(config.wheel_object_store_bucket, "wheel"),
        kept_stream(config.executions_stream, "execution log", config.executions_subject_prefix),
        kv_bucket(config.executions_kv_bucket, "execution state"),
        kv_bucket(config.leases_kv_bucket, "lease"),
        kv_bucket(config.graphs_kv_bucket, "graph"),
        kv_bucket(config.schedules_kv_bucket, "schedule"),
        history_bucket(
            config.ticks_kv_bucket, "tick", ttl_sec=TICKS_MAX_AGE_SEC, max_bytes=config.ticks_max_bytes
        ),
        *event_resources(config),
    ]


def event_resources(config: NatsBackendConfig) -> list[StreamSpec]:
    return [
        kv_bucket(config.workflows_kv_bucket, "workflow"),
        receipts_bucket(config.workflow_receipts_kv_bucket, "workflow event receipt"),
        deletable_bucket(config.workflow_retry_kv_bucket, "retry job"),
        deletable_bucket(config.workflow_resumes_kv_bucket, "kept resume"),
        limits_stream(
            config.audit_stream,
            "audit",
            config.audit_subject_prefix,
            max_age_sec=config.audit_max_age_sec,
            max_msgs=-1,
            max_bytes=config.audit_max_bytes,
        ),
    ]


async def ensure_resources(
    connection: NatsConnection, config: NatsBackendConfig, specs: Sequence[StreamSpec] | None = None
) -> dict[str, dict[str, Any]]:
    """Create missing resources, keep existing ones. Returns the configurations in effect by stream name."""
    wanted = resources(config) if specs is None else specs
    return {spec.name: await ensure_stream(connection, spec, config.jetstream_replicas) for spec in wanted}


# Storage check

log = get_logger(__name__)

KEY = "storage"


class JetStreamStorage:
    def __init__(self, connection: NatsConnection, config: NatsBackendConfig) -> None:
        self._connection = connection
        self._config = config
        self._wanted = [spec.name for spec in resources(config)]

    async def check(self) -> None:
        found = await asyncio.gather(*(stream_config(self._connection, name) for name in self._wanted))
        missing = [name for name, config in zip(self._wanted, found, strict=True) if config is None]
        if missing:
            log.error("streams were deleted; recreating them", action="storage.restore", streams=missing)
            await ensure_resources(self._connection, self._config)
        await self._connection.publish_acked(f"$KV.{self._config.leases_kv_bucket}.{KEY}", b"{}", {})
