"""Load, decide, write with the expected revision; if somebody was faster, load and decide again."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from pyoco_server.domain.runs.changes import Refusal, RunChange, decide
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.errors import NatsUnavailable
from pyoco_server.usecases.ports.runs import RunStore
from pyoco_server.usecases.ports.stores import Clock, Revision, Store, Versioned, WrongRevision

# Load, decide, write with the expected revision; if somebody was faster, load and decide again.

MAX_TRIES = 100
"""Each lost race means that somebody else's write succeeded; so many in a row is a fault, not a race."""


async def change_run(
    runs: RunStore,
    run_id: str,
    change: RunChange,
    clock: Clock,
    known: Versioned[RunSnapshot] | None = None,
) -> Versioned[RunSnapshot] | Refusal | None:
    """The run after `change`, or why it was refused; None when there is no such run.

    `known` saves the first read: a decision on an old snapshot is refused by the store, not written.
    """
    for _ in range(MAX_TRIES):
        current = known or await runs.get(run_id)
        if current is None:
            return None
        decision = decide(current.value, change, clock())
        if isinstance(decision, Refusal):
            if known is None:
                return decision
            known = None  # refuse only on what is stored now
            continue
        if decision is current.value:
            return current
        try:
            return Versioned(decision, await runs.update(run_id, decision, current.revision))
        except WrongRevision:
            known = None
    raise NatsUnavailable(f"run {run_id} could not be written: {MAX_TRIES} writes in a row were refused")


T = TypeVar("T")


async def change_value(store: Store[T], key: str, decide: Callable[[T | None], T | None]) -> T | None:
    """The value after `decide`; None when that wanted nothing written. `decide` may be called again."""
    for _ in range(MAX_TRIES):
        current = await store.get(key)
        decision = decide(None if current is None else current.value)
        if decision is None or (current is not None and decision is current.value):
            return decision
        try:
            await write(store, key, decision, current)
        except WrongRevision:
            continue
        return decision
    raise NatsUnavailable(f"{key} could not be written: {MAX_TRIES} writes in a row were refused")


async def write(store: Store[T], key: str, value: T, current: Versioned[T] | None) -> Revision:
    """Over `current`. Raises WrongRevision."""
    if current is None:
        return await store.create(key, value)
    return await store.update(key, value, current.revision)


# How far a feed was read, and waiting for it to get somewhere.


class FeedProgress:
    def __init__(self) -> None:
        self._seen = Revision(0)
        self._waiting: list[tuple[Revision, asyncio.Future[None]]] = []

    def reset(self) -> None:
        self._seen = Revision(0)

    def to(self, revision: Revision) -> None:
        self._seen = revision
        for wanted, waiter in self._waiting:
            if wanted <= revision and not waiter.done():
                waiter.set_result(None)
        self._waiting = [(wanted, waiter) for wanted, waiter in self._waiting if not waiter.done()]

    async def wait(self, revision: Revision, patience: float) -> None:
        """Until `revision` was read, or `patience` is over: people want to see what they did."""
        if self._seen >= revision:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, waiter))
        await asyncio.wait({waiter}, timeout=patience)
        waiter.cancel()


# Read your own writes: a list asked for after a submit at the same gateway shows the submitted run.

PATIENCE_SEC = 0.25
"""The feed is normally a millisecond behind; when it is not, an older list now is better than a late one."""


class RunFeedFollower(Protocol):
    async def reached(self, revision: Revision, patience: float) -> None: ...


class OwnWrites:
    def __init__(self, follower: RunFeedFollower) -> None:
        self._follower = follower
        self._latest = Revision(0)

    def wrote(self, revision: Revision) -> None:
        self._latest = max(self._latest, revision)

    async def are_visible(self) -> None:
        """A write that never comes (say, the bucket was made anew) is waited for once, not by every list."""
        wanted = self._latest
        await self._follower.reached(wanted, PATIENCE_SEC)
        if self._latest == wanted:
            self._latest = Revision(0)
