"""What is remembered of an event's key: first a claim, then the receipt of what it started."""

import hashlib
from enum import StrEnum

import msgspec
from msgspec import Struct
from msgspec.structs import replace

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
