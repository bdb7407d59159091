"""F6: what a refused write says, and what it does not."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from nats.aio.client import Client as LibraryClient
from nats.aio.msg import Msg

from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.access import Client
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.usecases.ports.stores import WrongRevision

UNDER_WAY = {"error": {"code": 400, "err_code": 10164, "description": "wrong last sequence"}}
STORED = {"error": {"code": 400, "err_code": 10071, "description": "wrong last sequence: 7"}}
HEADERS = {"Nats-Expected-Last-Subject-Sequence": "0"}


class Answering(NatsConnection):
    """The last answer for ever."""

    def __init__(self, *answers: dict[str, Any], **options: Any) -> None:
        super().__init__("nats://nowhere", "test", **options)
        self._answers = list(answers)
        self.asked = 0

    async def request(self, *_: Any, **__: Any) -> Msg:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return Msg(self._client, data=msgspec.json.encode(answer))


async def test_f6_a_write_behind_another_one_waits_until_that_is_decided() -> None:
    stored = Answering(UNDER_WAY, UNDER_WAY, STORED)
    with pytest.raises(WrongRevision):
        await stored.publish_acked("subject", b"", HEADERS)
    dropped = Answering(UNDER_WAY, UNDER_WAY, {"seq": 8})
    assert (await dropped.publish_acked("subject", b"", HEADERS)).seq == 8
    assert (stored.asked, dropped.asked) == (3, 3)


async def test_f6_what_is_not_decided_is_not_known() -> None:
    with pytest.raises(NatsUnavailable):
        await Answering(UNDER_WAY, request_timeout_sec=0.02).publish_acked("subject", b"", HEADERS)


LINES = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.sampled_from(
            [b"Nats-Stream: RUNS", b"a b: c", b" x :\ty ", b":v", b"n:", "é: x".encode(), b"k\x1f: 1"]
        ),
    )
)


@given(LINES)
def test_headers_are_read_as_by_the_library(lines: list[bytes]) -> None:
    raw = b"\r\n".join(lines)
    assert Client._parse_header_lines(raw) == LibraryClient._parse_header_lines(raw)
