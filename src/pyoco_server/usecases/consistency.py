"""Compare-and-set loops, and read-your-writes for lists.

A compare-and-set loop loads, decides and writes with the expected revision; after a conflict it starts again.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from pyoco_server import tracing
from pyoco_server.domain.runs.changes import Refusal, RunChange, decide
from pyoco_server.domain.runs.claims import IdempotencyClaim
from pyoco_server.domain.runs.jobs import Job, job_of_next_try
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable
from pyoco_server.usecases.ports.queues import JobQueue
from pyoco_server.usecases.ports.runs import RunStore
from pyoco_server.usecases.ports.stores import Clock, Revision, Store, Versioned, WrongRevision

MAX_TRIES = 100
"""Each conflict means that another write succeeded; this many in a row indicate a fault."""


async def change_run(
    runs: RunStore,
    run_id: str,
    change: RunChange,
    clock: Clock,
    known: Versioned[RunSnapshot] | None = None,
) -> Versioned[RunSnapshot] | Refusal | None:
    """The run after `change`, or the refusal; None if there is no such run.

    `known` saves the first read; the store refuses a decision based on an old snapshot.
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
            written = Versioned(decision, await runs.update(run_id, decision, current.revision))
        except WrongRevision:
            known = None
        else:
            tracing.run_changed(current.value, decision)
            return written
    raise NatsUnavailable(f"run {run_id} could not be written: {MAX_TRIES} consecutive conflicts")


async def queue_next_try(runs: RunStore, queue: JobQueue, job: Job) -> None:
    """Place the job of the try that a run waits for, unless it is queued. `job` is that of an earlier try."""
    run = await runs.get(job.run_id)
    if run is None or run.value.status is not RunStatus.PENDING or run.value.try_number <= job.try_number:
        return
    await queue.publish(job_of_next_try(job, run.value), run.revision)


T = TypeVar("T")


async def change_value(store: Store[T], key: str, decide: Callable[[T | None], T | None]) -> T | None:
    """The value after `decide`; None if it wrote nothing. `decide` may be called several times."""
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
    raise NatsUnavailable(f"{key} could not be written: {MAX_TRIES} consecutive conflicts")


async def replace_value(store: Store[T], key: str, value: T) -> T | None:
    """What it replaced."""
    replaced: T | None = None

    def decide(current: T | None) -> T:
        nonlocal replaced
        replaced = current
        return value

    await change_value(store, key, decide)
    return replaced


async def write(store: Store[T], key: str, value: T, current: Versioned[T] | None) -> Revision:
    """Replace `current`. Raises WrongRevision."""
    if current is None:
        return await store.create(key, value)
    return await store.update(key, value, current.revision)


MAX_CLAIMS = 3
"""A claim may expire between the conflict and the read, but not three times in a row."""


async def claim_once(
    claims: Store[IdempotencyClaim], place: str, claim: IdempotencyClaim
) -> tuple[Versioned[IdempotencyClaim], bool]:
    """The claim of an idempotency key, and whether it is new."""
    for _ in range(MAX_CLAIMS):
        try:
            return Versioned(claim, await claims.create(place, claim)), True
        except WrongRevision:
            found = await claims.get(place)
        if found is not None:
            return found, False
    raise NatsUnavailable("the Idempotency-Key could not be claimed")


# Progress of a feed


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
        """Wait until `revision` was read, or for `patience` seconds, so that callers see their own writes."""
        if self._seen >= revision:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, waiter))
        await asyncio.wait({waiter}, timeout=patience)
        waiter.cancel()


# Read your writes: a list requested after a submit at the same gateway contains the submitted run.

PATIENCE_SEC = 0.25
"""The feed is normally a millisecond behind; otherwise a stale list is better than a late one."""


class RunFeedFollower(Protocol):
    async def reached(self, revision: Revision, patience: float) -> None: ...


class OwnWrites:
    def __init__(self, follower: RunFeedFollower) -> None:
        self._follower = follower
        self._latest = Revision(0)

    def wrote(self, revision: Revision) -> None:
        self._latest = max(self._latest, revision)

    async def are_visible(self) -> None:
        """Only one list waits for a write that never arrives (e.g. after the bucket was recreated)."""
        wanted = self._latest
        await self._follower.reached(wanted, PATIENCE_SEC)
        if self._latest == wanted:
            self._latest = Revision(0)
