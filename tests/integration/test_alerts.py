"""Alerts on a real NATS: two gateways as processes, real receivers; a kill and an outage lose nothing."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace as configured
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable
from pyoco_server.usecases.consistency import change_value
from pyoco_server.wiring import open_backend
from support.builders import a_snapshot
from support.gateways import GatewayProcess, gateways
from support.nats_server import messages_in
from support.programs import Programs
from support.receivers import HttpReceiver, http_receiver, mail_server
from support.waiting import until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - of the specification
AT_ONCE = 100


def allowed(config: NatsBackendConfig) -> NatsBackendConfig:
    return configured(
        config,
        alerts_allow_private=True,
        workflow_event_retry_base_delay_seconds=0.5,
        workflow_event_retry_max_attempts=30,
    )


async def put(gateway: GatewayProcess, path: str, **body: Any) -> dict[str, Any]:
    answer = await gateway.http.put(path, json=body)
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, Any] = answer.json()
    return found


async def deliveries(gateway: GatewayProcess, **query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await gateway.http.get("/deliveries", params={"limit": "200", **query, **cursor})).json()
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}


def a_run(number: int) -> RunSnapshot:
    now = time.time()
    run_id = f"0190c0de-0000-7000-8000-{number:012d}"
    return replace(a_snapshot(), run_id=run_id, flow_name="etl", submitted_at=now, updated_at=now)


async def store(runs: Any, snapshots: Sequence[RunSnapshot]) -> None:
    async def one(run: RunSnapshot) -> None:
        await change_value(runs, run.run_id, lambda known: run if known is None else None)

    await patiently(one, snapshots)


async def fail(runs: Any, snapshots: Sequence[RunSnapshot]) -> None:
    async def one(run: RunSnapshot) -> None:
        now = time.time()
        ended = replace(run, status=RunStatus.FAILED, error="boom", end_time=now, updated_at=now)
        await change_value(runs, run.run_id, lambda known: ended if known == run else None)

    await patiently(one, snapshots)


async def patiently(
    write: Callable[[RunSnapshot], Awaitable[None]], snapshots: Sequence[RunSnapshot]
) -> None:
    """Again where NATS was too slow for the request: what was written then is left as it is."""

    async def one(run: RunSnapshot) -> bool:
        try:
            await write(run)
        except NatsUnavailable:
            return False
        return True

    for start in range(0, len(snapshots), AT_ONCE):
        part = snapshots[start : start + AT_ONCE]
        await asyncio.gather(*(until(partial(one, run)) for run in part))


async def test_two_gateways_send_each_message_over_webhook_chat_and_mail(
    config: NatsBackendConfig, programs: Programs
) -> None:
    settings = allowed(config)
    with http_receiver(HttpReceiver(secret=SECRET)) as hook, http_receiver() as chat, mail_server() as mail:
        sink, port = mail
        async with (
            gateways(settings, programs, 2) as (first, second),
            open_backend(settings, "test") as backend,
        ):
            await put(first, "/channels/hook", type="webhook", url=hook.url, secret=SECRET)
            await put(second, "/channels/chat", type="slack", url=chat.url)
            sender = {"from": "pyoco@example.org", "to": ["ops@example.org"]}
            await put(
                first, "/channels/mail", type="email", host="127.0.0.1", port=port, security="none", **sender
            )
            for channel in ("hook", "chat", "mail"):
                await put(second, f"/alerts/{channel}", on=["run.failed"], channel=channel)
            runs = [a_run(number) for number in range(5)]
            await store(backend.runs, runs)
            await fail(backend.runs, runs)

            async def delivered() -> int:
                return len(await deliveries(first, status="DELIVERED"))

            await until(delivered, lambda count: count == 15)
            assert len(await deliveries(second, status="DELIVERED", alert="mail")) == 5
            assert hook.unsigned == 0
            wanted = {run.run_id for run in runs}
            assert {one.data["run_id"] for one in hook.messages} == wanted
            assert all("a run failed: etl" in one.json["text"] for one in chat.messages)
            assert {str(one["Subject"]) for one in sink.mails} == {"pyoco-server: a run failed: etl"}
            assert len({str(one["Message-ID"]) for one in sink.mails}) == 5
            assert str(sink.mails[0]["To"]) == "ops@example.org"


@dataclass
class Figures:
    events: int
    received: int
    noticed_sec: float
    """Until all were noticed, with a kill in between."""
    caught_up_sec: float
    """From when the receiver was up again."""


async def campaign(
    settings: NatsBackendConfig, programs: Programs, size: int, down_sec: float
) -> AsyncIterator[Any]:
    """Two messages about each run, a receiver that is down for a while, and a kill in the middle."""
    receiver = HttpReceiver(secret=SECRET)
    runs = [a_run(number) for number in range(size)]
    began = time.monotonic()
    async with gateways(settings, programs, 2) as (first, second), open_backend(settings, "test") as backend:
        with http_receiver(receiver):
            await put(first, "/channels/hook", type="webhook", url=receiver.url, secret=SECRET)
        # From here on the receiver is down.
        await put(first, "/alerts/all", on=["run.late", "run.failed"], late_after_sec=0.001, channel="hook")
        await store(backend.runs, runs)

        async def noticed() -> int:
            return await messages_in(settings, f"KV_{settings.deliveries_kv_bucket}")

        await until(noticed, lambda count: count >= size)
        failing = asyncio.ensure_future(fail(backend.runs, runs))
        await until(noticed, lambda count: count >= size + size // 10)
        await first.kill()  # with the lease or without, there is much to do
        await failing
        await until(noticed, lambda count: count == 2 * size)
        noticed_sec = time.monotonic() - began
        await asyncio.sleep(max(0.0, began + down_sec - time.monotonic()))
        with http_receiver(receiver):
            up_at = time.monotonic()

            async def first_pending() -> list[Any]:
                query = {"status": "PENDING", "limit": "1"}
                found: list[Any] = (await second.http.get("/deliveries", params=query)).json()["items"]
                return found

            await until(first_pending, lambda found: not found)
            caught_up_sec = time.monotonic() - up_at
            every = {one["event_id"] for one in await deliveries(second)}
            assert await receiver.has(every)
        await first.start()
        assert await deliveries(second, status="FAILED") == []
        yield receiver, runs, Figures(len(every), len(receiver.messages), noticed_sec, caught_up_sec)


async def check(settings: NatsBackendConfig, programs: Programs, size: int, down_sec: float) -> None:
    async for receiver, runs, figures in campaign(settings, programs, size, down_sec):
        print(figures)  # noqa: T201 - for whoever runs it
        assert receiver.unsigned == 0
        seen: dict[str, list[str]] = {}
        for message in receiver.messages:
            kinds = seen.setdefault(message.data["run_id"], [])
            if message.json["type"] not in kinds:
                kinds.append(message.json["type"])
        assert set(seen) == {run.run_id for run in runs}
        assert {tuple(kinds) for kinds in seen.values()} == {("run.late", "run.failed")}


async def test_an_outage_of_the_receiver_and_a_kill_lose_nothing_and_keep_the_order(
    config: NatsBackendConfig, programs: Programs
) -> None:
    await check(allowed(config), programs, size=40, down_sec=1.0)


@pytest.mark.long
async def test_ten_thousand_alerts_survive_an_outage_of_two_minutes(
    config: NatsBackendConfig, programs: Programs
) -> None:
    await check(allowed(config), programs, size=5_000, down_sec=120.0)
