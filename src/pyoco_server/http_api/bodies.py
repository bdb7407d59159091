"""Request bodies: read within a limit, parsed strictly, and refused with the place that is wrong."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from pyoco_server.domain.names import nearest
from pyoco_server.domain.strict_json import Refused, decode_json
from pyoco_server.errors import BodyTooSlow, PyocoServerError, RequestTooLarge
from pyoco_server.http_api.gateway import gateway_of
from pyoco_server.http_api.middleware import wait_for_turn
from pyoco_server.usecases.concurrency import LIGHT_BYTES, off_loop

MIN_BYTES_PER_SEC = 4096
"""Average of an upload that takes longer than the timeout of a body; a byte now and then is too little."""
MAX_DIGITS = 20
MAX_FIELDS = 100
"""More than any body of ours has."""
MAX_PROBLEMS = 50
"""Of a body, that are answered: a body of unknown fields has thousands, each looked up among the known."""

M = TypeVar("M", bound=BaseModel)


class Body(BaseModel):
    """A body whose fields are all read: one that nobody reads would look accepted, so it is refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _with_few_unknown(cls, value: Any) -> Any:
        """Thousands of unknown fields would be thousands of problems; a few of them are refusal enough."""
        if type(value) is not dict or len(value) <= MAX_FIELDS:
            return value
        known = {name: value[name] for name in _names(cls) if name in value}
        return {**dict(islice(value.items(), MAX_FIELDS)), **known}


async def read_body(request: Request, limit: int, decoded_at_once: int | None = None) -> bytes:
    """The whole body, never more than `limit` bytes of it in memory, when there is room to decode it.

    `decoded_at_once`: so much of it, at most; without it, all.
    """
    body = await _read(request, limit)
    await wait_for_turn(request, min(len(body), decoded_at_once or limit))
    return body


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:MAX_DIGITS]) > limit:
        raise RequestTooLarge(f"the body has {declared} bytes; at most {limit} are allowed")
    timeout_sec = gateway_of(request).body_timeout_sec
    try:
        async with asyncio.timeout(timeout_sec):
            return b"".join([chunk async for chunk in _bounded(request.stream(), limit)])
    except TimeoutError as error:
        raise BodyTooSlow(f"the body did not arrive within {timeout_sec:g} s") from error


async def within(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    """The body's chunks, unless they are too many or come too slowly."""
    async for chunk in _bounded(_prompt(request.stream(), gateway_of(request).body_timeout_sec), limit):
        yield chunk


async def _bounded(chunks: AsyncGenerator[bytes, None], limit: int) -> AsyncGenerator[bytes, None]:
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise RequestTooLarge(f"the body has more than {limit} bytes")
        yield chunk


async def _prompt(chunks: AsyncGenerator[bytes, None], timeout_sec: float) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    began, size = loop.time(), 0
    while True:
        earned = began + timeout_sec + size / MIN_BYTES_PER_SEC - loop.time()
        chunk = await _next(chunks, earned, timeout_sec)
        if chunk is None:
            return
        size += len(chunk)
        yield chunk


async def _next(chunks: AsyncGenerator[bytes, None], earned: float, timeout_sec: float) -> bytes | None:
    try:
        async with asyncio.timeout(min(timeout_sec, earned)):
            return await anext(chunks, None)
    except TimeoutError as error:
        raise BodyTooSlow(
            f"the body came too slowly: at least {MIN_BYTES_PER_SEC} bytes a second, "
            f"and no pause of {timeout_sec:g} s"
        ) from error


async def parse_json(body: bytes, model: type[M]) -> M:
    """Strict JSON of the given shape; otherwise FastAPI's 422 with each place.

    No NaN, no invalid UTF-8, no key twice, no integer beyond 64 bits.
    """
    return await off_loop(len(body), _parsed, body, model)


def _parsed(body: bytes, model: type[M]) -> M:
    try:
        value = decode_json(body)
    except Refused as error:
        raise _invalid_json(error) from error
    return validated(value, model)


def batch_items(body: bytes, model: type[BaseModel], name: str, most: int) -> list[msgspec.Raw]:
    """The items of the list `name`, `most` of them, each as JSON: a batch is not decoded as a whole.

    `model` checks everything around them, and that each is an object.
    """
    try:
        parts = _parts(body, name)
        items = parts.get(name, msgspec.Raw(b"[]"))
        if memoryview(items).nbytes > LIGHT_BYTES:
            # The first that is no object ends it: a list of millions of numbers costs nothing.
            count = len(msgspec.json.decode(items, type=list[_Object]))
            raw = (
                msgspec.json.decode(items, type=list[msgspec.Raw]) if count <= most else [items] * (most + 1)
            )
        else:
            raw = msgspec.json.decode(items, type=list[msgspec.Raw])
            count = len(raw)
        is_alone = _is_alone(body, name, memoryview(items).nbytes)
        if not is_alone and len(body) <= LIGHT_BYTES:
            decode_json(body)  # it may be known where it is wrong
    except Refused as error:
        raise _invalid_json(error) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid_json(Refused((), f"JSON: {error}")) from error
    if count > most:
        problem = f"List should have at most {most} items after validation, not {count}"
        raise RequestValidationError([{"type": "too_long", "loc": ("body", name), "msg": problem}])
    if list(parts) == [name] and not is_alone:
        raise _invalid_json(Refused((name,), f"duplicate key {name!r}"))
    # What else is there is refused, whatever it says: it need not be decoded.
    others = dict.fromkeys(islice(parts, MAX_PROBLEMS))
    validated({**others, name: [{} if bytes(memoryview(item)[:1]) == b"{" else None for item in raw]}, model)
    return raw


class _Object(msgspec.Struct, gc=False):
    """Any object, with nothing of what is in it."""


def _parts(body: bytes, name: str) -> dict[str, msgspec.Raw]:
    """What an object says, by key. A large one is refused at the first key that is not `name`."""
    if len(body) <= LIGHT_BYTES:
        return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    only = msgspec.defstruct("Only", [(name, msgspec.Raw, msgspec.Raw(b"[]"))], forbid_unknown_fields=True)
    try:
        found: msgspec.Raw = getattr(msgspec.json.decode(body, type=only), name)
    except msgspec.ValidationError as error:
        other = re.search(r"unknown field `(.*?)`", str(error))
        if other is None:
            raise
        problem = unknown("field", other[1][:64], [name])
        raise RequestValidationError(
            [{"type": "extra_forbidden", "loc": ("body", other[1][:64]), "msg": problem}]
        ) from error
    return {name: found}


def _is_alone(body: bytes, name: str, size: int) -> bool:
    """Whether an object has one key and this alone, whose value has `size` bytes.

    Of a key that is there twice a decoder shows the last value; so there is more than its size.
    """
    head = re.match(rb'\s*\{\s*"%s"\s*:\s*' % re.escape(name.encode()), body)
    return head is not None and body[head.end() + size :].strip(b" \t\r\n") == b"}"


def validated(value: Any, model: type[M]) -> M:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise RequestValidationError(
            [{**problem, "loc": ("body", *problem["loc"])} for problem in problems_of(error, model)]
        ) from error


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[dict[str, Any]]:
    """What is wrong with a body, with the field that may have been meant for each unknown one."""
    problems: list[dict[str, Any]] = [
        dict(problem)
        for problem in islice(error.errors(include_url=False, include_input=False), MAX_PROBLEMS)
    ]
    for problem in problems:
        if problem["type"] == "extra_forbidden":
            problem["msg"] = unknown("field", str(problem["loc"][-1]), _names(model))
    return problems


def _names(model: type[BaseModel]) -> list[str]:
    """As senders write them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def unknown(kind: str, name: str, known: Collection[str]) -> str:
    """With what may have been meant, and everything that is known."""
    return f"unknown {kind} {name!r}{nearest(name, known)}; known: {', '.join(known) or 'none'}"


def _invalid_json(refused: Refused) -> RequestValidationError:
    return RequestValidationError(
        [{"type": "json_invalid", "loc": ("body", *refused.path), "msg": str(refused)}]
    )


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


# Routes that refuse what they do not know, and those whose bad input has an id of its own.


class StrictRoute(APIRoute):
    """Refuses query parameters that it does not know: a mistyped filter would answer with everything."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = [parameter.alias for parameter in self.dependant.query_params]

        async def handle_known(request: Request) -> Response:
            if request.scope["query_string"]:
                _check_query(request.query_params.keys(), known)
            return await handle(request)

        return handle_known


def _check_query(given: Iterable[str], known: Collection[str]) -> None:
    problems = [
        {
            "type": "extra_forbidden",
            "loc": ("query", name),
            "msg": unknown("query parameter", name, known),
        }
        for name in given
        if name not in known
    ]
    if problems:
        raise RequestValidationError(problems)


def refusing_with(error: type[PyocoServerError]) -> type[APIRoute]:
    """A route class that answers invalid input as `error`, with the place in the text."""

    class Route(StrictRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def handle_or_refuse(request: Request) -> Response:
                try:
                    return await handle(request)
                except RequestValidationError as invalid:
                    raise error(f"{error.entry.detail}: {places(invalid.errors())}") from invalid

            return handle_or_refuse

    return Route


def places(problems: Iterable[Any]) -> str:
    """Where and what, in one line: `limit: Input should be less than or equal to 200`."""
    return "; ".join(f"{_place(problem['loc'])}: {problem['msg']}" for problem in problems)


def _place(location: Sequence[Any]) -> str:
    inside = location[1:] if location and location[0] in ("query", "body", "header", "path") else location
    return ".".join(map(str, inside)) or "body"
