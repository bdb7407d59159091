"""Request bodies: read within a limit, parsed strictly, and refused with the place that is wrong."""

from typing import Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from pyoco_server.errors import RequestTooLarge

M = TypeVar("M", bound=BaseModel)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, never more than `limit` bytes of it in memory."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise RequestTooLarge(f"the body has {declared} bytes; at most {limit} are allowed")
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise RequestTooLarge(f"the body has more than {limit} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def parse_json(body: bytes, model: type[M]) -> M:
    """Strict JSON (no NaN, no invalid UTF-8) of the given shape; otherwise FastAPI's 422 with each place."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid_json(str(error)) from error
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise RequestValidationError(
            [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors(include_url=False)]
        ) from error


def _invalid_json(reason: str) -> RequestValidationError:
    return RequestValidationError([{"type": "json_invalid", "loc": ("body",), "msg": f"JSON: {reason}"}])


def json_body_docs(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """For OpenAPI: what `parse_json` accepts."""
    return {
        "requestBody": {
            "required": required,
            "content": {"application/json": {"schema": model.model_json_schema()}},
        }
    }
