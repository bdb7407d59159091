"""Tell somebody of every escalation, once, also of those that a gateway left untold when it died."""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from pyoco_server.domain.events import audit as records
from pyoco_server.domain.events.audit import AuditActor, AuditDetails, AuditRecord, StoredEvent, clock_ym, iso
from pyoco_server.domain.events.notifications import (
    TEST_TEXT,
    Delivered,
    NotificationSettings,
    check_webhook_url,
    escalation_text,
    masked,
)
from pyoco_server.domain.events.retry import JobStatus, RetryJob
from pyoco_server.domain.fleet import LeaseRecord
from pyoco_server.errors import NatsUnavailable, NotificationFailed, WebhookNotConfigured
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.concurrency import wait_at_most
from pyoco_server.usecases.consistency import change_value
from pyoco_server.usecases.events.audit import Audit
from pyoco_server.usecases.events.definitions import LEASE_SEC, NOTIFY_LEASE, place
from pyoco_server.usecases.lease import Lease
from pyoco_server.usecases.ports.events import CountedStore, ListedStore, Notifier
from pyoco_server.usecases.ports.stores import Clock, Store

# Where escalations are told, and whether telling works.

KEY = "webhook"
TEST_ACTION = "notification_settings_test"


class ManageNotificationSettings:
    def __init__(
        self,
        stored: ListedStore[NotificationSettings],
        notifier: Notifier,
        audit: Audit,
        clock: Clock,
        new_id: Callable[[], str],
        webhook_url_of_env: str,
    ) -> None:
        self._stored = stored
        self._notifier = notifier
        self._audit = audit
        self._clock = clock
        self._new_id = new_id
        self._of_env = webhook_url_of_env

    async def shown(self, tenant_id: str | None) -> dict[str, Any]:
        """Never the address itself."""
        saved = await self._saved(tenant_id)
        url = saved.webhook_url if saved else self._of_env
        return {
            "status": "ok",
            "configured": bool(url),
            "webhook_url_masked": masked(url),
            "source": "file" if saved else "env" if self._of_env else "none",
            "updated_at": saved.updated_at if saved else None,
        }

    async def save(self, tenant_id: str | None, webhook_url: str) -> dict[str, Any]:
        """An empty address takes the saved one away. Raises InvalidRequest."""
        key = place(tenant_id, KEY)
        if webhook_url:
            saved = NotificationSettings(
                webhook_url=check_webhook_url(webhook_url), updated_at=iso(self._clock())
            )
            await change_value(self._stored, key, lambda _: saved)
        else:
            await self._stored.remove(key, None)
        return await self.shown(tenant_id)

    async def url(self, tenant_id: str | None) -> str:
        """Empty: nobody wants to be told."""
        saved = await self._saved(tenant_id)
        return saved.webhook_url if saved else self._of_env

    async def test(self, actor: AuditActor) -> Delivered:
        """Raises WebhookNotConfigured."""
        url = await self.url(actor.tenant_id)
        if not url:
            error = WebhookNotConfigured()
            await self.record(TEST_ACTION, "skipped", actor, error.detail)
            raise error
        delivered = await self._notifier.send(url, TEST_TEXT)
        status = "success" if delivered.is_sent else "failed"
        await self.record(TEST_ACTION, status, actor, delivered.message)
        return delivered

    async def record(self, action: str, status: str, actor: AuditActor, reason: str) -> None:
        now = self._clock()
        record = AuditRecord(
            at=iso(now),
            event_id=self._new_id(),
            ym=clock_ym(now),
            event_type=records.NOTIFICATION,
            action=action,
            status=status,
            actor=actor,
            details=AuditDetails(reason=reason),
        )
        await self._audit.record(StoredEvent(record=record))

    async def _saved(self, tenant_id: str | None) -> NotificationSettings | None:
        stored = await self._stored.get(place(tenant_id, KEY))
        return None if stored is None else stored.value


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
