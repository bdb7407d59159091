"""Jobs for a worker's tags, from one durable consumer per tag."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from nats.aio.msg import Msg

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.runs.jobs import Job
from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import REQUEST_TIMEOUT_SEC, ApiError, NatsConnection, translated
from pyoco_server.jetstream.pull_consumer import PullConsumer, sequence_in_stream, times_delivered
from pyoco_server.jetstream.queue import RETENTION_HEADER, REVISION_HEADER
from pyoco_server.jetstream.streams import (
    CONSUMER_EXISTS,
    CONSUMER_NOT_FOUND,
    NANOSECONDS,
    JetStreamTime,
)
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.ports.stores import Revision

log = get_logger(__name__)

MAX_HOLD_SEC = 5.0
HOLDS_PER_ACK_WAIT = 3
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
            return float(text) or None
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


class JetStreamJobSource:
    """Polls the tags in turn; when all are empty, requests the next job from all of them.

    Requesting from all tags at once would return too many jobs. Surplus jobs have to be returned to the
    queue, and each return uses up a delivery. Jobs that arrive while the worker is busy are held for a short
    time, oldest first, and then returned.
    """

    def __init__(self, connection: NatsConnection, config: NatsBackendConfig, tags: Sequence[str]) -> None:
        self._connection = connection
        self._config = config
        self._server_time = JetStreamTime(connection, config.work_stream)
        self._ack_waits: dict[str, float] = {}
        self._waiting: deque[JetStreamDelivery] = deque()
        self._wake = asyncio.Event()
        self._is_interrupted = False
        self._is_paused = False
        self._returns: set[asyncio.Task[None]] = set()
        self._consumers = {
            tag: PullConsumer(connection, config.work_stream, _durable(tag), self._arrived, self._wake.set)
            for tag in tags
        }
        self._turns = deque(self._consumers.values())

    async def open(self) -> None:
        for tag, consumer in self._consumers.items():
            self._ack_waits[tag] = await ensure_consumer(self._connection, self._config, tag)
            await consumer.open()

    @property
    def ack_wait_sec(self) -> float:
        return min(self._ack_waits.values(), default=self._config.consumer_ack_wait_sec)

    async def keep_settings(self) -> None:
        while True:
            await asyncio.sleep(SETTINGS_SEC)
            for tag in self._consumers:
                with best_effort(log, "consumer.settings", NatsUnavailable, tag=tag):
                    self._ack_waits[tag] = await ensure_consumer(self._connection, self._config, tag)

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
        for tag, consumer in self._consumers.items():
            with best_effort(log, "consumer.withdraw", NatsUnavailable, tag=tag):
                await consumer.withdraw()
        await self._return_waiting()

    async def close(self) -> None:
        for consumer in self._consumers.values():
            await consumer.close()
        await self._return_waiting()
        if self._returns:
            await asyncio.wait(self._returns)

    async def _ask(self, wanted: int) -> None:
        for tag, consumer in self._consumers.items():
            if consumer.refusal is not None:
                await self._restore(tag, consumer)
        if len(self._consumers) > 1:
            if wanted <= len(self._waiting):  # each request costs a round trip
                return
            wanted -= await self._take_turns(wanted)
        for consumer in self._consumers.values():
            await consumer.ask(wanted)

    async def _take_turns(self, wanted: int) -> int:
        """The number of jobs received from those queued now."""
        had = len(self._waiting)
        for consumer in list(self._turns):
            if consumer.requested:  # empty, or it would have sent a job
                continue
            before = len(self._waiting)
            await consumer.ask_now(wanted - (before - had))
            await self._until_answered(consumer)
            if len(self._waiting) > before:
                self._turns.remove(consumer)
                self._turns.append(consumer)
            if len(self._waiting) - had >= wanted or self._is_interrupted:
                break
        return len(self._waiting) - had

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

    async def _restore(self, tag: str, consumer: PullConsumer) -> None:
        """Recreate the consumer if it was deleted; after a leader change it still exists."""
        with best_effort(log, "consumer.restore", NatsUnavailable, tag=tag):
            self._ack_waits[tag] = await ensure_consumer(self._connection, self._config, tag)
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

    def _arrived(self, message: Msg) -> None:
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


def _durable(tag: str) -> str:
    return f"pyoco_workers_{tag}"


async def ensure_consumer(connection: NatsConnection, config: NatsBackendConfig, tag: str) -> float:
    """Create the consumer if missing; the AckWait in effect, in seconds. An operator's values are kept."""
    name = _durable(tag)
    found = await _consumer_info(connection, config.work_stream, name)
    if found is None:
        await _create_consumer(connection, config, tag)
        found = await _consumer_info(connection, config.work_stream, name)
    if found is None:
        raise NatsUnavailable(f"nats unavailable: the consumer {name} was deleted")
    return _ack_wait_sec(found["config"])


async def _consumer_info(connection: NatsConnection, stream: str, name: str) -> dict[str, Any] | None:
    try:
        return await connection.api(f"CONSUMER.INFO.{stream}.{name}")
    except ApiError as error:
        if error.err_code == CONSUMER_NOT_FOUND:
            return None
        raise


def _ack_wait_sec(consumer: dict[str, Any]) -> float:
    """With a backoff, its values replace the AckWait for each delivery in turn."""
    waits: list[int] = [consumer["ack_wait"], *(consumer.get("backoff") or [])]
    return min(waits) / NANOSECONDS


async def _create_consumer(connection: NatsConnection, config: NatsBackendConfig, tag: str) -> None:
    name, subject = _durable(tag), f"{config.work_subject_prefix}.{tag}"
    consumer = {
        "durable_name": name,
        "name": name,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": int(config.consumer_ack_wait_sec * NANOSECONDS),
        "max_deliver": config.consumer_max_deliver,
        "max_ack_pending": config.consumer_max_ack_pending,
        "filter_subject": subject,
    }
    try:
        await connection.api(
            f"CONSUMER.CREATE.{config.work_stream}.{name}.{subject}",
            {"stream_name": config.work_stream, "config": consumer, "action": "create"},
        )
    except ApiError as error:
        if error.err_code not in CONSUMER_EXISTS:
            raise


class JetStreamJobSources:
    def __init__(self, connection: NatsConnection, config: NatsBackendConfig) -> None:
        self._connection = connection
        self._config = config

    async def open(self, tags: Sequence[str]) -> JetStreamJobSource:
        source = JetStreamJobSource(self._connection, self._config, tags)
        await source.open()
        return source
