"""Routes whose bad input has an id of its own: lists of runs, and workers."""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from pyoco_server.errors import PyocoServerError


def refusing_with(error: type[PyocoServerError]) -> type[APIRoute]:
    """A route class that answers invalid input as `error`, with the place in the text."""

    class Route(APIRoute):
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
