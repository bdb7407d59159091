"""End stuck runs, so that no run is PENDING or RUNNING forever.

Normally a job on the queue brings a run to its end despite any crash. The sweep handles the rest: a run that
lost its job (its gateway was killed between snapshot and job, or the queue was purged or deleted), and a job
that will not be redelivered but whose advisory was lost. Runs whose snapshot changes between two sweeps are
skipped, so that no clock of another host matters.

A PENDING run without a job is kept for longer, because a client with an `Idempotency-Key` may be retrying and
can still give the run its job.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyoco_server.domain import codec
from pyoco_server.domain.dead_letters import DeadLetter, DlqReason
from pyoco_server.domain.inputs import is_run_id, is_tag
from pyoco_server.domain.runs.changes import Expire, GiveUp, Refusal, decide
from pyoco_server.domain.runs.jobs import Job, job_of_next_try
from pyoco_server.domain.runs.model import FailureKind, RunSnapshot, RunStatus
from pyoco_server.errors import InvalidJob, NatsUnavailable, OrphanRunSuspected
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.consistency import change_run, queue_next_try
from pyoco_server.usecases.ports.queues import (
    JobQueue,
    QueuedJob,
    QueuedMessage,
    UndeliverableJob,
    UndeliverableJobs,
)
from pyoco_server.usecases.ports.runs import DeadLetters, DeadLetterStore, RunIndex, RunStore, Timers
from pyoco_server.usecases.ports.stores import Change, Clock, Revision, Versioned, WrongRevision

# Max deliveries: end runs whose job has used up its deliveries. The order makes a crash at any point
# harmless: the end of the run, the dead letter, the message, the ack of the advisory. Each is idempotent.

log = get_logger(__name__)


class EndMaxDelivered:
    def __init__(
        self,
        undeliverable: UndeliverableJobs,
        runs: RunStore,
        queue: JobQueue,
        dead_letters: DeadLetters,
        clock: Clock,
    ) -> None:
        self._undeliverable = undeliverable
        self._runs = runs
        self._queue = queue
        self._dead_letters = dead_letters
        self._clock = clock

    async def run(self) -> None:
        async for job in self._undeliverable.follow():
            with best_effort(log, "job.undeliverable", NatsUnavailable):
                await self.end(job)

    async def end_at(self, sequence: int, deliveries: int) -> None:
        """Handle a job found on the queue, whose advisory was lost."""
        await self.end(self._undeliverable.at(sequence, deliveries))

    async def remove_at(self, sequence: int) -> None:
        """Remove a job that nobody needs."""
        await self._undeliverable.at(sequence, 0).remove()

    async def end(self, undeliverable: UndeliverableJob) -> None:
        message = await undeliverable.read()
        if message is not None:
            await self._end_run(message, undeliverable)
            await undeliverable.remove()
        await undeliverable.settle()

    async def _end_run(self, message: QueuedMessage, undeliverable: UndeliverableJob) -> None:
        deliveries = undeliverable.deliveries
        run_id = codec.run_id_in(message.payload)
        run_id = run_id if run_id is not None and is_run_id(run_id) else None
        error = f"max_deliver: the job was delivered {deliveries} times without completing"
        job = _job_in(message)
        change = GiveUp(
            error=error,
            kind=FailureKind.MAX_DELIVER,
            last_attempt=deliveries,
            job_seq=undeliverable.sequence,
            try_number=None if job is None else job.try_number,
        )
        if job is not None:  # its last delivery may have ended between a failed try and the next one's job
            await queue_next_try(self._runs, self._queue, job)
        if run_id is not None and await self._ended_otherwise(run_id, change):
            log.info("removed a redundant job", action="job.leftover", run_id=run_id)
            return
        log.error("a job has used up its deliveries", action="job.max_deliver", run_id=run_id, error=error)
        letter = self._letter(message, run_id, error, deliveries)
        tenant_id = None if job is None else job.tenant_id
        await self._dead_letters.publish(letter, _tag_of(message), tenant_id)

    async def _ended_otherwise(self, run_id: str, change: GiveUp) -> bool:
        """Whether the run has ended or has another job, other than by an earlier attempt of this."""
        try:
            answer = await change_run(self._runs, run_id, change, self._clock)
            if not isinstance(answer, Refusal):
                return False
            stored = await self._runs.get(run_id)
        except codec.Unreadable as damage:
            log.warning("run snapshot is damaged", action="run.unreadable", exc_info=damage)
            return False
        return stored is not None and stored.value.error != change.error

    def _letter(self, message: QueuedMessage, run_id: str | None, error: str, deliveries: int) -> DeadLetter:
        job = _job_in(message)
        return DeadLetter(
            timestamp=self._clock(),
            reason=DlqReason.MAX_DELIVER,
            error=error,
            run_id=run_id,
            flow_name=job.flow_name if job else None,
            tag=job.tag if job else None,
            tags=job.tags if job else None,
            num_delivered=deliveries,
            subject=message.subject,
            payload=None if job else codec.payload_excerpt(message.payload),
        )


def _job_in(message: QueuedMessage) -> Job | None:
    try:
        return codec.decode_job(message.payload)
    except InvalidJob:
        return None


def _tag_of(message: QueuedMessage) -> str:
    tag = message.subject.rpartition(".")[2]
    return tag if is_tag(tag) else "unknown"


INTERVAL_SEC = 30.0
"""Longer than a submit takes between snapshot and job, including retries."""
PAUSE_PER_WORK = 20.0
"""A sweep is active for at most a twentieth of the time, because reading a long queue takes time."""
PENDING_LOOKS = 4
"""Number of further sweeps in which a PENDING run must be unchanged."""
EVERY_DELIVERY = 1 << 31
LOST = "the run's job is not on the queue any more; submit it again"


class _Seen(NamedTuple):
    revision: Revision
    status: RunStatus
    looks_before: int
    """Sweeps in which it was unchanged."""


class SweepRuns:
    """For one gateway at a time, because a sweep reads the whole queue."""

    def __init__(
        self,
        runs: RunStore,
        index: RunIndex,
        queue: JobQueue,
        end_undeliverable: EndMaxDelivered,
        clock: Clock,
    ) -> None:
        self._runs = runs
        self._index = index
        self._queue = queue
        self._end_undeliverable = end_undeliverable
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self._given_up: set[int] = set()
        """Sequences of jobs given up at the last sweep."""
        self._unneeded: set[int] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        pause = INTERVAL_SEC
        while True:
            await asyncio.sleep(pause)
            began = loop.time()
            with best_effort(log, "run.sweep", NatsUnavailable):
                await self.sweep()
            pause = max(INTERVAL_SEC, PAUSE_PER_WORK * (loop.time() - began))

    async def sweep(self) -> None:
        """End runs that were unchanged in the last sweeps and have no job, or one that is given up."""
        self._seen = {
            run_id: _Seen(revision, status, self._looks_before(run_id, revision))
            for run_id, revision, status in self._index.unfinished()
        }
        suspects = {run_id for run_id, seen in self._seen.items() if seen.looks_before}
        # More jobs than runs: some are redundant, e.g. after a lost acknowledgement.
        is_to_read = bool(suspects) or await self._queue.count() > len(self._seen)
        jobs = await self._queue.jobs() if is_to_read else []
        await self._end_given_up(jobs)
        await self._remove_unneeded(jobs)
        for run_id in sorted(suspects.difference(job.run_id for job in jobs)):
            await self._end(run_id, self._seen[run_id])

    async def _remove_unneeded(self, jobs: Sequence[QueuedJob]) -> None:
        """Held jobs of runs that do not wait, in two sweeps: a submit stores the job before the run."""
        unneeded = {job.sequence for job in jobs if job.is_held and not self._may_wait(job.run_id)}
        before, self._unneeded = self._unneeded, unneeded
        for sequence in sorted(before & unneeded):
            await self._end_undeliverable.remove_at(sequence)

    def _may_wait(self, run_id: str | None) -> bool:
        seen = self._seen.get(run_id or "")
        return seen is not None and seen.status is RunStatus.PENDING

    def _looks_before(self, run_id: str, revision: Revision) -> int:
        before = self._seen.get(run_id)
        return before.looks_before + 1 if before is not None and before.revision == revision else 0

    async def _end_given_up(self, jobs: Sequence[QueuedJob]) -> None:
        """Given up in two sweeps, because the queue removes a job a moment after its ack."""
        before, self._given_up = self._given_up, {job.sequence for job in jobs if job.is_given_up}
        for job in jobs:
            seen = self._seen.get(job.run_id or "")
            if seen is not None and not seen.looks_before:
                continue  # its worker goes on with it
            is_given_up = job.is_given_up and job.sequence in before
            if is_given_up or (seen is not None and await self._is_used_up(job, seen)):
                await self._end_undeliverable.end_at(job.sequence, job.max_deliver)

    async def _is_used_up(self, job: QueuedJob, seen: _Seen) -> bool:
        """The last delivery failed, but the queue has not reported it: no worker requests the next job.

        The attempt of the last claim shows it.
        """
        if not job.max_deliver or seen.status is not RunStatus.RUNNING or seen.looks_before < PENDING_LOOKS:
            return False
        current = await self._runs.get(job.run_id or "")
        return (
            current is not None
            and current.revision == seen.revision
            and current.value.job_seq in (None, job.sequence)
            and (current.value.attempt or 0) >= job.max_deliver
        )

    async def _end(self, run_id: str, seen: _Seen) -> None:
        current = await self._runs.get(run_id)
        if current is None:  # it was removed unnoticed, and its marker is gone too
            self._index.forget(run_id)
            return
        if current.revision != seen.revision:
            return
        if current.value.status is RunStatus.PENDING and seen.looks_before < PENDING_LOOKS:
            return
        change = GiveUp(error=LOST, kind=FailureKind.LOST_JOB, last_attempt=EVERY_DELIVERY)
        ended = decide(current.value, change, self._clock())
        if isinstance(ended, Refusal):
            return
        try:
            await self._runs.update(run_id, ended, current.revision)
        except WrongRevision:  # it goes on after all
            return
        log.error(
            "ended a run without a job",
            action="run.orphan_ended",
            run_id=run_id,
            status=ended.status,
            **OrphanRunSuspected().ids,
        )


# Next tries that a worker could not queue

NEXT_TRY_SEC = 0.5
"""Time for the worker to queue the next try itself, which is the rule."""


class QueueNextTries:
    """Queues the next try of a run for a worker that has no right to, or that died before it could.

    The job of the failed try is acknowledged after that of the next is queued. So as long as the former is on
    the queue, the latter may be missing. The message id prevents a second one.
    """

    def __init__(self, runs: RunStore, queue: JobQueue, jobs: UndeliverableJobs) -> None:
        self._runs = runs
        self._queue = queue
        self._jobs = jobs
        self._due: dict[tuple[str, int], float] = {}
        """When to look after a run and its failed try, in order."""
        self._wake = asyncio.Event()

    def look(self, changes: Iterable[Change[RunSnapshot]]) -> None:
        """Called for every change of a run."""
        for change in changes:
            run = change.value
            if run is not None and _waits_for_next_try(run) and run.job_seq is not None:
                at = asyncio.get_running_loop().time() + NEXT_TRY_SEC
                self._due.setdefault((change.key, run.job_seq), at)
                self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due:
                (run_id, job_seq), at = next(iter(self._due.items()))
                await asyncio.sleep(max(0.0, at - asyncio.get_running_loop().time()))
                del self._due[run_id, job_seq]
                with best_effort(log, "run.next_try", NatsUnavailable, run_id=run_id):
                    await self.complete(run_id, job_seq)

    async def complete(self, run_id: str, job_seq: int) -> None:
        """Queue the next try, unless that was done. `job_seq`: the job of the failed one."""
        failed = self._jobs.at(job_seq, 0)
        message = await failed.read()
        job = None if message is None else _job_in(message)
        if job is None or job.run_id != run_id:  # acknowledged: the worker did it
            return
        current = await self._runs.get(run_id)
        if current is None or not _waits_for_next_try(current.value) or current.value.job_seq != job_seq:
            return
        await self._queue.publish(job_of_next_try(job, current.value), current.revision)
        await failed.remove()  # it would be delivered again and again, to no effect
        log.info("queued the next try of a run", action="run.next_try", run_id=run_id)


def _waits_for_next_try(run: RunSnapshot) -> bool:
    return run.status is RunStatus.PENDING and bool(run.tries)


# Runs that no worker starts in time


class RunExpiry:
    """Ends runs that no worker started in time. JetStream keeps the time."""

    KIND = "expire"

    def __init__(self, timers: Timers, runs: RunStore, clock: Clock) -> None:
        self._timers = timers
        self._runs = runs
        self._clock = clock

    async def set(self, run_id: str, at: float) -> None:
        await self._timers.set(self.KIND, run_id, at)

    async def run(self) -> None:
        async for timer in self._timers.follow(self.KIND):
            with best_effort(log, "run.expire", NatsUnavailable, run_id=timer.key):
                await self._end(timer.key)
                await timer.settle()

    async def _end(self, run_id: str) -> None:
        ended = await change_run(self._runs, run_id, Expire(), self._clock)
        if isinstance(ended, Versioned) and ended.value.failure is not None:
            log.warning("no worker started a run in time", action="run.expired", run_id=run_id)


# The number of dead letters, cached so that scrapes do not load the server.

FRESH_SEC = 5.0


class CountDeadLetters:
    def __init__(self, dead_letters: DeadLetterStore) -> None:
        self._dead_letters = dead_letters
        self._count = 0
        self._asked_at: float | None = None

    async def __call__(self, now: float) -> int:
        if self._asked_at is None or now - self._asked_at > FRESH_SEC:
            self._count = await self._dead_letters.count()
            self._asked_at = now
        return self._count
