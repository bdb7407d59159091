"""Tell somebody of every escalation, once, also of those that a gateway left untold when it died."""

import asyncio

from msgspec.structs import replace

from pyoco_server.domain.events.audit import AuditActor
from pyoco_server.domain.events.notifications import escalation_text
from pyoco_server.domain.events.retry_jobs import JobStatus, RetryJob
from pyoco_server.domain.leases import LeaseRecord
from pyoco_server.errors import NatsUnavailable, NotificationFailed
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.change_value import change_value
from pyoco_server.usecases.events.keys import LEASE_SEC, NOTIFY_LEASE, place
from pyoco_server.usecases.events.manage_notification_settings import ManageNotificationSettings
from pyoco_server.usecases.events.ports import CountedStore, Notifier
from pyoco_server.usecases.lease import Lease
from pyoco_server.usecases.ports import Clock, Store
from pyoco_server.usecases.waiting import wait_at_most

log = get_logger(__name__)

ACTION = "retry_job_escalated"
MAX_TRIES = 5


class NotifyEscalations:
    def __init__(
        self,
        *,
        jobs: CountedStore[RetryJob],
        leases: Store[LeaseRecord],
        settings: ManageNotificationSettings,
        notifier: Notifier,
        clock: Clock,
        holder: str,
        poll_seconds: float,
    ) -> None:
        self._jobs = jobs
        self._settings = settings
        self._notifier = notifier
        self._lease = Lease(leases, NOTIFY_LEASE, holder, clock, lasts_sec=LEASE_SEC)
        self._poll_seconds = poll_seconds
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()

    def wake(self) -> None:
        """There is something to tell."""
        self._wake.set()

    async def run(self) -> None:
        """Off every request's path: a slow receiver delays nothing else."""
        while True:
            with best_effort(log, "notify.escalations", NatsUnavailable):
                await self.tell()
            await wait_at_most(self._wake, self._poll_seconds)
            self._wake.clear()

    async def tell(self) -> None:
        async with self._turn:
            await self._tell_all()

    async def _tell_all(self) -> None:
        untold = [job for job in await self._jobs.list_values() if _is_untold(job)]
        if not untold:
            return
        try:
            for job in untold:
                if not await self._lease.take():
                    return
                await self._tell(job)
        finally:
            await self._lease.give_back()

    async def _tell(self, job: RetryJob) -> None:
        url = await self._settings.url(job.tenant_id)
        actor = AuditActor(tenant_id=job.tenant_id)
        if not url:
            await self._mark(job, is_told=True)
            await self._settings.record(ACTION, "skipped", actor, "Google Chat webhook is not configured.")
            return
        delivered = await self._notifier.send(url, escalation_text(job))
        await self._mark(job, is_told=delivered.is_sent)
        status = "success" if delivered.is_sent else "failed"
        await self._settings.record(ACTION, status, actor, delivered.message)
        if not delivered.is_sent:
            log.warning(
                "an escalation could not be told",
                action="notify.failed",
                job_id=job.id,
                http_status=delivered.http_status,
                **NotificationFailed().ids,
            )

    async def _mark(self, job: RetryJob, *, is_told: bool) -> None:
        def decide(found: RetryJob | None) -> RetryJob | None:
            if found is None or not _is_untold(found):
                return None
            tries = found.told_tries + 1
            return replace(found, told_tries=tries, is_told=is_told or tries >= MAX_TRIES)

        await change_value(self._jobs, place(job.tenant_id, job.id), decide)


def _is_untold(job: RetryJob) -> bool:
    return job.status is JobStatus.ESCALATED and not job.is_told
