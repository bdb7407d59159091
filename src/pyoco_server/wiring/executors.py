"""What carries out flows on a worker: in processes, or in threads of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pyoco_server.config import NatsBackendConfig
from pyoco_server.engine.executors.pool import Limits, ProcessExecutors, follow_flow_files, version_of
from pyoco_server.engine.executors.protocol import ExecutorSpec
from pyoco_server.engine.executors.thread import ThreadExecutors

__all__ = ["ExecutorSpec", "Limits", "new_thread_executors", "open_process_executors"]


def new_thread_executors(flow_resolver: Callable[[str], Any], config: NatsBackendConfig) -> ThreadExecutors:
    return ThreadExecutors(
        flow_resolver, config.allowed_modules, config.allowed_env, config.max_run_snapshot_bytes
    )


@asynccontextmanager
async def open_process_executors(
    spec: ExecutorSpec, concurrency: int, limits: Limits
) -> AsyncIterator[ProcessExecutors]:
    """The flows of `spec` may be a directory, whose files are loaded again when they change.

    Raises InvalidCliInput when the flows cannot be loaded.
    """
    directory = Path(spec.flow_resolver)
    version = version_of(directory)
    spec = replace(spec, version=version)
    executors = ProcessExecutors(spec, concurrency, limits)
    await executors.open()
    following = asyncio.ensure_future(follow_flow_files(directory, executors)) if version else None
    try:
        yield executors
    finally:
        if following is not None:
            following.cancel()
        await executors.close()
