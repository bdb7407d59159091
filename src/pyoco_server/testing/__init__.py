"""All ports in memory, for tests without a server. The contract suite checks them against JetStream."""

from pyoco_server.testing.memory import (
    MemoryBackend,
    MemoryGatewayBackend,
    open_memory_backend,
    open_memory_gateway_backend,
)
from pyoco_server.testing.memory_stores import MemoryApiKeys

__all__ = [
    "MemoryApiKeys",
    "MemoryBackend",
    "MemoryGatewayBackend",
    "open_memory_backend",
    "open_memory_gateway_backend",
]
