"""Events that resume a waiting node: kept until they have."""

import hashlib

import msgspec
from msgspec import Struct

from pyoco_server.domain.events.receipts import DAY_SEC, ClaimState, Receipt, receipt_key
from pyoco_server.domain.events.requests import EventRequest, ResumeTarget, content_digest

RESUMES = "@resume"
"""The scope of the idempotency keys of events that resume; no template can have this id."""


class WaitPlace(Struct, frozen=True):
    execution_id: str
    node_id: str


class KeptResume(Struct, frozen=True, kw_only=True):
    """Written before anything is resumed, so that the event outlives its gateway."""

    id: str
    """Of the event that brought it; also the idempotency key of its command."""
    request: EventRequest
    target: ResumeTarget
    content: str
    received_at: float
    tenant_id: str | None = None
    api_key_id: str | None = None
    chosen: WaitPlace | None = None
    """Which of the nodes that wait with its key. Written before that is resumed: a repeat takes no other."""

    @property
    def named(self) -> WaitPlace | None:
        """The node, where the event names one and not only a key."""
        target = self.target
        if target.execution_id is None or target.node_id is None:
            return None
        return WaitPlace(target.execution_id, target.node_id)


def new_kept(
    event_id: str,
    request: EventRequest,
    target: ResumeTarget,
    now: float,
    tenant_id: str | None,
    api_key_id: str | None,
) -> KeptResume:
    return KeptResume(
        id=event_id,
        request=request,
        target=target,
        content=content_digest(request),
        received_at=now,
        tenant_id=tenant_id,
        api_key_id=api_key_id,
    )


def kept_name(tenant_id: str | None, key: str | None, event_id: str) -> str:
    """One for each key; without a key, for each event."""
    if key is None:
        return hashlib.sha256(event_id.encode()).hexdigest()
    return receipt_key(tenant_id, RESUMES, key)


def is_over(kept: KeptResume, now: float, ttl_days: float) -> bool:
    return now - kept.received_at > ttl_days * DAY_SEC


def receipt_of(kept: KeptResume, place: WaitPlace, now: float) -> Receipt:
    return Receipt(
        template_id=RESUMES,
        idempotency_key=kept.request.key or "",
        run_id="",
        content=kept.content,
        claimed_at=now,
        starting_since=now,
        state=ClaimState.ACCEPTED,
        tenant_id=kept.tenant_id,
        execution_id=place.execution_id,
        node_id=place.node_id,
    )


def with_choice(kept: KeptResume, place: WaitPlace | None) -> KeptResume:
    return msgspec.structs.replace(kept, chosen=place)
