"""Connections to NATS, and buckets on them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pyoco_server.config import NatsBackendConfig
from pyoco_server.jetstream import topology
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.kv_store import KvStore
from pyoco_server.jetstream.streams import stream_config

T = TypeVar("T")


@asynccontextmanager
async def connected(
    config: NatsBackendConfig, name: str, *, patiently: bool
) -> AsyncIterator[NatsConnection]:
    """Patiently: it waits for a NATS that is not there yet. Otherwise raises NatsUnavailable."""
    connection = NatsConnection(config.nats_url, name, config.jetstream_api_prefix)
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
    async with (
        connected(config, "pyoco-server", patiently=True) as requests,
        connected(config, "pyoco-server feeds", patiently=True) as feeds,
        connected(config, "pyoco-server objects", patiently=True) as objects,
    ):
        yield GatewayConnections(requests, feeds, objects)


def restorer(connection: NatsConnection, config: NatsBackendConfig) -> Callable[[], Awaitable[object]]:
    """Makes again what somebody has removed while we work with it."""
    return partial(topology.ensure_resources, connection, config)


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
