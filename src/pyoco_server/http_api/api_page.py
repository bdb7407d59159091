"""`/docs`: every call of the API on one page, made here and of nothing but text.

FastAPI's own pages load scripts from other hosts, and would run them on the origin of the dashboard.
"""

import base64
import hashlib
import html
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from starlette.routing import Route

from pyoco_server.http_api.dashboard import PAGE_HEADERS

PATH = "/docs"
_METHODS = ("get", "post", "put", "patch", "delete")
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
td { padding: .15rem 1.5rem .15rem 0; vertical-align: top; }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    **PAGE_HEADERS,
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'none'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
}


def route(document: Callable[[], dict[str, Any]]) -> Route:
    async def show(_: Request) -> HTMLResponse:
        return HTMLResponse(page(document()), headers=_HEADERS)

    return Route(PATH, show)


def page(document: dict[str, Any]) -> str:
    groups = defaultdict(list)
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                call = methods[method]
                groups[call.get("tags", ["other"])[0]].append(
                    _row(method.upper(), path, call.get("summary", ""))
                )
    tables = "".join(
        f"<h2>{html.escape(name)}</h2>\n<table>\n{''.join(rows)}</table>\n" for name, rows in groups.items()
    )
    title = html.escape(document["info"]["title"])
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}: the API</title>
<style>{_STYLE}</style>
<h1>{title}: the API</h1>
<p>All parameters, bodies and answers: <a href="/openapi.json">/openapi.json</a> (OpenAPI, for any tool
that reads it). The dashboard: <a href="/">/</a></p>
{tables}</html>
"""


def _row(method: str, path: str, summary: str) -> str:
    return (
        f"<tr><td><code>{method}</code></td><td><code>{html.escape(path)}</code></td>"
        f"<td>{html.escape(summary)}</td></tr>\n"
    )
