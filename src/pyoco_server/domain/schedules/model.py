"""A schedule as it is stored: what was asked for, and how far it has come.

Every tick becomes a record here, in the same write that moves the schedule on. So a tick cannot be recorded
twice or be lost, whoever handles it and however often. Runs are placed after that write; `to_place` lists
those that may be missing.
"""

import hashlib
from enum import StrEnum
from functools import lru_cache
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from msgspec import Struct, field
from msgspec.structs import replace

from pyoco_server.domain.inputs import is_tag
from pyoco_server.domain.runs.model import Priority, RunRetry
from pyoco_server.domain.schedules.cron import parse_cron
from pyoco_server.domain.schedules.timing import Interval, Window, ZonedCron, zone_of
from pyoco_server.domain.secrets.references import read as read_references
from pyoco_server.errors import InvalidRequest

__all__ = ["Active", "Definition", "Due", "Overlap", "Schedule", "Target", "Tick", "TickStatus", "replace"]

PAGE = 32
"""Ticks that a page of the history has. The newest are in the schedule itself."""
MAX_DESCRIPTION = 2_000
MAX_SEC = 366 * 86_400.0
ON_TIME_SEC = 5.0
"""A tick that is later was missed, e.g. because no gateway was running."""


RUN_FIELDS = {
    "params", "tag", "tags", "delay_sec", "start_within_sec", "timeout_sec", "retry", "priority"
}  # fmt: skip
"""Only with a flow."""


class Overlap(StrEnum):
    """What a tick does while a run of the schedule is active."""

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL_RUNNING = "cancel_running"
    ALLOW = "allow"


class CatchUp(StrEnum):
    """Which missed ticks are started after an outage."""

    LATEST = "latest"
    NONE = "none"
    ALL = "all"


class TickStatus(StrEnum):
    STARTED = "STARTED"
    SKIPPED = "SKIPPED"
    MISSED = "MISSED"


class Target(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A flow, a registered graph or a template."""

    flow: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    tag: str | None = None
    tags: tuple[str, ...] | None = None
    delay_sec: float | None = None
    start_within_sec: float | None = None
    timeout_sec: float | None = None
    retry: RunRetry | None = None
    priority: Priority | None = None
    graph: str | None = None
    input: Any = None
    template: str | None = None
    data: Any = None
    """What a template's run gets as `params.event`."""

    @property
    def is_flow(self) -> bool:
        return self.flow is not None


class Definition(Struct, frozen=True, kw_only=True):
    """What a PUT asks for."""

    target: Target
    timezone: str
    cron: str | None = None
    every_sec: float | None = None
    starts_at: float | None = None
    ends_at: float | None = None
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LATEST
    catch_up_window_sec: float = 86_400.0
    jitter_sec: float = 0.0
    pause_after_failures: int | None = None
    description: str | None = None

    @property
    def is_tracking(self) -> bool:
        """Whether it matters which runs are active."""
        return self.overlap is not Overlap.ALLOW or self.pause_after_failures is not None


class Due(Struct, frozen=True, omit_defaults=True):
    """A tick that is to be started."""

    due_at: float
    again: str = ""
    """Distinguishes a repetition of the tick, asked for by a person."""
    manual: bool = False
    is_patient: bool = False
    """It waits for the runs before it, even if a tick cancels them otherwise."""


class Tick(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a tick, or of a stretch of ticks with the same fate."""

    due_at: float
    status: TickStatus
    fired_at: float
    reason: str | None = None
    run_id: str | None = None
    execution_id: str | None = None
    manual: bool = False
    count: int = 1
    last_due_at: float | None = None
    """Of a stretch."""

    @property
    def started_id(self) -> str | None:
        return self.run_id or self.execution_id

    @property
    def late_sec(self) -> float:
        return max(0.0, round(self.fired_at - self.due_at, 3))


class Active(Struct, frozen=True, omit_defaults=True):
    """A run or an execution of the schedule that has not ended, as far as known."""

    id: str
    is_execution: bool = False


class Schedule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    definition: Definition
    incarnation: str
    """Another one after a delete."""
    created_at: float
    updated_at: float
    """Of the definition or the pause."""
    first_at: float
    """The first tick of an interval."""
    version: int = 1
    tenant_id: str | None = None
    api_key_id: str | None = None
    next_due_at: float | None = None
    """The first tick without a record; None: there is none any more."""
    paused_at: float | None = None
    paused_reason: str | None = None
    waiting: tuple[Due, ...] = ()
    """Ticks that start when the active runs have ended."""
    active: tuple[Active, ...] = ()
    failures: int = 0
    """Failed runs in a row."""
    to_place: tuple[Due, ...] = ()
    """Started ticks whose runs may not be placed yet."""
    is_settled: bool = False
    """What follows from the last write was done. Not noted where the next timer will prove it."""
    covered_by: str = ""
    """The timer whose holder wrote it: it comes again unless what follows was done."""
    timer_follows: int = 0
    """If it is settled: the revision that the timer of the next tick names."""
    pages: int = 0
    """Pages of the history."""
    ticks: tuple[Tick, ...] = ()
    """The newest part of the history, oldest first."""

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None

    @property
    def placing(self) -> frozenset[str]:
        """Ids of runs that may not be placed yet. Their ticks are not shown: what was started can be read."""
        return frozenset(id_of(self, due) for due in self.to_place)

    @property
    def key(self) -> str:
        return schedule_key(self.tenant_id, self.id)

    @property
    def fires_at(self) -> float | None:
        """When the next tick is started."""
        if self.next_due_at is None or self.is_paused:
            return None
        return self.next_due_at + jitter_of(self, self.next_due_at)

    def page_key(self, number: int) -> str:
        return f"{self.key}.{self.incarnation}.{number}"


class TickPage(Struct, frozen=True):
    ticks: tuple[Tick, ...]


NO_TENANT = "="


def schedule_key(tenant_id: str | None, schedule_id: str) -> str:
    return f"{tenant_id or NO_TENANT}.{schedule_id}"


def id_of(schedule: Schedule, due: Due) -> str:
    """The id of the run or execution of a tick: the same, whoever starts it."""
    return _uuid(f"pyoco:schedule:{schedule.key}:{schedule.incarnation}:{due.due_at:.3f}:{due.again}")


@lru_cache(maxsize=4_096)
def _uuid(name: str) -> str:
    return str(uuid5(NAMESPACE_URL, name))


def jitter_of(schedule: Schedule, due_at: float) -> float:
    """The delay of a tick, the same for every gateway."""
    most = schedule.definition.jitter_sec
    if not most:
        return 0.0
    digest = hashlib.sha256(f"{schedule.key}:{schedule.incarnation}:{due_at:.3f}".encode()).digest()
    return most * int.from_bytes(digest[:6]) / 256**6


def timing_of(definition: Definition, first_at: float) -> Window:
    """Raises InvalidRequest."""
    starts_at, ends_at = definition.starts_at, definition.ends_at
    if definition.every_sec is not None:
        return Window(Interval(first_at, definition.every_sec), starts_at, ends_at)
    return Window(
        ZonedCron(parse_cron(definition.cron or ""), zone_of(definition.timezone)), starts_at, ends_at
    )


def timing(schedule: Schedule) -> Window:
    return timing_of(schedule.definition, schedule.first_at)


# Definitions


def check_definition(definition: Definition, now: float) -> Window:
    """Its ticks from `now` on. Raises InvalidRequest, which names the field."""
    _check_target(definition.target)
    _require((definition.cron is None) != (definition.every_sec is None), "cron, every_sec: give exactly one")
    every = definition.every_sec
    _require(every is None or 1 <= every <= MAX_SEC, f"every_sec: must be from 1 to {MAX_SEC:.0f}")
    zone_of(definition.timezone)
    for name in ("catch_up_window_sec", "jitter_sec"):
        _require(0 <= getattr(definition, name) <= MAX_SEC, f"{name}: must be from 0 to {MAX_SEC:.0f}")
    failures = definition.pause_after_failures
    _require(failures is None or failures >= 1, "pause_after_failures: must be at least 1")
    _require(
        len(definition.description or "") <= MAX_DESCRIPTION,
        f"description: at most {MAX_DESCRIPTION} characters",
    )
    return _check_window(definition, now)


def _check_window(definition: Definition, now: float) -> Window:
    starts_at, ends_at = definition.starts_at, definition.ends_at
    _require(
        starts_at is None or ends_at is None or starts_at <= ends_at, "ends_at: must not be before starts_at"
    )
    _require(ends_at is None or ends_at > now, "ends_at: is over")
    found = timing_of(definition, first_tick(definition, now))
    _require(found.after(since(definition, now)) is not None, "no tick lies between starts_at and ends_at")
    return found


def _check_target(target: Target) -> None:
    read_references(target.params)
    given = [name for name in ("flow", "graph", "template") if getattr(target, name) is not None]
    _require(len(given) == 1, "target: give exactly one of flow, graph and template")
    fields = {"flow": RUN_FIELDS, "graph": {"input"}, "template": {"data"}}
    for kind, names in fields.items():
        for name in sorted(names):
            is_given = getattr(target, name) not in (None, {})
            _require(kind == given[0] or not is_given, f"target.{name}: not with {given[0]}")
    for name in ("graph", "template"):
        value = getattr(target, name)
        _require(value is None or is_tag(value), f"target.{name}: must match [A-Za-z0-9_-]{{1,64}}")


def first_tick(definition: Definition, now: float) -> float:
    """Of an interval."""
    if definition.starts_at is not None:
        return round(definition.starts_at, 3)
    return round(now + (definition.every_sec or 0), 3)


def since(definition: Definition, now: float) -> float:
    """Ticks after it are to come. A `starts_at` of just now is not over yet."""
    starts_at = definition.starts_at
    return now if starts_at is None or starts_at < now - ON_TIME_SEC else starts_at - 0.001


def has_same_timing(one: Definition, other: Definition) -> bool:
    names = ("cron", "every_sec", "timezone", "starts_at", "ends_at")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def new_schedule(
    schedule_id: str,
    definition: Definition,
    *,
    tenant_id: str | None,
    api_key_id: str | None,
    incarnation: str,
    now: float,
) -> Schedule:
    """Raises InvalidRequest."""
    _require(is_tag(schedule_id), f"schedule id {schedule_id[:64]!r} must match [A-Za-z0-9_-]{{1,64}}")
    ticks = check_definition(definition, now)
    return Schedule(
        id=schedule_id,
        definition=definition,
        incarnation=incarnation,
        created_at=now,
        updated_at=now,
        first_at=first_tick(definition, now),
        tenant_id=tenant_id,
        api_key_id=api_key_id,
        next_due_at=ticks.after(since(definition, now)),
    )


def changed(schedule: Schedule, definition: Definition, api_key_id: str | None, now: float) -> Schedule:
    """With another definition, from the next tick on. The same object: nothing changes.

    An equal timing goes on as it was, so that to put it again and again does not put its ticks off.
    """
    check_definition(definition, now)
    if definition == schedule.definition:
        return schedule
    other = replace(
        schedule,
        definition=definition,
        version=schedule.version + 1,
        api_key_id=api_key_id,
        updated_at=now,
        is_settled=False,
    )
    if has_same_timing(definition, schedule.definition):
        return other
    first_at = first_tick(definition, now)
    done = max((tick.due_at for tick in schedule.ticks if not tick.manual), default=0.0)
    next_due_at = timing_of(definition, first_at).after(max(since(definition, now), min(done, now)))
    return replace(other, first_at=first_at, next_due_at=next_due_at)


def _require(is_valid: bool, problem: str) -> None:  # noqa: FBT001
    if not is_valid:
        raise InvalidRequest(problem)
