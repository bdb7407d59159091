"""Large JSON answers are compressed; what is small, or a stream, is sent as it is."""

import gzip
from typing import Any

import httpx2
import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from pyoco_server.http_api.middleware import MIN_ZIPPED_BYTES, OFF_LOOP_BYTES, ZippedAnswers
from support.gateway import new_memory_gateway

ASKED = [(b"accept-encoding", b"gzip, br")]


async def sent(response: Response, headers: list[tuple[bytes, bytes]]) -> list[Message]:
    """Every message, in the order in which it was sent."""
    messages: list[Message] = []
    scope: Scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await response(scope, receive, send)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.append(message)

    await ZippedAnswers(app)(scope, receive, send)
    return messages


def text_of(size: int) -> Any:
    return {"text": "x" * (size - len('{"text":""}'))}


@pytest.mark.parametrize("size", [MIN_ZIPPED_BYTES, OFF_LOOP_BYTES + 1])
async def test_a_large_answer_is_zipped_if_the_client_can_read_it(size: int) -> None:
    start, body = await sent(JSONResponse(text_of(size)), ASKED)
    headers = dict(start["headers"])
    assert headers[b"content-encoding"] == b"gzip"
    assert headers[b"vary"] == b"Accept-Encoding"
    assert int(headers[b"content-length"]) == len(body["body"]) < size / 10
    assert len(gzip.decompress(body["body"])) == size
    start, body = await sent(JSONResponse(text_of(size)), [])
    assert b"content-encoding" not in dict(start["headers"])
    assert len(body["body"]) == size


async def test_a_small_answer_and_what_is_zipped_already_stay_as_they_are() -> None:
    start, body = await sent(JSONResponse(text_of(MIN_ZIPPED_BYTES - 1)), ASKED)
    assert b"content-encoding" not in dict(start["headers"])
    assert len(body["body"]) == MIN_ZIPPED_BYTES - 1
    packed = JSONResponse(text_of(MIN_ZIPPED_BYTES), headers={"Content-Encoding": "br"})
    assert dict((await sent(packed, ASKED))[0]["headers"])[b"content-encoding"] == b"br"


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_a_stream_is_sent_piece_by_piece(kind: str) -> None:
    async def pieces() -> Any:
        for n in range(3):
            yield f"data: {n}\n\n".encode()

    messages = await sent(StreamingResponse(pieces(), media_type=kind), ASKED)
    assert b"content-encoding" not in dict(messages[0]["headers"])
    assert [one["body"] for one in messages[1:4]] == [b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n"]


async def test_the_gateway_zips_its_long_lists() -> None:
    async with new_memory_gateway() as (client, _):
        zipped: httpx2.Response = await client.get("/openapi.json", headers={"Accept-Encoding": "gzip"})
        assert zipped.headers["content-encoding"] == "gzip"
        assert "/runs" in zipped.json()["paths"]
        small = await client.get("/runs", headers={"Accept-Encoding": "gzip"})
        assert "content-encoding" not in small.headers
