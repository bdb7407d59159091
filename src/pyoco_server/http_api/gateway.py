"""A running gateway: its connection to NATS, what runs beside requests, and the levels that routes call."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Annotated, Literal, NamedTuple

from fastapi import Query, Request, Response

from pyoco_server.errors import NatsUnavailable
from pyoco_server.http_api.metrics import Metrics
from pyoco_server.logs import get_logger
from pyoco_server.usecases.auth import AskWho, Authenticate, Caller
from pyoco_server.usecases.concurrency import wait_at_most
from pyoco_server.usecases.events.transfer import Imported
from pyoco_server.usecases.ports.gateway import ServerBackend
from pyoco_server.wiring.gateway import Levels, Setup
from pyoco_server.wiring.gateway_backend import authentication

log = get_logger(__name__)

OpenBackend = Callable[[], AbstractAsyncContextManager[ServerBackend]]

RETRY_SEC = 1.0
MAX_RETRY_SEC = 30.0
MAX_OPEN_RETRY_SEC = 5.0
"""Short, because clients get 503 until then."""
STALE_HEADER = "X-Pyoco-Stale-Sec"
Stale = Annotated[
    Literal["ok"] | None,
    Query(description=f"ok: while NATS is away, answer what was known last, with its age in {STALE_HEADER}"),
]


class Reading(NamedTuple):
    """What a list is read from, and how old that may be."""

    levels: Levels
    stale_sec: float

    def marked(self, response: Response) -> Response:
        if self.stale_sec > 0:
            response.headers[STALE_HEADER] = str(math.ceil(self.stale_sec))
        return response


LARGE_BODIES = 16
"""Received at once, each in a file."""


class Gateway:
    def __init__(self, setup: Setup, open_backend: OpenBackend, metrics: Metrics) -> None:
        self.config = setup.config
        self.metrics = metrics
        self.levels = Levels(setup)
        self.imported: list[Imported] = []
        """Files of an earlier workflow server, imported at this start."""
        self._open_backend = open_backend
        self.large_bodies = asyncio.Semaphore(LARGE_BODIES)
        self.splitting = asyncio.Lock()
        """Of a large body: it may take much memory."""
        self.body_timeout_sec = setup.tuning.body_timeout_sec
        self._connect_timeout_sec = setup.tuning.connect_timeout_sec
        self._ask_who: AskWho | None = None
        self._is_starting = True
        """An error that no waiting helps against ends the start. Later nobody is left to raise it to."""
        self._opened = asyncio.Event()
        self._stopping = asyncio.Event()

    @property
    def is_caught_up(self) -> bool:
        return self.levels.is_caught_up and self.levels.stale_sec == 0

    @property
    def ask_who(self) -> AskWho:
        """From the text of an API key to who holds it."""
        if self._ask_who is None:
            raise NatsUnavailable("nats unavailable: not connected yet")
        return self._ask_who

    async def is_still_allowed(self, caller: Caller) -> bool:
        """Whether a stream may go on. It may while this cannot be checked."""
        if not isinstance(self._ask_who, Authenticate):
            return True
        try:
            return await self._ask_who.is_still_allowed(caller)
        except NatsUnavailable:
            return True

    def reading(self, stale: Stale) -> Reading:
        """For lists and counts: 503 while they are incomplete or old; with `stale` only while incomplete."""
        if not (self.levels.runs.is_caught_up and self.levels.executions.is_caught_up):
            raise NatsUnavailable("the gateway is still reading the list of runs; try again in a moment")
        stale_sec = self.levels.stale_sec
        if stale_sec > 0 and stale is None:
            raise NatsUnavailable(
                f"nats unavailable: the list is {math.ceil(stale_sec)} s old; stale=ok answers with it"
            )
        return Reading(self.levels, stale_sec)

    async def start(self) -> None:
        """Returns when NATS is there, or when waiting longer would keep a client from hearing 503.

        Raises IncompatibleNats: no waiting helps against that.
        """
        self._holding = asyncio.ensure_future(self._hold_backend())
        opened = asyncio.ensure_future(self._opened.wait())
        await asyncio.wait(
            {self._holding, opened}, timeout=self._connect_timeout_sec, return_when=asyncio.FIRST_COMPLETED
        )
        opened.cancel()
        self._is_starting = False
        if self._holding.done():
            self._holding.result()
        if not self._opened.is_set():
            log.warning(
                "NATS is not reachable; answering 503 until it is",
                action="gateway.waiting_for_nats",
                **NatsUnavailable().ids,
            )

    async def opened(self) -> None:
        """Returns when NATS was reached and requests can be carried out."""
        await self._opened.wait()

    def begin_stop(self) -> None:
        """Send the watchers home, so that their connections do not hold up the stop."""
        self.levels.close_watchers()

    async def stop(self) -> None:
        self.begin_stop()
        self._stopping.set()
        if not self._opened.is_set():  # it waits for a NATS that is not there
            self._holding.cancel()
        done, _ = await asyncio.wait({self._holding}, timeout=self._connect_timeout_sec)
        if not done:
            self._holding.cancel()
            with suppress(asyncio.CancelledError):
                await self._holding
        elif not self._holding.cancelled() and (error := self._holding.exception()) is not None:
            log.error("the gateway's connection ended badly", action="gateway.ended", exc_info=error)

    async def _hold_backend(self) -> None:
        pause = RETRY_SEC
        while not self._stopping.is_set():
            try:
                async with (
                    self._open_backend() as backend,
                    authentication(self.config, backend.api_keys, backend.shared_clock) as self._ask_who,
                ):
                    await self._serve(backend)
            except NatsUnavailable as error:
                log.warning(
                    "NATS is not usable yet",
                    action="gateway.nats_failed",
                    reason=error.detail,
                    pause_sec=pause,
                    **error.ids,
                )
            except Exception as error:
                if self._is_starting:
                    raise
                log.exception(
                    "the gateway cannot use NATS as it is; answering 503 and trying again",
                    action="gateway.nats_unusable",
                    reason=str(error),
                    pause_sec=pause,
                )
            await wait_at_most(self._stopping, pause)
            pause = min(MAX_OPEN_RETRY_SEC, pause * 2)

    async def _serve(self, backend: ServerBackend) -> None:
        self.imported = await self.levels.connect(backend) or self.imported
        background = self.levels.background()
        if isinstance(self._ask_who, Authenticate):
            background["record-key-uses"] = self._ask_who.uses.run
        work = [asyncio.ensure_future(keep_running(name, start)) for name, start in background.items()]
        self._opened.set()
        try:
            await self._stopping.wait()
        finally:
            for task in work:
                task.cancel()
            await asyncio.wait(work, timeout=self._connect_timeout_sec)


async def keep_running(name: str, start: Callable[[], Awaitable[None]]) -> None:
    """Without its background work a gateway would answer from old data: log the failure and restart it.

    Work that fails time and again is started less and less often; once it has lasted, soon again.
    """
    loop = asyncio.get_running_loop()
    pause = RETRY_SEC
    while True:
        began = loop.time()
        try:
            await start()
        except Exception:
            log.exception(
                "background work failed; starting it again",
                action="gateway.background",
                task=name,
                pause_sec=pause,
            )
        has_lasted = loop.time() - began > MAX_RETRY_SEC
        await asyncio.sleep(pause)
        pause = RETRY_SEC if has_lasted else min(MAX_RETRY_SEC, pause * 2)


def gateway_of(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def levels_of(request: Request) -> Levels:
    """What a route calls: `levels_of(request).<level>.<use case>`."""
    return gateway_of(request).levels


def reading_of(request: Request, stale: Stale = None) -> Reading:
    """The same, for what is read from the picture of all runs."""
    return gateway_of(request).reading(stale)
