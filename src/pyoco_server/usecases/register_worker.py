"""Keep a worker's record up to date without losing what others wrote into it."""

from pyoco_server.domain.workers import WorkerActivity, WorkerRecord, is_held_by_another, register
from pyoco_server.errors import NatsUnavailable
from pyoco_server.usecases.change_run import MAX_TRIES
from pyoco_server.usecases.ports import Clock, Versioned, WorkerStore, WrongRevision


class RegisterWorker:
    """One per worker process: it remembers the revision it wrote last, so a heartbeat costs one write."""

    def __init__(self, workers: WorkerStore, clock: Clock) -> None:
        self._workers = workers
        self._clock = clock
        self._known: Versioned[WorkerRecord] | None = None

    async def holder(self, activity: WorkerActivity) -> WorkerRecord | None:
        """The record of another instance of this worker, if that should be running."""
        stored = await self._workers.get(activity.worker_id)
        return stored.value if stored and is_held_by_another(stored.value, activity) else None

    async def __call__(self, activity: WorkerActivity, replaces: str | None = None) -> WorkerRecord:
        """The record as it is now: ours, or untouched that of another instance which holds the id.

        `replaces` is an instance that is known to be dead.
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
