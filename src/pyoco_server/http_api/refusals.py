"""Routes whose bad input has an id of its own: lists of runs, and workers."""

from collections.abc import Callable, Coroutine
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
                    raise error(f"{error.entry.detail}: {_places(invalid)}") from invalid

            return handle_or_refuse

    return Route


def _places(invalid: RequestValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, e['loc'][1:])) or 'body'}: {e['msg']}" for e in invalid.errors())
