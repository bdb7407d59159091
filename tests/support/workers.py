"""Workers in this process, and waiting for what they do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pyoco_server.config import NatsBackendConfig
from pyoco_server.worker import PyocoNatsWorker

T = TypeVar("T")
PATIENCE_SEC = 15.0
"""How long a test waits for what must happen; only a failing test waits so long."""


@asynccontextmanager
async def worker(
    config: NatsBackendConfig,
    flows: dict[str, Callable[[], Any]],
    worker_id: str = "worker-a",
    **options: Any,
) -> AsyncIterator[PyocoNatsWorker]:
    instance = await PyocoNatsWorker.connect(
        config=config, flow_resolver=lambda name: flows[name](), worker_id=worker_id, **options
    )
    try:
        yield instance
    finally:
        await instance.close()


async def until(look: Callable[[], Awaitable[T]], found: Callable[[T], bool]) -> T:
    """What `look` answers as soon as it is what the test waits for."""
    async with asyncio.timeout(PATIENCE_SEC):
        while not found(answer := await look()):  # noqa: ASYNC110 - a store is looked at from outside
            await asyncio.sleep(0.02)
    return answer


async def entered(event: Any) -> None:
    """A flow (in its thread) has got as far as the test wants."""
    assert await asyncio.to_thread(event.wait, PATIENCE_SEC)
