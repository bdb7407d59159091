"""The queue of events that are tried again."""

import random
from collections.abc import Callable
from typing import Any

from msgspec.structs import asdict

from pyoco_server.domain.events.reasons import Reason, ReasonClass, RetryAdvice
from pyoco_server.domain.events.receipts import receipt_key
from pyoco_server.domain.events.requests import EventRequest
from pyoco_server.domain.events.retry_jobs import (
    Failure,
    QueueCounts,
    RetryJob,
    RetryPolicy,
    by_hand,
    counts,
    discarded,
    is_forgotten,
    job_id,
    new_job,
    succeeded,
    to_evict,
)
from pyoco_server.domain.events.templates import Template
from pyoco_server.errors import NatsUnavailable, RetryQueueFull, WorkflowConflict, WorkflowNotFound
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.change_value import change_value
from pyoco_server.usecases.events.keys import of_tenant, place
from pyoco_server.usecases.events.ports import CountedStore
from pyoco_server.usecases.ports import Clock, WrongRevision

log = get_logger(__name__)

MAX_ID = 64
_BY_HAND = Failure(
    "discarded by hand", Reason(ReasonClass.VALIDATION, "discarded_by_hand", RetryAdvice.DO_NOT_RETRY)
)


class RetryQueue:
    def __init__(
        self,
        jobs: CountedStore[RetryJob],
        policy: RetryPolicy,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.policy = policy
        self._jobs = jobs
        self._clock = clock
        self._jitter = jitter

    async def add(
        self, template: Template, request: EventRequest, failure: Failure, api_key_id: str | None
    ) -> RetryJob:
        """The job of an event; one that waits already keeps its attempts and its time.

        Raises RetryQueueFull.
        """
        assert request.key is not None  # noqa: S101 - events without a key are not queued
        where = receipt_key(template.tenant_id, template.id, request.key)
        key = place(template.tenant_id, job_id(where))
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
        )

        def decide(current: RetryJob | None) -> RetryJob:
            return current if current is not None and current.status.is_active else fresh

        job = await change_value(self._jobs, key, decide)
        return job or fresh

    async def _make_room(self, tenant_id: str | None, key: str) -> None:
        """Among the tenant's own jobs: no tenant may fill the queue of another."""
        prefix = of_tenant(tenant_id)
        is_room = await self._jobs.count(prefix) < self.policy.max_jobs
        if is_room or await self._jobs.get(key) is not None:
            return
        evicted = to_evict(await self._jobs.list_values(prefix), self.policy.max_jobs)
        if evicted is None:
            raise RetryQueueFull("the queue of retry jobs is full")
        for job in evicted:
            await self._forget(job)

    async def _forget(self, job: RetryJob) -> None:
        key = place(job.tenant_id, job.id)
        stored = await self._jobs.get(key)
        if stored is None or stored.value.status.is_active:
            return
        try:
            await self._jobs.remove(key, stored.revision)
        except WrongRevision:
            log.debug("a retry job changed while it was to be forgotten", action="retry.kept", job_id=job.id)

    async def succeeded(self, tenant_id: str | None, where: str, run_id: str) -> None:
        """The event of a queued job was started by somebody else."""
        with best_effort(log, "retry.mark", NatsUnavailable, job_id=job_id(where)):
            await change_value(
                self._jobs,
                place(tenant_id, job_id(where)),
                lambda job: succeeded(job, run_id, self._clock()) if job and job.status.is_active else None,
            )

    async def jobs(self, tenant_id: str | None) -> list[RetryJob]:
        """The latest change first."""
        return sorted(
            await self._known(of_tenant(tenant_id)), key=lambda job: (job.updated_at, job.id), reverse=True
        )

    async def counts(self, tenant_id: str | None) -> QueueCounts:
        return counts(await self._known(of_tenant(tenant_id)), self._clock())

    async def shown(self, tenant_id: str | None, limit: int) -> dict[str, Any]:
        jobs = await self.jobs(tenant_id)
        return {**asdict(counts(jobs, self._clock())), "jobs": jobs[:limit], "policy": self.policy}

    async def _known(self, prefix: str) -> list[RetryJob]:
        now, ttl_days = self._clock(), self.policy.terminal_ttl_days
        return [job for job in await self._jobs.list_values(prefix) if not is_forgotten(job, now, ttl_days)]

    async def retry(self, tenant_id: str | None, wanted: str) -> RetryJob:
        """By hand: due at once, with all its attempts. Raises WorkflowNotFound or WorkflowConflict."""

        def decide(job: RetryJob) -> RetryJob:
            if job.status == "succeeded":
                raise WorkflowConflict("the job has succeeded; replay its event instead")
            return by_hand(job, self._clock())

        return await self._change(tenant_id, wanted, decide)

    async def discard(self, tenant_id: str | None, wanted: str) -> RetryJob:
        def decide(job: RetryJob) -> RetryJob:
            if job.status == "succeeded":
                raise WorkflowConflict("the job has succeeded already")
            return discarded(job, _BY_HAND, self._clock())

        return await self._change(tenant_id, wanted, decide)

    async def _change(
        self, tenant_id: str | None, wanted: str, decide: Callable[[RetryJob], RetryJob]
    ) -> RetryJob:
        def decide_if_there(job: RetryJob | None) -> RetryJob | None:
            if job is None:
                raise WorkflowNotFound("Retry job not found.")
            return decide(job)

        if not (wanted.isascii() and wanted.isalnum() and len(wanted) <= MAX_ID):
            raise WorkflowNotFound("Retry job not found.")
        changed: RetryJob | None = await change_value(self._jobs, place(tenant_id, wanted), decide_if_there)
        assert changed is not None  # noqa: S101 - it was there, or this was never reached
        return changed
