"""Many workers in one process: those of the product, each with a connection, and flows that only wait.

Started by fleet.py. It prints a line when all are registered, and stops at the end of its input.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.jobs import Ending, FlowListener, FlowOutcome, FlowProgress, Job
from pyoco_server.domain.runs.model import TaskState
from pyoco_server.engine.executors.pool import Prefetch
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import configure_logging
from pyoco_server.wiring.worker import WorkerName, new_worker, open_worker_connection
from pyoco_server.worker.worker import Worker

AT_ONCE = 5
"""Workers that start at the same time."""
READY = "ready"


class Waiting:
    """A flow of one task that takes `seconds` of its params."""

    wheels = ()

    def __init__(self, job: Job, listener: FlowListener, on_end: Callable[[float], None]) -> None:
        self._listener = listener
        self._seconds = float((job.params or {}).get("seconds", 0))
        self._is_cancelled = asyncio.Event()
        self._on_end = on_end

    async def outcome(self) -> FlowOutcome:
        if self._seconds:
            try:
                async with asyncio.timeout(self._seconds):
                    await self._is_cancelled.wait()
            except TimeoutError:
                pass
        self._on_end(self._seconds)
        if self._is_cancelled.is_set():
            return FlowOutcome(ending=Ending.CANCELLED, progress=FlowProgress({"wait": TaskState.CANCELLED}))
        return FlowOutcome(ending=Ending.COMPLETED, progress=FlowProgress({"wait": TaskState.SUCCEEDED}))

    def cancel(self) -> None:
        self._is_cancelled.set()

    def go_live(self) -> None:
        self._listener.progressed(FlowProgress({"wait": TaskState.RUNNING}))

    def written(self) -> None:
        """There is no more to report."""

    def kill(self) -> bool:
        self.cancel()
        return True


class WaitingFlows:
    flows = None

    def __init__(self, slots: int) -> None:
        self.capacity = slots
        self.prefetch = Prefetch(time.monotonic)

    def on_capacity_change(self, callback: Callable[[], None]) -> None:
        """It never changes."""

    async def start(self, job: Job, listener: FlowListener, timeout_sec: float) -> Waiting:  # noqa: ARG002
        return Waiting(job, listener, self.prefetch.ended)

    async def close(self) -> None:
        pass


async def started(stack: AsyncExitStack, config: NatsBackendConfig, name: str, slots: int) -> Worker:
    """Repeated, as a service manager would: a busy machine may take too long."""
    named = WorkerName(name, (config.default_tag,))
    for last in (False, False, False, True):
        try:
            backend = await stack.enter_async_context(open_worker_connection(config, named))
            worker = new_worker(config, backend, WaitingFlows(slots), named)
            await worker.open()
        except NatsUnavailable:
            if last:
                raise
        else:
            return worker
    raise AssertionError("unreachable")


async def main(process: int, workers: int, slots: int) -> None:
    configure_logging(service="fleet", level="ERROR")
    config = NatsBackendConfig.from_env()
    names = [f"sim-{process}-{n}" for n in range(workers)]
    async with AsyncExitStack() as stack:
        fleet: list[Worker] = []
        for some in (names[at : at + AT_ONCE] for at in range(0, workers, AT_ONCE)):
            fleet += await asyncio.gather(*(started(stack, config, name, slots) for name in some))
        running = [asyncio.ensure_future(worker.run()) for worker in fleet]
        print(READY, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in running:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main(*(int(argument) for argument in sys.argv[1:])))
