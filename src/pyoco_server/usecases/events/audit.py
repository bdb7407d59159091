"""Write every record: to the stream, and to the file. What cannot be written now is written later."""

import asyncio
from collections import deque
from collections.abc import Callable

from pyoco_server.domain import codec
from pyoco_server.domain.events.audit import (
    AuditRecord,
    RefusalWindow,
    StoredEvent,
    is_stranger,
    record_of_rest,
)
from pyoco_server.errors import AuditNotWritten, NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports.events import AuditLog, AuditStream
from pyoco_server.usecases.ports.stores import Clock, Revision

log = get_logger(__name__)

MAX_WAITING = 10_000
"""Records that wait for NATS; the file has them already."""
MAX_WAITING_BYTES = 16_000_000
"""Each comes with its event, which may have 1 MiB."""
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
        """As JSON, which takes far less than what it is decoded to."""
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self.latest = Revision(0)
        """The last record that this gateway wrote."""

    def attach(self, stream: AuditStream) -> None:
        """NATS is there."""
        self._stream = stream

    async def record(self, event: StoredEvent) -> bool:
        """Costs its caller nothing when it fails. False: there are too many like it, it is only counted."""
        await self._write_rest()
        record = event.record
        if is_stranger(record) and not self._refusals.admits(
            record.actor.ip, record.actor.tenant_id, self._clock()
        ):
            return False
        await self._write(event)
        return True

    async def run_counts(self) -> None:
        """Write how many were only counted, also when no other event comes."""
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
            log.warning("many events were refused", action="audit.counted", count=rest.count)
            await self._write(StoredEvent(record=record))

    async def _write(self, event: StoredEvent) -> None:
        await self._write_line(event.record)
        try:
            await self._append(event)
        except NatsUnavailable as error:
            self._keep(event, error)

    async def _write_line(self, record: AuditRecord) -> None:
        """A file that cannot be written is reported once, and tried again with every record."""
        try:
            await self._file.write(record)
        except OSError as error:
            if not self._is_file_failing:
                log.warning(
                    "the audit file cannot be written; records go to the stream alone "
                    "(an empty AX_AUDIT_LOG_PATH switches the file off)",
                    action="audit.file",
                    exc_info=error,
                    **AuditNotWritten().ids,
                )
            self._is_file_failing = True
            return
        if self._is_file_failing:
            log.info("the audit file is written again", action="audit.file_again")
        self._is_file_failing = False

    async def run(self) -> None:
        """Write what waits, as soon as that is possible."""
        while True:
            await self._wake.wait()
            try:
                while self._waiting:
                    first = self._waiting[0]
                    await self._append(codec.decode_stored_event(first))
                    if self._waiting and self._waiting[0] is first:  # else it had to make room meanwhile
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
                "too many audit records wait for NATS; the oldest is in the file only",
                action="audit.lost",
                event_id=lost.record.event_id,
                **AuditNotWritten().ids,
            )
        log.warning(
            "an audit record waits for NATS",
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
