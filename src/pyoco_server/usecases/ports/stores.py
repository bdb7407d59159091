"""Generic ports: key-value stores and feeds. `jetstream` and `testing` implement them; one suite checks both.

Every method may raise `NatsUnavailable`: the store did not reply in time, and the outcome is unknown.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Generic, NewType, Protocol, TypeVar

from msgspec import Struct

Revision = NewType("Revision", int)


class WrongRevision(Exception):
    """A concurrent write succeeded; read and decide again."""


T = TypeVar("T")


class Versioned(Struct, Generic[T], frozen=True):
    """A stored value and the revision that the next write has to expect."""

    value: T
    revision: Revision


class Store(Protocol[T]):
    """Values by key. Every write states the expected revision; there are no blind writes."""

    async def create(self, key: str, value: T) -> Revision:
        """Raises WrongRevision if the key has a value."""
        ...

    async def get(self, key: str) -> Versioned[T] | None: ...

    async def update(self, key: str, value: T, expected: Revision) -> Revision:
        """Raises WrongRevision if the value is not at `expected`."""
        ...

    async def remove(self, key: str, expected: Revision | None) -> None:
        """Raises WrongRevision if the value is not at `expected`; None removes any value."""
        ...


class FeedPosition(Struct, frozen=True):
    """The position of a feed: the last revision and the stream's creation time."""

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
    """Time of storage by the store's clock; None: unknown."""


NO_HORIZON = Revision(0)


class FeedBatch(Struct, Generic[T], frozen=True):
    changes: list[Change[T]]
    position: FeedPosition
    is_reset: bool
    """Everything read before is void, because the stream was replaced."""
    is_caught_up: bool
    """The feed had caught up when this batch was created."""
    pending: int = 0
    """How many changes are left, as far as known."""
    horizon: Revision = NO_HORIZON
    """Of a reset: no key has two changes up to this revision."""


class Feed(Protocol[T]):
    @property
    def stale_sec(self) -> float:
        """Seconds since the feed was up to date; 0 if it is."""
        ...

    @property
    def missed_sec(self) -> float:
        """Total time the feed was stale; changes in that time arrived late."""
        ...

    def follow(self, position: FeedPosition | None) -> AsyncGenerator[FeedBatch[T], None]:
        """Changes after `position` (None: everything), without end. Retries after store failures."""
        ...


class Storage(Protocol):
    """The storage behind all ports."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes by stream, as of the last check."""
        ...

    async def check(self) -> None:
        """Raises NatsUnavailable unless a test write is stored. Recreates deleted streams."""
        ...


class ServerTime(Protocol):
    """The store's clock, shared by all hosts."""

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
