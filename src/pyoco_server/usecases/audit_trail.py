"""The audit trail: changes are recorded before they are answered, and read newest first."""

import asyncio
from collections.abc import Callable
from typing import Any

from pyoco_server.domain.audit_trail import (
    AuditEntry,
    AuditFilter,
    AuditPage,
    ChangeAuthor,
    ChangeTarget,
    Origin,
    bounded,
)
from pyoco_server.domain.runs.listing import Place, cursor_at, digest_of, place_of
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.ports.gateway import ChangeLog
from pyoco_server.usecases.ports.stores import Clock

log = get_logger(__name__)

RECORD_ATTEMPTS = 5
RETRY_SEC = 1.0
WINDOW = 500
"""Entries read at once."""
MAX_WINDOWS = 20
"""Per page: a rare match may leave a page short, and its cursor goes on."""


class AuditTrail:
    def __init__(self, entries: ChangeLog, clock: Clock, new_id: Callable[[], str]) -> None:
        self._entries = entries
        self._clock = clock
        self._new_id = new_id

    async def record(
        self,
        caller: Caller,
        action: str,
        target: ChangeTarget,
        before: Any,
        after: Any,
        *,
        claimed: str | None = None,
        entry_id: str | None = None,
    ) -> None:
        """After the change. Raises NatsUnavailable if it could not be recorded; then the log has it.

        `entry_id`: that of a change that may be recorded again soon.
        """
        entry = AuditEntry(
            id=entry_id or self._new_id(),
            at=self._clock(),
            action=action,
            target=target,
            actor=ChangeAuthor(tenant_id=caller.tenant_id, api_key_id=caller.api_key_id, claimed=claimed),
            source=caller.origin or Origin(),
            before=bounded(before),
            after=bounded(after),
        )
        for attempt in range(RECORD_ATTEMPTS):
            try:
                await self._entries.append(entry)
            except NatsUnavailable:
                if attempt == RECORD_ATTEMPTS - 1:
                    log.exception("a change was made but not recorded", action="audit.lost", entry=entry)
                    raise
                await asyncio.sleep(RETRY_SEC)
            else:
                return

    async def page(self, wanted: AuditFilter, cursor: str | None, limit: int) -> AuditPage:
        """Newest first. Later pages show what was there at the first."""
        of = digest_of("audit", wanted.tenant_id, wanted.action, wanted.target, wanted.key_id)
        before = None if cursor is None else int(place_of(cursor, of).updated_at)
        found: list[AuditEntry] = []
        for _ in range(MAX_WINDOWS):
            window = await self._entries.before(before, WINDOW)
            for number, entry in window.items:
                if wanted.matches(entry):
                    found.append(entry)
                    if len(found) == limit:
                        is_last = number <= window.first
                        return AuditPage(found, None if is_last else _cursor(number, of))
            before = window.start
            if before <= window.first or _is_over(wanted, window.items):
                return AuditPage(found, None)
        return AuditPage(found, _cursor(before or 0, of))


def _cursor(before: int, of: str) -> str:
    return cursor_at(Place(float(before), ""), of)


def _is_over(wanted: AuditFilter, window: list[tuple[int, AuditEntry]]) -> bool:
    """Whether all earlier entries are too old."""
    return wanted.since is not None and bool(window) and window[-1][1].at < wanted.since
