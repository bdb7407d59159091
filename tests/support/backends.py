"""A backend of either kind, with what only somebody beside it could do."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.dead_letters import DeadLetter
from pyoco_server.memory import MemoryGatewayBackend, open_memory_gateway_backend
from pyoco_server.usecases.ports.gateway import ServerBackend
from pyoco_server.wiring import open_gateway_backend
from support.nats_server import dead_letters, put_message


@dataclass(frozen=True)
class World:
    backend: ServerBackend
    config: NatsBackendConfig
    put: Callable[[bytes, str], Awaitable[None]]
    """A message as it is on the queue of a tag, readable or not."""
    letters: Callable[[], Awaitable[list[tuple[str, dict[str, Any]]]]]


Worlds = Callable[..., Awaitable[World]]


async def memory_world(config: NatsBackendConfig, resources: AsyncExitStack) -> World:
    backend = await resources.enter_async_context(open_memory_gateway_backend(config))

    async def put(payload: bytes, tag: str) -> None:
        await backend.queue.put(f"{config.work_subject_prefix}.{tag}", payload)

    async def letters() -> list[tuple[str, dict[str, Any]]]:
        return _as_published(backend, config)

    return World(backend, config, put, letters)


def _as_published(
    backend: MemoryGatewayBackend, config: NatsBackendConfig
) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{config.dlq_subject_prefix}.{tag}", _fields(letter))
        for tag, letter in backend.dead_letters.letters
    ]


def _fields(letter: DeadLetter) -> dict[str, Any]:
    values = {name: getattr(letter, name) for name in letter.__struct_fields__}
    return {name: value for name, value in values.items() if value is not None}


async def jetstream_world(config: NatsBackendConfig, resources: AsyncExitStack) -> World:
    backend = await resources.enter_async_context(open_gateway_backend(config))

    async def put(payload: bytes, tag: str) -> None:
        await put_message(config, payload, tag)

    async def letters() -> list[tuple[str, dict[str, Any]]]:
        return await dead_letters(config)

    return World(backend, config, put, letters)
