"""The audit trail: who changed what, when and from where, with the state before and after."""

from typing import Any

import msgspec
from msgspec import Struct

MAX_STATE_BYTES = 64 * 1024
MASK = "•••"
"""In place of a secret."""
MAX_HEADER = 300
"""Characters of a header that a client sends."""


class Origin(Struct, frozen=True, kw_only=True):
    """Where a request came from. The address is that of the socket; the other fields are claims."""

    remote_addr: str | None = None
    user_agent: str | None = None
    x_forwarded_for: str | None = None


def origin(remote_addr: str | None, user_agent: str | None, x_forwarded_for: str | None) -> Origin:
    return Origin(remote_addr=remote_addr, user_agent=_cut(user_agent), x_forwarded_for=_cut(x_forwarded_for))


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:MAX_HEADER]


class ChangeAuthor(Struct, frozen=True, kw_only=True):
    tenant_id: str | None = None
    api_key_id: str | None = None
    claimed: str | None = None
    """Whom the request names as its author, unverified."""


class ChangeTarget(Struct, frozen=True):
    kind: str
    id: str


class AuditEntry(Struct, frozen=True, kw_only=True):
    id: str
    at: float
    action: str
    """`noun.verb`."""
    target: ChangeTarget
    actor: ChangeAuthor
    source: Origin
    before: Any = None
    """None: it is new."""
    after: Any = None
    """None: it is gone."""


class AuditPage(Struct, frozen=True):
    """Newest first. A page may be short although there are more: follow its cursor."""

    items: list[AuditEntry]
    next_cursor: str | None


AUDIT_ANSWERS = (AuditEntry, AuditPage, ChangeAuthor, ChangeTarget, Origin)


class AuditFilter(Struct, frozen=True, kw_only=True):
    tenant_id: str | None = None
    """None: all of them."""
    action: str | None = None
    target: str | None = None
    """An id, a kind, or `kind/id`."""
    key_id: str | None = None
    since: float | None = None
    until: float | None = None

    def matches(self, entry: AuditEntry) -> bool:
        target = entry.target
        return (
            self.tenant_id in (None, entry.actor.tenant_id)
            and self.action in (None, entry.action)
            and self.target in (None, target.id, target.kind, f"{target.kind}/{target.id}")
            and self.key_id in (None, entry.actor.api_key_id)
            and (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at <= self.until)
        )


def bounded(state: Any) -> Any:
    """The state as it is kept; a large one is replaced by its size."""
    size = len(msgspec.json.encode(state))
    return state if size <= MAX_STATE_BYTES else {"omitted": f"{size} bytes; the limit is {MAX_STATE_BYTES}"}
