"""The work queue with a subject for each lane of a tag, undeliverable jobs, and timers.

A delayed job is a scheduled message: it waits under a subject of its own, which no worker's consumer reads,
and the server puts it on its tag's subject when it is due.

The server reports a job that has used up its deliveries in an advisory, a plain message without redelivery. A
stream of its own keeps advisories until a gateway has handled them; all gateways share one consumer, so each
is handled once. The server gives up on a message only when a worker requests the next one: without a worker
for a tag, its jobs wait.
"""

import time
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.queues import lane_of
from pyoco_server.domain.runs.jobs import Job, message_id_of
from pyoco_server.errors import NatsUnavailable, RequestTooLarge, TimersUnsupported
from pyoco_server.jetstream.connection import ApiError, NatsConnection, PayloadTooLarge, dotted, translated
from pyoco_server.jetstream.kv import (
    StoredMessage,
    is_gone,
    last_of_leader,
    next_of_leader,
    scan,
    sequence_of,
)
from pyoco_server.jetstream.pull_consumer import SharedConsumer, sequence_in_stream
from pyoco_server.jetstream.storage import JetStreamTime
from pyoco_server.jetstream.streams import ensure_streams
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.ports.queues import HeldJob, QueuedJob, QueuedMessage
from pyoco_server.usecases.ports.stores import Revision

REVISION_HEADER = "Pyoco-Run-Revision"
RETENTION_HEADER = "Pyoco-Run-Retention"
TIMER_KEY_HEADER = "Pyoco-Timer-Key"
DELAYED = "_delayed"
"""Between the subject prefix and the id of a run whose job is delayed. Tags have no dots."""
HELD = "_held"
"""The same for a run that waits for a place in its limits."""
TIMER_ACK_WAIT_SEC = 4.0
"""Short: a tick that a killed gateway held is still on time at the next."""
SCHEDULES_SINCE = (2, 12)
"""Older servers store a scheduled message and never send it."""
FRESH_OFFSET_SEC = 10.0


class _Consumer(Struct, frozen=True):
    """Delivery state of a subject."""

    max_deliver: int
    delivered: int
    ack_floor: int
    is_idle: bool
    """No delivered message is awaiting an ack or redelivery."""

    def has_given_up(self, sequence: int) -> bool:
        """Whether a stored message was delivered and will not be redelivered."""
        return sequence <= self.ack_floor or (self.is_idle and sequence <= self.delivered)


_NO_CONSUMER = _Consumer(0, 0, 0, is_idle=True)


class WorkQueue:
    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        subject_prefix: str,
        *,
        scans: NatsConnection | None = None,
        retention_sec: float | None = None,
        allows_schedules: bool = True,
    ) -> None:
        """`scans`: a connection for long reads, so that they do not delay submits."""
        self._allows_schedules = allows_schedules
        self._retention = {} if retention_sec is None else {RETENTION_HEADER: str(retention_sec)}
        self._connection = connection
        self._scans = scans or connection
        self._stream = stream
        self._prefix = subject_prefix
        self._clock = _ServerClock(JetStreamTime(connection, stream))

    async def publish(self, job: Job, revision: Revision, message_id: str | None = None) -> bool:
        data = codec.encode_job(job)
        subject = lane_of(job).subject(self._prefix)
        headers = {
            "Nats-Msg-Id": message_id or message_id_of(job),
            REVISION_HEADER: str(revision),
            **self._retention,
        }
        if job.is_held:
            subject = self._held(job.run_id)
        elif job.not_before is not None and job.not_before > await self.now():
            headers |= schedule_headers(self._connection, job.not_before, subject)
            subject = self._delayed(job.run_id)
        try:
            return await self._publish(subject, data, headers)
        except PayloadTooLarge as error:
            raise RequestTooLarge(f"the job takes {len(data)} bytes: {error}") from error

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str]) -> bool:
        """Repeat after a timeout, which leaves the outcome unknown; the message id prevents duplicates."""
        try:
            ack = await self._connection.publish_acked(subject, data, headers)
        except ApiError:
            raise
        except NatsUnavailable:
            await self._connection.publish_acked(subject, data, headers)
            return True
        return not ack.duplicate

    async def now(self) -> float:
        return await self._clock()

    def require_timers(self) -> None:
        require_timers(self._connection)
        if not self._allows_schedules:
            raise TimersUnsupported(
                f"the stream {self._stream} allows no message schedules; NATS refuses them for streams with "
                "discard: new"
            )

    async def unschedule(self, run_id: str) -> None:
        await purge(self._connection, self._stream, self._delayed(run_id))

    def _delayed(self, run_id: str) -> str:
        return f"{self._prefix}.{DELAYED}.{run_id}"

    async def held(self, run_id: str) -> HeldJob | None:
        found = await last_of_leader(self._connection, self._stream, self._held(run_id))
        return None if found is None else HeldJob(codec.decode_job(found.data), found.sequence)

    async def remove_held(self, run_id: str, last: int | None = None) -> None:
        await purge(self._connection, self._stream, self._held(run_id), last)

    def _held(self, run_id: str) -> str:
        return f"{self._prefix}.{HELD}.{run_id}"

    async def jobs(self) -> list[QueuedJob]:
        consumers = (
            await self._consumers()
        )  # first, so that a job delivered meanwhile does not count as given up
        return [
            QueuedJob(
                message.sequence,
                codec.run_id_in(message.data),
                consumer.max_deliver,
                consumer.has_given_up(message.sequence),
                is_held=message.subject.startswith(f"{self._prefix}.{HELD}."),
            )
            async for message in self._messages()
            for consumer in (consumers.get(message.subject, _NO_CONSUMER),)
        ]

    async def _messages(self) -> AsyncIterator[StoredMessage]:
        """All messages that the leader has at the start.

        A lagging replica may serve the scan. It lacks only the newest messages, because replicas store them
        in the leader's order, so the leader is asked for later ones. A partitioned leader considers itself
        the leader for some seconds; a sweep waits longer than that.
        """
        subjects, reached = f"{self._prefix}.>", 0
        last = (await self._state())["last_seq"]
        async for found in scan(self._scans, self._stream, subjects):
            reached = sequence_of(found)
            yield StoredMessage(reached, (found.headers or {}).get("Nats-Subject", ""), found.data)
        while reached < last and (
            message := await next_of_leader(self._scans, self._stream, subjects, reached)
        ):
            reached = message.sequence
            yield message

    async def count(self) -> int:
        count: int = (await self._state())["messages"]
        return count

    async def _state(self) -> dict[str, Any]:
        """The stream state from its leader."""
        info = await self._scans.api(f"STREAM.INFO.{self._stream}")
        state: dict[str, Any] = info["state"]
        return state

    async def run_ids(self) -> set[str]:
        return {job.run_id for job in await self.jobs() if job.run_id is not None}

    async def _consumers(self) -> dict[str, _Consumer]:
        """Consumers by their job subject."""
        found: dict[str, _Consumer] = {}
        offset, total = 0, 1
        while offset < total:
            answer = await self._scans.api(f"CONSUMER.LIST.{self._stream}", {"offset": offset})
            listed = answer.get("consumers") or []
            found |= {one["config"].get("filter_subject", ""): _consumer(one) for one in listed}
            offset, total = offset + max(1, len(listed)), answer.get("total", 0)
        return found


class _ServerClock:
    """The server's clock, asked at most every few seconds."""

    def __init__(self, server: JetStreamTime) -> None:
        self._server = server
        self._offset = 0.0
        self._measured_at = float("-inf")

    async def __call__(self) -> float:
        if time.monotonic() - self._measured_at > FRESH_OFFSET_SEC:
            now = await self._server.now()
            self._measured_at = time.monotonic()
            self._offset = now - self._measured_at
        return time.monotonic() + self._offset


def require_timers(connection: NatsConnection) -> None:
    """Raises TimersUnsupported."""
    if connection.server_version < SCHEDULES_SINCE:
        raise TimersUnsupported(
            f"delays, retries and schedules require NATS {dotted(SCHEDULES_SINCE)} or newer; "
            f"this server is {dotted(connection.server_version)}"
        )


def schedule_headers(connection: NatsConnection, at: float, target: str) -> dict[str, str]:
    """Headers of a message that the server sends to `target` at that time. Raises TimersUnsupported."""
    require_timers(connection)
    when = datetime.fromtimestamp(at, UTC).isoformat()
    return {"Nats-Schedule": f"@at {when}", "Nats-Schedule-Target": target}


async def purge(connection: NatsConnection, stream: str, subject: str, last: int | None = None) -> None:
    """`last`: the sequence of the last message to remove."""
    part = {} if last is None else {"seq": last + 1}
    await connection.api(f"STREAM.PURGE.{stream}", {"filter": subject, **part})


def _consumer(info: dict[str, Any]) -> _Consumer:
    return _Consumer(
        max_deliver=max(0, info["config"].get("max_deliver", 0)),
        delivered=info["delivered"]["stream_seq"],
        ack_floor=info["ack_floor"]["stream_seq"],
        is_idle=not info.get("num_ack_pending", 0),
    )


# Undeliverable jobs

log = get_logger(__name__)

DURABLE = "pyoco_gateways"


class _Advisory(msgspec.Struct):
    stream_seq: int
    deliveries: int


class JetStreamUndeliverableJob:
    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        advisory: _Advisory,
        ack: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`ack` acknowledges the advisory, if there was one."""
        self._connection = connection
        self._stream = stream
        self._ack = ack
        self.sequence = advisory.stream_seq
        self.deliveries = advisory.deliveries

    async def read(self) -> QueuedMessage | None:
        try:
            answer = await self._connection.api(f"STREAM.MSG.GET.{self._stream}", {"seq": self.sequence})
        except ApiError as error:
            if is_gone(error):
                return None
            raise
        stored = answer["message"]
        return QueuedMessage(b64decode(stored.get("data", "")), stored["subject"])

    async def remove(self) -> None:
        body = {"seq": self.sequence, "no_erase": True}
        try:
            await self._connection.api(f"STREAM.MSG.DELETE.{self._stream}", body)
        except ApiError as error:
            if not is_gone(error):
                raise

    async def settle(self) -> None:
        if self._ack is not None:
            with translated():
                await self._ack()


class JetStreamUndeliverable:
    def __init__(self, connection: NatsConnection, config: NatsBackendConfig) -> None:
        self._connection = connection
        self._config = config
        ensure = partial(ensure_streams, connection, config)
        self._advisories = SharedConsumer(connection, config.advisories_stream, DURABLE, ensure)

    async def follow(self) -> AsyncIterator[JetStreamUndeliverableJob]:
        async for message in self._advisories.messages():
            job = await self._job(message)
            if job is not None:
                yield job

    async def _job(self, message: Msg) -> JetStreamUndeliverableJob | None:
        try:
            advisory = msgspec.json.decode(message.data, type=_Advisory)
        except msgspec.MsgspecError as error:
            log.warning("skipped an unreadable advisory", action="advisory.unreadable", exc_info=error)
            with best_effort(log, "advisory.settle", NatsUnavailable), translated():
                await message.ack()
            return None
        return JetStreamUndeliverableJob(self._connection, self._config.work_stream, advisory, message.ack)

    def at(self, sequence: int, deliveries: int) -> JetStreamUndeliverableJob:
        advisory = _Advisory(sequence, deliveries)
        return JetStreamUndeliverableJob(self._connection, self._config.work_stream, advisory)


# Timers: one scheduled message each, in a stream of its own.


class JetStreamTimer:
    def __init__(self, message: Msg) -> None:
        self._message = message
        self.id = str(sequence_in_stream(message))
        self.key = (message.headers or {}).get(TIMER_KEY_HEADER, "")
        self.payload = message.data

    async def settle(self) -> None:
        with translated():
            await self._message.ack()


class JetStreamTimers:
    """A timer of a kind waits under `<prefix>.at.<kind>.<key>` and is then sent to `<prefix>.due.<kind>`."""

    def __init__(self, requests: NatsConnection, feeds: NatsConnection, config: NatsBackendConfig) -> None:
        self._requests = requests
        self._feeds = feeds
        self._config = config
        self._prefix = config.timers_subject_prefix

    async def set(self, kind: str, key: str, at: float, payload: bytes = b"") -> None:
        headers = {
            **schedule_headers(self._requests, at, f"{self._prefix}.due.{kind}"),
            TIMER_KEY_HEADER: key,
        }
        await self._requests.publish_acked(f"{self._prefix}.at.{kind}.{key}", payload, headers)

    async def clear(self, kind: str, key: str) -> None:
        await purge(self._requests, self._config.timers_stream, f"{self._prefix}.at.{kind}.{key}")

    async def follow(self, kind: str) -> AsyncGenerator[JetStreamTimer, None]:
        due = SharedConsumer(
            self._feeds,
            self._config.timers_stream,
            f"{DURABLE}_{kind}",
            partial(ensure_streams, self._feeds, self._config),
            subject=f"{self._prefix}.due.{kind}",
            ack_wait_sec=TIMER_ACK_WAIT_SEC,
        )
        async for message in due.messages():
            yield JetStreamTimer(message)
