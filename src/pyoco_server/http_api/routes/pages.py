"""The dashboard at `/`, and what it is made of."""

import os
from http import HTTPStatus
from pathlib import Path

from fastapi import Request
from fastapi.responses import HTMLResponse
from starlette.routing import BaseRoute, Mount, Route

from pyoco_server.http_api.dashboard import BUILT, NOT_BUILT, PAGE_HEADERS, DashboardFiles, page, settings_of
from pyoco_server.http_api.gateway import gateway_of


def routes(built: Path = BUILT) -> list[BaseRoute]:
    async def index(request: Request) -> HTMLResponse:
        found = page(built, settings_of(gateway_of(request).config, os.environ))
        if found is None:
            return HTMLResponse(NOT_BUILT, HTTPStatus.NOT_FOUND, PAGE_HEADERS)
        return HTMLResponse(found, headers=PAGE_HEADERS)

    return [Route("/", index), Mount("/static", DashboardFiles(built), name="static")]
