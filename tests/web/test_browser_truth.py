"""REQ-0020: the page shows what is so: when it is not live, when something is lost, refused or done once."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from pyoco_server.wiring import EmbeddedNats
from support.browsing import FLOWS, Site, keep, page_of, running_site, until_true
from support.nats_server import free_port
from support.waiting import until_now
from support.wheels import a_wheel, wheel_name

QUESTION: dict[str, Any] = {"nodes": {"ask": {"type": "wait", "prompt": "Close the month?"}}}
ROWS = "document.querySelectorAll('tbody tr').length"
MAX_ROWS = 100
LOST_SEC = 2
"""A worker that is silent for longer is lost."""


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    with EmbeddedNats(tmp_path_factory.mktemp("nats"), durability="fast", port=free_port()) as server:
        yield server


@pytest.fixture(scope="module")
def site(
    built: Path, chromium: str, nats: EmbeddedNats, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    with running_site(
        directory,
        nats_url=nats.url,
        PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC=str(LOST_SEC / 10),
        PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC=str(LOST_SEC),
    ) as running:
        running.api.put_graph("question", QUESTION)
        yield running


def asked(site: Site) -> str:
    """An execution that waits for an answer."""
    execution_id: str = site.api.executions.create("question")["execution_id"]
    for event in site.api.executions.watch(execution_id):
        if event["type"] == "NODE_WAITING":
            break
    return execution_id


def executions_of(site: Site) -> int:
    answer = httpx2.get(f"{site.url}/executions", params={"graph_id": "question", "limit": 200})
    return len(answer.json()["items"])


def stale_sec(site: Site) -> int:
    """How long the gateway has heard nothing."""
    answer = httpx2.get(f"{site.url}/workers", params={"stale": "ok"})
    return int(answer.headers.get("X-Pyoco-Stale-Sec", "0"))


@contextmanager
def away(nats: EmbeddedNats) -> Iterator[None]:
    nats.stop()
    try:
        yield
    finally:
        nats.start()


def test_a_page_is_not_live_while_nats_is_away(browser: Browser, site: Site, nats: EmbeddedNats) -> None:
    """W01"""
    # The browser logs refused requests by itself.
    with (
        page_of(browser, site, is_quiet=False) as page,
        page_of(browser, site, "#/workers", is_quiet=False) as workers,
    ):
        expect(page.locator(".live")).to_have_text("Live")
        state = workers.locator("tr.row", has_text="worker-1").locator(".status")
        expect(state).to_have_attribute("data-state", "IDLE")
        with away(nats):
            expect(page.locator(".live")).to_have_text("NATS away")
            expect(page.locator(".banner")).to_contain_text("NATS")
            expect(page.get_by_text("Live", exact=True)).to_have_count(0)
            expect(page.get_by_role("button", name="New run")).to_be_disabled()
            expect(workers.locator(".banner")).to_contain_text("NATS")
            before = state.get_attribute("data-state")  # on a busy machine it may be late already
            assert before is not None
            until_now(lambda: stale_sec(site) > 3 * LOST_SEC)  # the page has asked again since
            expect(workers.get_by_text("No worker is running")).to_have_count(0)
            expect(state).to_have_attribute("data-state", before)
            keep(page, "nats-away")
            keep(workers, "nats-away-workers")
        expect(page.locator(".live")).to_have_text("Live")
        expect(page.locator(".banner")).to_have_count(0)
        expect(page.get_by_role("button", name="New run")).to_be_enabled()


def test_a_page_is_delayed_while_nothing_comes(browser: Browser, site: Site) -> None:
    """W01: the server answers, but the stream of the list brings nothing."""
    with page_of(browser, site, is_quiet=False) as page:  # the browser logs the failed requests
        expect(page.locator(".live")).to_have_text("Live")
        page.route("**/runs/watch*", lambda route: route.abort())
        page.get_by_role("combobox", name="Filter runs").fill("tag:nobody")
        page.keyboard.press("Enter")  # another list, whose stream never opens
        expect(page.locator(".live")).to_have_text(re.compile(r"Delayed \d+ s"))
        expect(page.locator(".banner")).to_contain_text("The server has confirmed nothing for")
        expect(page.get_by_role("button", name="New run")).to_be_disabled()
        page.unroute("**/runs/watch*")
        expect(page.locator(".live")).to_have_text("Live")
        expect(page.locator(".banner")).to_have_count(0)


def test_a_live_list_does_not_grow_without_end(browser: Browser, site: Site) -> None:
    """W02"""
    with page_of(browser, site) as page:
        expect(page.locator(".live")).to_have_text("Live")
        for batch in range(3):
            runs = [{"flow_name": f"flood-{batch}", "tag": "nobody"} for _ in range(MAX_ROWS)]
            assert httpx2.post(f"{site.url}/runs/batch", json={"runs": runs}).json()["accepted"] == MAX_ROWS
            expect(page.locator("tbody tr").first).to_contain_text(f"flood-{batch}")
            assert page.evaluate(ROWS) <= MAX_ROWS
        page.mouse.wheel(0, 50_000)  # what was cut off is there for whoever wants it
        until_true(page, f"{ROWS} > {MAX_ROWS}")
        ids = page.evaluate("[...document.querySelectorAll('[data-run]')].map((r) => r.dataset.run)")
        assert len(set(ids)) == len(ids)


def test_a_worker_that_was_killed_is_shown_as_lost(browser: Browser, site: Site) -> None:
    """W04"""
    command = ("pyoco-worker", "--flow-resolver", FLOWS, "--worker-id", "doomed", "--tags", "doomed")
    with site.programs.started(*command) as worker, page_of(browser, site, "#/workers") as page:
        worker.says("worker ready")
        row = page.locator("table.workers tr.row", has_text="doomed")
        expect(row.locator(".status")).to_have_attribute("data-state", "IDLE")
        site.programs.kill(worker.pid)
        expect(row.locator(".status")).to_have_attribute("data-state", "DISCONNECTED")
        expect(page.locator("table.workers tr.row").first).to_contain_text("doomed")
        expect(row).to_contain_text("No heartbeat")
        keep(page, "worker-lost")


def test_a_refused_answer_stays_and_names_who_was_faster(browser: Browser, site: Site) -> None:
    """W05"""
    execution_id = asked(site)
    with page_of(browser, site, "#/waits", is_quiet=False) as page:  # the browser logs the 409 itself
        card = page.locator(f'[data-wait="{execution_id}/ask"]')
        card.get_by_role("button", name="Answer").click()
        expect(card.get_by_role("button", name="Yes")).to_be_visible()
        held = hold_inbox(page)
        site.api.executions.resume(execution_id, "ask", {"ok": False})
        card.get_by_role("button", name="Yes").click()
        refused = page.locator(".toast.bad")
        expect(refused).to_contain_text("was not accepted")
        expect(refused).to_contain_text('{"ok":false}')
        held.append("go on")
        expect(card).to_have_count(0)
        expect(refused).to_be_visible()
        keep(page, "answer-refused")
        refused.get_by_role("button", name="Close").click()
        expect(refused).to_have_count(0)


def hold_inbox(page: Page) -> list[str]:
    """Keeps the list of waits as it is until the returned list has an entry."""
    released: list[str] = []

    def on_waits(route: Any) -> None:
        route.continue_() if released else route.abort()

    page.route("**/waits?*", on_waits)
    return released


def test_a_double_click_acts_once(browser: Browser, site: Site) -> None:
    """W06"""
    execution_id = asked(site)
    before = executions_of(site)
    with page_of(browser, site, f"#/executions/{execution_id}") as page:
        page.get_by_role("button", name="Run again").dblclick()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Run again").dblclick()
        until_true(page, "(old) => !location.hash.includes(old)", arg=execution_id)
        expect(page.locator(".page-head .status")).to_have_attribute("data-state", "WAITING")
    assert executions_of(site) == before + 1
    with page_of(browser, site, f"#/runs/{site.finished('report')}") as page:
        before_runs = len(runs_of(site, "report"))
        page.get_by_role("button", name="Run again").click()
        page.get_by_role("button", name="Edit the input…").click()
        page.get_by_role("dialog").get_by_role("button", name="Submit").dblclick()
        expect(page.locator(".page-head .status")).to_have_attribute("data-state", "COMPLETED")
    assert len(runs_of(site, "report")) == before_runs + 1


def lose_an_answer(page: Page, path: str) -> None:
    """The server does what is asked; its first answer is lost on the way."""
    lost: list[str] = []

    def on_request(route: Any) -> None:
        if route.request.method == "POST" and not lost:
            lost.append(route.fetch().text())
            route.abort()
        else:
            route.continue_()

    page.route(path, on_request)


@pytest.mark.parametrize("how", ["start", "again"])
def test_an_execution_that_is_sent_again_after_a_lost_answer_is_one(
    browser: Browser, site: Site, how: str
) -> None:
    """W06"""
    execution_id = asked(site)
    before = executions_of(site)
    place, path, opener, verb = {
        "start": ("#/graphs/question", "**/executions", "New execution", "Start"),
        "again": (f"#/executions/{execution_id}", "**/rerun", "Run again", "Run again"),
    }[how]
    with page_of(browser, site, place, is_quiet=False) as page:  # the browser logs the failed request
        lose_an_answer(page, path)
        page.get_by_role("button", name=opener).click()
        confirm = page.get_by_role("dialog").get_by_role("button", name=verb)
        confirm.click()
        expect(page.get_by_role("dialog").get_by_role("alert")).to_be_visible()
        confirm.click()
        elsewhere = r"(old) => /#.executions.\w/.test(location.hash) && !location.hash.includes(old)"
        until_true(page, elsewhere, arg=execution_id)
    assert executions_of(site) == before + 1


def test_a_run_that_is_sent_again_after_a_lost_answer_is_one(browser: Browser, site: Site) -> None:
    """W06"""
    run_id = site.finished("report")
    before = len(runs_of(site, "report"))
    with page_of(browser, site, f"#/runs/{run_id}", is_quiet=False) as page:
        lose_an_answer(page, "**/runs")
        page.get_by_role("button", name="Run again").click()
        page.get_by_role("button", name="Edit the input…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Submit").click()
        expect(dialog.get_by_role("alert")).to_be_visible()
        dialog.get_by_role("button", name="Submit").click()
        until_true(page, "(old) => !location.hash.includes(old)", arg=run_id)
    assert len(runs_of(site, "report")) == before + 1


@pytest.mark.parametrize("what", ["run", "wheel"])
def test_a_double_click_on_what_cannot_be_undone_sends_one_request(
    browser: Browser, site: Site, what: str
) -> None:
    """W06"""
    wheel = wheel_name("twice")
    if what == "run":
        place, first, verb = f"#/runs/{site.gated()}", "Cancel", "Cancel the run"
    else:
        site.api.upload_wheel(filename=wheel, data=a_wheel("twice"))
        place, first, verb = "#/wheels", f"Delete {wheel}", "Delete"
    sent: list[str] = []
    with page_of(browser, site, place) as page:
        page.on("request", lambda request: sent.append(request.url) if request.method != "GET" else None)
        page.get_by_role("button", name=first).click()
        page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).dblclick()
        expect(page.get_by_role("dialog")).to_have_count(0)
    assert len(sent) == 1, sent


def runs_of(site: Site, flow: str) -> list[Any]:
    found: list[Any] = httpx2.get(f"{site.url}/runs", params={"flow": flow, "limit": 200}).json()
    return found


def test_nodes_of_a_graph_are_reached_by_keyboard(browser: Browser, site: Site) -> None:
    """W07"""
    with page_of(browser, site, f"#/runs/{site.finished('report')}?view=graph") as page:
        page.locator(".graph-frame").focus()
        page.keyboard.press("Tab")
        expect(page.locator(".graph-node:focus")).to_have_count(1)
        page.keyboard.press("Enter")
        expect(page.locator(".graph-node[aria-pressed=true]")).to_have_count(1)
        expect(page.get_by_role("button", name="Close task")).to_be_visible()


def test_a_live_log_can_be_scrolled_by_keyboard(browser: Browser, site: Site) -> None:
    """W07"""
    (site.marks / "more").unlink(missing_ok=True)
    run_id = site.submit("chatty", {"lines": 200, "marks": str(site.marks), "gate": "more"})
    with page_of(browser, site, f"#/runs/{run_id}") as page:
        log = page.get_by_role("log")
        expect(log.get_by_text("line 00199 of many", exact=True)).to_be_visible()
        log.focus()
        page.keyboard.press("Home")
        until_true(page, "document.querySelector('[role=log]').scrollTop === 0")
        expect(page.get_by_label("Follow output")).not_to_be_checked()
        (site.marks / "more").touch()
        expect(log.get_by_text("the last line", exact=True)).to_be_attached()
        assert page.evaluate("document.querySelector('[role=log]').scrollTop") == 0
        page.keyboard.press("End")
        expect(page.get_by_label("Follow output")).to_be_checked()


def test_a_run_that_waits_shows_for_what(browser: Browser, site: Site) -> None:
    api = site.api
    api.limits.put("reports", {"tag": "nobody"}, key="params.customer", max_running=1)
    first, second = (api.submit_run("report", {"customer": "acme"}, tag="nobody")["run_id"] for _ in range(2))
    with page_of(browser, site, f"#/runs/{second}") as page:
        waits = page.locator(".notice.waits")
        expect(waits).to_contain_text("limit 'reports' is reached for the key 'acme': the run is number 1")
        keep(page, "waits-for-limit")
        api.limits.delete("reports")
        expect(waits).to_contain_text("No live worker has the tag 'nobody'")
        expect(waits).to_contain_text("pyoco-worker --flows flows --tags nobody --nats-url")
    api.pause_queue("nobody", "month end", "2099-01-01T00:00:00Z")
    with page_of(browser, site, f"#/runs/{second}", language="ja") as page:
        waits = page.locator(".notice.waits")
        expect(waits).to_contain_text("tag「nobody」のキューは")
        expect(waits).to_contain_text("month end")
        keep(page, "waits-for-pause")
    for run_id in (first, second):
        api.cancel_run(run_id)
    api.resume_queue("nobody")
