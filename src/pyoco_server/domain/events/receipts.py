"""What is remembered of an event's key: first a claim, then the receipt of what it started."""

import hashlib
from enum import StrEnum

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.events.requests import EventRequest, ResumeTarget, content_digest

TAKE_OVER_SEC = 5.0
"""A claim that has been starting for longer was left by a gateway that died."""
DAY_SEC = 86_400.0
EXPIRY_MARGIN_SEC = 2.0
"""The store counts the age of a run in whole seconds."""


class ClaimState(StrEnum):
    STARTING = "starting"
    OPEN = "open"
    """A try failed that may be repeated at once, with the same run id."""
    ACCEPTED = "accepted"


class Receipt(Struct, frozen=True, kw_only=True):
    """Written before anything is started, so that a repeat after any crash starts the same run."""

    template_id: str
    idempotency_key: str
    run_id: str
    content: str
    claimed_at: float
    starting_since: float
    state: ClaimState = ClaimState.STARTING
    tenant_id: str | None = None
    execution_id: str | None = None
    node_id: str | None = None
    """That the event has resumed."""
    placed_since: float | None = None
    """When the first try began that may have placed the run; None: none has."""


class AlreadyStarted(Struct, frozen=True):
    receipt: Receipt


class BeingStarted(Struct, frozen=True):
    """By somebody else, right now."""


class CarryOn(Struct, frozen=True):
    """The repeat goes on with the same run, under this receipt."""

    receipt: Receipt


class StartAnew(Struct, frozen=True):
    """What was remembered is too old to count."""


Finding = AlreadyStarted | BeingStarted | CarryOn | StartAnew


def receipt_key(tenant_id: str | None, template_id: str, key: str) -> str:
    """A hash: keys have characters that a bucket's keys must not have."""
    return hashlib.sha256(msgspec.json.encode([tenant_id, template_id, key])).hexdigest()


def look_at(found: Receipt, content: str, now: float, ttl_days: float) -> Finding:
    """What a repeat finds."""
    if now - found.claimed_at > ttl_days * DAY_SEC:
        return StartAnew()
    if found.state is ClaimState.ACCEPTED:
        return AlreadyStarted(found)
    is_left_alone = found.state is ClaimState.OPEN or now - found.starting_since > TAKE_OVER_SEC
    if not is_left_alone:
        return BeingStarted()
    since = _maybe_placed_since(found)
    return CarryOn(
        replace(
            found,
            state=ClaimState.STARTING,
            starting_since=now,
            content=content,
            placed_since=now if since is None else since,
        )
    )


def _maybe_placed_since(receipt: Receipt) -> float | None:
    """Claims of older versions do not record it."""
    is_old = receipt.placed_since is None and receipt.state is ClaimState.STARTING
    return receipt.claimed_at if is_old else receipt.placed_since


def may_have_expired(receipt: Receipt, now: float, retention_sec: float) -> bool:
    """Whether a run of an earlier try, had it been placed, could have ended and expired by now."""
    since = _maybe_placed_since(receipt)
    return retention_sec > 0 and since is not None and now - since > retention_sec - EXPIRY_MARGIN_SEC


def accepted(receipt: Receipt, run_id: str) -> Receipt:
    return replace(receipt, state=ClaimState.ACCEPTED, run_id=run_id)


def left_open(receipt: Receipt, *, is_maybe_placed: bool) -> Receipt:
    """After a try that failed. One that surely placed nothing leaves only the doubts of earlier ones."""
    is_first_doubt = receipt.placed_since == receipt.starting_since
    since = None if is_first_doubt and not is_maybe_placed else receipt.placed_since
    return replace(receipt, state=ClaimState.OPEN, placed_since=since)


# Events that resume a waiting node: kept until they have.

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


# One run at a time of an action that wants it so.

SETTLE_SEC = 5.0
"""So long a run may be on its way between its slot and its snapshot."""


class Slot(Struct, frozen=True):
    """Which run an action's only place was given to."""

    run_id: str
    taken_at: float


def is_settled(slot: Slot, now: float) -> bool:
    """Whether a run that cannot be found will not come any more."""
    return now - slot.taken_at > SETTLE_SEC
