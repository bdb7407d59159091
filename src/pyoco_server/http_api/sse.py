"""Server-sent events."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial

import msgspec
from fastapi import Request
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from starlette.types import Receive, Scope, Send

from pyoco_server.answers import RunChange
from pyoco_server.http_api.gateway import gateway_of
from pyoco_server.http_api.middleware import caller_of
from pyoco_server.http_api.views import snapshot_view
from pyoco_server.usecases.ports.stores import Clock
from pyoco_server.usecases.runs.watch import Heartbeat, ListChange, WatchEvent

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Proxies must not buffer events."""
_LINE_SEPARATORS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""JSON allows them in strings, but some clients end a line there: a flow name could forge an event."""


class EventStream(StreamingResponse):
    """`opened` is entered before the first byte, so that a refusal still has a status."""

    def __init__(self, opened: AbstractAsyncContextManager[AsyncIterator[bytes]]) -> None:
        super().__init__((), media_type="text/event-stream", headers=_HEADERS)
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        allowed = partial(gateway_of(request).is_still_allowed, caller_of(request))
        async with self._opened as events, aclosing(_while(allowed, events)) as self.body_iterator:
            await super().__call__(scope, receive, send)


async def _while(
    is_allowed: Callable[[], Awaitable[bool]], events: AsyncIterator[bytes]
) -> AsyncGenerator[bytes, None]:
    """A revoked key ends its streams at the next event, at most 2 s later."""
    async for event in events:
        if not await is_allowed():
            return
        yield event


@asynccontextmanager
async def run_events(
    run_id: str,
    watching: AbstractAsyncContextManager[AsyncIterator[WatchEvent]],
    include: Collection[str],
    clock: Clock,
) -> AsyncIterator[AsyncIterator[bytes]]:
    async with watching as events, aclosing(_texts(run_id, events, include, clock)) as texts:
        yield texts


async def _texts(
    run_id: str, events: AsyncIterator[WatchEvent], include: Collection[str], clock: Clock
) -> AsyncGenerator[bytes, None]:
    async for event in events:
        if isinstance(event, Heartbeat):
            yield sse_event("heartbeat", RunChange(run_id, event.at))
        elif isinstance(event, list):
            yield sse_event("log", RunChange(run_id, clock(), lines=event))
        else:
            change = RunChange(run_id, clock(), snapshot=snapshot_view(event.value, include))
            yield sse_event("snapshot", change, str(event.revision))


@asynccontextmanager
async def list_events(
    watching: AbstractAsyncContextManager[AsyncIterator[ListChange]],
) -> AsyncIterator[AsyncIterator[bytes]]:
    async with watching as events, aclosing(_list_texts(events)) as texts:
        yield texts


async def _list_texts(changes: AsyncIterator[ListChange]) -> AsyncGenerator[bytes, None]:
    async for change in changes:
        yield sse_event("runs", change)


def sse_event(name: str, data: object, event_id: str | None = None) -> bytes:
    text = msgspec.json.encode(data).decode()
    for separator, escape in _LINE_SEPARATORS.items():
        text = text.replace(separator, escape)
    return format_sse_event(data_str=text, event=name, id=event_id)
