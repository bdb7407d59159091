"""Pages for browsers: the dashboard at `/`, and the list of API calls at `/docs`."""

import base64
import hashlib
import html
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import msgspec
from fastapi import Request
from fastapi.responses import HTMLResponse
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from pyoco_server.config import NatsBackendConfig
from pyoco_server.http_api.gateway import gateway_of

# The dashboard, as built from `web/`

BUILT = Path(__file__).parent / "static"
"""Part of every wheel and sdist (hatch_build.py); in a source checkout `make web` writes it."""

MIN_ZIPPED_BYTES = 1024
Language = Literal["ja", "en"]

PAGE_HEADERS = {
    # Own files only, nothing inline, no text as HTML: what flows print cannot become a script.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "frame-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

SANDBOX_PATH = "/static/sandbox.html"
_SANDBOX_STYLE = "html, body, iframe { display: block; width: 100%; height: 100%; margin: 0; border: 0 }"
_SANDBOX_SCRIPT = """
addEventListener("message", ({ data, source }) => {
  if (source !== parent || typeof data !== "string") return;
  const frame = document.createElement("iframe");
  frame.sandbox = "";
  frame.srcdoc = data;
  document.body.replaceChildren(frame);
});
"""
SANDBOX = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Sandbox</title>
<style>{_SANDBOX_STYLE}</style>
<body><script>{_SANDBOX_SCRIPT}</script></body>
</html>
"""
"""In a frame of the dashboard: shows the HTML that a task has saved in a frame of its own. That one has no
scripts. Both have the policy of this page, which allows no request, and no origin."""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


SANDBOX_HEADERS = {
    **PAGE_HEADERS,
    "Content-Security-Policy": (
        f"sandbox allow-scripts; default-src 'none'; script-src {_hash(_SANDBOX_SCRIPT)}; "
        "style-src 'unsafe-inline'; img-src data:; font-src data:; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
    ),
}

NOT_BUILT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>pyoco-server</title>
<h1>The dashboard is missing from this installation</h1>
<p>If the server runs from a source checkout, build the dashboard there and reload this page:</p>
<pre>make web</pre>
<p>Otherwise install the package again, which contains it, and restart the server:</p>
<pre>pip install --force-reinstall --no-deps pyoco-server</pre>
<p>The API works without it: <a href="/docs">/docs</a></p>
"""

_SETTINGS_MARK = 'content="{}"'
_LANG_MARK = '<html lang="en"'
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
"""Not from the table of the machine, which may differ."""


def is_built(built: Path = BUILT) -> bool:
    return (built / "index.html").is_file()


def dashboard_routes(built: Path = BUILT) -> list[BaseRoute]:
    async def index(request: Request) -> HTMLResponse:
        found = dashboard_page(built, settings_of(gateway_of(request).config, os.environ))
        if found is None:
            return HTMLResponse(NOT_BUILT, HTTPStatus.NOT_FOUND, PAGE_HEADERS)
        return HTMLResponse(found, headers=PAGE_HEADERS)

    async def sandbox(_: Request) -> HTMLResponse:
        return HTMLResponse(SANDBOX, headers=SANDBOX_HEADERS)

    files = GZipMiddleware(DashboardFiles(built), minimum_size=MIN_ZIPPED_BYTES)
    return [Route("/", index), Route(SANDBOX_PATH, sandbox), Mount("/static", files, name="static")]


class Retention(Struct, frozen=True):
    """How long what is kept, in seconds; 0: for ever."""

    runs: float
    executions: float
    ticks: float
    audit: float
    dead_letters: float
    logs: float


class DashboardSettings(Struct, frozen=True):
    """What the page needs before its first request."""

    lang: Language
    auth: Literal["none", "api_key"]
    api_key_header: str
    version: str
    retention: Retention


def settings_of(config: NatsBackendConfig, environ: Mapping[str, str]) -> DashboardSettings:
    return DashboardSettings(
        lang=language(config.dashboard_lang, environ),
        auth=config.http_auth_mode,
        api_key_header=config.http_api_key_header,
        version=version("pyoco-server"),
        retention=Retention(
            runs=config.runs_retention_sec,
            executions=config.executions_retention_sec,
            ticks=config.ticks_retention_sec,
            audit=config.audit_max_age_sec,
            dead_letters=config.dlq_max_age_sec,
            logs=config.logs_max_age_sec,
        ),
    )


def language(setting: Literal["auto", "ja", "en"], environ: Mapping[str, str]) -> Language:
    """`auto` is the locale of the server: as in POSIX, the first of the three variables that is set."""
    if setting != "auto":
        return setting
    locale = next((environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environ.get(name)), "")
    return "ja" if locale.lower().startswith("ja") else "en"


def dashboard_page(built: Path, settings: DashboardSettings) -> str | None:
    """The page with the settings of this server; None if the dashboard has not been built."""
    try:
        text = (built / "index.html").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    shown = html.escape(msgspec.json.encode(settings).decode(), quote=True)
    return text.replace(_LANG_MARK, f'<html lang="{settings.lang}"', 1).replace(
        _SETTINGS_MARK, f'content="{shown}"', 1
    )


class DashboardFiles(StaticFiles):
    """Names in `assets/` contain a hash, so these files never change; the others are revalidated."""

    def __init__(self, built: Path) -> None:
        super().__init__(directory=built, check_dir=False)

    async def check_config(self) -> None:
        """A missing directory is no error: its files are 404."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        kind = _TYPES.get(Path(path).suffix)
        if kind is not None and "content-type" in Headers(raw=response.raw_headers):
            response.headers["Content-Type"] = f"{kind}; charset=utf-8"
        is_hashed = Path(path).parts[:1] == ("assets",)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_hashed else "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


# `/docs`
#
# FastAPI's pages load scripts from other hosts and would run them on the origin of the dashboard. This page
# is text only.

PATH = "/docs"
_METHODS = ("get", "post", "put", "patch", "delete")
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
td { padding: .15rem 1.5rem .15rem 0; vertical-align: top; }
"""
_HEADERS = {
    **PAGE_HEADERS,
    "Content-Security-Policy": (
        f"default-src 'none'; style-src {_hash(_STYLE)}; form-action 'none'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
}


def api_docs_route(document: Callable[[], dict[str, Any]]) -> Route:
    async def show(_: Request) -> HTMLResponse:
        return HTMLResponse(api_docs_page(document()), headers=_HEADERS)

    return Route(PATH, show)


def api_docs_page(document: dict[str, Any]) -> str:
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
