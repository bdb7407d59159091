"""Delete ended runs, with their logs. A deleted run does not run again."""

from collections.abc import Callable

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.inputs import is_run_id
from pyoco_server.domain.runs.listing import summary
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.errors import NatsUnavailable, NotDeletable, RunNotFound
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller, may_see
from pyoco_server.usecases.consistency import MAX_TRIES
from pyoco_server.usecases.ports.queues import JobQueue, UndeliverableJobs
from pyoco_server.usecases.ports.runs import RunIndex, RunStore, TaskLogs
from pyoco_server.usecases.ports.stores import WrongRevision
from pyoco_server.usecases.stats.count import CountedEnds

log = get_logger(__name__)


class DeleteRun:
    def __init__(  # noqa: PLR0913 - one per thing that a run leaves behind
        self,
        *,
        runs: RunStore,
        index: RunIndex,
        queue: JobQueue,
        jobs: UndeliverableJobs,
        logs: TaskLogs,
        is_needed: Callable[[RunSnapshot], bool],
        counted: CountedEnds,
        trail: AuditTrail,
    ) -> None:
        """`is_needed`: whether it is the run of a node whose execution has not ended."""
        self._runs = runs
        self._index = index
        self._queue = queue
        self._jobs = jobs
        self._logs = logs
        self._is_needed = is_needed
        self._counted = counted
        self._trail = trail

    async def __call__(self, run_id: str, caller: Caller) -> None:
        """Raises RunNotFound, NotDeletable or NotCountedYet."""
        run = await self.unrecorded(run_id, caller)
        self._index.forget(run_id)
        log.info("run deleted", action="run.deleted", run_id=run_id, by=caller.name)
        before = summary(run, run_id, run.updated_at)
        await self._trail.record(caller, "run.delete", ChangeTarget("run", run_id), before, None)

    async def unrecorded(self, run_id: str, caller: Caller) -> RunSnapshot:
        """For many at once, which leave one record together: the run that was deleted."""
        for _ in range(MAX_TRIES):
            found = await self._runs.get(run_id) if is_run_id(run_id) else None
            if found is None or not may_see(caller, found.value):
                raise RunNotFound
            self._check(found.value)
            await self._counted.require(found)
            await self._remove_jobs(found.value)
            try:
                await self._runs.remove(run_id, found.revision)
            except WrongRevision:
                continue
            with best_effort(log, "run.delete_logs", NatsUnavailable, run_id=run_id):  # they expire anyway
                await self._logs.remove(run_id)
            return found.value
        raise NatsUnavailable(f"run {run_id} could not be deleted: {MAX_TRIES} consecutive conflicts")

    def _check(self, run: RunSnapshot) -> None:
        if not run.status.is_terminal:
            raise NotDeletable(f"the run is {run.status}; cancel it, or wait for its end")
        if self._is_needed(run):
            raise NotDeletable(f"the run belongs to execution {run.execution_id}, which has not ended")

    async def _remove_jobs(self, run: RunSnapshot) -> None:
        """Its job may be on the queue: the ack of a worker can get lost, and the queue sends it again."""
        if run.job_seq is not None:
            await self._jobs.at(run.job_seq, 0).remove()
        elif run.is_held:
            await self._queue.remove_held(run.run_id)
        if run.not_before is not None:
            await self._queue.unschedule(run.run_id)
