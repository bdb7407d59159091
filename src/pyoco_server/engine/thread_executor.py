"""Runs flows in a thread of this process, one at a time: for workers inside other programs, and for tests."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from pyoco_server.domain.dispositions import Ending
from pyoco_server.domain.jobs import Job
from pyoco_server.domain.outcomes import FlowOutcome, FlowProgress
from pyoco_server.engine.flow_resolving import FlowResolver
from pyoco_server.engine.flow_run import FlowRun, OnProgress
from pyoco_server.engine.values import described


class ThreadExecutor:
    def __init__(self, resolver: FlowResolver) -> None:
        self._resolver = resolver
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pyoco-flow")
        self._lock = threading.Lock()
        self._current: FlowRun | None = None
        self._cancelled = False

    async def run(self, job: Job, on_progress: OnProgress) -> FlowOutcome:
        loop = asyncio.get_running_loop()

        def tell(progress: FlowProgress) -> None:
            loop.call_soon_threadsafe(on_progress, progress)

        self._cancelled = False
        return await loop.run_in_executor(self._threads, self._run, job, tell)

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._current is not None:
                self._current.cancel()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, job: Job, tell: OnProgress) -> FlowOutcome:
        try:
            flow = self._resolver(job.flow_name)
        except KeyError:
            return FlowOutcome(ending=Ending.FLOW_NOT_FOUND, error=f"flow not found: {job.flow_name}")
        except BaseException as error:  # noqa: BLE001 - a resolver is user code
            return FlowOutcome(
                ending=Ending.EXECUTION_ERROR,
                error=f"the flow resolver raised {described(error)}",
            )
        with self._lock:
            self._current = FlowRun(flow, job.run_id, job.params or {}, tell)
            if self._cancelled:
                self._current.cancel()
        try:
            return self._current.run()
        finally:
            with self._lock:
                self._current = None
