"""Define, list, pause, resume, trigger and backfill schedules, and read their history."""

from collections.abc import Callable, Iterable
from itertools import islice

from msgspec import Struct
from msgspec.structs import asdict, replace

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.inputs import is_tag, nearest
from pyoco_server.domain.runs.claims import IdempotencyClaim, claim_key
from pyoco_server.domain.runs.listing import Place, cursor_at, digest_of, place_of
from pyoco_server.domain.schedules.model import (
    PAGE,
    Definition,
    Due,
    Schedule,
    Tick,
    TickPage,
    TickStatus,
    changed,
    check_definition,
    new_schedule,
    schedule_key,
    since,
    timing,
)
from pyoco_server.domain.schedules.ticks import (
    backfilled,
    paused,
    resumed,
    tick_by_hand,
    ticks_of_pause,
    triggered,
)
from pyoco_server.domain.schedules.timing import ticks_after
from pyoco_server.errors import InvalidRequest, NatsUnavailable, ScheduleNotFound, WorkflowConflict
from pyoco_server.logs import get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.consistency import claim_once
from pyoco_server.usecases.ports.queues import JobQueue
from pyoco_server.usecases.ports.runs import ClaimStore, Timers
from pyoco_server.usecases.ports.stores import Clock, Store, Versioned, WrongRevision
from pyoco_server.usecases.schedules.attend import MAX_TRIES, TIMER, AttendSchedule, ChangeSchedule
from pyoco_server.usecases.schedules.follow import FollowSchedules
from pyoco_server.usecases.schedules.start import StartScheduled

log = get_logger(__name__)

MAX_PREVIEW = 1_000
MAX_BACKFILL = 1_000
KEPT_SEC = 90 * 86_400.0
"""How long ticks are kept."""
PAGES_AT_ONCE = 16


class SchedulePage(Struct, frozen=True):
    items: list[Schedule]
    next_cursor: str | None


class TickList(Struct, frozen=True):
    items: list[Tick]
    next_cursor: str | None


class ManageSchedules:
    def __init__(  # noqa: PLR0913 - the composition root names each
        self,
        *,
        schedules: Store[Schedule],
        claims: ClaimStore,
        pages: Store[TickPage],
        timers: Timers,
        followed: FollowSchedules,
        attend: AttendSchedule,
        work: StartScheduled,
        clock: Clock,
        new_id: Callable[[], str],
        queue: JobQueue,
        trail: AuditTrail,
    ) -> None:
        self._schedules = schedules
        self._claims = claims
        self._pages = pages
        self._timers = timers
        self._followed = followed
        self._attend = attend
        self._work = work
        self._clock = clock
        self._new_id = new_id
        self._queue = queue
        self._trail = trail

    # Definitions

    async def put(self, schedule_id: str, definition: Definition, caller: Caller) -> tuple[Schedule, bool]:
        """The schedule, and whether it is new. Raises InvalidRequest."""
        self._queue.require_timers()
        wanted = new_schedule(
            schedule_id,
            definition,
            tenant_id=caller.tenant_id,
            api_key_id=caller.api_key_id,
            incarnation=self._new_id(),
            now=self._clock(),
        )
        await self._work.check(wanted)
        for _ in range(MAX_TRIES):
            stored = await self._schedules.get(wanted.key)
            try:
                if stored is None:
                    revision = await self._schedules.create(wanted.key, wanted)
                    created = await self._attend.settle(wanted.key, Versioned(wanted, revision))
                    log.info("schedule created", action="schedule.created", **_facts(created.value, caller))
                    await self._record(caller, "put", None, created.value)
                    return created.value, True
                return await self._change_definition(stored, definition, caller), False
            except WrongRevision:
                continue
        raise NatsUnavailable(f"schedule {schedule_id} could not be written")

    async def _change_definition(
        self, stored: Versioned[Schedule], definition: Definition, caller: Caller
    ) -> Schedule:
        """Raises WrongRevision."""
        key, now = stored.value.key, self._clock()
        next_due_at = stored.value.next_due_at
        if next_due_at is not None and next_due_at <= now and not stored.value.is_paused:
            await self._attend(key)  # what is due follows the old definition
            raise WrongRevision(key)

        active = stored.value.active
        if definition.is_tracking and not stored.value.definition.is_tracking:
            active = await self._attend.untracked(stored.value)

        def change(found: Schedule) -> Schedule:
            other = changed(found, definition, caller.api_key_id, now)
            return found if other is found else replace(other, active=active)

        if change(stored.value) is stored.value:
            return stored.value
        written = await self._attend.change(key, stored, change)
        log.info("schedule changed", action="schedule.changed", **_facts(written.value, caller))
        await self._record(caller, "put", stored.value, written.value)
        return written.value

    async def find(self, schedule_id: str, caller: Caller) -> Schedule:
        """Raises ScheduleNotFound."""
        return (await self._stored(schedule_id, caller)).value

    async def page(self, cursor: str | None, limit: int, caller: Caller) -> SchedulePage:
        """By id."""
        of = digest_of("schedules", caller.tenant_id)
        after = "" if cursor is None else place_of(cursor, of).run_id
        found = self._followed.after(caller.tenant_id, after, limit + 1)
        more = len(found) > limit
        next_cursor = cursor_at(Place(0.0, found[limit - 1].id), of) if more else None
        return SchedulePage(found[:limit], next_cursor)

    async def delete(self, schedule_id: str, caller: Caller) -> None:
        """Its runs stay."""
        stored = await self._stored(schedule_id, caller)
        key = stored.value.key
        await self._schedules.remove(key, None)
        self._followed.forget(key)
        await self._timers.clear(TIMER, key)
        log.info("schedule deleted", action="schedule.deleted", **_facts(stored.value, caller))
        await self._record(caller, "delete", stored.value, None)

    # By hand

    async def pause(self, schedule_id: str, reason: str | None, caller: Caller) -> Schedule:
        found = await self._change(schedule_id, caller, "pause", lambda it: paused(it, reason, self._clock()))
        log.info("schedule paused", action="schedule.paused", **_facts(found, caller))
        return found

    async def resume(self, schedule_id: str, caller: Caller) -> Schedule:
        found = await self._change(schedule_id, caller, "resume", lambda it: resumed(it, self._clock()))
        log.info("schedule resumed", action="schedule.resumed", **_facts(found, caller))
        return found

    async def trigger(self, schedule_id: str, caller: Caller, key: str | None = None) -> tuple[Tick, bool]:
        """The tick, and whether an earlier request with the key started it.

        Raises WorkflowConflict if the target cannot be started.
        """
        schedule = await self.find(schedule_id, caller)
        due, is_new = await self._due_by_hand(schedule, key)
        tick = None if is_new else await self._tick_by_hand(schedule, due)
        if tick is None:
            at = round(self._clock(), 3)
            before, found = await self._written(schedule_id, caller, lambda it: triggered(it, due, at))
            tick = await self._tick_by_hand(found, due)
            is_new = before is not found
        if tick is None or tick.status is not TickStatus.STARTED:
            raise WorkflowConflict(f"schedule {schedule_id}: {tick.reason if tick else 'it was replaced'}")
        if is_new:
            log.info("schedule triggered", action="schedule.triggered", **_facts(found, caller))
            await self._record(caller, "trigger", before, found)
        return tick, not is_new

    async def _due_by_hand(self, schedule: Schedule, key: str | None) -> tuple[Due, bool]:
        """The tick that is asked for, and whether it is new. Raises InvalidRequest."""
        claim = IdempotencyClaim(run_id=self._new_id(), request="", claimed_at=round(self._clock(), 3))
        is_new = True
        if key is not None:
            scope = f"schedule.trigger:{schedule.id}:{schedule.incarnation}"
            place = claim_key(schedule.tenant_id, key, scope)
            found, is_new = await claim_once(self._claims, place, claim)
            claim = found.value
        return Due(claim.claimed_at, claim.run_id, manual=True), is_new

    async def _tick_by_hand(self, schedule: Schedule, due: Due) -> Tick | None:
        """Also if many ticks were recorded after it."""
        newest = tick_by_hand(schedule, schedule.ticks, due)
        if newest is not None:
            return newest
        index = schedule.pages * PAGE + len(schedule.ticks)
        while index > 0:
            ticks = await self._history(schedule, index, PAGE * PAGES_AT_ONCE)
            found = tick_by_hand(schedule, ticks, due)
            if found is not None or (ticks and ticks[-1].fired_at < due.due_at):
                return found
            index -= PAGE * PAGES_AT_ONCE
        return None

    async def backfill(
        self,
        schedule_id: str,
        first: float,
        last: float,
        caller: Caller,
        *,
        only_missing: bool,
        dry_run: bool,
    ) -> list[float]:
        """The ticks that are started; with `dry_run`, that would be. Raises InvalidRequest."""
        now = self._clock()
        schedule = await self.find(schedule_id, caller)
        wanted = _backfill_range(schedule, first, last, now)
        if only_missing:
            taken = await self._started_since(schedule, first)
            wanted = [due_at for due_at in wanted if due_at not in taken]
        if dry_run or not wanted:
            return wanted
        again = "" if only_missing else self._new_id()
        due = [Due(due_at, again) for due_at in wanted]
        found = await self._change(schedule_id, caller, "backfill", lambda it: backfilled(it, due, now))
        log.info(
            "schedule backfilled", action="schedule.backfilled", ticks=len(wanted), **_facts(found, caller)
        )
        return wanted

    async def _started_since(self, schedule: Schedule, first: float) -> set[float]:
        """The ticks that were started, or are about to."""
        found = {due.due_at for due in schedule.waiting}
        index = schedule.pages * PAGE + len(schedule.ticks)
        while index > 0:
            ticks = await self._history(schedule, index, PAGE * PAGES_AT_ONCE)
            found |= {tick.due_at for tick in ticks if tick.status is TickStatus.STARTED}
            index -= PAGE * PAGES_AT_ONCE
            if ticks and ticks[-1].fired_at < first:
                break
        return found

    async def _change(self, schedule_id: str, caller: Caller, verb: str, change: ChangeSchedule) -> Schedule:
        before, after = await self._written(schedule_id, caller, change)
        if after is not before:
            await self._record(caller, verb, before, after)
        return after

    async def _written(
        self, schedule_id: str, caller: Caller, change: ChangeSchedule
    ) -> tuple[Schedule, Schedule]:
        """Before and after."""
        for _ in range(MAX_TRIES):
            stored = await self._stored(schedule_id, caller)
            if change(stored.value) is stored.value:
                return stored.value, stored.value
            try:
                written = await self._attend.change(stored.value.key, stored, change)
            except WrongRevision:
                continue
            return stored.value, written.value
        raise NatsUnavailable(f"schedule {schedule_id} could not be written")

    async def _record(
        self, caller: Caller, verb: str, before: Schedule | None, after: Schedule | None
    ) -> None:
        changed = after or before
        if changed is not None:
            target = ChangeTarget("schedule", changed.id)
            await self._trail.record(caller, f"schedule.{verb}", target, _state(before), _state(after))

    async def _stored(self, schedule_id: str, caller: Caller) -> Versioned[Schedule]:
        key = schedule_key(caller.tenant_id, schedule_id)
        stored = await self._schedules.get(key) if is_tag(schedule_id) else None
        if stored is None:
            known = self._followed.ids(caller.tenant_id)
            raise ScheduleNotFound(f"schedule not found: {schedule_id[:64]}{nearest(schedule_id, known)}")
        return self._followed.latest(key, stored)

    # Ticks

    def preview(self, definition: Definition, count: int) -> list[float]:
        """The next ticks of a definition that is not stored. Raises InvalidRequest."""
        now = self._clock()
        return list(islice(ticks_after(check_definition(definition, now), since(definition, now)), count))

    async def upcoming(self, schedule_id: str, count: int, caller: Caller) -> tuple[Schedule, list[float]]:
        """The next ticks, as they will be due unless it is paused."""
        schedule = await self.find(schedule_id, caller)
        first = schedule.next_due_at
        if first is None:
            return schedule, []
        start = max(first - 0.001, self._clock()) if schedule.is_paused else first - 0.001
        return schedule, list(islice(ticks_after(timing(schedule), start), count))

    async def ticks(self, schedule_id: str, cursor: str | None, limit: int, caller: Caller) -> TickList:
        """Newest first."""
        schedule = await self.find(schedule_id, caller)
        of = digest_of("ticks", schedule.key, schedule.incarnation)
        newest = schedule.pages * PAGE + len(schedule.ticks)
        index = newest if cursor is None else min(newest, int(place_of(cursor, of).updated_at))
        pausing = ticks_of_pause(schedule, self._clock()) if cursor is None else ()
        most = limit - len(pausing)
        found = await self._history(schedule, index, most)
        oldest = self._clock() - KEPT_SEC
        placing = schedule.placing
        kept = [tick for tick in found if tick.fired_at >= oldest and tick.started_id not in placing]
        rest = index - most
        has_more = rest > 0 and (most == 0 or (bool(found) and found[-1].fired_at >= oldest))
        next_cursor = cursor_at(Place(float(rest), schedule.id), of) if has_more else None
        return TickList([*pausing, *kept], next_cursor)

    async def _history(self, schedule: Schedule, index: int, limit: int) -> list[Tick]:
        """At most `limit` ticks before the one with this number, newest first."""
        first = max(0, index - limit)
        filed = schedule.pages * PAGE
        recent = list(schedule.ticks[max(0, first - filed) : max(0, index - filed)])
        numbers = range(first // PAGE, (min(index, filed) + PAGE - 1) // PAGE)
        pages = [await self._page_part(schedule, number, first, index) for number in numbers]
        return [tick for part in [*pages, recent] for tick in part][::-1]

    async def _page_part(self, schedule: Schedule, number: int, first: int, index: int) -> Iterable[Tick]:
        stored = await self._pages.get(schedule.page_key(number))
        if stored is None:  # expired
            return ()
        start = number * PAGE
        return stored.value.ticks[max(0, first - start) : max(0, index - start)]


def _backfill_range(schedule: Schedule, first: float, last: float, now: float) -> list[float]:
    if last < first:
        raise InvalidRequest("to: must not be before from")
    if last > now:
        raise InvalidRequest("to: must not be in the future")
    ticks = timing(schedule)
    count = ticks.count(first, last)
    if count > MAX_BACKFILL:
        raise InvalidRequest(f"from, to: {count:,} ticks; at most {MAX_BACKFILL:,} are allowed")
    return list(islice(ticks_after(ticks, first - 0.001), count))


def _state(schedule: Schedule | None) -> dict[str, object] | None:
    """What people set, without the progress of the schedule."""
    if schedule is None:
        return None
    return {
        **asdict(schedule.definition),
        "paused": schedule.is_paused,
        "paused_reason": schedule.paused_reason,
    }


def _facts(schedule: Schedule, caller: Caller) -> dict[str, object]:
    return {"schedule": schedule.key, "version": schedule.version, "by": caller.name}
