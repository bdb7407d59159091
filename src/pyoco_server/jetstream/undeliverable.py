"""Jobs that were delivered as often as they may: the server's advisories, kept in a stream of their own.

An advisory is a plain message that nobody repeats. The stream keeps it until a gateway has dealt with it; all
gateways share one consumer, so each is dealt with once. The server gives up on a message when the next worker
asks for one: while no worker serves a tag, its jobs wait, whatever was tried with them before.
"""

import asyncio
from base64 import b64decode
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from nats.aio.msg import Msg

from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream import topology
from pyoco_server.jetstream.connection import ApiError, NatsConnection, translated
from pyoco_server.jetstream.pull import PullConsumer
from pyoco_server.jetstream.streams import CONSUMER_EXISTS, NANOSECONDS
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.ports import QueuedMessage

log = get_logger(__name__)

DURABLE = "pyoco_gateways"
BATCH = 20
ACK_WAIT_SEC = 30.0
"""How long after a gateway died (or NATS failed) in the middle of it another tries."""
RETRY_SEC = 0.5
_NO_MESSAGE = frozenset({10037, 10043})
"""No such sequence; deleting something that is not there."""


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
        """`ack`: of the advisory, if there was one."""
        self._connection = connection
        self._stream = stream
        self._ack = ack
        self.sequence = advisory.stream_seq
        self.deliveries = advisory.deliveries

    async def read(self) -> QueuedMessage | None:
        try:
            answer = await self._connection.api(f"STREAM.MSG.GET.{self._stream}", {"seq": self.sequence})
        except ApiError as error:
            if error.err_code in _NO_MESSAGE:
                return None
            raise
        stored = answer["message"]
        return QueuedMessage(b64decode(stored.get("data", "")), stored["subject"])

    async def remove(self) -> None:
        body = {"seq": self.sequence, "no_erase": True}
        try:
            await self._connection.api(f"STREAM.MSG.DELETE.{self._stream}", body)
        except ApiError as error:
            if error.err_code not in _NO_MESSAGE:
                raise

    async def settle(self) -> None:
        if self._ack is not None:
            with translated():
                await self._ack()


class JetStreamUndeliverable:
    def __init__(self, connection: NatsConnection, config: NatsBackendConfig) -> None:
        self._connection = connection
        self._config = config
        self._arrived: deque[Msg] = deque()
        self._wake = asyncio.Event()

    async def follow(self) -> AsyncIterator[JetStreamUndeliverableJob]:
        pull = PullConsumer(
            self._connection, self._config.advisories_stream, DURABLE, self._receive, self._wake.set
        )
        pull.refusal = "not asked for yet"
        await pull.open()
        try:
            while True:
                if pull.refusal is not None:
                    await self._restore(pull)
                await pull.ask(BATCH)
                await pull.wait(self._wake)
                while self._arrived:
                    job = await self._job(self._arrived.popleft())
                    if job is not None:
                        yield job
        finally:
            self._arrived.clear()
            await pull.close()

    def _receive(self, message: Msg) -> None:
        self._arrived.append(message)
        self._wake.set()

    async def _job(self, message: Msg) -> JetStreamUndeliverableJob | None:
        try:
            advisory = msgspec.json.decode(message.data, type=_Advisory)
        except msgspec.MsgspecError as error:
            log.warning("an advisory is unreadable", action="advisory.unreadable", exc_info=error)
            with best_effort(log, "advisory.settle", NatsUnavailable), translated():
                await message.ack()
            return None
        return JetStreamUndeliverableJob(self._connection, self._config.work_stream, advisory, message.ack)

    def at(self, sequence: int, deliveries: int) -> JetStreamUndeliverableJob:
        advisory = _Advisory(sequence, deliveries)
        return JetStreamUndeliverableJob(self._connection, self._config.work_stream, advisory)

    async def _restore(self, pull: PullConsumer) -> None:
        """Stream and consumer are there afterwards, whoever deleted them."""
        try:
            await topology.ensure_resources(self._connection, self._config)
            await self._ensure_consumer()
        except NatsUnavailable as error:
            log.warning("advisories cannot be read yet", action="advisory.waiting", exc_info=error)
            await asyncio.sleep(RETRY_SEC)
        else:
            pull.refusal = None

    async def _ensure_consumer(self) -> None:
        stream = self._config.advisories_stream
        consumer = {
            "durable_name": DURABLE,
            "name": DURABLE,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": int(ACK_WAIT_SEC * NANOSECONDS),
            "max_deliver": -1,
        }
        try:
            await self._connection.api(
                f"CONSUMER.CREATE.{stream}.{DURABLE}",
                {"stream_name": stream, "config": consumer, "action": "create"},
            )
        except ApiError as error:
            if error.err_code not in CONSUMER_EXISTS:
                raise
