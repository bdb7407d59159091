"""Work that one of several gateways does at a time.

The holder writes a beat now and then. Who sees the same beat for long enough, by its own clock, takes over:
two hosts' clocks are never compared. The lease saves work, it proves nothing: for a moment two may believe to
hold it, so whatever is done under it must be harmless when done twice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec import Struct

from pyoco_server.domain.wire import decoding
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports import Revision, Store, WrongRevision

log = get_logger(__name__)

BEAT_SEC = 1.0
SILENT_SEC = 5.0
"""So long without a beat, and the holder is taken for dead."""


class LeaseRecord(Struct, frozen=True):
    holder: str
    beats: int


decode_lease = decoding(LeaseRecord, "lease")


class Lease:
    def __init__(
        self,
        store: Store[LeaseRecord],
        name: str,
        holder: str,
        beat_sec: float = BEAT_SEC,
        silent_sec: float = SILENT_SEC,
    ) -> None:
        self._store = store
        self._name = name
        self._holder = holder
        self._beat_sec = beat_sec
        self._silent_sec = silent_sec
        self._revision: Revision | None = None

    @property
    def is_held(self) -> bool:
        return self._revision is not None

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` whenever the lease is ours, for ever. It is cancelled when the lease is lost."""
        while True:
            await self._acquire()
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
        await self._give_back()

    async def _acquire(self) -> None:
        loop = asyncio.get_running_loop()
        mine = LeaseRecord(self._holder, 0)
        seen, since = None, loop.time()
        while self._revision is None:
            with suppress(NatsUnavailable, WrongRevision):
                found = await self._store.get(self._name)
                if found is None:
                    self._revision = await self._store.create(self._name, mine)
                elif found.revision != seen:
                    seen, since = found.revision, loop.time()
                elif loop.time() - since >= self._silent_sec:
                    self._revision = await self._store.update(self._name, mine, found.revision)
            if self._revision is None:
                await asyncio.sleep(self._beat_sec)

    async def _keep(self, working: "asyncio.Future[None]") -> None:
        """Returns when the lease is lost; work that ends by itself ends this, with its error."""
        beats = 0
        while self._revision is not None:
            done, _ = await asyncio.wait({working}, timeout=self._beat_sec)
            if done:
                working.result()
                return
            beats += 1
            try:
                self._revision = await self._store.update(
                    self._name, LeaseRecord(self._holder, beats), self._revision
                )
            except WrongRevision:
                self._revision = await self._own_revision()
            except NatsUnavailable:
                log.debug("a beat was not answered", action="lease.beat", lease=self._name)

    async def _own_revision(self) -> Revision | None:
        """A beat that was written though its answer was lost is ours all the same."""
        with suppress(NatsUnavailable):
            found = await self._store.get(self._name)
            if found is not None and found.value.holder == self._holder:
                return found.revision
        return None

    async def _give_back(self) -> None:
        """So that the next holder need not wait for our silence."""
        revision, self._revision = self._revision, None
        if revision is not None:
            with suppress(NatsUnavailable, WrongRevision):
                await self._store.remove(self._name, revision)
