"""Storage check of a gateway: a test write, because a connection alone proves nothing."""

import asyncio

from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports.stores import Storage

log = get_logger(__name__)

INTERVAL_SEC = 5.0


class CheckStorage:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.is_ok: bool | None = None
        """None: not checked yet."""

    async def run(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(INTERVAL_SEC)

    async def check(self) -> None:
        was_ok = self.is_ok
        try:
            await self._storage.check()
        except NatsUnavailable as error:
            self.is_ok = False
            if was_ok is not False:
                log.exception(
                    "NATS does not store writes; not ready",
                    action="storage.failed",
                    **error.ids,
                )
            return
        self.is_ok = True
        if was_ok is False:
            log.info("NATS stores writes again", action="storage.ok")
