"""Requests: bodies read within limits and parsed strictly; routes that refuse unknown input."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import msgspec
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import ClientDisconnect

from pyoco_server.domain.inputs import MAX_DELAY_SEC, Refused, decode_json, nearest, unix_time
from pyoco_server.domain.runs.jobs import MAX_TIMESTAMP
from pyoco_server.domain.runs.model import Priority, RunRetry
from pyoco_server.errors import BodyTooSlow, InvalidListQuery, PyocoServerError, RequestTooLarge
from pyoco_server.http_api.access import ScopedRoute
from pyoco_server.http_api.gateway import gateway_of
from pyoco_server.http_api.middleware import header_of, wait_for_turn
from pyoco_server.usecases.concurrency import LIGHT_BYTES, off_loop

MIN_BYTES_PER_SEC = 4096
"""Minimum average rate of an upload that takes longer than the timeout of a body."""
MAX_DIGITS = 20
MAX_FIELDS = 100
"""More than any body has."""
MAX_PROBLEMS = 50
"""Reported per body: thousands of unknown fields would each be compared with the known ones."""

M = TypeVar("M", bound=BaseModel)


class Body(BaseModel):
    """A body without unknown fields: ignoring one would look like accepting it."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)  # tracebacks are logged

    @model_validator(mode="before")
    @classmethod
    def _with_few_unknown(cls, value: Any) -> Any:
        """Reports a few unknown fields, not thousands."""
        if type(value) is not dict or len(value) <= MAX_FIELDS:
            return value
        known = {name: value[name] for name in _names(cls) if name in value}
        return {**dict(islice(value.items(), MAX_FIELDS)), **known}


# Fields of a run, wherever one can be requested.

Seconds = Annotated[float, Field(strict=True, gt=0, le=MAX_DELAY_SEC)]


class RetryFields(Body):
    """Whether and when a failed try is followed by another. Fields without a value have the defaults."""

    max_attempts: int = Field(1, strict=True, ge=1, le=100, description="All tries, including the first")
    backoff_sec: float = Field(
        5.0, strict=True, ge=0, le=MAX_DELAY_SEC, description="Time between the first try and the second"
    )
    factor: float = Field(2.0, strict=True, ge=1, le=100, description="Growth of that time with every try")
    max_backoff_sec: float = Field(3600.0, strict=True, ge=0, le=MAX_DELAY_SEC, description="Its limit")
    jitter: float = Field(0.1, strict=True, ge=0, le=1, description="Random part of it")
    on: list[Literal["error", "timeout", "crash"]] = Field(
        ["error", "timeout", "crash"], min_length=1, max_length=3, description="Failures to retry"
    )


Timestamp = Annotated[
    Annotated[float, Field(strict=True, ge=0, le=MAX_TIMESTAMP)] | str, AfterValidator(unix_time)
]


class RunFields(Body):
    run_at: Timestamp | None = Field(
        None, description="Do not start before this time: RFC 3339 with an offset, or Unix seconds"
    )
    delay_sec: Annotated[float, Field(strict=True, ge=0, le=MAX_DELAY_SEC)] | None = Field(
        None, description="Do not start before this time has passed"
    )
    start_within_sec: Seconds | None = Field(
        None, description="Fail if no worker has started the run in this time (after the delay)"
    )
    timeout_sec: Seconds | None = Field(None, description="Timeout of each try")
    retry: RetryFields | None = Field(None, description="Retry policy")
    priority: Priority | None = Field(
        None,
        description="`high` overtakes what waits for the same tag, `low` lets it pass; default: `normal`",
    )

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if self.run_at is not None and self.delay_sec is not None:
            raise ValueError("run_at and delay_sec exclude each other")
        return self

    def timing(self) -> dict[str, Any]:
        """For a `Submission`."""
        return {
            "run_at": self.run_at,
            "delay_sec": self.delay_sec,
            "start_within_sec": self.start_within_sec,
            "timeout_sec": self.timeout_sec,
            "retry": run_retry(self.retry),
            "priority": self.priority,
        }


def run_retry(fields: RetryFields | None) -> RunRetry | None:
    return None if fields is None else RunRetry(**{**dict(fields), "on": tuple(fields.on)})


def run_fields_of_form(fields: dict[str, str]) -> RunFields:
    """Values of a form are text: JSON, or a time."""
    return validated({name: _form_value(text) for name, text in fields.items()}, RunFields)


def _form_value(text: str) -> Any:
    try:
        return decode_json(text.encode())
    except Refused:
        return text


async def read_body(request: Request, limit: int, decoded_at_once: int | None = None) -> bytes:
    """The whole body, at most `limit` bytes, once there is room to decode it.

    `decoded_at_once`: how much of it is decoded at a time; default: all.
    """
    body = await _read(request, limit)
    await wait_for_turn(request, min(len(body), decoded_at_once or limit))
    return body


async def _read(request: Request, limit: int) -> bytes:
    declared = header_of(request.scope, b"content-length") or ""
    if declared.isascii() and declared.isdigit() and int(declared[:MAX_DIGITS]) > limit:
        raise RequestTooLarge(f"the body has {declared} bytes; at most {limit} are allowed")
    timeout_sec = gateway_of(request).body_timeout_sec
    try:
        async with asyncio.timeout(timeout_sec):
            return await _whole(request, limit)
    except TimeoutError as error:
        raise BodyTooSlow(f"the body did not arrive within {timeout_sec:g} s") from error


async def _whole(request: Request, limit: int) -> bytes:
    """Without the generators of `within`, which cost a small request more than its body."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise RequestTooLarge(f"the body has more than {limit} bytes")
        if not message.get("more_body", False):
            return b"".join(chunks)


async def within(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    """The chunks of the body. Raises RequestTooLarge or BodyTooSlow."""
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
            f"the body arrived too slowly: at least {MIN_BYTES_PER_SEC} bytes per second, "
            f"and no pause of {timeout_sec:g} s"
        ) from error


async def parse_json(body: bytes, model: type[M]) -> M:
    """Strict JSON as `model`; otherwise FastAPI's 422 with the location of each problem.

    No NaN, no invalid UTF-8, no duplicate key, no integer beyond 64 bits.
    """
    return await off_loop(len(body), _parsed, body, model)


def _parsed(body: bytes, model: type[M]) -> M:
    try:
        value = decode_json(body)
    except Refused as error:
        raise invalid_json(error) from error
    return validated(value, model)


def batch_items(body: bytes, model: type[BaseModel], name: str, most: int) -> list[msgspec.Raw]:
    """The items of the list `name`, at most `most`, as JSON: a batch is not decoded as a whole.

    `model` validates the rest of the body, and that each item is an object.
    """
    try:
        parts = _parts(body, name)
        items = parts.get(name, msgspec.Raw(b"[]"))
        if memoryview(items).nbytes > LIGHT_BYTES:
            # Stops at the first item that is not an object: millions of numbers cost nothing.
            count = len(msgspec.json.decode(items, type=list[_Object]))
            raw = (
                msgspec.json.decode(items, type=list[msgspec.Raw]) if count <= most else [items] * (most + 1)
            )
        else:
            raw = msgspec.json.decode(items, type=list[msgspec.Raw])
            count = len(raw)
        is_alone = _is_alone(body, name, memoryview(items).nbytes)
        if not is_alone and len(body) <= LIGHT_BYTES:
            decode_json(body)  # may locate the problem
    except Refused as error:
        raise invalid_json(error) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_json(Refused((), f"JSON: {error}")) from error
    if count > most:
        problem = f"List should have at most {most} items after validation, not {count}"
        raise RequestValidationError([{"type": "too_long", "loc": ("body", name), "msg": problem}])
    if list(parts) == [name] and not is_alone:
        raise invalid_json(Refused((name,), f"duplicate key {name!r}"))
    # Other keys are refused whatever their values, so these are not decoded.
    others = dict.fromkeys(islice(parts, MAX_PROBLEMS))
    validated({**others, name: [{} if bytes(memoryview(item)[:1]) == b"{" else None for item in raw]}, model)
    return raw


def batch_parts(items: list[msgspec.Raw], max_bytes: int) -> Iterator[list[msgspec.Raw]]:
    """In parts: decoded values take several times the memory of their JSON."""
    part: list[msgspec.Raw] = []
    size = 0
    for item in items:
        length = memoryview(item).nbytes
        if part and size + length > max_bytes:
            yield part
            part, size = [], 0
        part.append(item)
        size += length
    yield part


class _Object(msgspec.Struct, gc=False):
    """Any object, without its content."""


def _parts(body: bytes, name: str) -> dict[str, msgspec.Raw]:
    """The values of an object by key. A large one is refused at the first key other than `name`."""
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
    """Whether `name` is the only key of an object; its value has `size` bytes.

    Of a duplicate key the decoder returns the last value, so the body is longer than that.
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
    """The problems of a body, with a suggestion for each unknown field."""
    problems: list[dict[str, Any]] = [
        dict(problem)
        for problem in islice(error.errors(include_url=False, include_input=False), MAX_PROBLEMS)
    ]
    for problem in problems:
        if problem["type"] == "extra_forbidden":
            *path, name = problem["loc"]
            problem["msg"] = unknown("field", str(name), _names(_model_at(model, path)))
        elif problem["type"] == "value_error":
            problem["msg"] = str(problem["ctx"]["error"])  # the library's text begins with "Value error"
    return problems


def _model_at(model: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel]:
    """The model of an object inside a body."""
    for step in path:
        fields = model.model_fields.items()
        annotations = [field.annotation for name, field in fields if (field.alias or name) == step]
        model = next((inner for one in annotations for inner in _models_in(one)), model)
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _names(model: type[BaseModel]) -> list[str]:
    """As clients send them, the model's own before those that it shares with others."""
    own = model.__annotations__
    fields = sorted(model.model_fields.items(), key=lambda item: item[0] not in own)
    return [field.alias or name for name, field in fields]


def unknown(kind: str, name: str, known: Collection[str]) -> str:
    """With a suggestion, and all known names."""
    return f"unknown {kind} {name!r}{nearest(name, known)}; known: {', '.join(known) or 'none'}"


def invalid_json(refused: Refused) -> RequestValidationError:
    return RequestValidationError(
        [{"type": "json_invalid", "loc": ("body", *refused.path), "msg": str(refused)}]
    )


def json_body_docs(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """For OpenAPI: the body that `parse_json` accepts."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})
    return {
        "requestBody": {
            "required": required,
            "content": {"application/json": {"schema": _inlined(schema, parts)}},
        }
    }


def _inlined(schema: Any, parts: dict[str, Any]) -> Any:
    """In OpenAPI, references are relative to the document, not to the schema."""
    if isinstance(schema, list):
        return [_inlined(item, parts) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(parts[schema["$ref"].rpartition("/")[2]], parts)
    return {key: _inlined(value, parts) for key, value in schema.items()}


# Routes


class StrictRoute(ScopedRoute):
    """Refuses unknown query parameters: a mistyped filter would return everything."""

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


def refusing_with(error: type[PyocoServerError]) -> type[StrictRoute]:
    """A route class that reports invalid input as `error`, with its location."""

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


def query_time(name: str, text: str | None) -> float | None:
    """Raises InvalidListQuery."""
    if text is None:
        return None
    is_number = text.replace(".", "", 1).isdecimal()
    try:
        return unix_time(float(text) if is_number else text)
    except ValueError as error:
        raise InvalidListQuery(f"invalid list query: {name}: {error}") from error


def places(problems: Iterable[Any]) -> str:
    """Location and problem in one line: `limit: Input should be less than or equal to 200`."""
    return "; ".join(f"{_place(problem['loc'])}: {problem['msg']}" for problem in problems)


def _place(location: Sequence[Any]) -> str:
    inside = location[1:] if location and location[0] in ("query", "body", "header", "path") else location
    return ".".join(map(str, inside)) or "body"
