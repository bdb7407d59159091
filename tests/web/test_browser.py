"""REQ-0020: the dashboard in a real browser, with a real server and a real worker behind it."""

import platform
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
from support.wheels import a_wheel_file, wheel_name

SHOWN_HOSTILE = HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
PAGES = ["#/runs", "#/workers?all=1", "#/wheels", "#/overview?range=24h"]


def row(page: Page, run_id: str) -> Any:
    return page.locator(f'[data-run="{run_id}"]')


def tab(page: Page, name: str) -> None:
    page.get_by_role("group", name="Details of the task").get_by_role("button", name=name).click()


def status(page: Page) -> Any:
    return page.locator(".page-head .status")


# Runs


def test_a_run_is_submitted_followed_and_cancelled(browser: Browser, site: Site) -> None:
    with page_of(browser, site) as page:
        page.get_by_role("button", name="New run").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Flow").fill("gated")
        dialog.get_by_label("Params").fill(f'{{"marks": "{site.marks}", "gate": "never"}}')
        keep(page, "submit")
        dialog.get_by_role("button", name="Submit").click()
        expect(status(page)).to_have_attribute("data-state", "RUNNING")
        expect(page.get_by_role("button", name=re.compile("^wait.*Running"))).to_be_visible()
        expect(page.get_by_role("log").get_by_text("begun", exact=True)).to_be_visible()
        keep(page, "running")
        page.get_by_role("button", name="Cancel").click()
        page.get_by_label("Reason").fill("the wrong month")
        page.get_by_role("button", name="Cancel the run").click()
        expect(status(page)).to_have_attribute("data-state", "CANCELLED")
        expect(page.get_by_text("Reason: the wrong month")).to_be_visible()
        expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)
        keep(page, "cancelled")


def test_the_list_changes_by_itself(browser: Browser, site: Site) -> None:
    with page_of(browser, site) as page:
        expect(page.locator(".live")).to_have_text("Live")
        page.evaluate("window.__same = true")
        run_id = site.gated()
        expect(row(page, run_id).locator(".status")).to_have_attribute("data-state", "RUNNING")
        site.api.cancel_run(run_id)
        expect(row(page, run_id).locator(".status")).to_have_attribute("data-state", "CANCELLED")
        assert page.evaluate("window.__same"), "without loading the page again"


def test_filters_live_in_the_address(browser: Browser, site: Site) -> None:
    failed, fine = site.finished("failing"), site.finished("report")
    with page_of(browser, site) as page:
        page.get_by_role("navigation", name="Runs by status").get_by_role("link", name="Failed").click()
        expect(row(page, failed)).to_be_visible()
        expect(row(page, fine)).to_have_count(0)
        query = page.get_by_role("combobox", name="Filter runs")
        expect(query).to_have_value("status:FAILED")
        query.fill("status:FAILED fl")
        query.press("ArrowDown")
        query.press("Enter")
        page.keyboard.type("failin")
        page.get_by_role("option", name="flow:failing").click()
        expect(page).to_have_url(re.compile("flow=failing"))
        page.reload()
        expect(query).to_have_value("flow:failing status:FAILED")
        expect(row(page, failed)).to_be_visible()
        keep(page, "filtered")
        query.fill("flow:failing nonsense:1")
        query.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("nonsense:1")
        query.fill('flow:"nothing like it"')
        query.press("Enter")
        expect(page.get_by_text("Nothing matches these filters")).to_be_visible()
        page.get_by_role("button", name="Clear filters").click()
        expect(row(page, fine)).to_be_visible()
        query.fill(failed)
        query.press("Enter")
        expect(status(page)).to_have_attribute("data-state", "FAILED")


def test_what_the_server_cannot_filter_is_searched_and_a_query_is_kept_as_a_view(
    browser: Browser, site: Site
) -> None:
    failed, fine = site.finished("failing"), site.finished("report")
    with page_of(browser, site) as page:
        query = page.get_by_role("combobox", name="Filter runs")
        query.fill('error:"division by" -flow:nobody worker:worker-1')
        query.press("Enter")
        expect(row(page, failed)).to_be_visible()
        expect(row(page, fine)).to_have_count(0)
        expect(page.get_by_role("navigation", name="Runs by status")).not_to_contain_text(re.compile(r"\d"))
        later = site.finished("failing")
        expect(row(page, later)).to_be_visible()  # the list is live
        page.get_by_role("button", name="Views").click()
        page.get_by_role("button", name="Save this view…").click()
        page.get_by_role("dialog").get_by_label("Name").fill("Divisions")
        keep(page, "save-view")
        page.get_by_role("dialog").get_by_role("button", name="Save").click()
        page.get_by_role("button", name="Clear filters").click()
        expect(row(page, fine)).to_be_visible()
        page.reload()
        page.get_by_role("button", name="Views").click()
        page.get_by_role("link", name="Divisions").click()
        expect(row(page, fine)).to_have_count(0)
        expect(row(page, later)).to_be_visible()
        page.get_by_role("button", name="Divisions").click()
        keep(page, "views")
        page.get_by_role("button", name="Remove Divisions").click()
        expect(page.get_by_role("button", name="Views")).to_be_visible()


def test_runs_are_found_by_their_params(browser: Browser, site: Site) -> None:
    wanted, other = site.finished("report", rows=41), site.finished("report", rows=42)
    with page_of(browser, site) as page:
        query = page.get_by_role("combobox", name="Filter runs")
        query.fill("par")
        suggested = page.get_by_role("listbox").get_by_role("option")
        expect(suggested).to_have_text(["param.param.month:2027-01"])
        keep(page, "query-params")
        query.fill("param.rows:41")
        query.press("Enter")
        expect(row(page, wanted)).to_contain_text("4/4")
        expect(row(page, other)).to_have_count(0)
        expect(page).to_have_url(re.compile("param.rows"))
        query.fill("flow:report -param.rows:41")
        query.press("Enter")
        expect(row(page, other)).to_be_visible()
        expect(row(page, wanted)).to_have_count(0)


def test_a_run_shows_its_tasks_values_and_log(browser: Browser, site: Site) -> None:
    run_id = site.finished("report", rows=4)
    with page_of(browser, site, f"#/runs/{run_id}") as page:
        timeline = page.get_by_role("group", name="Task timeline")
        for task in ("fetch", "double", "square", "total"):
            expect(timeline.get_by_role("button", name=re.compile(f"^{task}.*Succeeded"))).to_be_visible()
        expect(page.get_by_role("log").get_by_text("fetched 4 rows")).to_be_visible()
        keep(page, "run")
        tab(page, "Input")
        expect(page.get_by_role("region", name="Params")).to_contain_text('"rows": 4')
        tab(page, "Output")
        expect(page.get_by_role("region", name="Result")).to_contain_text('"square": 14')
        page.get_by_role("button", name="Graph").click()
        graph = page.get_by_role("group", name="Graph of the flow: 4 tasks")
        graph.get_by_role("button", name="total: Succeeded").click()
        expect(page).to_have_url(re.compile("task=total"))
        expect(page.get_by_role("log").get_by_text("No output.")).to_be_visible()
        tab(page, "Output")
        expect(page.get_by_role("region", name="total")).to_contain_text('"double": 12')
        keep(page, "graph")
        page.get_by_role("button", name="List").click()
        page.get_by_label("Filter tasks").fill("dou")
        expect(page.locator(".task-list li")).to_have_count(1)
        page.get_by_label("Only failed").check()
        expect(page.get_by_text("Nothing matches")).to_be_visible()


def test_the_panes_of_a_run_are_resized_by_keyboard_and_stay_so(browser: Browser, site: Site) -> None:
    run_id = site.finished("report")
    with page_of(browser, site, f"#/runs/{run_id}") as page:
        line = page.get_by_role("separator", name="Resize")
        expect(line).to_have_attribute("aria-valuenow", "50")
        line.press("ArrowLeft")
        expect(line).to_have_attribute("aria-valuenow", "45")
        page.reload()
        expect(line).to_have_attribute("aria-valuenow", "45")


def test_a_log_is_searched_and_a_line_of_it_has_an_address(browser: Browser, site: Site) -> None:
    run_id = site.finished("chatty", lines=300)
    with page_of(browser, site, f"#/runs/{run_id}") as page:
        page.get_by_label("Search the log").fill("00042")
        expect(page.locator(".log-line")).to_have_count(1)
        expect(page.locator("mark")).to_have_text("00042")
        page.get_by_label("Wrap").uncheck()
        expect(page.locator(".log-box.is-unwrapped")).to_be_visible()
        page.get_by_role("link", name="Link to line 43").click()
        keep(page, "log-search")
        address = page.url
    with page_of(browser, site, address.removeprefix(f"{site.url}/")) as page:
        wanted = page.locator(".log-line.is-wanted")
        expect(wanted).to_contain_text("line 00042 of many")
        expect(wanted).to_be_in_viewport()


def test_a_long_log_is_shown_and_downloaded_to_its_end(browser: Browser, site: Site) -> None:
    """W03"""
    run_id = site.finished("chatty", lines=10_200)
    (mark,) = (line for line in site.api.get_logs(run_id) if "cut_lines" in line)
    with page_of(browser, site, f"#/runs/{run_id}") as page:
        log = page.get_by_role("log")
        expect(log.get_by_text("line 00000 of many")).to_have_count(1)
        expect(log.get_by_text("line 10199 of many")).to_be_visible()
        expect(log.get_by_text(f"… {mark['cut_lines']} lines", exact=False)).to_have_count(1)
        keep(page, "long-log")
        with page.expect_download() as downloading:
            page.get_by_role("button", name="Download log").click()
        text = downloading.value.path().read_text()
    assert text.startswith("line 00000 of many\n")
    assert text.endswith("line 10199 of many\n")
    assert mark["text"] in text
    assert mark["cut_lines"] + text.count("of many") == 10_200


def test_a_run_shows_how_far_it_is_and_what_its_tasks_log(browser: Browser, site: Site) -> None:
    run_id = site.submit("saving", {"marks": str(site.marks), "gate": "drawn"})
    with page_of(browser, site, f"#/runs/{run_id}") as page:
        progress = page.get_by_role("progressbar", name="Progress")
        expect(progress).to_have_attribute("value", "0.42")
        expect(page.get_by_text("42%")).to_be_visible()
        expect(page.get_by_text("row 505 of 1204")).to_be_visible()
        keep(page, "progress")
        log = page.get_by_role("log")
        expect(log.locator(".log-line")).to_have_count(3)
        expect(log).to_contain_text('loaded rows=1204 source="orders.csv"')
        expect(log.locator(".log-level")).to_have_text(["warning", "error"])
        page.get_by_label("Lines").select_option("errors")
        expect(log.locator(".log-text")).to_have_text(["cannot reach the archive"])
        page.get_by_label("Lines").select_option("warnings")
        page.get_by_label("Search the log").fill("rows=3")
        expect(log.locator("mark")).to_have_count(1)
        assert page.evaluate("document.title") != "owned"
        (site.marks / "drawn").touch()
        expect(status(page)).to_have_attribute("data-state", "COMPLETED")
        expect(progress).to_have_count(0)


def test_artifacts_of_a_run_are_listed_shown_and_downloaded(browser: Browser, site: Site, web: Path) -> None:
    run_id = site.finished("saving")
    with page_of(browser, site, f"#/runs/{run_id}") as page:
        page.get_by_role("button", name="Artifacts 7").click()
        files = page.get_by_role("list", name="Artifacts")
        expect(files.get_by_role("listitem")).to_have_count(7)
        expect(files.get_by_role("button", name="rows.csv")).to_contain_text("text/csv · draw")

        def shown(name: str) -> Any:
            files.get_by_role("button", name=name).press("Enter")
            return page.locator(f'.preview[aria-label="{name}"]')

        expect(shown("rows.csv").get_by_role("cell")).to_have_text(["Sapporo, north", "1204", "Osaka", "7"])
        expect(page).to_have_url(re.compile("artifact=rows.csv"))
        keep(page, "artifact-table")
        expect(shown("totals.json")).to_contain_text('"sales": 1211')
        notes = shown("notes.md")
        expect(notes.get_by_role("link", name="the report")).to_have_attribute(
            "href", "https://example.org/june"
        )
        expect(notes.get_by_role("listitem")).to_have_text(["one <b>shop</b> closed", "two opened"])
        expect(shown("pixel.png").get_by_role("img")).to_have_js_property("naturalWidth", 1)
        expect(shown("long.txt")).to_contain_text("The first 262 kB of 320 kB.")
        files.get_by_role("button", name="model.bin").click()
        expect(page.get_by_text("No preview for this type")).to_be_visible()
        assert serious_barriers(page, web) == []
        with page.expect_download() as downloading:
            files.get_by_role("link", name="Download rows.csv").click()
        assert downloading.value.path().read_text().startswith('shop,sales\n"Sapporo')
        page.reload()
        expect(page.get_by_text("No preview for this type")).to_be_visible()


def test_html_that_a_task_saved_is_a_page_without_scripts_requests_and_origin(
    browser: Browser, site: Site
) -> None:
    run_id = site.finished("saving")
    place = f"#/runs/{run_id}?tab=artifacts&artifact=report.html"
    with page_of(browser, site, place, is_quiet=False) as page:  # the browser reports what it has stopped
        answered: list[str] = []
        page.on("response", lambda response: answered.append(response.url))
        inside = page.frame_locator(".preview iframe").frame_locator("iframe")
        heading = inside.get_by_role("heading", name="Sales of June")
        expect(heading).to_have_css("color", "rgb(0, 128, 0)")
        keep(page, "artifact-html")
        assert "saving" in page.title()
        assert not [one for one in answered if one.endswith("/health")]


def test_a_failed_run_shows_where_and_why(browser: Browser, site: Site) -> None:
    run_id = site.finished("failing")
    with page_of(browser, site, f"#/runs/{run_id}") as page:
        expect(page.get_by_role("region", name="divide")).to_be_visible()  # nobody has to look for it
        error = page.get_by_role("region", name="Error")
        expect(error).to_contain_text("division by zero")
        frames = error.locator(".frame-one pre")
        expect(frames.first).to_have_text("return load / 0")  # the last frame first
        expect(error.get_by_text("Library frames")).to_be_visible()
        expect(frames.last).not_to_be_visible()
        assert page.title() == f"failing · {run_id[-12:]} · pyoco-server"
        keep(page, "failed")


@pytest.mark.parametrize(
    ("language", "heading", "text"),
    [
        ("en", "Warnings", "The result is too large and was not kept."),
        ("ja", "警告", "結果が大きすぎるため、保存されませんでした。"),
    ],
)
def test_a_run_shows_its_warnings_and_that_its_result_is_missing(
    browser: Browser, site: Site, language: str, heading: str, text: str
) -> None:
    """D22"""
    run_id = site.finished("warned")
    with page_of(browser, site, f"#/runs/{run_id}?tab=output", language=language) as page:
        expect(page.get_by_role("region", name=heading)).to_contain_text("at most 500,000 bytes are kept")
        expect(page.get_by_text(text)).to_be_visible()
        keep(page, f"warnings-{language}")


def test_a_run_can_be_run_again_and_taken_to_a_terminal(browser: Browser, site: Site) -> None:
    run_id = site.finished("report", rows=7)
    with page_of(browser, site, f"#/runs/{run_id}") as page:
        again = page.get_by_role("button", name="Run again")
        again.click()
        page.get_by_role("button", name="Copy as curl").click()
        expect(page.get_by_text("Copied")).to_be_visible()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith(f"curl {site.url}/runs ")
        assert '"params":{"rows":7}' in copied
        again.click()
        page.get_by_role("button", name="Copy as CLI command").click()
        until_true(page, "navigator.clipboard.readText().then((t) => t.startsWith('pyoco-client'))")
        again.click()
        page.get_by_role("button", name="Edit the input…").click()
        page.get_by_role("dialog").get_by_role("button", name="Submit").click()
        until_true(page, "(old) => !location.hash.includes(old)", arg=run_id)
        expect(status(page)).to_have_attribute("data-state", "COMPLETED")
        tab(page, "Input")
        expect(page.get_by_role("region", name="Params")).to_contain_text('"rows": 7')


def test_a_run_that_does_not_exist_is_said_so(browser: Browser, site: Site) -> None:
    missing = "#/runs/0190aaaa-bbbb-7ccc-8ddd-eeeeffff0001"
    with page_of(browser, site, missing, is_quiet=False) as page:  # the browser logs the 404 itself
        expect(page.get_by_text("Run not found")).to_be_visible()


def test_200_tasks_can_be_read(browser: Browser, site: Site) -> None:
    run_id = site.finished("many")
    with page_of(browser, site, f"#/runs/{run_id}?view=graph") as page:
        expect(page.locator(".graph-node")).to_have_count(200)
        boxes = page.evaluate(
            "[...document.querySelectorAll('.graph-node rect')].map((r) => {"
            "const b = r.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]})"
        )
        for at, (left, top, right, bottom) in enumerate(boxes):
            for other in boxes[at + 1 :]:
                apart = other[0] >= right or other[2] <= left or other[1] >= bottom or other[3] <= top
                assert apart, "no task lies on another"
        scale = page.evaluate(
            "(() => { const svg = document.querySelector('.graph-frame svg');"
            "return svg.getBoundingClientRect().width / svg.viewBox.baseVal.width })()"
        )
        assert 13 * scale >= 9, "in letters of at least 9 pixels"
        cut = page.evaluate(
            "[...document.querySelectorAll('.graph-label > span:last-child')]"
            ".filter((s) => s.scrollWidth > s.clientWidth + 1).length"
        )
        assert cut == 0, "with whole names"
        keep(page, "many-graph")
        small = page.locator(".mini-map")
        box = small.bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + box["width"] - 8, box["y"] + box["height"] - 8)
        until_true(
            page,
            "(() => { const f = document.querySelector('.graph-frame');"
            "return f.scrollTop + f.clientHeight > f.scrollHeight - 40 })()",
        )
        page.get_by_role("button", name="Fit").click()
        page.get_by_role("button", name="Timeline").click()
        expect(page.locator(".timeline-row")).to_have_count(200)
        keep(page, "many-timeline")


def test_what_others_wrote_stays_text(browser: Browser, site: Site) -> None:
    """A11: markup, escape sequences and marks that turn a line around, in every place they can come from."""
    flow = f"hostile {HOSTILE}"
    run_id = site.finished(flow, note=HOSTILE)
    with page_of(browser, site, "#/runs") as page:
        expect(row(page, run_id)).to_contain_text(f"hostile {SHOWN_HOSTILE}")
        keep(page, "hostile-list")
        row(page, run_id).get_by_role("link").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(f"hostile {SHOWN_HOSTILE}")
        error = page.get_by_role("region", name="Error", exact=True)
        expect(error).to_contain_text(SHOWN_HOSTILE)
        tab(page, "Log")
        expect(page.get_by_role("log")).to_contain_text(SHOWN_HOSTILE.replace("\\x1b[31m", ""))  # a colour
        expect(page.locator(".log-text .ansi-1")).to_have_text("\\u202eevil")
        page.get_by_role("button", name="Close task").click()
        tab(page, "Input")
        expect(page.get_by_role("region", name="Params")).to_contain_text("onerror=document.title='owned'>")
        keep(page, "hostile-run")
        page.get_by_role("button", name="Graph").click()
        expect(page.locator(".graph-node")).to_have_count(1)
        page.locator(".graph-node").click()
        expect(page.locator(".panel.task")).to_contain_text(SHOWN_HOSTILE)
        assert page.evaluate("document.querySelectorAll('img, main script').length") == 0
        assert page.title() != "owned"


# Workers, wheels


def test_a_worker_is_shown_hidden_and_shown_again(browser: Browser, site: Site) -> None:
    with page_of(browser, site, "#/workers") as page:
        worker = page.locator("tr", has_text="worker-1")
        expect(worker).to_contain_text("default")
        expect(worker).to_contain_text(f"{platform.node()} · pyoco-server ")
        expect(worker).to_contain_text(f"Python {platform.python_version()}")
        keep(page, "workers")
        worker.get_by_role("button", name="Hide worker-1").click()
        expect(page.get_by_text("No worker is running")).to_be_visible()
        page.get_by_label("Show hidden").check()
        page.get_by_role("button", name="Show worker-1").click()
        page.get_by_label("Show hidden").uncheck()
        expect(worker).to_be_visible()


def test_a_wheel_is_dropped_listed_and_deleted(browser: Browser, site: Site, tmp_path: Path) -> None:
    first, second = (a_wheel_file(tmp_path, "shown_flows", version) for version in ("1.0", "1.1"))
    with page_of(browser, site, "#/wheels", is_quiet=False) as page:  # the browser logs the 409 itself
        expect(page.get_by_text("No wheels are registered")).to_be_visible()
        keep(page, "wheels-empty")
        page.get_by_label("Tags").fill("cpu, gpu")
        drop(page, second)
        listed = page.locator("table.wheels tr", has_text="shown-flows")
        expect(listed).to_contain_text("1.1")
        expect(listed.locator(".tag", has_text="gpu")).to_be_visible()
        page.locator("input[type=file]").set_input_files(first)
        expect(page.get_by_role("alert")).to_contain_text("raise the version")
        keep(page, "wheels")
        page.get_by_role("button", name=f"Delete {wheel_name('shown_flows', '1.1')}").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(listed).to_have_count(0)
        history = page.get_by_role("region", name="History")
        expect(history.locator("tbody tr")).to_have_count(2)
        expect(history.locator("tbody tr").first).to_contain_text("deleted")


def drop(page: Page, file: Path) -> None:
    """As if it was dragged from a folder."""
    data = page.evaluate_handle(
        "([name, bytes]) => { const data = new DataTransfer();"
        "data.items.add(new File([new Uint8Array(bytes)], name)); return data }",
        [file.name, list(file.read_bytes())],
    )
    page.dispatch_event(".drop", "drop", {"dataTransfer": data})


# For everybody


@pytest.mark.parametrize(("language", "theme"), [("en", "light"), ("ja", "dark")])
@pytest.mark.slow
def test_no_page_has_a_serious_barrier(
    browser: Browser, site: Site, web: Path, language: str, theme: Any
) -> None:
    run_id = site.finished("failing")
    places = [*PAGES, f"#/runs/{run_id}?task=divide", f"#/runs/{run_id}?view=graph", "#/nowhere"]
    for place in places:
        with page_of(browser, site, place, language=language, theme=theme) as page:
            assert serious_barriers(page, web) == [], place
            name = name_of(place, run=run_id)
            keep(page, f"{name}-{theme}-{language}")


def test_dialogs_keep_the_focus_and_give_it_back(browser: Browser, site: Site) -> None:
    with page_of(browser, site) as page:
        opener = page.get_by_role("button", name="New run")
        opener.focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog").get_by_label("Flow")).to_be_focused()
        for _ in range(12):
            page.keyboard.press("Tab")
            inside = page.evaluate(
                "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
            )
            assert inside
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(opener).to_be_focused()


def test_everything_can_be_reached_by_keyboard(browser: Browser, site: Site) -> None:
    run_id = site.finished("report")
    with page_of(browser, site) as page:
        row(page, run_id).wait_for()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        row(page, run_id).get_by_role("link").focus()
        outline = page.evaluate("getComputedStyle(document.activeElement, '::after').outlineStyle")
        assert outline == "solid", "and it is seen where one is"
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text(f"report · {run_id[-12:]}")


@pytest.mark.parametrize("language", ["en", "ja"])
@pytest.mark.slow
def test_it_fits_a_phone(browser: Browser, site: Site, language: str) -> None:
    run_id = site.finished("report")
    for place in [*PAGES, f"#/runs/{run_id}", f"#/runs/{run_id}?view=graph&task=fetch"]:
        with page_of(browser, site, place, language=language, width=375) as page:
            assert overhang(page) == 0, place
            name = name_of(place, run=run_id)
            keep(page, f"phone-{name}-{language}")


def test_the_language_can_be_switched_and_stays(browser: Browser, site: Site) -> None:
    with page_of(browser, site) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
        page.get_by_role("button", name="日本語").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Run")
        expect(page.locator("html")).to_have_attribute("lang", "ja")
        page.reload()
        expect(page.get_by_role("heading", level=1)).to_have_text("Run")


def test_the_colours_can_be_switched_and_stay(browser: Browser, site: Site) -> None:
    with page_of(browser, site, theme="light") as page:
        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ground)
        page.get_by_role("button", name="Theme: system").click()
        page.get_by_role("button", name="Theme: light").click()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        assert page.evaluate(ground) != light
        page.reload()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()


def test_two_runs_of_a_flow_are_compared(browser: Browser, site: Site) -> None:
    first, second = site.finished("report", rows=4), site.finished("report", rows=6)
    with page_of(browser, site, f"#/runs/{second}") as page:
        page.get_by_role("link", name="Compare").click()
        expect(page.get_by_label("Compare with")).to_have_value(first)  # the newest that completed
        changed = page.locator('table.compare [data-key="rows"]')
        expect(changed).to_contain_text(re.compile(r"rows\s*6\s*4"))
        expect(page.locator('table.compare [data-key="total"]')).to_contain_text("Succeeded")
        keep(page, "compare")
        page.reload()
        page.locator('table.compare [data-key="total"]').get_by_role("link").last.click()
        expect(page).to_have_url(re.compile(f"{first}.*task=total"))
