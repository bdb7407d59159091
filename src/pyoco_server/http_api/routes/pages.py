"""The page at `/`, and what it is made of."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

router = APIRouter(include_in_schema=False)

STATIC = Path(__file__).parent.parent / "static"
_HEADERS = {
    # Nothing but our own files, and nothing inline: what flows print cannot become a script.
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

static_files = Mount("/static", StaticFiles(directory=STATIC), name="static")


@router.get("/")
async def index() -> FileResponse:
    return FileResponse(STATIC / "index.html", headers=_HEADERS)
