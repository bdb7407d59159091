"""Answers with stored content: whole, or a range of its bytes."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import Header, Response
from starlette.responses import StreamingResponse

from pyoco_server.domain.large_values import ByteRange, NotSatisfiable, StoredValue, range_in

RangeHeader = Annotated[str | None, Header(alias="Range", description="One range of bytes")]


def content_docs(what: str, media_type: str) -> dict[int | str, dict[str, Any]]:
    return {
        200: {"description": f"The {what}", "content": {media_type: {}}},
        206: {"description": "The requested range of its bytes", "content": {media_type: {}}},
        416: {"description": f"The range lies outside of the {what}"},
    }


def content_of(
    value: StoredValue,
    read: Callable[[StoredValue, ByteRange], AsyncIterator[bytes]],
    range_: str | None,
    media_type: str,
    headers: dict[str, str],
) -> Response:
    headers = {
        "Accept-Ranges": "bytes",
        "X-Content-Type-Options": "nosniff",
        "ETag": f'"{value.sha256}"',
        **headers,
    }
    try:
        part = range_in(range_, value.size)
    except NotSatisfiable:
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{value.size}"})
    wanted = part or ByteRange(0, value.size)
    headers["Content-Length"] = str(wanted.end - wanted.start)
    if part is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.end - 1}/{value.size}"
    return StreamingResponse(
        read(value, wanted),
        status_code=200 if part is None else 206,
        media_type=media_type,
        headers=headers,
    )
