"""The dashboard as it was built from `web/`: its page with the settings of this server, and its files."""

import html
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from pyoco_server.config import NatsBackendConfig

BUILT = Path(__file__).parent / "static"
"""Where `make web` puts it. It is part of the wheel and of no source checkout."""

Language = Literal["ja", "en"]

PAGE_HEADERS = {
    # Nothing but our own files, nothing inline, no text made HTML: what flows print cannot become a script.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

NOT_BUILT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>pyoco-server</title>
<h1>The dashboard has not been built</h1>
<p>This server runs from a source checkout, where the dashboard is built by:</p>
<pre>make web</pre>
<p>Reload this page afterwards. The API works without it: <a href="/docs">/docs</a></p>
"""

_SETTINGS_MARK = 'content="{}"'
_LANG_MARK = '<html lang="en"'
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
"""Said here, because what a machine's own table says of them differs."""


class DashboardSettings(Struct, frozen=True):
    """What the page has to know before it may ask anything."""

    lang: Language
    auth: Literal["none", "api_key"]
    api_key_header: str
    version: str


def settings_of(config: NatsBackendConfig, environ: Mapping[str, str]) -> DashboardSettings:
    return DashboardSettings(
        lang=language(config.dashboard_lang, environ),
        auth=config.http_auth_mode,
        api_key_header=config.http_api_key_header,
        version=version("pyoco-server"),
    )


def language(setting: Literal["auto", "ja", "en"], environ: Mapping[str, str]) -> Language:
    """`auto` is the server's locale, read as POSIX reads it: the first of the three that says anything."""
    if setting != "auto":
        return setting
    locale = next((environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environ.get(name)), "")
    return "ja" if locale.lower().startswith("ja") else "en"


def page(built: Path, settings: DashboardSettings) -> str | None:
    """The page, or None where the dashboard has not been built."""
    try:
        text = (built / "index.html").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    told = html.escape(msgspec.json.encode(settings).decode(), quote=True)
    return text.replace(_LANG_MARK, f'<html lang="{settings.lang}"', 1).replace(
        _SETTINGS_MARK, f'content="{told}"', 1
    )


class DashboardFiles(StaticFiles):
    """Names in `assets/` carry a hash of their content and never change; the rest is asked for anew."""

    def __init__(self, built: Path) -> None:
        super().__init__(directory=built, check_dir=False)

    async def check_config(self) -> None:
        """A missing directory is no mistake here: its files are 404."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        kind = _TYPES.get(Path(path).suffix)
        if kind is not None and "content-type" in Headers(raw=response.raw_headers):
            response.headers["Content-Type"] = f"{kind}; charset=utf-8"
        is_hashed = Path(path).parts[:1] == ("assets",)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_hashed else "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response
