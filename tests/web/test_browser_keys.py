"""REQ-0020: everything without a mouse; no barrier on any page, in any window."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from support.browsing import LISTS, Site, keep, name_of, overhang, page_of, serious_barriers

QUESTION: dict[str, Any] = {"nodes": {"ask": {"type": "wait", "prompt": "Close the month?"}}}
WIDTHS = (375, 900, 1440)


def asked(site: Site) -> str:
    """An execution that waits for an answer."""
    site.api.put_graph("question", QUESTION)
    execution_id: str = site.api.executions.create("question")["execution_id"]
    for event in site.api.executions.watch(execution_id):
        if event["type"] == "NODE_WAITING":
            break
    return execution_id


def heading(page: Page, text: str | re.Pattern[str]) -> None:
    """It has the focus of whoever came here."""
    shown = page.get_by_role("heading", level=1)
    expect(shown).to_have_text(text)
    expect(shown).to_be_focused()


def test_once_through_by_keyboard_alone(browser: Browser, site: Site) -> None:
    failed, execution_id = site.finished("failing"), asked(site)
    with page_of(browser, site, "#/overview") as page:
        keys = page.keyboard
        page.locator("main h1").wait_for()
        keys.press("g")
        keys.press("r")
        heading(page, "Runs")
        keys.press("/")
        query = page.get_by_role("combobox", name="Filter runs")
        expect(query).to_be_focused()
        keys.type("status:fai")
        expect(page.get_by_role("option", name="status:FAILED")).to_be_visible()
        keys.press("ArrowDown")
        keys.press("Enter")
        expect(page).to_have_url(re.compile("status=FAILED"))
        keys.press("Escape")  # the list of completions
        keys.press("Escape")  # the field
        expect(query).not_to_be_focused()
        keys.press("j")
        expect(page.locator(f'[data-run="{failed}"] .row-link')).to_be_focused()
        keys.press("x")
        expect(page.get_by_role("region", name="Selected runs")).to_contain_text("1 selected")
        keys.press("x")
        keys.press("Enter")
        heading(page, f"failing · {failed[-12:]}")
        keys.press("?")
        expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
        keep(page, "keys")
        keys.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        keys.press("Control+k")
        expect(page.get_by_role("combobox", name="Go to…")).to_be_focused()
        keys.type("question")
        expect(page.get_by_role("option", name="question Graphs")).to_be_visible()
        keep(page, "palette")
        keys.press("Enter")
        heading(page, "question")
        keys.press("g")
        keys.press("i")
        heading(page, re.compile("^Waiting for an answer"))
        keys.press("j")
        keys.press("Enter")
        card = page.locator(f'[data-wait="{execution_id}/ask"]')
        yes = card.get_by_role("button", name="Yes")
        yes.wait_for()
        while not yes.evaluate("(one) => one === document.activeElement"):
            keys.press("Tab")
        keys.press("Enter")
        expect(card).to_have_count(0)


@pytest.fixture(scope="module")
def places(site: Site) -> list[str]:
    """Every list, and one thing of each."""
    failed, execution_id = site.finished("failing"), asked(site)
    site.finished("report")
    schedule = {"flow": "report"}
    site.api.schedules.put("nightly", schedule, cron="30 2 * * *", timezone="Asia/Tokyo")
    site.api.limits.put("one", {"flow": "report"}, max_running=1)
    (letter, *_) = site.api.dead_letters.list()["items"]
    things = [
        *(f"runs/{failed}", f"executions/{execution_id}?node=ask", "flows/report", "graphs/question"),
        *("schedules/nightly", "limits/one", f"dead-letters/{letter['id']}"),
    ]
    return [f"#/{place}" for place in (*LISTS, *things)]


TABBED = """() => {
  const seen = (one) => one.checkVisibility({ visibilityProperty: true }) && !one.disabled;
  return [...document.querySelectorAll("main :is(a[href], button, input, select, textarea, [tabindex='0'])")]
    .filter((one) => seen(one) && one.tabIndex >= 0 && one.type !== "file").length;
}"""


FOCUSED = """() => {
  const one = document.activeElement;
  if (!one.closest("main")) return null;
  (window.__reached ??= new Set()).add(one);
  const isOwn = one.type === "date" || one instanceof SVGElement;  // the browser marks a part of it, or we do
  const outlines = [null, "::after"].map((part) => getComputedStyle(one, part).outlineStyle);
  const isSeen = isOwn || outlines.some((style) => style !== "none");
  return [window.__reached.size, isSeen ? "" : one.outerHTML.slice(0, 200)];
}"""


def tabbed_through(page: Page) -> tuple[int, int, list[str]]:
    """How many things of the page the Tab key reached, and there are; where the focus is not seen."""
    there: int = page.evaluate(TABBED)
    page.evaluate("document.getElementById('content').focus()")
    reached, unseen = 0, []
    for _ in range(2 * there + 20):  # a date has several fields
        page.keyboard.press("Tab")
        found = page.evaluate(FOCUSED)
        if found is None:
            break
        reached = found[0]
        unseen += [found[1]] if found[1] else []
    return reached, there, unseen


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("look", [("en", "light"), ("ja", "dark")])
def test_every_page_has_no_barrier_fits_and_is_walked_by_tab(
    browser: Browser, site: Site, places: list[str], web: Path, width: int, look: tuple[str, Any]
) -> None:
    language, theme = look
    problems: list[Any] = []
    for place in places:
        with page_of(browser, site, place, language=language, theme=theme, width=width) as page:
            barriers, pixels = serious_barriers(page, web), overhang(page)
            reached, there, unseen = tabbed_through(page)
            keep(page, f"tour-{name_of(place)}-{width}-{language}-{theme}")
            if barriers or pixels or unseen or reached < there:
                problems.append((place, barriers, pixels, unseen, reached, there))
    assert problems == []
