"""The streams and buckets that the product requires: their settings and their creation."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import IncompatibleNats, NatsUnavailable, NobodyAnswers
from pyoco_server.jetstream.connection import NANOSECONDS, NOT_FOUND, ApiError, NatsConnection
from pyoco_server.logs import get_logger

log = get_logger(__name__)

NAME_IN_USE = 10058
NO_STORAGE = frozenset({10023, 10047})
"""Insufficient resources, insufficient storage."""
LEAST_BYTES = 1024 * 1024

MANAGEMENT_TIMEOUT_SEC = 15.0
UPDATE_TIMEOUT_SEC = 5.0
CREATE_ATTEMPTS = 4
"""Creating a stream syncs files to disk, which takes seconds on a busy machine."""
_NO_PEERS = 10005
PEERS_SEC = 45.0
PEERS_RETRY_SEC = 0.25
"""Nodes of a cluster report to each other every 30 s; until then one that has just started is "offline"."""

TRAIL_MAX_BYTES = 256 * 1024 * 1024
BULK_MAX_AGE_SEC = 90 * 86_400.0
"""Of operations since their last change, and of what is left of their items."""
STATS_MAX_AGE_SEC = 91 * 86_400.0
"""Of hours since their last run, and of the position: after that nothing in the bucket is shown."""
DELIVERIES_MAX_AGE_SEC = 30 * 86_400.0
"""Of deliveries since their last change."""
ADVISORIES_MAX_AGE_SEC = 604_800.0
"""Advisory retention; after a longer outage the sweep finds such jobs."""


class StreamSpec(Struct, frozen=True, kw_only=True):
    """A required stream. `must_match` holds the settings that the product depends on."""

    name: str
    purpose: str
    config: dict[str, Any]
    must_match: dict[str, Any] = field(default_factory=dict)
    follows: dict[str, Any] = field(default_factory=dict)
    """Settings that are also applied to an existing stream. They harm no older gateway or worker."""


def work_stream(name: str, purpose: str, subject_prefix: str) -> StreamSpec:
    """A queue whose messages may be scheduled. Servers before 2.12 ignore that setting."""
    config = {
        "subjects": [f"{subject_prefix}.>"],
        "retention": "workqueue",
        "storage": "file",
        "allow_direct": True,
        "allow_msg_schedules": True,
    }
    return StreamSpec(
        name=name,
        purpose=purpose,
        config=config,
        must_match={"subjects": config["subjects"], "retention": "workqueue"},
        follows={"allow_msg_schedules": True},
    )


def limits_stream(
    name: str,
    purpose: str,
    subject_prefix: str,
    *,
    max_age_sec: float,
    max_msgs: int = -1,
    max_bytes: int = -1,
) -> StreamSpec:
    """A log that drops its oldest records."""
    config = {
        "subjects": [f"{subject_prefix}.>"],
        "retention": "limits",
        "discard": "old",
        "storage": "file",
        "max_age": int(max_age_sec * NANOSECONDS),
        "max_msgs": max_msgs,
        "max_bytes": max_bytes,
        "allow_direct": True,
    }
    return StreamSpec(name=name, purpose=purpose, config=config, must_match={"subjects": config["subjects"]})


def kept_stream(name: str, purpose: str, subject_prefix: str) -> StreamSpec:
    """A log that keeps everything, except what is deleted."""
    config = {
        "subjects": [f"{subject_prefix}.>"],
        "retention": "limits",
        "discard": "new",
        "storage": "file",
        "allow_direct": True,
        "allow_msg_ttl": True,
    }
    return StreamSpec(
        name=name,
        purpose=purpose,
        config=config,
        must_match={"subjects": config["subjects"]},
        follows={"allow_msg_ttl": True},
    )


def max_deliveries_subject(stream: str) -> str:
    """Subject of max-deliver advisories for `stream`, without the consumer's name."""
    return f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}"


def kv_bucket(bucket: str, purpose: str, *, ttl_sec: float = 0) -> StreamSpec:
    """A standard NATS key-value bucket with one value per key."""
    config = {
        "subjects": [f"$KV.{bucket}.>"],
        "max_msgs_per_subject": 1,
        "max_age": int(ttl_sec * NANOSECONDS),
        "discard": "new",
        "storage": "file",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
    }
    return StreamSpec(
        name=f"KV_{bucket}",
        purpose=purpose,
        config=config,
        must_match={"subjects": config["subjects"], "max_msgs_per_subject": 1},
    )


def history_bucket(bucket: str, purpose: str, *, ttl_sec: float, max_bytes: int) -> StreamSpec:
    """A bucket of values that are never replaced and whose oldest are dropped."""
    spec = kv_bucket(bucket, purpose, ttl_sec=ttl_sec)
    return replace(spec, config={**spec.config, "discard": "old", "max_bytes": max_bytes})


def receipts_bucket(bucket: str, purpose: str) -> StreamSpec:
    """A bucket without a limit (older versions set one): a tenant would evict another's receipts."""
    spec = deletable_bucket(bucket, purpose)
    return replace(spec, follows={"max_msgs": -1})


def deletable_bucket(bucket: str, purpose: str) -> StreamSpec:
    """A bucket whose values can be deleted without a marker, so that its size is the number of values."""
    spec = kv_bucket(bucket, purpose)
    return replace(spec, config={**spec.config, "deny_delete": False})


def retained(spec: StreamSpec) -> StreamSpec:
    """The retention of the settings also counts for what is stored already."""
    return replace(spec, follows={**spec.follows, "max_age": spec.config["max_age"]})


def object_store(bucket: str, purpose: str) -> StreamSpec:
    """A standard NATS object store: chunks and metadata in one stream."""
    config = {
        "subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
        "discard": "new",
        "storage": "file",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
    }
    return StreamSpec(
        name=f"OBJ_{bucket}", purpose=purpose, config=config, must_match={"subjects": config["subjects"]}
    )


# What the product requires


def queues_bucket(config: NatsBackendConfig) -> StreamSpec:
    return kv_bucket(config.queues_kv_bucket, "queue")


def worker_resources(config: NatsBackendConfig) -> list[StreamSpec]:
    """The resources that a worker requires. It may have no right to change them."""
    return [replace(spec, follows={}) for spec in _run_resources(config)]


def _run_resources(config: NatsBackendConfig) -> list[StreamSpec]:
    return [
        work_stream(config.work_stream, "work queue", config.work_subject_prefix),
        replace(
            limits_stream(
                config.dlq_stream,
                "dead letter",
                config.dlq_subject_prefix,
                max_age_sec=config.dlq_max_age_sec,
                max_msgs=config.dlq_max_msgs,
                max_bytes=config.dlq_max_bytes,
            ),
            follows={"allow_direct": True},  # another implementation may have made it; lists read it directly
        ),
        limits_stream(
            config.logs_stream,
            "task log",
            config.logs_subject_prefix,
            max_age_sec=config.logs_max_age_sec,
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
        ),
        work_stream(config.timers_stream, "timer", config.timers_subject_prefix),
        queues_bucket(config),
        # A mark is younger than its letter, so it is kept for longer.
        kv_bucket(config.dead_letters_kv_bucket, "dead letter mark", ttl_sec=config.dlq_max_age_sec),
        kv_bucket(config.idempotency_kv_bucket, "idempotency key", ttl_sec=config.idempotency_ttl_sec),
        kv_bucket(config.auth_kv_bucket, "API key"),
        kv_bucket(config.secrets_kv_bucket, "secret"),
        kv_bucket(config.wheel_history_kv_bucket, "wheel history", ttl_sec=config.wheel_history_ttl_sec),
        object_store(config.wheel_object_store_bucket, "wheel"),
        object_store(config.values_object_store_bucket, "large value"),
        kept_stream(config.executions_stream, "execution log", config.executions_subject_prefix),
        kv_bucket(config.executions_kv_bucket, "execution state"),
        kv_bucket(config.leases_kv_bucket, "lease"),
        kv_bucket(config.graphs_kv_bucket, "graph"),
        kv_bucket(config.flows_kv_bucket, "flow"),
        kv_bucket(config.schedules_kv_bucket, "schedule"),
        retained(
            history_bucket(
                config.ticks_kv_bucket,
                "tick",
                ttl_sec=config.ticks_retention_sec,
                max_bytes=config.ticks_max_bytes,
            )
        ),
        kv_bucket(config.bulk_kv_bucket, "bulk operation", ttl_sec=BULK_MAX_AGE_SEC),
        kv_bucket(config.bulk_items_kv_bucket, "items of bulk operations", ttl_sec=BULK_MAX_AGE_SEC),
        kv_bucket(config.stats_kv_bucket, "statistics", ttl_sec=STATS_MAX_AGE_SEC),
        kv_bucket(config.alerts_kv_bucket, "alert"),
        kv_bucket(config.deliveries_kv_bucket, "delivery", ttl_sec=DELIVERIES_MAX_AGE_SEC),
        kv_bucket(config.limits_kv_bucket, "limit"),
        kv_bucket(config.limit_holders_kv_bucket, "limit holders"),
        *event_resources(config),
    ]


def audit_trail_names(config: NatsBackendConfig) -> tuple[str, str, str]:
    """Stream, purpose and subjects of the audit trail, beside the audit records of events."""
    return f"{config.audit_stream}_TRAIL", "audit trail", f"{config.audit_subject_prefix}_trail"


def event_resources(config: NatsBackendConfig) -> list[StreamSpec]:
    return [
        kv_bucket(config.workflows_kv_bucket, "workflow"),
        receipts_bucket(config.workflow_receipts_kv_bucket, "workflow event receipt"),
        deletable_bucket(config.workflow_retry_kv_bucket, "retry job"),
        deletable_bucket(config.workflow_resumes_kv_bucket, "kept resume"),
        retained(
            limits_stream(
                config.audit_stream,
                "audit",
                config.audit_subject_prefix,
                max_age_sec=config.audit_max_age_sec,
                max_bytes=config.audit_max_bytes,
            )
        ),
        retained(
            limits_stream(
                *audit_trail_names(config), max_age_sec=config.audit_max_age_sec, max_bytes=TRAIL_MAX_BYTES
            )
        ),
    ]


# Creation


async def ensure_streams(
    connection: NatsConnection, config: NatsBackendConfig, specs: Sequence[StreamSpec] | None = None
) -> dict[str, dict[str, Any]]:
    """Create missing resources, keep existing ones. Returns the configurations in effect by stream name.

    Those that reserve storage come last: on a small disk they share what is left.
    """
    wanted = sorted(resources(config) if specs is None else specs, key=_reserves)
    return {spec.name: await ensure_stream(connection, spec, config.jetstream_replicas) for spec in wanted}


def _reserves(spec: StreamSpec) -> bool:
    return bool(spec.config.get("max_bytes", -1) > 0)


async def stream_config(connection: NatsConnection, name: str) -> dict[str, Any] | None:
    answer = await stream_info(connection, name)
    return None if answer is None else answer["config"]


async def stream_info(connection: NatsConnection, name: str) -> dict[str, Any] | None:
    try:
        return await connection.api(f"STREAM.INFO.{name}")
    except ApiError as error:
        if error.err_code == NOT_FOUND:
            return None
        raise


async def ensure_stream(connection: NatsConnection, spec: StreamSpec, replicas: int) -> dict[str, Any]:
    """The configuration in effect. An existing stream is kept if it is usable."""
    found = await stream_config(connection, spec.name)
    if found is None:
        found = await _create(connection, spec, replicas)
    for key, wanted in spec.must_match.items():
        if found.get(key) != wanted:
            raise IncompatibleNats(
                f"the {spec.purpose} stream {spec.name} exists with {key}={found.get(key)!r}, "
                f"but {wanted!r} is required: set another name, or change the stream"
            )
    if any(found.get(key) != wanted for key, wanted in spec.follows.items()):
        return await _update(connection, spec, found)
    return found


async def _update(connection: NatsConnection, spec: StreamSpec, found: dict[str, Any]) -> dict[str, Any]:
    """If it cannot be updated, the stream is used as it is.

    An operator may have set what excludes the new setting. An account without the right gets no answer.
    """
    body = {**found, **spec.follows}
    try:
        answer = await connection.api(f"STREAM.UPDATE.{spec.name}", body, UPDATE_TIMEOUT_SEC)
    except NatsUnavailable as error:
        log.warning(
            "stream could not be updated; using it as it is",
            action="stream.not_updated",
            stream=spec.name,
            wanted=spec.follows,
            error=str(error),
        )
        return found
    config: dict[str, Any] = answer["config"]
    return config


async def _create(connection: NatsConnection, spec: StreamSpec, replicas: int) -> dict[str, Any]:
    body = {"name": spec.name, "num_replicas": replicas, **spec.config}
    try:
        answer = await _create_within_limits(connection, spec, body)
    except ApiError as error:
        # In use: another gateway or worker created it at the same time.
        found = await stream_config(connection, spec.name) if error.err_code == NAME_IN_USE else None
        if found is None:
            raise
        return found
    config: dict[str, Any] = answer["config"]
    return config


async def _create_within_limits(
    connection: NatsConnection, spec: StreamSpec, body: dict[str, Any]
) -> dict[str, Any]:
    """JetStream reserves `max_bytes` of its storage, so on a small disk a smaller size is tried."""
    wanted: int = body.get("max_bytes", -1)
    for size in _sizes(wanted):
        try:
            answer = await _request_creation(connection, {**body, "max_bytes": size})
        except ApiError as error:
            if error.err_code not in NO_STORAGE:
                raise
            continue
        if size != wanted:
            log.warning(
                "not enough JetStream storage; the stream is smaller than configured",
                action="stream.reserves_less",
                stream=spec.name,
                bytes=size,
                wanted=wanted,
            )
        return answer
    raise NatsUnavailable(
        f"JetStream has no space for the {spec.purpose} stream {spec.name} ({max(0, wanted)} bytes): "
        "free disk space, raise max_file_store of the NATS server, or set a smaller size"
    )


async def _request_creation(connection: NatsConnection, body: dict[str, Any]) -> dict[str, Any]:
    """A cluster drops the reply when a leader changes meanwhile. The same request again is harmless."""
    name = body["name"]
    for attempt in range(1, CREATE_ATTEMPTS):
        try:
            return await place_stream(connection, f"STREAM.CREATE.{name}", body)
        except (ApiError, NobodyAnswers):
            raise
        except NatsUnavailable as error:
            log.warning(
                "no reply to the creation of a stream; trying again",
                action="stream.creation_retried",
                stream=name,
                attempt=attempt,
                error=str(error),
            )
    return await place_stream(connection, f"STREAM.CREATE.{name}", body)


async def place_stream(connection: NatsConnection, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    """Create or restore a stream. Waits for nodes that the cluster still considers offline."""
    deadline = time.monotonic() + PEERS_SEC
    is_logged = False
    while True:
        try:
            return await connection.api(verb, body, MANAGEMENT_TIMEOUT_SEC)
        except ApiError as error:
            if not _is_peer_offline(error) or time.monotonic() > deadline:
                raise
            if not is_logged:
                log.warning(
                    "too few nodes of the NATS cluster are online for the replicas of a stream; waiting",
                    action="stream.waits_for_nodes",
                    request=verb,
                    wait_sec=PEERS_SEC,
                    error=str(error),
                )
                is_logged = True
        await asyncio.sleep(PEERS_RETRY_SEC)


def _is_peer_offline(error: ApiError) -> bool:
    return error.err_code == _NO_PEERS and "offline" in error.description


def _sizes(wanted: int) -> list[int]:
    """Sizes to try, each a sixteenth of the previous one, to leave space for the other streams."""
    sizes = [wanted]
    while sizes[-1] // 16 >= LEAST_BYTES:
        sizes.append(sizes[-1] // 16)
    return sizes
