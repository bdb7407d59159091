"""Consumers that read along: nothing is acknowledged, and a gateway that is killed leaves none behind."""

from typing import Any, NamedTuple

from nats.aio.msg import Msg

from pyoco_server.jetstream.connection import ApiError, NatsConnection
from pyoco_server.jetstream.streams import CONSUMER_NOT_FOUND, NANOSECONDS
from pyoco_server.usecases.ports import Revision

INACTIVE_SEC = 60.0
"""The server removes a consumer that nobody asked for so long."""


async def create_reader(
    connection: NatsConnection,
    stream: str,
    subject: str,
    *,
    name: str | None = None,
    deliver_policy: str = "last_per_subject",
    after: Revision | None = None,
) -> dict[str, Any]:
    """Its name (the server's choice if none is given) and `num_pending`: how much there is to read.

    `after`: of all that was stored, only what is behind this.
    """
    config: dict[str, Any] = {
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(INACTIVE_SEC * NANOSECONDS),
        "deliver_policy": deliver_policy,
        "filter_subject": subject,
    }
    if after is not None:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
    if name is None:
        return await connection.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
    return await connection.api(
        f"CONSUMER.CREATE.{stream}.{name}.{subject}",
        {"stream_name": stream, "config": {**config, "name": name}, "action": "create"},
    )


async def delete_reader(connection: NatsConnection, stream: str, name: str) -> None:
    """Fine if it is gone."""
    try:
        await connection.api(f"CONSUMER.DELETE.{stream}.{name}")
    except ApiError as error:
        if error.err_code != CONSUMER_NOT_FOUND:
            raise


class DeliveryFacts(NamedTuple):
    revision: Revision
    number: int
    """The consumer counts what it sends, from 1 on: the proof that nothing was missed."""
    at: float
    """Unix seconds of when it was stored."""
    pending: int
    """How much there was still to send."""


_FIELDS_V1 = 9
"""`$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<timestamp>.<pending>`; the newer form
has a domain and an account in front of the stream, and a token behind."""


def delivery_facts(message: Msg) -> DeliveryFacts:
    """From the reply subject, by hand: the library builds a dozen objects, which doubles a message's cost."""
    tokens = message.reply.split(".")
    shift = 0 if len(tokens) == _FIELDS_V1 else 2
    revision, number, at, pending = tokens[5 + shift : 9 + shift]
    return DeliveryFacts(Revision(int(revision)), int(number), int(at) / NANOSECONDS, int(pending))
