"""Accept a run: the PENDING snapshot first, then its job. Both, or nothing."""

from collections.abc import Callable

from pyoco_server.domain.jobs import Submission, accept, pending
from pyoco_server.domain.runs import RunSnapshot
from pyoco_server.errors import OrphanRunSuspected, PyocoServerError
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.ports import Clock, JobQueue, Revision, RunStore, WrongRevision

log = get_logger(__name__)


class SubmitRun:
    def __init__(self, runs: RunStore, queue: JobQueue, clock: Clock, new_run_id: Callable[[], str]) -> None:
        self._runs = runs
        self._queue = queue
        self._clock = clock
        self._new_run_id = new_run_id

    async def __call__(self, submission: Submission) -> RunSnapshot:
        """Raises NatsUnavailable or RequestTooLarge when the run was not accepted; then nothing is left."""
        job = accept(submission, self._new_run_id(), self._clock())
        snapshot = pending(job)
        revision: Revision | None = None
        try:
            revision = await self._runs.create(snapshot.run_id, snapshot)
            await self._queue.publish(job, revision)
        except PyocoServerError:
            if not await self._withdraw(snapshot.run_id, revision):
                return snapshot
            raise
        log.info(
            "run accepted",
            action="run.accepted",
            run_id=snapshot.run_id,
            flow_name=snapshot.flow_name,
            tag=snapshot.tag,
        )
        return snapshot

    async def _withdraw(self, run_id: str, revision: Revision | None) -> bool:
        """Take the snapshot back. False: a worker has it already, so the job did arrive."""
        with best_effort(log, "run.withdraw", OrphanRunSuspected, run_id=run_id):
            try:
                await self._runs.remove(run_id, revision)
            except WrongRevision:
                return False
        return True
