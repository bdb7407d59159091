"""Large values, which stand in runs as references."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Request, Response
from starlette.responses import StreamingResponse

from pyoco_server.domain.auth import Scope
from pyoco_server.domain.large_values import ByteRange, NotSatisfiable, range_in
from pyoco_server.errors import ValueNotFound
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import StrictRoute
from pyoco_server.http_api.errors import EVERYWHERE, answers_with
from pyoco_server.http_api.gateway import levels_of
from pyoco_server.http_api.middleware import caller_of

router = APIRouter(tags=["runs"], route_class=StrictRoute, responses=EVERYWHERE)

_DOCS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The value", "content": {"application/json": {}}},
    206: {"description": "The requested range of its bytes", "content": {"application/json": {}}},
    416: {"description": "The range lies outside of the value"},
}


@router.get(
    "/values/{sha256}",
    summary="Read a large value",
    responses={**_DOCS, **answers_with(ValueNotFound)},
)
@needs(Scope.READ)
async def read_value(
    request: Request,
    sha256: Annotated[str, Path(description="Hash of the value, as `$ref` has it")],
    range_: Annotated[str | None, Header(alias="Range", description="One range of bytes")] = None,
) -> Response:
    """The JSON that a `$ref` in params or a result stands for."""
    values = levels_of(request).runs.read_value
    value = await values.find(sha256, caller_of(request))
    headers = {"Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff", "ETag": f'"{value.sha256}"'}
    try:
        part = range_in(range_, value.size)
    except NotSatisfiable:
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{value.size}"})
    wanted = part or ByteRange(0, value.size)
    headers["Content-Length"] = str(wanted.end - wanted.start)
    if part is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.end - 1}/{value.size}"
    return StreamingResponse(
        values.read(value, wanted),
        status_code=200 if part is None else 206,
        media_type=value.type,
        headers=headers,
    )
