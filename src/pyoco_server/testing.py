"""A whole server for tests of flows and of programs that use them: `LocalServer`.

It is made of the parts of the product: the gateway with its HTTP interface, and a worker that runs flows in a
thread. What they store is in memory, or in an embedded NATS. The ports in memory are here for tests that need
only them.
"""

import asyncio
import re
import selectors
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self, TypeVar

from pyoco_server.cli.http_server import BoundedHead, Server, http_options
from pyoco_server.cli.stack import for_this_machine
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.jobs import FlowOutcome, Job
from pyoco_server.http_api import create_app
from pyoco_server.http_client import PyocoHttpClient, RunFailed
from pyoco_server.memory import (
    MemoryBackend,
    MemoryGatewayBackend,
    open_memory_backend,
    open_memory_gateway_backend,
)
from pyoco_server.memory.stores import MemoryApiKeys
from pyoco_server.usecases.ports.runs import WorkerBackend
from pyoco_server.wiring import EmbeddedNats
from pyoco_server.wiring.worker import (
    WorkerName,
    new_thread_executors,
    new_worker,
    open_worker_connection,
    resolver_of,
)
from pyoco_server.worker.values import values_directory
from pyoco_server.worker.worker import Worker

__all__ = [
    "LocalServer",
    "MemoryApiKeys",
    "MemoryBackend",
    "MemoryGatewayBackend",
    "open_memory_backend",
    "open_memory_gateway_backend",
]

HOST = "127.0.0.1"
WORKER_ID = "local-worker"
RUN_TIMEOUT_SEC = 30.0
DRAIN_SEC = 1.0
"""For a flow that still runs when the server is stopped. A thread cannot be killed."""
WORK_SEC = 1.0
"""How long the clock stands still for a flow, or any other work in a thread, before it takes time."""
STRIDES = 1000
"""In which a long time is skipped: a day has a million beats of all kinds."""
EXACT_SEC = 30.0
"""At the end of a skip, from timer to timer: long enough for every heartbeat to be up to date."""
_OF_ENGINE = re.compile(r'  File "[^"]*/(pyoco/core|pyoco_server/engine)/')

T = TypeVar("T")


class LocalServer:
    """A server with a worker, in this process.

    `flows`: a directory, file or module of flows as for `pyoco-worker`; a `Flow` or several; flows by name; a
    module; or a function that returns the flow of a name. `tags` are those of the worker. With `nats`, an
    embedded NATS stores everything, in a directory that is removed at the end. `config` are settings other
    than the defaults; the environment is not read.
    """

    def __init__(
        self,
        flows: Any,
        *,
        tags: Sequence[str] | None = None,
        nats: bool = False,
        config: NatsBackendConfig | None = None,
    ) -> None:
        self._flows = flows
        self._is_on_nats = nats
        # No files of the directory that the tests run in.
        self._config = config or NatsBackendConfig(audit_log_path="", workflow_event_import_dir="")
        self._tags = tuple(tags or (self._config.default_tag,))
        self._tracebacks: dict[str, str] = {}
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        with ExitStack() as opened:
            opened.enter_context(_imports_restored())
            resolver = resolver_of(self._flows)
            self._loop = SkippingLoop()
            call = opened.enter_context(_in_thread(self._loop))
            stack = AsyncExitStack()
            opened.callback(lambda: call(stack.aclose()))
            self.url: str = call(self._open(stack, resolver))
            self.client: PyocoHttpClient = opened.enter_context(PyocoHttpClient(self.url))
            self._opened = opened.pop_all()

    def stop(self) -> None:
        self._opened.close()

    # Runs

    def run(
        self,
        flow: str,
        params: dict[str, Any] | None = None,
        *,
        tag: str | None = None,
        timeout: float = RUN_TIMEOUT_SEC,
    ) -> Any:
        """The result of a run of `flow`. Raises `RunFailed`, with the traceback of the flow as a note."""
        try:
            return self.client.run(flow, params, tag, timeout=timeout)
        except RunFailed as error:
            found = self.traceback(error.run_id or "")
            if found is not None:
                error.add_note(found)
            raise

    def traceback(self, run_id: str) -> str | None:
        """Where a failed run raised its exception; None: it raised none here."""
        return self._tracebacks.get(run_id)

    def log(self, run_id: str) -> str:
        """What a run printed."""
        return "".join(line["text"] for line in self.client.get_logs(run_id))

    # Time

    def settle(self) -> None:
        """Wait until nothing is left to do: every run has ended, every execution has ended or waits."""
        self.advance(0.0)

    def advance(self, seconds: float) -> None:
        """Let time pass on every clock of the server and its worker, and do what becomes due.

        Timers fire in their order, late by at most a thousandth of `seconds`. A flow that runs meanwhile
        takes no time, unless it takes more than a second of real time.
        """
        if self._is_on_nats:
            raise RuntimeError("NATS has a clock of its own: advance() and settle() need a server in memory")
        if seconds < 0:
            raise ValueError("time cannot go back")
        self._loop.skip(seconds).result()

    # Parts

    async def _open(self, stack: AsyncExitStack, resolver: Callable[[str], Any]) -> str:
        parts = await (self._on_nats(stack) if self._is_on_nats else self._in_memory(stack))
        url = await stack.enter_async_context(_served(parts.app, parts.config))
        values_dir = stack.enter_context(values_directory())
        executors = new_thread_executors(resolver, parts.config, self._remember, values_dir=values_dir)
        stack.push_async_callback(executors.close)
        name = WorkerName(WORKER_ID, self._tags)
        given: dict[str, Any] = {"clock": self._clock, "values_dir": values_dir}
        worker = new_worker(parts.config, parts.worker, executors, name, **given)
        await stack.enter_async_context(_working(worker))
        return url

    def _clock(self) -> float:
        return time.time() + self._loop.skipped

    async def _in_memory(self, stack: AsyncExitStack) -> "_Parts":
        config = for_this_machine(self._config, HOST)
        clocks: dict[str, Any] = {"clock": self._clock, "monotonic": self._loop.time}
        backend = await stack.enter_async_context(open_memory_gateway_backend(config, **clocks))
        return _Parts(config, create_app(config, open_backend=partial(_given, backend), **clocks), backend)

    async def _on_nats(self, stack: AsyncExitStack) -> "_Parts":
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="pyoco-")))
        nats = stack.enter_context(EmbeddedNats(directory, durability="fast"))
        config = for_this_machine(self._config.with_own_nats(nats.url), HOST)
        worker = open_worker_connection(config, WorkerName(WORKER_ID, self._tags))
        return _Parts(config, create_app(config), await stack.enter_async_context(worker))

    def _remember(self, job: Job, outcome: FlowOutcome) -> None:
        if outcome.raised is not None and outcome.raised.exc_traceback is not None:
            self._tracebacks[job.run_id] = _without_engine(outcome.raised.exc_traceback)


def _without_engine(traceback: str) -> str:
    """Only the frames of users' code, unless there are none."""
    frames = re.split(r'^(?=  File ")', traceback, flags=re.MULTILINE)
    theirs = [frame for frame in frames[1:] if not _OF_ENGINE.match(frame)]
    return "".join([frames[0], *theirs]) if theirs else traceback


class _Parts(NamedTuple):
    config: NatsBackendConfig
    app: Any
    worker: WorkerBackend


@asynccontextmanager
async def _given(backend: MemoryGatewayBackend) -> AsyncIterator[MemoryGatewayBackend]:
    yield backend


@asynccontextmanager
async def _working(worker: Worker) -> AsyncIterator[None]:
    await worker.open()
    running = asyncio.ensure_future(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running
        await worker.drain(DRAIN_SEC)
        await worker.close()


class _Server(Server):
    """Without uvicorn's ten ticks per second, which a skipped hour would have to catch up with."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.is_up = asyncio.Event()
        self.ending = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self.is_up.set()
        await self.ending.wait()


@asynccontextmanager
async def _served(app: Any, config: NatsBackendConfig) -> AsyncIterator[str]:
    """The URL. The port is the system's choice."""
    listener = socket.create_server((HOST, 0))
    server = _Server(http_options(app, config, http=BoundedHead))
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    up = asyncio.ensure_future(server.is_up.wait())
    await asyncio.wait({serving, up}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if serving.done():
            await serving
        await app.state.gateway.opened()
        yield f"http://{HOST}:{listener.getsockname()[1]}"
    finally:
        up.cancel()
        app.state.gateway.begin_stop()
        server.ending.set()
        await serving


# The event loop, in a thread of its own


class _Selector(selectors.DefaultSelector):
    """Asks how long to wait whenever there is nothing to do but wait."""

    def __init__(self, wait_sec: Callable[[float | None], float | None]) -> None:
        super().__init__()
        self._wait_sec = wait_sec

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(0) or ([] if timeout == 0 else super().select(self._wait_sec(timeout)))


class _Skip(NamedTuple):
    end: float
    stride: float
    """The least to skip at once."""


class SkippingLoop(asyncio.SelectorEventLoop):
    """Its clock is the machine's, and can skip time: from timer to timer, in strides if there are many."""

    def __init__(self) -> None:
        self.skipped = 0.0
        self._skips: dict[Future[None], _Skip] = {}
        self._work: dict[asyncio.Future[Any], float] = {}
        """What runs in threads, with the real time of its start."""
        super().__init__(_Selector(self._wait_sec))

    def time(self) -> float:
        return super().time() + self.skipped

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        work = super().run_in_executor(executor, func, *args)
        self._work[work] = time.monotonic()
        work.add_done_callback(self._work.pop)
        return work

    def skip(self, seconds: float) -> "Future[None]":
        """From any thread."""
        done: Future[None] = Future()
        self.call_soon_threadsafe(self._begin, done, seconds)
        return done

    def _begin(self, done: "Future[None]", seconds: float) -> None:
        self._skips[done] = _Skip(self.time() + seconds, seconds / STRIDES)

    def _wait_sec(self, timeout: float | None) -> float | None:
        """How long to wait for anything: for as long as `timeout`, or not at all and skip it."""
        if not self._skips:
            return timeout
        began = max(self._work.values(), default=0.0)
        if (left := began + WORK_SEC - time.monotonic()) > 0:
            return left if timeout is None else min(left, timeout)
        done, skip = min(self._skips.items(), key=itemgetter(1))
        if (left := skip.end - self.time()) > 0:
            stride = 0.0 if self._work else min(skip.stride, left - EXACT_SEC)
            self.skipped += left if timeout is None else min(left, max(timeout, stride))
        else:
            del self._skips[done]
            done.set_result(None)
        return 0


@contextmanager
def _in_thread(loop: SkippingLoop) -> Iterator[Callable[[Awaitable[T]], T]]:
    """A function that has a coroutine carried out there."""
    thread = threading.Thread(target=loop.run_forever, name="pyoco-server", daemon=True)
    thread.start()

    async def awaited(work: Awaitable[T]) -> T:
        return await work

    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(awaited(work), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@contextmanager
def _imports_restored() -> Iterator[None]:
    """Loading a directory of flows changes how this process imports modules."""
    paths, is_without_bytecode = list(sys.path), sys.dont_write_bytecode
    try:
        yield
    finally:
        sys.path[:] = [path for path in sys.path if path in paths]
        sys.dont_write_bytecode = is_without_bytecode
