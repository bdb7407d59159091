"""Notify of escalations: the settings, a test message, and one message per escalation.

Whether a message was sent is stored in its job, so the next gateway sends what a dead one left.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.events.audit import (
    NOTIFICATION,
    AuditActor,
    EventStatus,
    StoredEvent,
    iso,
    new_record,
)
from pyoco_server.domain.events.retry import (
    TEST_TEXT,
    Delivered,
    JobStatus,
    NotificationSettings,
    RetryJob,
    check_webhook_url,
    escalation_text,
    masked,
)
from pyoco_server.domain.fleet import LeaseRecord
from pyoco_server.errors import NatsUnavailable, NotificationFailed, WebhookNotConfigured
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.concurrency import wait_at_most
from pyoco_server.usecases.consistency import change_value
from pyoco_server.usecases.coordination import Lease
from pyoco_server.usecases.events.audit import Audit
from pyoco_server.usecases.events.definitions import LEASE_SEC, NOTIFY_LEASE, tenant_key
from pyoco_server.usecases.ports.gateway import CountedStore, ListedStore, Notifier
from pyoco_server.usecases.ports.stores import Clock, Store

log = get_logger(__name__)

KEY = "webhook"
TEST_ACTION = "notification_settings_test"
ACTION = "retry_job_escalated"
MAX_TRIES = 5
TARGET = ChangeTarget("notification_settings", KEY)


class ManageNotificationSettings:
    def __init__(
        self,
        stored: ListedStore[NotificationSettings],
        notifier: Notifier,
        audit: Audit,
        clock: Clock,
        new_id: Callable[[], str],
        webhook_url_of_env: str,
        *,
        trail: AuditTrail,
    ) -> None:
        self._trail = trail
        self._stored = stored
        self._notifier = notifier
        self._audit = audit
        self._clock = clock
        self._new_id = new_id
        self._of_env = webhook_url_of_env

    async def shown(self, tenant_id: str | None) -> dict[str, Any]:
        """Without the URL, which is a secret."""
        saved = await self._saved(tenant_id)
        url = saved.webhook_url if saved else self._of_env
        return {
            "status": "ok",
            "configured": bool(url),
            "webhook_url_masked": masked(url),
            "source": "file" if saved else "env" if self._of_env else "none",
            "updated_at": saved.updated_at if saved else None,
        }

    async def save(self, webhook_url: str, caller: Caller) -> dict[str, Any]:
        """An empty URL removes the saved one. Raises InvalidRequest."""
        before = await self.shown(caller.tenant_id)
        await self._save(tenant_key(caller.tenant_id, KEY), webhook_url)
        after = await self.shown(caller.tenant_id)
        await self._trail.record(caller, "notification_settings.put", TARGET, _state(before), _state(after))
        return after

    async def _save(self, key: str, webhook_url: str) -> None:
        if webhook_url:
            saved = NotificationSettings(
                webhook_url=check_webhook_url(webhook_url), updated_at=iso(self._clock())
            )
            await change_value(self._stored, key, lambda _: saved)
        else:
            await self._stored.remove(key, None)

    async def url(self, tenant_id: str | None) -> str:
        """Empty: notifications are off."""
        saved = await self._saved(tenant_id)
        return saved.webhook_url if saved else self._of_env

    async def test(self, actor: AuditActor, caller: Caller) -> Delivered:
        """Raises WebhookNotConfigured."""
        url = await self.url(actor.tenant_id)
        if not url:
            error = WebhookNotConfigured()
            await self.record(TEST_ACTION, EventStatus.SKIPPED, actor, error.detail)
            raise error
        delivered = await self._notifier.send(url, TEST_TEXT)
        await self.record(TEST_ACTION, _status(delivered), actor, delivered.message)
        sent = {"sent": delivered.is_sent, "http_status": delivered.http_status}
        await self._trail.record(caller, "notification_settings.test", TARGET, None, sent)
        return delivered

    async def record(self, action: str, status: EventStatus, actor: AuditActor, text: str) -> None:
        record = new_record(
            NOTIFICATION,
            status,
            event_id=self._new_id(),
            now=self._clock(),
            actor=actor,
            action=action,
            reason_text=text,
        )
        await self._audit.record(StoredEvent(record=record))

    async def _saved(self, tenant_id: str | None) -> NotificationSettings | None:
        stored = await self._stored.get(tenant_key(tenant_id, KEY))
        return None if stored is None else stored.value


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
        """Send pending notifications now."""
        self._wake.set()

    async def run(self) -> None:
        """Off the request path: a slow receiver delays nothing else."""
        while True:
            with best_effort(log, "notify.escalations", NatsUnavailable):
                await self.send_pending()
            await wait_at_most(self._wake, self._poll_seconds)
            self._wake.clear()

    async def send_pending(self) -> None:
        async with self._turn:
            await self._send_all()

    async def _send_all(self) -> None:
        pending = [job for job in await self._jobs.list_values() if _is_pending(job)]
        if not pending:
            return
        try:
            for job in pending:
                if not await self._lease.take():
                    return
                await self._send(job)
        finally:
            await self._lease.give_back()

    async def _send(self, job: RetryJob) -> None:
        url = await self._settings.url(job.tenant_id)
        actor = AuditActor(tenant_id=job.tenant_id)
        if not url:
            await self._mark(job, is_told=True)
            await self._settings.record(ACTION, EventStatus.SKIPPED, actor, WebhookNotConfigured().detail)
            return
        delivered = await self._notifier.send(url, escalation_text(job))
        await self._mark(job, is_told=delivered.is_sent)
        await self._settings.record(ACTION, _status(delivered), actor, delivered.message)
        if not delivered.is_sent:
            log.warning(
                "escalation notification failed",
                action="notify.failed",
                job_id=job.id,
                http_status=delivered.http_status,
                **NotificationFailed().ids,
            )

    async def _mark(self, job: RetryJob, *, is_told: bool) -> None:
        def decide(found: RetryJob | None) -> RetryJob | None:
            if found is None or not _is_pending(found):
                return None
            tries = found.told_tries + 1
            return replace(found, told_tries=tries, is_told=is_told or tries >= MAX_TRIES)

        await change_value(self._jobs, tenant_key(job.tenant_id, job.id), decide)


def _state(shown: dict[str, Any]) -> dict[str, Any]:
    return {name: shown[name] for name in ("webhook_url_masked", "source")}


def _status(delivered: Delivered) -> EventStatus:
    return EventStatus.SUCCESS if delivered.is_sent else EventStatus.FAILED


def _is_pending(job: RetryJob) -> bool:
    return job.status is JobStatus.ESCALATED and not job.is_told
