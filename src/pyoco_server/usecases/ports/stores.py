"""What the use cases need from the world. `jetstream` and `testing` both provide it; one suite checks both.

Every method may raise `NatsUnavailable`: the store did not answer in time, so what it did is unknown.
"""

from collections.abc import AsyncIterator
from typing import Generic, NewType, Protocol, TypeVar

from msgspec import Struct

Revision = NewType("Revision", int)


class WrongRevision(Exception):
    """Somebody else wrote first: read again and decide again."""


T = TypeVar("T")


class Versioned(Struct, Generic[T], frozen=True):
    """A stored value and the revision that the next write has to name."""

    value: T
    revision: Revision


class Store(Protocol[T]):
    """Values by key. Every write says what it expects to replace; nobody ever puts blindly."""

    async def create(self, key: str, value: T) -> Revision:
        """Raises WrongRevision when the key has a value."""
        ...

    async def get(self, key: str) -> Versioned[T] | None: ...

    async def update(self, key: str, value: T, expected: Revision) -> Revision:
        """Raises WrongRevision when the value is not at `expected` any more."""
        ...

    async def remove(self, key: str, expected: Revision | None) -> None:
        """Raises WrongRevision when the value is not at `expected`; None removes whatever is there."""
        ...


class FeedPosition(Struct, frozen=True):
    """How far a feed was read: the last revision, and which incarnation of the stream it was of."""

    stream_created: str
    last_revision: Revision

    def at(self, revision: Revision) -> "FeedPosition":
        return FeedPosition(self.stream_created, revision)


class Change(Struct, Generic[T], frozen=True):
    key: str
    revision: Revision
    value: T | None
    """None: the value was removed."""
    expires_at: float | None
    stored_at: float | None = None
    """When the store took it, by the store's own clock; None: it does not say."""


class FeedBatch(Struct, Generic[T], frozen=True):
    changes: list[Change[T]]
    position: FeedPosition
    is_reset: bool
    """Everything known before is void: the stream is another one than before."""
    is_caught_up: bool
    """Nothing else was stored when this batch was made."""


class Feed(Protocol[T]):
    @property
    def stale_sec(self) -> float:
        """Seconds since what was read was all there is; 0: it is up to date."""
        ...

    @property
    def missed_sec(self) -> float:
        """How long it was out of date, in all, before now: what happened then was not seen as it happened."""
        ...

    def follow(self, position: FeedPosition | None) -> AsyncIterator[FeedBatch[T]]:
        """Changes after `position`, or of everything, for ever. It waits out failures of the store."""
        ...


class Storage(Protocol):
    """What all of the ports write to."""

    async def check(self) -> None:
        """Raises NatsUnavailable unless a write was stored. What somebody deleted is there again."""
        ...


class ServerTime(Protocol):
    """The clock of the store: the one that every host can read."""

    async def now(self) -> float:
        """Unix seconds."""
        ...


class Clock(Protocol):
    def __call__(self) -> float:
        """Unix seconds."""
        ...


class MeasuredClock(Clock, Protocol):
    """One clock for all gateways."""

    async def measure(self) -> None: ...
    async def run(self) -> None:
        """Measure it again and again, for ever."""
        ...
