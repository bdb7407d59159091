"""All ports in memory, for tests without a server. One suite proves that they behave as JetStream does."""

from pyoco_server.testing.memory import MemoryBackend, open_memory_backend

__all__ = ["MemoryBackend", "open_memory_backend"]
