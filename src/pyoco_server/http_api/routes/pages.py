"""The dashboard at `/`, and what it is made of."""

import os
from http import HTTPStatus

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from starlette.routing import Mount

from pyoco_server.http_api.dashboard import BUILT, NOT_BUILT, PAGE_HEADERS, DashboardFiles, page, settings_of
from pyoco_server.http_api.gateway import gateway_of

router = APIRouter(include_in_schema=False)

static_files = Mount("/static", DashboardFiles(BUILT), name="static")


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> HTMLResponse:
    built = page(BUILT, settings_of(gateway_of(request).config, os.environ))
    if built is None:
        return HTMLResponse(NOT_BUILT, HTTPStatus.NOT_FOUND, PAGE_HEADERS)
    return HTMLResponse(built, headers=PAGE_HEADERS)
