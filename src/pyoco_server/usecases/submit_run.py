"""Accept a run: the PENDING snapshot first, then its job. Both, or nothing."""

from collections.abc import Callable

from pyoco_server.domain.jobs import Job, Submission, accept, pending
from pyoco_server.domain.runs import RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable, OrphanRunSuspected, PyocoServerError
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.ports import Clock, JobQueue, Revision, RunStore, Versioned, WrongRevision

log = get_logger(__name__)


class SubmitRun:
    def __init__(
        self,
        runs: RunStore,
        queue: JobQueue,
        clock: Clock,
        new_run_id: Callable[[], str],
        on_written: Callable[[Revision], None] = lambda _: None,
    ) -> None:
        self._runs = runs
        self._queue = queue
        self._clock = clock
        self._new_run_id = new_run_id
        self._on_written = on_written

    async def __call__(self, submission: Submission) -> RunSnapshot:
        """Raises NatsUnavailable or RequestTooLarge when it was not accepted; then nothing is left behind."""
        job = accept(submission, self._new_run_id(), self._clock())
        snapshot = pending(job)
        revision: Revision | None = None
        try:
            revision = await self._runs.create(snapshot.run_id, snapshot)
            self._on_written(revision)
            await self._queue.publish(job, revision)
        except PyocoServerError:
            if not await self._withdraw(snapshot.run_id, revision):
                return snapshot
            raise
        _say_accepted(snapshot)
        return snapshot

    async def place_claimed(self, job: Job, *, is_repeat: bool) -> None:
        """The run of an `Idempotency-Key`. A repeat carries on wherever an earlier try was cut off.

        Nothing is taken back when it fails: another try, of which this one knows nothing, may have been
        answered. If none comes, a sweep ends the run.
        """
        snapshot = pending(job)
        revision = await self._create(snapshot)
        if revision is not None:
            self._on_written(revision)
            await self._publish(job, revision, is_repeat=is_repeat)
        _say_accepted(snapshot)

    async def place_derived(self, job: Job) -> None:
        """A run whose id follows from what it is of: whoever places it, and however often, it is there once.

        If another one is placing it, or has, the queue drops the second job; if that one died, it takes it.
        """
        snapshot = pending(job)
        revision = await self._create(snapshot)
        if revision is not None:
            self._on_written(revision)
            await self._queue.publish(job, revision)
            _say_accepted(snapshot)

    async def replace_job(self, run: Versioned[RunSnapshot], job: Job) -> None:
        """The job of a PENDING run that lost it. A worker that gets it twice runs it once."""
        await self._queue.publish(job, run.revision, message_id=f"{job.run_id}.{run.revision}")

    async def _create(self, snapshot: RunSnapshot) -> Revision | None:
        """The revision that waits for its job; None when another try got further than that.

        Also the first try may come second: its repeat, at another gateway, may have overtaken it.
        """
        try:
            return await self._runs.create(snapshot.run_id, snapshot)
        except WrongRevision:
            found = await self._runs.get(snapshot.run_id)
        if found is None:
            # Removed meanwhile, or not known yet to the server that was asked: nobody has got anywhere.
            raise NatsUnavailable("the run is not there, though another try has written it")
        return found.revision if found.value.status is RunStatus.PENDING else None

    async def _publish(self, job: Job, revision: Revision, *, is_repeat: bool) -> None:
        """One job, not two: of those each would take the run over when the other one is delivered again."""
        was_new = await self._queue.publish(job, revision)
        if is_repeat and not was_new and job.run_id not in await self._queue.run_ids():
            # The queue remembers the job of a try whose snapshot was withdrawn; a worker has dropped it.
            await self._queue.publish(job, revision, message_id=f"{job.run_id}.{revision}")

    async def _withdraw(self, run_id: str, revision: Revision | None) -> bool:
        """Take the snapshot back. False: a worker has it already, so the job did arrive."""
        with best_effort(log, "run.withdraw", OrphanRunSuspected, run_id=run_id):
            try:
                await self._runs.remove(run_id, revision)
            except WrongRevision:
                return False
        return True


def _say_accepted(snapshot: RunSnapshot) -> None:
    log.debug(
        "run accepted",
        action="run.accepted",
        run_id=snapshot.run_id,
        flow_name=snapshot.flow_name,
        tag=snapshot.tag,
    )
