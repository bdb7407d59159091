"""REQ-0020: alerts, channels, deliveries, secrets and variables on the dashboard, in a real browser."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from support.browsing import Site, keep, overhang, page_of, running_site, serious_barriers
from support.nats_server import free_port

KEY = base64.urlsafe_b64encode(bytes(32)).decode()
SECRET = "correct-horse-battery"  # noqa: S105 - to be looked for


@pytest.fixture(scope="module")
def site(built: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(
        tmp_path_factory.mktemp("site"), PYOCO_ALERTS_ALLOW_PRIVATE="1", PYOCO_SECRETS_KEY=KEY
    ) as running:
        yield running


def test_an_alert_is_made_with_its_channel_and_its_message_is_sent_again(
    browser: Browser, site: Site, web: Path
) -> None:
    with page_of(browser, site, "#/alerts/channels") as page:
        page.get_by_role("button", name="New channel").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("ops")
        dialog.get_by_label("URL").fill(f"http://127.0.0.1:{free_port()}/hidden-path")
        keep(page, "channel-new")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.locator("code")).to_have_text(re.compile("^whsec_"))
        shown = dialog.locator("code").inner_text()
        page.keyboard.press("Escape")
        row = page.locator('[data-key="ops"]')
        expect(row).to_contain_text("127.0.0.1")
        assert "hidden-path" not in page.content()
        assert shown not in page.content(), "once"
        assert serious_barriers(page, web) == []
        page.get_by_role("navigation", name="Sections of").get_by_role("link", name="Alerts").click()
        page.get_by_role("button", name="New alert").click()
        dialog.get_by_label("Name").fill("failures")
        dialog.get_by_label("Run late").check()
        expect(dialog.get_by_label("Late after (s)")).to_have_value("600")
        dialog.get_by_label("Run late").uncheck()
        expect(dialog.get_by_label("Channel")).to_have_value("ops")
        assert serious_barriers(page, web) == []
        keep(page, "alert-new")
        dialog.get_by_role("button", name="Save").click()
        expect(page.locator('[data-key="failures"]')).to_contain_text("Run failed")
        site.finished("failing")
        page.locator('[data-key="failures"]').get_by_role("link", name="Deliveries").click()
        message = page.locator("table.deliveries tbody tr").first
        expect(message.locator(".row-error")).to_be_visible()  # nobody listens there
        assert serious_barriers(page, web) == []
        keep(page, "alert-deliveries")
        message.get_by_role("button", name="Run failed").click()
        expect(dialog).to_contain_text("division by zero")
        page.keyboard.press("Escape")
        message.get_by_role("button", name="Send again").click()
        dialog.get_by_role("button", name="Send again").click()
        expect(page.get_by_text("Queued")).to_be_visible()
    with page_of(
        browser, site, "#/alerts/channels", is_quiet=False
    ) as page:  # the browser logs the 409 itself
        page.get_by_role("button", name="Delete ops").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("failures")


def test_a_secret_goes_in_and_never_comes_out(browser: Browser, site: Site, web: Path) -> None:
    with page_of(browser, site, "#/secrets", language="ja", theme="dark", width=375) as page:
        page.get_by_role("button", name="新しいシークレット").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("名前").fill("bank")
        dialog.get_by_label("値").fill(SECRET)
        dialog.get_by_role("button", name="保存").click()
        expect(page.locator('[data-key="bank"]')).to_contain_text("${secrets.bank}")
        assert SECRET not in page.content()
        assert overhang(page) == 0
        assert serious_barriers(page, web) == []
        keep(page, "phone-secrets-ja")
    with page_of(browser, site, "#/secrets/variables") as page:
        page.get_by_role("button", name="New variable").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("region")
        dialog.get_by_label("Value").fill("eu-west")
        dialog.get_by_role("button", name="Save").click()
        expect(page.locator('[data-key="region"]')).to_contain_text('"eu-west"')
        page.get_by_role("button", name="Edit region").click()
        expect(dialog.get_by_label("Value")).to_have_value('"eu-west"')
        keep(page, "variable-edit")
    assert SECRET not in str(site.api.secrets.list())
