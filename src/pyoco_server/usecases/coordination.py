"""What gateways share: leases for work that one of them does at a time, parts of other work, and one clock.

The holder renews its lease periodically. `take` checks the expiry date against the clock that all gateways
share. `run` treats the holder as dead if the record is unchanged for `lasts_sec`, whatever the clocks. A
lease saves work but guarantees nothing: two gateways may hold it for a moment, so work under it must be
idempotent.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from pyoco_server.domain.fleet import LeaseRecord, is_free
from pyoco_server.domain.shares import (
    SHARDS,
    Roster,
    Seen,
    left_of,
    observed,
    shard_of,
    shards_of,
    silent,
    with_beat,
)
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.consistency import change_value, write
from pyoco_server.usecases.ports.stores import Clock, Revision, ServerTime, Store, WrongRevision

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
        """`lasts_sec`: lease timeout before another gateway takes over."""
        self._store = store
        self._name = name
        self._holder = holder
        self._clock = clock
        self._lasts_sec = lasts_sec
        self._beat_sec = beat_sec
        self.is_held = False
        """Whether this gateway holds the lease, as far as it knows."""
        self._kept_at = float("-inf")

    @property
    def is_fresh(self) -> bool:
        """Whether it was renewed lately. A process that was frozen wakes up with a lease of the past."""
        return asyncio.get_running_loop().time() - self._kept_at < self._lasts_sec

    def _ours(self) -> LeaseRecord:
        return LeaseRecord(self._holder, self._clock() + self._lasts_sec)

    async def take(self) -> bool:
        """Take or renew the lease. False: held by another gateway. Raises NatsUnavailable."""

        def decide(found: LeaseRecord | None) -> LeaseRecord | None:
            return self._ours() if is_free(found, self._holder, self._clock()) else None

        self.is_held = await change_value(self._store, self._name, decide) is not None
        return self.is_held

    async def give_back(self) -> None:
        """Release the lease, so that the next holder need not wait. On failure it expires."""
        self.is_held = False
        with best_effort(log, "lease.give_back", NatsUnavailable, lease=self._name):
            found = await self._store.get(self._name)
            if found is not None and found.value.holder == self._holder:
                with suppress(WrongRevision):  # it has run out, and somebody else was faster
                    await self._store.remove(self._name, found.revision)

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` whenever this gateway holds the lease, forever. Cancelled when the lease is lost."""
        while True:
            await self._wait_for_it()
            log.info("lease acquired", action="lease.taken", lease=self._name, holder=self._holder)
            working = asyncio.ensure_future(work())
            try:
                await self._keep(working)
            except (Exception, asyncio.CancelledError):
                await self._stop(working)
                raise
            await self._stop(working)
            log.warning(
                "lease lost to another gateway", action="lease.lost", lease=self._name, holder=self._holder
            )

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
                    asked_at = loop.time()
                    await write(self._store, self._name, self._ours(), found)
                    self.is_held, self._kept_at = True, asked_at
            if not self.is_held:
                await asyncio.sleep(self._beat_sec)

    async def _keep(self, working: "asyncio.Future[None]") -> None:
        """Returns when the lease is lost, or when the work ends, with its error."""
        while self.is_held:
            done, _ = await asyncio.wait({working}, timeout=self._beat_sec)
            if done:
                working.result()
                return
            asked_at = asyncio.get_running_loop().time()
            try:
                self.is_held = await self._renew()
                self._kept_at = asked_at
            except NatsUnavailable:
                log.debug("lease renewal timed out", action="lease.beat", lease=self._name)

    async def _renew(self) -> bool:
        """Release only our own lease, including one renewed by a write whose reply was lost."""

        def decide(found: LeaseRecord | None) -> LeaseRecord | None:
            return self._ours() if found is not None and found.holder == self._holder else None

        return await change_value(self._store, self._name, decide) is not None


# Work that all gateways do, each its part.


class Share:
    """This gateway's part of a work that gateways share by hash.

    All members are in one record, which each of them writes at every heartbeat. A member whose heartbeat has
    not changed for `lasts_sec` is removed by the others. Like a lease it guarantees nothing: while a member
    comes or goes, two may have the same key for the length of a heartbeat.
    """

    def __init__(
        self, store: Store[Roster], name: str, member: str, *, lasts_sec: float, beat_sec: float
    ) -> None:
        self._store = store
        self._name = name
        self._member = member
        self._lasts_sec = lasts_sec
        self._beat_sec = beat_sec
        self._beat = 0
        self._seen: dict[str, Seen] = {}
        self._shards: frozenset[int] = frozenset()

    def has(self, key: str) -> bool:
        """Whether the key is in this gateway's part, as far as it knows."""
        return shard_of(key) in self._shards

    @property
    def size(self) -> int:
        """Number of shards."""
        return len(self._shards)

    async def run(self, on_change: Callable[[Callable[[str], bool]], None]) -> None:
        """Take part, forever. `on_change` gets a test for keys that are new in this gateway's part."""
        try:
            while True:
                try:
                    self._take(await self._beaten(), on_change)
                except NatsUnavailable:
                    log.debug("lease renewal timed out", action="lease.beat", lease=self._name)
                await asyncio.sleep(self._beat_sec)
        finally:
            self._shards = frozenset()
            await self._leave()

    async def _beaten(self) -> Roster:
        self._beat += 1

        def decide(found: Roster | None) -> Roster:
            now, roster = asyncio.get_running_loop().time(), found or Roster()
            self._seen = observed(self._seen, roster, now)
            gone = silent(self._seen, now, self._lasts_sec)
            return with_beat(roster, self._member, self._beat, gone)

        return await change_value(self._store, self._name, decide) or Roster()

    def _take(self, roster: Roster, on_change: Callable[[Callable[[str], bool]], None]) -> None:
        shards = shards_of(self._member, roster.beats)
        gained = shards - self._shards
        if shards == self._shards:
            return
        self._shards = shards
        log.info(
            "this gateway's part of the work has changed",
            action="share.changed",
            share=self._name,
            shards=len(shards),
            all_shards=SHARDS,
            gateways=len(roster.beats),
        )
        on_change(lambda key: shard_of(key) in gained)

    async def _leave(self) -> None:
        """So that the others need not wait. On failure they notice the silence."""

        def decide(found: Roster | None) -> Roster | None:
            return None if found is None else left_of(found, (self._member,))

        with best_effort(log, "lease.give_back", NatsUnavailable, lease=self._name):
            await change_value(self._store, self._name, decide)


# One clock for all gateways: that of NATS.
#
# Deadlines, retries and grace periods are stored as times, and another gateway may have to act on them. Two
# hosts' clocks may be minutes apart, but both can read the clock of the store they share. Between two
# readings this host's monotonic clock goes on, so that a jump of its wall clock changes nothing.

MEASURE_SEC = 30.0
SAMPLES = 3
"""The quickest answer is the most exact: it is at most half its round trip old."""
MAX_ROUND_TRIP_SEC = 2.0
"""A slower answer, e.g. after this process was frozen, is less exact than the last measurement."""


class SharedClock:
    """Until it is measured it shows this host's time."""

    def __init__(
        self, server: ServerTime, *, wall: Clock = time.time, monotonic: Clock = time.monotonic
    ) -> None:
        """`wall` and `monotonic` are the clocks of this host."""
        self._server = server
        self._monotonic = monotonic
        self._ahead = wall() - monotonic()

    def __call__(self) -> float:
        return self._monotonic() + self._ahead

    async def measure(self) -> None:
        """Raises NatsUnavailable."""
        took, ahead = min([await self._sample() for _ in range(SAMPLES)])
        if took > MAX_ROUND_TRIP_SEC:
            raise NatsUnavailable(f"nats unavailable: reading its clock took {took:.1f} s")
        self._ahead = ahead

    async def run(self) -> None:
        while True:
            await asyncio.sleep(MEASURE_SEC)
            with best_effort(log, "clock.measure", NatsUnavailable):
                await self.measure()

    async def _sample(self) -> tuple[float, float]:
        """How long it took, and how far the server's clock is ahead of our monotonic one."""
        asked = self._monotonic()
        shown = await self._server.now()
        took = self._monotonic() - asked
        return took, shown - asked - took / 2
