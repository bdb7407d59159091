"""The steps of one delivery: decode, claim, run, conclude, dead letter, ack."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pyoco_server import tracing
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.dead_letters import DeadLetter, DlqReason
from pyoco_server.domain.inputs import is_run_id, is_tag
from pyoco_server.domain.runs.changes import Claim, GiveUp, Refusal
from pyoco_server.domain.runs.jobs import (
    Ending,
    FlowOutcome,
    Job,
    QueueAction,
    delivered,
    disposition,
    pending,
)
from pyoco_server.domain.runs.model import FailureKind, Owner, RunSnapshot, RunStatus
from pyoco_server.errors import (
    DlqPublishFailed,
    ExecutionFailed,
    FlowNotFound,
    InvalidJob,
    InvalidRequest,
    NatsUnavailable,
    ProgressNotSent,
    PyocoServerError,
    Unresolvable,
)
from pyoco_server.logs import best_effort, bound_fields, get_logger, surviving
from pyoco_server.usecases.consistency import change_run, queue_next_try
from pyoco_server.usecases.ports.queues import Delivery
from pyoco_server.usecases.ports.runs import WorkerBackend
from pyoco_server.usecases.ports.stores import Clock, Revision, Versioned, WrongRevision
from pyoco_server.worker.heartbeats import HeartbeatPace
from pyoco_server.worker.run_log import REFUSED_PATIENCE_SEC
from pyoco_server.worker.session import Concluded, FlowExecutors, RunSession, masks_of
from pyoco_server.worker.task_requests import AnswerTasks, Quota
from pyoco_server.worker.values import FetchValues, StoreValues

log = get_logger(__name__)

LONGEST_SLEEP_SEC = 1.0
"""A shorter interval takes effect within this time."""

Call = Callable[[], Awaitable[None]]
Resolve = Callable[[Job], Awaitable[Job]]


class PeriodicCalls:
    """Makes the registered calls every `interval()` seconds. A failed call does not affect the others."""

    def __init__(self, interval: Callable[[], float], action: str, error: type[PyocoServerError]) -> None:
        self._interval = interval
        self._action = action
        self._error = error
        self._calls: dict[object, Call] = {}

    @contextmanager
    def calling(self, call: Call) -> Iterator[None]:
        """Most runs end before their first call, so registration must be cheap."""
        token = object()
        self._calls[token] = call
        try:
            yield
        finally:
            del self._calls[token]

    async def run(self) -> None:
        while True:
            await self._sleep()
            for token in list(self._calls):
                call = self._calls.get(token)  # its run may have ended during another call
                if call is not None:
                    with surviving(log, self._action, self._error):
                        await call()

    async def _sleep(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (  # noqa: ASYNC110 - only time to wait for
            left := began + self._interval() - loop.time()
        ) > 0:
            await asyncio.sleep(min(left, LONGEST_SLEEP_SEC))


START_PATIENCE_SEC = 1.0
"""How long a claimed run waits for a free executor before its job is returned."""

REPORTS_PER_ACK_WAIT = 3
"""Two in-progress reports may be lost or late."""


class Received(Struct, frozen=True):
    """A delivery with its payload, decoded once."""

    delivery: Delivery
    job: Job | InvalidJob
    run_id: str | None
    """Also of an invalid job, if it can be read."""


def receive(delivery: Delivery) -> Received:
    try:
        job = delivery.job()
    except InvalidJob as error:
        return Received(delivery, error, codec.run_id_in(delivery.payload))
    return Received(delivery, job, job.run_id)


class Handled(Struct, frozen=True):
    """How a delivery ended."""

    ending: Ending
    run_id: str | None = None
    status: RunStatus | None = None
    error: str | None = None


class Pipeline:
    def __init__(  # noqa: PLR0913 - one argument per part that it works with
        self,
        backend: WorkerBackend,
        executors: FlowExecutors,
        config: NatsBackendConfig,
        clock: Clock,
        worker_id: str,
        instance_id: str,
        *,
        log_patience_sec: float = REFUSED_PATIENCE_SEC,
        resolve: Resolve | None = None,
        values_dir: str = "",
    ) -> None:
        """`resolve` puts values of secrets and variables into a job. `values_dir`: for large values."""
        self._resolve = resolve
        self._fetch_values = FetchValues(backend, values_dir)
        self._log_patience_sec = log_patience_sec
        self._store_values = StoreValues(backend, log_patience_sec)
        quota = Quota(config.artifacts_max_bytes_per_run, config.artifacts_max_bytes_per_tenant)
        self._answer = AnswerTasks(backend, clock, quota, log_patience_sec)
        self._backend = backend
        self._executors = executors
        self._config = config
        self._clock = clock
        self._worker_id = worker_id
        self._instance_id = instance_id
        self._ack_wait_sec: Callable[[], float] = lambda: config.consumer_ack_wait_sec
        self._in_progress = PeriodicCalls(self._ack_progress_interval, "job.in_progress", ProgressNotSent)
        self._sessions: set[RunSession] = set()
        self._is_giving_back = False
        self._pace = HeartbeatPace(config.run_heartbeat_interval_sec)
        self._heartbeats = PeriodicCalls(lambda: self._pace.interval_sec, "run.heartbeat", NatsUnavailable)

    def _ack_progress_interval(self) -> float:
        return min(self._config.ack_progress_interval_sec, self._ack_wait_sec() / REPORTS_PER_ACK_WAIT)

    def side_work(self, ack_wait_sec: Callable[[], float]) -> Sequence[Any]:
        """Required background tasks. If one ends, the worker must stop.

        `ack_wait_sec` is that of the actual consumers: they may have been created with other settings.
        """
        self._ack_wait_sec = ack_wait_sec
        return [self._in_progress.run(), self._heartbeats.run()]

    def give_back(self) -> None:
        """Kill the running flows and return their jobs to the queue."""
        self._is_giving_back = True
        for session in self._sessions:
            session.abandon()

    async def handle(self, received: Received) -> Handled:
        delivery, job = received.delivery, received.job
        try:
            with self._in_progress.calling(delivery.in_progress):
                if isinstance(job, InvalidJob):
                    handled = await self._refuse(received, job)
                else:
                    job = tracing.attempted(job)
                    with bound_fields(
                        run_id=job.run_id,
                        flow_name=job.flow_name,
                        tag=job.tag,
                        worker_id=self._worker_id,
                        **tracing.fields_of(job),
                    ):
                        handled = await self._carry_out(job, delivery)
        except NatsUnavailable as error:
            log.warning("NATS unavailable; job will be redelivered", action="job.nats_failed", exc_info=error)
            handled = Handled(Ending.NATS_UNAVAILABLE, received.run_id)
        except codec.Unreadable:
            log.exception(
                "damaged snapshot; job will be redelivered",
                action="job.snapshot_unreadable",
                run_id=received.run_id,
            )
            handled = Handled(Ending.NATS_UNAVAILABLE, received.run_id)
        await self._settle(received, handled)
        return handled

    async def _carry_out(self, job: Job, delivery: Delivery) -> Handled:
        owner = Owner(self._worker_id, self._instance_id, delivery.num_delivered)
        received_at = asyncio.get_running_loop().time()
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
            on_write=self._wrote,
            answer=self._answer,
        )
        self._sessions.add(session)
        self._wrote(claimed.revision)
        try:
            return await self._run(job, session, received_at)
        finally:
            self._sessions.discard(session)

    def _wrote(self, revision: Revision, is_beat: bool = False) -> None:  # noqa: FBT001, FBT002
        at = asyncio.get_running_loop().time()
        self._pace.wrote(revision, at, len(self._sessions), is_beat=is_beat)

    async def _run(self, job: Job, session: RunSession, received_at: float) -> Handled:
        try:
            ready = await self._resolved(job)
        except (Unresolvable, InvalidRequest) as error:
            return await self._not_resolved(job, session, error)
        session.masks = masks_of(ready)
        if not await session.is_held(received_at, self._ack_wait_sec()):
            return _lost(job, session.refusal)
        try:
            with self._heartbeats.calling(session.beat):
                outcome = await self._outcome(ready, session)
        except Unresolvable as error:
            return await self._not_resolved(job, session, error)
        if isinstance(outcome, Handled):
            return outcome
        # Masked first: what stands for a stored value is no text of the flow.
        outcome = await self._store_values(job, session.masked(outcome))
        _log_failure(outcome)
        end = await session.conclude(outcome)
        if isinstance(end, Concluded) and end.is_retried:
            return await self._next_try(job, outcome, end.run)
        return _handled(job, outcome, end)

    async def _outcome(self, job: Job, session: RunSession) -> FlowOutcome | Handled:
        """Of the flow; or how its delivery ended without one. Raises Unresolvable."""
        async with self._fetch_values.files_of(job) as files:
            ready = replace(delivered(job, session.owner.attempt), files=files)
            flow = await self._executors.start(ready, session, START_PATIENCE_SEC)
            if flow is None:
                return Handled(Ending.NOT_STARTED, job.run_id)
            if self._is_giving_back:
                session.abandon()
            outcome = await session.follow(flow)
        return Handled(Ending.GIVEN_BACK, job.run_id) if outcome is None else outcome

    async def _resolved(self, job: Job) -> Job:
        """Raises Unresolvable or InvalidRequest."""
        if job.references is None:
            return job
        if self._resolve is None:
            raise Unresolvable("this worker resolves no secrets and variables")
        return await self._resolve(job)

    async def _not_resolved(self, job: Job, session: RunSession, error: PyocoServerError) -> Handled:
        """No task has run. Another try would not help."""
        outcome = FlowOutcome(
            ending=Ending.EXECUTION_ERROR, error=error.detail, failure_kind=FailureKind.INVALID_JOB
        )
        log.error("params cannot be resolved", action="run.unresolved", error=error.detail, **error.ids)
        return _handled(job, outcome, await session.conclude(outcome))

    async def _next_try(self, job: Job, outcome: FlowOutcome, run: RunSnapshot) -> Handled:
        """The job of the next try comes first: after a crash between the two, this job's delivery adds it."""
        await queue_next_try(self._backend.runs, self._backend.queue, job)
        log.warning(
            "try failed; the run is retried",
            action="run.retried",
            try_number=run.try_number - 1,
            not_before=run.not_before,
        )
        return Handled(Ending.RETRIED, job.run_id, run.status, outcome.error)

    async def _claim(self, job: Job, delivery: Delivery, owner: Owner) -> Versioned[RunSnapshot] | Handled:
        first, known = pending(job, delivery.retention_sec), None
        if delivery.revision is not None and job.try_number == 1:
            known = Versioned(first, delivery.revision)
        claim = Claim(owner, delivery.sequence, job.try_number, await _is_expired(job, delivery), job.trace)
        answer = await change_run(self._backend.runs, job.run_id, claim, self._clock, known=known)
        if answer is None:
            if delivery.revision is not None:
                return Handled(Ending.WITHDRAWN, job.run_id)
            answer = await self._claim_without_snapshot(first, claim)
        if isinstance(answer, Refusal) or answer is None:
            return await self._not_claimed(job, answer)
        if answer.value.status is RunStatus.CANCELLED:
            return Handled(Ending.CANCELLED, job.run_id, RunStatus.CANCELLED)
        if answer.value.status is RunStatus.FAILED:
            log.warning("received a run too late to start it", action="run.expired")
            return Handled(Ending.EXPIRED, job.run_id, RunStatus.FAILED, answer.value.error)
        return answer

    async def _not_claimed(self, job: Job, refusal: Refusal | None) -> Handled:
        if refusal is Refusal.TERMINAL:
            return Handled(Ending.ALREADY_TERMINAL, job.run_id)
        if refusal is Refusal.OTHER_JOB:
            log.warning("second job of a run dropped", action="job.duplicate")
            return Handled(Ending.DUPLICATE_JOB, job.run_id)
        if refusal is Refusal.EARLIER_TRY:
            await queue_next_try(self._backend.runs, self._backend.queue, job)
            return Handled(Ending.RETRIED, job.run_id)
        return Handled(Ending.FENCED, job.run_id)

    async def _claim_without_snapshot(
        self, first: RunSnapshot, claim: Claim
    ) -> Versioned[RunSnapshot] | Refusal | None:
        """The producer wrote no snapshot: write the one it should have."""
        with suppress(WrongRevision):  # another delivery was faster
            await self._backend.runs.create(first.run_id, first)
        return await change_run(self._backend.runs, first.run_id, claim, self._clock)

    async def _refuse(self, received: Received, error: InvalidJob) -> Handled:
        """The job will never be readable; its run, if it names one, must not stay PENDING."""
        delivery, run_id = received.delivery, received.run_id
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
        give_up = GiveUp(
            error=f"invalid job: {error.detail}",
            kind=FailureKind.INVALID_JOB,
            last_attempt=delivery.num_delivered,
            job_seq=delivery.sequence,
        )
        try:
            await change_run(self._backend.runs, run_id, give_up, self._clock)
        except NatsUnavailable:
            return Handled(Ending.NATS_UNAVAILABLE, run_id)
        except codec.Unreadable:
            return Handled(Ending.INVALID_JOB, run_id, error=error.detail)
        return Handled(Ending.INVALID_JOB, run_id, RunStatus.FAILED, error.detail)

    async def _settle(self, received: Received, handled: Handled) -> None:
        """The dead letter comes first: after a crash between the two it exists."""
        delivery = received.delivery
        wanted = disposition(handled.ending, publish_execution_error=self._config.dlq_publish_execution_error)
        if wanted.dlq is not None:
            with surviving(log, "dlq.publish", DlqPublishFailed, run_id=handled.run_id):
                job = received.job
                await self._backend.dead_letters.publish(
                    self._letter(received, handled, wanted.dlq),
                    _tag_of(received),
                    job.tenant_id if isinstance(job, Job) else None,
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

    def _letter(self, received: Received, handled: Handled, reason: DlqReason) -> DeadLetter:
        delivery = received.delivery
        job = received.job if isinstance(received.job, Job) else None
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


def _handled(job: Job, outcome: FlowOutcome, end: Concluded | Refusal) -> Handled:
    if isinstance(end, Refusal):
        return _lost(job, end)
    log.info("run ended", action="run.ended", status=end.run.status)
    ending = Ending.CANCELLED if end.is_overruled else outcome.ending
    return Handled(ending, job.run_id, end.run.status, outcome.error)


def _lost(job: Job, reason: Refusal | None) -> Handled:
    log.warning("lost ownership of the run; nothing more is written", action="run.lost", reason=reason)
    return Handled(Ending.FENCED if reason is Refusal.FENCED else Ending.ALREADY_TERMINAL, job.run_id)


async def _is_expired(job: Job, delivery: Delivery) -> bool:
    """A gateway ends a run that is not started in time, unless none was running then."""
    return job.start_within_sec is not None and await delivery.waited_sec() > job.start_within_sec


def _log_failure(outcome: FlowOutcome) -> None:
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


def _tag_of(received: Received) -> str:
    """The dead letter's tag: that of the job, or of the subject."""
    job = received.job
    tag = job.tag if isinstance(job, Job) else received.delivery.subject.rpartition(".")[2]
    return tag if is_tag(tag) else "unknown"
