"""What a gateway needs of the world, for all levels."""

from typing import Protocol

from pyoco_server.usecases.events.ports import EventLevelBackend
from pyoco_server.usecases.executions.ports import ExecutionBackend
from pyoco_server.usecases.ports import GatewayBackend
from pyoco_server.usecases.shared_clock import SharedClock


class ServerBackend(GatewayBackend, ExecutionBackend, EventLevelBackend, Protocol):
    @property
    def shared_clock(self) -> SharedClock: ...
