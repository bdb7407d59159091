"""Who does what one of several gateways does at a time."""

from msgspec import Struct


class LeaseRecord(Struct, frozen=True):
    holder: str
    until: float = 0.0
    """By the clock that all share: whoever has not renewed it by then has died."""


def is_free(lease: LeaseRecord | None, holder: str, now: float) -> bool:
    return lease is None or lease.holder == holder or lease.until <= now
