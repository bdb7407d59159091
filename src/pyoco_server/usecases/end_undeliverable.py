"""End the runs whose job was delivered as often as it may: none is RUNNING for ever because workers died.

The order makes a crash anywhere harmless: the run's end, the dead letter, the message, the word that all is
done. Whatever is repeated is repeated with the same content.
"""

from pyoco_server.domain import wire
from pyoco_server.domain.dispositions import DeadLetter, DlqReason
from pyoco_server.domain.jobs import Job
from pyoco_server.domain.names import is_run_id, is_tag
from pyoco_server.domain.run_changes import GiveUp, Refusal
from pyoco_server.errors import InvalidJob, NatsUnavailable
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.change_run import change_run
from pyoco_server.usecases.ports import (
    Clock,
    DeadLetters,
    QueuedMessage,
    RunStore,
    UndeliverableJob,
    UndeliverableJobs,
)

log = get_logger(__name__)


class EndUndeliverable:
    def __init__(
        self, undeliverable: UndeliverableJobs, runs: RunStore, dead_letters: DeadLetters, clock: Clock
    ) -> None:
        self._undeliverable = undeliverable
        self._runs = runs
        self._dead_letters = dead_letters
        self._clock = clock

    async def run(self) -> None:
        async for job in self._undeliverable.follow():
            with best_effort(log, "job.undeliverable", NatsUnavailable):
                await self.end(job)

    async def end_at(self, sequence: int, deliveries: int) -> None:
        """One that was found on the queue: its advisory is lost."""
        await self.end(self._undeliverable.at(sequence, deliveries))

    async def end(self, undeliverable: UndeliverableJob) -> None:
        message = await undeliverable.read()
        if message is not None:
            await self._end_run(message, undeliverable)
            await undeliverable.remove()
        await undeliverable.settle()

    async def _end_run(self, message: QueuedMessage, undeliverable: UndeliverableJob) -> None:
        deliveries = undeliverable.deliveries
        run_id = wire.run_id_in(message.payload)
        run_id = run_id if run_id is not None and is_run_id(run_id) else None
        error = f"max_deliver: the job was delivered {deliveries} times and not one delivery reached its end"
        change = GiveUp(error=error, last_attempt=deliveries, job_seq=undeliverable.sequence)
        if run_id is not None and await self._ended_otherwise(run_id, change):
            log.info("a job that its run does not need is removed", action="job.leftover", run_id=run_id)
            return
        log.error("a job was delivered too often", action="job.max_deliver", run_id=run_id, error=error)
        letter = self._letter(message, run_id, error, deliveries)
        await self._dead_letters.publish(letter, _tag_of(message))

    async def _ended_otherwise(self, run_id: str, change: GiveUp) -> bool:
        """Whether the run has its end, or another job to reach it, and not by an earlier try of this."""
        try:
            answer = await change_run(self._runs, run_id, change, self._clock)
            if not isinstance(answer, Refusal):
                return False
            stored = await self._runs.get(run_id)
        except wire.Unreadable as damage:
            log.warning("the run's snapshot is damaged", action="run.unreadable", exc_info=damage)
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
            payload=None if job else wire.payload_excerpt(message.payload),
        )


def _job_in(message: QueuedMessage) -> Job | None:
    try:
        return wire.decode_job(message.payload)
    except InvalidJob:
        return None


def _tag_of(message: QueuedMessage) -> str:
    tag = message.subject.rpartition(".")[2]
    return tag if is_tag(tag) else "unknown"
