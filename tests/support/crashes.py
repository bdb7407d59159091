"""A process that dies between any two steps of its work."""

from collections.abc import Callable
from typing import Any

from pyoco_server.memory import MemoryGatewayBackend
from pyoco_server.memory.stores import MemoryExecutionLog


class Killed(BaseException):
    """Not an Exception: nothing catches a kill -9, and no cleanup runs behind it."""


class Fuse:
    """Lets so many calls of ports through, before or after which the process is dead."""

    def __init__(self, lets_through: int, *, is_done: bool) -> None:
        self.left = lets_through
        self.is_done = is_done
        self.is_blown = False

    async def call(self, port: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if self.is_blown:
            raise Killed
        self.left -= 1
        if self.left >= 0:
            return await port(*args, **named)
        self.is_blown = True
        if self.is_done:
            await port(*args, **named)
        raise Killed


class Fused:
    """A port behind a fuse."""

    def __init__(self, port: Any, fuse: Fuse) -> None:
        self._port = port
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if not callable(found):
            return found

        async def call(*args: Any, **named: Any) -> Any:
            return await self._fuse.call(found, *args, **named)

        return call


class FusedLog:
    """Of executions. Reading it changes nothing, so that dying there is dying at the next step."""

    def __init__(self, log: MemoryExecutionLog, fuse: Fuse) -> None:
        self._fuse = fuse
        self._append = log.append
        self.read = log.read

    async def append(self, *args: Any) -> Any:
        return await self._fuse.call(self._append, *args)


class FusedBackend:
    def __init__(self, backend: MemoryGatewayBackend, fuse: Fuse) -> None:
        self.runs = Fused(backend.runs, fuse)
        self.queue = Fused(backend.queue, fuse)
        self.events = FusedEvents(backend, fuse)
        self.execution_log = FusedLog(backend.execution_log, fuse)
        self.execution_cache = Fused(backend.execution_cache, fuse)
        self.execution_index = backend.execution_index
        self.change_log = Fused(backend.change_log, fuse)


class FusedEvents:
    def __init__(self, backend: MemoryGatewayBackend, fuse: Fuse) -> None:
        for name in (
            "templates",
            "actions",
            "sources",
            "notification_settings",
            "slots",
            "leases",
            "imports",
            "receipts",
            "retry_jobs",
            "resumes",
            "audit",
        ):
            setattr(self, name, Fused(getattr(backend.events, name), fuse))
        self.audit_feed = backend.events.audit_feed
