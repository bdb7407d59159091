"""REQ-0020: the overview in a real browser: what needs somebody, and what ended when."""

import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from support.browsing import Site, keep, overhang, page_of, serious_barriers
from support.waiting import until_now

FAILED = 4


def need(page: Page, kind: str) -> Any:
    return page.locator(f'[data-need="{kind}"]')


def counted(site: Site) -> int:
    """Failures that the server has counted."""
    series = site.api.stats(by="status", status="FAILED")["series"]
    return sum(point["count"] for one in series for point in one["points"])


def test_all_is_quiet_before_anything_happens(browser: Browser, site: Site, web: Path) -> None:
    with page_of(browser, site, "") as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        expect(page).to_have_title("Overview · pyoco-server")
        expect(page.get_by_text("All quiet")).to_be_visible()
        expect(page.get_by_text("No run ended in this time")).to_be_visible()
        assert serious_barriers(page, web) == []
        keep(page, "overview-quiet")


def test_what_needs_somebody_is_first_and_a_range_of_bars_opens_its_runs(
    browser: Browser, site: Site, web: Path
) -> None:
    failed = [site.finished("failing") for _ in range(FAILED)]
    site.finished("report")
    stuck = site.submit("report", tag="nobody-has-it")
    until_now(lambda: counted(site), lambda found: found == FAILED)
    with page_of(browser, site, "#/overview?range=1h") as page:
        expect(need(page, "flow")).to_contain_text(f"failing failing: {FAILED} of {FAILED}")
        expect(need(page, "queue")).to_contain_text("1 waiting for nobody-has-it, no worker has this tag")
        expect(page.locator(".tiles")).to_contain_text("20.0 %")
        errors = page.get_by_role("region", name="Latest failures by error")
        expect(errors).to_contain_text(f"{FAILED}×")
        expect(errors.get_by_role("link", name="division by zero")).to_be_visible()
        strip = page.get_by_role("list", name="Last 20 runs, oldest first")
        expect(strip.get_by_role("link")).to_have_count(FAILED)
        assert serious_barriers(page, web) == []
        keep(page, "overview")
        drag_to_the_end(page, 0.8)
        expect(page).to_have_url(re.compile(r"#/runs\?since=\d+&until=\d+"))
        expect(page.locator(".chip", has_text="Failed")).to_have_text(f"Failed {FAILED}")
        expect(page.locator(f'[data-run="{failed[0]}"]')).to_be_visible()
        keep(page, "runs-of-a-range")
        page.go_back()
        page.locator(".ended-bars").press("ArrowLeft")
        page.locator(".ended-bars").press("Home")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(r"#/runs\?since=\d+&until=\d+"))
        page.go_back()
        need(page, "queue").get_by_role("link").click()
        expect(page).to_have_url(re.compile("#/queues"))
    site.api.cancel_run(stuck)
    with page_of(browser, site, "#/overview?range=7d", language="ja", theme="dark", width=375) as page:
        expect(need(page, "flow")).to_be_visible()
        assert overhang(page) == 0
        keep(page, "phone-overview-ja")


def drag_to_the_end(page: Page, share: float) -> None:
    box = page.locator(".ended-bars").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + share * box["width"], box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 60, steps=4)
    page.mouse.up()
