"""A gateway's backend: the three levels, on its connections."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pyoco_server.config import NatsBackendConfig
from pyoco_server.jetstream.server_time import JetStreamTime
from pyoco_server.usecases.shared_clock import SharedClock
from pyoco_server.wiring.connecting import gateway_connections
from pyoco_server.wiring.events import JetStreamEvents, events_on
from pyoco_server.wiring.executions import JetStreamExecutionLevel, open_execution_level
from pyoco_server.wiring.runs import JetStreamRunLevel, open_run_level


@dataclass(frozen=True)
class JetStreamGatewayBackend(JetStreamRunLevel, JetStreamExecutionLevel):
    events: JetStreamEvents
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
            shared_clock=shared_clock,
        )
