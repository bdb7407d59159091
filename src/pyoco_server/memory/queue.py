"""The job queue in memory, with the faults of JetStream: see `QueueFaults`."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.fleet import LANES, SHARES
from pyoco_server.domain.queues import Lane, Turns, lane_of
from pyoco_server.domain.runs.jobs import Job, message_id_of
from pyoco_server.usecases.concurrency import Batch, read_all, wait_at_most
from pyoco_server.usecases.ports.queues import HeldJob, QueuedJob
from pyoco_server.usecases.ports.stores import Revision

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class QueueFaults:
    """Behaviour of JetStream that a client must not rely on."""

    duplicate_window_sec: float = 120.0
    """Duplicate window: a message id is forgotten after this time."""
    batch_bytes: int = 64 * MEGABYTE
    """Maximum size of a batch."""
    lag_sec: Callable[[], float] | None = None
    """Lag of the replica that serves a batch of a scan; None: no replicas.

    It has the leader's earlier state: without later messages, with messages removed since. Most replicas lag
    for moments. An overloaded replica, or one partitioned from its leader but not from the client, lags for
    as long as that lasts and still replies: a server checks that it is up to date only before its first
    reply.
    """
    loses_advisory: Callable[[], bool] = lambda: False
    """Whether the next advisory is lost, because its stream is full, missing or without a leader."""
    late_sec: Callable[[], float] = lambda: 0.0
    """How late the next delayed message is sent."""


@dataclass(eq=False)
class MemoryMessage:
    payload: bytes
    subject: str
    revision: Revision | None
    sequence: int
    stored_at: float
    num_delivered: int = 0
    redeliver_at: float | None = None
    """Redelivery time of a delivered message; None: queued."""
    is_given_up: bool = False
    """It is not redelivered, and stays on the queue."""
    removed_at: float = float("inf")
    due_at: float | None = None
    """When a delayed message is put on its subject; None: it is there."""

    @property
    def is_waited_for(self) -> bool:
        """Whether it was delivered and awaits an ack or redelivery."""
        return bool(self.num_delivered) and not self.is_given_up and self.removed_at == float("inf")


class MemoryDelivery:
    def __init__(self, queue: "MemoryQueue", message: MemoryMessage) -> None:
        self._queue = queue
        self._message = message
        self.num_delivered = message.num_delivered

    @property
    def payload(self) -> bytes:
        return self._message.payload

    @property
    def subject(self) -> str:
        return self._message.subject

    @property
    def sequence(self) -> int:
        return self._message.sequence

    @property
    def revision(self) -> Revision | None:
        return self._message.revision

    @property
    def retention_sec(self) -> float | None:
        return self._queue.retention_sec

    async def waited_sec(self) -> float:
        return _now() - self._message.stored_at

    def job(self) -> Job:
        return codec.decode_job(self.payload)

    async def ack(self) -> None:
        self._queue.forget(self._message)

    async def nak(self, delay: float) -> None:
        self._queue.postpone(self._message, delay)

    async def term(self) -> None:
        self._queue.forget(self._message)

    async def in_progress(self) -> None:
        self._queue.postpone(self._message, self._queue.ack_wait)


class MemoryQueue:
    """A work queue: one consumer holds a message at a time, and it is redelivered without an ack."""

    BATCH = 1000
    delivery = MemoryDelivery

    def __init__(
        self,
        config: NatsBackendConfig,
        faults: QueueFaults | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self.ack_wait = config.consumer_ack_wait_sec
        self.retention_sec = config.runs_retention_sec
        self._max_deliver = config.consumer_max_deliver
        self._prefix = config.work_subject_prefix
        self._faults = faults or QueueFaults()
        self._messages: deque[MemoryMessage] = deque()
        self._removed: list[MemoryMessage] = []
        """Removed messages that a replica may still have."""
        self._sequence = 0
        self._seen: dict[str, float] = {}
        self._advisories: dict[MemoryMessage, float] = {}
        """Advisories, with the time at which each is due to a gateway."""
        self._changed = asyncio.Event()
        self.lanes: set[Lane] = set()
        """Those beside the plain ones."""
        self.pauses: dict[str, float] = {}
        """Subjects that are paused, and until when."""

    def wake(self) -> None:
        """Have those who wait check again."""
        self._changed.set()

    def change(self, deadline: float) -> Awaitable[None]:
        """The next change, awaited until `deadline`. Nothing may be awaited between a check and this call."""
        self._changed.clear()
        return self._change_before(deadline)

    async def _change_before(self, deadline: float) -> None:
        if deadline == float("inf"):
            await self._changed.wait()
        else:
            await wait_at_most(self._changed, max(0.0, deadline - _now()))

    def next_due(self, subjects: Sequence[str]) -> float:
        """When the next of the delayed, paused or delivered messages may be delivered."""
        ends = [self.pauses[subject] for subject in subjects if self._is_paused(subject)]
        return min([*ends, self._next_message(subjects)])

    def _next_message(self, subjects: Sequence[str]) -> float:
        return min(
            (
                due
                for message in self._messages
                if (due := message.redeliver_at if message.due_at is None else message.due_at) is not None
                and message.subject in subjects
                and not message.is_given_up
            ),
            default=float("inf"),
        )

    def next_advisory(self) -> float:
        return min(self._advisories.values(), default=float("inf"))

    async def publish(self, job: Job, revision: Revision, message_id: str | None = None) -> bool:
        self._fire()
        delay_sec = 0.0 if job.not_before is None or job.is_held else job.not_before - await self.now()
        known_as = message_id or message_id_of(job)
        is_new = _now() - self._seen.get(known_as, float("-inf")) > self._faults.duplicate_window_sec
        if is_new:
            self._seen[known_as] = _now()
            if delay_sec > 0:
                await self.unschedule(job.run_id)
            await self.put(self._subject(job), codec.encode_job(job), revision)
            if delay_sec > 0:
                self._messages[-1].due_at = _now() + delay_sec + self._faults.late_sec()
        return is_new

    async def put(self, subject: str, payload: bytes, revision: Revision | None = None) -> None:
        """Add a raw message, readable or not."""
        self._sequence += 1
        self._messages.append(MemoryMessage(payload, subject, revision, self._sequence, _now()))
        self.wake()

    async def now(self) -> float:
        return self._clock()

    def require_timers(self) -> None:
        """Always supported."""

    async def unschedule(self, run_id: str) -> None:
        for message in [one for one in self._messages if one.due_at is not None]:
            if codec.run_id_in(message.payload) == run_id:
                self.forget(message)

    async def held(self, run_id: str) -> HeldJob | None:
        subject = self._held(run_id)
        found = next((one for one in reversed(self._messages) if one.subject == subject), None)
        return None if found is None else HeldJob(codec.decode_job(found.payload), found.sequence)

    async def remove_held(self, run_id: str, last: int | None = None) -> None:
        for message in [one for one in self._messages if one.subject == self._held(run_id)]:
            if last is None or message.sequence <= last:
                self.forget(message)

    def _subject(self, job: Job) -> str:
        return self._held(job.run_id) if job.is_held else lane_of(job).subject(self._prefix)

    def _held(self, run_id: str) -> str:
        return f"{self._prefix}._held.{run_id}"

    def _fire(self) -> None:
        """Delayed messages that are due are stored again, as new ones."""
        due = [one for one in self._messages if one.due_at is not None and one.due_at <= _now()]
        for message in sorted(due, key=lambda one: one.due_at or 0.0):
            self.forget(message)
            self._sequence += 1
            fired = MemoryMessage(
                message.payload, message.subject, message.revision, self._sequence, message.due_at or _now()
            )
            self._messages.append(fired)

    async def count(self) -> int:
        return len(self._messages)

    async def run_ids(self) -> set[str]:
        return {job.run_id for job in await self.jobs() if job.run_id is not None}

    async def jobs(self) -> list[QueuedJob]:
        waited_for = [one.sequence for one in self._messages if one.is_waited_for]
        floor = min(waited_for, default=self._sequence + 1)
        return [
            QueuedJob(
                message.sequence,
                codec.run_id_in(message.payload),
                self._max_deliver,
                bool(message.num_delivered) and not message.is_waited_for and message.sequence < floor,
                is_held=message.subject.startswith(self._held("")),
            )
            for message in await self._listed()
        ]

    async def _listed(self) -> list[MemoryMessage]:
        """The messages of replicas, then later ones of the leader."""
        found = [message async for message in read_all(self._batch, 1)]
        reached = found[-1].sequence if found else 0
        return [*found, *(message for message in self._messages if message.sequence > reached)]

    async def _batch(self, start: int) -> Batch[MemoryMessage]:
        """One batch of the replica that replies."""
        messages = [message for message in self._replica() if message.sequence >= start]
        sizes = accumulate(len(message.payload) for message in messages[: self.BATCH])
        fitting = [size for size in sizes if size <= self._faults.batch_bytes]
        batch = messages[: max(1, len(fitting))]
        return Batch(batch, batch[-1].sequence + 1 if batch else 0, len(messages) - len(batch))

    def _replica(self) -> list[MemoryMessage]:
        if self._faults.lag_sec is None:
            return list(self._messages)
        then = _now() - self._faults.lag_sec()
        known = sorted([*self._messages, *self._removed], key=lambda message: message.sequence)
        return [message for message in known if message.stored_at <= then < message.removed_at]

    def at(self, sequence: int) -> MemoryMessage | None:
        return next((message for message in self._messages if message.sequence == sequence), None)

    def forget(self, message: MemoryMessage) -> None:
        if message in self._messages:
            self._messages.remove(message)
            message.removed_at = _now()
            if self._faults.lag_sec is not None:
                self._removed.append(message)

    def postpone(self, message: MemoryMessage, seconds: float) -> None:
        message.redeliver_at = _now() + seconds
        self.wake()

    def subjects_of(self, tags: Sequence[str]) -> dict[Lane, str]:
        """The subjects of all lanes of these tags."""
        lanes = [*map(Lane, tags), *(lane for lane in self.lanes if lane.tag in tags)]
        return {lane: lane.subject(self._prefix) for lane in lanes}

    def take_in_turn(self, tags: Sequence[str], turns: Turns) -> MemoryDelivery | None:
        """The next job of these tags."""
        subjects = self.subjects_of(tags)
        while (lane := turns.first_of(subjects)) is not None:
            taken = self.take([subjects.pop(lane)])
            if taken is not None:
                turns.took(lane)
                return taken
        return None

    def _is_paused(self, subject: str) -> bool:
        return self.pauses.get(subject, float("-inf")) > _now()

    def take(self, subjects: Sequence[str]) -> MemoryDelivery | None:
        self._fire()
        for message in self._messages:
            if message.due_at is not None or self._is_paused(message.subject):
                continue
            due = message.redeliver_at is None or message.redeliver_at <= _now()
            if not due or message.subject not in subjects or message.is_given_up:
                continue
            if message.num_delivered >= self._max_deliver:
                self._give_up(message)
                continue
            message.num_delivered += 1
            message.redeliver_at = _now() + self.ack_wait
            return self.delivery(self, message)
        return None

    def _give_up(self, message: MemoryMessage) -> None:
        """Give up on messages; a server does so when a worker requests the next one, and reports it once."""
        message.is_given_up = True
        if not self._faults.loses_advisory():
            self._advisories[message] = _now()
            self.wake()

    def take_undeliverable(self) -> MemoryMessage | None:
        """The next advisory. It is repeated until it is settled."""
        for message, due in self._advisories.items():
            if due <= _now():
                self._advisories[message] = _now() + self.ack_wait
                return message
        return None

    def settle(self, sequence: int) -> None:
        self._advisories = {one: due for one, due in self._advisories.items() if one.sequence != sequence}

    async def open(self, tags: Sequence[str]) -> "MemoryJobSource":
        return MemoryJobSource(self, tags)


class MemoryJobSource:
    features = (LANES, SHARES)

    def __init__(self, queue: MemoryQueue, tags: Sequence[str]) -> None:
        self._queue = queue
        self._tags = tags
        self._turns = Turns()
        self._is_interrupted = False

    @property
    def has_lanes(self) -> bool:
        return len(self._queue.subjects_of(self._tags)) > len(self._tags)

    async def next(self, timeout: float, wanted: int = 1) -> MemoryDelivery | None:  # noqa: ASYNC109, ARG002
        deadline = _now() + timeout
        self._is_interrupted = False
        while (taken := self._taken()) is None and not self._is_over(deadline):
            subjects = list(self._queue.subjects_of(self._tags).values())
            await self._queue.change(min(deadline, self._queue.next_due(subjects)))
        return taken

    def _taken(self) -> MemoryDelivery | None:
        return self._queue.take_in_turn(self._tags, self._turns)

    def _is_over(self, deadline: float) -> bool:
        return self._is_interrupted or _now() >= deadline

    def interrupt(self) -> None:
        self._is_interrupted = True
        self._queue.wake()

    @property
    def ack_wait_sec(self) -> float:
        return self._queue.ack_wait

    async def keep_settings(self) -> None:
        await asyncio.get_running_loop().create_future()  # nobody changes them

    async def pause(self) -> None:
        """Nothing is prefetched."""

    async def close(self) -> None:
        pass


def _now() -> float:
    return asyncio.get_running_loop().time()
