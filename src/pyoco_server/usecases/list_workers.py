"""The fleet as operators see it, and the one thing they may change about it."""

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.names import is_worker_id
from pyoco_server.domain.workers import ALIVE, WorkerRecord, WorkerState, with_observed_state
from pyoco_server.errors import NatsUnavailable, WorkerNotFound
from pyoco_server.usecases.change_run import MAX_TRIES
from pyoco_server.usecases.follow_workers import FollowWorkers
from pyoco_server.usecases.ports import Clock, WorkerStore, WrongRevision


class WorkerFilter(Struct, frozen=True, kw_only=True):
    active_only: bool = True
    state: WorkerState | None = None
    include_hidden: bool = False
    limit: int = 100


class ListWorkers:
    def __init__(self, followed: FollowWorkers, clock: Clock, disconnect_timeout: float) -> None:
        self._followed = followed
        self._clock = clock
        self._disconnect_timeout = disconnect_timeout

    def __call__(self, wanted: WorkerFilter) -> list[WorkerRecord]:
        now = self._clock()
        shown = [
            worker
            for record in self._followed.records.values()
            if _is_wanted(worker := with_observed_state(record, now, self._disconnect_timeout), wanted)
        ]
        return sorted(shown, key=lambda worker: worker.worker_id)[: wanted.limit]

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

    async def __call__(self, worker_id: str, *, hidden: bool) -> WorkerRecord:
        for _ in range(MAX_TRIES):
            stored = await self._workers.get(worker_id) if is_worker_id(worker_id) else None
            if stored is None:
                raise WorkerNotFound
            changed = replace(stored.value, hidden=hidden, updated_at=self._clock())
            try:
                await self._workers.update(worker_id, changed, stored.revision)
            except WrongRevision:
                continue  # its heartbeat was faster
            self._followed.records[worker_id] = changed
            return changed
        raise NatsUnavailable(f"worker record {worker_id} could not be written")
