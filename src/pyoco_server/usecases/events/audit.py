"""Write audit records to the stream and the file, buffered while NATS is unavailable; monthly sums."""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from pyoco_server.domain import codec
from pyoco_server.domain.events.audit import (
    WORKFLOW_EVENT,
    AuditRecord,
    RefusalWindow,
    StoredEvent,
    Summary,
    is_unauthenticated,
    record_of_rest,
)
from pyoco_server.domain.events.retry import QueueCounts
from pyoco_server.errors import AuditNotWritten, InvalidRequest, NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.consistency import FeedProgress
from pyoco_server.usecases.ports.gateway import AuditLog, AuditStream
from pyoco_server.usecases.ports.stores import Clock, Feed, Revision

log = get_logger(__name__)

MAX_WAITING = 10_000
"""Size of the buffer for the stream; the file has these records already."""
MAX_WAITING_BYTES = 16_000_000
"""A record includes its event, of up to 1 MiB."""
RETRY_SEC = 1.0
COUNT_SEC = 5.0


class Audit:
    def __init__(self, file: AuditLog, clock: Clock, new_id: Callable[[], str]) -> None:
        self._file = file
        self._clock = clock
        self._new_id = new_id
        self._is_file_failing = False
        self._refusals = RefusalWindow()
        self._stream: AuditStream | None = None
        self._waiting: deque[bytes] = deque()
        """As JSON, which takes far less memory than decoded records."""
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self.latest = Revision(0)
        """Last record written by this gateway."""

    def attach(self, stream: AuditStream) -> None:
        """Call when NATS is connected."""
        self._stream = stream

    async def record(self, event: StoredEvent) -> bool:
        """Never fails. False: one of too many unauthenticated requests, counted instead of recorded."""
        await self._write_rest()
        record = event.record
        if is_unauthenticated(record) and not self._refusals.admits(
            record.actor.ip, record.actor.tenant_id, self._clock()
        ):
            return False
        await self._write(event)
        return True

    async def run_counts(self) -> None:
        """Write the count of a closed window even if no further event arrives."""
        try:
            while True:
                await asyncio.sleep(COUNT_SEC)
                await self._write_rest()
        finally:
            await self._write_rest(is_stopping=True)

    async def _write_rest(self, *, is_stopping: bool = False) -> None:
        now = self._clock()
        rest = self._refusals.rest(now, is_stopping=is_stopping)
        if rest is not None:
            record = record_of_rest(rest, self._new_id(), now)
            log.warning(
                "many unauthenticated events; counted in one record", action="audit.counted", count=rest.count
            )
            await self._write(StoredEvent(record=record))

    async def _write(self, event: StoredEvent) -> None:
        await self._write_line(event.record)
        try:
            await self._append(event)
        except NatsUnavailable as error:
            self._keep(event, error)

    async def _write_line(self, record: AuditRecord) -> None:
        """A failing file is logged once and tried again with every record."""
        try:
            await self._file.write(record)
        except OSError as error:
            if not self._is_file_failing:
                log.warning(
                    "audit file not writable; records go to the stream only "
                    "(an empty AX_AUDIT_LOG_PATH disables the file)",
                    action="audit.file",
                    exc_info=error,
                    **AuditNotWritten().ids,
                )
            self._is_file_failing = True
            return
        if self._is_file_failing:
            log.info("audit file writable again", action="audit.file_again")
        self._is_file_failing = False

    async def run(self) -> None:
        """Write buffered records as soon as NATS is available."""
        while True:
            await self._wake.wait()
            try:
                while self._waiting:
                    first = self._waiting[0]
                    await self._append(codec.decode_stored_event(first))
                    if self._waiting and self._waiting[0] is first:  # else it was evicted in the meantime
                        self._drop_oldest()
                self._wake.clear()
            except NatsUnavailable:
                await asyncio.sleep(RETRY_SEC)

    async def _append(self, event: StoredEvent) -> None:
        if self._stream is None:
            raise NatsUnavailable("nats unavailable: not connected yet")
        self.latest = max(self.latest, await self._stream.append(event))

    def _keep(self, event: StoredEvent, error: NatsUnavailable) -> None:
        record = codec.encode(event)
        while self._waiting and (
            len(self._waiting) >= MAX_WAITING or self._waiting_bytes + len(record) > MAX_WAITING_BYTES
        ):
            lost = codec.decode_stored_event(self._drop_oldest())
            log.error(
                "audit buffer full; the oldest record is in the file only",
                action="audit.lost",
                event_id=lost.record.event_id,
                **AuditNotWritten().ids,
            )
        log.warning(
            "audit record buffered until NATS is available",
            action="audit.waiting",
            waiting=len(self._waiting) + 1,
            exc_info=error,
        )
        self._waiting.append(record)
        self._waiting_bytes += len(record)
        self._wake.set()

    def _drop_oldest(self) -> bytes:
        oldest = self._waiting.popleft()
        self._waiting_bytes -= len(oldest)
        return oldest


# Monthly event summaries, updated with every audit record.

_YM = re.compile(r"\d{4}-(0[1-9]|1[0-2])", re.ASCII)
PATIENCE_SEC = 0.25


class Summarise:
    def __init__(
        self,
        feed: Feed[StoredEvent],
        audit: Audit,
        queued: Callable[[str | None], Awaitable[QueueCounts]],
        retention: dict[str, Any],
    ) -> None:
        """`queued`: how many retry jobs of a tenant there are, by status."""
        self._feed = feed
        self._audit = audit
        self._queued = queued
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
            "retry_queue": await self._queued(tenant_id),
            "receipt_retention": self._retention,
        }


_EMPTY = Summary()
