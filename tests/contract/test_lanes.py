"""QueueLanes, and the sources that take jobs from them."""

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pyoco_server.domain.queues import WEIGHTS, Lane, Pause, QueueRecord, with_lane
from pyoco_server.domain.runs.model import Priority
from pyoco_server.usecases.ports.queues import Delivery, JobSource
from pyoco_server.usecases.ports.stores import Revision
from pyoco_server.usecases.queues import change_record
from support.backends import World
from support.builders import a_job
from support.waiting import until

SOON = 30.0
NOTHING_COMES = 0.3
HIGH, LOW = Lane("default", priority=Priority.HIGH), Lane("default", priority=Priority.LOW)


@asynccontextmanager
async def source(world: World) -> AsyncIterator[JobSource]:
    opened = await world.backend.sources.open(("default",))
    yield opened
    await opened.close()


async def taken(jobs: JobSource, wanted: int = 1) -> Delivery:
    delivery = await jobs.next(SOON, wanted)
    assert delivery is not None
    await delivery.ack()
    return delivery


async def open_lane(world: World, lane: Lane) -> None:
    """As a gateway does before it puts the first job there."""
    await world.backend.lanes.open(lane, None)
    await change_record(world.backend.queues, lane.tag, lambda record: with_lane(record, lane))


async def put(world: World, lane: Lane, count: int = 1) -> list[str]:
    jobs = [a_job(priority=lane.priority, lane=lane.name) for _ in range(count)]
    for job in jobs:
        await world.backend.queue.publish(job, Revision(1))
    return [job.run_id for job in jobs]


async def test_jobs_of_all_lanes_are_taken(world: World) -> None:
    for lane in (HIGH, LOW):
        await open_lane(world, lane)
    wanted = [*await put(world, Lane("default")), *await put(world, HIGH), *await put(world, LOW)]
    async with source(world) as jobs:
        deliveries = [await taken(jobs) for _ in wanted]
    assert {delivery.job().run_id for delivery in deliveries} == set(wanted)
    assert {delivery.num_delivered for delivery in deliveries} == {1}


async def test_a_high_job_overtakes_what_waits(world: World) -> None:
    for lane in (HIGH, LOW):
        await open_lane(world, lane)
    await put(world, LOW, 30)
    async with source(world) as jobs:
        for _ in range(10):
            assert (await taken(jobs)).job().priority is Priority.LOW
        await put(world, HIGH)
        assert (await taken(jobs)).job().priority is Priority.HIGH


async def test_priorities_share_by_weight_one_at_a_time_or_several(world: World) -> None:
    for lane in (HIGH, LOW):
        await open_lane(world, lane)
    for lane in (HIGH, Lane("default"), LOW):
        await put(world, lane, 6 * WEIGHTS[lane.priority])
    async with source(world) as jobs:
        for wanted, rounds in ((1, 2), (7, 3)):  # of seven, some are taken for the next round
            counted = Counter([(await taken(jobs, wanted)).job().priority for _ in range(rounds * 21)])
            assert counted == {
                priority: pytest.approx(rounds * weight, rel=0.1, abs=1)
                for priority, weight in WEIGHTS.items()
            }


async def test_nothing_of_a_paused_lane_is_delivered_until_it_is_resumed(world: World) -> None:
    lane = Lane("default")
    async with source(world) as jobs:
        await world.backend.lanes.pause(lane, Pause(since=0.0))
        (wanted,) = await put(world, lane)
        assert await jobs.next(NOTHING_COMES) is None
        async with source(world) as other:
            assert await other.next(NOTHING_COMES) is None, "also of a worker that starts meanwhile"
        await world.backend.lanes.resume(lane)
        began = time.monotonic()
        delivery = await taken(jobs)
        assert (delivery.job().run_id, delivery.num_delivered) == (wanted, 1)
        assert time.monotonic() - began < 4.0, "at once, not with the next heartbeat"


async def test_a_pause_ends_by_itself(world: World) -> None:
    lane = Lane("default")
    async with source(world) as jobs:
        now = await world.backend.queue.now()
        await world.backend.lanes.pause(lane, Pause(since=now, until=now + 0.7))
        await put(world, lane)
        assert await jobs.next(NOTHING_COMES) is None
        await taken(jobs)
        assert await world.backend.queue.now() >= now + 0.65


async def test_a_lane_of_a_paused_tag_is_made_paused(world: World) -> None:
    pause = Pause(since=0.0)
    await world.backend.lanes.open(HIGH, pause)
    record = QueueRecord(tag="default", lanes=("high",), paused=pause)
    await change_record(world.backend.queues, "default", lambda _: record)
    await put(world, HIGH)
    async with source(world) as jobs:
        assert await jobs.next(NOTHING_COMES) is None
        await world.backend.lanes.resume(HIGH)
        await taken(jobs)


async def test_jobs_of_a_lane_that_nobody_knows_move_to_the_plain_one(world: World) -> None:
    await world.backend.lanes.open(HIGH, None)
    wanted = await put(world, HIGH, 3)
    assert await world.backend.lanes.merge(HIGH) == 3
    assert await world.backend.lanes.merge(HIGH) == 0
    await until(world.backend.queue.count, lambda count: count == 3)
    async with source(world) as jobs:
        deliveries = [await taken(jobs) for _ in wanted]
    assert [delivery.job().run_id for delivery in deliveries] == wanted, "in order"
    assert {delivery.subject for delivery in deliveries} == {f"{world.config.work_subject_prefix}.default"}
    assert {delivery.revision for delivery in deliveries} == {1}


async def test_a_resume_of_what_is_not_paused_is_no_error(world: World) -> None:
    await world.backend.lanes.resume(Lane("nobody"))
    await world.backend.lanes.make_room(Lane("nobody"), 5_000)
