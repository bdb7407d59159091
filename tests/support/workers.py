"""Workers in this process, and waiting for what they do."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pyoco_server.config import NatsBackendConfig
from pyoco_server.worker import PyocoNatsWorker
from support.waiting import PATIENCE_SEC


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


async def entered(event: Any) -> None:
    """A flow (in its thread) has got as far as the test wants."""
    assert await asyncio.to_thread(event.wait, PATIENCE_SEC)
