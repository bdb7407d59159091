"""A whole installation with its dashboard, looked at with a real browser."""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, Request, expect

from pyoco_server.http_client import PyocoHttpClient
from support import dashboard_flows
from support.nats_server import free_port
from support.programs import Programs
from support.waiting import PATIENCE_SEC, until_now

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "artifacts" / "dashboard"
FLOWS = f"{dashboard_flows.__file__}:resolve"
TESTS = Path(__file__).parents[1]
PATIENCE_MS = 1_000 * PATIENCE_SEC
"""Only a failing test waits so long."""
expect.set_options(timeout=PATIENCE_MS)
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

LISTS = (
    *("overview", "runs", "executions", "waits", "flows", "graphs", "schedules", "queues", "dead-letters"),
    *("bulk", "limits", "wheels", "alerts", "alerts/channels", "alerts/deliveries", "secrets"),
    *("secrets/variables", "api-keys", "audit", "about", "events", "events/queue", "events/templates"),
    *("events/actions", "events/sources", "events/notifications"),
)
"""The pages of the dashboard that need nothing to be shown."""

# Counts what the page's own policy stopped, in a place where no script of the page looks.
_WATCH_POLICY = """
window.__violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.__violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


@dataclass
class Site:
    """Server and worker as processes of their own."""

    url: str
    marks: Path
    programs: Programs
    api: PyocoHttpClient
    keys: dict[str, str] = field(default_factory=dict)

    def submit(self, flow: str, params: dict[str, Any] | None = None, **options: Any) -> str:
        return self.api.submit_run(flow, params or {}, **options)["run_id"]

    def finished(self, flow: str, **params: Any) -> str:
        """A run that has ended."""
        run_id = self.submit(flow, params)
        list(self.api.watch_run(run_id, timeout_sec=PATIENCE_SEC))
        return run_id

    def gated(self) -> str:
        """A run that is in its second task, and stays there."""
        (self.marks / "begun").unlink(missing_ok=True)
        return self.submit("gated", {"marks": str(self.marks), "gate": "never"})


@contextmanager
def running_site(
    directory: Path, *, with_worker: bool = True, nats_url: str | None = None, **environ: str
) -> Iterator[Site]:
    """`nats_url`: on a NATS that the test may stop, instead of the embedded one."""
    programs = Programs(directory, PYTHONPATH=str(TESTS), **environ)
    marks = directory / "marks"
    marks.mkdir()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        where = ("--durability", "fast") if nats_url is None else ("--nats-url", nats_url)
        up = stack.enter_context(programs.started("pyoco-server", "up", "--port", str(port), *where))
        programs.environ["PYOCO_NATS_URL"] = nats_url or up.says(r"at (nats://\S+?),").group(1)
        up.says("Ctrl-C stops it")
        up.says("gateway ready")
        if with_worker:
            command = (
                "pyoco-worker",
                "--flow-resolver",
                FLOWS,
                "--worker-id",
                "worker-1",
                "--concurrency",
                "2",
            )
            stack.enter_context(programs.started(*command)).says("worker ready")
        api = stack.enter_context(PyocoHttpClient(url))
        yield Site(url, marks, programs, api)
    assert programs.are_gone(), f"left behind: {programs.pids()}"


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first is Chromium without the windows around its pages: it needs a third of the processor time."""


def found_chromium() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@contextmanager
def chromium_browser(playwright: Playwright, executable: str) -> Iterator[Browser]:
    browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
    yield browser
    browser.close()


def until_true(page: Page, expression: str, arg: Any = None) -> None:
    """`wait_for_function` asks again with `eval`, which the page's policy forbids."""
    until_now(lambda: page.evaluate(expression, arg))


@contextmanager
def page_of(
    browser: Browser,
    site: Site,
    place: str = "#/runs",
    *,
    language: str | None = None,
    theme: Literal["light", "dark"] = "light",
    width: int = 1280,
    is_quiet: bool = True,
) -> Iterator[Page]:
    """A page that must not complain, break its own policy, or ask any other host for anything."""
    context = browser.new_context(viewport={"width": width, "height": 860}, color_scheme=theme)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.add_init_script(_WATCH_POLICY)
    if language is not None:
        context.add_init_script(f"localStorage.setItem('pyoco.lang', '{language}')")
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            problems.append(f"{message.type}: {message.text}")

    def on_request(request: Request) -> None:
        if not request.url.startswith((site.url, "blob:")):
            problems.append(f"asked another host: {request.url}")

    page.on("console", on_console)
    page.on("request", on_request)
    page.goto(f"{site.url}/{place}")
    yield page
    violations = page.evaluate("window.__violations")
    context.close()
    assert violations == []
    if is_quiet:
        assert problems == [], problems


SERIOUS = ("serious", "critical")


def serious_barriers(page: Page, web: Path) -> list[Any]:
    """What would keep people who do not see, or use no mouse, from using this page (axe-core)."""
    page.locator("main h1, main h2").first.wait_for()
    page.locator(".loading").wait_for(state="detached")
    page.evaluate((web / "node_modules/axe-core/axe.min.js").read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (one["id"], [node["html"] for node in one["nodes"]][:3])
        for one in found["violations"]
        if one["impact"] in SERIOUS
    ]


def overhang(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    page.locator("main h1").wait_for()
    page.locator(".loading").wait_for(state="detached")
    pixels: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return pixels


def name_of(place: str, **ids: str) -> str:
    """For the file of a picture."""
    for word, found in ids.items():
        place = place.replace(found, word)
    return re.sub(r"\W+", "-", place.strip("#/"))


def keep(page: Page, name: str) -> None:
    """A screenshot for people, in a folder that git ignores."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")
