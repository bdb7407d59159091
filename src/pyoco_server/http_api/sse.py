"""Server-sent events."""

from collections.abc import AsyncIterator, Collection

import msgspec
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event

from pyoco_server.http_api.views import snapshot_view
from pyoco_server.usecases.ports import Clock
from pyoco_server.usecases.watch_run import Heartbeat, WatchEvent

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Proxies must pass events on as they come."""


def event_stream(events: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)


async def run_events(
    run_id: str,
    events: AsyncIterator[WatchEvent],
    include: Collection[str],
    clock: Clock,
) -> AsyncIterator[bytes]:
    async for event in events:
        if isinstance(event, Heartbeat):
            yield _event("heartbeat", {"run_id": run_id, "ts": event.at})
        elif isinstance(event, list):
            yield _event("log", {"run_id": run_id, "lines": event, "ts": clock()})
        else:
            data = {"run_id": run_id, "snapshot": snapshot_view(event.value, include), "ts": clock()}
            yield _event("snapshot", data, str(event.revision))


def _event(name: str, data: object, event_id: str | None = None) -> bytes:
    return format_sse_event(data_str=msgspec.json.encode(data).decode(), event=name, id=event_id)
