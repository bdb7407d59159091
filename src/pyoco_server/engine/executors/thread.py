"""Runs flows in a thread of this process, one at a time: for workers inside other programs."""

import asyncio
import importlib
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pyoco_server.domain.runs.jobs import FlowListener, FlowOutcome, FlowProgress, Job
from pyoco_server.domain.runs.logs import LogEntry
from pyoco_server.domain.runs.model import CodeWheel
from pyoco_server.domain.runs.task_requests import TaskRequest
from pyoco_server.engine.executors.pool import Prefetch
from pyoco_server.engine.executors.process_flow import timed_out, timeout_text
from pyoco_server.engine.print_capture import HostOutput
from pyoco_server.engine.resolve import (
    FindFlow,
    FlowResolver,
    LocalFlowHandle,
    flow_names,
    flow_of,
    reported_flows,
)
from pyoco_server.engine.values import ValueRoom
from pyoco_server.logs import get_logger

log = get_logger(__name__)

OnOutcome = Callable[[Job, FlowOutcome], None]


class ThreadFlowHandle(LocalFlowHandle):
    """Worker and flow share a process, so this is the handle of both sides."""

    wheels: tuple[CodeWheel, ...] = ()
    """The synced code; the process may have imported other code, too."""
    ended: "asyncio.Future[FlowOutcome]"

    def __init__(self, job: Job, listener: FlowListener, prefetch: Prefetch) -> None:
        super().__init__(self._call_later)
        self._job = job
        self._listener = listener
        self._prefetch = prefetch
        self._busy_sec = 0.0
        self._loop = asyncio.get_running_loop()

    def run_in_thread(self, find: FindFlow, room: ValueRoom) -> FlowOutcome:
        began = time.monotonic()
        try:
            return self.run(self._job, find, HostOutput(), room=room)
        finally:
            self.printed(self.unreported_output())
            self._busy_sec = time.monotonic() - began

    async def outcome(self) -> FlowOutcome:
        timeout_sec = self._job.timeout_sec
        await asyncio.wait({self.ended}, timeout=timeout_sec)
        error = None if self.ended.done() or timeout_sec is None else timeout_text(None, timeout_sec)
        if error is not None:
            log.warning("run timed out", action="run.timeout", run_id=self._job.run_id)
            self.cancel()
        outcome = await self.ended
        self._prefetch.ended(self._busy_sec)
        return outcome if error is None else timed_out(outcome, error)

    def written(self) -> None:
        """The listener keeps only the newest progress, so nothing has to be held back."""

    def kill(self) -> bool:
        """A thread cannot be killed."""
        return False

    def progressed(self, progress: FlowProgress) -> None:
        self._loop.call_soon_threadsafe(self._listener.progressed, progress)

    def printed(self, entries: list[LogEntry]) -> None:
        if entries:
            self._loop.call_soon_threadsafe(self._listener.printed, entries)

    def asked(self, number: int, request: TaskRequest) -> None:
        self._loop.call_soon_threadsafe(self._listener.asked, request, partial(self.answered, number))

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, call)


class ThreadExecutors:
    capacity = 1
    wheels: tuple[CodeWheel, ...] = ()
    """The wheels on the import path of this process."""

    def __init__(
        self,
        resolver: FlowResolver,
        allowed_modules: tuple[str, ...] = (),
        allowed_env: tuple[str, ...] = (),
        room: ValueRoom = ValueRoom(),  # noqa: B008 - frozen
        on_outcome: OnOutcome | None = None,
    ) -> None:
        self._on_outcome = on_outcome
        self._find = partial(
            flow_of, resolver=resolver, allowed_modules=allowed_modules, allowed_env=allowed_env
        )
        self.flows = reported_flows(flow_names(resolver))
        self._room = room
        self._paths: tuple[str, ...] = ()
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pyoco-flow")
        self.prefetch = Prefetch(time.monotonic)

    def on_capacity_change(self, callback: Callable[[], None]) -> None:
        """It never changes."""

    async def start(self, job: Job, listener: FlowListener, timeout_sec: float) -> ThreadFlowHandle:  # noqa: ARG002
        flow = ThreadFlowHandle(job, listener, self.prefetch)
        flow.wheels = self.wheels
        flow.ended = asyncio.get_running_loop().run_in_executor(
            self._threads, flow.run_in_thread, self._find, self._room
        )
        if self._on_outcome is not None:
            flow.ended.add_done_callback(partial(self._report, job))
        return flow

    def _report(self, job: Job, ended: "asyncio.Future[FlowOutcome]") -> None:
        if self._on_outcome is not None and not ended.cancelled() and ended.exception() is None:
            self._on_outcome(job, ended.result())

    @property
    def paths_in_use(self) -> set[str]:
        return set(self._paths)

    async def change_spec(self, *, path: tuple[str, ...], wheels: tuple[CodeWheel, ...]) -> str | None:
        """Import from other directories. Only while no flow runs."""
        import_from(path, instead_of=self._paths)
        self._paths, self.wheels = path, wheels
        return None

    async def close(self) -> None:
        import_from((), instead_of=self._paths)
        self._paths = ()
        self._threads.shutdown(wait=False, cancel_futures=True)


def import_from(paths: tuple[str, ...], *, instead_of: tuple[str, ...]) -> None:
    """Modules of removed directories are forgotten, so that their next import finds the new ones."""
    gone = tuple(path for path in instead_of if path not in paths)
    sys.path[:] = [*paths, *(path for path in sys.path if path not in (*paths, *gone))]
    for name, module in list(sys.modules.items()):
        if any((getattr(module, "__file__", None) or "").startswith(f"{path}/") for path in gone):
            del sys.modules[name]
    importlib.invalidate_caches()
