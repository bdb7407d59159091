"""REQ-0020, REQ-0016: with auth on, the dashboard asks for a key, in the language that was set."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from pyoco_server.http_client import PyocoHttpClient
from support.browsing import FLOWS, Site, keep, page_of, running_site
from support.waiting import PATIENCE_SEC


@pytest.fixture(scope="module")
def site(built: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    environ = {"PYOCO_HTTP_AUTH_MODE": "api_key", "PYOCO_DASHBOARD_LANG": "ja"}
    with running_site(tmp_path_factory.mktemp("site"), with_worker=False, **environ) as running:
        for tenant in ("acme", "other"):
            made = running.programs.run("pyoco-server-admin", "api-key", "create", "--tenant", tenant)
            running.keys[tenant] = json.loads(made.stdout)["api_key"]
        command = ("api-key", "create", "--tenant", "acme", "--scopes", "read,operate,admin", "--quiet")
        running.keys["admin"] = running.programs.run("pyoco-server-admin", *command).stdout.strip()
        yield running


def test_a_key_opens_the_page_and_stays_in_the_tab(browser: Browser, site: Site) -> None:
    with PyocoHttpClient(site.url, site.keys["other"]) as other:
        foreign = other.submit_run("theirs")["run_id"]
    with page_of(browser, site, is_quiet=False) as page:  # the browser logs the refusal itself
        key = page.get_by_label("API キー")
        key.fill("pyoco_wrong.key")
        page.get_by_role("button", name="サインイン").click()
        expect(page.get_by_role("alert")).to_contain_text("API key が無効です")
        keep(page, "signin-ja")
        key.fill(site.keys["acme"])
        page.get_by_role("button", name="サインイン").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Run")
        expect(page.locator(".live")).to_have_text("ライブ")
        with PyocoHttpClient(site.url, site.keys["acme"]) as ours:
            run_id = ours.submit_run("ours")["run_id"]
        expect(page.locator(f'[data-run="{run_id}"]')).to_be_visible()
        expect(page.locator(f'[data-run="{foreign}"]')).to_have_count(0)
        stored = page.evaluate("[JSON.stringify(localStorage), document.cookie, location.href].join()")
        assert site.keys["acme"] not in stored
        page.reload()
        expect(page.locator(f'[data-run="{run_id}"]')).to_be_visible()
        page.locator(f'[data-run="{run_id}"] a').click()
        expect(page.locator(".notice.waits")).to_contain_text("tag「default」")
        keep(page, "pending-ja")
        page.get_by_role("button", name="取り消す").click()
        page.get_by_role("button", name="run を取り消す").click()
        expect(page.locator(".page-head .status")).to_have_attribute("data-state", "CANCELLED")
        page.get_by_role("button", name="サインアウト").click()
        expect(page.get_by_label("API キー")).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0


def test_a_key_that_is_revoked_leads_back_to_the_sign_in(browser: Browser, site: Site) -> None:
    made = json.loads(
        site.programs.run("pyoco-server-admin", "api-key", "create", "--tenant", "brief").stdout
    )
    with page_of(browser, site, "#/workers", is_quiet=False) as page:
        page.get_by_label("API キー").fill(made["api_key"])
        page.get_by_role("button", name="サインイン").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("キューとワーカー")
        site.programs.run("pyoco-server-admin", "api-key", "revoke", "--key-id", made["key_id"])
        expect(page.get_by_label("API キー")).to_be_visible()
        expect(page.get_by_text("サインアウトしました。 API key が無効です")).to_be_visible()


QUESTION: dict[str, Any] = {"nodes": {"ask": {"type": "wait", "prompt": "${input.question}"}}}


def asked(site: Site, tenant: str, question: str) -> str:
    """An execution of a tenant that waits for an answer."""
    with PyocoHttpClient(site.url, site.keys[tenant]) as client:
        client.put_graph("question", QUESTION)
        execution_id: str = client.executions.create("question", {"question": question})["execution_id"]
        next(event for event in client.executions.watch(execution_id) if event["type"] == "NODE_WAITING")
        return execution_id


def with_template(site: Site, tenant: str) -> None:
    """An event of a tenant, delivered."""
    with PyocoHttpClient(site.url, site.keys[tenant]) as client:
        client.events.put_action("act", {"flow_name": f"of-{tenant}"})
        step = {"id": "only", "action": "act", "trigger_kind": "external_event"}
        template = {"name": f"Template of {tenant}", "steps": [step], "year": 2026, "month": 11}
        client.events.put_template("close", template)
        client.events.send(template_id="close", idempotency_key=f"key-of-{tenant}")


def test_a_key_shows_a_tenant_its_own_executions_waits_and_events(browser: Browser, site: Site) -> None:
    ours, theirs = asked(site, "acme", "Ours?"), asked(site, "other", "Theirs?")
    for tenant in ("acme", "other"):
        with_template(site, tenant)
    with page_of(browser, site, "#/waits", language="en", is_quiet=False) as page:  # it is refused at first
        page.get_by_label("API key").fill(site.keys["acme"])
        page.get_by_role("button", name="Sign in").click()
        mine = page.locator(f'[data-wait^="{ours}/"]')
        expect(mine).to_contain_text("Ours?")
        expect(page.locator(f'[data-wait^="{theirs}/"]')).to_have_count(0)
        mine.get_by_role("button", name="Answer").click()
        mine.get_by_role("button", name="Yes").click()
        expect(mine).to_have_count(0)

        page.goto(f"{site.url}/#/executions/{ours}")
        expect(page.locator(".page-head .status")).to_have_attribute("data-state", "COMPLETED")
        page.goto(f"{site.url}/#/executions/{theirs}")
        expect(page.get_by_role("heading", name="Execution not found.")).to_be_visible()

        page.goto(f"{site.url}/#/events/deliveries?ym=2026-11")
        expect(page.locator("table.deliveries tr", has_text="key-of-acme")).to_contain_text("Started")
        expect(page.get_by_text("key-of-other")).to_have_count(0)
        page.goto(f"{site.url}/#/events/templates")
        expect(page.locator('[data-template="close"]')).to_contain_text("Template of acme")


def signed_in(page: Page, site: Site, name: str, place: str) -> None:
    page.evaluate("(key) => sessionStorage.setItem('pyoco.api-key', key)", site.keys[name])
    page.goto(f"{site.url}/?{name}{place}")  # the query: so that it is another page, not a place in this one


def test_an_administrator_makes_a_key_that_is_shown_once_and_revokes_it(browser: Browser, site: Site) -> None:
    with page_of(browser, site, language="en", is_quiet=False) as page:  # the browser logs refusals itself
        signed_in(page, site, "admin", "#/api-keys")
        page.get_by_role("button", name="New API key").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("What it is for").fill("nightly job")
        dialog.get_by_label("submit runs").check()
        keep(page, "key-new")
        dialog.get_by_role("button", name="Create").evaluate("(button) => { button.click(); button.click() }")
        expect(dialog.get_by_role("heading")).to_have_text("Copy the key now")
        key = dialog.locator("code").inner_text()
        keep(page, "key-made")
        page.mouse.click(5, 5)  # a click beside it loses nothing
        expect(dialog).to_be_visible()
        dialog.get_by_role("button", name="I have copied it").click()
        made = page.locator("table.api-keys tbody tr", has_text="nightly job")
        expect(made).to_have_count(1)
        expect(made).to_contain_text("submit")
        assert key not in page.content()
        with PyocoHttpClient(site.url, key) as client:
            client.submit_run("theirs")
        keep(page, "keys")
        made.get_by_role("button", name="Revoke nightly job").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(made.locator(".status")).to_have_attribute("data-state", "REVOKED")


def test_a_missing_scope_is_explained_and_nobody_is_signed_out(browser: Browser, site: Site) -> None:
    with page_of(browser, site, language="en", is_quiet=False) as page:
        signed_in(page, site, "acme", "#/audit")
        expect(page.get_by_role("alert")).to_contain_text("'admin'")
        expect(page.get_by_role("alert")).to_contain_text("You stay signed in.")
        keep(page, "missing-scope")
        page.get_by_role("link", name="Runs").first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
        expect(page.get_by_role("alert")).to_have_count(0)


def test_artifacts_are_shown_and_downloaded_with_the_key(browser: Browser, site: Site) -> None:
    """No address can carry it: neither that of an image, nor that of a frame or a link."""
    worker = ("pyoco-worker", "--flow-resolver", FLOWS, "--worker-id", "worker-1")
    with site.programs.started(*worker) as started, PyocoHttpClient(site.url, site.keys["acme"]) as ours:
        started.says("worker ready")
        run_id = ours.submit_run("saving")["run_id"]
        list(ours.watch_run(run_id, timeout_sec=PATIENCE_SEC))
    place = f"#/runs/{run_id}?tab=artifacts"
    with page_of(browser, site, place, language="en", is_quiet=False) as page:
        page.get_by_label("API key").fill(site.keys["acme"])
        page.get_by_role("button", name="Sign in").click()
        files = page.get_by_role("list", name="Artifacts")
        files.get_by_role("button", name="pixel.png").click()
        expect(page.get_by_role("img", name="pixel.png")).to_have_js_property("naturalWidth", 1)
        files.get_by_role("button", name="report.html").click()
        inside = page.frame_locator(".preview iframe").frame_locator("iframe")
        expect(inside.get_by_role("heading", name="Sales of June")).to_have_css("color", "rgb(0, 128, 0)")
        with page.expect_download() as downloading:
            files.get_by_role("link", name="Download rows.csv").click()
        assert downloading.value.path().read_text().startswith("shop,sales")
