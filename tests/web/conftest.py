"""The dashboard as it is built. Without a build there is nothing to look at."""

import os
import shutil
from pathlib import Path

import pytest

from pyoco_server.http_api.pages import BUILT

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


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first is Chromium without the windows around its pages: it needs a third of the processor time."""


@pytest.fixture(scope="session")
def chromium() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        _missing("there is no Chromium; on Debian: apt-get install chromium-headless-shell")
    assert found is not None
    return found
