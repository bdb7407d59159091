"""Ports of the queues of tags: their jobs, records and lanes. One suite checks both implementations.

Every method may raise `NatsUnavailable`: the store did not reply in time, and the outcome is unknown.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from msgspec import Struct

from pyoco_server.domain.queues import Lane, Pause, QueueRecord
from pyoco_server.domain.runs.jobs import Job
from pyoco_server.usecases.ports.stores import Revision, Store

QueueStore = Store[QueueRecord]
"""Records by tag."""


class NoRoomForLane(Exception):
    """The queue has as many lanes as it can have."""


class QueueLanes(Protocol):
    """The lanes of the work queue. They outlive gateways and workers."""

    def require_pause(self) -> None:
        """Raises TimersUnsupported if this server cannot pause."""
        ...

    async def open(self, lane: Lane, pause: Pause | None) -> None:
        """Make a lane, paused or not. An existing one stays as it is. Raises NoRoomForLane."""
        ...

    async def pause(self, lane: Lane, pause: Pause) -> None:
        """Deliver nothing of it until then. Makes the lane if there is none."""
        ...

    async def resume(self, lane: Lane) -> None:
        """Deliver again. No error if there is no such lane."""
        ...

    async def make_room(self, lane: Lane, deliveries: int) -> None:
        """Let workers hold so many of its jobs. A smaller limit that was set by hand stays."""
        ...

    async def merge(self, lane: Lane) -> int:
        """Move the jobs that wait in it to the plain lane, in order; their number."""
        ...


# Jobs


class QueuedJob(Struct, frozen=True):
    """A message of the queue, from a scan."""

    sequence: int
    run_id: str | None
    """None: the message contains no run id."""
    max_deliver: int
    """Maximum deliveries of its consumer; 0: unlimited, or no consumer."""
    is_given_up: bool
    """The consumer's state shows that it will not be redelivered."""
    is_held: bool = False
    """No worker receives it, because its run waits for a place."""


class HeldJob(Struct, frozen=True):
    job: Job
    sequence: int


class JobQueue(Protocol):
    async def publish(self, job: Job, revision: Revision, message_id: str | None = None) -> bool:
        """Returns when the job is queued. False: a message with that id exists, and none is added.

        The message id is `message_id_of(job)`, unless another is given. Workers receive the job after its
        `not_before`; until then a run has one such job, and another replaces it. Raises TimersUnsupported.
        No worker receives a job that `is_held`.
        """
        ...

    async def held(self, run_id: str) -> HeldJob | None:
        """The newest held job of a run. Raises InvalidJob."""
        ...

    async def remove_held(self, run_id: str, last: int | None = None) -> None:
        """Remove the held jobs of a run up to the sequence `last`; None: all. No error if there are none."""
        ...

    async def now(self) -> float:
        """The clock of the queue, by which jobs are due."""
        ...

    def require_timers(self) -> None:
        """Raises TimersUnsupported, as a job with a delay would."""
        ...

    async def unschedule(self, run_id: str) -> None:
        """Remove a delayed job that is not due yet. No error if there is none."""
        ...

    async def jobs(self) -> list[QueuedJob]:
        """All queued jobs, held by a worker or not. Reads the whole queue.

        Complete as of the call. It may contain removed jobs, because a lagging replica may serve older ones.
        """
        ...

    async def count(self) -> int:
        """The number of `jobs`, without reading them."""
        ...

    async def run_ids(self) -> set[str]:
        """Run ids of `jobs`."""
        ...


class QueuedMessage(Struct, frozen=True):
    """A raw message of the work queue, which may be unreadable."""

    payload: bytes
    subject: str


class Delivery(Protocol):
    """A job delivered to this worker, until its ack or until AckWait passes."""

    @property
    def payload(self) -> bytes: ...
    @property
    def subject(self) -> str: ...
    @property
    def num_delivered(self) -> int: ...
    @property
    def sequence(self) -> int:
        """Stream sequence of the job, the same at every delivery."""
        ...

    @property
    def revision(self) -> Revision | None:
        """Revision of the PENDING snapshot, if the sender added it."""
        ...

    @property
    def retention_sec(self) -> float | None:
        """Retention of the run after its end, if the sender added it."""
        ...

    async def waited_sec(self) -> float:
        """Time since the job was queued, or since its delay was over, by the clock of the queue."""
        ...

    def job(self) -> Job:
        """The job in it; raises InvalidJob."""
        ...

    async def ack(self) -> None: ...
    async def nak(self, delay: float) -> None: ...
    async def term(self) -> None: ...
    async def in_progress(self) -> None: ...


class JobSource(Protocol):
    """The jobs of a set of tags."""

    async def next(self, timeout: float, wanted: int = 1) -> Delivery | None:  # noqa: ASYNC109
        """The next job of any tag; None after `timeout` seconds.

        `wanted` is the number of jobs to prefetch.
        """
        ...

    def interrupt(self) -> None:
        """Make a waiting `next` return None."""
        ...

    async def pause(self) -> None:
        """Return prefetched jobs to the queue until `next` is called again."""
        ...

    @property
    def ack_wait_sec(self) -> float:
        """Redelivery time of a job without progress reports; the shortest of the tags."""
        ...

    @property
    def features(self) -> tuple[str, ...]:
        """Which lanes it gets jobs of, beside the plain ones: `LANES`, `SHARES`."""
        ...

    @property
    def has_lanes(self) -> bool:
        """Whether a tag has more than the plain lane, so that a job may overtake others."""
        ...

    async def keep_settings(self) -> None:
        """Reread consumer settings periodically, forever."""
        ...

    async def close(self) -> None: ...


class JobSources(Protocol):
    async def open(self, tags: Sequence[str]) -> JobSource: ...


class UndeliverableJob(Protocol):
    """A job that has used up its deliveries. It is repeated until it is settled."""

    @property
    def deliveries(self) -> int: ...
    @property
    def sequence(self) -> int: ...

    async def read(self) -> QueuedMessage | None:
        """None: the message is gone."""
        ...

    async def remove(self) -> None:
        """Remove the message from the queue. No error if it is gone."""
        ...

    async def settle(self) -> None:
        """Mark it as handled."""
        ...


class UndeliverableJobs(Protocol):
    def follow(self) -> AsyncIterator[UndeliverableJob]:
        """All such jobs, including earlier ones, without end; each goes to one of all followers."""
        ...

    def at(self, sequence: int, deliveries: int) -> UndeliverableJob:
        """A job found by other means."""
        ...
