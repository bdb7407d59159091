"""REQ-0020: schedules, delays and retries on the dashboard, in a real browser."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from support.browsing import (
    Site,
    keep,
    name_of,
    overhang,
    page_of,
    serious_barriers,
    until_true,
)
from support.waiting import until_now

REPORT = {"flow": "report", "params": {"rows": 4}, "timeout_sec": 600}
GRAPH = {"nodes": {"write": {"type": "task", "flow": "report"}}}
FIRST = "the first test, while there are none"


@pytest.fixture(scope="module")
def shop(site: Site) -> Site:
    """With schedules as a shop would have them."""
    api = site.api
    api.put_graph("close", GRAPH)
    put = api.schedules.put
    put(
        "nightly-report",
        REPORT,
        cron="30 2 * * *",
        timezone="Asia/Tokyo",
        description="Sales of the day before",
    )
    put(
        "invoice-run",
        {"flow": "report", "retry": {"max_attempts": 3}},
        cron="0 9 * * MON-FRI",
        timezone="Europe/Berlin",
        pause_after_failures=3,
    )
    put("month-end-close", {"graph": "close"}, cron="0 6 L * *", timezone="Asia/Tokyo", overlap="queue")
    put("odd-hours", {"flow": "report"}, cron="*/7 9-17 * * 1-5", timezone="UTC", jitter_sec=30)
    put("stock-sync", {"flow": "failing"}, every_sec=900, timezone="UTC")
    api.schedules.pause("stock-sync", "supplier's API is down until Thursday")
    api.schedules.trigger("nightly-report")
    api.schedules.trigger("month-end-close")
    return site


def ticks_of(site: Site, schedule_id: str) -> list[Any]:
    items: list[Any] = site.api.schedules.ticks(schedule_id)["items"]
    return items


def schedule_row(page: Page, schedule_id: str) -> Any:
    return page.locator(f'[data-schedule="{schedule_id}"]')


def status(page: Page) -> Any:
    return page.locator(".page-head .status")


def twice(button: Any) -> None:
    """Two clicks, the second before the page is drawn again."""
    button.evaluate("(button) => { button.click(); button.click() }")


# Schedules


def test_without_schedules_the_page_shows_how_to_make_one(browser: Browser, site: Site, web: Path) -> None:
    assert site.api.schedules.list()["items"] == [], FIRST
    with page_of(browser, site, "#/schedules") as page:
        expect(page.get_by_text("No schedules yet")).to_be_visible()
        expect(
            page.get_by_text(f"pyoco-client schedules put nightly.yaml --server {site.url}")
        ).to_be_visible()
        assert serious_barriers(page, web) == []
        keep(page, "schedules-empty")


def test_the_list_has_words_zones_and_the_next_and_last_tick(browser: Browser, shop: Site) -> None:
    with page_of(browser, shop, "#/schedules") as page:
        nightly = schedule_row(page, "nightly-report")
        expect(nightly).to_contain_text("Every day at 02:30")
        expect(nightly).to_contain_text("Asia/Tokyo")
        expect(nightly.locator(".cell-next")).to_contain_text(re.compile(r"in \d+.*02:30$"))
        own = page.evaluate("Intl.DateTimeFormat().resolvedOptions().timeZone")
        title = nightly.locator(".cell-next .row-reason time").get_attribute("title")
        assert title.startswith("Your time: ")
        assert title.endswith(f"({own})")
        expect(nightly.get_by_role("img", name="1 in the next 24 hours")).to_be_visible()
        expect(nightly.locator(".cell-last .status")).to_have_attribute("data-state", "STARTED")
        expect(schedule_row(page, "odd-hours")).to_contain_text("*/7 9-17 * * 1-5")
        paused = schedule_row(page, "stock-sync")
        expect(paused.locator(".cell-status .status")).to_have_attribute("data-state", "PAUSED")
        expect(paused).to_contain_text("supplier's API is down until Thursday")
        nightly.locator(".cell-last a").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("report")
        expect(status(page)).to_have_attribute("data-state", "COMPLETED")
        page.get_by_role("link", name="nightly-report").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("nightly-report")


def test_a_schedule_is_paused_resumed_and_triggered_once_each(browser: Browser, shop: Site) -> None:
    """W06: a double click acts once."""
    shop.api.schedules.put("every-second", {"flow": "report"}, every_sec=1, timezone="UTC")
    with page_of(browser, shop, "#/schedules/every-second") as page:
        history = page.get_by_role("region", name="Tick history")
        started = history.locator('[data-state="STARTED"]')
        expect(started.nth(2)).to_be_visible()  # by itself
        page.get_by_role("button", name="Pause").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Reason").fill("stock-taking")
        keep(page, "schedule-pause")
        dialog.get_by_role("button", name="Pause").click()
        expect(status(page)).to_have_attribute("data-state", "PAUSED")
        expect(page.get_by_text("Reason: stock-taking")).to_be_visible()
        folded = history.locator("tr", has_text="the schedule was paused")
        expect(folded.locator(".tag")).to_contain_text(re.compile(r"× ([3-9]|\d\d)"))
        page.get_by_role("button", name="Run now").click()
        twice(dialog.get_by_role("button", name="Run now"))
        expect(dialog).to_have_count(0)
        expect(history.get_by_text("manual")).to_have_count(1)
        keep(page, "schedule-paused")
        page.get_by_role("button", name="Resume").click()
        dialog.get_by_role("button", name="Resume").click()
        expect(status(page)).to_have_attribute("data-state", "SCHEDULED")
        expect(folded).to_have_count(1)
        shop.api.schedules.pause("every-second")
    assert sum("manual" in tick for tick in ticks_of(shop, "every-second")) == 1
    shop.api.schedules.delete("every-second")


def test_a_schedule_is_made_changed_and_deleted_with_a_form(browser: Browser, shop: Site, web: Path) -> None:
    # The browser reports what the server refuses while somebody types.
    with page_of(browser, shop, "#/schedules", is_quiet=False) as page:
        page.get_by_role("button", name="New schedule").click()
        dialog = page.get_by_role("dialog")
        preview = dialog.get_by_role("region", name="Next ticks")
        expect(preview).to_contain_text("Every day at 09:00")
        expect(preview.get_by_role("listitem")).to_have_count(5)
        assert serious_barriers(page, web) == []
        cron = dialog.get_by_label("cron", exact=True)
        cron.fill("61 * * * *")
        expect(dialog.get_by_role("alert")).to_contain_text("minute '61': 61 is not from 0 to 59")
        expect(cron).to_have_attribute("aria-invalid", "true")
        cron.fill("15 4 * * MON")
        dialog.get_by_label("Time zone").fill("Asia/Tokyo")
        expect(preview).to_contain_text("Mon at 04:15")
        expect(preview.get_by_role("listitem").first).to_contain_text(re.compile(r"^Mon, .*04:15$"))
        keep(page, "schedule-new")
        dialog.get_by_label("Name").nth(0).fill("weekly")
        dialog.get_by_label("Name").nth(1).fill("report")
        dialog.get_by_label("Params").fill("[1]")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("alert")).to_have_text("expected {…}")
        dialog.get_by_label("Params").fill('{"rows": 7}')
        more = dialog.get_by_text("Overlaps, outages and retries")
        more.click()
        dialog.get_by_label("Tries").fill("0")
        more.click()
        expect(dialog.get_by_label("Tries")).not_to_be_visible()
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_text("greater than or equal to 1")).to_be_visible()  # where nobody had looked
        dialog.get_by_label("Tries").fill("3")
        dialog.get_by_role("button", name="Save").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("weekly")
        made = shop.api.schedules.get("weekly")
        assert (made["cron"], made["timezone"]) == ("15 4 * * MON", "Asia/Tokyo")
        assert made["target"]["params"] == {"rows": 7}
        assert made["target"]["retry"]["max_attempts"] == 3
        page.get_by_role("button", name="Edit").click()
        dialog.get_by_label("Repeats").select_option("every")
        dialog.get_by_label("Interval (s)").fill("5400")
        expect(preview).to_contain_text("Every 90 minutes")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_have_count(0)
        changed = shop.api.schedules.get("weekly")
        assert (changed["cron"], changed["every_sec"]) == (None, 5400)
        assert changed["target"] == made["target"]
        page.get_by_role("button", name="Delete").click()
        dialog.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Schedules")
        expect(schedule_row(page, "nightly-report")).to_be_visible()
        expect(schedule_row(page, "weekly")).to_have_count(0)


def test_a_long_history_is_read_page_by_page(browser: Browser, shop: Site) -> None:
    """More ticks than a page has, of a stretch of the past."""
    put = shop.api.schedules.put
    put("backlog", {"flow": "no-such-flow"}, cron="*/15 * 1 1 *", timezone="UTC", overlap="allow")
    shop.api.schedules.backfill("backlog", "2026-01-01T00:00Z", "2026-01-01T17:00Z")
    until_now(lambda: len(ticks_of(shop, "backlog")), lambda n: n >= 50)
    with page_of(browser, shop, "#/schedules/backlog") as page:
        rows = page.get_by_role("region", name="Tick history").locator("tbody tr")
        expect(rows).to_have_count(50)
        page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        expect(page.get_by_text("All 69 shown")).to_be_visible()
        expect(rows).to_have_count(69)
    shop.api.schedules.delete("backlog")


def test_a_schedule_that_is_gone_is_said_so(browser: Browser, shop: Site) -> None:
    with page_of(
        browser, shop, "#/schedules/none", is_quiet=False
    ) as page:  # the browser logs the 404 itself
        expect(page.get_by_text("Schedule not found.")).to_be_visible()
        page.get_by_role("link", name="Go to schedules").click()
        expect(schedule_row(page, "nightly-report")).to_be_visible()


# Runs in time


def test_a_delayed_run_counts_down_and_starts_by_itself(browser: Browser, site: Site) -> None:
    later, soon = site.submit("report", delay_sec=5400), site.submit("report", delay_sec=4)
    with page_of(browser, site, f"#/runs/{later}") as page:
        notice = page.locator(".notice.starts")
        expect(notice).to_contain_text(re.compile(r"Starts in 1h (30|2\d)m"))
        expect(page.get_by_text("No live worker")).to_have_count(0)
        keep(page, "run-delayed")
    with page_of(browser, site, "#/runs") as page:
        expect(page.locator(f'[data-run="{later}"]')).to_contain_text(re.compile(r"Starts in 1h (30|2\d)m"))
        expect(page.locator(f'[data-run="{soon}"] .status')).to_have_attribute("data-state", "COMPLETED")
        keep(page, "runs-delayed")
    site.api.cancel_run(later)


def test_a_run_shows_its_tries_and_when_the_next_one_is(browser: Browser, site: Site) -> None:
    params = {"marks": str(site.marks), "gate": "august.csv"}
    policy = {"max_attempts": 4, "backoff_sec": 0.1, "factor": 60, "on": ["error", "timeout"]}
    run_id = site.submit("mended", params, retry=policy, timeout_sec=90, start_within_sec=3600)
    with page_of(browser, site, f"#/runs/{run_id}") as page:
        tries = page.get_by_role("region", name="Failed tries")
        expect(tries.locator("tbody tr")).to_have_count(3)
        expect(tries).to_contain_text("the supplier's file has not arrived: august.csv")
        expect(page.locator(".notice.starts")).to_contain_text(re.compile("Try 4 of 4 starts in [1-6]m"))
        facts = page.locator(".facts").first
        expect(facts).to_contain_text("up to 4 tries, waits 100 ms, 6 s, 6m 00s")
        expect(facts).to_contain_text("1m 30s")
        keep(page, "run-tries")
    site.api.cancel_run(run_id)


def test_a_run_is_retried_from_its_failed_tasks_once(browser: Browser, site: Site) -> None:
    """W06: a double click acts once."""
    run_id = site.finished("mended", marks=str(site.marks), gate="september.csv")
    (site.marks / "september.csv").touch()
    with page_of(browser, site, f"#/runs/{run_id}") as page:
        page.get_by_role("button", name="Run again").click()
        page.get_by_role("button", name="From the failed task…").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_label("Failed tasks only")).to_be_checked()
        keep(page, "run-retry")
        twice(dialog.get_by_role("button", name="Retry"))
        until_true(page, "(old) => !location.hash.includes(old)", arg=run_id)
        expect(status(page)).to_have_attribute("data-state", "COMPLETED")
        timeline = page.get_by_role("group", name="Task timeline")
        expect(timeline.get_by_role("button", name=re.compile("^load.*kept"))).to_be_visible()
        expect(timeline.get_by_role("button", name=re.compile("^check"))).not_to_contain_text("kept")
        keep(page, "run-retried")
        page.locator(".origin").get_by_role("link", name="Retry of").click()
        expect(page.locator(".facts > div", has_text="Retried as")).to_be_visible()
    found = site.api.list_runs(flow="mended")
    assert len([run for run in found if run["status"] == "COMPLETED"]) == 1


def test_a_refused_retry_says_why(browser: Browser, site: Site) -> None:
    run_id = site.finished("opaque")
    with page_of(
        browser, site, f"#/runs/{run_id}", is_quiet=False
    ) as page:  # the browser logs the 409 itself
        page.get_by_role("button", name="Run again").click()
        page.get_by_role("button", name="From the failed task…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Retry").click()
        expect(dialog.get_by_role("alert")).to_contain_text("the output of task 'load' is not plain JSON")
        keep(page, "run-retry-refused")
        dialog.get_by_label("From the start").check()
        dialog.get_by_role("button", name="Retry").click()
        until_true(page, "(old) => !location.hash.includes(old)", arg=run_id)


# For everybody


@pytest.mark.parametrize(("language", "theme"), [("en", "light"), ("ja", "dark")])
@pytest.mark.slow
def test_no_serious_barrier(browser: Browser, shop: Site, web: Path, language: str, theme: Any) -> None:
    failed = shop.submit(
        "mended", {"marks": str(shop.marks), "gate": "never"}, retry={"max_attempts": 2, "backoff_sec": 0}
    )
    until_now(lambda: shop.api.get_run(failed)["status"] == "FAILED")
    for place in ("#/schedules", "#/schedules/nightly-report", "#/schedules/stock-sync", f"#/runs/{failed}"):
        for width in (1280, 375):
            with page_of(browser, shop, place, language=language, theme=theme, width=width) as page:
                assert overhang(page) == 0, (place, width)
                assert serious_barriers(page, web) == [], (place, width)
                keep(page, f"{name_of(place, tries=failed)}-{theme}-{language}-{width}")


def test_everything_can_be_reached_by_keyboard(browser: Browser, shop: Site) -> None:
    with page_of(browser, shop, "#/schedules") as page:
        page.get_by_role("link", name="nightly-report", exact=True).focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Pause").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog").get_by_label("Reason")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Pause")).to_be_focused()


@pytest.mark.parametrize("width", [780, 900, 1024, 1440])
def test_the_navigation_fits(browser: Browser, shop: Site, width: int) -> None:
    with page_of(browser, shop, "#/schedules", language="ja", width=width) as page:
        assert overhang(page) == 0
        keep(page, f"schedules-ja-{width}")
