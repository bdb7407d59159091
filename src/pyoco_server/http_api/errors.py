"""The one table from errors to answers: status, body and language; and what routes answer, in OpenAPI."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from inspect import cleandoc
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from msgspec import Struct

from pyoco_server import answers
from pyoco_server.answers import ErrorBody
from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.events.retry import JobStatus
from pyoco_server.domain.executions.events import Actor
from pyoco_server.domain.languages import Language
from pyoco_server.domain.wheels import Actor as WheelActor
from pyoco_server.errors import (
    ApiKeyRequired,
    CommandRejected,
    ErrorEntry,
    InvalidApiKey,
    InvalidRequest,
    LimitReached,
    MissingScope,
    NatsUnavailable,
    PyocoServerError,
    UnexpectedError,
)
from pyoco_server.logs import get_logger

log = get_logger(__name__)

RETRY_AFTER_SEC = "1"
B = TypeVar("B", bound=ErrorBody)


def install(app: FastAPI) -> None:
    for kind, answer in _TABLE.items():
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(Exception, _answer_unexpected)


async def answer_any(request: Request, error: Exception) -> Response | None:
    """As if a route had raised it; None: not in the table, so a bug."""
    for kind, answer in _TABLE.items():
        if isinstance(error, kind):
            return await answer(request, error)
    return None


async def answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PyocoServerError)  # noqa: S101 - what the handler is registered for
    _log_refusal(request, error, error.status, error.entry)
    answer = with_particulars(error_body(request, error.entry, error.detail), error)
    after = str(error.retry_after_sec) if isinstance(error, LimitReached) else None
    return _respond(error.status, answer, after)


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - see above
    problems = [
        {k: v for k, v in problem.items() if k in ("type", "loc", "msg")} for problem in error.errors()
    ]
    _log_refusal(request, error, HTTPStatus.UNPROCESSABLE_ENTITY, InvalidRequest.entry)
    return _body(request, HTTPStatus.UNPROCESSABLE_ENTITY, InvalidRequest.entry, jsonable_encoder(problems))


async def _answer_unreadable(request: Request, error: Exception) -> Response:
    """Damaged stored data: not the client's fault, and not a crash."""
    _log_refusal(request, error, HTTPStatus.SERVICE_UNAVAILABLE, NatsUnavailable.entry)
    return _body(
        request, HTTPStatus.SERVICE_UNAVAILABLE, NatsUnavailable.entry, f"stored data is unreadable: {error}"
    )


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    """A bug. The framework raises the error again, so that the server logs its traceback."""
    unexpected = UnexpectedError(f"{type(error).__name__}; the log of the gateway has the details")
    log.error(
        "request failed",
        action="http.failed",
        method=request.method,
        path=request.url.path,
        status=int(unexpected.status),
        error=type(error).__name__,
        **unexpected.ids,
    )
    return _body(request, unexpected.status, unexpected.entry, unexpected.detail)


_TABLE: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    PyocoServerError: answer_error,
    RequestValidationError: _answer_invalid,
    Unreadable: _answer_unreadable,
}


def _body(request: Request, status: HTTPStatus, entry: ErrorEntry, detail: Any) -> Response:
    return _respond(status, error_body(request, entry, detail))


def _respond(status: HTTPStatus, answer: ErrorBody, retry_after: str | None = None) -> Response:
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        retry_after = RETRY_AFTER_SEC
    headers = None if retry_after is None else {"Retry-After": retry_after}
    return Response(
        msgspec.json.encode(answer), status_code=status, headers=headers, media_type="application/json"
    )


def error_body(request: Request, entry: ErrorEntry, detail: Any) -> ErrorBody:
    return ErrorBody(
        detail=detail,
        err_id=entry.err_id,
        msg_id=entry.msg_id,
        message=entry.message(preferred_language(request.headers.get("accept-language", ""))),
    )


def with_particulars(body: B, error: PyocoServerError) -> B:
    if isinstance(error, CommandRejected):
        body.code = error.code
    if isinstance(error, MissingScope):
        body.scope = error.scope
    return body


def _log_refusal(request: Request, error: Exception, status: HTTPStatus, entry: ErrorEntry) -> None:
    """Logs each refused request with its cause; only failures of the server are logged as errors."""
    level = log.error if status >= HTTPStatus.INTERNAL_SERVER_ERROR else log.info
    level(
        "request refused",
        action="http.refused",
        method=request.method,
        path=request.url.path,
        status=int(status),
        err_id=entry.err_id,
        msg_id=entry.msg_id,
        reason=entry.detail,
        **{name: value for name, value in request.path_params.items() if name.endswith("_id")},
        exc_info=error,
    )


def preferred_language(accept_language: str) -> Language:
    """`ja` or `en`, as the client prefers; `en` if it names neither."""
    best: Language = "en"
    best_quality = 0.0
    for part in accept_language.split(","):
        name, _, weight = part.strip().partition(";")
        language = _LANGUAGES.get(name.strip().lower()[:2])
        quality = _quality(weight)
        if language is not None and quality > best_quality:
            best, best_quality = language, quality
    return best


_LANGUAGES: dict[str, Language] = {"ja": "ja", "en": "en"}


def _quality(weight: str) -> float:
    try:
        return float(weight.strip().removeprefix("q=") or 1)
    except ValueError:
        return 0.0


# OpenAPI: the schemas of answers

_ALIKE = (Actor, WheelActor)
"""Types with the same name: msgspec adds their modules, which are internal."""


def _components() -> dict[str, Any]:
    _, found = msgspec.json.schema_components(
        [*answers.kinds(), JobStatus], ref_template="#/components/schemas/{name}"
    )
    for schema in found.values():
        if "description" in schema:  # a docstring, which Python indents up to 3.12
            schema["description"] = cleandoc(schema["description"])
    text = msgspec.json.encode(found).decode()
    for kind in _ALIKE:
        text = text.replace(f"{kind.__module__}.{kind.__name__}", answers.name_of(kind))
    components: dict[str, Any] = msgspec.json.decode(text)
    return components


COMPONENTS = _components()


def schema_of(kind: type[Struct]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def any_schema_of(*kinds: type[Struct]) -> dict[str, Any]:
    return {"anyOf": [schema_of(kind) for kind in kinds]}


def list_schema_of(kind: type[Struct]) -> dict[str, Any]:
    return {"type": "array", "items": schema_of(kind)}


RUN_LIST = {
    "anyOf": [list_schema_of(answers.RunSummary), list_schema_of(answers.Run), schema_of(answers.RunPage)]
}
"""Summaries, or whole runs with `include=full`; an object with `next_cursor` where there are pages."""


# OpenAPI: the responses of a route

Responses = dict[int | str, dict[str, Any]]


def answers_with(*errors: type[PyocoServerError]) -> Responses:
    """For `responses=` of a route: the errors it answers with."""
    return {
        error().status.value: _documented(schema_of(ErrorBody), f"{error.entry.err_id}: {error.entry.detail}")
        for error in errors
    }


def answers_like(schema: dict[str, Any], status: int = 200, description: str = "OK") -> Responses:
    """For `responses=` of a route: what it answers on success."""
    return {status: _documented(schema, description)}


def _documented(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_FORBIDDEN = "; ".join(f"{one.entry.err_id}: {one.entry.detail}" for one in (InvalidApiKey, MissingScope))
EVERYWHERE: Responses = {
    **answers_with(InvalidRequest, ApiKeyRequired, NatsUnavailable),
    int(InvalidApiKey().status): _documented(schema_of(ErrorBody), _FORBIDDEN),
}
"""For routers whose routes need a key (when auth is on) and NATS."""
