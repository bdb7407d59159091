"""Runs flows in a thread of this process, one at a time: for workers inside other programs, and for tests."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from pyoco_server.domain.jobs import Job
from pyoco_server.domain.outcomes import FlowOutcome, FlowProgress
from pyoco_server.engine.flow_of_job import flow_of
from pyoco_server.engine.flow_resolving import FlowResolver
from pyoco_server.engine.flow_run import FlowRun, OnProgress


class ThreadExecutor:
    def __init__(self, resolver: FlowResolver, allowed_modules: tuple[str, ...] = ()) -> None:
        self._resolver = resolver
        self._allowed_modules = allowed_modules
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
        found = flow_of(job, self._resolver, self._allowed_modules)
        if isinstance(found, FlowOutcome):
            return found
        with self._lock:
            self._current = FlowRun(found.flow, job.run_id, found.params, tell)
            if self._cancelled:
                self._current.cancel()
        try:
            return self._current.run()
        finally:
            with self._lock:
                self._current = None
