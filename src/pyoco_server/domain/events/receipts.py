"""Idempotency keys of events, and the slot of an action that runs one at a time.

A key is unique within its scope: the tenant and the template, or the tenant and `@resume`. Each key has one
receipt. It is created before anything is started (the claim), so only one of several equal events starts the
run; afterwards it names what was started. An event that waits for its node is kept under its key, and gets
its receipt when the node is resumed.
"""

import hashlib
from enum import StrEnum

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.events.requests import EventRequest, ResumeTarget, content_digest
from pyoco_server.errors import InvalidRequest

TAKE_OVER_SEC = 5.0
"""A gateway that has been starting an event for longer is dead."""
DAY_SEC = 86_400.0
EXPIRY_MARGIN_SEC = 2.0
"""The store counts the age of a run in whole seconds."""
UNKNOWN_CONTENT = ""
"""Content of an imported receipt: every event matches it."""


# Receipts


class ReceiptState(StrEnum):
    STARTING = "starting"
    """Claimed: one gateway is starting the event."""
    OPEN = "open"
    """A try failed; the next one may begin at once, with the same run id."""
    ACCEPTED = "accepted"


class Receipt(Struct, frozen=True, kw_only=True):
    """Written before anything is started, so that a repeat after any crash starts the same run."""

    template_id: str
    idempotency_key: str
    run_id: str
    content: str
    claimed_at: float
    starting_since: float
    state: ReceiptState = ReceiptState.STARTING
    tenant_id: str | None = None
    execution_id: str | None = None
    node_id: str | None = None
    """The node that the event resumed."""
    placed_since: float | None = None
    """Start of the first try that may have submitted the run; None: no try has."""


class AlreadyStarted(Struct, frozen=True):
    receipt: Receipt


class BeingStarted(Struct, frozen=True):
    """Another request is starting it."""


class CarryOn(Struct, frozen=True):
    """The repeat continues with the same run, under this receipt."""

    receipt: Receipt


class StartAnew(Struct, frozen=True):
    """The receipt has expired."""


Finding = AlreadyStarted | BeingStarted | CarryOn | StartAnew


def receipt_key(tenant_id: str | None, scope: str, key: str) -> str:
    """A hash: idempotency keys may have characters that a bucket's keys may not."""
    return hashlib.sha256(msgspec.json.encode([tenant_id, scope, key])).hexdigest()


def finding_of(found: Receipt, content: str, now: float, ttl_days: float) -> Finding:
    """What a repeat has to do."""
    if is_expired(found, now, ttl_days):
        return StartAnew()
    if found.state is ReceiptState.ACCEPTED:
        return AlreadyStarted(found)
    is_abandoned = found.state is ReceiptState.OPEN or now - found.starting_since > TAKE_OVER_SEC
    if not is_abandoned:
        return BeingStarted()
    since = _maybe_placed_since(found)
    return CarryOn(
        replace(
            found,
            state=ReceiptState.STARTING,
            starting_since=now,
            content=content,
            placed_since=now if since is None else since,
        )
    )


def is_expired(receipt: Receipt, now: float, ttl_days: float) -> bool:
    return now - receipt.claimed_at > ttl_days * DAY_SEC


def is_other_content(stored: str, content: str) -> bool:
    return stored not in (UNKNOWN_CONTENT, content)


def check_content(stored: str, content: str, *, is_strict: bool) -> None:
    """Raises InvalidRequest if keys are strict and this one was used with another content."""
    if is_strict and is_other_content(stored, content):
        raise InvalidRequest("this idempotency_key was used with another content")


def may_have_expired(receipt: Receipt, now: float, retention_sec: float) -> bool:
    """Whether a run of an earlier try, if it was submitted, could have ended and expired by now."""
    since = _maybe_placed_since(receipt)
    return retention_sec > 0 and since is not None and now - since > retention_sec - EXPIRY_MARGIN_SEC


def _maybe_placed_since(receipt: Receipt) -> float | None:
    """Receipts of older versions do not record it."""
    is_old = receipt.placed_since is None and receipt.state is ReceiptState.STARTING
    return receipt.claimed_at if is_old else receipt.placed_since


def accepted(receipt: Receipt, run_id: str) -> Receipt:
    return replace(receipt, state=ReceiptState.ACCEPTED, run_id=run_id)


def left_open(receipt: Receipt, *, is_maybe_placed: bool) -> Receipt:
    """After a failed try. If it surely submitted nothing, only earlier tries may have."""
    is_first_doubt = receipt.placed_since == receipt.starting_since
    since = None if is_first_doubt and not is_maybe_placed else receipt.placed_since
    return replace(receipt, state=ReceiptState.OPEN, placed_since=since)


# Kept resumes


RESUMES = "@resume"
"""Scope of the keys of events that resume; not a valid template id."""


class WaitPlace(Struct, frozen=True):
    execution_id: str
    node_id: str


class KeptResume(Struct, frozen=True, kw_only=True):
    """An event that resumes a node. Stored first, so that it outlives its gateway."""

    id: str
    """The event id; also the idempotency key of the command to the execution."""
    request: EventRequest
    target: ResumeTarget
    content: str
    received_at: float
    tenant_id: str | None = None
    api_key_id: str | None = None
    chosen: WaitPlace | None = None
    """The node chosen among those waiting with its wait_key. Stored first: a repeat resumes no other."""

    @property
    def named(self) -> WaitPlace | None:
        """The node, if the event names one and not only a wait_key."""
        target = self.target
        if target.execution_id is None or target.node_id is None:
            return None
        return WaitPlace(target.execution_id, target.node_id)

    @property
    def receipt_key(self) -> str | None:
        """None: the event has no idempotency key."""
        key = self.request.key
        return None if key is None else receipt_key(self.tenant_id, RESUMES, key)

    @property
    def name(self) -> str:
        """Unique per idempotency key; without a key, per event."""
        return self.receipt_key or hashlib.sha256(self.id.encode()).hexdigest()


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


def has_waited_too_long(kept: KeptResume, now: float, ttl_days: float) -> bool:
    return now - kept.received_at > ttl_days * DAY_SEC


def with_choice(kept: KeptResume, place: WaitPlace | None) -> KeptResume:
    return replace(kept, chosen=place)


def receipt_of(kept: KeptResume, place: WaitPlace, now: float) -> Receipt:
    return Receipt(
        template_id=RESUMES,
        idempotency_key=kept.request.key or "",
        run_id="",
        content=kept.content,
        claimed_at=now,
        starting_since=now,
        state=ReceiptState.ACCEPTED,
        tenant_id=kept.tenant_id,
        execution_id=place.execution_id,
        node_id=place.node_id,
    )


# Slots


SETTLE_SEC = 5.0
"""Maximum time between taking a slot and creating its run."""


class Slot(Struct, frozen=True):
    """The run that holds the only place of an action."""

    run_id: str
    taken_at: float


def is_settled(slot: Slot, now: float) -> bool:
    """Whether a run that cannot be found will never appear."""
    return now - slot.taken_at > SETTLE_SEC
