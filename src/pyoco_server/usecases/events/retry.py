"""Retry jobs: the queue of failed events, and the drain that retries them."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from pyoco_server import tracing
from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.events.audit import (
    DISCARDED_BY_HAND,
    RETRY,
    AuditActor,
    EventStatus,
    RetryAdvice,
    StoredEvent,
    new_record,
    reason_of,
    status_of,
)
from pyoco_server.domain.events.receipts import receipt_key
from pyoco_server.domain.events.requests import EventRequest
from pyoco_server.domain.events.retry import (
    Failure,
    JobStatus,
    QueueCounts,
    RetryJob,
    RetryPolicy,
    counts,
    discarded,
    due_first,
    failed_again,
    in_turn,
    is_due,
    is_expired,
    job_id,
    new_job,
    restarted,
    succeeded,
    to_evict,
)
from pyoco_server.domain.events.templates import Template
from pyoco_server.domain.fleet import LeaseRecord
from pyoco_server.errors import (
    EventFailed,
    NatsUnavailable,
    PyocoServerError,
    RetryQueueFull,
    StillStarting,
    WorkflowConflict,
    WorkflowNotFound,
)
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.consistency import change_value
from pyoco_server.usecases.coordination import Lease
from pyoco_server.usecases.events.audit import Audit
from pyoco_server.usecases.events.definitions import (
    DRAIN_LEASE,
    LEASE_SEC,
    ManageTemplates,
    of_tenant,
    tenant_key,
)
from pyoco_server.usecases.events.start import StartOrder, StartTemplate
from pyoco_server.usecases.ports.gateway import CountedStore
from pyoco_server.usecases.ports.stores import Clock, Store, WrongRevision

log = get_logger(__name__)

MAX_ID = 64
DEFAULT_LIMIT = 10
MAX_LIMIT = 50
SHOWN_BYTES = 1024 * 1024
"""Data in a list of jobs; the jobs after it are listed without theirs."""
CHANGED = "the template is no longer started by events, or has another action"
_DISCARDED = Failure("discarded by hand", DISCARDED_BY_HAND)


class RetryQueue:
    def __init__(
        self,
        jobs: CountedStore[RetryJob],
        policy: RetryPolicy,
        clock: Clock,
        trail: AuditTrail,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.trail = trail
        self.policy = policy
        self._jobs = jobs
        self._clock = clock
        self._jitter = jitter

    async def add(
        self, template: Template, request: EventRequest, failure: Failure, api_key_id: str | None
    ) -> RetryJob:
        """The job of an event; an active one keeps its attempts and time. Raises RetryQueueFull."""
        assert request.key is not None  # noqa: S101 - events without a key are not queued
        where = receipt_key(template.tenant_id, template.id, request.key)
        key = tenant_key(template.tenant_id, job_id(where))
        await self._make_room(template.tenant_id, key)
        fresh = new_job(
            where,
            template=template,
            request=request,
            failure=failure,
            policy=self.policy,
            now=self._clock(),
            jitter=self._jitter(),
            api_key_id=api_key_id,
            trace=tracing.here(),
        )

        def decide(current: RetryJob | None) -> RetryJob:
            return current if current is not None and current.status.is_active else fresh

        job = await change_value(self._jobs, key, decide)
        return job or fresh

    async def _make_room(self, tenant_id: str | None, key: str) -> None:
        """Per tenant: no tenant can fill the queue of another."""
        prefix = of_tenant(tenant_id)
        is_room = await self._jobs.count(prefix) < self.policy.max_jobs
        if is_room or await self._jobs.get(key) is not None:
            return
        evicted = to_evict(await self._jobs.list_values(prefix), self.policy.max_jobs)
        if evicted is None:
            raise RetryQueueFull("the retry queue is full")
        for job in evicted:
            await self._evict(job)

    async def _evict(self, job: RetryJob) -> None:
        key = tenant_key(job.tenant_id, job.id)
        stored = await self._jobs.get(key)
        if stored is None or stored.value.status.is_active:
            return
        try:
            await self._jobs.remove(key, stored.revision)
        except WrongRevision:
            log.debug("retry job changed; not evicted", action="retry.kept", job_id=job.id)

    async def succeeded(self, tenant_id: str | None, where: str, run_id: str) -> None:
        """The event of a queued job was started outside the drain."""
        with best_effort(log, "retry.mark", NatsUnavailable, job_id=job_id(where)):
            await change_value(
                self._jobs,
                tenant_key(tenant_id, job_id(where)),
                lambda job: succeeded(job, run_id, self._clock()) if job and job.status.is_active else None,
            )

    async def jobs(self, tenant_id: str | None) -> list[RetryJob]:
        """Most recently changed first."""
        return sorted(
            await self._known(of_tenant(tenant_id)), key=lambda job: (job.updated_at, job.id), reverse=True
        )

    async def counts(self, tenant_id: str | None) -> QueueCounts:
        return counts(await self._known(of_tenant(tenant_id)), self._clock())

    async def shown(self, tenant_id: str | None, limit: int) -> dict[str, Any]:
        jobs = await self.jobs(tenant_id)
        shown = await self._with_data(jobs[:limit])
        return {
            **asdict(counts(jobs, self._clock())),
            "jobs": shown + jobs[len(shown) : limit],
            "data_omitted": len(jobs[len(shown) : limit]),
            "policy": self.policy,
        }

    async def _with_data(self, jobs: list[RetryJob]) -> list[RetryJob]:
        """The first ones, up to `SHOWN_BYTES`. Data stays JSON: decoded it may take 35 times as much."""
        shown: list[RetryJob] = []
        left = SHOWN_BYTES
        for job in jobs:
            if left <= 0:
                break
            stored = await self._jobs.get(tenant_key(job.tenant_id, job.id))
            data = None if stored is None else stored.value.data
            if data is not None:
                data = msgspec.Raw(msgspec.json.encode(data))
                left -= memoryview(data).nbytes
            shown.append(replace(job, data=data))
        return shown

    async def _known(self, prefix: str) -> list[RetryJob]:
        now, ttl_days = self._clock(), self.policy.terminal_ttl_days
        return [job for job in await self._jobs.list_values(prefix) if not is_expired(job, now, ttl_days)]

    async def retry(self, wanted: str, caller: Caller) -> RetryJob:
        """Due now, with all attempts. Raises WorkflowNotFound or WorkflowConflict."""

        def decide(job: RetryJob) -> RetryJob:
            if job.status is JobStatus.SUCCEEDED:
                raise WorkflowConflict("the job has succeeded; replay its event instead")
            return restarted(job, self._clock())

        return await self._change("retry_job.retry", wanted, caller, decide)

    async def discard(self, wanted: str, caller: Caller) -> RetryJob:
        def decide(job: RetryJob) -> RetryJob:
            if job.status is JobStatus.SUCCEEDED:
                raise WorkflowConflict("the job has already succeeded")
            return discarded(job, _DISCARDED, self._clock())

        return await self._change("retry_job.discard", wanted, caller, decide)

    async def _change(
        self, action: str, wanted: str, caller: Caller, decide: Callable[[RetryJob], RetryJob]
    ) -> RetryJob:
        before: RetryJob | None = None

        def decide_if_there(job: RetryJob | None) -> RetryJob | None:
            nonlocal before
            if job is None:
                raise WorkflowNotFound("Retry job not found.")
            before = job
            return decide(job)

        if not (wanted.isascii() and wanted.isalnum() and len(wanted) <= MAX_ID):
            raise WorkflowNotFound("Retry job not found.")
        changed: RetryJob | None = await change_value(
            self._jobs, tenant_key(caller.tenant_id, wanted), decide_if_there
        )
        assert changed is not None and before is not None  # noqa: S101, PT018 - else this is never reached
        target = ChangeTarget("retry_job", wanted)
        await self.trail.record(caller, action, target, _state(before), _state(changed))
        return changed


def _state(job: RetryJob) -> dict[str, Any]:
    """Without the data of its event."""
    return {"status": job.status, "attempts": job.attempts, "template_id": job.template_id}


class DrainRetryJobs:
    def __init__(  # noqa: PLR0913 - the composition root names each
        self,
        *,
        jobs: CountedStore[RetryJob],
        leases: Store[LeaseRecord],
        queue: RetryQueue,
        templates: ManageTemplates,
        start_template: StartTemplate,
        audit: Audit,
        clock: Clock,
        new_id: Callable[[], str],
        poll_seconds: float,
        on_escalated: Callable[[], None],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._jobs = jobs
        self._leases = leases
        self._queue = queue
        self._templates = templates
        self._start_template = start_template
        self._audit = audit
        self._clock = clock
        self._new_id = new_id
        self._poll_seconds = poll_seconds
        self._on_escalated = on_escalated
        self._jitter = jitter

    async def run(self) -> None:
        """Drain all due jobs at regular intervals."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            with best_effort(log, "retry.drain", NatsUnavailable):
                await self._drain_all_due()

    async def _drain_all_due(self) -> None:
        now = self._clock()
        if not any(is_due(job, now) for job in await self._jobs.list_values()):
            return  # saves taking the lease
        try:
            await self._drained(await self._jobs.list_values(), MAX_LIMIT, force=False)
        except WorkflowConflict:
            log.debug("another gateway is draining the retry queue", action="retry.drained_elsewhere")

    async def __call__(self, limit: int, caller: Caller, *, force: bool) -> dict[str, Any]:
        """The jobs of one tenant. Raises WorkflowConflict while another drain is running."""
        tally = await self._drained(await self._queue.jobs(caller.tenant_id), limit, force=force)
        if tally["processed"]:
            target, after = ChangeTarget("retry_job", "*"), {**tally, "force": force}
            await self._queue.trail.record(caller, "retry_job.drain", target, None, after)
        queue = await self._queue.shown(caller.tenant_id, DEFAULT_LIMIT)
        return {"status": "ok", **tally, "remaining_due": queue["due"], "queue": queue}

    async def _drained(self, known: list[RetryJob], limit: int, *, force: bool) -> dict[str, int]:
        lease = Lease(self._leases, DRAIN_LEASE, self._new_id(), self._clock, lasts_sec=LEASE_SEC)
        if not await lease.take():
            raise WorkflowConflict("another drain is running; try again in a moment")
        tally = dict.fromkeys(("processed", "succeeded", "retrying", "escalated", "discarded"), 0)
        try:
            for job in in_turn(due_first(known, self._clock(), force=force))[:limit]:
                if not await lease.take():
                    break  # the lease expired, and another gateway has it
                ended_as = await self._try(job)
                if ended_as is not None:
                    tally["processed"] += 1
                    tally[ended_as] += 1
        finally:
            await lease.give_back()
        return tally

    async def _try(self, listed: RetryJob) -> JobStatus | None:
        """None: the job was changed, or is being started elsewhere. Raises NatsUnavailable: not tried."""
        key = tenant_key(listed.tenant_id, listed.id)
        stored = await self._jobs.get(key)
        if stored is None or not stored.value.status.is_active or stored.value.attempts != listed.attempts:
            return None
        job = stored.value
        try:
            run_id = await self._start(job)
        except StillStarting:
            return None
        except NatsUnavailable:
            raise
        except PyocoServerError as error:
            return await self._failed(key, job, error)
        except Exception:
            log.exception("unexpected error in a retry job", action="retry.failed", job_id=job.id)
            return await self._failed(key, job, EventFailed())
        await self._write(key, job, lambda now: succeeded(job, run_id, now))
        await self._record(job, EventStatus.SUCCESS, run_id=run_id)
        return JobStatus.SUCCEEDED

    async def _start(self, job: RetryJob) -> str:
        """StartTemplate checks the receipt first: an event started in the meantime is not started again."""
        template = await self._templates.find(job.tenant_id, job.template_id)
        _check_unchanged(job, template)
        order = StartOrder(template=template, request=job.request, api_key_id=job.api_key_id)
        with tracing.continuing(job.trace):
            return (await self._start_template(order)).run_id

    async def _failed(self, key: str, job: RetryJob, error: PyocoServerError) -> JobStatus:
        reason = reason_of(error)
        failure = Failure(error.detail, reason)
        is_permanent = reason.retry_advice is not RetryAdvice.RETRY_WITH_BACKOFF

        def decide(now: float) -> RetryJob:
            if is_permanent:
                return discarded(job, failure, now)
            return failed_again(job, failure, self._queue.policy.base_delay_seconds, now, self._jitter())

        ended = await self._write(key, job, decide)
        await self._record(job, status_of(error), failure=failure)
        if ended.status is JobStatus.ESCALATED:
            log.error(
                "retry job escalated; manual action needed",
                action="retry.escalated",
                job_id=job.id,
                template_id=job.template_id,
                **error.ids,
            )
            self._on_escalated()
        return ended.status

    async def _write(self, key: str, job: RetryJob, decide: Callable[[float], RetryJob]) -> RetryJob:
        """Unless the job has changed in the meantime; then that change stands."""
        changed = decide(self._clock())
        await change_value(self._jobs, key, lambda found: changed if found == job else None)
        return changed

    async def _record(
        self, job: RetryJob, status: EventStatus, *, run_id: str | None = None, failure: Failure | None = None
    ) -> None:
        record = new_record(
            RETRY,
            status,
            event_id=self._new_id(),
            now=self._clock(),
            actor=AuditActor(tenant_id=job.tenant_id, api_key_id=job.api_key_id),
            action=job.action,
            run_id=run_id,
            request=job.request,
            reason=failure.reason if failure else None,
            reason_text=failure.text if failure else None,
            template_name=job.template_name,
            duplicate=False,
        )
        await self._audit.record(StoredEvent(record=record))


def _check_unchanged(job: RetryJob, template: Template) -> None:
    if not template.is_started_by_events or template.first.action != job.action:
        raise WorkflowNotFound(CHANGED)
