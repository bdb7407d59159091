"""Write every record: to the stream, and to the file. What cannot be written now is written later."""

import asyncio
from collections import deque

from pyoco_server.domain.events.audit import StoredEvent
from pyoco_server.errors import AuditNotWritten, NatsUnavailable
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.events.ports import AuditLog, AuditStream
from pyoco_server.usecases.ports import Revision

log = get_logger(__name__)

MAX_WAITING = 10_000
"""Records that wait for NATS; the file has them already."""
RETRY_SEC = 1.0


class Audit:
    def __init__(self, file: AuditLog) -> None:
        self._file = file
        self._stream: AuditStream | None = None
        self._waiting: deque[StoredEvent] = deque()
        self._wake = asyncio.Event()
        self.latest = Revision(0)
        """The last record that this gateway wrote."""

    def attach(self, stream: AuditStream) -> None:
        """NATS is there."""
        self._stream = stream

    async def record(self, event: StoredEvent) -> None:
        """Costs its caller nothing when it fails."""
        with best_effort(
            log, "audit.file", AuditNotWritten, expected=OSError, event_id=event.record.event_id
        ):
            await self._file.write(event.record)
        try:
            await self._append(event)
        except NatsUnavailable as error:
            self._keep(event, error)

    async def run(self) -> None:
        """Write what waits, as soon as that is possible."""
        while True:
            await self._wake.wait()
            try:
                while self._waiting:
                    await self._append(self._waiting[0])
                    self._waiting.popleft()
                self._wake.clear()
            except NatsUnavailable:
                await asyncio.sleep(RETRY_SEC)

    async def _append(self, event: StoredEvent) -> None:
        if self._stream is None:
            raise NatsUnavailable("nats unavailable: not connected yet")
        self.latest = max(self.latest, await self._stream.append(event))

    def _keep(self, event: StoredEvent, error: NatsUnavailable) -> None:
        if len(self._waiting) >= MAX_WAITING:
            lost = self._waiting.popleft()
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
        self._waiting.append(event)
        self._wake.set()
