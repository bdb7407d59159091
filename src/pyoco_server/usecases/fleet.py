"""The fleet: its live view in a gateway, lists, hiding of workers, and registration."""

import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.fleet import (
    ALIVE,
    NOBODY,
    Doubt,
    FleetView,
    WorkerActivity,
    WorkerRecord,
    WorkerState,
    doubt_about,
    hide,
    is_held_by_another,
    newest_heartbeat,
    register,
    seen_by,
    view_of,
    with_observed_state,
)
from pyoco_server.domain.inputs import is_worker_id
from pyoco_server.domain.runs.listing import RunSummary
from pyoco_server.domain.runs.model import HELD, RunSnapshot
from pyoco_server.errors import NatsUnavailable, NotDeletable, WorkerNotFound
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.consistency import MAX_TRIES
from pyoco_server.usecases.ports.runs import RunIndex, WorkerStore
from pyoco_server.usecases.ports.stores import Change, Clock, Feed, Versioned, WrongRevision

Run = TypeVar("Run", RunSnapshot, RunSummary)

# The fleet in memory, from a feed.


class FollowWorkers:
    """Silence of workers is measured by the store's clock, because a worker's clock may be wrong."""

    def __init__(self, feed: Feed[WorkerRecord], clock: Clock, store_clock: Clock) -> None:
        self._feed = feed
        self._clock = clock
        self._store_clock = store_clock
        self._seen_at: dict[str, float] = {}
        self.records: dict[str, WorkerRecord] = {}
        self.is_caught_up = False

    @property
    def stale_sec(self) -> float:
        return self._feed.stale_sec

    def silent_for(self, record: WorkerRecord) -> float:
        """Seconds without a heartbeat while we could have received one.

        While the store is unavailable no heartbeat arrives, which does not mean that workers are down.
        """
        seen_at = self._seen_at.get(record.worker_id)
        if seen_at is None:  # the store has no time: the worker's own is used
            return self._clock() - record.last_seen_at
        return self._store_time() - self._feed.stale_sec - seen_at

    def _store_time(self) -> float:
        """The store's time, stopped during loss of contact."""
        return self._store_clock() - self._feed.missed_sec

    def refreshed(self, run: Run) -> Run:
        """The run with its newest heartbeat, which may be that of its worker."""
        if run.worker_id is None or run.status not in HELD:
            return run
        newest = newest_heartbeat(run.heartbeat_at, run.instance_id, self.records.get(run.worker_id))
        return run if newest == run.heartbeat_at else replace(run, heartbeat_at=newest)

    async def run(self) -> None:
        async for batch in self._feed.follow(None):
            if batch.is_reset:
                self.records.clear()
                self._seen_at.clear()
                self.is_caught_up = False
            for change in batch.changes:
                self._take(change)
            self.is_caught_up = self.is_caught_up or batch.is_caught_up

    def _take(self, change: Change[WorkerRecord]) -> None:
        if change.value is None:
            self.records.pop(change.key, None)
            self._seen_at.pop(change.key, None)
            return
        known = self.records.get(change.key)
        self.records[change.key] = change.value
        # A write by others (to hide the worker) is not a heartbeat.
        is_sign_of_life = known is None or known.last_seen_at != change.value.last_seen_at
        if change.stored_at is not None and is_sign_of_life:
            self._seen_at[change.key] = change.stored_at - self._feed.missed_sec


START_SEC = 15.0
VIEW_SEC = 1.0
"""How long the tags and flows of workers are cached."""
MAX_SUGGESTIONS = 10
"""Within that time."""


class WorkerFilter(Struct, frozen=True, kw_only=True):
    active_only: bool = True
    state: WorkerState | None = None
    include_hidden: bool = False
    limit: int = 100


class ListWorkers:
    def __init__(
        self,
        followed: FollowWorkers,
        index: RunIndex,
        disconnect_timeout: float,
        now: Callable[[], float] = time.monotonic,
        start_sec: float = START_SEC,
    ) -> None:
        self._followed = followed
        self._index = index
        self._disconnect_timeout = disconnect_timeout
        self._now = now
        self._start_sec = start_sec
        self._view = FleetView({}, {})
        self._view_until = 0.0
        self._doubts: dict[tuple[str, str | None], Doubt] = {}
        self._lacking: dict[str, tuple[frozenset[str], float]] = {}
        self._began = now()

    def for_caller(self, wanted: WorkerFilter, caller: Caller) -> list[WorkerRecord]:
        """All tenants see the fleet; only its tenant sees a worker's current run."""
        workers = self(wanted, caller.tenant_id)
        if caller.tenant_id is None:
            return workers
        return [self._without_foreign_runs(worker, caller.tenant_id) for worker in workers]

    def _without_foreign_runs(self, worker: WorkerRecord, tenant_id: str) -> WorkerRecord:
        def own(run_id: str | None) -> str | None:
            return run_id if run_id is not None and self._index.is_of(run_id, tenant_id) else None

        return replace(worker, current_run_id=own(worker.current_run_id), last_run_id=own(worker.last_run_id))

    def __call__(self, wanted: WorkerFilter, tenant_id: str | None = None) -> list[WorkerRecord]:
        everyone = [seen_by(self.observed(record), tenant_id) for record in self._followed.records.values()]
        shown = [worker for worker in everyone if _is_wanted(worker, wanted)]
        return sorted(shown, key=lambda worker: worker.worker_id)[: wanted.limit]

    def observed(self, record: WorkerRecord) -> WorkerRecord:
        return with_observed_state(record, self._followed.silent_for(record), self._disconnect_timeout)

    def everyone(self) -> list[WorkerRecord]:
        """Also those that are gone or hidden."""
        return [self.observed(record) for record in self._followed.records.values()]

    def find(self, worker_id: str) -> WorkerRecord | None:
        record = self._followed.records.get(worker_id)
        return None if record is None else self.observed(record)

    def silent_for(self, record: WorkerRecord) -> float:
        return self._followed.silent_for(record)

    def doubt_about(self, tag: str, flow: str | None = None) -> Doubt | None:
        """Whether no live worker has this tag, or none of the tag has this flow."""
        doubt = self._doubt(self._fleet(), tag, flow)
        if doubt is None or not self._followed.is_caught_up or self._followed.stale_sec > 0:
            return None
        if doubt is NOBODY and self._now() < self._began + self._start_sec:
            return None  # server and worker were started together, and the server was faster
        return doubt

    def _doubt(self, fleet: FleetView, tag: str, flow: str | None) -> Doubt | None:
        """A suggestion takes milliseconds, and a batch may need a thousand: most are the same one."""
        if (tag, flow) not in self._doubts:
            few = len(self._doubts) < MAX_SUGGESTIONS
            doubt = doubt_about(fleet, tag, flow, suggest=few)
            if doubt is None or not few:
                return doubt
            self._doubts[tag, flow] = doubt
        return self._doubts[tag, flow]

    def lacking(self, feature: str, tag: str) -> list[str]:
        """Ids of live workers of a tag that are too old for a feature."""
        return sorted(
            record.worker_id
            for record in self._followed.records.values()
            if tag in record.tags and feature not in record.features and self.observed(record).state in ALIVE
        )

    def _fleet(self) -> FleetView:
        """Read at most once a second, because submits and workers may be many."""
        now = self._now()
        if now >= self._view_until:
            sorts: tuple[list[WorkerRecord], list[WorkerRecord]] = ([], [])
            for record in self._followed.records.values():
                sorts[self.observed(record).state not in ALIVE].append(record)
            self._view = view_of(*sorts)
            self._view_until = now + VIEW_SEC
            self._doubts.clear()
        return self._view

    def are_older(self, feature: str, tag: str) -> bool:
        """Whether a live worker of a tag is too old for a feature."""
        return tag in self._tags_lacking(feature)

    def known_to_lack(self, feature: str, tag: str) -> list[str]:
        """As `lacking`, from a view that may be a second old: for every run of a node."""
        return self.lacking(feature, tag) if self.are_older(feature, tag) else []

    def is_only_older(self, feature: str, tag: str) -> bool:
        """Whether a tag has live workers, and all of them are too old for a feature."""
        alive = [record for record in self._alive() if tag in record.tags]
        return bool(alive) and not any(feature in record.features for record in alive)

    def by_tag(self) -> Counter[str]:
        """Number of live workers of each tag."""
        return Counter(tag for record in self._alive() for tag in record.tags)

    def slots_by_tag(self, unknown: int) -> Counter[str]:
        """Runs that the live workers of each tag can run at once. `unknown`: of one that reports none."""
        slots: Counter[str] = Counter()
        for record in self._alive():
            slots.update(dict.fromkeys(record.tags, unknown if record.slots is None else record.slots))
        return slots

    def _alive(self) -> list[WorkerRecord]:
        return [one for one in self.everyone() if one.state in ALIVE]

    def _tags_lacking(self, feature: str) -> frozenset[str]:
        """Read at most once a second, like the tags of live workers."""
        now = self._now()
        tags, until = self._lacking.get(feature, (frozenset(), 0.0))
        if now >= until:
            older = [record for record in self._alive() if feature not in record.features]
            tags = frozenset(tag for record in older for tag in record.tags)
            self._lacking[feature] = (tags, now + VIEW_SEC)
        return tags

    def alive_count(self) -> int:
        everyone = WorkerFilter(include_hidden=True, limit=len(self._followed.records))
        return len(self(everyone))


def _is_wanted(worker: WorkerRecord, wanted: WorkerFilter) -> bool:
    if worker.hidden and not wanted.include_hidden:
        return False
    if wanted.state is not None:  # a state that is named takes precedence over the default scope
        return worker.state is wanted.state
    return worker.state in ALIVE or not wanted.active_only


class HideWorker:
    def __init__(
        self, workers: WorkerStore, followed: FollowWorkers, clock: Clock, trail: AuditTrail
    ) -> None:
        self._workers = workers
        self._followed = followed
        self._clock = clock
        self._trail = trail

    async def __call__(self, worker_id: str, caller: Caller, *, hidden: bool) -> WorkerRecord:
        """Hide a worker for this tenant only."""
        for _ in range(MAX_TRIES):
            stored = await self._workers.get(worker_id) if is_worker_id(worker_id) else None
            if stored is None:
                raise WorkerNotFound
            changed = replace(hide(stored.value, caller.tenant_id, hidden=hidden), updated_at=self._clock())
            try:
                await self._workers.update(worker_id, changed, stored.revision)
            except WrongRevision:
                continue  # its heartbeat was faster
            self._followed.records[worker_id] = changed
            await self._record(worker_id, caller, seen_by(stored.value, caller.tenant_id).hidden, hidden)
            return seen_by(changed, caller.tenant_id)
        raise NatsUnavailable(f"worker record {worker_id} could not be written")

    async def _record(self, worker_id: str, caller: Caller, *states: bool) -> None:
        before, after = states
        if before is not after:
            action, target = "worker.hide" if after else "worker.show", ChangeTarget("worker", worker_id)
            await self._trail.record(caller, action, target, {"hidden": before}, {"hidden": after})


class DeleteWorker:
    """Removes the record of a worker that is gone. One that comes back registers again."""

    def __init__(self, workers: WorkerStore, listed: ListWorkers, trail: AuditTrail) -> None:
        self._workers = workers
        self._listed = listed
        self._trail = trail

    async def __call__(self, worker_id: str, caller: Caller) -> None:
        """Raises WorkerNotFound or NotDeletable."""
        stored = await self._workers.get(worker_id) if is_worker_id(worker_id) else None
        if stored is None:
            raise WorkerNotFound
        state = self._listed.observed(stored.value).state
        if state in ALIVE:
            raise NotDeletable(f"the worker is {state}; stop it first")
        try:
            await self._workers.remove(worker_id, stored.revision)
        except WrongRevision as error:
            raise NotDeletable("the worker has just reported; stop it first") from error
        before = {"worker_id": worker_id, "state": state, "tags": stored.value.tags}
        await self._trail.record(caller, "worker.delete", ChangeTarget("worker", worker_id), before, None)


# Registration: update a worker's record without losing the fields of others.


class RegisterWorker:
    """One per worker process. It caches the last written revision, so a heartbeat costs one write."""

    def __init__(self, workers: WorkerStore, clock: Clock) -> None:
        self._workers = workers
        self._clock = clock
        self._known: Versioned[WorkerRecord] | None = None

    async def holder(self, activity: WorkerActivity) -> WorkerRecord | None:
        """The record of another instance of this worker, if it may be running."""
        stored = await self._workers.get(activity.worker_id)
        return stored.value if stored and is_held_by_another(stored.value, activity) else None

    async def __call__(self, activity: WorkerActivity, replaces: str | None = None) -> WorkerRecord:
        """The current record: ours, or that of another instance that holds the id.

        `replaces` is a dead instance.
        """
        for _ in range(MAX_TRIES):
            known = self._known or await self._workers.get(activity.worker_id)
            if known and known.value.instance_id != replaces and is_held_by_another(known.value, activity):
                return known.value
            record = register(known.value if known else None, activity, self._clock())
            try:
                if known is None:
                    revision = await self._workers.create(activity.worker_id, record)
                else:
                    revision = await self._workers.update(activity.worker_id, record, known.revision)
            except WrongRevision:
                self._known = None
                continue
            self._known = Versioned(record, revision)
            return record
        raise NatsUnavailable(f"worker record {activity.worker_id} could not be written")
