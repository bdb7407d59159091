"""Limits over HTTP, on stores in memory."""

from functools import partial
from typing import Any

import pytest

from pyoco_server.domain.runs.model import RunStatus
from support.schedules import TimedGateway, timed_gateway
from support.waiting import until

TWO: dict[str, Any] = {"match": {"flow": "report"}, "max_running": 2}


@pytest.fixture
async def gateway() -> Any:
    async with timed_gateway() as found:
        yield found


async def put(gateway: TimedGateway, name: str = "two", **fields: Any) -> dict[str, Any]:
    answer = await gateway.client.put(f"/limits/{name}", json={"match": {"flow": "report"}, **fields})
    assert answer.status_code in (200, 201), answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def submit(gateway: TimedGateway, **fields: Any) -> str:
    answer = await gateway.client.post("/runs", json={"flow_name": "report", **fields})
    assert answer.status_code == 200, answer.text
    run_id: str = answer.json()["run_id"]
    return run_id


async def get(gateway: TimedGateway, run_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = (await gateway.client.get(f"/runs/{run_id}")).json()
    return shown


async def admitted(gateway: TimedGateway, *run_ids: str) -> None:
    for run_id in run_ids:
        await until(partial(get, gateway, run_id), lambda run: run["admitted_try"] == 1)


async def places_were_given(gateway: TimedGateway) -> None:
    """Once more: a run of another limit has got its place."""
    await put(gateway, "other", match={"flow": "other"}, max_running=1)
    await admitted(gateway, await submit(gateway, flow_name="other"))


async def queued(gateway: TimedGateway) -> list[str]:
    """The runs whose jobs a worker would get."""
    return sorted(job.run_id or "" for job in await gateway.backend.queue.jobs() if not job.is_held)


async def test_the_third_run_waits_for_its_place_and_says_for_what(gateway: TimedGateway) -> None:
    await put(gateway, **TWO)
    first, second, third, fourth = [await submit(gateway) for _ in range(4)]
    await admitted(gateway, first, second)
    waits = (await get(gateway, third))["waiting_for"]
    assert waits == {"limit": "two", "key": "", "position": 1}
    assert (await get(gateway, fourth))["waiting_for"]["position"] == 2
    assert (await get(gateway, first))["waiting_for"] is None
    assert await queued(gateway) == sorted([first, second])
    shown = (await gateway.client.get("/limits")).json()["items"][0]
    assert (shown["holders"], shown["waiting"], shown["admitted"]) == (2, 2, 2)
    await gateway.end(first)
    await admitted(gateway, third)
    assert (await get(gateway, fourth))["waiting_for"]["position"] == 1


async def test_runs_that_were_accepted_before_their_limit_count(gateway: TimedGateway) -> None:
    earlier = [await submit(gateway) for _ in range(2)]
    delayed = await submit(gateway, delay_sec=3600)
    await put(gateway, max_running=2)
    waiting = await submit(gateway)

    async def shown() -> dict[str, Any]:
        found: dict[str, Any] = (await gateway.client.get("/limits/two")).json()
        return found

    found = await until(shown, lambda limit: limit["holders"] == 2)
    assert (found["waiting"], found["admitted"]) == (1, 0)
    assert (await get(gateway, waiting))["waiting_for"] == {"limit": "two", "key": "", "position": 1}
    assert await queued(gateway) == sorted([*earlier, delayed])
    await gateway.end(earlier[0])
    await admitted(gateway, waiting)
    await gateway.end(earlier[1])
    assert (await until(shown, lambda limit: limit["holders"] == 1))["waiting"] == 0


async def test_a_run_that_no_limit_concerns_has_no_mark(gateway: TimedGateway) -> None:
    await put(gateway, **TWO)
    answer = await gateway.client.post("/runs", json={"flow_name": "other"})
    run = await get(gateway, answer.json()["run_id"])
    assert run["limits"] is None and run["waiting_for"] is None  # noqa: PT018
    assert await queued(gateway) == [run["run_id"]]


async def test_keys_have_places_of_their_own(gateway: TimedGateway) -> None:
    await put(gateway, max_running=1, key="params.customer")
    a1 = await submit(gateway, params={"customer": "a"})
    b1 = await submit(gateway, params={"customer": 7})
    a2 = await submit(gateway, params={"customer": "a"})
    await admitted(gateway, a1, b1)
    assert (await get(gateway, a2))["waiting_for"] == {"limit": "two", "key": "a", "position": 1}
    keys = (await gateway.client.get("/limits/two/keys")).json()["items"]
    assert keys == [{"key": "7", "holders": 1, "waiting": 0}, {"key": "a", "holders": 1, "waiting": 1}]


async def test_a_key_that_cannot_be_evaluated_is_422_and_names_the_limit(gateway: TimedGateway) -> None:
    await put(gateway, max_running=1, key="params.customer")
    answer = await gateway.client.post("/runs", json={"flow_name": "report"})
    assert answer.status_code == 422
    assert "limit 'two'" in answer.json()["detail"]


async def test_reject_is_429_with_retry_after(gateway: TimedGateway) -> None:
    await put(gateway, max_running=1, on_full="reject")
    first = await submit(gateway)
    answer = await gateway.client.post("/runs", json={"flow_name": "report"})
    assert (answer.status_code, answer.json()["err_id"]) == (429, "ERR-PYOCO-0053")
    assert int(answer.headers["Retry-After"]) >= 1
    await admitted(gateway, first)
    await gateway.end(first)
    await until(
        lambda: gateway.client.post("/runs", json={"flow_name": "report"}), lambda it: it.status_code == 200
    )


async def test_in_a_batch_only_those_are_refused_for_which_there_is_no_place(gateway: TimedGateway) -> None:
    await put(gateway, max_running=2, on_full="reject")
    runs = [{"flow_name": "report"} for _ in range(4)] + [{"flow_name": "other"}]
    answer = (await gateway.client.post("/runs/batch", json={"runs": runs})).json()
    assert (answer["accepted"], answer["refused"]) == (3, 2)
    assert [item["http_status"] for item in answer["results"] if "error" in item] == [429, 429]


async def test_max_waiting_refuses_the_rest(gateway: TimedGateway) -> None:
    await put(gateway, max_running=1, max_waiting=1)
    await submit(gateway)
    await submit(gateway)
    answer = await gateway.client.post("/runs", json={"flow_name": "report"})
    assert answer.status_code == 429
    assert "1 runs wait" in answer.json()["detail"]


async def test_the_oldest_waiting_run_is_dropped_for_a_new_one(gateway: TimedGateway) -> None:
    await put(gateway, max_running=1, max_waiting=1, on_full="drop_oldest_waiting")
    first, second, third = [await submit(gateway) for _ in range(3)]
    await admitted(gateway, first)
    dropped = await until(lambda: get(gateway, second), lambda run: run["status"] == "CANCELLED")
    assert "'two'" in dropped["cancel_reason"]
    assert (await get(gateway, third))["waiting_for"]["position"] == 1


async def test_the_oldest_run_is_cancelled_for_a_new_one(gateway: TimedGateway) -> None:
    await put(gateway, max_running=1, on_full="cancel_oldest")
    first = await submit(gateway)
    await admitted(gateway, first)
    second = await submit(gateway)
    ended = await until(lambda: get(gateway, first), lambda run: run["status"] == "CANCELLED")
    assert "'two'" in ended["cancel_reason"]
    await admitted(gateway, second)


async def test_a_waiting_run_is_cancelled_at_once_and_its_job_is_gone(gateway: TimedGateway) -> None:
    await put(gateway, max_running=1)
    first, second = [await submit(gateway) for _ in range(2)]
    await admitted(gateway, first)
    await gateway.client.post(f"/runs/{second}/cancel")
    assert (await get(gateway, second))["status"] == "CANCELLED"
    assert second not in await gateway.backend.queue.run_ids()


async def test_a_limit_that_is_raised_or_deleted_lets_the_waiting_go_on(gateway: TimedGateway) -> None:
    await put(gateway, max_running=1)
    runs = [await submit(gateway) for _ in range(4)]
    await admitted(gateway, runs[0])
    await put(gateway, max_running=2)
    await admitted(gateway, runs[1])
    assert (await get(gateway, runs[2]))["waiting_for"]["position"] == 1
    assert (await gateway.client.delete("/limits/two")).json() == {"name": "two", "deleted": True}
    await admitted(gateway, *runs)
    assert (await gateway.client.get("/limits/two")).status_code == 404


async def test_holders_of_a_limit_that_is_lowered_go_on(gateway: TimedGateway) -> None:
    await put(gateway, max_running=2)
    first, second, third = [await submit(gateway) for _ in range(3)]
    await admitted(gateway, first, second)
    await put(gateway, max_running=1)
    await gateway.end(first)
    await places_were_given(gateway)
    assert (await get(gateway, third))["waiting_for"] is not None
    await gateway.end(second)
    await admitted(gateway, third)


async def test_another_key_sorts_those_that_wait_anew(gateway: TimedGateway) -> None:
    await put(gateway, max_running=1)
    first = await submit(gateway, params={"customer": "a"})
    second = await submit(gateway, params={"customer": "b"})
    third = await submit(gateway, params={"customer": "a"})
    await admitted(gateway, first)
    await put(gateway, max_running=1, key="params.customer")
    await admitted(gateway, second)
    waits = await until(lambda: get(gateway, third), lambda run: (run["waiting_for"] or {}).get("key") == "a")
    assert waits["waiting_for"]["position"] == 1


async def test_a_run_needs_all_of_its_limits(gateway: TimedGateway) -> None:
    await put(gateway, "all", max_running=2)
    await put(gateway, "each", max_running=1, key="params.customer")
    first = await submit(gateway, params={"customer": "a"})
    second = await submit(gateway, params={"customer": "a"})
    third = await submit(gateway, params={"customer": "b"})
    await admitted(gateway, first, third)
    assert (await get(gateway, second))["waiting_for"]["limit"] == "all"
    await gateway.end(third)
    shown = await until(
        lambda: get(gateway, second), lambda run: (run["waiting_for"] or {}).get("limit") == "each"
    )
    assert shown["waiting_for"] == {"limit": "each", "key": "a", "position": 1}


async def test_a_rate_lets_runs_start_when_there_is_a_token(gateway: TimedGateway) -> None:
    await put(gateway, rate={"count": 1, "per_sec": 10, "burst": 2})
    runs = [await submit(gateway) for _ in range(4)]
    await admitted(gateway, *runs[:2])
    assert (await get(gateway, runs[2]))["waiting_for"]["position"] == 1
    gateway.clock.now += 9.0
    await gateway.end(runs[0])
    await places_were_given(gateway)
    assert (await get(gateway, runs[2]))["waiting_for"] is not None
    gateway.clock.now += 1.5
    await submit(gateway)
    await admitted(gateway, runs[2])
    assert (await get(gateway, runs[3]))["waiting_for"]["position"] == 1


async def test_a_delayed_run_holds_no_place_and_comes_before_those_submitted_later(
    gateway: TimedGateway,
) -> None:
    await put(gateway, max_running=1)
    delayed = await submit(gateway, run_at=gateway.clock.now + 60)
    first, later = [await submit(gateway) for _ in range(2)]
    await admitted(gateway, first)
    assert (await get(gateway, delayed))["waiting_for"] is None
    gateway.clock.now += 61
    await submit(gateway)
    await until(lambda: get(gateway, later), lambda run: run["waiting_for"]["position"] == 2)
    assert (await get(gateway, delayed))["waiting_for"]["position"] == 1


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"match": {}}, "max_running"),
        ({"match": {}, "max_running": 0}, "max_running"),
        ({"match": {}, "max_running": 1, "on_full": "drop_oldest_waiting"}, "max_waiting"),
        ({"match": {}, "max_running": 1, "key": "nothing.known"}, "key"),
        ({"match": {}, "rate": {"count": 0, "per_sec": 1}}, "rate.count"),
        ({"match": {}, "rate": {"count": 1, "per_sec": 0}}, "rate.per_sec"),
        ({"match": {"flows": "x"}, "max_running": 1}, "flows"),
    ],
)
async def test_a_limit_that_means_nothing_is_422(
    gateway: TimedGateway, body: dict[str, Any], named: str
) -> None:
    answer = await gateway.client.put("/limits/bad", json=body)
    assert answer.status_code == 422
    assert named in answer.text


async def test_a_paused_flow_takes_runs_and_holds_them(gateway: TimedGateway) -> None:
    before = await submit(gateway)
    paused = await gateway.client.post("/flows/report/pause", json={"reason": "maintenance"})
    assert paused.json()["paused"]["reason"] == "maintenance"
    held = await submit(gateway)
    assert (await get(gateway, held))["waiting_for"]["paused"]["reason"] == "maintenance"
    assert await queued(gateway) == [before]
    other = await gateway.client.post("/runs", json={"flow_name": "other"})
    assert other.json()["run_id"] in await queued(gateway)
    await gateway.client.post("/flows/report/resume")
    await admitted(gateway, held)


async def test_a_pause_ends_by_itself(gateway: TimedGateway) -> None:
    await gateway.client.post("/flows/report/pause", json={"until": gateway.clock.now + 60})
    held = await submit(gateway)
    assert (await get(gateway, held))["waiting_for"]["paused"]["until"] == gateway.clock.now + 60
    gateway.clock.now += 61
    await gateway.client.post("/flows/other/pause")  # wakes what goes by the clock
    await admitted(gateway, held)


async def test_a_schedules_tick_that_a_limit_refuses_is_skipped(gateway: TimedGateway) -> None:
    await put(gateway, max_running=1, on_full="reject")
    first = await submit(gateway)
    await admitted(gateway, first)
    await gateway.put()
    gateway.clock.now += 61
    tick = (await gateway.has_ticks(1))[-1]
    assert (tick["status"], tick["reason"]) == ("SKIPPED", "limit")


async def test_a_run_that_ended_frees_its_place_whatever_its_end(gateway: TimedGateway) -> None:
    await put(gateway, max_running=1)
    first, second = [await submit(gateway) for _ in range(2)]
    await admitted(gateway, first)
    await gateway.end(first, RunStatus.FAILED)
    await admitted(gateway, second)
