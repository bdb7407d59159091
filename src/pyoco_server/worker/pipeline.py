"""The way of one delivery: received, decoded, claimed, run, concluded, recorded, acknowledged."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.names import is_run_id, is_tag
from pyoco_server.domain.runs.changes import Claim, GiveUp, Refusal
from pyoco_server.domain.runs.jobs import (
    DeadLetter,
    DlqReason,
    Ending,
    FlowOutcome,
    Job,
    QueueAction,
    disposition,
    pending,
)
from pyoco_server.domain.runs.model import Owner, RunSnapshot, RunStatus
from pyoco_server.errors import (
    DlqPublishFailed,
    ExecutionFailed,
    FlowNotFound,
    InvalidJob,
    NatsUnavailable,
    ProgressNotSent,
)
from pyoco_server.logs import best_effort, get_logger, surviving
from pyoco_server.usecases.consistency import change_run
from pyoco_server.usecases.ports.runs import Delivery, WorkerBackend
from pyoco_server.usecases.ports.stores import Clock, Versioned, WrongRevision
from pyoco_server.worker.periodic import PeriodicCalls
from pyoco_server.worker.session import REFUSED_PATIENCE_SEC, FlowExecutors, RunSession

log = get_logger(__name__)

START_PATIENCE_SEC = 1.0
"""How long a claimed run waits for a free executor before another worker gets the chance."""

REPORTS_PER_ACK_WAIT = 3


class Handled(Struct, frozen=True):
    """What became of a delivery."""

    ending: Ending
    run_id: str | None = None
    status: RunStatus | None = None
    error: str | None = None


class Pipeline:
    def __init__(  # noqa: PLR0913 - one argument per part it is put together from
        self,
        backend: WorkerBackend,
        executors: FlowExecutors,
        config: NatsBackendConfig,
        clock: Clock,
        worker_id: str,
        instance_id: str,
        *,
        on_busy: Callable[[float], None] = lambda _: None,
        log_patience_sec: float = REFUSED_PATIENCE_SEC,
    ) -> None:
        """`on_busy` is told for how many seconds an executor was busy with a flow."""
        self._backend = backend
        self._executors = executors
        self._config = config
        self._clock = clock
        self._worker_id = worker_id
        self._instance_id = instance_id
        self._on_busy = on_busy
        self._log_patience_sec = log_patience_sec
        self._ack_wait_sec: Callable[[], float] = lambda: config.consumer_ack_wait_sec
        self._queue_pulse = PeriodicCalls(self._ack_progress_interval, "job.in_progress", ProgressNotSent)
        self._sessions: set[RunSession] = set()
        self._is_giving_back = False
        heartbeat_sec = config.run_heartbeat_interval_sec
        self._run_pulse = PeriodicCalls(lambda: heartbeat_sec, "run.heartbeat", NatsUnavailable)

    def _ack_progress_interval(self) -> float:
        """Two of them may be lost or late."""
        return min(self._config.ack_progress_interval_sec, self._ack_wait_sec() / REPORTS_PER_ACK_WAIT)

    def side_work(self, ack_wait_sec: Callable[[], float]) -> Sequence[Any]:
        """What has to run beside the deliveries. If any of it ends, the worker must stop.

        `ack_wait_sec`: of the consumers that are really used. Whoever made them may have had other settings.
        """
        self._ack_wait_sec = ack_wait_sec
        return [self._queue_pulse.run(), self._run_pulse.run()]

    def give_back(self) -> None:
        """End the flows that run, by force; their jobs go back to the queue, for other workers."""
        self._is_giving_back = True
        for session in self._sessions:
            session.abandon()

    async def handle(self, delivery: Delivery) -> Handled:
        job: Job | None = None
        try:
            with self._queue_pulse.calling(delivery.in_progress):
                job = delivery.job()
                with structlog.contextvars.bound_contextvars(
                    run_id=job.run_id, flow_name=job.flow_name, tag=job.tag, worker_id=self._worker_id
                ):
                    handled = await self._carry_out(job, delivery)
        except InvalidJob as error:
            handled = await self._refuse(delivery, error)
        except NatsUnavailable as error:
            log.warning("a job comes back because NATS failed", action="job.nats_failed", exc_info=error)
            handled = Handled(Ending.NATS_UNAVAILABLE, job.run_id if job else None)
        except codec.Unreadable:
            log.exception(
                "the run's snapshot is damaged; the job will be delivered again",
                action="job.snapshot_unreadable",
                run_id=job.run_id if job else None,
            )
            handled = Handled(Ending.NATS_UNAVAILABLE, job.run_id if job else None)
        await self._settle(delivery, job, handled)
        return handled

    async def _carry_out(self, job: Job, delivery: Delivery) -> Handled:
        owner = Owner(self._worker_id, self._instance_id, delivery.num_delivered)
        claimed = await self._claim(job, delivery, owner)
        if isinstance(claimed, Handled):
            return claimed
        session = RunSession(
            self._backend,
            self._clock,
            owner,
            claimed,
            self._config.cancel_grace_period_sec,
            self._log_patience_sec,
        )
        self._sessions.add(session)
        try:
            return await self._run(job, session)
        finally:
            self._sessions.discard(session)

    async def _run(self, job: Job, session: RunSession) -> Handled:
        with self._run_pulse.calling(session.beat):
            flow = await self._executors.start(job, session, START_PATIENCE_SEC)
            if flow is None:
                return Handled(Ending.NOT_STARTED, job.run_id)
            if self._is_giving_back:
                session.abandon()
            outcome = await session.follow(flow)
        if outcome is None:
            return Handled(Ending.GIVEN_BACK, job.run_id)
        self._on_busy(flow.busy_sec)
        _say_failure(outcome)
        return _handled(job, outcome, await session.conclude(outcome))

    async def _claim(self, job: Job, delivery: Delivery, owner: Owner) -> Versioned[RunSnapshot] | Handled:
        first = pending(job, delivery.retention_sec)
        known = None if delivery.revision is None else Versioned(first, delivery.revision)
        claim = Claim(owner, delivery.sequence)
        answer = await change_run(self._backend.runs, job.run_id, claim, self._clock, known=known)
        if answer is None:
            if delivery.revision is not None:
                return Handled(Ending.WITHDRAWN, job.run_id)
            answer = await self._claim_without_snapshot(first, claim)
        if answer is Refusal.TERMINAL:
            return Handled(Ending.ALREADY_TERMINAL, job.run_id)
        if answer is Refusal.OTHER_JOB:
            log.warning("a second job of a run is dropped", action="job.duplicate", sequence=claim.job_seq)
            return Handled(Ending.DUPLICATE_JOB, job.run_id)
        if isinstance(answer, Refusal) or answer is None:
            return Handled(Ending.FENCED, job.run_id)
        if answer.value.status is RunStatus.CANCELLED:
            return Handled(Ending.CANCELLED, job.run_id, RunStatus.CANCELLED)
        return answer

    async def _claim_without_snapshot(
        self, first: RunSnapshot, claim: Claim
    ) -> Versioned[RunSnapshot] | Refusal | None:
        """A producer that put a job on the queue and wrote no snapshot: write the one it should have."""
        with suppress(WrongRevision):  # another delivery did the same a moment ago
            await self._backend.runs.create(first.run_id, first)
        return await change_run(self._backend.runs, first.run_id, claim, self._clock)

    async def _refuse(self, delivery: Delivery, error: InvalidJob) -> Handled:
        """It will never be readable; its run, if it names one, must not stay PENDING."""
        run_id = codec.run_id_in(delivery.payload)
        log.error(
            "invalid job",
            action="job.invalid",
            run_id=run_id,
            worker_id=self._worker_id,
            subject=delivery.subject,
            reason=Ending.INVALID_JOB,
            exc_info=error,
        )
        if run_id is None or not is_run_id(run_id):
            return Handled(Ending.INVALID_JOB, error=error.detail)
        try:
            await change_run(
                self._backend.runs,
                run_id,
                GiveUp(
                    error=f"invalid job: {error.detail}",
                    last_attempt=delivery.num_delivered,
                    job_seq=delivery.sequence,
                ),
                self._clock,
            )
        except NatsUnavailable:
            return Handled(Ending.NATS_UNAVAILABLE, run_id)
        except codec.Unreadable:
            return Handled(Ending.INVALID_JOB, run_id, error=error.detail)
        return Handled(Ending.INVALID_JOB, run_id, RunStatus.FAILED, error.detail)

    async def _settle(self, delivery: Delivery, job: Job | None, handled: Handled) -> None:
        """Dead letter first, then the queue: after a crash between the two the record exists."""
        wanted = disposition(handled.ending, publish_execution_error=self._config.dlq_publish_execution_error)
        if wanted.dlq is not None:
            with surviving(log, "dlq.publish", DlqPublishFailed, run_id=handled.run_id):
                await self._backend.dead_letters.publish(
                    self._letter(delivery, job, handled, wanted.dlq), _tag_of(delivery, job)
                )
        with best_effort(log, "job.settle", NatsUnavailable, run_id=handled.run_id, queue=wanted.action):
            match wanted.action:
                case QueueAction.ACK:
                    await delivery.ack()
                case QueueAction.NAK:
                    await delivery.nak(wanted.delay)
                case QueueAction.TERM:
                    await delivery.term()
                case QueueAction.LEAVE:
                    log.info("another delivery owns the run", action="job.left", run_id=handled.run_id)

    def _letter(self, delivery: Delivery, job: Job | None, handled: Handled, reason: DlqReason) -> DeadLetter:
        return DeadLetter(
            timestamp=self._clock(),
            reason=reason,
            error=handled.error,
            run_id=handled.run_id,
            flow_name=job.flow_name if job else None,
            tag=job.tag if job else None,
            tags=job.tags if job else None,
            worker_id=self._worker_id,
            num_delivered=delivery.num_delivered,
            subject=delivery.subject,
            payload=codec.payload_excerpt(delivery.payload) if job is None else None,
        )


def _handled(job: Job, outcome: FlowOutcome, recorded: Versioned[RunSnapshot] | Refusal) -> Handled:
    if isinstance(recorded, Refusal):
        ending = Ending.FENCED if recorded is Refusal.FENCED else Ending.ALREADY_TERMINAL
        log.warning("the run went on without us; our result is dropped", action="run.lost", reason=recorded)
        return Handled(ending, job.run_id)
    status = recorded.value.status
    log.info("run ended", action="run.ended", status=status)
    ending = Ending.CANCELLED if status is RunStatus.CANCELLED else outcome.ending
    return Handled(ending, job.run_id, status, outcome.error)


def _say_failure(outcome: FlowOutcome) -> None:
    kind = {Ending.FLOW_NOT_FOUND: FlowNotFound, Ending.EXECUTION_ERROR: ExecutionFailed}.get(outcome.ending)
    if kind is not None:
        log.error(
            kind.entry.en,
            action=f"run.{outcome.ending}",
            reason=outcome.ending,
            error=outcome.error,
            **kind().ids,
            **({} if outcome.raised is None else msgspec.structs.asdict(outcome.raised)),
        )


def _tag_of(delivery: Delivery, job: Job | None) -> str:
    """The dead letter's tag: of the job, or what the queue's subject says."""
    tag = job.tag if job else delivery.subject.rpartition(".")[2]
    return tag if is_tag(tag) else "unknown"
