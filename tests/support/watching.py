"""A stream of server-sent events, read as it comes, at the reader's own pace."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from msgspec import Struct

from support.waiting import PATIENCE_SEC


class Event(Struct, frozen=True):
    name: str
    data: dict[str, Any]
    id: str | None


class Stream:
    """One request to the application. What is sent waits until the test takes it, as in a full socket."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._started = asyncio.Event()
        self._asked = False
        self._gone = asyncio.Event()
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)
        self._text = ""

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            self._started.set()
            return
        if message.get("body"):
            await self._chunks.put(message["body"])
        if not message.get("more_body", False):
            await self._chunks.put(None)

    async def started(self) -> None:
        async with asyncio.timeout(PATIENCE_SEC):
            await self._started.wait()

    async def text(self) -> str:
        """All of it, when it has ended."""
        while await self._more():
            pass
        return self._text

    async def event(self) -> Event | None:
        """The next one; None when the stream has ended."""
        while "\n\n" not in self._text:
            if not await self._more():
                return None
        block, _, self._text = self._text.partition("\n\n")
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        return Event(fields["event"], json.loads(fields["data"]), fields.get("id"))

    async def next(self, *names: str) -> Event:
        """The next event of one of these names, or of any name but `heartbeat`."""
        while (event := await self.event()) is not None:
            if event.name in names or (not names and event.name != "heartbeat"):
                return event
        raise AssertionError("the stream has ended")

    async def rest(self) -> list[Event]:
        """What comes until the stream ends."""
        events = []
        while (event := await self.event()) is not None:
            events.append(event)
        return events

    async def _more(self) -> bool:
        async with asyncio.timeout(PATIENCE_SEC):
            chunk = await self._chunks.get()
        if chunk is not None:
            self._text += chunk.decode()
        return chunk is not None

    def leave(self) -> None:
        self._gone.set()


@asynccontextmanager
async def stream(app: FastAPI, path: str, **headers: str) -> AsyncIterator[Stream]:
    where, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": where,
        "raw_path": where.encode(),
        "query_string": query.encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("gateway", 80),
    }
    reading = Stream()
    answering = asyncio.ensure_future(app(scope, reading.receive, reading.send))
    try:
        await reading.started()
        yield reading
    finally:
        reading.leave()
        await asyncio.wait({answering}, timeout=PATIENCE_SEC)
        if answering.cancel():
            raise AssertionError("a stream outlived its reader")
