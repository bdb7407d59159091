"""The one table from errors to answers: status, body and language."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from pyoco_server.domain.codec import Unreadable
from pyoco_server.errors import (
    ApiKeyRequired,
    CommandRejected,
    ErrorEntry,
    InvalidApiKey,
    InvalidRequest,
    NatsUnavailable,
    PyocoServerError,
)
from pyoco_server.logs import get_logger

log = get_logger(__name__)

RETRY_AFTER_SEC = "1"


def install(app: FastAPI) -> None:
    for kind, answer in _TABLE.items():
        app.add_exception_handler(kind, answer)


async def answer_any(request: Request, error: Exception) -> JSONResponse | None:
    """As if a route had raised it; None: it is not in the table, and a fault of ours."""
    for kind, answer in _TABLE.items():
        if isinstance(error, kind):
            return await answer(request, error)
    return None


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PyocoServerError)  # noqa: S101 - what the handler is registered for
    _say(request, error, error.status, error.entry)
    answer = error_body(request, error.entry, error.detail)
    if isinstance(error, CommandRejected):
        answer["code"] = error.code
    return _respond(error.status, answer)


async def _answer_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - see above
    problems = [
        {k: v for k, v in problem.items() if k in ("type", "loc", "msg")} for problem in error.errors()
    ]
    _say(request, error, HTTPStatus.UNPROCESSABLE_ENTITY, InvalidRequest.entry)
    return _body(request, HTTPStatus.UNPROCESSABLE_ENTITY, InvalidRequest.entry, jsonable_encoder(problems))


async def _answer_unreadable(request: Request, error: Exception) -> JSONResponse:
    """Stored bytes that somebody else damaged: not the client's fault, and not a crash of ours."""
    _say(request, error, HTTPStatus.SERVICE_UNAVAILABLE, NatsUnavailable.entry)
    return _body(
        request, HTTPStatus.SERVICE_UNAVAILABLE, NatsUnavailable.entry, f"stored data is unreadable: {error}"
    )


_TABLE: dict[type[Exception], Callable[[Request, Exception], Awaitable[JSONResponse]]] = {
    PyocoServerError: answer_error,
    RequestValidationError: _answer_invalid,
    Unreadable: _answer_unreadable,
}


def _body(request: Request, status: HTTPStatus, entry: ErrorEntry, detail: Any) -> JSONResponse:
    return _respond(status, error_body(request, entry, detail))


def _respond(status: HTTPStatus, answer: dict[str, Any]) -> JSONResponse:
    headers = {"Retry-After": RETRY_AFTER_SEC} if status is HTTPStatus.SERVICE_UNAVAILABLE else None
    return JSONResponse(answer, status_code=status, headers=headers)


def error_body(request: Request, entry: ErrorEntry, detail: Any) -> dict[str, Any]:
    return {
        "detail": detail,
        "err_id": entry.err_id,
        "msg_id": entry.msg_id,
        "message": entry.message(preferred_language(request.headers.get("accept-language", ""))),
    }


def _say(request: Request, error: Exception, status: HTTPStatus, entry: ErrorEntry) -> None:
    """Every refused request leaves a line with its cause; only our own failures are errors to an operator."""
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


def preferred_language(accept_language: str) -> str:
    """`ja` or `en`, whichever the client prefers; `en` when it says nothing of either."""
    best, best_quality = "en", 0.0
    for part in accept_language.split(","):
        name, _, weight = part.strip().partition(";")
        language = name.strip().lower()[:2]
        quality = _quality(weight)
        if language in ("ja", "en") and quality > best_quality:
            best, best_quality = language, quality
    return best


def _quality(weight: str) -> float:
    try:
        return float(weight.strip().removeprefix("q=") or 1)
    except ValueError:
        return 0.0


# For OpenAPI: which errors a route answers with, and how they look.

Responses = dict[int | str, dict[str, Any]]


class ErrorBody(BaseModel):
    detail: str | list[dict[str, Any]]
    err_id: str
    msg_id: str
    message: str


def answers_with(*errors: type[PyocoServerError]) -> Responses:
    """For `responses=` of a route."""
    return {
        error().status.value: {
            "model": ErrorBody,
            "description": f"{error.entry.err_id}: {error.entry.detail}",
        }
        for error in errors
    }


def answers_like(schema: dict[str, Any], status: int = 200, description: str = "OK") -> Responses:
    """For `responses=` of a route: the shape of what it answers when all is well."""
    return {status: {"description": description, "content": {"application/json": {"schema": schema}}}}


EVERYWHERE = answers_with(InvalidRequest, ApiKeyRequired, InvalidApiKey, NatsUnavailable)
"""For the routers of what needs a key (when auth is on) and NATS."""
