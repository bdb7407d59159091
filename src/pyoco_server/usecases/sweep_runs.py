"""End the runs that nobody will carry on: no run is PENDING or RUNNING for ever.

Normally a job on the queue brings a run to its end, whatever dies on the way. This is for a run that lost its
job: its gateway was killed between the snapshot and the job, or somebody purged the queue. Such a run has no
job, and its snapshot does not change from one look to the next. No clock of another host is trusted for that.

A PENDING one is left alone for longer. Whoever submitted it under an `Idempotency-Key` and got no answer is
trying again, perhaps for a while, and is to find a run that can be given its job.
"""

import asyncio
from typing import NamedTuple

from pyoco_server.domain.run_changes import GiveUp
from pyoco_server.domain.runs import RunStatus
from pyoco_server.errors import NatsUnavailable, OrphanRunSuspected
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.change_run import change_run
from pyoco_server.usecases.ports import Clock, JobQueue, Revision, RunIndex, RunStore, Versioned

log = get_logger(__name__)

INTERVAL_SEC = 30.0
"""Longer than a submit can take between its snapshot and its job, with all its tries."""
PENDING_LOOKS = 4
"""At so many looks after the first a PENDING run must be the same."""
EVERY_DELIVERY = 1 << 31
LOST = "the run's job is not on the queue any more; submit it again"


class _Seen(NamedTuple):
    revision: Revision
    looks_before: int
    """At which it was the same."""


class SweepRuns:
    def __init__(self, runs: RunStore, index: RunIndex, queue: JobQueue, clock: Clock) -> None:
        self._runs = runs
        self._index = index
        self._queue = queue
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SEC)
            with best_effort(log, "run.sweep", NatsUnavailable):
                await self.sweep()

    async def sweep(self) -> None:
        """Ends runs that were the same at the last looks and have no job."""
        self._seen = {
            run_id: _Seen(revision, self._looks_before(run_id, revision))
            for run_id, revision in self._index.unfinished()
        }
        suspects = {run_id for run_id, seen in self._seen.items() if seen.looks_before}
        if suspects:
            suspects -= await self._queue.run_ids()
        for run_id in sorted(suspects):
            await self._end(run_id, self._seen[run_id])

    def _looks_before(self, run_id: str, revision: Revision) -> int:
        before = self._seen.get(run_id)
        return before.looks_before + 1 if before is not None and before.revision == revision else 0

    async def _end(self, run_id: str, seen: _Seen) -> None:
        current = await self._runs.get(run_id)
        if current is None:  # it was removed while nobody looked, and the mark of that is gone too
            self._index.forget(run_id)
            return
        if current.revision != seen.revision:
            return
        if current.value.status is RunStatus.PENDING and seen.looks_before < PENDING_LOOKS:
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
