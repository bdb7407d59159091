"""The queue of a tag: its lanes, whose turn is next, and its pause.

A JetStream consumer delivers in the order of arrival. So what may overtake waits elsewhere: every tag has a
plain lane, which workers of all versions take jobs from, and further lanes for the other priorities and for
further tenants. A lane exists once there was a job for it.
"""

import re
from collections.abc import Iterable, Sequence

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict, replace

from pyoco_server.domain.inputs import is_tag
from pyoco_server.domain.runs.jobs import Job
from pyoco_server.domain.runs.model import Priority

WEIGHTS = {Priority.HIGH: 16, Priority.NORMAL: 4, Priority.LOW: 1}
"""How many jobs of each priority start while all of them wait."""
MAX_SHARES = 16
"""Tenants of a tag that have lanes of their own; further ones share these."""
_LANE = re.compile(r"(t(?P<share>[1-9][0-9]{0,3}))?(?P<priority>high|low)?")


class Lane(Struct, frozen=True, order=True):
    """Jobs of one tag that are taken in the order of arrival. `share`: that of a tenant; 0 is the first."""

    tag: str
    share: int = 0
    priority: Priority = Priority.NORMAL

    @property
    def name(self) -> str:
        """Unique within its tag; empty for the plain lane. Without `_`, which separates it from the tag."""
        share = f"t{self.share}" if self.share else ""
        return share + ("" if self.priority is Priority.NORMAL else self.priority.value)

    def subject(self, prefix: str) -> str:
        name = self.name
        return f"{prefix}._{name}.{self.tag}" if name else f"{prefix}.{self.tag}"

    @property
    def durable(self) -> str:
        """The name of its consumer."""
        return f"pyoco_{self.name or 'workers'}_{self.tag}"


def lane_named(tag: str, name: str) -> Lane | None:
    """None: a lane of a newer version."""
    found = _LANE.fullmatch(name)
    if found is None:
        return None
    return Lane(tag, int(found["share"] or 0), Priority(found["priority"] or Priority.NORMAL))


def lane_of(job: Job) -> Lane:
    """Where its job waits."""
    return (lane_named(job.tag, job.lane) if job.lane else None) or Lane(job.tag)


def tag_in(subject: str) -> str:
    """The tag of a subject of the work queue; `unknown` if it is none."""
    tag = subject.rpartition(".")[2]
    return tag if is_tag(tag) else "unknown"


# What is stored of a queue


class Pause(Struct, frozen=True, kw_only=True):
    """Since when, and until when (None: until it is resumed), nobody takes jobs of a tag."""

    since: float
    reason: str | None = None
    until: float | None = None

    def is_over(self, now: float) -> bool:
        return self.until is not None and self.until <= now


class QueueRecord(Struct, frozen=True, kw_only=True):
    """One for every tag with more than the plain lane, or with a pause."""

    tag: str
    lanes: tuple[str, ...] = ()
    """Names of the lanes beside the plain one."""
    tenants: tuple[str, ...] = ()
    """Those with a share, in order: the first has the plain lane."""
    paused: Pause | None = None

    def all_lanes(self) -> list[Lane]:
        known = [lane for name in self.lanes if (lane := lane_named(self.tag, name)) is not None]
        return [Lane(self.tag), *known]

    def pause_at(self, now: float) -> Pause | None:
        return None if self.paused is None or self.paused.is_over(now) else self.paused


def with_lane(record: QueueRecord, lane: Lane) -> QueueRecord:
    if not lane.name or lane.name in record.lanes:
        return record
    return replace(record, lanes=(*record.lanes, lane.name))


def with_tenant(record: QueueRecord, tenant_id: str) -> QueueRecord:
    if tenant_id in record.tenants or len(record.tenants) >= MAX_SHARES:
        return record
    return replace(record, tenants=(*record.tenants, tenant_id))


def share_of(record: QueueRecord, tenant_id: str) -> int:
    """Tenants beyond the limit are spread over the shares; every gateway computes the same."""
    if tenant_id in record.tenants:
        return record.tenants.index(tenant_id)
    return sum(tenant_id.encode()) % max(1, len(record.tenants))


# Whose turn is next


class _Place(Struct):
    """What competes at one level: a tag, a share of it, or a lane of that."""

    weight: int
    passed: float = 0.0
    """Jobs taken, divided by the weight: the smallest is next."""
    now: float = 0.0
    """The place in time of those below it: whoever was empty goes on from here, without credit."""


class Turns:
    """Stride scheduling on three levels: tags alike, their tenants alike, priorities by weight.

    A lane that was empty has the least behind it, so what arrives there starts next.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[object, ...], _Place] = {}

    def take(self, lanes: Sequence[Lane], wanted: int) -> dict[Lane, int]:
        """How many of the next `wanted` jobs each lane gives. They count as taken: see `gave_back`."""
        planned: dict[Lane, int] = {}
        for _ in range(wanted if lanes else 0):
            lane = min(lanes, key=self._rank)
            self.took(lane)
            planned[lane] = planned.get(lane, 0) + 1
        return planned

    def gave_back(self, lane: Lane, count: int) -> None:
        """The lane had so many jobs fewer."""
        for path in _paths(lane):
            place = self._place(path, lane)
            place.passed -= count / place.weight

    def first_of(self, lanes: Iterable[Lane]) -> Lane | None:
        return min(lanes, key=self._rank, default=None)

    def took(self, lane: Lane) -> None:
        """A job of this lane was taken."""
        for path in _paths(lane):
            place, above = self._place(path, lane), self._place(path[:-1], lane)
            above.now = max(place.passed, above.now)
            place.passed = above.now + 1 / place.weight

    def _rank(self, lane: Lane) -> list[tuple[float, int, str]]:
        return [self._rank_at(path, lane) for path in _paths(lane)]

    def _rank_at(self, path: tuple[object, ...], lane: Lane) -> tuple[float, int, str]:
        place, above = self._place(path, lane), self._place(path[:-1], lane)
        return max(place.passed, above.now), -place.weight, str(path[-1])

    def _place(self, path: tuple[object, ...], lane: Lane) -> _Place:
        weight = WEIGHTS[lane.priority] if len(path) == len(_paths(lane)) else 1
        return self._places.setdefault(path, _Place(weight))


def _paths(lane: Lane) -> tuple[tuple[object, ...], ...]:
    return (lane.tag,), (lane.tag, lane.share), (lane.tag, lane.share, lane.priority)


# The list


class QueueFigures(Struct, frozen=True, kw_only=True):
    """Runs of one tag, from the index."""

    waiting: int = 0
    running: int = 0
    oldest_since: float | None = None
    """Since when the run that waits longest could have started."""
    ended_last_minute: int = 0


class Queue(Struct, frozen=True, kw_only=True):
    """`throughput_per_min`: runs that ended in the last minute. `workers`: those that are alive."""

    tag: str
    waiting: int
    running: int
    paused: Pause | None
    oldest_wait_sec: float
    workers: int
    throughput_per_min: int


class QueueList(Struct, frozen=True):
    """By tag."""

    items: list[Queue]


class Paused(Struct, frozen=True, kw_only=True):
    """The pause that a run waits for: of its tag or of its flow."""

    tag: str | UnsetType = UNSET
    flow: str | UnsetType = UNSET
    reason: str | None
    since: float
    until: float | None


class WaitingFor(Struct, frozen=True, kw_only=True):
    """Why a run does not start: a limit, the run's key in it and its position (1 is next), or a pause."""

    limit: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    position: int | UnsetType = UNSET
    paused: Paused | UnsetType = UNSET


def waiting_for(tag: str | None, pause: Pause | None) -> WaitingFor | None:
    return None if tag is None or pause is None else WaitingFor(paused=Paused(tag=tag, **asdict(pause)))


QUEUE_ANSWERS = [Queue, QueueList, Pause, WaitingFor, Paused]
"""Types of the HTTP API."""
