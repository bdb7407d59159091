"""The queue of jobs, in memory."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import wire
from pyoco_server.domain.jobs import Job
from pyoco_server.usecases.ports import Revision


@dataclass(eq=False)
class MemoryMessage:
    payload: bytes
    subject: str
    revision: Revision | None
    num_delivered: int = 0
    redeliver_at: float | None = None
    """When a delivered message comes back; None: it waits in the queue."""


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
    def revision(self) -> Revision | None:
        return self._message.revision

    def job(self) -> Job:
        return wire.decode_job(self.payload)

    async def ack(self) -> None:
        self._queue.forget(self._message)

    async def nak(self, delay: float) -> None:
        self._queue.postpone(self._message, delay)

    async def term(self) -> None:
        self._queue.forget(self._message)

    async def in_progress(self) -> None:
        self._queue.postpone(self._message, self._queue.ack_wait)


class MemoryQueue:
    """A work queue: a message is held by one taker at a time and comes back if it is not acknowledged."""

    def __init__(self, config: NatsBackendConfig) -> None:
        self.ack_wait = config.consumer_ack_wait_sec
        self._max_deliver = config.consumer_max_deliver
        self._prefix = config.work_subject_prefix
        self._messages: deque[MemoryMessage] = deque()
        self._seen: set[str] = set()

    async def publish(self, job: Job, revision: Revision, message_id: str | None = None) -> bool:
        known_as = message_id or job.run_id
        is_new = known_as not in self._seen
        if is_new:
            self._seen.add(known_as)
            await self.put(f"{self._prefix}.{job.tag}", wire.encode(job), revision)

        return is_new

    async def put(self, subject: str, payload: bytes, revision: Revision | None = None) -> None:
        """A message as it is, readable or not."""
        self._messages.append(MemoryMessage(payload, subject, revision))

    async def run_ids(self) -> set[str]:
        found = {wire.run_id_in(message.payload) for message in self._messages}
        return {run_id for run_id in found if run_id is not None}

    def forget(self, message: MemoryMessage) -> None:
        if message in self._messages:
            self._messages.remove(message)

    def postpone(self, message: MemoryMessage, seconds: float) -> None:
        message.redeliver_at = _now() + seconds

    def take(self, subjects: Sequence[str]) -> MemoryDelivery | None:
        for message in self._messages:
            due = message.redeliver_at is None or message.redeliver_at <= _now()
            if due and message.subject in subjects and message.num_delivered < self._max_deliver:
                message.num_delivered += 1
                message.redeliver_at = _now() + self.ack_wait
                return MemoryDelivery(self, message)
        return None

    def take_undeliverable(self) -> MemoryMessage | None:
        """A message whose last delivery has come to nothing."""
        for message in self._messages:
            is_due = message.redeliver_at is not None and message.redeliver_at <= _now()
            if is_due and message.num_delivered >= self._max_deliver:
                message.redeliver_at = _now() + self.ack_wait
                return message
        return None

    def holds(self, message: MemoryMessage) -> bool:
        return message in self._messages

    async def open(self, tags: Sequence[str]) -> "MemoryJobSource":
        return MemoryJobSource(self, [f"{self._prefix}.{tag}" for tag in tags])


class MemoryJobSource:
    _LOOK_SEC = 0.01
    """How often a waiting taker looks whether a delay has passed."""

    def __init__(self, queue: MemoryQueue, subjects: Sequence[str]) -> None:
        self._queue = queue
        self._subjects = subjects
        self._is_interrupted = False

    async def next(self, timeout: float, wanted: int = 1) -> MemoryDelivery | None:  # noqa: ASYNC109, ARG002
        deadline = _now() + timeout
        self._is_interrupted = False
        while (  # noqa: ASYNC110 - delays pass without an event
            taken := self._queue.take(self._subjects)
        ) is None and not self._is_over(deadline):
            await asyncio.sleep(min(self._LOOK_SEC, max(0.0, deadline - _now())))
        return taken

    def _is_over(self, deadline: float) -> bool:
        return self._is_interrupted or _now() >= deadline

    def interrupt(self) -> None:
        self._is_interrupted = True

    async def pause(self) -> None:
        """It asks for nothing ahead."""

    async def close(self) -> None:
        pass


def _now() -> float:
    return asyncio.get_running_loop().time()
