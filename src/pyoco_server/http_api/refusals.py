"""Routes that refuse what they do not know, and those whose bad input has an id of its own."""

from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from pyoco_server.errors import PyocoServerError
from pyoco_server.http_api.bodies import unknown


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
