"""Work that one of several gateways does at a time.

The holder renews its lease now and then. Who asks once (`take`) goes by the date on it, and by the clock that
all gateways share. Who waits for it (`run`) goes by its own ears: the same record for long enough, and its
holder is dead, whatever the clocks say. The lease saves work, it proves nothing: for a moment two may believe
to hold it, so whatever is done under it must be harmless when done twice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from pyoco_server.domain.fleet import LeaseRecord, is_free
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.consistency import change_value, write
from pyoco_server.usecases.ports.stores import Clock, Revision, Store, WrongRevision

log = get_logger(__name__)

BEAT_SEC = 1.0


class Lease:
    def __init__(
        self,
        store: Store[LeaseRecord],
        name: str,
        holder: str,
        clock: Clock,
        *,
        lasts_sec: float,
        beat_sec: float = BEAT_SEC,
    ) -> None:
        """`lasts_sec`: so long without a word, and the holder is taken for dead."""
        self._store = store
        self._name = name
        self._holder = holder
        self._clock = clock
        self._lasts_sec = lasts_sec
        self._beat_sec = beat_sec
        self.is_held = False
        """As far as we know."""

    def _ours(self) -> LeaseRecord:
        return LeaseRecord(self._holder, self._clock() + self._lasts_sec)

    async def take(self) -> bool:
        """Take it, or keep it for longer. False: somebody else has it. Raises NatsUnavailable."""

        def decide(found: LeaseRecord | None) -> LeaseRecord | None:
            return self._ours() if is_free(found, self._holder, self._clock()) else None

        self.is_held = await change_value(self._store, self._name, decide) is not None
        return self.is_held

    async def give_back(self) -> None:
        """So that the next holder need not wait. If that fails it runs out by itself."""
        self.is_held = False
        with best_effort(log, "lease.give_back", NatsUnavailable, lease=self._name):
            found = await self._store.get(self._name)
            if found is not None and found.value.holder == self._holder:
                with suppress(WrongRevision):  # it has run out, and somebody else was faster
                    await self._store.remove(self._name, found.revision)

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` whenever the lease is ours, for ever. It is cancelled when the lease is lost."""
        while True:
            await self._wait_for_it()
            log.info("took over", action="lease.taken", lease=self._name, holder=self._holder)
            working = asyncio.ensure_future(work())
            try:
                await self._keep(working)
            except (Exception, asyncio.CancelledError):
                await self._stop(working)
                raise
            await self._stop(working)
            log.warning("lost to another", action="lease.lost", lease=self._name, holder=self._holder)

    async def _stop(self, working: "asyncio.Future[None]") -> None:
        working.cancel()
        await asyncio.wait({working})
        await self.give_back()

    async def _wait_for_it(self) -> None:
        loop = asyncio.get_running_loop()
        seen: Revision | None = None
        since = loop.time()
        while not self.is_held:
            with suppress(NatsUnavailable, WrongRevision):
                found = await self._store.get(self._name)
                if found is not None and found.revision != seen:
                    seen, since = found.revision, loop.time()
                elif found is None or loop.time() - since >= self._lasts_sec:
                    await write(self._store, self._name, self._ours(), found)
                    self.is_held = True
            if not self.is_held:
                await asyncio.sleep(self._beat_sec)

    async def _keep(self, working: "asyncio.Future[None]") -> None:
        """Returns when the lease is lost; work that ends by itself ends this, with its error."""
        while self.is_held:
            done, _ = await asyncio.wait({working}, timeout=self._beat_sec)
            if done:
                working.result()
                return
            try:
                self.is_held = await self._renew()
            except NatsUnavailable:
                log.debug("a beat was not answered", action="lease.beat", lease=self._name)

    async def _renew(self) -> bool:
        """Only what is still ours, also by a beat that was written though its answer was lost."""

        def decide(found: LeaseRecord | None) -> LeaseRecord | None:
            return self._ours() if found is not None and found.holder == self._holder else None

        return await change_value(self._store, self._name, decide) is not None
