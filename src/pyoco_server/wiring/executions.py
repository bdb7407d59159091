"""The level of executions: graphs, the log of what happens to their executions, what is derived from it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import wire
from pyoco_server.domain.execution.codec import decode_commit, decode_record, encode_record
from pyoco_server.domain.execution.records import ExecutionRecord, LoggedCommit
from pyoco_server.domain.leases import LeaseRecord
from pyoco_server.jetstream.bucket_feed import StreamFeed
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.execution_log import JetStreamExecutionLog
from pyoco_server.jetstream.graph_store import JetStreamGraphs
from pyoco_server.jetstream.kv_store import KvStore
from pyoco_server.jetstream.streams import stream_config
from pyoco_server.read_model.sqlite_execution_index import SqliteExecutionIndex
from pyoco_server.wiring.connecting import GatewayConnections, bucket_config, bucket_of, restorer


@dataclass(frozen=True)
class JetStreamExecutionLevel:
    graphs: JetStreamGraphs
    execution_log: JetStreamExecutionLog
    execution_feed: StreamFeed[LoggedCommit]
    execution_cache: KvStore[ExecutionRecord]
    execution_index: SqliteExecutionIndex
    leases: KvStore[LeaseRecord]


@asynccontextmanager
async def open_execution_level(
    connections: GatewayConnections, config: NatsBackendConfig
) -> AsyncIterator[JetStreamExecutionLevel]:
    """Its streams and buckets have to be there."""
    requests, feeds = connections.requests, connections.feeds
    stream, prefix = config.executions_stream, config.executions_subject_prefix
    restore = restorer(feeds, config)
    with closing(SqliteExecutionIndex(tenants=config.http_auth_mode != "none")) as index:
        yield JetStreamExecutionLevel(
            graphs=await _graphs(requests, config),
            execution_log=await _execution_log(requests, config),
            execution_feed=StreamFeed(feeds, stream, prefix, decode_commit, restore),
            execution_cache=await bucket_of(
                requests, config.executions_kv_bucket, encode_record, decode_record, restore
            ),
            execution_index=index,
            leases=await bucket_of(
                requests, config.leases_kv_bucket, wire.encode, wire.decode_lease, restore
            ),
        )


async def _graphs(connection: NatsConnection, config: NatsBackendConfig) -> JetStreamGraphs:
    bucket = config.graphs_kv_bucket
    return JetStreamGraphs(connection, bucket, await bucket_config(connection, bucket))


async def _execution_log(connection: NatsConnection, config: NatsBackendConfig) -> JetStreamExecutionLog:
    stream = await stream_config(connection, config.executions_stream) or {}
    return JetStreamExecutionLog(
        connection,
        config.executions_stream,
        config.executions_subject_prefix,
        is_replicated=stream.get("num_replicas", 1) > 1,
    )
