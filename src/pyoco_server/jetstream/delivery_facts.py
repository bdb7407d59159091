"""What a message of a consumer says about itself, in the subject that acknowledges it."""

from typing import NamedTuple

from nats.aio.msg import Msg

from pyoco_server.jetstream.streams import NANOSECONDS
from pyoco_server.usecases.ports import Revision


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
    _, revision, number, at, pending = _numbers(message)
    return DeliveryFacts(Revision(int(revision)), int(number), int(at) / NANOSECONDS, int(pending))


def times_delivered(message: Msg) -> int:
    """The first time is 1."""
    return int(_numbers(message)[0])


def sequence_in_stream(message: Msg) -> int:
    """The same at every delivery."""
    return int(_numbers(message)[1])


def _numbers(message: Msg) -> list[str]:
    tokens = message.reply.split(".")
    shift = 0 if len(tokens) == _FIELDS_V1 else 2
    return tokens[4 + shift : 9 + shift]
