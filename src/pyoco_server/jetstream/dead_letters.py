"""Dead letters: a stream with a subject per tag. The tenant of a letter is in a header."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing

from nats.aio.msg import Msg

from pyoco_server.domain import codec
from pyoco_server.domain.dead_letters import DeadLetter, StoredLetter
from pyoco_server.jetstream.connection import ApiError, NatsConnection
from pyoco_server.jetstream.feed import StreamFeed
from pyoco_server.jetstream.kv import StoredMessage, at_leader, is_gone, next_of_leader, scan, sequence_of
from pyoco_server.jetstream.pull_consumer import DeliveryFacts
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports.runs import LetterWindow
from pyoco_server.usecases.ports.stores import Change

log = get_logger(__name__)

TENANT_HEADER = "Pyoco-Tenant"


class DlqStream:
    def __init__(self, connection: NatsConnection, stream: str, subject_prefix: str) -> None:
        self._connection = connection
        self._stream = stream
        self._prefix = subject_prefix

    async def publish(self, letter: DeadLetter, tag: str, tenant_id: str | None = None) -> None:
        headers = {} if tenant_id is None else {TENANT_HEADER: tenant_id}
        await self._connection.publish_acked(f"{self._prefix}.{tag}", codec.encode(letter), headers)

    async def count(self) -> int:
        count: int = (await self._state())["messages"]
        return count

    async def before(self, number: int | None, limit: int) -> LetterWindow:
        state = await self._state()
        first, end = max(1, state["first_seq"]), state["last_seq"] + 1  # a new stream begins with 0
        end = end if number is None else min(end, number)
        start = max(first, end - limit)
        found = [self._stored(message) async for message in self._between(start, end)]
        return LetterWindow([one for one in found[::-1] if one is not None], start, first)

    async def get(self, number: int) -> StoredLetter | None:
        message = await at_leader(self._connection, self._stream, number)
        return None if message is None else self._stored(message)

    async def remove(self, number: int) -> bool:
        try:
            await self._connection.api(f"STREAM.MSG.DELETE.{self._stream}", {"seq": number, "no_erase": True})
        except ApiError as error:
            if not is_gone(error):
                raise
            return False
        return True

    async def _state(self) -> dict[str, int]:
        info = await self._connection.api(f"STREAM.INFO.{self._stream}")
        state: dict[str, int] = info["state"]
        return state

    async def _between(self, start: int, end: int) -> AsyncIterator[StoredMessage]:
        """A lagging replica may serve the scan, so the leader is asked for what follows."""
        subjects, reached = f"{self._prefix}.>", start - 1
        messages = scan(self._connection, self._stream, subjects, batch=end - start, start=start)
        if start < end:
            async with aclosing(messages):
                async for found in messages:
                    if (sequence := sequence_of(found)) >= end:
                        break
                    reached = sequence
                    headers = found.headers or {}
                    yield StoredMessage(sequence, headers["Nats-Subject"], found.data, headers)
        while reached < end - 1:
            following = await next_of_leader(self._connection, self._stream, subjects, reached)
            if following is None or following.sequence >= end:
                return
            reached = following.sequence
            yield following

    def _stored(self, message: StoredMessage) -> StoredLetter | None:
        return _stored_letter(message)


class LetterFeed(StreamFeed[StoredLetter]):
    """All letters, from the first."""

    deliver_policy = "all"

    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        subject_prefix: str,
        restore: Callable[[], Awaitable[object]],
    ) -> None:
        super().__init__(connection, stream, subject_prefix, _not_decoded, restore)

    def _change(self, message: Msg, facts: DeliveryFacts) -> Change[StoredLetter]:
        found = StoredMessage(facts.revision, message.subject, message.data, message.headers or {})
        return Change(message.subject, facts.revision, _stored_letter(found), None, facts.at)


def _not_decoded(data: bytes) -> StoredLetter:
    """A letter is more than its data."""
    raise NotImplementedError


def _stored_letter(message: StoredMessage) -> StoredLetter | None:
    try:
        letter = codec.decode_dead_letter(message.data)
    except codec.Unreadable as error:
        log.warning("unreadable dead letter skipped", action="dlq.unreadable", exc_info=error)
        return None
    return StoredLetter(
        number=message.sequence,
        tag=message.subject.rpartition(".")[2],
        tenant_id=_tenant_in(message.headers),
        letter=letter,
    )


def _tenant_in(headers: Mapping[str, str]) -> str | None:
    return headers.get(TENANT_HEADER) or None
