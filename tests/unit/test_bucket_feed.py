"""F6: a feed goes on with another consumer, also when the old one cannot be removed."""

from typing import Any, cast

from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.bucket_feed import _Reading
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.usecases.ports import Change, FeedPosition, Revision


class CutOff:
    """A connection that does not know yet that nobody hears it."""

    is_connected = True

    async def api(self, *_: object) -> dict[str, Any]:
        raise NatsUnavailable("nats unavailable: no answer in time")

    def api_subject(self, verb: str) -> str:
        return verb

    def new_inbox(self) -> str:
        return "inbox"

    def forget_callback(self, _: object) -> None:
        pass


async def test_f6_a_consumer_that_cannot_be_removed_does_not_end_its_feed() -> None:
    reading = _Reading[str](
        cast("NatsConnection", CutOff()),
        "STREAM",
        "consumer",
        lambda message, facts: Change(message.subject, facts.revision, None, None),
        FeedPosition("now", Revision(0)),
    )
    await reading.close()
