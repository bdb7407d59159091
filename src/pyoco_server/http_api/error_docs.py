"""For OpenAPI: which errors a route answers with, and how they look."""

from typing import Any

from pydantic import BaseModel

from pyoco_server.errors import (
    ApiKeyRequired,
    InvalidApiKey,
    InvalidRequest,
    NatsUnavailable,
    PyocoServerError,
)

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
