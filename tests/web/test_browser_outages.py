"""REQ-0020: every page holds through every outage, and shows what is so meanwhile."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.wiring import EmbeddedNats
from support.browsing import FLOWS, LISTS, TESTS, Site, keep, name_of, page_of
from support.nats_server import free_port
from support.programs import Program, Programs

pytestmark = pytest.mark.slow

QUESTION: dict[str, Any] = {"nodes": {"ask": {"type": "wait", "prompt": "Close the month?"}}}
AT_ONCE = 11
"""Browsers of so many people: one alone would not open as many connections."""


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    with EmbeddedNats(tmp_path_factory.mktemp("nats"), durability="fast", port=free_port()) as server:
        yield server


@contextmanager
def gateway(site: Site, nats: EmbeddedNats) -> Iterator[Program]:
    port = site.url.rsplit(":", 1)[1]
    with site.programs.started("pyoco-server", "up", "--port", port, "--nats-url", nats.url) as up:
        up.says("gateway ready")
        yield up


@pytest.fixture(scope="module")
def site(chromium: str, nats: EmbeddedNats, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Without a gateway: each test starts its own."""
    directory = tmp_path_factory.mktemp("site")
    programs = Programs(directory, PYTHONPATH=str(TESTS), PYOCO_NATS_URL=nats.url)
    url = f"http://127.0.0.1:{free_port()}"
    with PyocoHttpClient(url) as api:
        running = Site(url, directory, programs, api)
        with gateway(running, nats):
            worker = ("pyoco-worker", "--flow-resolver", FLOWS, "--worker-id", "worker-1")
            with programs.started(*worker) as started:
                started.says("worker ready")
                running.keys["run"] = running.finished("failing")
        api.close()
    with PyocoHttpClient(url) as api:
        running.api = api
        yield running


@pytest.fixture(scope="module")
def places(site: Site, nats: EmbeddedNats) -> list[str]:
    """Every list, and one thing of each."""
    with gateway(site, nats):
        api = site.api
        api.put_graph("question", QUESTION)
        execution_id = api.executions.create("question")["execution_id"]
        api.schedules.put("nightly", {"flow": "report"}, cron="30 2 * * *", timezone="Asia/Tokyo")
        api.limits.put("one", {"flow": "report"}, max_running=1)
        (letter, *_) = api.dead_letters.list()["items"]
    run = site.keys["run"]
    things = (
        *(f"runs/{run}", f"executions/{execution_id}", "flows/failing", "graphs/question"),
        *("schedules/nightly", "limits/one", f"dead-letters/{letter['id']}"),
    )
    return [f"#/{place}" for place in (*LISTS, *things)]


@contextmanager
def opened(browser: Browser, site: Site, places: list[str]) -> Iterator[list[Page]]:
    with ExitStack() as stack:
        pages = [stack.enter_context(page_of(browser, site, one, is_quiet=False)) for one in places]
        for page in pages:
            expect(page.locator(".live")).to_have_text("Live")
            page.locator(".loading").wait_for(state="detached")
        yield pages


def is_away(page: Page, pill: str, word: str) -> None:
    expect(page.locator(".live")).to_have_text(pill)
    expect(page.locator(".banner")).to_contain_text(word)
    expect(page.get_by_text("Live", exact=True)).to_have_count(0)


def is_back(page: Page) -> None:
    expect(page.locator(".live")).to_have_text("Live")
    expect(page.locator(".banner")).to_have_count(0)
    expect(page.locator(".problem")).to_have_count(0)
    expect(page.locator("main h1")).to_have_count(1)


def rounds(places: list[str]) -> Iterator[list[str]]:
    for at in range(0, len(places), AT_ONCE):
        yield places[at : at + AT_ONCE]


def test_every_page_holds_while_nats_is_stopped_and_started(
    browser: Browser, site: Site, nats: EmbeddedNats, places: list[str]
) -> None:
    """W01"""
    with gateway(site, nats):
        for some in rounds(places):
            with opened(browser, site, some) as pages:
                nats.stop()
                for place, page in zip(some, pages, strict=True):
                    is_away(page, "NATS away", "NATS")
                    keep(page, f"nats-away-{name_of(place)}")
                nats.start()
                for page in pages:
                    is_back(page)


def test_every_page_holds_while_the_gateway_is_killed_and_started(
    browser: Browser, site: Site, nats: EmbeddedNats, places: list[str]
) -> None:
    for some in rounds(places):
        with ExitStack() as stack:
            with gateway(site, nats) as up:
                pages = stack.enter_context(opened(browser, site, some))
                site.programs.kill(up.pid)
                for page in pages:
                    is_away(page, "Server away", "server")
            with gateway(site, nats):
                for page in pages:
                    is_back(page)


@pytest.fixture
def locked(site: Site, nats: EmbeddedNats) -> Iterator[Site]:
    site.programs.environ["PYOCO_HTTP_AUTH_MODE"] = "api_key"
    with gateway(site, nats):
        yield site
    del site.programs.environ["PYOCO_HTTP_AUTH_MODE"]


def test_every_page_says_that_its_key_was_revoked(browser: Browser, locked: Site, places: list[str]) -> None:
    for some in rounds([place for place in places if place.count("/") == 1]):
        command = ("api-key", "create", "--tenant", "brief")
        made = json.loads(locked.programs.run("pyoco-server-admin", *command).stdout)
        with ExitStack() as stack:
            pages = [stack.enter_context(page_of(browser, locked, one, is_quiet=False)) for one in some]
            for page in pages:
                page.get_by_label("API key").fill(made["api_key"])
                page.get_by_role("button", name="Sign in").click()
                page.locator("main h1").wait_for()
            locked.programs.run("pyoco-server-admin", "api-key", "revoke", "--key-id", made["key_id"])
            for page in pages:
                expect(page.get_by_label("API key")).to_be_visible()
                expect(page.locator(".notice")).to_contain_text(
                    re.compile("signed out.*api key", re.IGNORECASE)
                )
