"""Who is at work: one drain at a time, and one run at a time of an action that wants it so."""

from msgspec import Struct

LEASE_SEC = 30.0
"""Renewed with every job: whoever holds it for longer without a word has died."""
SETTLE_SEC = 5.0
"""So long a run may be on its way between its slot and its snapshot."""


class Lease(Struct, frozen=True):
    holder: str
    until: float


class Slot(Struct, frozen=True):
    """Which run an action's only place was given to."""

    run_id: str
    taken_at: float


def is_free(lease: Lease | None, holder: str, now: float) -> bool:
    return lease is None or lease.holder == holder or lease.until <= now


def is_settled(slot: Slot, now: float) -> bool:
    """Whether a run that cannot be found will not come any more."""
    return now - slot.taken_at > SETTLE_SEC
