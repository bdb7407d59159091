"""The durable consumer of each lane: created, paused, sized, and emptied into the plain lane."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Self

from nats.aio.msg import Msg

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.queues import Lane, Pause
from pyoco_server.errors import NatsUnavailable, TimersUnsupported
from pyoco_server.jetstream.connection import (
    CONSUMER_EXISTS,
    CONSUMER_NOT_FOUND,
    NANOSECONDS,
    REQUEST_TIMEOUT_SEC,
    ApiError,
    NatsConnection,
    dotted,
    translated,
)
from pyoco_server.jetstream.pull_consumer import PullConsumer, sequence_in_stream
from pyoco_server.jetstream.storage import JetStreamTime
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports.queues import NoRoomForLane

log = get_logger(__name__)

PAUSE_SINCE = (2, 11)
NO_END = "2200-01-01T00:00:00Z"
"""JetStream knows no pause without an end."""
RESUME_SEC = 0.1
"""The end of a pause wakes the consumer at once; a resume only at the next heartbeat of a request."""
MAX_WAITING = 16_384
"""Requests that wait at a consumer, about one per idle worker. It cannot be changed later."""
MERGED_AT_ONCE = 100
_TOO_MANY_CONSUMERS = frozenset({10026, 10067})


async def ensure_consumer(
    connection: NatsConnection, config: NatsBackendConfig, lane: Lane, pause: Pause | None = None
) -> float:
    """Create the consumer if missing; the AckWait in effect, in seconds. An operator's values are kept."""
    found = await _info(connection, config.work_stream, lane)
    if found is None:
        await _create(connection, config, lane, pause)
        found = await _info(connection, config.work_stream, lane)
    if found is None:
        raise NatsUnavailable(f"nats unavailable: the consumer {lane.durable} was deleted")
    return _ack_wait_sec(found["config"])


async def _info(connection: NatsConnection, stream: str, lane: Lane) -> dict[str, Any] | None:
    try:
        return await connection.api(f"CONSUMER.INFO.{stream}.{lane.durable}")
    except ApiError as error:
        if error.err_code == CONSUMER_NOT_FOUND:
            return None
        raise


def _ack_wait_sec(consumer: dict[str, Any]) -> float:
    """With a backoff, its values replace the AckWait for each delivery in turn."""
    waits: list[int] = [consumer["ack_wait"], *(consumer.get("backoff") or [])]
    return min(waits) / NANOSECONDS


async def _create(
    connection: NatsConnection, config: NatsBackendConfig, lane: Lane, pause: Pause | None
) -> None:
    name, subject = lane.durable, lane.subject(config.work_subject_prefix)
    consumer: dict[str, Any] = {
        "durable_name": name,
        "name": name,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": int(config.consumer_ack_wait_sec * NANOSECONDS),
        "max_deliver": config.consumer_max_deliver,
        "max_ack_pending": config.consumer_max_ack_pending,
        "max_waiting": MAX_WAITING,
        "filter_subject": subject,
    }
    if pause is not None:
        consumer["pause_until"] = _until(pause)
    try:
        await _apply(connection, config, lane, consumer, "create")
    except ApiError as error:
        if error.err_code not in CONSUMER_EXISTS:
            raise


async def _apply(
    connection: NatsConnection, config: NatsBackendConfig, lane: Lane, consumer: dict[str, Any], action: str
) -> None:
    subject = lane.subject(config.work_subject_prefix)
    await connection.api(
        f"CONSUMER.CREATE.{config.work_stream}.{lane.durable}.{subject}",
        {"stream_name": config.work_stream, "config": consumer, "action": action},
    )


def _until(pause: Pause) -> str:
    return NO_END if pause.until is None else datetime.fromtimestamp(pause.until, UTC).isoformat()


class JetStreamLanes:
    def __init__(self, connection: NatsConnection, config: NatsBackendConfig) -> None:
        self._connection = connection
        self._config = config
        self._time = JetStreamTime(connection, config.work_stream)

    def require_pause(self) -> None:
        if self._connection.server_version < PAUSE_SINCE:
            raise TimersUnsupported(
                f"a pause requires NATS {dotted(PAUSE_SINCE)} or newer; "
                f"this server is {dotted(self._connection.server_version)}"
            )

    async def open(self, lane: Lane, pause: Pause | None) -> None:
        try:
            await ensure_consumer(self._connection, self._config, lane, pause)
        except ApiError as error:
            if error.err_code in _TOO_MANY_CONSUMERS:
                raise NoRoomForLane(error.description) from error
            raise

    async def pause(self, lane: Lane, pause: Pause) -> None:
        await self.open(lane, pause)
        await self._pause_until(lane, _until(pause))

    async def resume(self, lane: Lane) -> None:
        found = await _info(self._connection, self._config.work_stream, lane)
        if found is None or not found.get("paused"):
            return
        at = await self._time.now() + RESUME_SEC
        await self._pause_until(lane, datetime.fromtimestamp(at, UTC).isoformat())

    async def _pause_until(self, lane: Lane, until: str) -> None:
        subject = f"CONSUMER.PAUSE.{self._config.work_stream}.{lane.durable}"
        await self._connection.api(subject, {"pause_until": until})

    async def make_room(self, lane: Lane, deliveries: int) -> None:
        found = await _info(self._connection, self._config.work_stream, lane)
        if found is None:
            return
        current: int = found["config"].get("max_ack_pending", 0)
        if not self._config.consumer_max_ack_pending <= current < deliveries:
            return  # enough, unlimited, or less than the setting: an operator wants that
        wanted = {**found["config"], "max_ack_pending": deliveries}
        await _apply(self._connection, self._config, lane, wanted, "update")
        log.info(
            "workers may hold more jobs of a tag",
            action="consumer.grown",
            consumer=lane.durable,
            before=current,
            max_ack_pending=deliveries,
        )

    async def merge(self, lane: Lane) -> int:
        moved = 0
        async with _Taking(self._connection, self._config, lane) as taking:
            while messages := await taking.some():
                for message in messages:
                    await self._move(message, lane)
                moved += len(messages)
        return moved

    async def _move(self, message: Msg, lane: Lane) -> None:
        """Under another message id: its own is known, and the copy would be dropped as a duplicate."""
        headers = {name: text for name, text in (message.headers or {}).items() if name in _KEPT_HEADERS}
        headers["Nats-Msg-Id"] = f"{lane.durable}.{sequence_in_stream(message)}"
        plain = Lane(lane.tag).subject(self._config.work_subject_prefix)
        await self._connection.publish_acked(plain, message.data, headers)
        with translated():
            await message.ack()


_KEPT_HEADERS = frozenset({"Pyoco-Run-Revision", "Pyoco-Run-Retention"})


class _Taking:
    """Jobs that wait in a lane now."""

    def __init__(self, connection: NatsConnection, config: NatsBackendConfig, lane: Lane) -> None:
        self._messages: list[Msg] = []
        self._changed = asyncio.Event()
        self._pull = PullConsumer(
            connection, config.work_stream, lane.durable, self._received, self._changed.set
        )

    async def __aenter__(self) -> Self:
        await self._pull.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pull.close()

    async def some(self) -> list[Msg]:
        self._messages = []
        await self._pull.ask_now(MERGED_AT_ONCE)
        with suppress(TimeoutError):
            async with asyncio.timeout(REQUEST_TIMEOUT_SEC):
                while self._pull.requested:
                    self._changed.clear()
                    await self._changed.wait()
        return self._messages

    def _received(self, message: Msg) -> None:
        self._messages.append(message)
        self._changed.set()
