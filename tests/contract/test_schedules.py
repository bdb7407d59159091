"""What schedules rely on: their bucket, its feed, the pages of ticks, and timers that come until settled."""

from contextlib import aclosing

import pytest

from pyoco_server.domain.schedules.model import (
    Definition,
    Due,
    Schedule,
    Target,
    Tick,
    TickPage,
    TickStatus,
    new_schedule,
    replace,
)
from pyoco_server.usecases.ports.stores import WrongRevision
from support.backends import World

NOW = 1_800_000_000.0
TICK = Tick(due_at=NOW, status=TickStatus.STARTED, fired_at=NOW + 0.1, run_id="r")


def a_schedule(tenant_id: str | None = "acme") -> Schedule:
    target = Target(flow="f", params={"a": [1, None, {"b": "ü"}]}, tags=("x",), timeout_sec=3.0)
    definition = Definition(target=target, timezone="Asia/Tokyo", cron="*/5 * * * *", jitter_sec=1.5)
    new = new_schedule("nightly", definition, tenant_id=tenant_id, api_key_id="k", incarnation="i", now=NOW)
    return replace(new, ticks=(TICK,), to_place=(Due(NOW),), waiting=(Due(NOW + 1, "again", manual=True),))


async def test_a_schedule_is_read_as_it_was_written(world: World) -> None:
    schedules, schedule = world.backend.schedules, a_schedule()
    revision = await schedules.create(schedule.key, schedule)
    stored = await schedules.get(schedule.key)
    assert stored is not None
    assert (stored.value, stored.revision) == (schedule, revision)
    assert await schedules.get(a_schedule(None).key) is None


async def test_of_two_gateways_that_record_the_same_tick_one_is_refused(world: World) -> None:
    schedules, schedule = world.backend.schedules, a_schedule()
    first = await schedules.create(schedule.key, schedule)
    await schedules.update(schedule.key, replace(schedule, next_due_at=NOW + 5), first)
    with pytest.raises(WrongRevision):
        await schedules.update(schedule.key, replace(schedule, next_due_at=NOW + 5), first)


async def test_a_schedule_may_be_created_again_after_its_removal(world: World) -> None:
    schedules, schedule = world.backend.schedules, a_schedule()
    first = await schedules.create(schedule.key, schedule)
    await schedules.remove(schedule.key, None)
    assert await schedules.get(schedule.key) is None
    assert await schedules.create(schedule.key, replace(schedule, incarnation="j")) > first


async def test_the_feed_tells_of_every_schedule_its_changes_and_its_removal(world: World) -> None:
    schedules, schedule = world.backend.schedules, a_schedule()
    first = await schedules.create(schedule.key, schedule)
    seen: list[tuple[str, int | None]] = []
    async with aclosing(world.backend.schedule_feed.follow(None)) as batches:
        async for batch in batches:
            seen += [(one.key, None if one.value is None else one.value.version) for one in batch.changes]
            if seen == [(schedule.key, 1)] and batch.is_caught_up:
                await schedules.update(schedule.key, replace(schedule, version=2), first)
            if len(seen) == 2:
                await schedules.remove(schedule.key, None)
            if len(seen) == 3:
                break
    assert seen == [(schedule.key, 1), (schedule.key, 2), (schedule.key, None)]


async def test_a_page_of_ticks_is_written_once(world: World) -> None:
    pages, key = world.backend.tick_pages, a_schedule().page_key(0)
    await pages.create(key, TickPage((TICK,)))
    with pytest.raises(WrongRevision):
        await pages.create(key, TickPage(()))
    stored = await pages.get(key)
    assert stored is not None
    assert stored.value == TickPage((TICK,))


async def test_a_timer_that_nobody_settled_goes_to_another_follower(world: World) -> None:
    timers, key = world.backend.timers, a_schedule().key
    await timers.set("schedule", key, world.backend.shared_clock() - 1, b"7")
    async with aclosing(timers.follow("schedule")) as first:
        dropped = await anext(first)
    assert (dropped.key, dropped.payload) == (key, b"7")
    async with aclosing(timers.follow("schedule")) as second:
        again = await anext(second)
        assert (again.key, again.payload) == (key, b"7")
        await again.settle()
