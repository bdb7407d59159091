"""End the runs that nobody will carry on: no run is PENDING or RUNNING for ever.

Normally a job on the queue brings a run to its end, whatever dies on the way. This is for a run that lost its
job: its gateway was killed between the snapshot and the job, or somebody purged the queue. Such a run has no
job, and its snapshot does not change from one look to the next. No clock of another host is trusted for that.
"""

import asyncio

from pyoco_server.domain.run_changes import GiveUp
from pyoco_server.errors import NatsUnavailable, OrphanRunSuspected
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.change_run import change_run
from pyoco_server.usecases.ports import Clock, JobQueue, Revision, RunIndex, RunStore, Versioned

log = get_logger(__name__)

INTERVAL_SEC = 30.0
"""Longer than a submit can take between its snapshot and its job, with all its tries."""
EVERY_DELIVERY = 1 << 31
LOST = "the run's job is not on the queue any more; submit it again"


class SweepRuns:
    def __init__(self, runs: RunStore, index: RunIndex, queue: JobQueue, clock: Clock) -> None:
        self._runs = runs
        self._index = index
        self._queue = queue
        self._clock = clock
        self._seen: dict[str, Revision] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SEC)
            with best_effort(log, "run.sweep", NatsUnavailable):
                await self.sweep()

    async def sweep(self) -> None:
        """Ends runs that were the same at the last sweep and have no job."""
        unfinished = dict(self._index.unfinished())
        suspects = {run_id for run_id, revision in unfinished.items() if self._seen.get(run_id) == revision}
        self._seen = unfinished
        if suspects:
            suspects -= await self._queue.run_ids()
        for run_id in sorted(suspects):
            await self._end(run_id, unfinished[run_id])

    async def _end(self, run_id: str, seen: Revision) -> None:
        current = await self._runs.get(run_id)
        if current is None:  # it was removed while nobody looked, and the mark of that is gone too
            self._index.forget(run_id)
            return
        if current.revision != seen:
            return
        change = GiveUp(error=LOST, last_attempt=EVERY_DELIVERY)
        ended = await change_run(self._runs, run_id, change, self._clock, known=current)
        if isinstance(ended, Versioned):
            log.error(
                "a run without a job was ended",
                action="run.orphan_ended",
                run_id=run_id,
                status=ended.value.status,
                **OrphanRunSuspected().ids,
            )
