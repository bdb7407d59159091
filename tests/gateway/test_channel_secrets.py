"""What is confidential in channels: sealed at rest, resolved when a message is sent, shown nowhere."""

import base64
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace as configured
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.alerts.channels import Channel, ChannelType, channel_key
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.memory import MemoryGatewayBackend
from support.builders import a_snapshot
from support.captured_logs import capture_logs
from support.gateway import RunningGateway, memory_app, on_backend, own_picture
from support.receivers import HttpReceiver, http_receiver
from support.waiting import until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - of the specification
MAIL: dict[str, Any] = {
    "type": "email", "host": "127.0.0.1", "port": 25, "security": "none", "username": "u",
    "password": "hunter2", "from": "pyoco@example.org", "to": ["ops@example.org"],
}  # fmt: skip


def a_key(letter: str) -> str:
    return base64.urlsafe_b64encode(letter.encode() * 32).decode()


def with_key(config: NatsBackendConfig, key: str) -> NatsBackendConfig:
    return configured(config, secrets_key=key)


SETTINGS: dict[str, Any] = {
    "alerts_allow_private": True,
    "workflow_event_retry_base_delay_seconds": 0.01,
    "secrets_key": a_key("k"),
}


@pytest.fixture
async def world() -> AsyncIterator[RunningGateway]:
    async with memory_app(**SETTINGS) as opened:
        yield opened


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as opened:
        yield opened


@asynccontextmanager
async def reopened(backend: MemoryGatewayBackend, config: NatsBackendConfig) -> AsyncIterator[RunningGateway]:
    async with own_picture(backend, config) as own, on_backend(own, config) as running:
        yield running


def contains(part: str, text: str) -> bool:
    return part in text


async def put(world: RunningGateway, path: str, status: tuple[int, ...] = (200, 201), **body: Any) -> Any:
    answer = await world.client.put(path, json=body)
    assert answer.status_code in status, answer.text
    return answer.json()


async def stored(world: RunningGateway, name: str = "ops") -> bytes:
    found = await world.backend.alerts.definitions.get(channel_key(None, name))
    assert found is not None
    return msgspec.json.encode(found.value)


async def fail_a_run(world: RunningGateway) -> None:
    now = time.time()
    run_id = f"0190c0de-0000-7000-8000-{time.monotonic_ns() % 10**12:012d}"
    failed = replace(
        a_snapshot(RunStatus.FAILED), run_id=run_id, submitted_at=now, updated_at=now, end_time=now
    )
    await world.backend.runs.create(run_id, failed)


async def delivered(receiver: HttpReceiver, count: int = 1) -> None:
    async def look() -> int:
        return len(receiver.messages)

    await until(look, lambda found: found >= count)
    receiver.verified(SECRET)


async def deliveries(world: RunningGateway, **query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await world.client.get("/deliveries", params=query)).json()["items"]
    return found


async def test_urls_secrets_and_passwords_are_stored_sealed(
    world: RunningGateway, receiver: HttpReceiver
) -> None:
    await put(world, "/channels/ops", type="webhook", url=receiver.url, secret=SECRET)
    await put(world, "/channels/mail", **MAIL)
    for name, parts in (("ops", (b"s3cret", b"t0ken", SECRET.encode())), ("mail", (b"hunter2",))):
        assert not [part for part in parts if part in await stored(world, name)]
    shown = (await world.client.get("/channels/ops")).json()
    assert shown["url"] == f"http://127.0.0.1:{receiver.port}/•••"
    assert (shown["host"], shown["secret"]) == ("127.0.0.1", "•••")
    mail = (await world.client.get("/channels/mail")).json()
    assert (mail["host"], mail["username"], mail["password"]) == ("127.0.0.1", "u", "•••")
    await put(world, "/alerts/pager", on=["run.failed"], channel="ops")
    await fail_a_run(world)
    await delivered(receiver)
    # A PUT without the secret keeps the sealed one.
    await put(world, "/channels/ops", type="webhook", url=receiver.url)
    await fail_a_run(world)
    await delivered(receiver, 2)


async def test_a_channel_of_before_is_used_and_sealed_at_its_next_write(
    world: RunningGateway, receiver: HttpReceiver
) -> None:
    plain = Channel(
        name="ops",
        tenant_id=None,
        type=ChannelType.WEBHOOK,
        created_at=1.0,
        updated_at=1.0,
        url=receiver.url,
        secret=SECRET,
    )
    await world.backend.alerts.definitions.create(plain.store_key, plain)
    await put(world, "/alerts/pager", on=["run.failed"], channel="ops")
    await fail_a_run(world)
    await delivered(receiver)
    assert b"t0ken" in await stored(world)
    await put(world, "/channels/ops", type="webhook", url=receiver.url)
    assert b"t0ken" not in await stored(world)
    assert SECRET.encode() not in await stored(world)
    await fail_a_run(world)
    await delivered(receiver, 2)


async def test_without_a_key_channels_work_and_with_another_key_they_report_it(
    receiver: HttpReceiver,
) -> None:
    async with memory_app(**{**SETTINGS, "secrets_key": ""}) as first:
        await put(first, "/channels/ops", type="webhook", url=receiver.url, secret=SECRET)
        await put(first, "/alerts/pager", on=["run.failed"], channel="ops")
        await fail_a_run(first)
        await delivered(receiver)
        config = first.app.state.gateway.levels._setup.config
        backend = first.backend
    async with reopened(backend, with_key(config, a_key("k"))) as sealing:
        await put(sealing, "/channels/ops", type="webhook", url=receiver.url)
        assert SECRET.encode() not in await stored(sealing)
    for key, named in (("", "is not set"), (a_key("x"), "with the keys of PYOCO_SECRETS_KEY")):
        async with reopened(backend, with_key(config, key)) as other:
            body = {"type": "webhook", "url": receiver.url}
            refused = await other.client.put("/channels/ops", json=body)
            assert refused.status_code == 422
            assert named in refused.json()["detail"]
            assert (await other.client.get("/channels/ops")).json()["host"] == "127.0.0.1"
            await fail_a_run(other)

            async def errors(other: RunningGateway = other) -> str:
                return str([one["last_error"] for one in await deliveries(other, status="FAILED")])

            await until(errors, partial(contains, named))
    async with reopened(backend, with_key(config, a_key("x"))) as other:
        # What keeps nothing of the old one can replace it.
        await put(other, "/channels/ops", type="webhook", url=receiver.url, secret=SECRET)
        await fail_a_run(other)
        await delivered(receiver, 2)


async def test_references_are_resolved_when_a_message_is_sent(
    world: RunningGateway, receiver: HttpReceiver
) -> None:
    with capture_logs() as logged:
        await put(world, "/secrets/hook", value=SECRET)
        await put(world, "/secrets/token", value="t0ken-of-the-channel")
        await put(world, "/variables/host", value="127.0.0.1")
        url = f"http://${{vars.host}}:{receiver.port}/hooks?key=${{secrets.token}}"
        await put(world, "/channels/ops", type="webhook", url=url, secret="${secrets.hook}")  # noqa: S106
        shown = (await world.client.get("/channels/ops")).json()
        assert shown["host"] == f"${{vars.host}}:{receiver.port}"
        await put(world, "/alerts/pager", on=["run.failed"], channel="ops")
        await fail_a_run(world)
        await delivered(receiver)
        assert receiver.messages[0].path == "/hooks?key=t0ken-of-the-channel"
        # Another value counts from the next message on; one that cannot be used is reported by name.
        await put(world, "/secrets/token", value="another t0ken-of-the-channel")
        await fail_a_run(world)

        async def look() -> list[dict[str, Any]]:
            return await deliveries(world, status="FAILED")

        (failed,) = await until(look)
        assert failed["last_error"].startswith("url: must be an https URL")
        await world.client.delete("/secrets/hook")
        await world.client.post(f"/deliveries/{failed['id']}/replay")
        wanted = "secret 'hook' does not exist"
        (failed,) = await until(look, lambda found: [one["last_error"] for one in found] == [wanted])
        trail = (await world.client.get("/audit")).text
    texts = (str(logged), trail, str(failed), str(shown), (await stored(world)).decode())
    for text in texts:
        assert SECRET not in text
        assert "t0ken-of-the-channel" not in text


async def test_a_secret_in_an_address_is_masked_in_errors(world: RunningGateway) -> None:
    await put(world, "/secrets/host", value="no-such-host.invalid")
    url = "http://${secrets.host}/x"
    await put(world, "/channels/ops", type="slack", url=url)
    await put(world, "/alerts/pager", on=["run.failed"], channel="ops")
    await fail_a_run(world)

    async def look() -> list[dict[str, Any]]:
        return await deliveries(world, status="FAILED")

    (failed,) = await until(look)
    assert "could not be reached" in failed["last_error"]
    assert "no-such-host" not in str(failed)
    await put(world, "/secrets/host", value="user@example.com")
    refused = await world.client.put("/channels/ops", json={"type": "slack", "url": url})
    assert refused.status_code == 422
    async with memory_app(secrets_key=a_key("k")) as careful:
        await put(careful, "/secrets/host", value="127.0.0.1")
        refused = await careful.client.put(
            "/channels/ops", json={"type": "slack", "url": "https://${secrets.host}/x"}
        )
        assert refused.status_code == 422
        assert "•••" in refused.json()["detail"]
        assert "127.0.0.1" not in refused.text


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"url": "https://${secrets.nobody}/x"}, "secret 'nobody' does not exist"),
        ({"url": "https://${vars.nobody}/x"}, "variable 'nobody' does not exist"),
        ({"url": "https://${secrets.a b}/x"}, "url: '${secrets.a b}/x' is not a reference"),
        ({"secret": "${vars.number}"}, "secret: a reference has a value that is not text"),
        ({"secret": "${vars.short}"}, "secret: must be whsec_"),
    ],
)
async def test_a_reference_that_cannot_be_used_is_refused_by_name(
    world: RunningGateway, changed: dict[str, str], named: str
) -> None:
    await put(world, "/variables/number", value=7)
    await put(world, "/variables/short", value="whsec_c2hvcnQ=")
    body = {"type": "webhook", "url": "http://127.0.0.1/x", "secret": SECRET, **changed}
    refused = await world.client.put("/channels/ops", json=body)
    assert refused.status_code == 422
    assert named in refused.json()["detail"]
    assert (await world.client.get("/channels/ops")).status_code == 404


async def test_an_escaped_reference_is_text(world: RunningGateway, receiver: HttpReceiver) -> None:
    url = f"http://127.0.0.1:{receiver.port}/$${{secrets.x}}"
    await put(world, "/channels/ops", type="webhook", url=url, secret=SECRET)
    await put(world, "/alerts/pager", on=["run.failed"], channel="ops")
    await fail_a_run(world)
    await delivered(receiver)
    assert receiver.messages[0].path == "/$%7Bsecrets.x%7D"
