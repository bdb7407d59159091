"""The queues of tags: the lane of a job, pauses, the list of queues, and what keeps them in order."""

import asyncio
from collections.abc import Callable

from msgspec.structs import asdict, replace

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.fleet import LANES, SHARES
from pyoco_server.domain.inputs import require_tag
from pyoco_server.domain.queues import (
    Lane,
    Pause,
    Queue,
    QueueFigures,
    QueueRecord,
    share_of,
    with_lane,
    with_tenant,
)
from pyoco_server.domain.runs.jobs import Job
from pyoco_server.domain.runs.model import Priority
from pyoco_server.errors import InvalidRequest, NatsUnavailable
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.consistency import OwnWrites, change_value
from pyoco_server.usecases.fleet import ListWorkers
from pyoco_server.usecases.ports.queues import NoRoomForLane, QueueLanes, QueueStore
from pyoco_server.usecases.ports.runs import RunIndex
from pyoco_server.usecases.ports.stores import Clock, Feed

log = get_logger(__name__)

MAX_REASON = 1_000


class FollowQueues:
    """All records in memory: a submit must not wait for one."""

    def __init__(self, feed: Feed[QueueRecord]) -> None:
        self._feed = feed
        self.records: dict[str, QueueRecord] = {}
        self.is_caught_up = False
        """Whether all pauses that existed at the start are known."""

    def of(self, tag: str) -> QueueRecord:
        return self.records.get(tag) or QueueRecord(tag=tag)

    async def run(self) -> None:
        async for batch in self._feed.follow(None):
            if batch.is_reset:
                self.records.clear()
                self.is_caught_up = False
            for change in batch.changes:
                if change.value is None:
                    self.records.pop(change.key, None)
                else:
                    self.records[change.key] = change.value
            self.is_caught_up = self.is_caught_up or batch.is_caught_up


class ChooseLane:
    """The lane of a job, made when it is needed for the first time.

    An older worker takes jobs from the plain lane only. While one has the tag, all jobs go there: it could
    not take the others, even when it is the only one that is free.
    """

    def __init__(
        self,
        records: QueueStore,
        followed: FollowQueues,
        lanes: QueueLanes,
        workers: ListWorkers,
        *,
        by_tenant: bool,
    ) -> None:
        self._records = records
        self._followed = followed
        self._lanes = lanes
        self._workers = workers
        self._by_tenant = by_tenant

    async def __call__(self, job: Job) -> Job:
        tenant_id = job.tenant_id if self._by_tenant else None
        if job.priority is Priority.NORMAL and tenant_id is None:
            return job
        share = 0 if tenant_id is None else await self._share(job.tag, tenant_id)
        lane = Lane(job.tag, share, job.priority)
        if any(self._workers.are_older(feature, lane.tag) for feature in _required(lane)):
            lane = Lane(job.tag)
        return replace(job, lane=lane.name if await self._is_open(lane) else "")

    async def _share(self, tag: str, tenant_id: str) -> int:
        record = self._followed.of(tag)
        if with_tenant(record, tenant_id) is not record:
            record = await self._change(tag, lambda record: with_tenant(record, tenant_id))
        return share_of(record, tenant_id)

    async def _is_open(self, lane: Lane) -> bool:
        record = self._followed.of(lane.tag)
        if with_lane(record, lane) is record:
            return True
        try:
            await self._lanes.open(lane, record.paused)
        except NoRoomForLane as error:
            log.warning(
                "no room for another lane", action="lane.refused", lane=lane.durable, error=str(error)
            )
            return False
        record = await self._change(lane.tag, lambda record: with_lane(record, lane))
        if record.paused is not None:  # perhaps meanwhile
            await self._lanes.pause(lane, record.paused)
        return True

    async def _change(self, tag: str, change: Callable[[QueueRecord], QueueRecord]) -> QueueRecord:
        changed = await change_record(self._records, tag, change)
        self._followed.records[tag] = changed
        return changed


def _required(lane: Lane) -> list[str]:
    """What a worker has to know to take its jobs."""
    priorities = [LANES] if lane.priority is not Priority.NORMAL else []
    return [*priorities, *([SHARES] if lane.share else [])]


async def change_record(
    records: QueueStore, tag: str, change: Callable[[QueueRecord], QueueRecord]
) -> QueueRecord:
    changed = await change_value(records, tag, lambda found: change(found or QueueRecord(tag=tag)))
    return changed or QueueRecord(tag=tag)


# Pauses


class PauseQueue:
    """The record is the truth; the lanes follow it, at once or at the latest with `KeepQueues`."""

    def __init__(
        self,
        records: QueueStore,
        followed: FollowQueues,
        lanes: QueueLanes,
        clock: Clock,
        trail: AuditTrail,
    ) -> None:
        self._records = records
        self._followed = followed
        self._lanes = lanes
        self._clock = clock
        self._trail = trail

    async def pause(self, tag: str, reason: str | None, until: float | None, caller: Caller) -> None:
        """A pause that holds already gets the new reason and end. Raises InvalidRequest."""
        require_tag(tag)
        now = self._clock()
        if until is not None and until <= now:
            raise InvalidRequest("until: must be in the future")
        self._lanes.require_pause()

        def paused(record: QueueRecord) -> QueueRecord:
            known = record.pause_at(now)
            since = now if known is None else known.since
            return replace(record, paused=Pause(since=since, reason=reason, until=until))

        before, record = await self._change(tag, paused)
        if record.paused is not None:
            await hold(self._lanes, record, record.paused)
        log.info("queue paused", action="queue.paused", tag=tag, reason=reason, until=until)
        await self._record(caller, "queue.pause", tag, before.pause_at(now), record.paused)

    async def resume(self, tag: str, caller: Caller) -> None:
        """No error if it is not paused."""
        require_tag(tag)
        before, record = await self._change(tag, lambda record: replace(record, paused=None))
        for lane in record.all_lanes():
            await self._lanes.resume(lane)
        log.info("queue resumed", action="queue.resumed", tag=tag)
        ended = before.pause_at(self._clock())
        if ended is not None:
            await self._record(caller, "queue.resume", tag, ended, None)

    async def _record(
        self, caller: Caller, action: str, tag: str, before: Pause | None, after: Pause | None
    ) -> None:
        states = [None if pause is None else asdict(pause) for pause in (before, after)]
        await self._trail.record(caller, action, ChangeTarget("queue", tag), *states)

    async def _change(
        self, tag: str, change: Callable[[QueueRecord], QueueRecord]
    ) -> tuple[QueueRecord, QueueRecord]:
        """The record that was stored, which the feed may not have shown yet, and the changed one."""
        before = QueueRecord(tag=tag)

        def decide(record: QueueRecord) -> QueueRecord:
            nonlocal before
            before = record
            return change(record)

        changed = await change_record(self._records, tag, decide)
        self._followed.records[tag] = changed
        return before, changed


async def hold(lanes: QueueLanes, record: QueueRecord, pause: Pause) -> None:
    for lane in record.all_lanes():
        await lanes.pause(lane, pause)


# The list

FRESH_SEC = 5.0


class ListQueues:
    """Tags with runs, live workers or a pause. Runs are those of the caller's tenant."""

    def __init__(
        self,
        index: RunIndex,
        followed: FollowQueues,
        workers: ListWorkers,
        own_writes: OwnWrites,
        clock: Clock,
    ) -> None:
        self._index = index
        self._followed = followed
        self._workers = workers
        self._own_writes = own_writes
        self._clock = clock
        self._recent: dict[str | None, tuple[float, list[Queue]]] = {}

    async def recent(self, tenant_id: str | None) -> list[Queue]:
        """At most some seconds old, for scrapes: reading the index writes what it has buffered."""
        at, queues = self._recent.get(tenant_id, (float("-inf"), []))
        now = self._clock()
        if not 0 <= now - at < FRESH_SEC:
            queues = await self(tenant_id)
            self._recent[tenant_id] = (now, queues)
        return queues

    def pause_of(self, tag: str | None) -> Pause | None:
        return None if tag is None else self._followed.of(tag).pause_at(self._clock())

    async def __call__(self, tenant_id: str | None) -> list[Queue]:
        await self._own_writes.are_visible()
        now = self._clock()
        figures = self._index.queues(tenant_id, now)
        workers = self._workers.by_tag()
        paused = {tag for tag, record in self._followed.records.items() if record.pause_at(now)}
        return [
            self._queue(tag, figures.get(tag, QueueFigures()), workers.get(tag, 0), now)
            for tag in sorted(figures.keys() | workers.keys() | paused)
        ]

    async def one(self, tag: str, tenant_id: str | None) -> Queue:
        """Also of a tag without any of that."""
        listed = {queue.tag: queue for queue in await self(tenant_id)}
        return listed.get(tag) or self._queue(tag, QueueFigures(), 0, self._clock())

    def _queue(self, tag: str, figures: QueueFigures, workers: int, now: float) -> Queue:
        oldest = figures.oldest_since
        return Queue(
            tag=tag,
            waiting=figures.waiting,
            running=figures.running,
            paused=self._followed.of(tag).pause_at(now),
            oldest_wait_sec=0.0 if oldest is None else round(max(0.0, now - oldest), 3),
            workers=workers,
            throughput_per_min=figures.ended_last_minute,
        )


# Upkeep

KEEP_SEC = 1.0
HOLD_AGAIN_SEC = 15.0
"""How often pauses are applied again: an older worker restores a deleted consumer without its pause."""
HELD_PER_SLOT = 3
SPARE_DELIVERIES = 200
UNKNOWN_SLOTS = 8
"""Assumed of workers that do not report theirs."""


class KeepQueues:
    """Adapts the lanes to the workers that are there, and holds what is paused."""

    def __init__(self, followed: FollowQueues, lanes: QueueLanes, workers: ListWorkers, clock: Clock) -> None:
        self._followed = followed
        self._lanes = lanes
        self._workers = workers
        self._clock = clock
        self._made_room: dict[Lane, int] = {}

    async def run(self) -> None:
        held_at = float("-inf")
        loop = asyncio.get_running_loop()
        while True:
            with best_effort(log, "queue.keep", NatsUnavailable):
                if loop.time() - held_at >= HOLD_AGAIN_SEC:
                    await self.hold()
                    held_at = loop.time()
                await self.make_room()
                await self.merge()
            await asyncio.sleep(KEEP_SEC)

    async def hold(self) -> None:
        now = self._clock()
        for record in list(self._followed.records.values()):
            pause = record.pause_at(now)
            if pause is not None:
                await hold(self._lanes, record, pause)

    async def make_room(self) -> None:
        """JetStream limits how many jobs of a lane are held at a time, for all workers together."""
        for tag, slots in self._workers.slots_by_tag(UNKNOWN_SLOTS).items():
            deliveries = HELD_PER_SLOT * slots + SPARE_DELIVERIES
            for lane in self._followed.of(tag).all_lanes():
                if deliveries > self._made_room.get(lane, 0):
                    await self._lanes.make_room(lane, deliveries)
                    self._made_room[lane] = deliveries

    async def merge(self) -> None:
        """Jobs in lanes that no worker of the tag knows would wait for ever."""
        for record in list(self._followed.records.values()):
            for lane in record.all_lanes():
                if any(self._workers.is_only_older(feature, lane.tag) for feature in _required(lane)):
                    await self._merge(lane)

    async def _merge(self, lane: Lane) -> None:
        moved = await self._lanes.merge(lane)
        if moved:
            log.warning(
                "no worker of a tag takes jobs of this lane; moved them to the plain one",
                action="lane.merged",
                tag=lane.tag,
                lane=lane.name,
                jobs=moved,
            )
