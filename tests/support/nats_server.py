"""Looking into JetStream from outside, with the plain client library and none of our code."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import nats
from nats.js.errors import NotFoundError

from pyoco_server.cli.ports import free_port as free_port_on
from pyoco_server.config import NatsBackendConfig


def free_port() -> int:
    return free_port_on("127.0.0.1")


def unique_config(url: str, **changes: Any) -> NatsBackendConfig:
    unique = secrets.token_hex(4)
    names: dict[str, Any] = {
        "nats_url": url,
        "work_stream": f"WORK_{unique}",
        "work_subject_prefix": f"work.{unique}",
        "dlq_stream": f"DLQ_{unique}",
        "dlq_subject_prefix": f"dlq.{unique}",
        "advisories_stream": f"ADVISORIES_{unique}",
        "runs_kv_bucket": f"runs_{unique}",
        "workers_kv_bucket": f"workers_{unique}",
        "auth_kv_bucket": f"auth_{unique}",
        "idempotency_kv_bucket": f"idempotency_{unique}",
        "logs_stream": f"LOGS_{unique}",
        "logs_subject_prefix": f"logs.{unique}",
        "wheel_history_kv_bucket": f"wheel_history_{unique}",
        "wheel_object_store_bucket": f"wheels_{unique}",
        "workflows_kv_bucket": f"workflows_{unique}",
        "workflow_receipts_kv_bucket": f"receipts_{unique}",
        "workflow_retry_kv_bucket": f"retry_jobs_{unique}",
        "audit_stream": f"AUDIT_{unique}",
        "audit_subject_prefix": f"audit.{unique}",
        "run_heartbeat_interval_sec": 0.1,
        "worker_heartbeat_interval_sec": 0.2,
    }
    return NatsBackendConfig(**{**names, **changes})


@asynccontextmanager
async def raw_nats(url: str) -> AsyncIterator[Any]:
    client = await nats.connect(url)
    try:
        yield client
    finally:
        await client.close()


def streams_of(config: NatsBackendConfig) -> list[str]:
    buckets = (
        config.runs_kv_bucket,
        config.workers_kv_bucket,
        config.auth_kv_bucket,
        config.idempotency_kv_bucket,
        config.wheel_history_kv_bucket,
        config.workflows_kv_bucket,
        config.workflow_receipts_kv_bucket,
        config.workflow_retry_kv_bucket,
    )
    return [
        config.work_stream,
        config.dlq_stream,
        config.advisories_stream,
        config.logs_stream,
        config.audit_stream,
        *(f"KV_{bucket}" for bucket in buckets),
        f"OBJ_{config.wheel_object_store_bucket}",
    ]


async def delete_streams_of(config: NatsBackendConfig) -> None:
    async with raw_nats(config.nats_url) as client:
        for name in streams_of(config):
            with suppress(NotFoundError):
                await client.jetstream().delete_stream(name)


async def messages_in(config: NatsBackendConfig, stream: str) -> int:
    async with raw_nats(config.nats_url) as client:
        info = await client.jetstream().stream_info(stream)
        count: int = info.state.messages
        return count


async def jobs_waiting(config: NatsBackendConfig) -> int:
    """Jobs that are not acknowledged yet: a work queue forgets the others."""
    return await messages_in(config, config.work_stream)


async def dead_letters(config: NatsBackendConfig) -> list[tuple[str, dict[str, Any]]]:
    """Subject and content of every record of the dead letter stream."""
    async with raw_nats(config.nats_url) as client:
        stream = client.jetstream()
        last = (await stream.stream_info(config.dlq_stream)).state.last_seq
        messages = [await stream.get_msg(config.dlq_stream, seq) for seq in range(1, last + 1)]
        return [(message.subject, msgspec.json.decode(message.data)) for message in messages]


async def put_message(
    config: NatsBackendConfig, payload: bytes, tag: str = "default", headers: dict[str, str] | None = None
) -> None:
    """A message on the work queue, as a producer of another make would put it."""
    async with raw_nats(config.nats_url) as client:
        await client.jetstream().publish(f"{config.work_subject_prefix}.{tag}", payload, headers=headers)


async def stored_run(config: NatsBackendConfig, run_id: str) -> dict[str, Any] | None:
    """The bytes of the bucket, read as any NATS client would."""
    async with raw_nats(config.nats_url) as client:
        bucket = await client.jetstream().key_value(config.runs_kv_bucket)
        try:
            entry = await bucket.get(run_id)
        except NotFoundError:
            return None
        found: dict[str, Any] = msgspec.json.decode(entry.value)
        return found
