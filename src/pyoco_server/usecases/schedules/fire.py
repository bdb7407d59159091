"""Beside the requests: know all schedules, fire their timers, and find those that stand still.

JetStream keeps the time. A timer goes to one gateway, and to another if it is not acknowledged. Nothing here
has to happen in time for a tick to be right: a gateway that is killed is late at worst.
"""

import asyncio
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence

from pyoco_server.domain.executions.model import ExecutionStatus
from pyoco_server.domain.executions.records import LoggedCommit
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.domain.schedules.model import Schedule, schedule_key
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import get_logger, surviving
from pyoco_server.usecases.coordination import Lease
from pyoco_server.usecases.ports.runs import Timer, Timers
from pyoco_server.usecases.ports.stores import Change, Clock, Feed, FeedBatch, Revision, Versioned
from pyoco_server.usecases.schedules.attend import TIMER, AttendSchedule

log = get_logger(__name__)

AT_ONCE = 64
"""Timers handled concurrently; each mostly waits for NATS."""
EARLY_SEC = 0.5
"""A timer of NATS may be early by the gateway's clock, which is measured."""
CHECK_SEC = 15.0
LATE_SEC = 10.0
"""A schedule whose tick is later has lost its timer, or its gateway."""


class FollowSchedules:
    """All schedules in memory, from a feed."""

    def __init__(self, feed: Feed[Schedule]) -> None:
        self._feed = feed
        self._known: dict[str, Versioned[Schedule]] = {}
        self._keys: list[str] = []
        self._owners: dict[str, str] = {}
        """Keys of schedules by the ids of their active runs."""
        self._caught_up = asyncio.Event()

    @property
    def is_caught_up(self) -> bool:
        return self._caught_up.is_set()

    @property
    def stale_sec(self) -> float:
        return self._feed.stale_sec

    async def run(self) -> None:
        async for batch in self._feed.follow(None):
            self._take(batch)
            await asyncio.sleep(0)

    async def wait(self) -> None:
        """Until all schedules that existed at the start are known."""
        await self._caught_up.wait()

    def known(self, key: str) -> Versioned[Schedule] | None:
        return self._known.get(key)

    def all(self) -> Iterable[tuple[str, Versioned[Schedule]]]:
        return list(self._known.items())

    def owner_of(self, run_id: str) -> str | None:
        """The key of the schedule for which this run or execution is active."""
        return self._owners.get(run_id)

    def after(self, tenant_id: str | None, schedule_id: str, limit: int) -> list[Schedule]:
        """Schedules of a tenant by id."""
        prefix = schedule_key(tenant_id, "")
        start = bisect_right(self._keys, prefix + schedule_id)
        keys = self._keys[start : start + limit]
        return [self._known[key].value for key in keys if key.startswith(prefix)]

    def ids(self, tenant_id: str | None) -> list[str]:
        prefix = schedule_key(tenant_id, "")
        return [key.removeprefix(prefix) for key in self._keys if key.startswith(prefix)]

    def note(self, key: str, stored: Versioned[Schedule]) -> None:
        """Something newer, from the feed or from this gateway's own write."""
        known = self._known.get(key)
        if known is not None and known.revision >= stored.revision:
            return
        if known is None:
            insort(self._keys, key)
        self._replace_owner(key, known, stored.value)
        self._known[key] = stored

    def forget(self, key: str) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            del self._keys[bisect_right(self._keys, key) - 1]
            self._replace_owner(key, known, None)

    def _replace_owner(self, key: str, before: Versioned[Schedule] | None, now: Schedule | None) -> None:
        for run in () if before is None else before.value.active:
            self._owners.pop(run.id, None)
        for run in () if now is None else now.active:
            self._owners[run.id] = key

    def _take(self, batch: FeedBatch[Schedule]) -> None:
        if batch.is_reset:
            for key in list(self._known):
                self.forget(key)
            self._caught_up.clear()
        for change in batch.changes:
            self._take_change(change)
        if batch.is_caught_up:
            self._caught_up.set()

    def _take_change(self, change: Change[Schedule]) -> None:
        known = self._known.get(change.key)
        if change.value is not None:
            self.note(change.key, Versioned(change.value, Revision(change.revision)))
        elif known is not None and known.revision < change.revision:
            self.forget(change.key)


class FireSchedules:
    def __init__(
        self,
        *,
        timers: Timers,
        followed: FollowSchedules,
        attend: AttendSchedule,
        lease: Lease,
        clock: Clock,
        check_sec: float = CHECK_SEC,
        late_sec: float = LATE_SEC,
    ) -> None:
        self._timers = timers
        self._followed = followed
        self._attend = attend
        self._lease = lease
        self._clock = clock
        self._check_sec = check_sec
        self._late_sec = late_sec
        self._room = asyncio.Semaphore(AT_ONCE)
        self._ended: set[str] = set()
        self._wake = asyncio.Event()

    # Timers

    async def run(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        try:
            async for timer in self._timers.follow(TIMER):
                await self._room.acquire()
                task = asyncio.ensure_future(self._fire(timer))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _fire(self, timer: Timer) -> None:
        """Without an acknowledgement the timer comes again, at this or another gateway."""
        try:
            with surviving(log, "schedule.fire", NatsUnavailable, schedule=timer.key):
                known = self._followed.known(timer.key)
                await self._until_due(known)
                await self._attend(timer.key, known, is_timer=True)
                await timer.settle()
        finally:
            self._room.release()

    async def _until_due(self, known: Versioned[Schedule] | None) -> None:
        early = 0.0 if known is None else (known.value.fires_at or 0.0) - self._clock()
        if 0 < early < EARLY_SEC:
            await asyncio.sleep(early)

    # Ends of runs, for which ticks may wait

    def look(self, changes: Sequence[Change[RunSnapshot]]) -> None:
        """Called for every change of a run."""
        for change in changes:
            if change.value is None or change.value.status.is_terminal:
                self._has_ended(change.key)

    def look_at_commit(self, logged: LoggedCommit) -> None:
        """Called for every commit of an execution."""
        if logged.summary.status is not ExecutionStatus.ACTIVE:
            self._has_ended(logged.commit.execution_id)

    def _has_ended(self, run_id: str) -> None:
        key = self._followed.owner_of(run_id)
        known = None if key is None else self._followed.known(key)
        if key is None or known is None:
            return
        if known.value.waiting or known.value.definition.pause_after_failures is not None:
            self._ended.add(key)
            self._wake.set()

    async def run_ended(self) -> None:
        """All gateways do it; whoever is first writes."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            keys, self._ended = self._ended, set()
            await self._attend_all(keys)

    # Schedules that stand still

    async def check(self) -> None:
        await self._followed.wait()
        await self._lease.run(self._keep_checking)

    async def _keep_checking(self) -> None:
        unsettled: dict[str, Revision] = {}
        while True:
            await asyncio.sleep(self._check_sec)
            await self._attend_all(self._late())
            now_unsettled = {
                key: stored.revision for key, stored in self._followed.all() if _needs_look(stored.value)
            }
            await self._attend_all(
                key for key, revision in now_unsettled.items() if unsettled.get(key) == revision
            )
            unsettled = now_unsettled

    def _late(self) -> list[str]:
        limit = self._clock() - self._late_sec
        late = [
            key
            for key, stored in self._followed.all()
            if stored.value.fires_at is not None and stored.value.fires_at < limit
        ]
        if late:
            log.warning("schedules are late; firing them", action="schedule.late", schedules=len(late))
        return late

    async def _attend_all(self, keys: Iterable[str]) -> None:
        await asyncio.gather(*(self._attend_one(key) for key in keys))

    async def _attend_one(self, key: str) -> None:
        async with self._room:
            with surviving(log, "schedule.attend", NatsUnavailable, schedule=key):
                await self._attend(key)


def _needs_look(schedule: Schedule) -> bool:
    """Whether it depends on somebody who may be gone, or on the end of a run that was overlooked."""
    is_counting = schedule.definition.pause_after_failures is not None and bool(schedule.active)
    return not schedule.is_settled or bool(schedule.waiting) or is_counting
