"""REQ-0020: workflow events in a real browser: what came, what is tried again, and what may start what."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from support.browsing import (
    Site,
    keep,
    name_of,
    overhang,
    page_of,
    running_site,
    serious_barriers,
)
from support.dashboard_flows import HOSTILE
from support.process_flows import mark
from support.waiting import PATIENCE_SEC

SHOWN_HOSTILE = HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
PARTS = ("deliveries", "queue", "templates", "actions", "sources", "notifications")
MONTH = {"year": 2026, "month": 11}
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - of nobody


@pytest.fixture(scope="module")
def site(built: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(
        tmp_path_factory.mktemp("site"), AX_WORKFLOW_EVENT_RETRY_BASE_DELAY_SECONDS="600"
    ) as running:
        yield running


def post_event(site: Site, **fields: Any) -> httpx2.Response:
    return httpx2.post(f"{site.url}/api/workflow-events", json=fields)


def template(site: Site, template_id: str, *, action: dict[str, Any], name: str | None = None) -> None:
    """One step, which an event starts."""
    site.api.events.put_action(template_id, action)
    step = {"id": "only", "action": template_id, "trigger_kind": "external_event"}
    site.api.events.put_template(template_id, {"name": name or template_id, "steps": [step], **MONTH})


def toast(page: Page, text: str) -> None:
    expect(page.locator(".toast", has_text=text)).to_be_visible()


def test_an_empty_installation_says_what_to_type(browser: Browser, site: Site) -> None:
    for part in ("deliveries", "queue", "templates", "actions", "sources"):
        with page_of(browser, site, f"#/events/{part}") as page:
            expect(page.locator(".empty .command")).to_be_visible()
            keep(page, f"events-{part}-empty")


def test_an_event_that_cannot_start_is_queued_and_drained(browser: Browser, site: Site) -> None:
    one_at_a_time = {
        "flow_name": "gated",
        "params": {"marks": str(site.marks), "gate": "go"},
        "concurrency": "one",
    }
    template(site, "close", action=one_at_a_time, name="Monthly close")
    first = post_event(site, template_id="close", idempotency_key="invoice-1")
    assert first.status_code == 200, first.text
    refused = post_event(site, template_id="close", idempotency_key="invoice-2")
    assert (refused.status_code, refused.json()["queued"]) == (409, True)
    with page_of(browser, site, "#/events?ym=2026-11") as page:
        page.goto(f"{site.url}/#/events/deliveries?ym=2026-11")
        row = page.locator("table.deliveries tr", has_text="invoice-2")
        expect(row).to_contain_text("retried automatically")
        expect(page.locator("table.deliveries tr", has_text="invoice-1")).to_contain_text("Started")
        expect(page.get_by_role("region", name="Reasons")).to_contain_text("http_409")
        keep(page, "events-deliveries")
        page.get_by_role("navigation", name="Sections of").get_by_role("link", name="Retry queue").click()
        job = page.locator("table.jobs tr", has_text="invoice-2")
        expect(job.locator(".status")).to_have_attribute("data-state", "pending")
        expect(job).to_contain_text(re.compile(r"in \d+m \d\ds"))
        keep(page, "events-queue")
        page.get_by_role("button", name="Retry all now (1)").click()
        expect(job.locator(".status")).to_have_attribute("data-state", "retrying")
        expect(job).to_contain_text("1/")
        mark(str(site.marks), "go")
        list(site.api.watch_run(first.json()["run_id"], timeout_sec=PATIENCE_SEC))
        page.get_by_role("button", name=re.compile("^Retry Monthly close, key invoice-2")).click()
        toast(page, "Due now")
        # No plain click: the server retries what is due, too, and then the button is off.
        page.get_by_role("button", name=re.compile("^Retry due")).dispatch_event("click")
        expect(job.locator(".status")).to_have_attribute("data-state", "succeeded")
        job.get_by_role("link").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("gated")


def test_a_job_is_discarded(browser: Browser, site: Site) -> None:
    stuck = {
        "flow_name": "gated",
        "params": {"marks": str(site.marks), "gate": "never"},
        "concurrency": "one",
    }
    template(site, "stuck", action=stuck)
    run_id = post_event(site, template_id="stuck", idempotency_key="s-1").json()["run_id"]
    post_event(site, template_id="stuck", idempotency_key="s-2")
    with page_of(browser, site, "#/events/queue") as page:
        job = page.locator("table.jobs tr", has_text="s-2")
        job.get_by_role("button", name="Discard stuck, key s-2").click()
        page.get_by_role("dialog").get_by_role("button", name="Discard").click()
        expect(job.locator(".status")).to_have_attribute("data-state", "discarded")
    site.api.cancel_run(run_id)


def test_a_template_is_made_refused_corrected_started_and_deleted(browser: Browser, site: Site) -> None:
    site.api.events.put_action("sum-up", {"flow_name": "report"})
    with page_of(browser, site, "#/events/templates", is_quiet=False) as page:  # the browser logs the 422
        page.get_by_role("button", name="New template").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("ID", exact=True).fill("made here")
        dialog.get_by_label("Name").fill("Made here")
        dialog.get_by_label("Action").fill("sum-up")
        dialog.get_by_role("button", name="Add a step").click()
        dialog.get_by_label("Action").nth(1).fill("sum-up")
        dialog.get_by_label("Starts").nth(1).select_option("manual_start")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("alert")).to_contain_text("id: must match")
        keep(page, "events-template")
        dialog.get_by_label("ID", exact=True).fill("made-here")
        dialog.get_by_role("button", name="Save").click()
        row = page.locator('[data-template="made-here"]')
        expect(row).to_contain_text("an event")
        page.get_by_role("button", name="Start Made here").click()
        page.get_by_role("dialog").get_by_role("button", name="Start").click()
        expect(page.locator(".graph-node").first).to_be_visible()
        expect(page.locator(".page-head .status")).to_have_attribute("data-state", "WAITING")
        keep(page, "events-template-execution")
        page.goto(f"{site.url}/#/events/templates")
        page.get_by_role("button", name="Delete Made here").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(row).to_have_count(0)


def test_two_people_who_edit_one_template_are_told_so(browser: Browser, site: Site) -> None:
    template(site, "shared", action={"flow_name": "report"}, name="Shared")
    with page_of(browser, site, "#/events/templates", is_quiet=False) as page:  # the browser logs the 409
        page.get_by_role("button", name="Edit Shared").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("Mine")
        template(site, "shared", action={"flow_name": "report"}, name="Theirs")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("alert")).to_contain_text("Someone changed this template")
        keep(page, "events-template-conflict")
        dialog.get_by_role("button", name="Load their version").click()
        expect(dialog.get_by_label("Name")).to_have_value("Theirs")
        dialog.get_by_label("Name").fill("Both")
        dialog.get_by_role("button", name="Save").click()
        expect(page.locator('[data-template="shared"]')).to_contain_text("Both")
    assert site.api.events.get_template("shared")["name"] == "Both"


def test_an_action_is_made_and_changed(browser: Browser, site: Site) -> None:
    with page_of(browser, site, "#/events/actions", is_quiet=False) as page:  # the browser logs the 422
        page.get_by_role("button", name="New action").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Key").fill("not a key")
        dialog.get_by_label("Flow", exact=True).fill("report")
        dialog.get_by_label("Params").fill("[1]")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("alert")).to_contain_text("expected {…}")
        dialog.get_by_label("Params").fill('{"rows": 2}')
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("alert")).to_contain_text("separated by dots")
        dialog.get_by_label("Key").fill("invoice.received")
        dialog.get_by_label("Concurrency").select_option("one")
        dialog.get_by_role("button", name="Save").click()
        row = page.locator('[data-action="invoice.received"]')
        expect(row).to_contain_text("report")
        keep(page, "events-actions")
        row.get_by_role("button", name="Edit").click()
        dialog.get_by_label("Starts").select_option("graph")
        dialog.get_by_label("Graph", exact=True).fill("monthly-close")
        dialog.get_by_role("button", name="Save").click()
        expect(row).to_contain_text("monthly-close")


def test_a_source_keeps_its_secret_to_itself(browser: Browser, site: Site) -> None:
    with page_of(browser, site, "#/events/sources") as page:
        page.get_by_role("button", name="New source").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("ID", exact=True).fill("billing")
        dialog.get_by_label("Secret", exact=True).fill(SECRET)
        keep(page, "events-source")
        dialog.get_by_role("button", name="Save").click()
        row = page.locator('[data-source="billing"]')
        expect(row).to_contain_text("1 set")
        keep(page, "events-sources")
        row.get_by_role("button", name="Edit billing").click()
        expect(dialog.get_by_label("Secret", exact=True)).to_have_value("")
        assert SECRET not in page.content()
        page.keyboard.press("Escape")
        row.get_by_role("button", name="Delete billing").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(row).to_have_count(0)


def test_notifications_are_saved_masked_and_removed(browser: Browser, site: Site) -> None:
    address = "https://chat.googleapis.com/v1/spaces/AAAA/messages?key=the-key&token=the-token"
    with page_of(browser, site, "#/events/notifications", is_quiet=False) as page:  # the browser logs the 422
        expect(page.get_by_role("button", name="Send test message")).to_be_disabled()
        field = page.get_by_label("New webhook URL")
        field.fill("https://example.com/elsewhere")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_contain_text("must have the form")
        field.fill(address)
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_text("configured", exact=True)).to_be_visible()
        expect(field).to_have_value("")
        assert "the-token" not in page.content()
        keep(page, "events-notifications")
        page.get_by_role("button", name="Remove").click()
        expect(page.get_by_text("not configured")).to_be_visible()


def test_a_replayed_event_starts_again(browser: Browser, site: Site) -> None:
    template(site, "again", action={"flow_name": "report"})
    event_id = post_event(site, template_id="again", idempotency_key="again-1").json()["event_id"]
    with page_of(browser, site, "#/events/deliveries?ym=2026-11") as page:
        page.locator(f'[data-event="{event_id}"]').get_by_role("button").click()
        page.get_by_role("dialog").get_by_role("button", name="Send again").dblclick()
        toast(page, "Sent again")
    answer = httpx2.get(
        f"{site.url}/api/workflow-events/summary", params={"ym": "2026-11", "recent_limit": 200}
    )
    sent = [one for one in answer.json()["recent"] if one["template_id"] == "again"]
    assert len(sent) == 2, "the event, and one replay of it"


def test_what_others_wrote_stays_text(browser: Browser, site: Site) -> None:
    """A11: names of events and templates, sources, keys and reasons."""
    template(site, "hostile", action={"flow_name": "report"}, name=HOSTILE[:60])
    post_event(site, template_id="hostile", event_name=HOSTILE, source=HOSTILE)
    with page_of(browser, site, "#/events/deliveries?ym=2026-11") as page:
        expect(page.locator("table.deliveries")).to_contain_text("onerror=document.title='owned'>")
        keep(page, "events-hostile")
        assert page.evaluate("document.querySelectorAll('img, main script').length") == 0
        page.goto(f"{site.url}/#/events/templates")
        expect(page.locator('[data-template="hostile"]')).to_contain_text("<img src=x")
        assert page.evaluate("document.querySelectorAll('img, main script').length") == 0
        assert page.title() != "owned"


@pytest.fixture(scope="module")
def places(site: Site) -> dict[str, str]:
    """Every part, with something in it."""
    template(site, "shown", action={"flow_name": "report"}, name="Shown")
    post_event(site, template_id="shown", idempotency_key="shown-1")
    post_event(site, template_id="nothing")
    site.api.events.put_source("shop", {"kind": "stripe", "secrets": ["a" * 20]})
    return {name_of(f"events/{part}"): f"#/events/{part}?ym=2026-11" for part in PARTS}


@pytest.mark.parametrize(("language", "theme"), [("en", "light"), ("ja", "dark")])
@pytest.mark.slow
def test_no_part_has_a_serious_barrier(
    browser: Browser, site: Site, web: Path, places: dict[str, str], language: str, theme: Any
) -> None:
    for name, place in places.items():
        with page_of(browser, site, place, language=language, theme=theme) as page:
            assert serious_barriers(page, web) == [], place
            keep(page, f"{name}-{language}-{theme}")


@pytest.mark.parametrize("part", ["templates", "actions", "sources"])
def test_no_form_has_a_serious_barrier_or_overhangs_a_phone(
    browser: Browser, site: Site, web: Path, part: str
) -> None:
    with page_of(browser, site, f"#/events/{part}", width=375) as page:
        page.get_by_role("button", name=f"New {part.removesuffix('s')}").click()
        page.get_by_role("dialog").wait_for()
        assert serious_barriers(page, web) == []
        inside = (
            "[...document.querySelectorAll('dialog *')].every((e) => e.getBoundingClientRect().right <= 375)"
        )
        assert page.evaluate(inside)
        keep(page, f"phone-{part}-form")


@pytest.mark.parametrize("language", ["en", "ja"])
@pytest.mark.slow
def test_it_fits_a_phone(browser: Browser, site: Site, places: dict[str, str], language: str) -> None:
    for name, place in places.items():
        with page_of(browser, site, place, language=language, width=375) as page:
            assert overhang(page) == 0, place
            keep(page, f"phone-{name}-{language}")
