"""A run as people see it: its snapshot, and whether the worker that holds it is alive."""

from msgspec import Struct

from pyoco_server.domain.names import is_run_id
from pyoco_server.domain.runs import RunSnapshot, RunStatus
from pyoco_server.domain.workers import ALIVE, WorkerRecord, observed_state
from pyoco_server.errors import RunNotFound
from pyoco_server.usecases.callers import Caller, may_see
from pyoco_server.usecases.follow_workers import FollowWorkers
from pyoco_server.usecases.ports import RunStore

_HELD = frozenset({RunStatus.RUNNING, RunStatus.CANCELLING})


class RunView(Struct, frozen=True, kw_only=True):
    snapshot: RunSnapshot
    worker_alive: bool | None = None
    worker_heartbeat_at: float | None = None
    worker_tags: tuple[str, ...] | None = None


class ReadRun:
    def __init__(self, runs: RunStore, workers: FollowWorkers, disconnect_timeout: float) -> None:
        self._runs = runs
        self._workers = workers
        self._disconnect_timeout = disconnect_timeout

    async def __call__(self, run_id: str, caller: Caller) -> RunView:
        stored = await self._runs.get(run_id) if is_run_id(run_id) else None
        if stored is None or not may_see(caller, stored.value):
            raise RunNotFound
        worker = self._worker_of(stored.value)
        if worker is None:
            return RunView(snapshot=stored.value)
        state = observed_state(worker, self._workers.silent_for(worker), self._disconnect_timeout)
        return RunView(
            snapshot=stored.value,
            worker_alive=state in ALIVE,
            worker_heartbeat_at=worker.last_heartbeat_at,
            worker_tags=worker.tags,
        )

    def _worker_of(self, snapshot: RunSnapshot) -> WorkerRecord | None:
        """Only a held run has a worker whose life matters."""
        if snapshot.worker_id is None or snapshot.status not in _HELD:
            return None
        return self._workers.records.get(snapshot.worker_id)
