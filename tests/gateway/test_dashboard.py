"""REQ-0020: `/` and `/static/*` give the dashboard, in the language that was set."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from pyoco_server.config import NatsBackendConfig
from pyoco_server.http_api import pages
from pyoco_server.http_api.pages import language
from support.gateway import memory_app

PAGE = """<!doctype html><html lang="en"><head><meta name="pyoco-settings" content="{}" /></head></html>"""


@pytest.fixture
def built(tmp_path: Path) -> Path:
    directory = tmp_path / "static"
    (directory / "assets").mkdir(parents=True)
    (directory / "index.html").write_text(PAGE)
    (directory / "assets/index-0a1b2c.js").write_text("export {}")
    (directory / "assets/index-0a1b2c.css").write_text("a{}")
    (directory / "favicon.svg").write_text("<svg/>")
    return directory


def client(built: Path, **settings: Any) -> httpx2.AsyncClient:
    app = FastAPI()
    app.state.gateway = SimpleNamespace(config=NatsBackendConfig(**settings))
    app.router.routes.extend(pages.dashboard_routes(built))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://gateway")


async def test_the_page_is_html_that_is_asked_for_anew_each_time(built: Path) -> None:
    async with client(built) as http:
        for method in ("GET", "HEAD"):
            answer = await http.request(method, "/")
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
            assert answer.headers["cache-control"] == "no-cache"


async def test_the_page_may_load_and_reach_nothing_but_this_server(built: Path) -> None:
    async with client(built) as http:
        headers = (await http.get("/")).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "frame-src", "connect-src")} == {"'self'"}
    assert policy["img-src"] == "'self' blob:"  # what has been read with a key
    assert {policy[name] for name in ("form-action", "base-uri", "frame-ancestors")} == {"'none'"}
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


async def test_the_frame_for_html_of_tasks_has_no_origin_and_no_requests(built: Path) -> None:
    async with client(built) as http:
        answer = await http.get(pages.SANDBOX_PATH)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["sandbox"] == "allow-scripts"
    assert policy["default-src"] == "'none'"
    assert policy["script-src"].startswith("'sha256-")
    assert (policy["img-src"], policy["font-src"]) == ("data:", "data:")
    assert policy["frame-ancestors"] == "'self'"
    assert 'frame.sandbox = ""' in answer.text


@pytest.mark.parametrize(
    ("path", "kind", "cache"),
    [
        ("assets/index-0a1b2c.js", "text/javascript; charset=utf-8", "public, max-age=31536000, immutable"),
        ("assets/index-0a1b2c.css", "text/css; charset=utf-8", "public, max-age=31536000, immutable"),
        ("favicon.svg", "image/svg+xml; charset=utf-8", "no-cache"),
    ],
)
async def test_files_have_their_type_and_may_be_kept_if_their_name_has_a_hash(
    built: Path, path: str, kind: str, cache: str
) -> None:
    async with client(built) as http:
        answer = await http.get(f"/static/{path}")
        assert answer.status_code == 200
        assert (answer.headers["content-type"], answer.headers["cache-control"]) == (kind, cache)
        again = await http.get(f"/static/{path}", headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304


async def test_large_files_are_sent_compressed(built: Path) -> None:
    (built / "assets/index-0a1b2c.js").write_text("export {}\n" * 1_000)
    async with client(built) as http:
        zipped = await http.get("/static/assets/index-0a1b2c.js")
        assert (zipped.headers["content-encoding"], zipped.headers["vary"]) == ("gzip", "Accept-Encoding")
        assert len(zipped.text) == 10_000
        plain = await http.get("/static/assets/index-0a1b2c.js", headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers


@pytest.mark.parametrize("path", ["assets/gone.js", "../dashboard.py", "%2e%2e/dashboard.py", "assets/", ""])
async def test_what_is_not_there_is_not_found(built: Path, path: str) -> None:
    async with client(built) as http:
        assert (await http.get(f"/static/{path}")).status_code == 404


async def test_without_a_build_the_page_says_how_to_get_one(tmp_path: Path) -> None:
    """D40: in a checkout, and where there is none."""
    async with client(tmp_path / "nothing") as http:
        answer = await http.get("/")
        assert answer.status_code == 404
        assert "make web" in answer.text
        assert "pip install --force-reinstall --no-deps pyoco-server" in answer.text
        assert (await http.get("/static/assets/index.js")).status_code == 404


async def test_the_page_is_told_what_it_needs_to_know(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYOCO_DASHBOARD_LANG"""
    header = "X-Key'&"  # as odd as a header's name may be
    async with client(
        built,
        dashboard_lang="ja",
        http_auth_mode="api_key",
        http_api_key_header=header,
        runs_retention_sec=60.0,
    ) as http:
        text = (await http.get("/")).text
    assert '<html lang="ja"' in text
    assert "&quot;auth&quot;:&quot;api_key&quot;" in text
    assert "&quot;api_key_header&quot;:&quot;X-Key&#x27;&amp;&quot;" in text
    assert "&quot;retention&quot;:{&quot;runs&quot;:60.0," in text


@pytest.mark.parametrize(
    ("setting", "environ", "expected"),
    [
        ("ja", {"LANG": "en_US.UTF-8"}, "ja"),
        ("en", {"LANG": "ja_JP.UTF-8"}, "en"),
        ("auto", {"LANG": "ja_JP.UTF-8"}, "ja"),
        ("auto", {"LANG": "de_DE.UTF-8"}, "en"),
        ("auto", {"LC_ALL": "ja_JP", "LANG": "en_US"}, "ja"),
        ("auto", {"LC_ALL": "", "LC_MESSAGES": "C", "LANG": "ja_JP"}, "en"),
        ("auto", {}, "en"),
    ],
)
def test_the_language_is_the_setting_or_the_servers_locale(
    setting: Any, environ: dict[str, str], expected: str
) -> None:
    assert language(setting, environ) == expected


async def test_no_key_is_needed_for_the_page_itself() -> None:
    async with memory_app(http_auth_mode="api_key") as gateway:
        for path in ("/", "/static/favicon.svg"):
            assert (await gateway.client.get(path)).status_code in (200, 404), "404: not built here"
