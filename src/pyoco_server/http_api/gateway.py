"""What a running gateway holds: its connection to NATS, and the use cases on top of it."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress

from fastapi import Request

from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import IncompatibleNats, NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports import Backend
from pyoco_server.usecases.read_run import ReadRun
from pyoco_server.usecases.submit_run import SubmitRun
from pyoco_server.wiring import new_run_id

log = get_logger(__name__)

OpenBackend = Callable[[], AbstractAsyncContextManager[Backend]]

START_PATIENCE_SEC = 5.0
"""How long a start waits for NATS; after that the gateway answers 503 until NATS is there."""
RETRY_SEC = 1.0


class UseCases:
    def __init__(self, backend: Backend, config: NatsBackendConfig) -> None:
        self.submit_run = SubmitRun(backend.runs, backend.queue, time.time, new_run_id)
        self.read_run = ReadRun(
            backend.runs, backend.workers, time.time, config.worker_disconnect_timeout_sec
        )


class Gateway:
    def __init__(self, config: NatsBackendConfig, open_backend: OpenBackend) -> None:
        self.config = config
        self._open_backend = open_backend
        self._backend: Backend | None = None
        self._use_cases: UseCases | None = None
        self._opened = asyncio.Event()
        self._stopping = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        return self._backend is not None and self._backend.is_available

    @property
    def use_cases(self) -> UseCases:
        if self._use_cases is None:
            raise NatsUnavailable("nats unavailable: not connected yet")
        return self._use_cases

    async def start(self) -> None:
        """Returns when NATS is there, or when waiting longer would keep a client from hearing 503.

        Raises IncompatibleNats: no waiting helps against that.
        """
        self._holding = asyncio.ensure_future(self._hold_backend())
        opened = asyncio.ensure_future(self._opened.wait())
        await asyncio.wait(
            {self._holding, opened}, timeout=START_PATIENCE_SEC, return_when=asyncio.FIRST_COMPLETED
        )
        opened.cancel()
        if self._holding.done():
            self._holding.result()
        if not self._opened.is_set():
            log.warning(
                "NATS is not reachable; answering 503 until it is",
                action="gateway.waiting_for_nats",
                **NatsUnavailable().ids,
            )

    async def stop(self) -> None:
        self._stopping.set()
        done, _ = await asyncio.wait({self._holding}, timeout=START_PATIENCE_SEC)
        if not done:
            self._holding.cancel()
            with suppress(asyncio.CancelledError):
                await self._holding

    async def _hold_backend(self) -> None:
        while not self._stopping.is_set():
            try:
                async with self._open_backend() as backend:
                    self._backend = backend
                    self._use_cases = UseCases(backend, self.config)
                    self._opened.set()
                    log.info("gateway ready", action="gateway.ready")
                    await self._stopping.wait()
            except IncompatibleNats:
                raise
            except NatsUnavailable as error:
                log.warning("NATS is not usable yet", action="gateway.nats_failed", exc_info=error)
                await asyncio.sleep(RETRY_SEC)


def gateway_of(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway
