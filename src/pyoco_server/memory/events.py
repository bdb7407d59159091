"""Stores of workflow events in memory."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Self

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.events.audit import StoredEvent
from pyoco_server.domain.events.imports import ImportMark
from pyoco_server.domain.events.receipts import KeptResume, Receipt, Slot
from pyoco_server.domain.events.retry import NotificationSettings, RetryJob
from pyoco_server.domain.events.sources import Source
from pyoco_server.domain.events.templates import Action, Template
from pyoco_server.domain.fleet import LeaseRecord
from pyoco_server.memory.stores import MemoryListedStore
from pyoco_server.usecases.ports.stores import Change, FeedBatch, FeedPosition, Revision


class MemoryReceipts(MemoryListedStore[Receipt]):
    """Limit per tenant."""

    def __init__(self, max_receipts: int) -> None:
        super().__init__(codec.decode_receipt)
        self._max_receipts = max_receipts

    def _put(self, key: str, value: Receipt) -> Revision:
        revision = super()._put(key, value)
        if len(self._values) > self._max_receipts:
            self._make_room(value.tenant_id)
        return revision

    def _make_room(self, tenant_id: str | None) -> None:
        by_age = sorted(self._values.items(), key=lambda item: item[1][1])
        keys = [key for key, (data, _) in by_age if self._decode(data).tenant_id == tenant_id]
        for key in keys[: -self._max_receipts]:
            del self._values[key]


class MemoryAudit:
    """The audit stream and its feed."""

    def __init__(self) -> None:
        self.events: list[StoredEvent] = []
        self._ids: set[str] = set()
        self._written = asyncio.Event()

    async def append(self, event: StoredEvent) -> Revision:
        if event.record.event_id not in self._ids:
            self._ids.add(event.record.event_id)
            self.events.append(codec.decode_stored_event(codec.encode(event)))
            self._written.set()
        return Revision(len(self.events))

    async def find(self, event_id: str) -> StoredEvent | None:
        return next((event for event in self.events if event.record.event_id == event_id), None)

    stale_sec = 0.0
    missed_sec = 0.0

    async def follow(self, position: FeedPosition | None) -> AsyncGenerator[FeedBatch[StoredEvent], None]:
        seen: int = 0 if position is None else position.last_revision
        yield FeedBatch([], FeedPosition("memory", Revision(seen)), position is None, not self.events)
        while True:
            news = self.events[seen:]
            if not news:  # nothing is awaited in between, so that no other follower clears what is news here
                self._written.clear()
                await self._written.wait()
                continue
            changes = [
                Change(event.record.event_id, Revision(seen + number), StoredEvent(record=event.record), None)
                for number, event in enumerate(news, 1)
            ]
            seen += len(news)
            yield FeedBatch(changes, FeedPosition("memory", Revision(seen)), False, True)


@dataclass(frozen=True)
class MemoryEvents:
    receipts: MemoryReceipts
    templates: MemoryListedStore[Template] = field(
        default_factory=lambda: MemoryListedStore(codec.decode_template)
    )
    actions: MemoryListedStore[Action] = field(
        default_factory=lambda: MemoryListedStore(codec.decode_action, codec.decode_listed_action)
    )
    sources: MemoryListedStore[Source] = field(default_factory=lambda: MemoryListedStore(codec.decode_source))
    notification_settings: MemoryListedStore[NotificationSettings] = field(
        default_factory=lambda: MemoryListedStore(codec.decode_notification_settings)
    )
    slots: MemoryListedStore[Slot] = field(default_factory=lambda: MemoryListedStore(codec.decode_slot))
    leases: MemoryListedStore[LeaseRecord] = field(
        default_factory=lambda: MemoryListedStore(codec.decode_lease)
    )
    imports: MemoryListedStore[ImportMark] = field(
        default_factory=lambda: MemoryListedStore(codec.decode_import_mark)
    )
    retry_jobs: MemoryListedStore[RetryJob] = field(
        default_factory=lambda: MemoryListedStore(codec.decode_retry_job, codec.decode_listed_job)
    )
    resumes: MemoryListedStore[KeptResume] = field(
        default_factory=lambda: MemoryListedStore(codec.decode_kept_resume, codec.decode_listed_resume)
    )
    audit: MemoryAudit = field(default_factory=MemoryAudit)

    @classmethod
    def new(cls, config: NatsBackendConfig) -> Self:
        return cls(receipts=MemoryReceipts(config.workflow_event_max_receipts))

    @property
    def audit_feed(self) -> MemoryAudit:
        return self.audit
