"""Monthly event summaries, updated with every audit record."""

import re
from typing import Any

from pyoco_server.domain.events.audit import WORKFLOW_EVENT, StoredEvent, Summary
from pyoco_server.errors import InvalidRequest, NatsUnavailable
from pyoco_server.usecases.consistency import FeedProgress
from pyoco_server.usecases.events.audit import Audit
from pyoco_server.usecases.events.retry import RetryQueue
from pyoco_server.usecases.ports.stores import Feed

_YM = re.compile(r"\d{4}-(0[1-9]|1[0-2])", re.ASCII)
PATIENCE_SEC = 0.25


class Summarise:
    def __init__(
        self, feed: Feed[StoredEvent], audit: Audit, queue: RetryQueue, retention: dict[str, Any]
    ) -> None:
        self._feed = feed
        self._audit = audit
        self._queue = queue
        self._retention = retention
        self._months: dict[tuple[str | None, str], Summary] = {}
        self._reached = FeedProgress()
        self.is_caught_up = False

    async def run(self) -> None:
        async for batch in self._feed.follow(None):
            if batch.is_reset:
                self._months.clear()
                self._reached.reset()
                self.is_caught_up = False
            for change in batch.changes:
                if change.value is not None:
                    self._take(change.value)
            self._reached.to(batch.position.last_revision)
            self.is_caught_up = self.is_caught_up or batch.is_caught_up

    def _take(self, event: StoredEvent) -> None:
        record = event.record
        if record.event_type == WORKFLOW_EVENT:
            month = (record.actor.tenant_id, record.ym)
            self._months.setdefault(month, Summary()).add(record)

    async def __call__(self, tenant_id: str | None, ym: str, recent_limit: int) -> dict[str, Any]:
        """Raises InvalidRequest; NatsUnavailable while the records are still being read."""
        if _YM.fullmatch(ym) is None:
            raise InvalidRequest("ym: must be YYYY-MM")
        if not self.is_caught_up:
            raise NatsUnavailable("the gateway is still reading the audit records; try again in a moment")
        await self._reached.wait(self._audit.latest, PATIENCE_SEC)
        summary = self._months.get((tenant_id, ym), _EMPTY)
        return {
            **summary.shown(ym, recent_limit),
            "retry_queue": await self._queue.counts(tenant_id),
            "receipt_retention": self._retention,
        }


_EMPTY = Summary()
