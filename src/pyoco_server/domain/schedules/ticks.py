"""What is to be done for a schedule now: a pure decision, the same for every gateway that makes it."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from pyoco_server.domain.schedules.model import (
    ON_TIME_SEC,
    PAGE,
    Active,
    CatchUp,
    Due,
    Overlap,
    Schedule,
    Tick,
    TickPage,
    TickStatus,
    id_of,
    jitter_of,
    replace,
    timing,
)
from pyoco_server.domain.schedules.timing import Window, newest, ticks_after

MAX_CATCH_UP = 100
MAX_STARTS = 100
"""Runs started at once."""
MAX_ACTIVE = 1_000


class Reason(StrEnum):
    OVERLAP = "overlap"
    PAUSED = "paused"
    OUTSIDE_WINDOW = "outside window"
    LIMIT = "limit"


class RunEnd(StrEnum):
    """How a run or an execution ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    """Or it is gone."""


class _Work:
    """A schedule while it is being decided on."""

    def __init__(self, schedule: Schedule, now: float) -> None:
        self.schedule = schedule
        self.now = now
        self.recorded: list[Tick] = []
        self.waiting = list(schedule.waiting)
        self.active = list(schedule.active)
        self.started: list[Due] = []

    # Records

    def record(self, due: Due, status: TickStatus, reason: str | None = None) -> None:
        self.recorded.append(
            Tick(due_at=due.due_at, status=status, fired_at=self.now, reason=reason, manual=due.manual)
        )

    def fold(self, window: Window, first: float, last: float, status: TickStatus, reason: str | None) -> None:
        """One record for all ticks from `first` to `last`."""
        count = window.count(first, last)
        if not count:
            return
        begin, end = window.after(first - 0.001), newest(window, first, last, 1)[0]
        assert begin is not None  # noqa: S101 - there are some
        self.recorded.append(
            Tick(
                due_at=begin,
                status=status,
                fired_at=self.now,
                reason=reason,
                count=count,
                last_due_at=end if count > 1 else None,
            )
        )

    def start(self, due: Due) -> None:
        tick = started_tick(self.schedule, due, self.now)
        self.recorded.append(tick)
        self.started.append(due)
        if self.schedule.definition.is_tracking:
            is_execution = tick.execution_id is not None
            self.active.append(Active(tick.started_id or "", is_execution))

    # Overlap

    def fire(self, due: Due, *, is_late: bool) -> None:
        """Late ticks that are caught up wait for each other, whatever the overlap."""
        overlap = self.schedule.definition.overlap
        if overlap is Overlap.ALLOW or not (self.active or self.waiting):
            self.start(due)
        elif is_late:
            self.waiting.append(replace(due, is_patient=True))
        elif overlap is Overlap.CANCEL_RUNNING:
            for replaced in self.waiting:
                self.record(replaced, TickStatus.SKIPPED, Reason.OVERLAP)
            self.waiting = [due]
        elif overlap is Overlap.QUEUE and not self.waiting:
            self.waiting = [due]
        else:
            self.record(due, TickStatus.SKIPPED, Reason.OVERLAP)

    def drain(self) -> None:
        """Start what waited."""
        is_free = self.schedule.definition.overlap is Overlap.ALLOW
        while self.waiting and len(self.started) < MAX_STARTS and (is_free or not self.active):
            self.start(self.waiting.pop(0))

    def done(self, next_due_at: float | None) -> Schedule:
        return replace(
            self.schedule,
            next_due_at=next_due_at,
            waiting=tuple(self.waiting),
            active=tuple(self.active[-MAX_ACTIVE:]),
            to_place=(*self.schedule.to_place, *self.started),
            ticks=(*self.schedule.ticks, *self.recorded),
            is_settled=False,
        )


def attend(schedule: Schedule, ended: Mapping[str, RunEnd], now: float) -> Schedule:
    """The schedule with everything recorded that is due. The same object: nothing is.

    `ended` has those of its active runs that have ended.
    """
    known = _with_ends(schedule, ended, now)
    work = _Work(known, now)
    work.drain()
    next_due_at = known.next_due_at if known.is_paused else _take_due(work)
    if next_due_at == known.next_due_at and not work.started and not work.recorded:
        return known
    return work.done(next_due_at)


def has_more(schedule: Schedule, now: float) -> bool:
    """Whether there is something to start at once."""
    is_due = schedule.fires_at is not None and schedule.fires_at <= now
    is_free = schedule.definition.overlap is Overlap.ALLOW or not schedule.active
    return is_due or (bool(schedule.waiting) and is_free)


def _with_ends(schedule: Schedule, ended: Mapping[str, RunEnd], now: float) -> Schedule:
    over = [run for run in schedule.active if run.id in ended]
    if not over:
        return schedule
    failures = schedule.failures
    for run in over:
        failures = {RunEnd.COMPLETED: 0, RunEnd.FAILED: failures + 1}.get(ended[run.id], failures)
    known = replace(
        schedule,
        active=tuple(run for run in schedule.active if run.id not in ended),
        failures=failures,
    )
    limit = schedule.definition.pause_after_failures
    if limit is None or failures < limit or schedule.is_paused:
        return known
    return paused(known, f"{failures} runs in a row failed", now)


def _take_due(work: _Work) -> float | None:
    """Handle every tick that is due. Returns the next one."""
    schedule, now = work.schedule, work.now
    first = schedule.next_due_at
    if first is None or first + jitter_of(schedule, first) > now:
        return first
    window = timing(schedule)
    following = window.after(first)
    oldest = now - schedule.definition.catch_up_window_sec
    if first >= oldest and (following is None or following > now):  # one tick, as mostly
        _catch_up(work, [first])
        return following
    last = _last_due(schedule, window, now)
    if first < oldest:
        work.fold(window, first, min(last, oldest - 0.001), TickStatus.SKIPPED, Reason.OUTSIDE_WINDOW)
        first = max(first, oldest)
    due = newest(window, first, last, MAX_CATCH_UP)
    if due and first < due[0]:
        is_limit = schedule.definition.catch_up is CatchUp.ALL
        status = TickStatus.SKIPPED if is_limit else TickStatus.MISSED
        work.fold(window, first, due[0] - 0.001, status, Reason.LIMIT if is_limit else None)
    _catch_up(work, due)
    return window.after(last)


def _last_due(schedule: Schedule, window: Window, now: float) -> float:
    """The last tick whose time, with its jitter, has come; those before it have, too."""
    first = schedule.next_due_at
    assert first is not None  # noqa: S101 - the caller knows
    surely = newest(window, first, now - schedule.definition.jitter_sec, 1)
    last = surely[0] if surely else first
    for tick in ticks_after(window, last):
        if tick + jitter_of(schedule, tick) > now:
            break
        last = tick
    return last


def _catch_up(work: _Work, due: Sequence[float]) -> None:
    """Start the ticks, or what is wanted of them if some are late."""
    on_time_from = work.now - ON_TIME_SEC - work.schedule.definition.jitter_sec
    is_late = bool(due) and due[0] < on_time_from
    catch_up = work.schedule.definition.catch_up
    for tick in due:
        if is_late and _is_missed(catch_up, tick, due[-1], on_time_from):
            work.record(Due(tick), TickStatus.MISSED)
        else:
            work.fire(Due(tick), is_late=is_late and catch_up is CatchUp.ALL)


def _is_missed(catch_up: CatchUp, tick: float, last: float, on_time_from: float) -> bool:
    if catch_up is CatchUp.LATEST:
        return tick < last
    return catch_up is CatchUp.NONE and tick < on_time_from


def started_tick(schedule: Schedule, due: Due, now: float) -> Tick:
    found = id_of(schedule, due)
    is_run = schedule.definition.target.is_flow
    return Tick(
        due_at=due.due_at,
        status=TickStatus.STARTED,
        fired_at=now,
        run_id=found if is_run else None,
        execution_id=None if is_run else found,
        manual=due.manual,
    )


def started_runs(schedule: Schedule) -> tuple[Active, ...]:
    """Of the newest part of the history."""
    started = ((tick.started_id, tick.execution_id is not None) for tick in schedule.ticks)
    return tuple(Active(run_id, is_execution) for run_id, is_execution in started if run_id is not None)


# What people ask for


def paused(schedule: Schedule, reason: str | None, now: float) -> Schedule:
    """Ticks that waited are not started any more."""
    if schedule.is_paused:
        return replace(schedule, paused_reason=reason or schedule.paused_reason, updated_at=now)
    work = _Work(schedule, now)
    for due in work.waiting:
        work.record(due, TickStatus.SKIPPED, Reason.PAUSED)
    work.waiting = []
    return replace(work.done(schedule.next_due_at), paused_at=now, paused_reason=reason, updated_at=now)


def resumed(schedule: Schedule, now: float) -> Schedule:
    """The ticks of the pause become one record, and nothing is caught up."""
    if not schedule.is_paused:
        return schedule
    work = _Work(schedule, now)
    work.recorded = list(ticks_of_pause(schedule, now))
    next_due_at = schedule.next_due_at
    if next_due_at is not None and next_due_at <= now:
        next_due_at = timing(schedule).after(now)
    return replace(work.done(next_due_at), paused_at=None, paused_reason=None, failures=0, updated_at=now)


def ticks_of_pause(schedule: Schedule, now: float) -> tuple[Tick, ...]:
    """One record for those that are not recorded yet; none: there are none."""
    if not schedule.is_paused or schedule.next_due_at is None or schedule.next_due_at > now:
        return ()
    work = _Work(schedule, now)
    work.fold(timing(schedule), schedule.next_due_at, now, TickStatus.SKIPPED, Reason.PAUSED)
    return tuple(work.recorded)


def triggered(schedule: Schedule, due: Due, now: float) -> Schedule:
    """With a tick by hand, whatever runs and whether it is paused. The same object: it has this tick."""
    if tick_by_hand(schedule, schedule.ticks, due) is not None:
        return schedule
    work = _Work(schedule, now)
    work.start(due)
    return work.done(schedule.next_due_at)


def tick_by_hand(schedule: Schedule, ticks: Iterable[Tick], due: Due) -> Tick | None:
    """The record of `due`, also if it could not be started."""
    ids = (None, id_of(schedule, due))
    found = (tick for tick in ticks if tick.manual and tick.due_at == due.due_at and tick.started_id in ids)
    return next(found, None)


def backfilled(schedule: Schedule, due: Iterable[Due], now: float) -> Schedule:
    """The ticks are started one after the other, or at once where overlaps are allowed."""
    work = _Work(schedule, now)
    work.waiting.extend(replace(one, is_patient=True) for one in due)
    work.drain()
    return work.done(schedule.next_due_at)


# What was done


class Filed(Struct, frozen=True):
    """The schedule without the older part of its history, and that part as pages with their numbers."""

    schedule: Schedule
    pages: tuple[tuple[int, TickPage], ...]


def filed(schedule: Schedule) -> Filed:
    """Only what is stored and settled is filed, so that a page is the same whoever writes it."""
    full = (len(schedule.ticks) - 1) // PAGE if schedule.is_settled else 0
    if full < 1:
        return Filed(schedule, ())
    pages = tuple(
        (schedule.pages + number, TickPage(schedule.ticks[number * PAGE : (number + 1) * PAGE]))
        for number in range(full)
    )
    return Filed(replace(schedule, pages=schedule.pages + full, ticks=schedule.ticks[full * PAGE :]), pages)


def to_cancel(schedule: Schedule) -> tuple[Active, ...]:
    """The active runs that a waiting tick replaces."""
    is_replacing = schedule.definition.overlap is Overlap.CANCEL_RUNNING
    if not is_replacing or not schedule.waiting or schedule.waiting[0].is_patient:
        return ()
    return schedule.active


def confirmed(schedule: Schedule) -> Schedule:
    """The schedule, once everything that it records is known to be done."""
    return schedule if schedule.is_settled else replace(schedule, to_place=(), is_settled=True)


class Placed(Struct, frozen=True):
    """What became of a started tick."""

    is_execution: bool = False
    problem: str | None = None
    """Why it cannot be started."""


def settled(schedule: Schedule, placed: Mapping[str, Placed], *, is_complete: bool = True) -> Schedule:
    """The schedule with what was done. `placed` by the ids of runs that are placed, or cannot be.

    `is_complete`: nothing has failed.
    """
    left = tuple(due for due in schedule.to_place if id_of(schedule, due) not in placed)
    active = [
        Active(run.id, placed[run.id].is_execution if run.id in placed else run.is_execution)
        for run in schedule.active
        if run.id not in placed or placed[run.id].problem is None
    ]
    ticks = tuple(_settled_tick(tick, placed) for tick in schedule.ticks)
    return replace(
        schedule, to_place=left, is_settled=is_complete and not left, ticks=ticks, active=tuple(active)
    )


def _settled_tick(tick: Tick, placed: Mapping[str, Placed]) -> Tick:
    found = tick.started_id or ""
    if found not in placed:
        return tick
    known = placed[found]
    if known.problem is not None:
        return replace(tick, status=TickStatus.SKIPPED, reason=known.problem, run_id=None, execution_id=None)
    run_id, execution_id = (None, found) if known.is_execution else (found, None)
    return replace(tick, run_id=run_id, execution_id=execution_id)
