"""Request bodies: read within a limit, parsed strictly, and refused with the place that is wrong."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from pyoco_server.errors import BodyTooSlow, RequestTooLarge

PATIENCE_SEC = 30.0
"""For a whole body of JSON: whoever sends a byte a second only wants our connections."""
MAX_DIGITS = 20

M = TypeVar("M", bound=BaseModel)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, never more than `limit` bytes of it in memory."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:MAX_DIGITS]) > limit:
        raise RequestTooLarge(f"the body has {declared} bytes; at most {limit} are allowed")
    try:
        async with asyncio.timeout(PATIENCE_SEC):
            return b"".join([chunk async for chunk in _bounded(request.stream(), limit)])
    except TimeoutError as error:
        raise BodyTooSlow(f"the body did not arrive within {PATIENCE_SEC:g} s") from error


async def within(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    """The body's chunks, as long as they are not too many, and none keeps us waiting too long."""
    async for chunk in _bounded(_prompt(request.stream()), limit):
        yield chunk


async def _bounded(chunks: AsyncGenerator[bytes, None], limit: int) -> AsyncGenerator[bytes, None]:
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise RequestTooLarge(f"the body has more than {limit} bytes")
        yield chunk


async def _prompt(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    while (chunk := await _next(chunks)) is not None:
        yield chunk


async def _next(chunks: AsyncGenerator[bytes, None]) -> bytes | None:
    try:
        async with asyncio.timeout(PATIENCE_SEC):
            return await anext(chunks, None)
    except TimeoutError as error:
        raise BodyTooSlow(f"nothing more of the body came for {PATIENCE_SEC:g} s") from error


def parse_json(body: bytes, model: type[M]) -> M:
    """Strict JSON (no NaN, no invalid UTF-8) of the given shape; otherwise FastAPI's 422 with each place."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid_json(str(error)) from error
    return validated(value, model)


def batch_items(body: bytes, model: type[BaseModel], name: str, most: int) -> list[msgspec.Raw]:
    """The items of the list `name`, `most` of them, each as JSON: a batch is not decoded as a whole.

    `model` checks everything around them, and that each is an object.
    """
    try:
        parts = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        raw = msgspec.json.decode(parts.pop(name, b"[]"), type=list[msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid_json(str(error)) from error
    if len(raw) > most:
        problem = f"List should have at most {most} items after validation, not {len(raw)}"
        raise RequestValidationError([{"type": "too_long", "loc": ("body", name), "msg": problem}])
    around = {key: msgspec.json.decode(value) for key, value in parts.items()}
    validated({**around, name: [{} if bytes(memoryview(item)[:1]) == b"{" else None for item in raw]}, model)
    return raw


def validated(value: Any, model: type[M]) -> M:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise RequestValidationError(
            [
                {**problem, "loc": ("body", *problem["loc"])}
                for problem in error.errors(include_url=False, include_input=False)
            ]
        ) from error


def _invalid_json(reason: str) -> RequestValidationError:
    return RequestValidationError([{"type": "json_invalid", "loc": ("body",), "msg": f"JSON: {reason}"}])


def json_body_docs(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """For OpenAPI: what `parse_json` accepts."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})
    return {
        "requestBody": {
            "required": required,
            "content": {"application/json": {"schema": _inlined(schema, parts)}},
        }
    }


def _inlined(schema: Any, parts: dict[str, Any]) -> Any:
    """References lead from the document's root in OpenAPI, not from the schema they stand in."""
    if isinstance(schema, list):
        return [_inlined(item, parts) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(parts[schema["$ref"].rpartition("/")[2]], parts)
    return {key: _inlined(value, parts) for key, value in schema.items()}
