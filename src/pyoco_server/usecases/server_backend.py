"""What a gateway needs of the world, for all levels."""

from typing import Protocol

from pyoco_server.usecases.events.ports import EventLevelBackend
from pyoco_server.usecases.executions.ports import ExecutionBackend
from pyoco_server.usecases.ports import GatewayBackend


class ServerBackend(GatewayBackend, ExecutionBackend, EventLevelBackend, Protocol):
    pass
