"""Pictures of the dashboard for README and docs, of a filled installation: `make screenshots`.

Both languages, light and dark. Japanese needs a font for it, on Debian `apt-get install fonts-noto-cjk`. The
installation works for half an hour first, because charts of an hour need one: PICTURES_MINUTES=1 is enough to
try it. Or PICTURES_URL names one (`demo --fill`) that has worked already.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from pyoco_server.http_client import PyocoHttpClient
from support.browsing import chromium_browser, found_chromium
from support.nats_server import free_port
from support.programs import Programs
from support.waiting import until_now

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SIZE = ViewportSize(width=1280, height=800)
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
LANGUAGES = ("en", "ja")


MINUTES = float(os.environ.get("PICTURES_MINUTES", "30"))
PAUSE_SEC = 3.5
CURRENCIES = ("EUR", "USD", "JPY", "EUR", "USD", "EUR", "EUR", "XTS")
"""There is no rate for the last one."""


def work(api: PyocoHttpClient) -> None:
    """Runs as in an ordinary hour, more at some times than at others; some fail."""
    ends_at, n = time.monotonic() + 60 * MINUTES, 0
    while time.monotonic() < ends_at:
        n += 1
        runs = [
            {"flow_name": "orders-import", "params": {"customer": "acme", "orders": 3 + n % 11}},
            {"flow_name": "fraud-score", "params": {"order": 1100 + n, "currency": CURRENCIES[n % 8]}},
            {"flow_name": "nightly-report", "params": {"day": f"2026-11-{1 + n % 28:02}"}},
        ]
        api.submit_runs(runs[: 1 + (n // 40 + n) % 3])
        time.sleep(PAUSE_SEC)


@contextmanager
def filled() -> Iterator[str]:
    """The address of a filled installation."""
    with tempfile.TemporaryDirectory(prefix="pyoco-pictures-") as directory:
        port = free_port()
        programs = Programs(Path(directory))
        with programs.started("pyoco-server", "demo", "--fill", "--port", str(port)) as demo:
            demo.says("Dashboard")
            yield f"http://127.0.0.1:{port}"
        until_now(programs.are_gone)


def places(api: PyocoHttpClient) -> dict[str, str]:
    """What is shown, by the name of the picture."""
    reports = (run["run_id"] for run in api.list_runs(status="COMPLETED", flow="nightly-report"))
    report = next(run_id for run_id in reports if api.get_run(run_id)["params"])
    held: list[Any] = until_now(
        lambda: [one for one in api.executions.waits()["items"] if one["node_id"] == "approve"]
    )
    return {
        "overview": "#/overview",
        "run": f"#/runs/{report}",
        "runs": "#/runs",
        "execution": f"#/executions/{held[0]['execution_id']}?node=approve",
        "queues": "#/queues",
        "dead-letters": "#/dead-letters",
    }


def picture(browser: Browser, url: str, language: str, theme: Literal["light", "dark"], path: Path) -> None:
    context = browser.new_context(viewport=SIZE, color_scheme=theme, locale=language, reduced_motion="reduce")
    context.add_init_script(f"localStorage.setItem('pyoco.lang', '{language}')")
    page: Page = context.new_page()
    page.goto(url)
    page.locator("main h1").wait_for()
    page.locator(".loading").wait_for(state="detached")
    until_now(lambda: page.locator(".live.is-live").count())
    page.screenshot(path=path)
    context.close()


def main() -> None:
    chromium = found_chromium()
    if chromium is None:
        sys.exit("there is no Chromium; on Debian: apt-get install chromium-headless-shell")
    known = os.environ.get("PICTURES_URL")
    with (
        nullcontext(known) if known else filled() as url,
        PyocoHttpClient(url) as api,
        sync_playwright() as playwright,
        chromium_browser(playwright, chromium) as browser,
    ):
        if not known:
            work(api)
        for name, place in places(api).items():
            for language in LANGUAGES:
                for theme in THEMES:
                    path = IMAGES / f"{name}-{language}-{theme}.png"
                    picture(browser, f"{url}/{place}", language, theme, path)


if __name__ == "__main__":
    main()
