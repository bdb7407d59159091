"""Lists in pages: their router, and the options that all of them have."""

from typing import Annotated

from fastapi import APIRouter, Query

from pyoco_server.domain.runs.listing import MAX_LIMIT
from pyoco_server.errors import InvalidListQuery
from pyoco_server.http_api.bodies import refusing_with
from pyoco_server.http_api.errors import EVERYWHERE, answers_with

Cursor = Annotated[str | None, Query(description="next_cursor of the previous page")]
PageSize = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Page size")]


def lists_of(tag: str) -> APIRouter:
    """For lists of a noun: a query that is not valid is refused as one of a list."""
    return APIRouter(
        tags=[tag],
        route_class=refusing_with(InvalidListQuery),
        responses={**EVERYWHERE, **answers_with(InvalidListQuery)},
    )
