"""REQ-0020: the list is there at once, however many runs there are."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from support.browsing import Site, keep, page_of, running_site, until_true
from support.waiting import PATIENCE_SEC, load_factor

pytestmark = pytest.mark.slow

RUNS = 10_000
BODIES = "document.querySelectorAll('tbody').length"
"""Of 25 rows each."""
BATCH = 1_000
MAX_MS = 1_000
TRIES = 5
"""Other tests run beside this one: the best is what the page can do."""

# When the first row is in the page, in milliseconds since its navigation began.
_FIRST_ROW = """
new MutationObserver((_, observer) => {
  if (!document.querySelector("tbody tr")) return;
  observer.disconnect();
  requestAnimationFrame(() => { window.__firstRow = performance.now(); });
}).observe(document, { childList: true, subtree: true });
"""


@pytest.fixture(scope="module")
def site(built: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site"), with_worker=False) as running:
        with httpx2.Client(base_url=running.url, timeout=PATIENCE_SEC) as http:
            for batch in range(RUNS // BATCH):
                runs = [{"flow_name": f"flow-{n % 50}", "tags": [f"batch-{batch}"]} for n in range(BATCH)]
                answer = http.post("/runs/batch", json={"runs": runs})
                assert answer.json()["accepted"] == BATCH
        yield running


def first_row_ms(page: Page) -> float:
    page.reload()
    until_true(page, "window.__firstRow")
    shown_after: float = page.evaluate("window.__firstRow")
    return shown_after


def test_the_first_rows_of_10000_are_on_the_screen_within_a_second(browser: Browser, site: Site) -> None:
    with page_of(browser, site) as page:
        page.context.add_init_script(_FIRST_ROW)
        shown_after = [first_row_ms(page)]
        while min(shown_after) >= MAX_MS and len(shown_after) < TRIES:
            shown_after.append(first_row_ms(page))
        print(f"first row of {RUNS} after {shown_after} ms")  # noqa: T201 - a measurement
        assert min(shown_after) < MAX_MS * load_factor()
        expect(page.locator(".chip").first).to_contain_text("10,000")
        keep(page, "ten-thousand")


def test_further_rows_come_as_one_scrolls_each_once(browser: Browser, site: Site) -> None:
    with page_of(browser, site) as page:
        page.locator("tbody tr").first.wait_for()
        for _ in range(5):
            page.mouse.wheel(0, 20_000)
            page.wait_for_timeout(100)
        until_true(page, f"{BODIES} >= 8")
        ids = page.evaluate("[...document.querySelectorAll('[data-run]')].map((r) => r.dataset.run)")
        assert len(set(ids)) == len(ids)


def test_rows_that_are_far_away_cost_nothing_and_come_back(browser: Browser, site: Site) -> None:
    with page_of(browser, site) as page:
        first = page.locator("tbody tr").first.get_attribute("data-run")
        for bodies in range(4, 25, 2):
            page.mouse.wheel(0, 1_000_000)
            until_true(page, f"{BODIES} >= {bodies}")  # a page of 50 rows
        until_true(page, "document.querySelectorAll('*').length <= 5000")
        height = page.evaluate("document.body.scrollHeight")
        page.evaluate("window.scrollTo(0, 0)")
        expect(page.locator("tbody tr").first).to_have_attribute("data-run", str(first))
        assert abs(page.evaluate("document.body.scrollHeight") - height) < 100, "nothing jumps"


def test_news_do_not_move_what_somebody_reads(browser: Browser, site: Site) -> None:
    with page_of(browser, site) as page:
        page.locator("tbody tr").first.wait_for()
        expect(page.locator(".live")).to_have_text("Live")
        page.mouse.wheel(0, 900)
        until_true(page, "window.scrollY > 240")
        first = page.locator("tbody tr").first.get_attribute("data-run")
        run_id = site.submit("news")
        held = page.get_by_role("button", name="Show updates (1)")
        held.wait_for()
        assert page.locator("tbody tr").first.get_attribute("data-run") == first
        held.click()
        expect(page.locator("tbody tr").first).to_have_attribute("data-run", run_id)


def test_a_filter_has_its_own_counts_and_back_leads_to_where_one_was(browser: Browser, site: Site) -> None:
    """D8"""
    with page_of(browser, site) as page:
        page.get_by_role("combobox", name="Filter runs").fill("flow:flow-7")
        page.keyboard.press("Enter")
        expect(page.locator(".chip", has_text="Pending")).to_have_text("Pending 200")
        expect(page.locator(".chip").first).to_have_text("All 200")
        until_true(page, f"{BODIES} === 2")
        page.mouse.wheel(0, 20_000)
        until_true(page, f"{BODIES} >= 4")
        run_id = page.locator("tr[data-run]").last.get_attribute("data-run")
        last = page.locator(f'[data-run="{run_id}"]')
        last.scroll_into_view_if_needed()
        y = page.evaluate("window.scrollY")
        last.get_by_role("link").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("flow-7")
        page.go_back()
        expect(last).to_be_in_viewport()
        assert abs(page.evaluate("window.scrollY") - y) < 100
