"""The dashboard as it is built. Without a build there is nothing to look at."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from pyoco_server.http_api.pages import BUILT
from support.browsing import Site, chromium_browser, found_chromium, running_site

ROOT = Path(__file__).parents[2]
IS_REQUIRED = os.environ.get("REQUIRE_BROWSER") == "1"
"""Read at the start; where tests must not be skipped (CI), what is missing is a failure."""


def _missing(what: str) -> None:
    if IS_REQUIRED:
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session")
def built() -> Path:
    if not (BUILT / "index.html").exists():
        _missing("the dashboard is not built: make web")
    return BUILT


@pytest.fixture(scope="session")
def web() -> Path:
    """Its source, with what it is built with."""
    if not (ROOT / "web/node_modules").exists():
        _missing("what the dashboard is built with is not installed: make web")
    return ROOT / "web"


@pytest.fixture(scope="session")
def chromium() -> str:
    found = found_chromium()
    if found is None:
        _missing("there is no Chromium; on Debian: apt-get install chromium-headless-shell")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def site(built: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with a worker, for the tests of a file; a file that needs other settings defines its own."""
    with running_site(tmp_path_factory.mktemp("site"), PYOCO_VALUE_MAX_BYTES="500000") as running:
        yield running


@pytest.fixture(scope="module")
def browser(site: Site, chromium: str) -> Iterator[Browser]:
    """Not longer than a file: while Playwright runs, no other event loop can, and other tests need theirs."""
    with sync_playwright() as playwright, chromium_browser(playwright, chromium) as running:
        running.new_page().close()  # the browser's own start is not the page's
        yield running
