"""The fleet as operators see it, and the one thing they may change about it."""

import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.names import is_worker_id
from pyoco_server.domain.suggestions import nearest
from pyoco_server.domain.workers import ALIVE, WorkerRecord, WorkerState, hide, seen_by, with_observed_state
from pyoco_server.errors import NatsUnavailable, WorkerNotFound
from pyoco_server.usecases.callers import Caller
from pyoco_server.usecases.change_run import MAX_TRIES
from pyoco_server.usecases.follow_workers import FollowWorkers
from pyoco_server.usecases.ports import Clock, RunIndex, WorkerStore, WrongRevision

START_SEC = 15.0
TAGS_SEC = 1.0
"""For how long the tags of the living workers are remembered."""


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
    ) -> None:
        self._followed = followed
        self._index = index
        self._disconnect_timeout = disconnect_timeout
        self._now = now
        self._tags: frozenset[str] = frozenset()
        self._tags_until = 0.0
        self._began = now()

    def for_caller(self, wanted: WorkerFilter, caller: Caller) -> list[WorkerRecord]:
        """The fleet is everybody's; which run a worker is at is shown to the run's tenant only."""
        workers = self(wanted, caller.tenant_id)
        if caller.tenant_id is None:
            return workers
        return [self._without_foreign_runs(worker, caller.tenant_id) for worker in workers]

    def _without_foreign_runs(self, worker: WorkerRecord, tenant_id: str) -> WorkerRecord:
        def own(run_id: str | None) -> str | None:
            return run_id if run_id is not None and self._index.is_of(run_id, tenant_id) else None

        return replace(worker, current_run_id=own(worker.current_run_id), last_run_id=own(worker.last_run_id))

    def __call__(self, wanted: WorkerFilter, tenant_id: str | None = None) -> list[WorkerRecord]:
        everyone = [seen_by(self._observed(record), tenant_id) for record in self._followed.records.values()]
        shown = [worker for worker in everyone if _is_wanted(worker, wanted)]
        return sorted(shown, key=lambda worker: worker.worker_id)[: wanted.limit]

    def _observed(self, record: WorkerRecord) -> WorkerRecord:
        return with_observed_state(record, self._followed.silent_for(record), self._disconnect_timeout)

    def warning_for(self, tag: str) -> str | None:
        """Why a run of this tag may wait for long; None when a living worker has it."""
        tags = self._living_tags()
        if tag in tags or not self._followed.is_caught_up or self._followed.stale_sec > 0:
            return None
        if not tags and self._now() < self._began + START_SEC:
            return None  # server and worker were started together, and the server was faster
        if not tags:
            return "no worker is running: the run waits until one comes"
        return f"no running worker has the tag {tag!r}{nearest(tag, tags)}: the run waits until one comes"

    def _living_tags(self) -> frozenset[str]:
        """Looked up at most once a second: submits are many, and so may workers be."""
        now = self._now()
        if now >= self._tags_until:
            alive = [
                record for record in self._followed.records.values() if self._observed(record).state in ALIVE
            ]
            self._tags = frozenset(tag for record in alive for tag in record.tags)
            self._tags_until = now + TAGS_SEC
        return self._tags

    def alive_count(self) -> int:
        everyone = WorkerFilter(include_hidden=True, limit=len(self._followed.records))
        return len(self(everyone))


def _is_wanted(worker: WorkerRecord, wanted: WorkerFilter) -> bool:
    if worker.hidden and not wanted.include_hidden:
        return False
    if wanted.state is not None:  # asking for a state by name says more than the default scope
        return worker.state is wanted.state
    return worker.state in ALIVE or not wanted.active_only


class HideWorker:
    def __init__(self, workers: WorkerStore, followed: FollowWorkers, clock: Clock) -> None:
        self._workers = workers
        self._followed = followed
        self._clock = clock

    async def __call__(self, worker_id: str, tenant_id: str | None, *, hidden: bool) -> WorkerRecord:
        """For the tenant alone: what one hides, others may need to see."""
        for _ in range(MAX_TRIES):
            stored = await self._workers.get(worker_id) if is_worker_id(worker_id) else None
            if stored is None:
                raise WorkerNotFound
            changed = replace(hide(stored.value, tenant_id, hidden=hidden), updated_at=self._clock())
            try:
                await self._workers.update(worker_id, changed, stored.revision)
            except WrongRevision:
                continue  # its heartbeat was faster
            self._followed.records[worker_id] = changed
            return seen_by(changed, tenant_id)
        raise NatsUnavailable(f"worker record {worker_id} could not be written")
