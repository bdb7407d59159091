"""Jobs for a worker's tags, from one durable consumer for each lane of a tag."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from nats.aio.msg import Msg

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.fleet import LANES, SHARES
from pyoco_server.domain.queues import Lane, QueueRecord, Turns
from pyoco_server.domain.runs.jobs import Job
from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import REQUEST_TIMEOUT_SEC, NatsConnection, translated
from pyoco_server.jetstream.consumers import ensure_consumer
from pyoco_server.jetstream.kv import KvStore
from pyoco_server.jetstream.pull_consumer import PullConsumer, sequence_in_stream, times_delivered
from pyoco_server.jetstream.queue import RETENTION_HEADER, REVISION_HEADER
from pyoco_server.jetstream.storage import JetStreamTime
from pyoco_server.jetstream.streams import ensure_stream, queues_bucket
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.ports.stores import Revision

log = get_logger(__name__)

MAX_HOLD_SEC = 5.0
HOLDS_PER_ACK_WAIT = 3
MANY_LANES = 3
"""The priorities of one tag; to ask more one after the other takes longer than to ask for all."""
SETTINGS_SEC = 30.0
"""How often consumer settings are read, because an operator may change them."""


class JetStreamDelivery:
    def __init__(self, message: Msg, server_time: JetStreamTime) -> None:
        self._message = message
        self._server_time = server_time

    @property
    def payload(self) -> bytes:
        return self._message.data

    @property
    def subject(self) -> str:
        return self._message.subject

    @property
    def num_delivered(self) -> int:
        return times_delivered(self._message)

    @property
    def sequence(self) -> int:
        return sequence_in_stream(self._message)

    @property
    def revision(self) -> Revision | None:
        text = (self._message.headers or {}).get(REVISION_HEADER, "")
        return Revision(int(text)) if text.isdigit() else None

    @property
    def retention_sec(self) -> float | None:
        text = (self._message.headers or {}).get(RETENTION_HEADER, "")
        try:
            return float(text)
        except ValueError:
            return None

    async def waited_sec(self) -> float:
        return await self._server_time.now() - self._message.metadata.timestamp.timestamp()

    def job(self) -> Job:
        return codec.decode_job(self._message.data)

    async def ack(self) -> None:
        with translated():
            await self._message.ack()

    async def nak(self, delay: float) -> None:
        with translated():
            await self._message.nak(delay=delay or None)

    async def term(self) -> None:
        with translated():
            await self._message.term()

    async def in_progress(self) -> None:
        with translated():
            await self._message.in_progress()


class QueueRecords:
    """The records of queues as a worker reads them. It goes on without: then it knows the plain lanes only.

    That is so with an older gateway, or without the right to read them.
    """

    def __init__(self, connection: NatsConnection, config: NatsBackendConfig) -> None:
        self._connection = connection
        self._config = config
        self._store: KvStore[QueueRecord] | None = None
        self._stops: list[Callable[[], Awaitable[None]]] = []

    @property
    def are_readable(self) -> bool:
        return self._store is not None

    async def get(self, tag: str) -> QueueRecord:
        with best_effort(log, "queue.read", NatsUnavailable, tag=tag):
            if self._store is None:
                await self._open()
            found = None if self._store is None else await self._store.get(tag)
            if found is not None:
                return found.value
        return QueueRecord(tag=tag)

    async def _open(self) -> None:
        bucket, replicas = self._config.queues_kv_bucket, self._config.jetstream_replicas
        stream = await ensure_stream(self._connection, queues_bucket(self._config), replicas)
        self._store = KvStore(self._connection, bucket, stream, codec.encode, codec.decode_queue)

    async def follow(self, tag: str, on_change: Callable[[QueueRecord], Awaitable[None]]) -> None:
        """A hint without guarantee: a write is a message, which may be lost."""

        async def received(message: Msg) -> None:
            with best_effort(log, "queue.changed", NatsUnavailable, tag=tag):
                await on_change(_record_in(message, tag))

        subject = f"$KV.{self._config.queues_kv_bucket}.{tag}"
        self._stops.append(await self._connection.listen(subject, received))

    async def close(self) -> None:
        for stop in self._stops:
            await stop()


def _record_in(message: Msg, tag: str) -> QueueRecord:
    try:
        return codec.decode_queue(message.data)
    except codec.Unreadable:  # removed, or damaged: the lanes that are known stay
        return QueueRecord(tag=tag)


class JetStreamJobSource:
    """Polls the lanes in turn; when all are empty, requests the next job from all of them.

    Requesting from all lanes at once would return too many jobs. Surplus jobs have to be returned to the
    queue, and each return uses up a delivery. Jobs that arrive while the worker is busy are held for a short
    time, oldest first, and then returned.
    """

    def __init__(self, connection: NatsConnection, config: NatsBackendConfig, tags: Sequence[str]) -> None:
        self._connection = connection
        self._config = config
        self._tags = tags
        self._server_time = JetStreamTime(connection, config.work_stream)
        self._records = QueueRecords(connection, config)
        self._ack_waits: dict[Lane, float] = {}
        self._waiting: deque[JetStreamDelivery] = deque()
        self._wake = asyncio.Event()
        self._is_interrupted = False
        self._is_paused = False
        self._returns: set[asyncio.Task[None]] = set()
        self._consumers: dict[Lane, PullConsumer] = {}
        self._missing: set[Lane] = set()
        """Lanes that it has no access to."""
        self._opening = asyncio.Lock()
        self._turns = Turns()
        self._lacking: dict[Lane, int] = {}
        """Jobs that were requested of lanes and have not arrived, while they are polled."""

    async def open(self) -> None:
        for tag in self._tags:
            await self._records.follow(tag, self._open_lanes)
            await self._open_lanes(await self._records.get(tag))

    async def _open_lanes(self, record: QueueRecord) -> None:
        async with self._opening:  # one change may follow another closely
            for lane in [lane for lane in record.all_lanes() if lane not in self._consumers]:
                if not lane.name:
                    await self._open_lane(lane, record)
                    continue
                self._missing.add(lane)  # a worker may have no right to it
                with best_effort(log, "lane.open", NatsUnavailable, tag=lane.tag, lane=lane.name):
                    await self._open_lane(lane, record)
                    self._missing.remove(lane)
        self._wake.set()

    async def _open_lane(self, lane: Lane, record: QueueRecord) -> None:
        self._ack_waits[lane] = await ensure_consumer(self._connection, self._config, lane, record.paused)
        consumer = PullConsumer(
            self._connection,
            self._config.work_stream,
            lane.durable,
            partial(self._arrived, lane),
            self._wake.set,
        )
        await consumer.open()
        self._consumers[lane] = consumer

    @property
    def ack_wait_sec(self) -> float:
        return min(self._ack_waits.values(), default=self._config.consumer_ack_wait_sec)

    @property
    def features(self) -> tuple[str, ...]:
        if not self._records.are_readable:
            return ()
        lacking = {SHARES if lane.share else LANES for lane in self._missing}
        return tuple(feature for feature in (LANES, SHARES) if feature not in lacking)

    @property
    def has_lanes(self) -> bool:
        return len(self._consumers) > len(self._tags)

    async def keep_settings(self) -> None:
        while True:
            await asyncio.sleep(SETTINGS_SEC)
            for tag in self._tags:
                with best_effort(log, "consumer.settings", NatsUnavailable, tag=tag):
                    await self._refresh(tag)

    async def _refresh(self, tag: str) -> None:
        record = await self._records.get(tag)
        await self._open_lanes(record)
        for lane in [lane for lane in self._consumers if lane.tag == tag]:
            self._ack_waits[lane] = await ensure_consumer(self._connection, self._config, lane, record.paused)

    async def next(self, timeout: float, wanted: int = 1) -> JetStreamDelivery | None:  # noqa: ASYNC109
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self._is_interrupted = False
        self._is_paused = False
        await self._ask(wanted - len(self._waiting))
        while not self._waiting:
            self._wake.clear()
            await self._ask(wanted)
            left = deadline - loop.time()
            if self._waiting or left <= 0 or self._is_interrupted:
                break
            await self._wait(min([left, *self._pauses()]))
        return self._waiting.popleft() if self._waiting else None

    def interrupt(self) -> None:
        self._is_interrupted = True
        self._wake.set()

    async def pause(self) -> None:
        self._is_paused = True
        for lane, consumer in list(self._consumers.items()):
            with best_effort(log, "consumer.withdraw", NatsUnavailable, tag=lane.tag):
                await consumer.withdraw()
        await self._return_waiting()

    async def close(self) -> None:
        await self._records.close()
        for consumer in self._consumers.values():
            await consumer.close()
        await self._return_waiting()
        if self._returns:
            await asyncio.wait(self._returns)

    async def _ask(self, wanted: int) -> None:
        for lane, consumer in list(self._consumers.items()):
            if consumer.refusal is not None:
                await self._restore(lane, consumer)
        if len(self._consumers) > 1:
            if wanted <= len(self._waiting):  # each request costs a round trip
                return
            wanted -= await self._take_turns(wanted)
        for consumer in list(self._consumers.values()):
            await consumer.ask(wanted)

    async def _take_turns(self, wanted: int) -> int:
        """The number of jobs received from those queued now. Never requests more than are lacking."""
        had = len(self._waiting)
        # One with an open request is empty, or it would have sent a job.
        lanes = {lane for lane, consumer in self._consumers.items() if not consumer.requested}
        if len(lanes) > MANY_LANES:
            lanes = await self._with_jobs(lanes)
        while lanes and not self._is_interrupted:
            lacking = wanted - (len(self._waiting) - had)
            if lacking <= 0:
                break
            lanes -= await self._take(self._turns.take(sorted(lanes), lacking))
        return len(self._waiting) - had

    async def _with_jobs(self, lanes: set[Lane]) -> set[Lane]:
        """Lanes that have jobs, waiting or held: one question, instead of one to every lane."""
        prefix, stream = self._config.work_subject_prefix, self._config.work_stream
        subjects: set[str] = set()
        for tag in {lane.tag for lane in lanes}:
            try:
                answer = await self._connection.api(
                    f"STREAM.INFO.{stream}", {"subjects_filter": f"{prefix}.*.{tag}"}
                )
            except NatsUnavailable:
                return lanes
            subjects |= (answer["state"].get("subjects") or {}).keys()
        return {lane for lane in lanes if not lane.name or lane.subject(prefix) in subjects}

    async def _take(self, planned: Mapping[Lane, int]) -> set[Lane]:
        """Request so many jobs of each lane; those that had fewer."""
        self._lacking.update(planned)
        for lane, count in planned.items():
            await self._consumers[lane].ask_now(count)
        for lane in planned:
            await self._until_answered(self._consumers[lane])
        lacking = {lane: self._lacking.pop(lane) for lane in planned}
        for lane, count in lacking.items():
            self._turns.gave_back(lane, count)
        return {lane for lane, count in lacking.items() if count}

    async def _until_answered(self, consumer: PullConsumer) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REQUEST_TIMEOUT_SEC
        while consumer.requested and not self._is_interrupted:
            left = deadline - loop.time()
            if left <= 0:
                consumer.forget()
                return
            self._wake.clear()
            await self._wait(left)

    async def _restore(self, lane: Lane, consumer: PullConsumer) -> None:
        """Recreate the consumer if it was deleted; after a leader change it still exists."""
        with best_effort(log, "consumer.restore", NatsUnavailable, tag=lane.tag):
            pause = (await self._records.get(lane.tag)).paused
            self._ack_waits[lane] = await ensure_consumer(self._connection, self._config, lane, pause)
            consumer.refusal = None

    def _pauses(self) -> list[float]:
        return [pause for c in self._consumers.values() if (pause := c.wait_before_asking) > 0]

    async def _wait(self, seconds: float) -> None:
        """Wait for an event. Not `wait_for`, which can lose a cancellation before Python 3.12."""
        waiter = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({waiter}, timeout=seconds)
        finally:
            waiter.cancel()

    def _arrived(self, lane: Lane, message: Msg) -> None:
        if self._lacking.get(lane):
            self._lacking[lane] -= 1
        else:
            self._turns.took(lane)
        delivery = JetStreamDelivery(message, self._server_time)
        if self._is_paused:
            self._return_soon(delivery)
            return
        self._waiting.append(delivery)
        self._wake.set()
        hold = min(MAX_HOLD_SEC, self.ack_wait_sec / HOLDS_PER_ACK_WAIT)
        asyncio.get_running_loop().call_later(hold, self._held_too_long, delivery)

    def _held_too_long(self, delivery: JetStreamDelivery) -> None:
        if delivery in self._waiting:
            self._waiting.remove(delivery)
            self._return_soon(delivery)

    def _return_soon(self, delivery: JetStreamDelivery) -> None:
        task = asyncio.ensure_future(self._return(delivery))
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def _return_waiting(self) -> None:
        while self._waiting:
            await self._return(self._waiting.popleft())

    async def _return(self, delivery: JetStreamDelivery) -> None:
        with best_effort(log, "job.give_back", NatsUnavailable, subject=delivery.subject):
            await delivery.nak(0)


class JetStreamJobSources:
    def __init__(self, connection: NatsConnection, config: NatsBackendConfig) -> None:
        self._connection = connection
        self._config = config

    async def open(self, tags: Sequence[str]) -> JetStreamJobSource:
        source = JetStreamJobSource(self._connection, self._config, tags)
        await source.open()
        return source
