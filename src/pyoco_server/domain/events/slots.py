"""One run at a time of an action that wants it so."""

from msgspec import Struct

SETTLE_SEC = 5.0
"""So long a run may be on its way between its slot and its snapshot."""


class Slot(Struct, frozen=True):
    """Which run an action's only place was given to."""

    run_id: str
    taken_at: float


def is_settled(slot: Slot, now: float) -> bool:
    """Whether a run that cannot be found will not come any more."""
    return now - slot.taken_at > SETTLE_SEC
