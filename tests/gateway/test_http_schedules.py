"""Schedules over HTTP: define, fire, pause, trigger, backfill, preview, and what is refused."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.domain.schedules.model import PAGE
from pyoco_server.errors import ConfigError, TimersUnsupported
from pyoco_server.http_api import create_app
from pyoco_server.wiring.event_level import default_timezone
from support.schedules import NOW, TimedGateway, timed_gateway
from support.waiting import until


@pytest.fixture
async def gateway() -> AsyncIterator[TimedGateway]:
    async with timed_gateway() as running:
        yield running


async def run_of(gateway: TimedGateway, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await gateway.client.get(f"/runs/{run_id}")).json()
    return found


def has_ticked(shown: dict[str, Any], at: float) -> bool:
    return shown["last_tick"] is not None and shown["last_tick"]["due_at"] >= at


async def test_a_schedule_is_put_shown_and_fires(gateway: TimedGateway) -> None:
    shown = await gateway.put(target={"flow": "report", "params": {"a": 1}, "tag": "cpu", "timeout_sec": 5})
    assert (shown["id"], shown["next_due_at"], shown["paused"]) == ("nightly", NOW + 60, False)
    assert (shown["last_tick"], shown["timezone"], shown["overlap"]) == (None, "UTC", "skip")
    assert shown["target"] == {"flow": "report", "params": {"a": 1}, "tag": "cpu", "timeout_sec": 5.0}
    gateway.clock.now = NOW + 60.25
    (tick,) = await gateway.has_ticks(1)
    assert tick == {
        "due_at": NOW + 60,
        "status": "STARTED",
        "fired_at": NOW + 60.25,
        "late_sec": 0.25,
        "run_id": tick["run_id"],
    }
    run = await run_of(gateway, tick["run_id"])
    assert (run["flow_name"], run["params"], run["tag"], run["status"]) == (
        "report",
        {"a": 1},
        "cpu",
        "PENDING",
    )
    assert (run["schedule_id"], run["due_at"], run["timeout_sec"]) == ("nightly", NOW + 60, 5.0)
    assert len(await gateway.backend.queue.run_ids()) == 1
    shown = await gateway.schedule()
    assert (shown["next_due_at"], shown["last_tick"]["run_id"]) == (NOW + 120, tick["run_id"])


async def test_put_answers_201_for_a_new_schedule_and_200_for_a_changed_one(gateway: TimedGateway) -> None:
    body = {"target": {"flow": "report"}, "every_sec": 60}
    assert (await gateway.client.put("/schedules/a", json=body)).status_code == 201
    again = await gateway.client.put("/schedules/a", json=body)
    assert (again.status_code, again.json()["version"]) == (200, 1)
    other = await gateway.client.put("/schedules/a", json={**body, "every_sec": 30})
    assert (other.json()["version"], other.json()["next_due_at"]) == (2, NOW + 30)


async def test_the_old_tick_of_a_changed_schedule_does_nothing(gateway: TimedGateway) -> None:
    await gateway.put(every_sec=60)
    await gateway.put(every_sec=600)
    await gateway.put("other", every_sec=100)
    gateway.clock.now = NOW + 100
    await gateway.has_ticks(1, "other")
    assert await gateway.ticks() == []


async def test_a_deleted_schedule_is_gone_and_its_runs_stay(gateway: TimedGateway) -> None:
    await gateway.put()
    gateway.clock.now = NOW + 60
    (tick,) = await gateway.has_ticks(1)
    assert (await gateway.client.delete("/schedules/nightly")).json() == {"id": "nightly", "deleted": True}
    gone = await gateway.client.get("/schedules/nightly")
    assert (gone.status_code, gone.json()["err_id"]) == (404, "ERR-PYOCO-0048")
    assert (await gateway.client.delete("/schedules/nightly")).status_code == 404
    assert (await run_of(gateway, tick["run_id"]))["status"] == "PENDING"
    await gateway.put("nightly")
    assert await gateway.ticks() == []


async def test_a_misspelled_schedule_gets_a_hint(gateway: TimedGateway) -> None:
    await gateway.put()
    answer = await gateway.client.post("/schedules/nightli/trigger")
    assert answer.json()["detail"] == "schedule not found: nightli (did you mean 'nightly'?)"


async def test_schedules_are_listed_by_id_in_pages(gateway: TimedGateway) -> None:
    for name in ("b", "c", "a", "d"):
        await gateway.put(name)
    first = (await gateway.client.get("/schedules?limit=3")).json()
    assert [one["id"] for one in first["items"]] == ["a", "b", "c"]
    rest = (await gateway.client.get("/schedules", params={"cursor": first["next_cursor"]})).json()
    assert ([one["id"] for one in rest["items"]], rest["next_cursor"]) == (["d"], None)
    assert (await gateway.client.get("/schedules?cursor=x")).status_code == 422
    await gateway.client.delete("/schedules/b")
    assert [one["id"] for one in (await gateway.client.get("/schedules")).json()["items"]] == ["a", "c", "d"]


async def test_a_pause_skips_and_a_resume_catches_nothing_up(gateway: TimedGateway) -> None:
    await gateway.put(catch_up="all")
    paused = await gateway.client.post("/schedules/nightly/pause", json={"reason": "month end"})
    assert paused.json()["paused"]
    assert (paused.json()["paused_reason"], paused.json()["next_due_at"]) == ("month end", None)
    gateway.clock.now = NOW + 190
    (fold,) = await gateway.ticks()
    assert (fold["status"], fold["reason"], fold["count"], fold["due_at"]) == (
        "SKIPPED",
        "paused",
        3,
        NOW + 60,
    )
    assert fold["last_due_at"] == NOW + 180
    assert (await gateway.put(catch_up="none"))["paused"]
    resumed = (await gateway.client.post("/schedules/nightly/resume")).json()
    assert (resumed["paused"], resumed["paused_reason"], resumed["next_due_at"]) == (False, None, NOW + 240)
    gateway.clock.now = NOW + 240
    assert [tick["status"] for tick in await gateway.has_ticks(2)] == ["STARTED", "SKIPPED"]


async def test_a_trigger_starts_a_run_now(gateway: TimedGateway) -> None:
    await gateway.put()
    await gateway.client.post("/schedules/nightly/pause")
    for _ in range(2):
        answer = await gateway.client.post("/schedules/nightly/trigger")
        assert answer.status_code == 200, answer.text
        assert (await run_of(gateway, answer.json()["run_id"]))["schedule_id"] == "nightly"
    ticks = await gateway.ticks()
    assert [(tick["manual"], tick["status"], tick["due_at"]) for tick in ticks] == [
        (True, "STARTED", NOW)
    ] * 2
    assert len({tick["run_id"] for tick in ticks}) == 2


async def test_a_trigger_is_answered_although_many_ticks_were_recorded_meanwhile(
    gateway: TimedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own is in a page of the history by then."""
    await gateway.put()
    store, writes = gateway.backend.schedules, 0
    update = store.update

    async def overtaken(*args: Any) -> Any:
        nonlocal writes
        writes += 1
        if writes == 2:  # the trigger is stored; its gateway is slow to note that the run was placed
            for number in (PAGE + 8, PAGE + 9):
                gateway.clock.now = NOW + 60 * number
                await gateway.has_ticks(number + 1)
        return await update(*args)

    monkeypatch.setattr(store, "update", overtaken)
    answer = await gateway.client.post("/schedules/nightly/trigger")
    assert answer.status_code == 200, answer.text
    assert (await run_of(gateway, answer.json()["run_id"]))["schedule_id"] == "nightly"


async def test_a_trigger_with_a_known_key_starts_nothing(gateway: TimedGateway) -> None:
    await gateway.put(overlap="allow", catch_up="all")
    send = partial(gateway.client.post, "/schedules/nightly/trigger")
    first = await send(headers={"Idempotency-Key": "one"})
    gateway.clock.now = NOW + 5
    again, other = [await send(headers={"Idempotency-Key": key}) for key in ("one", "two")]
    assert again.json() == first.json()
    assert again.headers["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first.headers
    assert other.json()["run_id"] != first.json()["run_id"]
    refused = await send(headers={"Idempotency-Key": "x" * 256})
    assert (refused.status_code, "Idempotency-Key" in refused.text) == (422, True)
    gateway.clock.now = NOW + 60 * PAGE
    await gateway.has_ticks(PAGE + 2)  # its record is in a page of the history
    replayed = await send(headers={"Idempotency-Key": "one"})
    assert replayed.json() == first.json()
    manual = [tick for tick in await gateway.ticks() if tick.get("manual")]
    assert len(manual) == 2


async def test_two_triggers_with_one_key_at_the_same_time_start_one_run(gateway: TimedGateway) -> None:
    await gateway.put()
    sent = [
        gateway.client.post("/schedules/nightly/trigger", headers={"Idempotency-Key": "one"})
        for _ in range(8)
    ]
    answers = await asyncio.gather(*sent)
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 1
    assert len(await gateway.ticks()) == 1


async def test_a_queued_tick_starts_as_soon_as_the_run_has_ended(gateway: TimedGateway) -> None:
    await gateway.put(overlap="queue")
    gateway.clock.now = NOW + 60
    (first,) = await gateway.has_ticks(1)
    gateway.clock.now = NOW + 120
    await until(gateway.schedule, lambda shown: shown["waiting"] == 1)
    await gateway.end(first["run_id"])
    second, _ = await gateway.has_ticks(2)
    assert (second["status"], second["due_at"]) == ("STARTED", NOW + 120)


async def test_runs_that_were_allowed_to_overlap_are_active_after_a_change(gateway: TimedGateway) -> None:
    await gateway.put(overlap="allow")
    for number in (1, 2, 3):
        gateway.clock.now = NOW + 60 * number
        await gateway.has_ticks(number)
    newest, _, ended = await gateway.ticks()
    await gateway.end(ended["run_id"], RunStatus.FAILED)
    await gateway.put(overlap="skip", pause_after_failures=1)  # from now on
    gateway.clock.now = NOW + 240
    assert (await gateway.has_ticks(4))[0]["reason"] == "overlap"
    assert not (await gateway.schedule())["paused"]
    for tick in (newest, (await gateway.ticks())[2]):
        await gateway.end(tick["run_id"])
    gateway.clock.now = NOW + 300
    assert (await gateway.has_ticks(5))[0]["status"] == "STARTED"


async def test_cancel_running_cancels_the_run_and_then_starts_the_next(gateway: TimedGateway) -> None:
    await gateway.put(overlap="cancel_running")
    gateway.clock.now = NOW + 60
    (first,) = await gateway.has_ticks(1)
    gateway.clock.now = NOW + 120
    second, _ = await gateway.has_ticks(2)
    cancelled = await run_of(gateway, first["run_id"])
    assert (cancelled["status"], cancelled["cancel_requested_by"]) == ("CANCELLED", "schedule:nightly")
    assert (await run_of(gateway, second["run_id"]))["status"] == "PENDING"


async def test_failures_in_a_row_pause_the_schedule(gateway: TimedGateway) -> None:
    await gateway.put(pause_after_failures=2)
    for number in (1, 2):
        gateway.clock.now = NOW + 60 * number
        tick = (await gateway.has_ticks(number))[0]
        await gateway.end(tick["run_id"], RunStatus.FAILED)
    shown = await until(gateway.schedule, lambda shown: bool(shown["paused"]))
    assert shown["paused_reason"] == "2 runs in a row failed"


async def test_the_end_of_a_run_leaves_the_timer_of_the_next_tick_valid(gateway: TimedGateway) -> None:
    await gateway.put(pause_after_failures=5)
    gateway.clock.now = NOW + 60
    (tick,) = await gateway.has_ticks(1)
    before = await revision_of(gateway)
    await gateway.end(tick["run_id"], RunStatus.FAILED)
    await until(partial(revision_of, gateway), lambda revision: revision > before)
    gateway.clock.now = NOW + 120
    timers = gateway.clock.timers
    assert timers is not None

    async def ticks_and_timers() -> tuple[int, int]:
        return len(await gateway.ticks()), await timers.waiting()

    ticks, _ = await until(ticks_and_timers, lambda found: found[0] == 2 or found[1] == 0)
    assert ticks == 2, "the timer was dropped: the tick waits for the next check"


async def test_an_outage_is_caught_up_as_asked(gateway: TimedGateway) -> None:
    await gateway.put("latest")
    await gateway.put("none", catch_up="none")
    await gateway.put("all", catch_up="all", overlap="allow")
    gateway.clock.now = NOW + 60 * 4 + 20
    ticks = {name: await gateway.has_ticks(4, name) for name in ("latest", "none", "all")}
    statuses = {name: [tick["status"] for tick in found[::-1]] for name, found in ticks.items()}
    assert statuses == {
        "latest": ["MISSED", "MISSED", "MISSED", "STARTED"],
        "none": ["MISSED"] * 4,
        "all": ["STARTED"] * 4,
    }


async def test_a_backfill_starts_what_was_not_started(gateway: TimedGateway) -> None:
    await gateway.put(overlap="allow", cron="* * * * *")
    gateway.clock.now = NOW + 60
    await gateway.has_ticks(1)
    body = {"from": "2027-01-15T07:58:00Z", "to": NOW + 60}
    plan = (await gateway.client.post("/schedules/nightly/backfill", json={**body, "dry_run": True})).json()
    assert [one["due_at"] - NOW for one in plan["items"]] == [-120, -60, 0]
    assert len(await gateway.ticks()) == 1
    done = (await gateway.client.post("/schedules/nightly/backfill", json=body)).json()
    assert (done["items"], done["dry_run"]) == (plan["items"], False)
    assert len(await gateway.has_ticks(4)) == 4
    again = (await gateway.client.post("/schedules/nightly/backfill", json=body)).json()
    assert again["items"] == []
    everything = {**body, "only_missing": False}
    assert (
        len((await gateway.client.post("/schedules/nightly/backfill", json=everything)).json()["items"]) == 4
    )
    runs = [tick["run_id"] for tick in await gateway.has_ticks(8)]
    assert len(set(runs)) == 8


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"from": NOW - 60, "to": NOW + 60}, "to: must not be in the future"),
        ({"from": NOW - 60, "to": NOW - 61}, "to: must not be before from"),
        ({"from": NOW - 60 * 1_001, "to": NOW}, "1,002 ticks; at most 1,000 are allowed"),
        ({"from": 0, "to": NOW}, "30,000,001 ticks; at most 1,000 are allowed"),
        ({"from": "1969-12-31T00:00:00Z", "to": NOW}, "must be from 1970 to 9999"),
    ],
)
async def test_a_backfill_has_limits(gateway: TimedGateway, body: dict[str, Any], problem: str) -> None:
    await gateway.put(cron="* * * * *")
    answer = await gateway.client.post("/schedules/nightly/backfill", json=body)
    assert answer.status_code == 422
    assert problem in answer.text


async def revision_of(gateway: TimedGateway) -> int:
    stored = await gateway.backend.schedules.get("=.nightly")
    assert stored is not None
    return stored.revision


@pytest.mark.parametrize(("every_sec", "writes"), [(1, 1), (60, 2)])
async def test_a_tick_that_is_soon_followed_by_another_is_one_write(
    gateway: TimedGateway, every_sec: int, writes: int
) -> None:
    await gateway.put(every_sec=every_sec, overlap="allow")
    before = await revision_of(gateway)
    for number in range(1, 11):
        gateway.clock.now = NOW + every_sec * number
        assert len(await gateway.has_ticks(number)) == number
    assert await revision_of(gateway) == before + 10 * writes


async def test_timers_that_come_twice_do_not_multiply() -> None:
    async with timed_gateway(doubles=True) as gateway:
        await gateway.put(every_sec=1, overlap="allow")
        for number in range(1, 11):
            gateway.clock.now = NOW + number
            await gateway.has_ticks(number)
        timers = gateway.clock.timers
        assert timers is not None
        await until(timers.waiting, lambda waiting: waiting == 1)
        assert len(await gateway.ticks()) == 10


async def test_the_history_has_pages(gateway: TimedGateway) -> None:
    await gateway.put(every_sec=1, overlap="allow")
    for second in range(4, 101, 4):
        gateway.clock.now = NOW + second
        await until(gateway.schedule, partial(has_ticked, at=gateway.clock.now))
    await gateway.client.post("/schedules/nightly/pause")
    gateway.clock.now = NOW + 105  # the pause is one more record
    seen: list[float] = []
    cursor = None
    while True:
        params = {"limit": 30, **({"cursor": cursor} if cursor else {})}
        page = (await gateway.client.get("/schedules/nightly/ticks", params=params)).json()
        assert len(page["items"]) <= 30
        seen += [tick["due_at"] - NOW for tick in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [float(second) for second in range(101, 0, -1)]
    newest = (await gateway.client.get("/schedules/nightly/ticks?limit=1")).json()
    assert ([tick.get("count") for tick in newest["items"]], bool(newest["next_cursor"])) == ([5], True)


async def test_a_nats_that_cannot_keep_time_refuses_a_schedule(
    gateway: TimedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise TimersUnsupported("delays, retries and schedules require NATS 2.12 or newer; this is 2.11.4")

    monkeypatch.setattr(gateway.backend.queue, "require_timers", refuse)
    body = {"target": {"flow": "f"}, "cron": "@daily"}
    answer = await gateway.client.put("/schedules/s", json=body)
    assert (answer.status_code, answer.json()["err_id"]) == (501, "ERR-PYOCO-0047")
    assert "NATS 2.12 or newer; this is 2.11.4" in answer.json()["detail"]
    assert (await gateway.client.post("/schedules/preview", json=body)).status_code == 200


# Previews


async def test_a_preview_is_what_fires(gateway: TimedGateway) -> None:
    body = {"target": {"flow": "f"}, "cron": "30 2 * * *", "timezone": "Europe/Berlin"}
    unsaved = (await gateway.client.post("/schedules/preview?n=3", json=body)).json()
    assert unsaved["timezone"] == "Europe/Berlin"
    await gateway.put("nightly", **body)
    saved = (await gateway.client.get("/schedules/nightly/preview?n=3")).json()
    assert saved == unsaved
    for number, item in enumerate(unsaved["items"], 1):
        gateway.clock.now = item["due_at"]
        ticks = await gateway.has_ticks(number)
        assert ticks[0]["due_at"] == item["due_at"]


async def test_a_preview_starts_at_starts_at(gateway: TimedGateway) -> None:
    body = {"target": {"flow": "f"}, "every_sec": 90, "starts_at": "2027-01-16T00:00:00+09:00"}
    answer = (await gateway.client.post("/schedules/preview?n=2", json=body)).json()
    assert [one["due_at"] for one in answer["items"]] == [1_800_025_200.0, 1_800_025_290.0]
    assert len((await gateway.client.post("/schedules/preview", json=body)).json()["items"]) == 10


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"cron": "0 0 30 2 *"}, "never matches"),
        ({"cron": "61 * * * *"}, "minute '61'"),
        ({"cron": "* * * * *", "every_sec": 5}, "give exactly one"),
        ({"cron": None}, "give exactly one"),
        ({"timezone": ""}, "timezone: '' is not an IANA time zone"),
        ({"timezone": "Europe/Berlim"}, "did you mean 'Europe/Berlin'?"),
        ({"target": {"graph": "nothing"}}, "graph 'nothing' is not registered"),
        ({"target": {"template": "nothing"}}, "there is no template 'nothing'"),
        ({"target": {"flow": "f", "tag": "a b"}}, "tag 'a b'"),
        ({"starts_at": "2027-01-01T00:00:00"}, "must have an offset"),
        ({"starts_at": "tomorrow"}, "must be Unix seconds or RFC 3339"),
        ({"starts_at": 253_402_300_799, "timezone": "Asia/Tokyo"}, "no tick lies between"),
        ({"ends_at": "9999-12-31T23:00:00-02:00"}, "must be from 1970 to 9999"),
        ({"ends_at": NOW - 5}, "ends_at: is over"),
        ({"overlap": "wait"}, "overlap"),
        ({"crom": "x"}, "did you mean 'cron'?"),
        ({"target": {"flow": "f", "run_at": 5}}, "starts at its tick"),
        ({"target": {"flow": "f", "timeout_sec": 0}}, "timeout_sec"),
    ],
)
async def test_a_schedule_that_makes_no_sense_is_refused(
    gateway: TimedGateway, change: dict[str, Any], problem: str
) -> None:
    body = {"target": {"flow": "f"}, "cron": "* * * * *", **change}
    answer = await gateway.client.put("/schedules/s", json=body)
    assert answer.status_code == 422
    assert problem in answer.text
    assert (await gateway.client.get("/schedules")).json()["items"] == []


async def test_an_id_that_is_no_name_is_refused(gateway: TimedGateway) -> None:
    body = {"target": {"flow": "f"}, "cron": "* * * * *"}
    assert (await gateway.client.put("/schedules/a.b", json=body)).status_code == 422
    assert (await gateway.client.get("/schedules/a.b")).status_code == 404


# Graphs and templates


async def test_a_graph_is_executed_on_schedule(gateway: TimedGateway) -> None:
    graph = {"nodes": {"only": {"type": "task", "flow": "report"}}}
    assert (await gateway.client.put("/graphs/close", json=graph)).status_code == 201
    await gateway.put(target={"graph": "close", "input": {"ym": "2027-01"}})
    gateway.clock.now = NOW + 60
    (tick,) = await gateway.has_ticks(1)
    shown = (await gateway.client.get(f"/executions/{tick['execution_id']}")).json()
    assert (shown["graph_id"], shown["input"], shown["status"]) == ("close", {"ym": "2027-01"}, "ACTIVE")
    gateway.clock.now = NOW + 120
    assert (await gateway.has_ticks(2))[0]["reason"] == "overlap"


async def test_a_template_is_started_on_schedule(gateway: TimedGateway) -> None:
    await gateway.client.put("/api/workflow-actions/close", json={"flow_name": "report"})
    template = {
        "name": "Close",
        "needs_month": True,
        "steps": [{"id": "one", "action": "close", "trigger_kind": "scheduled"}],
    }
    assert (await gateway.client.put("/api/workflow-templates/monthly", json=template)).status_code == 200
    await gateway.put(target={"template": "monthly", "data": {"x": 1}})
    gateway.clock.now = NOW + 60
    (tick,) = await gateway.has_ticks(1)
    run = await run_of(gateway, tick["run_id"])
    assert (run["flow_name"], run["schedule_id"], run["due_at"]) == ("report", "nightly", NOW + 60)
    assert run["params"]["trigger"]["template_id"] == "monthly"
    assert (run["params"]["ym"], run["params"]["event"]) == ("2027-01", {"x": 1})


async def test_a_target_that_is_gone_is_a_skipped_tick_with_its_reason(gateway: TimedGateway) -> None:
    await gateway.client.put("/api/workflow-actions/close", json={"flow_name": "report"})
    template = {
        "name": "Close",
        "steps": [{"id": "one", "action": "close", "trigger_kind": "scheduled"}],
    }
    await gateway.client.put("/api/workflow-templates/monthly", json=template)
    await gateway.put(target={"template": "monthly"})
    await gateway.client.delete("/api/workflow-templates/monthly")
    gateway.clock.now = NOW + 60
    (tick,) = await gateway.has_ticks(1)
    assert (tick["status"], tick["reason"]) == ("SKIPPED", "Workflow template not found.")
    answer = await gateway.client.post("/schedules/nightly/trigger")
    assert (answer.status_code, answer.json()["err_id"]) == (409, "ERR-PYOCO-0043")


async def test_ticks_are_measured(gateway: TimedGateway) -> None:
    await gateway.put()
    gateway.clock.now = NOW + 60.3
    await gateway.has_ticks(1)
    metrics = (await gateway.client.get("/metrics")).text
    assert 'pyoco_schedule_ticks_total{status="STARTED"} 1.0' in metrics
    assert 'pyoco_schedule_lateness_seconds_bucket{le="0.5"} 1.0' in metrics
    assert 'pyoco_schedule_lateness_seconds_bucket{le="0.25"} 0.0' in metrics


def test_the_default_time_zone_is_a_setting_else_that_of_the_machine() -> None:
    assert default_timezone("Asia/Tokyo", {"TZ": "Europe/Berlin"}) == "Asia/Tokyo"
    assert default_timezone("", {"TZ": ":Europe/Berlin"}) == "Europe/Berlin"
    assert default_timezone("", {"TZ": "/usr/share/zoneinfo/Asia/Tokyo"}) == "Asia/Tokyo"
    assert default_timezone("", {"TZ": "JST-9"}) == "UTC"
    with pytest.raises(ConfigError, match="PYOCO_TIMEZONE='Mars/Base'"):
        create_app(NatsBackendConfig(timezone="Mars/Base"))


# Audit trail


async def changes(gateway: TimedGateway, **query: Any) -> list[dict[str, Any]]:
    answer = await gateway.client.get("/audit", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def test_every_change_of_a_schedule_is_on_record(gateway: TimedGateway) -> None:
    await gateway.put(every_sec=60)
    await gateway.put(every_sec=60)  # changes nothing
    await gateway.put(every_sec=30)
    await gateway.client.post("/schedules/nightly/pause", json={"reason": "month end"})
    await gateway.client.post("/schedules/nightly/resume")
    await gateway.client.post("/schedules/nightly/trigger")
    await gateway.client.delete("/schedules/nightly")
    found = await changes(gateway)
    assert [entry["action"] for entry in found[::-1]] == [
        "schedule.put",
        "schedule.put",
        "schedule.pause",
        "schedule.resume",
        "schedule.trigger",
        "schedule.delete",
    ]
    new, changed, paused = found[::-1][:3]
    assert new["target"] == {"kind": "schedule", "id": "nightly"}
    assert (new["before"], new["after"]["every_sec"], new["after"]["paused"]) == (None, 60.0, False)
    assert (changed["before"]["every_sec"], changed["after"]["every_sec"]) == (60.0, 30.0)
    assert (paused["after"]["paused"], paused["after"]["paused_reason"]) == (True, "month end")
    assert found[0]["after"] is None
    assert new["source"]["user_agent"].startswith("python-httpx")
    assert new["at"] == NOW


async def test_a_refused_change_leaves_no_record(gateway: TimedGateway) -> None:
    refused = await gateway.client.put("/schedules/a", json={"target": {"flow": "f"}, "cron": "never"})
    assert refused.status_code == 422
    assert (await gateway.client.delete("/schedules/a")).status_code == 404
    assert await changes(gateway) == []


async def test_changes_are_found_by_what_was_changed_and_when(gateway: TimedGateway) -> None:
    for name in ("a", "b", "c"):
        await gateway.client.put(f"/schedules/{name}", json={"target": {"flow": "f"}, "every_sec": 60})
        gateway.clock.now += 1
    assert [entry["target"]["id"] for entry in await changes(gateway, target="b")] == ["b"]
    assert [entry["target"]["id"] for entry in await changes(gateway, target="schedule/b")] == ["b"]
    assert len(await changes(gateway, target="schedule", action="schedule.put")) == 3
    assert await changes(gateway, action="schedule.delete") == []
    assert [entry["target"]["id"] for entry in await changes(gateway, since=NOW + 1, until=NOW + 1)] == ["b"]
    assert await changes(gateway, key_id="other") == []
    lines = await gateway.client.get("/audit", params={"format": "jsonl"})
    assert lines.headers["content-type"] == "application/x-ndjson"
    assert len(lines.text.splitlines()) == 3


async def test_pages_of_changes_are_complete(gateway: TimedGateway) -> None:
    for number in range(5):
        await gateway.client.put(f"/schedules/s{number}", json={"target": {"flow": "f"}, "every_sec": 60})
    found: list[str] = []
    cursor = None
    for _ in range(3):
        page = (
            await gateway.client.get("/audit", params={"limit": 2, **({"cursor": cursor} if cursor else {})})
        ).json()
        found += [entry["target"]["id"] for entry in page["items"]]
        cursor = page["next_cursor"]
    assert (found, cursor) == (["s4", "s3", "s2", "s1", "s0"], None)


@pytest.mark.parametrize(
    "query", [{"since": "yesterday"}, {"until": "2026-01-01"}, {"limit": 0}, {"cursor": "x"}]
)
async def test_a_bad_question_about_changes_is_refused(gateway: TimedGateway, query: dict[str, Any]) -> None:
    answer = await gateway.client.get("/audit", params=query)
    assert answer.status_code == 422
    assert next(iter(query)) in answer.text
