"""Fire the ticks of a schedule: decide, record, start, schedule the next tick.

Whoever is killed between two of these steps leaves a schedule that is not settled, and the timer that was not
acknowledged comes again, at any gateway: it finishes what is missing. Each step may be repeated.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from pyoco_server.domain.schedules.model import Due, Schedule, id_of
from pyoco_server.domain.schedules.ticks import (
    Placed,
    RunEnd,
    attend,
    filed,
    has_more,
    settled,
    to_cancel,
)
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports.runs import Timers
from pyoco_server.usecases.ports.schedules import PageStore, ScheduledWork, ScheduleStore
from pyoco_server.usecases.ports.stores import Clock, Versioned, WrongRevision

log = get_logger(__name__)

TIMER = "schedule"
"""The kind of a schedule's timers; their keys are those of the schedules."""
MAX_TRIES = 100
"""Each conflict is another writer's progress; this many in a row indicate a fault."""
MAX_UNSURE_SEC = 86_400.0
"""A run that was not confirmed for longer is not placed again: it may have ended and expired."""

Change = Callable[[Schedule], Schedule]


class TickMeter(Protocol):
    def ticked(self, status: str, count: int, late_sec: float | None) -> None:
        """`late_sec` of a started tick, without its jitter."""
        ...


class AttendSchedule:
    def __init__(
        self,
        *,
        schedules: ScheduleStore,
        pages: PageStore,
        timers: Timers,
        work: ScheduledWork,
        clock: Clock,
        meter: TickMeter,
        on_written: Callable[[str, Versioned[Schedule]], None] = lambda _key, _stored: None,
    ) -> None:
        """`clock`: that of the store, because it keeps the timers."""
        self._schedules = schedules
        self._pages = pages
        self._timers = timers
        self._work = work
        self._clock = clock
        self._meter = meter
        self._on_written = on_written

    async def __call__(
        self, key: str, known: Versioned[Schedule] | None = None, *, is_timer: bool = False
    ) -> Schedule | None:
        """Do everything that is due. None: there is no such schedule.

        `known` saves a read; a write that is based on an old one is refused. `is_timer`: its timer has fired,
        so that there may be none.
        """
        for _ in range(MAX_TRIES):
            stored = known or await self._schedules.get(key)
            if stored is None:
                await self._timers.clear(TIMER, key)
                return None
            try:
                found = await self._step(key, stored)
            except WrongRevision:
                known = None
                continue
            if found is not None and not has_more(found.value, self._clock()):
                return found.value
            if found is None and known is None:
                if is_timer:
                    await self._arm(key, stored.value)
                return stored.value
            known = found  # or None: decide on what is stored now
        raise NatsUnavailable(f"schedule {key} could not be written: {MAX_TRIES} consecutive conflicts")

    async def change(self, key: str, stored: Versioned[Schedule], change: Change) -> Versioned[Schedule]:
        """Write a change and do what follows from it. Raises WrongRevision if it was not written."""
        written = await self._write(key, stored, change)
        return await self.settle(key, written)

    async def settle(self, key: str, stored: Versioned[Schedule]) -> Versioned[Schedule]:
        """Start what is to be started, schedule the next tick, and note that it is done."""
        try:
            return await self._settle(key, stored)
        except WrongRevision:
            # Somebody else has written meanwhile, perhaps before our timer replaced theirs.
            found = await self(key)
            return stored if found is None else await self._schedules.get(key) or stored

    async def _step(self, key: str, stored: Versioned[Schedule]) -> Versioned[Schedule] | None:
        """The schedule after what was due; None: nothing was."""
        schedule, now = stored.value, self._clock()
        if not schedule.is_settled:
            return await self._settle(key, stored)
        ended = await self._ends(schedule)
        decided = attend(schedule, ended, now)
        if decided is schedule:
            await self._cancel(schedule)
            return None
        written = await self._write(
            key, stored, lambda found: decided if found is schedule else attend(found, ended, now)
        )
        return written if written.value.is_settled else await self._settle(key, written)

    async def _write(self, key: str, stored: Versioned[Schedule], change: Change) -> Versioned[Schedule]:
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
        written = Versioned(changed, await self._schedules.update(key, changed, stored.revision))
        self._on_written(key, written)
        self._measure(part.schedule, changed)
        return written

    async def _settle(self, key: str, stored: Versioned[Schedule]) -> Versioned[Schedule]:
        """What succeeds is noted even if something else fails: a repeat has less to do."""
        schedule = stored.value
        arming, *placing = await asyncio.gather(
            self._arm(key, schedule),
            *(self._place(schedule, due) for due in schedule.to_place),
            return_exceptions=True,
        )
        placed = {
            id_of(schedule, due): found
            for due, found in zip(schedule.to_place, placing, strict=True)
            if isinstance(found, Placed)
        }
        failures = [one for one in (arming, *placing) if isinstance(one, BaseException)]
        if placed or not failures:
            done = settled(schedule, placed, is_armed=not failures)
            stored = Versioned(done, await self._schedules.update(key, done, stored.revision))
            self._on_written(key, stored)
        for failure in failures:
            raise failure
        await self._cancel(schedule)
        return stored

    async def _place(self, schedule: Schedule, due: Due) -> Placed:
        found = id_of(schedule, due)
        fired_at = max(
            (tick.fired_at for tick in schedule.ticks if tick.started_id == found),
            default=0.0,
        )
        if self._clock() - fired_at > MAX_UNSURE_SEC:
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

    async def _arm(self, key: str, schedule: Schedule) -> None:
        """One timer per schedule; a new one replaces the old."""
        if schedule.fires_at is None:
            await self._timers.clear(TIMER, key)
        else:
            await self._timers.set(TIMER, key, schedule.fires_at)

    async def _ends(self, schedule: Schedule) -> dict[str, RunEnd]:
        ends = await asyncio.gather(*(self._work.end_of(run) for run in schedule.active))
        return {run.id: end for run, end in zip(schedule.active, ends, strict=True) if end is not None}

    async def _cancel(self, schedule: Schedule) -> None:
        for run in to_cancel(schedule):
            await self._work.cancel(run, schedule)

    def _measure(self, before: Schedule, after: Schedule) -> None:
        for tick in after.ticks[len(before.ticks) :]:
            late_sec = max(0.0, tick.late_sec - after.definition.jitter_sec)
            self._meter.ticked(
                tick.status.value, tick.count, late_sec if tick.started_id and not tick.manual else None
            )
