"""REQ-0020: flows, queues and limits on the dashboard, and the frame around all pages, in a real browser."""

import json
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
from support.dashboard_flows import HOSTILE

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"rows": {"type": "integer", "minimum": 1, "maximum": 9, "description": "How many"}},
    "required": ["rows"],
    "additionalProperties": False,
}
PLACES = ["#/flows", "#/flows/report", "#/queues", "#/limits", "#/limits/per-customer", "#/runs"]
NARROW = (900, 780, 375)
"""Windows on half a screen, and phones."""


def status(page: Page) -> Any:
    return page.locator(".page-head .status")


def test_a_limit_is_made_with_errors_at_their_fields_then_changed_and_deleted(
    browser: Browser, site: Site, web: Path
) -> None:
    assert site.api.limits.list()["items"] == []
    with page_of(browser, site, "#/limits", is_quiet=False) as page:  # the browser logs the 422 itself
        command = f"pyoco-client limits put per-customer.yaml --server {site.url}"
        expect(page.get_by_text(command)).to_be_visible()
        assert serious_barriers(page, web) == []
        keep(page, "limits-empty")
        page.get_by_role("button", name="New limit").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("per-customer")
        dialog.get_by_label("flow", exact=True).fill("report")
        dialog.get_by_label("Key (CEL)").fill("params.customer")
        dialog.get_by_label("At once").fill("0")
        dialog.get_by_role("button", name="Save").click()
        wrong = dialog.locator(".field", has=page.get_by_label("At once"))
        expect(wrong.get_by_role("alert")).to_have_text("must be 1 to 10,000")
        expect(dialog.get_by_label("At once")).to_have_attribute("aria-invalid", "true")
        assert serious_barriers(page, web) == []
        keep(page, "limit-refused")
        dialog.get_by_label("At once").fill("1")
        dialog.get_by_role("button", name="Save").click()
        expect(page.locator('[data-limit="per-customer"]')).to_contain_text("1 at once")
        runs = [site.submit("report", {"customer": "acme"}, tag="nobody") for _ in range(2)]
        page.get_by_role("link", name="per-customer").click()
        key = page.locator('[data-key="acme"]')
        expect(key.locator("td")).to_have_text(["acme", "1", "1"])
        page.get_by_role("button", name="Edit").click()
        dialog.get_by_label("At once").fill("2")
        dialog.get_by_role("button", name="Save").click()
        expect(key.locator("td")).to_have_text(["acme", "2", "0"])
        expect(page.locator(".facts")).to_contain_text("2 at once")
        page.get_by_role("button", name="Delete").click()
        dialog.get_by_role("button", name="Delete").dblclick()
        expect(page.get_by_text("No limits yet")).to_be_visible()
    assert site.api.limits.list()["items"] == []
    for run_id in runs:
        site.api.cancel_run(run_id)


def test_a_flow_is_run_by_a_form_given_defaults_paused_and_resumed(browser: Browser, site: Site) -> None:
    site.finished("report", rows=4)
    site.api.schedules.put("nightly-report", {"flow": "report"}, cron="30 2 * * *", timezone="UTC")
    with page_of(browser, site, "#/flows", is_quiet=False) as page:  # the browser logs the 422 itself
        row = page.locator('[data-flow="report"]')
        expect(row).to_contain_text("100 %")
        expect(row).to_contain_text("nightly-report")
        row.get_by_role("link", name="report", exact=True).click()
        expect(page).to_have_title("report · pyoco-server")
        page.get_by_role("button", name="Edit defaults").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Owner").fill("accounting")
        dialog.get_by_label("Timeout per try (s)").fill("0")
        dialog.get_by_label("Schema of the params").fill("{")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("alert")).to_contain_text("JSON")  # the browser's own words
        dialog.get_by_label("Schema of the params").fill(json.dumps(SCHEMA))
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("alert")).to_contain_text("greater than 0")
        keep(page, "flow-defaults")
        dialog.get_by_label("Timeout per try (s)").fill("600")
        dialog.get_by_role("button", name="Save").click()
        expect(page.locator(".facts")).to_contain_text("accounting")
        assert site.api.flows.get("report")["params_schema"] == SCHEMA

        page.get_by_role("button", name="Run", exact=True).click()
        rows = dialog.get_by_label("rows *")
        expect(rows).to_have_value("4")  # of the last run
        rows.fill("12")
        dialog.get_by_role("button", name="Submit").click()
        expect(dialog.get_by_role("alert")).to_contain_text("greater than the maximum of 9")
        keep(page, "flow-run")
        rows.fill("5")
        dialog.get_by_role("button", name="Submit").dblclick()
        expect(status(page)).to_have_attribute("data-state", "COMPLETED")
        page.get_by_role("group", name="Details of the task").get_by_role("button", name="Input").click()
        expect(page.get_by_role("region", name="Params")).to_contain_text('"rows": 5')
        page.go_back()
        runs = len(site.api.list_runs(flow="report"))
        expect(page.locator(".history-grid thead a")).to_have_count(runs)

        page.get_by_role("button", name="Pause").click()
        dialog.get_by_label("Reason").fill("month end")
        dialog.get_by_role("button", name="Pause").click()
        expect(status(page)).to_have_attribute("data-state", "PAUSED")
        expect(page.locator(".notice")).to_contain_text("month end")
        keep(page, "flow-paused")
        page.get_by_role("button", name="Resume").click()
        dialog.get_by_role("button", name="Resume").click()
        expect(status(page)).to_have_count(0)
    assert site.api.flows.get("report")["paused"] is None
    site.api.flows.put("report", params_schema=SCHEMA, description="Adds up the rows", owner="accounting")


def test_a_flow_has_a_history_runs_code_and_a_graph(browser: Browser, site: Site) -> None:
    site.finished("report", rows=4)
    site.api.flows.put("report", timeout_sec=600)
    for _ in range(3):
        site.finished("report", rows=4)
    with page_of(browser, site, "#/flows") as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{site.url}/#/flows/report")
        runs = len(site.api.list_runs(flow="report"))
        expect(page.locator(".history-grid thead a")).to_have_count(runs)
        completed = len(site.api.list_runs(flow="report", status="COMPLETED"))
        expect(page.locator(".history-grid .cell.tone-good")).to_have_count(4 * completed)
        assert [url for url in asked if "include=full" in url], asked
        assert not [url for url in asked if re.search(r"/runs/\w", url)], "one request for all of them"
        keep(page, "flow-history")
        page.get_by_role("button", name="Settings", exact=True).click()
        expect(page.locator(".flow-settings")).to_contain_text("10m")
        page.get_by_role("button", name="Runs", exact=True).click()
        expect(page.locator("tr[data-run]")).to_have_count(runs)
        page.get_by_role("button", name="Code", exact=True).click()
        expect(page.locator("table.flow-code")).to_contain_text("worker-1")
        page.get_by_role("button", name="Graph", exact=True).click()
        page.get_by_role("button", name="total: Succeeded").click()
        expect(page.get_by_role("region", name="total")).to_be_visible()


def test_the_errors_of_a_flow_are_grouped(browser: Browser, site: Site) -> None:
    for _ in range(2):
        last = site.finished("failing")
    with page_of(browser, site, "#/flows/failing?tab=errors") as page:
        line = page.locator(".error-line")
        expect(line).to_have_count(1)
        expect(line).to_contain_text("division by zero")
        expect(line.locator(".error-times")).to_have_text(f"{len(site.api.list_runs(flow='failing'))}×")
        keep(page, "flow-errors")
        line.get_by_role("link").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"failing · {last[-12:]}")


def test_queues_show_what_waits_for_whom_and_can_be_paused(browser: Browser, site: Site) -> None:
    run_id = site.submit("report", {"rows": 1}, tag="gpu-a100")
    with page_of(browser, site, "#/queues") as page:
        alone = page.locator("table.queues tbody tr").first
        expect(alone).to_contain_text("gpu-a100")
        expect(alone.locator(".status")).to_have_attribute("data-state", "UNSERVED")
        expect(alone).to_contain_text("pyoco-worker --flows flows --tags gpu-a100 --nats-url")
        served = page.locator('[data-queue="default"]')
        expect(served.locator(".status")).to_have_attribute("data-state", "SERVED")
        expect(served).to_contain_text("0 / 2")  # slots
        keep(page, "queues")
        served.get_by_role("button", name="Pause default").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Reason").fill("database upgrade")
        dialog.get_by_label("Until").fill("2099-01-01T00:00")
        dialog.get_by_role("button", name="Pause").click()
        expect(served.locator(".status")).to_have_attribute("data-state", "PAUSED")
        expect(served).to_contain_text("database upgrade")
        expect(served).to_contain_text("2099")
        page.get_by_role("button", name="Resume default").click()
        dialog.get_by_role("button", name="Resume").click()
        expect(served.locator(".status")).to_have_attribute("data-state", "SERVED")
        page.get_by_role("link", name="gpu-a100").click()
        expect(page.locator(f'[data-run="{run_id}"]')).to_be_visible()
    site.api.cancel_run(run_id)


def test_names_of_flows_stay_text_and_lead_to_their_pages(browser: Browser, site: Site) -> None:
    site.api.flows.put("a/b", description="a slash in its name")
    with page_of(browser, site, "#/flows") as page:
        expect(page.locator("table.flows")).to_contain_text(HOSTILE[:40])
        assert page.evaluate("document.querySelectorAll('img, main script').length") == 0
        page.get_by_role("link", name="a/b").click()
        expect(page.get_by_text("a slash in its name")).to_be_visible()
        expect(page.get_by_role("heading", level=1)).to_have_text("a/b")


def test_the_frame_fits_the_window(browser: Browser, site: Site) -> None:
    with page_of(browser, site, "#/limits") as page:
        name = page.locator(".sidebar .section-name", has_text="Queues & workers")
        expect(name).to_be_visible()
        assert page.locator(".sidebar").bounding_box()["width"] == 224  # type: ignore[index]
        expect(page.locator(".sidebar [aria-current]")).to_have_text("Limits")
        page.set_viewport_size({"width": 1000, "height": 700})
        until_true(page, "document.querySelector('.sidebar').offsetWidth === 60")
        expect(page.get_by_role("link", name="Queues & workers")).to_be_visible()  # by its name still
        page.get_by_role("button", name=re.compile(r"\d\d:\d\d:\d\d")).click()
        expect(page.locator(".clock")).to_have_text(re.compile(r"UTC$"))
        assert page.evaluate("localStorage.getItem('pyoco.zone')") == "utc"
        page.set_viewport_size({"width": 375, "height": 700})
        expect(page.locator(".sidebar")).to_be_hidden()
        page.get_by_role("button", name="More").click()
        keep(page, "phone-more")
        page.get_by_role("dialog").get_by_role("link", name="Flows").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Flows")
        expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize(("language", "theme"), [("en", "light"), ("ja", "dark")])
@pytest.mark.slow
def test_the_pages_have_no_barrier_and_fit_every_window(
    browser: Browser, site: Site, web: Path, language: str, theme: Any
) -> None:
    site.api.limits.put("per-customer", {"flow": "report"}, key="flow_name", max_running=3)
    run_id = site.submit("report", {"rows": 1}, tag="gpu-a100")
    for place in PLACES:
        with page_of(browser, site, place, language=language, theme=theme, width=1440) as page:
            assert serious_barriers(page, web) == [], place
            keep(page, f"{name_of(place)}-1440-{theme}-{language}")
            for width in NARROW:
                page.set_viewport_size({"width": width, "height": 860})
                assert overhang(page) == 0, (place, width)
                keep(page, f"{name_of(place)}-{width}-{theme}-{language}")
    site.api.cancel_run(run_id)
