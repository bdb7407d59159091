"""Runs flows in a thread of this process, one at a time: for workers inside other programs, and for tests."""

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
from pyoco_server.engine.executors.executor import FlowSeat
from pyoco_server.engine.flow_run import FlowRun
from pyoco_server.engine.print_capture import HostOutput, PrintCapture, PrintFlushes
from pyoco_server.engine.resolve import FlowOfJob, FlowResolver, flow_of
from pyoco_server.engine.results import MAX_VALUE_BYTES

FindFlow = Callable[[Job], FlowOfJob | FlowOutcome]


class ThreadExecutors:
    capacity = 1
    wheels: tuple[CodeWheel, ...] = ()
    """What was put on the import path of this process."""

    def when_it_changes(self, tell: Callable[[], None]) -> None:
        """It never changes."""

    def __init__(
        self,
        resolver: FlowResolver,
        allowed_modules: tuple[str, ...] = (),
        allowed_env: tuple[str, ...] = (),
        max_value_bytes: int = MAX_VALUE_BYTES,
    ) -> None:
        self._find = partial(
            flow_of, resolver=resolver, allowed_modules=allowed_modules, allowed_env=allowed_env
        )
        self._max_value_bytes = max_value_bytes
        self._paths: tuple[str, ...] = ()
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pyoco-flow")

    async def start(self, job: Job, listener: FlowListener, patience: float) -> "ThreadFlow":  # noqa: ARG002
        flow = ThreadFlow(job, listener)
        flow.wheels = self.wheels
        flow.ended = asyncio.get_running_loop().run_in_executor(
            self._threads, flow.run, self._find, self._max_value_bytes
        )
        return flow

    @property
    def paths_in_use(self) -> set[str]:
        return set(self._paths)

    async def change_spec(self, *, path: tuple[str, ...], wheels: tuple[CodeWheel, ...]) -> str | None:
        """Have this process import from other directories, while no flow is going."""
        import_from(path, instead_of=self._paths)
        self._paths, self.wheels = path, wheels
        return None

    async def close(self) -> None:
        import_from((), instead_of=self._paths)
        self._paths = ()
        self._threads.shutdown(wait=False, cancel_futures=True)


def import_from(paths: tuple[str, ...], *, instead_of: tuple[str, ...]) -> None:
    """What was imported from directories that go is imported again where it is used next."""
    gone = tuple(path for path in instead_of if path not in paths)
    sys.path[:] = [*paths, *(path for path in sys.path if path not in (*paths, *gone))]
    for name, module in list(sys.modules.items()):
        if any((getattr(module, "__file__", None) or "").startswith(f"{path}/") for path in gone):
            del sys.modules[name]
    importlib.invalidate_caches()


class ThreadFlow:
    wheels: tuple[CodeWheel, ...] = ()
    """Beside them the caller's process has whatever code it has."""
    ended: "asyncio.Future[FlowOutcome]"

    def __init__(self, job: Job, listener: FlowListener) -> None:
        self._job = job
        self._listener = listener
        self._seat = FlowSeat()
        self.busy_sec = 0.0
        self._loop = asyncio.get_running_loop()
        self._prints = PrintFlushes(self._printed, self._call_later)

    def run(self, find: FindFlow, max_value_bytes: int) -> FlowOutcome:
        """In the flow's thread."""
        began = time.monotonic()
        try:
            return self._run(find, max_value_bytes)
        finally:
            self.busy_sec = time.monotonic() - began

    def _run(self, find: FindFlow, max_value_bytes: int) -> FlowOutcome:
        catcher = PrintCapture(HostOutput(), self._prints.on_news)
        self._prints.begin(catcher)
        try:
            return self._caught(catcher, find, max_value_bytes)
        finally:
            self._printed(self._prints.finish())

    def _caught(self, catcher: PrintCapture, find: FindFlow, max_value_bytes: int) -> FlowOutcome:
        with catcher.catching():
            found = find(self._job)
            if isinstance(found, FlowOutcome):
                return found
            run = FlowRun(
                found.flow,
                self._job.run_id,
                found.params,
                self._progressed,
                catcher.entered,
                max_value_bytes=max_value_bytes,
            )
            self._seat.take(run)
            try:
                return run.run()
            finally:
                self._seat.leave()

    async def outcome(self) -> FlowOutcome:
        return await self.ended

    def cancel(self) -> None:
        self._seat.cancel()

    def go_live(self) -> None:
        self._prints.go_live()
        self._seat.go_live()

    def written(self) -> None:
        """The listener keeps only the newest step, so there is nothing to hold back."""

    def kill(self) -> bool:
        """A thread cannot be ended from outside."""
        return False

    def _progressed(self, progress: FlowProgress) -> None:
        self._loop.call_soon_threadsafe(self._listener.progressed, progress)

    def _printed(self, entries: list[LogEntry]) -> None:
        if entries:
            self._loop.call_soon_threadsafe(self._listener.printed, entries)

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, call)
