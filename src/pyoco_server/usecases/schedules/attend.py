"""Fire the ticks of schedules: decide, record, start, set the timer of the next tick.

JetStream keeps the time. A timer goes to one gateway, and to another if it is not acknowledged. Whoever is
killed between two of these steps leaves a timer that comes again, at any gateway, and finishes what is
missing; each step may be repeated.

The next timer is set last, and names the write that it follows. So a timer that names the stored revision
proves that everything was done, and the next tick needs no word about it: one write per tick. All other
timers are dropped, except the one that covers the last write; else they would multiply under load.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from pyoco_server.domain.executions.model import ExecutionStatus
from pyoco_server.domain.executions.records import LoggedCommit
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.domain.schedules.model import Active, Due, Schedule, TickPage, id_of, replace
from pyoco_server.domain.schedules.ticks import (
    Placed,
    RunEnd,
    attend,
    confirmed,
    filed,
    has_more,
    settled,
    started_runs,
    to_cancel,
)
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import get_logger, surviving
from pyoco_server.usecases.coordination import Lease
from pyoco_server.usecases.ports.runs import Timer, Timers
from pyoco_server.usecases.ports.stores import Change, Clock, Revision, Store, Versioned, WrongRevision
from pyoco_server.usecases.schedules.follow import FollowSchedules
from pyoco_server.usecases.schedules.start import StartScheduled

log = get_logger(__name__)

TIMER = "schedule"
"""The kind of a schedule's timers; their keys are those of the schedules."""
MAX_TRIES = 100
"""Each conflict is another writer's progress; this many in a row indicate a fault."""
SOON_SEC = 5.0
"""If the next tick is due by then, its write confirms this one as well."""

ChangeSchedule = Callable[[Schedule], Schedule]


class Fired(Struct, frozen=True):
    """A timer that has fired."""

    id: str
    follows: Revision
    """The write after which it was set."""

    def is_stale(self, stored: Versioned[Schedule], now: float) -> bool:
        """Whether another timer sees to the schedule."""
        schedule = stored.value
        if self.follows in (stored.revision, schedule.timer_follows) or self.id == schedule.covered_by:
            return False
        if schedule.is_settled:  # if nothing is due, this one may have replaced the other
            return schedule.fires_at is not None and schedule.fires_at <= now
        return bool(schedule.covered_by)


class TickMeter(Protocol):
    def ticked(self, status: str, count: int, late_sec: float | None) -> None:
        """`late_sec` of a started tick, without its jitter."""
        ...


class AttendSchedule:
    def __init__(  # noqa: PLR0913 - the composition root names each
        self,
        *,
        schedules: Store[Schedule],
        pages: Store[TickPage],
        timers: Timers,
        followed: FollowSchedules,
        work: StartScheduled,
        clock: Clock,
        meter: TickMeter,
        unsure_sec: float,
    ) -> None:
        """`clock`: that of the store, because it keeps the timers.

        `unsure_sec`: a run that was not confirmed for longer is not placed again, because it may have ended
        and expired.
        """
        self._schedules = schedules
        self._pages = pages
        self._timers = timers
        self._followed = followed
        self._work = work
        self._clock = clock
        self._meter = meter
        self._unsure_sec = unsure_sec

    async def __call__(
        self, key: str, timer: Fired | None = None, *, must_arm: bool = False
    ) -> Schedule | None:
        """Do everything that is due. None: there is no such schedule.

        `timer`: is acknowledged afterwards. `must_arm`: there may be no other timer.
        """
        known = self._followed.known(key)
        if known is not None and timer is not None and known.revision < timer.follows:
            known = None
        for _ in range(MAX_TRIES):
            stored = known or await self._schedules.get(key)
            if stored is None:
                await self._timers.clear(TIMER, key)
                return None
            stored = self._followed.latest(key, stored)
            now = self._clock()
            if timer is not None and timer.is_stale(stored, now):
                return stored.value
            if timer is not None and timer.follows in (stored.revision, stored.value.timer_follows):
                stored = Versioned(confirmed(stored.value), stored.revision)
                now = max(now, stored.value.fires_at or 0.0)  # it has come by the store's clock
            try:
                found = await self._step(key, stored, now, "" if timer is None else timer.id)
            except WrongRevision:
                known = None
                continue
            if found is not None and not has_more(found.value, self._clock()):
                return found.value
            if found is None and known is None:
                if must_arm:
                    await self._arm(key, stored)
                return stored.value
            known = found  # or None: decide on what is stored now
            must_arm = True
        raise NatsUnavailable(f"schedule {key} could not be written: {MAX_TRIES} consecutive conflicts")

    async def change(
        self, key: str, stored: Versioned[Schedule], change: ChangeSchedule
    ) -> Versioned[Schedule]:
        """Write a change and do what follows from it. Raises WrongRevision if it was not written."""
        written = await self._write(key, stored, change, "")
        return await self.settle(key, written)

    async def settle(self, key: str, stored: Versioned[Schedule]) -> Versioned[Schedule]:
        """Do what follows from a write."""
        try:
            return await self._settle(key, stored)
        except WrongRevision:
            # Somebody else has written meanwhile, perhaps before our timer replaced theirs.
            found = await self(key, must_arm=True)
            return stored if found is None else await self._schedules.get(key) or stored

    async def _step(
        self, key: str, stored: Versioned[Schedule], now: float, covered_by: str
    ) -> Versioned[Schedule] | None:
        """The schedule after what was due; None: nothing was."""
        schedule = stored.value
        if not schedule.is_settled:
            return await self._settle(key, stored, goes_on=True)
        ended = await self._ends(schedule.active)
        decided = attend(schedule, ended, now)
        if decided is schedule:
            await self._cancel(schedule)
            return None
        written = await self._write(
            key, stored, lambda found: decided if found is schedule else attend(found, ended, now), covered_by
        )
        return written if written.value.is_settled else await self._settle(key, written, goes_on=True)

    async def _write(
        self, key: str, stored: Versioned[Schedule], change: ChangeSchedule, covered_by: str
    ) -> Versioned[Schedule]:
        """Raises WrongRevision."""
        part = filed(stored.value)
        for number, page in part.pages:
            try:
                await self._pages.create(stored.value.page_key(number), page)
            except WrongRevision:
                log.debug(
                    "page of ticks is filed already", action="schedule.filed", schedule=key, page=number
                )
        changed = change(part.schedule)
        changed = replace(changed, covered_by=covered_by, timer_follows=_timer_of(stored, changed))
        written = await self._update(key, changed, stored.revision)
        self._measure(part.schedule, changed)
        return written

    async def _update(self, key: str, schedule: Schedule, expected: Revision) -> Versioned[Schedule]:
        written = Versioned(schedule, await self._schedules.update(key, schedule, expected))
        self._followed.note(key, written)
        return written

    async def _settle(
        self, key: str, stored: Versioned[Schedule], *, goes_on: bool = False
    ) -> Versioned[Schedule]:
        """Start what is to be started, set the timer of the next tick, and note that it is done.

        What was started is noted even if something else fails: a repeat has less to do. `goes_on`: the caller
        attends to what is due now, which needs no timer.
        """
        schedule = stored.value
        placing = await asyncio.gather(
            *(self._place(schedule, due) for due in schedule.to_place), return_exceptions=True
        )
        placed = {
            id_of(schedule, due): found
            for due, found in zip(schedule.to_place, placing, strict=True)
            if isinstance(found, Placed)
        }
        failures = [found for found in placing if isinstance(found, BaseException)]
        done = settled(schedule, placed, is_complete=not failures)
        if not failures and not (goes_on and has_more(done, self._clock())):
            await self._arm(key, stored)
        if not failures and done.ticks == schedule.ticks and schedule.covered_by and self._is_soon(done):
            stored = Versioned(done, stored.revision)
            self._followed.note(key, stored)
        elif placed or not failures:
            noted = replace(done, timer_follows=0 if failures else stored.revision)
            stored = await self._update(key, noted, stored.revision)
        for failure in failures:
            raise failure
        await self._cancel(schedule)
        return stored

    def _is_soon(self, schedule: Schedule) -> bool:
        return schedule.fires_at is not None and schedule.fires_at < self._clock() + SOON_SEC

    async def _place(self, schedule: Schedule, due: Due) -> Placed:
        found = id_of(schedule, due)
        fired_at = max(
            (tick.fired_at for tick in schedule.ticks if tick.started_id == found),
            default=0.0,
        )
        if self._clock() - fired_at > self._unsure_sec:
            log.warning(
                "a tick was interrupted long ago; not starting it again",
                action="schedule.unsure",
                schedule=schedule.key,
                due_at=due.due_at,
                run_id=found,
            )
            return Placed(problem="interrupted")
        placed = await self._work.place(schedule, due, fired_at)
        if placed.problem is not None:
            log.warning(
                "a tick could not be started",
                action="schedule.not_started",
                schedule=schedule.key,
                due_at=due.due_at,
                problem=placed.problem,
            )
        return placed

    async def _arm(self, key: str, stored: Versioned[Schedule]) -> None:
        """One timer per schedule; a new one replaces the old."""
        fires_at = stored.value.fires_at
        if fires_at is None:
            await self._timers.clear(TIMER, key)
        else:
            await self._timers.set(TIMER, key, fires_at, str(stored.revision).encode())

    async def untracked(self, schedule: Schedule) -> tuple[Active, ...]:
        """What goes on of its newest ticks, for a schedule whose runs have not been tracked so far."""
        started = started_runs(schedule)
        ended = await self._ends(started)
        return tuple(run for run in started if run.id not in ended)

    async def _ends(self, runs: Sequence[Active]) -> dict[str, RunEnd]:
        ends = await asyncio.gather(*(self._work.end_of(run) for run in runs))
        return {run.id: end for run, end in zip(runs, ends, strict=True) if end is not None}

    async def _cancel(self, schedule: Schedule) -> None:
        for run in to_cancel(schedule):
            await self._work.cancel(run, schedule)

    def _measure(self, before: Schedule, after: Schedule) -> None:
        for tick in after.ticks[len(before.ticks) :]:
            late_sec = max(0.0, tick.late_sec - after.definition.jitter_sec)
            self._meter.ticked(
                tick.status.value, tick.count, late_sec if tick.started_id and not tick.manual else None
            )


def _timer_of(stored: Versioned[Schedule], changed: Schedule) -> int:
    """The revision that the timer of the next tick follows; 0: it is still to be set.

    The end of a run, for example, changes no tick: the timer that is set stays the right one.
    """
    return (stored.value.timer_follows or stored.revision) if changed.is_settled else 0


# Beside the requests: fire timers, and find schedules that stand still. Nothing here has to happen in time
# for a tick to be right: after a kill it is late at worst.

AT_ONCE = 64
"""Timers handled concurrently; each mostly waits for NATS."""
CHECK_SEC = 15.0
LATE_SEC = 10.0
"""A schedule whose tick is later has lost its timer, or its gateway."""


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
                fired = Fired(timer.id, Revision(int(timer.payload or b"0")))
                await self._attend(timer.key, fired, must_arm=True)
                await timer.settle()
        finally:
            self._room.release()

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
