"""REQ-0020: executions, the inbox of waits and graphs in a real browser, with a real server and worker."""

import re
from collections.abc import Iterator
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
    running_site,
    serious_barriers,
    until_true,
)
from support.dashboard_flows import HOSTILE

SHOWN_HOSTILE = HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
CLOSE: dict[str, Any] = {
    "nodes": {
        "extract": {"type": "task", "flow": "report", "params": {"rows": "${input.rows}"}},
        "split": {"type": "fork"},
        "match_bank": {"type": "task", "flow": "report"},
        "match_cards": {"type": "task", "flow": "report"},
        "gather": {"type": "join"},
        "approve": {
            "type": "wait",
            "prompt": "Close ${input.ym}?",
            "wait_key": "${input.ym}",
            "timeout_sec": 3000,
        },
        "book": {"type": "task", "flow": "report"},
        "reopen": {"type": "task", "flow": "report"},
        "repair": {"type": "task", "flow": "report"},
    },
    "edges": [
        {"from": "extract", "to": "split"},
        {"from": "split", "to": "match_bank"},
        {"from": "split", "to": "match_cards"},
        {"from": "match_bank", "to": "gather"},
        {"from": "match_cards", "to": "gather"},
        {"from": "gather", "to": "approve"},
        {"from": "approve", "to": "book", "when": "nodes.approve.output.ok == true"},
        {"from": "approve", "to": "reopen", "when": "nodes.approve.output.ok == false"},
        {"from": "extract", "to": "repair", "on": "failure"},
    ],
}
FAILING: dict[str, Any] = {
    "nodes": {"load": {"type": "task", "flow": "report"}, "divide": {"type": "task", "flow": "failing"}},
    "edges": [{"from": "load", "to": "divide"}],
}
ENDLESS: dict[str, Any] = {
    "nodes": {
        "split": {"type": "fork"},
        "slow": {"type": "task", "flow": "gated", "params": {"marks": "${input.marks}", "gate": "never"}},
        "ask": {"type": "wait", "prompt": "And now?"},
        "gather": {"type": "join", "policy": "ALL_DONE"},
    },
    "edges": [
        {"from": "split", "to": "slow"},
        {"from": "split", "to": "ask"},
        {"from": "slow", "to": "gather"},
        {"from": "ask", "to": "gather"},
    ],
}
MONTHS: dict[str, Any] = {
    "nodes": {
        "each": {
            "type": "map",
            "over": "${input.rows}",
            "node": {"flow": "report", "params": {"rows": "${item}"}},
            "max_parallel": 3,
        }
    }
}
YEAR: dict[str, Any] = {
    "nodes": {"months": {"type": "execution", "graph": "months", "input": "${input}"}},
}
QUESTION: dict[str, Any] = {"nodes": {"ask": {"type": "wait", "prompt": "${input.question}"}}}


@pytest.fixture(scope="module")
def site(built: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site")) as running:
        for graph_id, definition in (
            ("monthly-close", CLOSE),
            ("failing", FAILING),
            ("endless", ENDLESS),
            ("question", QUESTION),
            ("months", MONTHS),
            ("year", YEAR),
        ):
            running.api.put_graph(graph_id, definition)
        yield running


def status(page: Page) -> Any:
    return page.locator(".page-head .status")


def waiting(site: Site, ym: str) -> str:
    """An execution whose `approve` waits for somebody."""
    made = site.api.executions.create("monthly-close", {"ym": ym, "rows": 4})
    execution_id: str = made["execution_id"]
    for event in site.api.executions.watch(execution_id):
        if event["type"] == "NODE_WAITING":
            break
    return execution_id


def ended(site: Site, graph_id: str, **given: Any) -> str:
    execution_id: str = site.api.executions.create(graph_id, given or None)["execution_id"]
    list(site.api.executions.watch(execution_id))
    return execution_id


def card(page: Page, execution_id: str) -> Any:
    return page.locator(f'[data-wait^="{execution_id}/"]')


def test_an_execution_waits_is_answered_in_the_inbox_and_completes_live(browser: Browser, site: Site) -> None:
    with page_of(browser, site, "#/executions") as page, page_of(browser, site, "#/waits") as inbox:
        page.get_by_role("button", name="New execution").first.click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Graph").select_option("monthly-close")
        dialog.get_by_label("Input").fill('{"ym": "2026-11", "rows": 4}')
        keep(page, "execution-start")
        dialog.get_by_role("button", name="Start").click()
        expect(status(page)).to_have_attribute("data-state", "WAITING")
        expect(page.locator(".notice", has_text="Close 2026-11?")).to_be_visible()
        keep(page, "execution-waiting")
        execution_id = page.url.rsplit("/", 1)[1]

        expect(inbox.locator(".sidebar .badge")).to_be_visible()
        mine = card(inbox, execution_id)
        expect(mine).to_contain_text("Close 2026-11?")
        expect(mine.locator(".deadline")).to_contain_text(re.compile(r"\d+m \d\ds left"))
        mine.get_by_role("button", name="Answer").click()
        expect(mine.get_by_label("Wait key")).to_have_value("2026-11")
        mine.get_by_label("Comment").fill("checked twice")
        keep(inbox, "waits")
        mine.get_by_role("button", name="Yes").click()
        expect(mine).to_have_count(0)

        expect(status(page)).to_have_attribute("data-state", "COMPLETED")
        graph = page.get_by_role("group", name="Graph of the execution: 9 nodes")
        expect(graph.get_by_role("button", name="book: Succeeded")).to_be_visible()
        expect(graph.get_by_role("button", name="reopen: Not reached")).to_be_visible()
        expect(page.locator(".graph-edge.is-taken")).to_have_count(7)
        expect(page.locator(".graph-edge.is-untaken")).to_have_count(2)
        keep(page, "execution-completed")
        graph.get_by_role("button", name=re.compile("^approve.*Succeeded")).click()
        expect(page.get_by_role("region", name="approve")).to_contain_text("checked twice")


def test_a_node_shows_what_went_in_and_out_and_leads_to_its_run(browser: Browser, site: Site) -> None:
    execution_id = waiting(site, "2026-10")
    with page_of(browser, site, f"#/executions/{execution_id}") as page:
        page.get_by_role("button", name="extract: Succeeded").click()
        panel = page.get_by_role("region", name="extract")
        expect(panel).to_contain_text('"square": 14')
        expect(panel).to_contain_text("${input.rows}")
        expect(page).to_have_url(re.compile("node=extract"))
        keep(page, "execution-node")
        page.get_by_role("button", name=re.compile("^gather.*Succeeded")).click()
        gate = page.get_by_role("region", name="gather")
        expect(gate).to_contain_text("ALL_SUCCESS")
        expect(gate).to_contain_text("match_cards")
        page.get_by_role("button", name="extract: Succeeded").click()
        panel.get_by_role("link").first.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("report")
        page.get_by_role("link", name=execution_id).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("monthly-close")


def test_a_node_leads_to_its_execution_and_a_map_to_its_items(browser: Browser, site: Site) -> None:
    made = site.api.executions.create("year", {"rows": [3, 4, 5]})["execution_id"]
    assert [*site.api.executions.watch(made)][-1]["type"] == "EXECUTION_COMPLETED"
    with page_of(browser, site, f"#/executions/{made}") as page:
        page.get_by_role("button", name=re.compile("^months.*Succeeded")).click()
        page.get_by_role("region", name="months").get_by_role("link").nth(1).click()
        expect(page.locator(".facts").first).to_contain_text("Part of")
        page.get_by_role("button", name=re.compile("^each.*Succeeded")).click()
        items = page.locator("details", has_text="Items")
        expect(items).to_contain_text("3 succeeded, 0 failed")
        items.locator("summary").click()
        expect(items.locator("li")).to_have_count(3)
        keep(page, "execution-items")
        items.get_by_role("link").first.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("report")


def test_the_past_can_be_looked_at_and_left(browser: Browser, site: Site) -> None:
    execution_id = waiting(site, "2026-09")
    log = site.api.executions.events(execution_id)["items"]
    begun = next(
        event["sequence"]
        for event in log
        if event["type"] == "NODE_STARTED" and event["payload"]["node_id"] == "extract"
    )
    with page_of(browser, site, f"#/executions/{execution_id}") as page:
        events = page.get_by_role("region", name="Event log")
        expect(events.locator(".event")).to_have_count(len(log))
        events.locator(f'[data-sequence="{begun}"] .event-moment').click()
        expect(page.get_by_text("You are looking at the past.")).to_be_visible()
        expect(page.get_by_role("button", name="extract: Running")).to_be_visible()
        expect(page.get_by_role("button", name=re.compile("^approve.*Not reached"))).to_be_visible()
        expect(page).to_have_url(re.compile(f"at={begun}$"))
        keep(page, "execution-past")
        slider = events.get_by_role("slider")
        slider.focus()
        page.keyboard.press("ArrowLeft")
        expect(page).to_have_url(re.compile(f"at={begun - 1}$"))
        expect(page.get_by_role("button", name="extract: Ready")).to_be_visible()
        page.reload()
        expect(page.get_by_role("button", name="extract: Ready")).to_be_visible()
        slider.focus()
        page.keyboard.press("End")
        expect(page.get_by_text("You are looking at the past.")).to_have_count(0)
        expect(page.get_by_role("button", name=re.compile("^approve.*Waiting"))).to_be_visible()
        page.keyboard.press("Home")
        page.locator(".graph").get_by_role("button", name=re.compile("^approve")).click()
        expect(page.get_by_role("region", name="approve").get_by_role("form")).to_have_count(0)
        page.get_by_role("button", name="Back to now").first.click()
        form = page.get_by_role("form", name="Answer approve")
        form.get_by_role("button", name="Answer with JSON").click()
        form.get_by_label("Answer (JSON)").fill("{nonsense")
        form.get_by_role("button", name="Send answer").click()
        expect(form.get_by_role("alert")).to_contain_text("The answer is not valid JSON")
        form.get_by_label("Answer (JSON)").fill('{"ok": false}')
        form.get_by_role("button", name="Send answer").click()
        expect(page.get_by_role("button", name="reopen: Succeeded")).to_be_visible()


def test_an_execution_is_cancelled_archived_and_run_again(browser: Browser, site: Site) -> None:
    execution_id = site.api.executions.create("endless", {"marks": str(site.marks)})["execution_id"]
    with page_of(browser, site, f"#/executions/{execution_id}") as page:
        expect(page.get_by_role("button", name="slow: Running")).to_be_visible()
        expect(page.get_by_role("button", name=re.compile("^ask.*Waiting"))).to_be_visible()
        keep(page, "execution-running")
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_label("Reason").fill("the wrong books")
        keep(page, "execution-cancel")
        page.get_by_role("button", name="Cancel the execution").click()
        expect(status(page)).to_have_attribute("data-state", "CANCELED")
        expect(page.get_by_text("Reason: the wrong books")).to_be_visible()
        expect(page.get_by_role("button", name=re.compile("^ask.*Canceled"))).to_be_visible()
        keep(page, "execution-canceled")
        page.get_by_role("button", name="Archive").click()
        page.get_by_role("dialog").get_by_role("button", name="Archive").click()
        expect(page.locator(".page-head .tag", has_text="archived")).to_be_visible()
        expect(page.locator(".event-type", has_text="Execution archived")).to_be_visible()
        page.get_by_role("link", name="Executions").first.click()
        expect(page.locator("tbody tr").first).to_be_visible()
        expect(page.locator(f'[data-execution="{execution_id}"]')).to_have_count(0)
        page.get_by_label("Archived").check()
        page.locator(f'[data-execution="{execution_id}"] a').click()
        page.get_by_role("button", name="Run again").click()
        page.get_by_role("dialog").get_by_role("button", name="Run again").click()
        until_true(page, "(old) => !location.hash.includes(old)", arg=execution_id)
        expect(status(page)).to_have_attribute("data-state", "WAITING")
        again = page.url.rsplit("/", 1)[1]
        site.api.executions.cancel(again)
        expect(status(page)).to_have_attribute("data-state", "CANCELED")


def test_a_failed_one_tells_why_and_goes_on_from_where_it_failed(browser: Browser, site: Site) -> None:
    execution_id = ended(site, "failing")
    with page_of(browser, site, "#/executions?status=FAILED") as page:
        found = page.locator(f'[data-execution="{execution_id}"]')
        expect(found).to_contain_text("division by zero")
        keep(page, "executions-failed")
        found.get_by_role("link").click()
        expect(page.get_by_role("region", name="Error")).to_contain_text("in node divide")
        keep(page, "execution-failed")
        page.get_by_role("button", name="Copy as CLI command").click()
        until_true(
            page, "navigator.clipboard.readText().then((t) => t.startsWith('pyoco-client executions create'))"
        )
        page.get_by_role("button", name="From where it stopped").click()
        page.get_by_role("dialog").get_by_role("button", name="From where it stopped").click()
        until_true(page, "(old) => !location.hash.includes(old)", arg=execution_id)
        expect(page.get_by_role("button", name="divide: Failed")).to_be_visible()
        page.get_by_role("button", name="load: Succeeded").click()
        expect(page.get_by_role("region", name="load").get_by_text("Run", exact=True)).to_have_count(0)


def test_the_list_is_filtered_counted_and_changes_by_itself(browser: Browser, site: Site) -> None:
    execution_id = waiting(site, "2026-08")
    with page_of(browser, site, "#/executions?graph=monthly-close") as page:
        row = page.locator(f'[data-execution="{execution_id}"]')
        expect(row.locator(".status")).to_have_attribute("data-state", "WAITING")
        expect(row).to_contain_text("Close 2026-08?")
        keep(page, "executions")
        active = page.locator(".chip", has_text="Active").locator(".count")
        before = int(active.inner_text())
        site.api.executions.resume(execution_id, "approve", {"ok": True}, "2026-08")
        expect(row.locator(".status")).to_have_attribute("data-state", "COMPLETED")
        expect(active).to_have_text(str(before - 1))
        page.get_by_label("Graph").fill("nothing-like-it")
        expect(page.get_by_text("Nothing matches these filters")).to_be_visible()
        expect(page).to_have_url(re.compile("graph=nothing-like-it"))


def test_a_graph_is_pasted_refused_corrected_and_drawn(browser: Browser, site: Site) -> None:
    with page_of(browser, site, "#/graphs", is_quiet=False) as page:  # the browser logs the 422 itself
        expect(page.get_by_role("link", name="monthly-close")).to_be_visible()
        keep(page, "graphs")
        page.get_by_role("button", name="Register a graph").click()
        dialog = page.get_by_role("dialog")
        text = dialog.get_by_label("YAML or JSON")
        text.fill("id: pasted\nnodes:\n  a: {type: task}\n  b: {type: wait}\nedges:\n  - {from: a, to: c}\n")
        expect(dialog.get_by_label("Graph ID")).to_have_value("pasted")
        dialog.get_by_role("button", name="Register").click()
        problems = dialog.get_by_role("alert")
        expect(problems.locator("li")).to_have_count(2)
        expect(problems).to_contain_text("node a")
        keep(page, "graph-refused")
        text.fill(
            "id: pasted\nnodes:\n  a: {type: task, flow: x}\n  b: {type: wait}\n"
            "edges:\n  - {from: a, to: b}\n"
        )
        dialog.get_by_role("button", name="Register").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("pasted")
        expect(page.locator(".graph-node")).to_have_count(2)
        site.api.put_graph("pasted", {"nodes": {"only": {"type": "wait"}}})
        page.reload()
        expect(page.locator(".graph-node")).to_have_count(1)
        page.get_by_label("Version").select_option("1")
        expect(page.locator(".graph-node")).to_have_count(2)
        expect(page).to_have_url(re.compile("version=1"))
        page.goto(f"{site.url}/#/graphs/monthly-close?node=approve")
        expect(page.locator(".graph-region")).to_have_count(1)
        expect(page.locator(".graph-edge-label")).to_have_count(3)
        keep(page, "graph-plan")


def test_what_others_wrote_stays_text(browser: Browser, site: Site) -> None:
    """A11: in prompts, keys, answers, errors, outputs and reasons."""
    made = site.api.executions.create("question", {"question": HOSTILE})["execution_id"]
    next(event for event in site.api.executions.watch(made) if event["type"] == "NODE_WAITING")
    outside = {"nodes": {"work": {"type": "task", "external": True}}}
    site.api.put_graph("outside", outside)
    failed = site.api.executions.create("outside", {"note": HOSTILE})["execution_id"]
    next(event for event in site.api.executions.watch(failed) if event["type"] == "NODE_READY")
    site.api.executions.command(failed, "StartNode", node_id="work", worker_id=HOSTILE)
    site.api.executions.command(failed, "ReportNodeProgress", node_id="work", progress=5, message=HOSTILE)
    site.api.executions.command(
        failed, "FailNode", node_id="work", error={"message": HOSTILE, "details": HOSTILE}
    )
    list(site.api.executions.watch(failed))
    for place, texts in (
        ("#/waits", [SHOWN_HOSTILE]),
        ("#/executions", [SHOWN_HOSTILE]),
        (f"#/executions/{made}?node=ask", [SHOWN_HOSTILE]),
        (f"#/executions/{failed}?node=work", [SHOWN_HOSTILE, f"FAILED: {SHOWN_HOSTILE}"]),
    ):
        with page_of(browser, site, place) as page:
            for text in texts:
                expect(page.locator("main")).to_contain_text(text)
            keep(page, f"hostile-{name_of(place, waiting=made, failed=failed)}")
            assert page.evaluate("document.querySelectorAll('img, main script').length") == 0
            assert page.title() != "owned"
    site.api.executions.cancel(made)


def test_what_does_not_exist_is_said_so(browser: Browser, site: Site) -> None:
    for place, text in (
        ("#/executions/nothing", "Execution not found"),
        ("#/graphs/nothing", "Graph or version not found"),
    ):
        with page_of(browser, site, place, is_quiet=False) as page:  # the browser logs the 404 itself
            expect(page.locator("main")).to_contain_text(text)


@pytest.fixture(scope="module")
def places(site: Site) -> dict[str, str]:
    """Every new page, by the name of its picture."""
    held, failed = waiting(site, "2026-07"), ended(site, "failing")
    places = [
        "#/executions",
        f"#/executions/{held}?node=approve",
        f"#/executions/{held}?at=12&node=extract",
        f"#/executions/{failed}?node=divide",
        "#/waits",
        "#/graphs",
        "#/graphs/monthly-close?node=approve",
    ]
    return {name_of(place, held=held, failed=failed): place for place in places}


@pytest.mark.parametrize(("language", "theme"), [("en", "light"), ("ja", "dark")])
@pytest.mark.slow
def test_no_page_has_a_serious_barrier(
    browser: Browser, site: Site, web: Path, places: dict[str, str], language: str, theme: Any
) -> None:
    for name, place in places.items():
        with page_of(browser, site, place, language=language, theme=theme) as page:
            assert serious_barriers(page, web) == [], place
            keep(page, f"{name}-{language}-{theme}")


@pytest.mark.parametrize(
    ("place", "button"),
    [("#/executions", "New execution"), ("#/graphs", "Register a graph"), ("cancel", "Cancel")],
)
def test_no_dialog_has_a_serious_barrier(
    browser: Browser, site: Site, web: Path, places: dict[str, str], place: str, button: str
) -> None:
    held = places["executions-held-node-approve"]
    with page_of(browser, site, held if place == "cancel" else place) as page:
        page.get_by_role("button", name=button, exact=True).first.click()
        page.get_by_role("dialog").wait_for()
        assert serious_barriers(page, web) == []


@pytest.mark.parametrize("language", ["en", "ja"])
@pytest.mark.slow
def test_it_fits_a_phone(browser: Browser, site: Site, places: dict[str, str], language: str) -> None:
    for name, place in places.items():
        with page_of(browser, site, place, language=language, width=375) as page:
            assert overhang(page) == 0, place
            keep(page, f"phone-{name}-{language}")
