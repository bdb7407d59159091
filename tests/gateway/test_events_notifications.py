"""Notification settings, the test message, escalations, and that nobody ever sees the address."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.events.retry import Delivered, is_webhook_url, masked
from pyoco_server.errors import ConfigError
from pyoco_server.event_adapters import GoogleChat
from pyoco_server.http_api import create_app
from pyoco_server.usecases.events.start import StartTemplate
from support.captured_logs import capture_logs
from support.events import URL, WEBHOOK, events_gateway, google_chat, records
from support.gateway import RunningGateway, memory_app
from support.tables import every_row

SETTINGS = f"{URL}/notification-settings"
TOKEN = "token-that-nobody-may-see"  # noqa: S105
SECRETS = ("KEYKEYKEY", "TOKTOKTOK", "AAAAsecretspace", TOKEN)


async def save(gateway: RunningGateway, url: str) -> dict[str, Any]:
    answer = await gateway.client.post(SETTINGS, json={"webhook_url": url})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def shown(gateway: RunningGateway) -> dict[str, Any]:
    found: dict[str, Any] = (await gateway.client.get(SETTINGS)).json()
    return found


async def test_without_settings_nothing_is_configured() -> None:
    async with memory_app() as gateway:
        assert await shown(gateway) == {
            "status": "ok",
            "configured": False,
            "webhook_url_masked": "",
            "source": "none",
            "updated_at": None,
        }


async def test_a_saved_address_is_shown_masked_only() -> None:
    async with memory_app() as gateway:
        saved = await save(gateway, WEBHOOK)
        assert (saved["status"], saved["configured"], saved["source"]) == ("ok", True, "file")
        assert saved["webhook_url_masked"] == (
            "https://chat.googleapis.com/v1/spaces/AAAA***/messages?key=***&token=***"
        )
        assert saved["updated_at"] is not None
        assert await shown(gateway) == saved


async def test_the_environment_counts_where_nothing_was_saved() -> None:
    other = WEBHOOK.replace("AAAA", "BBBB")
    async with memory_app(google_chat_webhook_url=other) as gateway:
        found = await shown(gateway)
        assert (found["source"], found["configured"], found["updated_at"]) == ("env", True, None)
        assert "BBBB***" in found["webhook_url_masked"]
        assert (await save(gateway, WEBHOOK))["source"] == "file"
        cleared = await save(gateway, "")
        assert (cleared["source"], "BBBB***" in cleared["webhook_url_masked"]) == ("env", True)


async def test_an_empty_address_takes_the_saved_one_away() -> None:
    async with memory_app() as gateway:
        await save(gateway, WEBHOOK)
        assert (await save(gateway, ""))["configured"] is False
        assert (await save(gateway, ""))["configured"] is False


ATTACKS = {
    "another scheme": WEBHOOK.replace("https:", "http:"),
    "another host": WEBHOOK.replace("chat.googleapis.com", "evil.example"),
    "a host that ends like it": WEBHOOK.replace("chat.googleapis.com", "evil-chat.googleapis.com"),
    "a host that begins like it": WEBHOOK.replace("chat.googleapis.com", "chat.googleapis.com.evil.example"),
    "the host of something inside": WEBHOOK.replace("chat.googleapis.com", "169.254.169.254"),
    "a trailing dot": WEBHOOK.replace("chat.googleapis.com", "chat.googleapis.com."),
    "user info": WEBHOOK.replace("https://", "https://me:pass@"),
    "user info that looks like the host": WEBHOOK.replace(
        "https://", "https://chat.googleapis.com@evil.example/"
    ),
    "a port": WEBHOOK.replace("googleapis.com", "googleapis.com:443"),
    "another port": WEBHOOK.replace("googleapis.com", "googleapis.com:8000"),
    "a unicode dot": WEBHOOK.replace("chat.googleapis", "chat。googleapis"),
    "another unicode dot": WEBHOOK.replace("chat.googleapis", "chat．googleapis"),
    "a unicode letter": WEBHOOK.replace("chat", "сhat"),
    "capitals": WEBHOOK.replace("chat.googleapis", "CHAT.GOOGLEAPIS"),
    "a backslash": WEBHOOK.replace("https://", "https:\\\\"),
    "a path upwards": WEBHOOK.replace("/v1/spaces/", "/v1/spaces/../../x/"),
    "an escaped path": WEBHOOK.replace("/v1/", "/v1%2f../"),
    "another path": WEBHOOK.replace("/messages", "/members"),
    "a longer path": WEBHOOK.replace("/messages", "/messages/1"),
    "no key": WEBHOOK.replace("key=KEYKEYKEY&", ""),
    "no token": WEBHOOK.replace("&token=TOKTOKTOK", ""),
    "an empty key": WEBHOOK.replace("KEYKEYKEY", ""),
    "two tokens": WEBHOOK + "&token=x",
    "a fragment": WEBHOOK + "#x",
    "a line break": WEBHOOK + "\nHost: evil.example",
    "a blank inside": WEBHOOK.replace("&", " &"),
    "too long": WEBHOOK + "&x=" + "y" * 3000,
    "no address": "nonsense",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
async def test_no_other_address_is_ever_spoken_to(attack: str) -> None:
    """A5"""
    assert not is_webhook_url(attack)
    assert masked(attack) == ""
    async with memory_app() as gateway:
        answer = await gateway.client.post(SETTINGS, json={"webhook_url": attack})
        assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
        assert "TOKTOKTOK" not in answer.text, "not even a wrong address is repeated"
        assert (await shown(gateway))["configured"] is False


@pytest.mark.parametrize("body", [{}, {"webhook_url": None}, {"webhook_url": 5}])
async def test_an_address_must_be_given(body: dict[str, Any]) -> None:
    async with memory_app() as gateway:
        assert (await gateway.client.post(SETTINGS, json=body)).status_code == 422


def test_an_address_of_the_environment_that_is_not_google_chats_stops_the_start() -> None:
    config = NatsBackendConfig(google_chat_webhook_url="https://evil.example/KEYKEYKEY")
    with pytest.raises(ConfigError) as raised:
        create_app(config)
    assert "AX_GOOGLE_CHAT_WEBHOOK_URL" in str(raised.value)
    assert "KEYKEYKEY" not in str(raised.value)


@every_row(
    "url",
    [
        "http://evil.example",
        "https://127.0.0.1",
        "http://127.0.0.1@evil.example",
        "http://127.0.0.1.evil.example",
        "http://10.0.0.1:80",
        "http://127.0.0.1/path",
        "http://user@127.0.0.1",
        "ftp://127.0.0.1",
        "http://[::2]",
        "http://127.0.0.1:x",
    ],
)
def test_a_stand_in_for_google_chat_must_be_on_this_machine(url: str) -> None:
    with pytest.raises(ConfigError, match="AX_GOOGLE_CHAT_BASE_URL"):
        NatsBackendConfig(google_chat_base_url=url)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9", "http://[::1]:9", "http://localhost:9/", "http://127.0.0.2"]
)
def test_this_machine_has_several_names(url: str) -> None:
    assert NatsBackendConfig(google_chat_base_url=url).google_chat_base_url == url


# The test message


async def test_without_an_address_a_test_is_refused_and_recorded() -> None:
    async with memory_app() as gateway:
        answer = await gateway.client.post(f"{SETTINGS}/test")
        assert (answer.status_code, answer.json()["detail"]) == (
            400,
            "Google Chat webhook is not configured.",
        )
        (record,) = records(gateway, "workflow_event_notification")
        assert (record.action, record.status) == ("notification_settings_test", "skipped")


async def test_a_test_message_arrives_and_is_recorded() -> None:
    async with google_chat() as (base_url, chat), memory_app(google_chat_base_url=base_url) as gateway:
        await save(gateway, WEBHOOK)
        answer = await gateway.client.post(f"{SETTINGS}/test")
        assert answer.status_code == 200
        assert answer.json() == {
            "status": "ok",
            "sent": True,
            "http_status": 200,
            "message": "The message was sent.",
        }
        ((path, body),) = chat.requests
        assert path == "/v1/spaces/AAAAsecretspace/messages?key=KEYKEYKEY&token=TOKTOKTOK"
        assert "test" in body["text"]
        (record,) = records(gateway, "workflow_event_notification")
        assert (record.action, record.status) == ("notification_settings_test", "success")


@pytest.mark.parametrize("status", [400, 403, 500, 302, 307])
async def test_a_test_message_that_is_not_taken_is_answered_as_an_error(status: int) -> None:
    """A5: a redirect is not followed, and what the other side says is not passed on."""
    headers = {"Location": "http://127.0.0.1:1/inside"}
    async with (
        google_chat(status, headers) as (base_url, chat),
        memory_app(google_chat_base_url=base_url) as gateway,
    ):
        await save(gateway, WEBHOOK)
        answer = await gateway.client.post(f"{SETTINGS}/test")
        assert (answer.status_code, answer.json()["status"], answer.json()["sent"]) == (200, "error", False)
        assert answer.json()["http_status"] == status
        assert "private" not in answer.text
        assert len(chat.requests) == 1
        assert records(gateway, "workflow_event_notification")[0].status == "failed"


async def test_nobody_at_the_other_end_is_an_error_too() -> None:
    async with memory_app(google_chat_base_url="http://127.0.0.1:1") as gateway:
        await save(gateway, WEBHOOK)
        found = (await gateway.client.post(f"{SETTINGS}/test")).json()
        assert (found["status"], found["sent"], found["http_status"]) == ("error", False, None)


async def test_a_receiver_that_says_nothing_is_given_up() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        is_over.set()

    is_over = asyncio.Event()
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sent = await GoogleChat(f"http://127.0.0.1:{port}", timeout_sec=0.05).send(WEBHOOK, "hello")
    await is_over.wait()
    server.close()
    await server.wait_closed()
    assert (sent.is_sent, sent.http_status) == (False, None)
    assert "Google Chat" in sent.message


# Escalations


async def failing(self: StartTemplate, *_: Any) -> None:
    raise ZeroDivisionError


async def escalate(gateway: RunningGateway) -> None:
    answer = await gateway.client.post(
        URL, json={"idempotency_key": "k-1", "source": "<erp>", "event_name": "close.month"}
    )
    assert answer.json()["queued"] is True
    for expected in ("retrying", "retrying", "escalated"):
        done = await gateway.client.post(f"{URL}/retry-jobs/drain", json={"force": True})
        assert done.json()[expected] == 1, done.text


async def test_an_escalation_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StartTemplate, "_place_run", failing)
    async with google_chat() as (base_url, chat), events_gateway(google_chat_base_url=base_url) as gateway:
        await save(gateway, WEBHOOK)
        await escalate(gateway)
        (text,) = await chat.heard(1)
        assert "Close the month (close)" in text
        assert "action: close.month" in text
        assert "idempotency_key: k-1" in text
        assert "attempts: 3 of 3" in text
        assert "infra/exception" in text
        assert "<" not in text, "nothing from outside becomes a link or a mention"
        jobs = (await gateway.client.get(f"{URL}/retry-jobs")).json()["jobs"]
        assert jobs[0]["id"] in text
        notify = gateway.app.state.gateway.levels.events.notify_escalations
        await notify.send_pending()
        assert len(chat.requests) == 1


async def test_an_escalation_that_a_gateway_left_untold_is_told_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StartTemplate, "_place_run", failing)
    async with google_chat(503) as (base_url, chat), events_gateway(google_chat_base_url=base_url) as gateway:
        await save(gateway, WEBHOOK)
        await escalate(gateway)
        await chat.heard(1)
        chat.status = 200
        notify = gateway.app.state.gateway.levels.events.notify_escalations
        await notify.send_pending()
        await notify.send_pending()
        assert len(chat.requests) == 2
        statuses = [record.status for record in records(gateway, "workflow_event_notification")]
        assert statuses == ["failed", "success"]


async def test_a_slow_receiver_does_not_hold_up_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StartTemplate, "_place_run", failing)
    asked, answer_now = asyncio.Event(), asyncio.Event()

    async def slowly(*_: Any) -> Delivered:
        asked.set()
        await answer_now.wait()
        return Delivered(True, 200, "sent")

    monkeypatch.setattr(GoogleChat, "send", slowly)
    async with events_gateway() as gateway:
        await save(gateway, WEBHOOK)
        await escalate(gateway)
        await asked.wait()
        drained = await gateway.client.post(f"{URL}/retry-jobs/drain", json={"force": True})
        assert drained.status_code == 200
        answer_now.set()


async def test_without_an_address_an_escalation_is_recorded_as_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StartTemplate, "_place_run", failing)
    async with events_gateway() as gateway:
        await escalate(gateway)
        await gateway.app.state.gateway.levels.events.notify_escalations.send_pending()
        assert [r.status for r in records(gateway, "workflow_event_notification")] == ["skipped"]


# Secrets


async def test_token_and_address_are_seen_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """In no log line, record, error or answer, whatever goes wrong."""
    seen: list[str] = []
    with capture_logs() as logged:
        async with (
            google_chat(500) as (base_url, _),
            events_gateway(
                google_chat_base_url=base_url, workflow_event_token=TOKEN, audit_log_path="audit.jsonl"
            ) as gateway,
        ):
            await save(gateway, WEBHOOK)
            monkeypatch.setattr(StartTemplate, "_place_run", failing)
            places: list[dict[str, Any]] = [
                {"params": {"token": TOKEN}},
                {"headers": {"x-workflow-event-token": TOKEN}},
                {"headers": {"Authorization": f"Bearer {TOKEN}"}},
                {"params": {"token": TOKEN + "x"}},
                {"params": {"token": TOKEN}, "content": b"{"},
            ]
            for place in places:
                body: dict[str, Any] = {} if "content" in place else {"json": {"idempotency_key": "k"}}
                seen.append((await gateway.client.post(URL, **place, **body)).text)
            for method, path in (
                ("GET", SETTINGS),
                ("POST", f"{SETTINGS}/test"),
                ("POST", f"{URL}/retry-jobs/drain"),
                ("GET", f"{URL}/retry-jobs"),
                ("GET", f"{URL}/summary?ym=2026-02"),
            ):
                seen.append((await gateway.client.request(method, path)).text)
            for _ in range(3):
                await gateway.client.post(f"{URL}/retry-jobs/drain", json={"force": True})
            await gateway.app.state.gateway.levels.events.notify_escalations.send_pending()
            seen += [repr(event) for event in gateway.backend.events.audit.events]
            config = gateway.app.state.gateway.config
            seen.append(repr(config))
            seen.append(_text_of("audit.jsonl"))
    ours = [line for line in logged if "http://gateway" not in line["event"]]  # the test's client logs, too
    seen += [f"{line} {line.get('exc_info')!r}" for line in ours]
    assert len(ours) > 5
    for secret in SECRETS:
        assert [text for text in seen if secret in text] == []


def _text_of(path: str) -> str:
    return Path(path).read_text()
