"""Answers that travel in one piece: nothing is held back for longer than a turn of the loop."""

import asyncio
from typing import Any

from pyoco_server.cli.http_server import MAX_HELD_BYTES, InOnePiece


class Wire:
    """What a transport was asked to send, call by call."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.sent.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def on(wire: Any) -> InOnePiece:
    return InOnePiece(wire, asyncio.get_running_loop())


async def test_a_head_and_its_body_are_one_write() -> None:
    wire = Wire()
    transport = on(wire)
    transport.write(b"head ")
    transport.write(b"body")
    assert wire.sent == [b"head body"]
    await asyncio.sleep(0)
    assert wire.sent == [b"head body"]


async def test_a_head_whose_body_takes_its_time_goes_alone() -> None:
    wire = Wire()
    transport = on(wire)
    transport.write(b"head")
    await asyncio.sleep(0)
    assert wire.sent == [b"head"]
    transport.write(b"event")
    await asyncio.sleep(0)
    assert wire.sent == [b"head", b"event"]


async def test_what_is_large_is_neither_held_nor_kept() -> None:
    wire = Wire()
    transport = on(wire)
    large = b"x" * (MAX_HELD_BYTES + 1)
    transport.write(large)
    assert wire.sent == [large]


async def test_the_end_of_a_connection_comes_after_what_was_held() -> None:
    wire = Wire()
    transport = on(wire)
    transport.write(b"last words")
    transport.close()
    assert (wire.sent, wire.is_closed) == ([b"last words"], True)
    await asyncio.sleep(0)
    assert wire.sent == [b"last words"]


async def test_all_else_is_the_transports_own() -> None:
    wire = Wire()
    assert on(wire).is_closing() is False
    wire.close()
    assert on(wire).is_closing() is True
