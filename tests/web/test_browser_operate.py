"""REQ-0020: dead letters, bulk operations and storage on the dashboard, in a real browser."""

import re
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from support.browsing import Site, keep, overhang, page_of, serious_barriers, until_true
from support.waiting import until_now

PLACES = ["dead-letters", "bulk", "api-keys", "audit", "about"]


@pytest.fixture(scope="module")
def failed(site: Site) -> list[str]:
    """Runs that have failed and left dead letters; one is for a flow that no worker has."""
    ids = [site.finished("failing") for _ in range(3)]
    ids.append(site.finished("no-such-flow"))
    until_now(lambda: letters(site), lambda found: len(found) >= len(ids))
    return ids


def letters(site: Site) -> list[Any]:
    items: list[Any] = site.api.dead_letters.list()["items"]
    return items


def row(page: Page, key: str) -> Any:
    return page.locator(f'[data-key="{key}"]')


def twice(button: Any) -> None:
    """Two clicks, the second before the page is drawn again."""
    button.evaluate("(button) => { button.click(); button.click() }")


def test_a_dead_letter_is_found_read_redriven_once_and_discarded(
    browser: Browser, site: Site, failed: list[str]
) -> None:
    """D6: a double click acts once."""
    lost = next(one for one in letters(site) if one["reason"] == "flow_not_found")
    with page_of(browser, site, "#/dead-letters") as page:
        expect(row(page, lost["id"])).to_contain_text("Flow not found")
        keep(page, "dead-letters")
        page.get_by_label("Reason").select_option("flow_not_found")
        expect(page).to_have_url(re.compile("reason=flow_not_found"))
        expect(page.locator("tbody tr")).to_have_count(1)
        row(page, lost["id"]).get_by_role("link", name="no-such-flow").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("no-such-flow")
        expect(page.get_by_text("No worker of the tag has this flow")).to_be_visible()
        keep(page, "dead-letter")
        page.get_by_role("button", name="Redrive").click()
        twice(page.get_by_role("dialog").get_by_role("button", name="Redrive"))
        expect(page).to_have_url(re.compile("#/runs/"))
        again = page.url.rpartition("/")[2]
        page.go_back()
        expect(page.get_by_role("button", name="Redrive")).to_be_disabled()
        expect(page.locator(f'a[href="#/runs/{again}"]')).to_be_visible()
        page.get_by_role("button", name="Discard").click()
        page.get_by_role("dialog").get_by_role("button", name="Discard").click()
        expect(page).to_have_url(re.compile("#/dead-letters$"))
        expect(row(page, lost["id"])).to_have_count(0)


def test_all_matching_letters_are_redriven_with_a_count_first(
    browser: Browser, site: Site, failed: list[str]
) -> None:
    with page_of(browser, site, "#/dead-letters?flow=failing") as page:
        expect(page.locator("tbody tr").first).to_be_visible()
        page.get_by_role("button", name="Redrive all matching…").click()
        dialog = page.get_by_role("dialog")
        button = dialog.get_by_role("button", name=re.compile(r"Redrive \d+ letters"))
        expect(button).to_be_enabled()
        keep(page, "bulk-redrive")
        operations = len(site.api.bulk.list()["items"])
        twice(button)
        expect(page.get_by_role("heading", level=1)).to_have_text("Redrive dead letters")
        expect(page.locator(".page-head .status")).to_have_attribute("data-state", "COMPLETED")
        expect(page.get_by_text("100 %")).to_be_visible()
        keep(page, "bulk-done")
        assert len(site.api.bulk.list()["items"]) == operations + 1, "once"


def test_runs_are_selected_and_cancelled_together(browser: Browser, site: Site) -> None:
    """Also by keyboard: the boxes are boxes."""
    ids = [site.submit("report", delay_sec=3600) for _ in range(3)]
    other = site.submit("gated", {"marks": str(site.marks), "gate": "never"}, delay_sec=3600)
    with page_of(browser, site, "#/runs?flow=report&status=PENDING") as page:
        for run_id in ids:
            box = page.locator(f'[data-run="{run_id}"] input[type="checkbox"]')
            box.focus()
            page.keyboard.press("Space")
        bar = page.get_by_role("region", name="Selected runs")
        expect(bar).to_contain_text("3 selected")
        keep(page, "selection")
        bar.get_by_role("button", name="Cancel…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("heading")).to_have_text("Cancel 3 runs?")
        keep(page, "bulk-cancel")
        dialog.get_by_role("button", name="Cancel 3 runs").click()
        expect(page.locator(".page-head .status")).to_have_attribute("data-state", "COMPLETED")
        until_now(
            lambda: {site.api.get_run(one)["status"] for one in ids}, lambda found: found == {"CANCELLED"}
        )
    assert site.api.get_run(other)["status"] == "PENDING"
    site.api.cancel_run(other)


def test_all_matching_are_more_than_are_shown_and_an_operation_is_stopped(
    browser: Browser, site: Site
) -> None:
    """The operation is slow on purpose; the page follows it, and stops it."""
    runs = [{"flow_name": "later", "tag": "nobody"} for _ in range(120)]
    site.api.submit_runs(runs)
    with page_of(browser, site, "#/runs?flow=later") as page:
        expect(page.locator("tbody tr").nth(49)).to_be_attached()
        page.get_by_label("Select all shown runs").check()
        bar = page.get_by_role("region", name="Selected runs")
        bar.get_by_role("button", name="Select all 120 matching").click()
        expect(bar).to_contain_text("All 120 matching runs selected")
        bar.get_by_role("button", name="Cancel…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("At most per second").fill("2")
        dialog.get_by_role("button", name="Cancel 120 runs").click()
        status = page.locator(".page-head .status")
        expect(status).to_have_attribute("data-state", "RUNNING")
        until_true(page, "document.querySelector('.advance progress').value >= 4")
        keep(page, "bulk-running")
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        expect(status).to_have_attribute("data-state", "CANCELLED")
        page.get_by_role("link", name="Bulk operations").first.click()
        expect(page.locator("table.bulk tbody tr").first).to_contain_text("Cancel runs")
        keep(page, "bulk-list")


def test_the_trail_shows_what_changed_and_is_exported(browser: Browser, site: Site) -> None:
    site.api.pause_queue("audited", reason="disk full")
    site.api.pause_queue("audited", reason="disk nearly full")
    site.api.resume_queue("audited")
    with page_of(browser, site, "#/audit?target=audited") as page:
        rows = page.locator("table.audit tbody tr")
        expect(rows).to_have_count(3)
        keep(page, "audit")
        rows.nth(1).get_by_role("button", name="queue.pause").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.locator(".changes")).to_contain_text("disk nearly full")
        keep(page, "audit-entry")
        page.keyboard.press("Escape")
        with page.expect_download() as download:
            page.get_by_role("button", name="Export").click()
        lines = download.value.path().read_text().splitlines()
        assert len(lines) == 3
        assert all('"audited"' in line for line in lines)


def test_storage_and_retention_are_shown(browser: Browser, site: Site) -> None:
    with page_of(browser, site, "#/about") as page:
        expect(page.get_by_role("row", name=re.compile("Runs, after their end 30 days"))).to_be_visible()
        expect(page.locator("table.storage tbody tr").first).to_contain_text("pyoco")
        keep(page, "about")


def test_a_file_that_is_gone_after_an_upgrade_reloads_the_page(browser: Browser, site: Site) -> None:
    """As after an upgrade: the files that the open page names are 404, and the server has another page."""
    with page_of(browser, site, is_quiet=False) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
        page.evaluate("window.__old = true")

        def gone(route: Route) -> None:
            if page.evaluate("window.__old === true"):
                route.fulfill(status=404)
            else:
                route.continue_()

        def upgraded(route: Route) -> None:
            if route.request.resource_type == "fetch":
                route.fulfill(body='<script type="module" src="/static/assets/index-newer000.js"></script>')
            else:
                route.continue_()

        page.route("**/assets/pages-*.js", gone)
        page.route(f"{site.url}/", upgraded)
        page.get_by_role("link", name="About & storage").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("About & storage")
        assert page.evaluate("window.__old") is None, "loaded again"


def test_while_the_server_is_the_same_a_lost_file_is_a_button(browser: Browser, site: Site) -> None:
    with page_of(browser, site, is_quiet=False) as page:
        page.route("**/assets/pages-*.js", lambda route: route.abort())
        page.get_by_role("link", name="About & storage").click()
        expect(page.get_by_text("This page could not be loaded")).to_be_visible()
        page.unroute("**/assets/pages-*.js")
        page.get_by_role("button", name="Reload").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("About & storage")


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nobody_is_kept_out(
    browser: Browser, site: Site, web: Path, failed: list[str], theme: Literal["light", "dark"]
) -> None:
    letter = letters(site)[0]["id"]
    for place in [*PLACES, f"dead-letters/{letter}", "runs"]:
        with page_of(browser, site, f"#/{place}", theme=theme) as page:
            assert serious_barriers(page, web) == [], place


@pytest.mark.slow
@pytest.mark.parametrize("width", [375, 900, 1440])
@pytest.mark.parametrize("language", ["en", "ja"])
def test_nothing_hangs_out_of_the_window(
    browser: Browser, site: Site, failed: list[str], width: int, language: str
) -> None:
    for place in [*PLACES, f"dead-letters/{letters(site)[0]['id']}", "runs"]:
        with page_of(browser, site, f"#/{place}", width=width, language=language) as page:
            assert overhang(page) <= 0, place
            keep(page, f"operate-{place.replace('/', '-')}-{language}-{width}")
