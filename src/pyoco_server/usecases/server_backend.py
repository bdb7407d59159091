"""What a gateway needs of the world, for all levels."""

from typing import Protocol

from pyoco_server.usecases.clock import SharedClock
from pyoco_server.usecases.ports.events import EventLevelBackend
from pyoco_server.usecases.ports.executions import ExecutionBackend
from pyoco_server.usecases.ports.runs import GatewayBackend


class ServerBackend(GatewayBackend, ExecutionBackend, EventLevelBackend, Protocol):
    @property
    def shared_clock(self) -> SharedClock: ...
