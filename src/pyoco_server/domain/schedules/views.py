"""Schedules and their ticks as the HTTP API shows them."""

from collections.abc import Iterable

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from pyoco_server.domain.schedules.model import CatchUp, Overlap, Schedule, Target, Tick, TickStatus


class ScheduleTick(Struct, frozen=True, kw_only=True):
    """A tick, or a stretch of `count` ticks up to `last_due_at` with the same fate."""

    due_at: float
    status: TickStatus
    fired_at: float
    """When it was handled."""
    late_sec: float
    reason: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    execution_id: str | UnsetType = UNSET
    manual: bool | UnsetType = UNSET
    count: int | UnsetType = UNSET
    last_due_at: float | UnsetType = UNSET


class ScheduleView(Struct, frozen=True, kw_only=True):
    """A schedule. Times are Unix seconds."""

    id: str
    target: Target
    cron: str | None
    every_sec: float | None
    timezone: str
    starts_at: float | None
    ends_at: float | None
    overlap: Overlap
    catch_up: CatchUp
    catch_up_window_sec: float
    jitter_sec: float
    pause_after_failures: int | None
    description: str | None
    paused: bool
    paused_reason: str | None
    next_due_at: float | None
    """None: it is paused, or there is no tick any more."""
    last_tick: ScheduleTick | None
    waiting: int
    """Ticks that start when the active run has ended."""
    failures: int
    """Failed runs in a row."""
    version: int
    created_at: float
    updated_at: float


class ScheduleList(Struct, frozen=True):
    items: list[ScheduleView]
    next_cursor: str | None


class ScheduleTicks(Struct, frozen=True):
    """Newest first."""

    items: list[ScheduleTick]
    next_cursor: str | None


class DueTick(Struct, frozen=True):
    due_at: float


class SchedulePreview(Struct, frozen=True):
    timezone: str
    items: list[DueTick]


class ScheduleTriggered(Struct, frozen=True, kw_only=True):
    schedule_id: str
    due_at: float
    run_id: str | UnsetType = UNSET
    execution_id: str | UnsetType = UNSET


class ScheduleBackfill(Struct, frozen=True, kw_only=True):
    """The ticks that are started, or with `dry_run` would be."""

    dry_run: bool
    items: list[DueTick]


SCHEDULE_ANSWERS: tuple[type[Struct], ...] = (
    DueTick,
    ScheduleBackfill,
    ScheduleList,
    SchedulePreview,
    ScheduleTick,
    ScheduleTicks,
    ScheduleTriggered,
    ScheduleView,
)


def tick_view(tick: Tick) -> ScheduleTick:
    return ScheduleTick(
        due_at=tick.due_at,
        status=tick.status,
        fired_at=tick.fired_at,
        late_sec=tick.late_sec,
        reason=tick.reason or UNSET,
        run_id=tick.run_id or UNSET,
        execution_id=tick.execution_id or UNSET,
        manual=tick.manual or UNSET,
        count=tick.count if tick.count > 1 else UNSET,
        last_due_at=UNSET if tick.last_due_at is None else tick.last_due_at,
    )


def schedule_view(schedule: Schedule) -> ScheduleView:
    placing = schedule.placing
    last = next((tick for tick in reversed(schedule.ticks) if tick.started_id not in placing), None)
    return ScheduleView(
        id=schedule.id,
        **asdict(schedule.definition),
        paused=schedule.is_paused,
        paused_reason=schedule.paused_reason,
        next_due_at=None if schedule.is_paused else schedule.next_due_at,
        last_tick=None if last is None else tick_view(last),
        waiting=len(schedule.waiting),
        failures=schedule.failures,
        version=schedule.version,
        created_at=schedule.created_at,
        updated_at=schedule.updated_at,
    )


def due_ticks(times: Iterable[float]) -> list[DueTick]:
    return [DueTick(due_at) for due_at in times]
