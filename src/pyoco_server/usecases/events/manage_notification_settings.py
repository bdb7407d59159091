"""Where escalations are told, and whether telling works."""

from collections.abc import Callable
from typing import Any

from pyoco_server.domain.events import audit as records
from pyoco_server.domain.events.audit import AuditActor, AuditDetails, AuditRecord, StoredEvent, clock_ym, iso
from pyoco_server.domain.events.notifications import (
    TEST_TEXT,
    Delivered,
    NotificationSettings,
    check_webhook_url,
    masked,
)
from pyoco_server.errors import WebhookNotConfigured
from pyoco_server.usecases.change_value import change_value
from pyoco_server.usecases.events.audit import Audit
from pyoco_server.usecases.events.keys import place
from pyoco_server.usecases.events.ports import ListedStore, Notifier
from pyoco_server.usecases.ports import Clock

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
