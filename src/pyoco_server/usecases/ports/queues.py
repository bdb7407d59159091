"""Ports of the queues of tags: their jobs, records and lanes. One suite checks both implementations.

Every method may raise `NatsUnavailable`: the store did not reply in time, and the outcome is unknown.
"""

from collections.abc import Sequence
from typing import Protocol

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
