"""F6: a feed goes on with another consumer when the old one does not serve it any more."""

import asyncio
from typing import Any, cast

from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.feed import FeedContact, _Reading
from pyoco_server.usecases.ports.stores import NO_HORIZON, Change, FeedBatch, FeedPosition, Revision


class CutOff:
    """A connection that does not know yet that nobody hears it."""

    is_connected = True

    async def api(self, *_: object) -> dict[str, Any]:
        raise NatsUnavailable("nats unavailable: request timed out")

    def api_subject(self, verb: str) -> str:
        return verb

    def new_inbox(self) -> str:
        return "inbox"

    async def subscribe_directly(self, *_: object) -> None:
        pass

    async def publish(self, *_: object, reply: str) -> None:
        pass

    def on_reconnect(self, _: object) -> None:
        pass

    def forget_callback(self, _: object) -> None:
        pass


def reading() -> _Reading[str]:
    return _Reading(
        cast("NatsConnection", CutOff()),
        "STREAM",
        "consumer",
        lambda message, facts: Change(message.subject, facts.revision, None, None),
        FeedPosition("now", Revision(0)),
        FeedContact(lambda: True),
    )


async def test_f6_a_consumer_that_cannot_be_removed_does_not_end_its_feed() -> None:
    await reading().close()


async def test_f6_a_consumer_that_says_nothing_is_left_for_another() -> None:
    """Its node is cut off from the one that we are connected to, which has nothing to complain about."""
    cut_off = reading()
    cut_off._pull._silence = 0.05
    await cut_off.open(is_reset=False, pending=1, horizon=NO_HORIZON)

    async def batches() -> list[FeedBatch[str]]:
        return [batch async for batch in cut_off.batches()]

    (first,) = await asyncio.wait_for(batches(), 10)
    assert (first.changes, first.pending, first.is_caught_up) == ([], 1, False)
