"""JobQueue, JobSources, Deliveries, DeadLetters. REQ-0008, REQ-0010, REQ-0012."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest
from msgspec.structs import replace

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.dead_letters import DeadLetter, DlqReason
from pyoco_server.domain.runs.jobs import Job
from pyoco_server.domain.runs.model import RunLimit
from pyoco_server.errors import InvalidJob
from pyoco_server.jetstream.queue import WorkQueue
from pyoco_server.jetstream.streams import ensure_streams
from pyoco_server.usecases.ports.queues import Delivery, JobSource
from pyoco_server.usecases.ports.runs import Timer
from pyoco_server.usecases.ports.stores import Revision
from support.backends import World, Worlds
from support.builders import NOW, RUN_ID, a_job
from support.nats_server import delete_streams_of, unique_config
from support.replicas import Behind
from support.waiting import until

SOON = 30.0
"""Longer than anything that comes takes; only a failing test waits so long."""
ACK_WAIT_SEC = 2.0
"""Where a job must not come again meanwhile: a busy machine stands still for shorter than that."""
NOTHING_COMES = 0.2
CLOCK_ERROR_SEC = 0.1
"""How exactly the clock of NATS is known here."""


@asynccontextmanager
async def source(world: World, tags: Sequence[str] = ("default",)) -> AsyncIterator[JobSource]:
    opened = await world.backend.sources.open(tags)
    yield opened
    await opened.close()


async def taken(jobs: JobSource) -> Delivery:
    delivery = await jobs.next(SOON)
    assert delivery is not None
    return delivery


async def nothing_comes(jobs: JobSource) -> bool:
    return await jobs.next(NOTHING_COMES) is None


async def test_a_published_job_is_delivered_with_its_revision(world: World) -> None:
    job = a_job()
    await world.backend.queue.publish(job, Revision(42))
    async with source(world) as jobs:
        delivery = await taken(jobs)
        assert delivery.job() == job
        assert (delivery.revision, delivery.num_delivered) == (42, 1)
        assert delivery.subject == f"{world.config.work_subject_prefix}.default"
        await delivery.ack()


async def test_a_waiting_source_gets_a_job_that_is_published_later(world: World) -> None:
    async with source(world) as jobs:
        waiting = asyncio.ensure_future(taken(jobs))
        job = a_job()
        await world.backend.queue.publish(job, Revision(1))
        assert (await waiting).job() == job


async def test_an_empty_queue_answers_with_nothing_in_time(world: World) -> None:
    async with source(world) as jobs:
        assert await nothing_comes(jobs)


async def test_publishing_the_same_run_again_adds_nothing(world: World) -> None:
    job = a_job()
    await world.backend.queue.publish(job, Revision(1))
    await world.backend.queue.publish(job, Revision(1))
    async with source(world) as jobs:
        await (await taken(jobs)).ack()
        assert await nothing_comes(jobs)


async def test_jobs_come_in_the_order_they_were_published(world: World) -> None:
    wanted = [a_job() for _ in range(5)]
    for job in wanted:
        await world.backend.queue.publish(job, Revision(1))
    received = []
    async with source(world) as jobs:
        for _ in wanted:
            delivery = await taken(jobs)
            received.append(delivery.job())
            await delivery.ack()
    assert received == wanted


async def test_a_source_of_two_tags_gets_the_jobs_of_either(world: World) -> None:
    """REQ-0008: tags are an OR."""
    for tag in ("cpu", "gpu", "other"):
        await world.backend.queue.publish(a_job(tag=tag), Revision(1))
    async with source(world, ("cpu", "gpu")) as jobs:
        received = {(await taken(jobs)).job().tag for _ in range(2)}
        assert received == {"cpu", "gpu"}
        assert await nothing_comes(jobs)


async def test_a_source_takes_no_more_than_is_wanted_of_it(world: World) -> None:
    """What it had to give back would have been delivered once more."""
    tags = ("cpu", "gpu", "other")
    for tag in tags:
        await world.backend.queue.publish(a_job(tag=tag), Revision(1))
    async with source(world, tags) as first, source(world, tags) as second:
        received = [await taken(first), await taken(second), await taken(second)]
        assert {delivery.job().tag for delivery in received} == set(tags)
        assert {delivery.num_delivered for delivery in received} == {1}


async def test_a_source_that_pauses_leaves_to_others_what_it_had_asked_for(world: World) -> None:
    tags = ("cpu", "gpu")
    async with source(world, tags) as paused, source(world, tags) as other:
        assert await paused.next(NOTHING_COMES, 20) is None
        await paused.pause()
        for tag in tags:
            await world.backend.queue.publish(a_job(tag=tag), Revision(1))
        received = [await taken(other) for _ in tags]
        assert {delivery.num_delivered for delivery in received} == {1}
        for delivery in received:
            await delivery.nak(0)
        assert (await taken(paused)).num_delivered == 2, "it can be asked again"


async def test_a_job_is_held_by_one_source_at_a_time(world: World) -> None:
    await world.backend.queue.publish(a_job(), Revision(1))
    async with source(world) as first, source(world) as second:
        await taken(first)
        assert await nothing_comes(second)


async def test_an_acknowledged_job_does_not_come_back(new_world: Worlds) -> None:
    world = await new_world(consumer_ack_wait_sec=ACK_WAIT_SEC, ack_progress_interval_sec=0.1)
    await world.backend.queue.publish(a_job(), Revision(1))
    async with source(world) as jobs:
        await (await taken(jobs)).ack()
        assert await jobs.next(1.5 * ACK_WAIT_SEC) is None


async def test_a_terminated_job_does_not_come_back(new_world: Worlds) -> None:
    world = await new_world(consumer_ack_wait_sec=ACK_WAIT_SEC, ack_progress_interval_sec=0.1)
    await world.backend.queue.publish(a_job(), Revision(1))
    async with source(world) as jobs:
        await (await taken(jobs)).term()
        assert await jobs.next(1.5 * ACK_WAIT_SEC) is None


async def test_a_job_that_is_not_acknowledged_comes_back_and_counts(new_world: Worlds) -> None:
    world = await new_world(consumer_ack_wait_sec=0.3, ack_progress_interval_sec=0.1)
    job = a_job()
    await world.backend.queue.publish(job, Revision(9))
    async with source(world) as jobs:
        assert (await taken(jobs)).num_delivered == 1
        again = await taken(jobs)
        assert (again.num_delivered, again.job(), again.revision) == (2, job, 9)
        await again.ack()


async def test_a_job_that_is_given_back_comes_at_once(world: World) -> None:
    await world.backend.queue.publish(a_job(), Revision(1))
    async with source(world) as jobs:
        await (await taken(jobs)).nak(0)
        assert (await taken(jobs)).num_delivered == 2


async def test_a_job_that_is_given_back_with_a_delay_comes_after_it(world: World) -> None:
    await world.backend.queue.publish(a_job(), Revision(1))
    async with source(world) as jobs:
        await (await taken(jobs)).nak(0.5)
        given_back = asyncio.get_running_loop().time()
        assert (await taken(jobs)).num_delivered == 2
        assert asyncio.get_running_loop().time() - given_back >= 0.45


async def test_a_sign_of_progress_holds_a_job_longer_than_its_ack_wait(new_world: Worlds) -> None:
    """REQ-0010"""
    world = await new_world(consumer_ack_wait_sec=ACK_WAIT_SEC, ack_progress_interval_sec=0.1)
    await world.backend.queue.publish(a_job(), Revision(1))
    async with source(world) as jobs:
        delivery = await taken(jobs)
        for _ in range(6):
            await delivery.in_progress()
            assert await jobs.next(ACK_WAIT_SEC / 4) is None
        await delivery.ack()


async def test_a_job_is_not_delivered_more_often_than_allowed(new_world: Worlds) -> None:
    world = await new_world(consumer_ack_wait_sec=0.3, ack_progress_interval_sec=0.1, consumer_max_deliver=2)
    await world.backend.queue.publish(a_job(), Revision(1))
    async with source(world) as jobs:
        assert [(await taken(jobs)).num_delivered for _ in range(2)] == [1, 2]
        assert await jobs.next(0.8) is None


async def test_garbage_is_delivered_and_is_an_invalid_job(world: World) -> None:
    await world.put(b"\xff not a job", "default")
    async with source(world) as jobs:
        delivery = await taken(jobs)
        assert delivery.payload == b"\xff not a job"
        assert delivery.revision is None
        with pytest.raises(InvalidJob):
            delivery.job()
        await delivery.term()


async def test_a_dead_letter_is_kept_under_its_tag(world: World) -> None:
    """REQ-0012"""
    letter = DeadLetter(
        timestamp=NOW, reason=DlqReason.EXECUTION_ERROR, error="ValueError: x", run_id=RUN_ID, num_delivered=3
    )
    await world.backend.dead_letters.publish(letter, "gpu")
    ((subject, content),) = await world.letters()
    assert subject == f"{world.config.dlq_subject_prefix}.gpu"
    assert content == {
        "timestamp": NOW,
        "reason": "execution_error",
        "error": "ValueError: x",
        "run_id": RUN_ID,
        "num_delivered": 3,
    }


async def test_d03_what_a_replica_lacks_is_asked_of_the_leader(config: NatsBackendConfig) -> None:
    """D03, its sister: a replica that is behind answered for the whole queue."""
    behind = unique_config(config.nats_url)
    names = [each.work_stream.rpartition("_")[2] for each in (config, behind)]
    connection = Behind(config.nats_url, *names)
    await connection.open()
    jobs = [a_job() for _ in range(5)]
    queues = []
    for each, known in ((config, jobs), (behind, jobs[:2])):
        await ensure_streams(connection, each)
        queues.append(WorkQueue(connection, each.work_stream, each.work_subject_prefix))
        for job in known:
            await queues[-1].publish(job, Revision(1))
    removed = {"seq": 4, "no_erase": True}
    await connection.api(f"STREAM.MSG.DELETE.{config.work_stream}", removed)
    found = await queues[0].jobs()
    await connection.close()
    await delete_streams_of(behind)
    assert [(job.sequence, job.run_id) for job in found] == [(n, jobs[n - 1].run_id) for n in (1, 2, 3, 5)]
    assert not any(job.is_given_up for job in found)


# Delayed jobs


async def delayed(world: World, seconds: float) -> Job:
    return a_job(not_before=await world.backend.queue.now() + seconds)


async def emptied(world: World) -> None:
    await until(world.backend.queue.count, lambda waiting: waiting == 0)


async def test_a_delayed_job_comes_when_its_time_has_come_and_only_once(world: World) -> None:
    delay, loop = 1.0, asyncio.get_running_loop()
    published = loop.time()
    job = await delayed(world, delay)
    await world.backend.queue.publish(job, Revision(42))
    await world.backend.queue.publish(job, Revision(42))
    assert await world.backend.queue.run_ids() == {job.run_id}, "the sweep must not miss it"
    async with source(world) as jobs:
        delivery = await taken(jobs)
        assert loop.time() - published >= delay - CLOCK_ERROR_SEC
        assert (delivery.job(), delivery.revision, delivery.num_delivered) == (job, 42, 1)
        assert 0 <= await delivery.waited_sec() < loop.time() - published - delay + 1.0
        await delivery.ack()
        assert await nothing_comes(jobs)
    await emptied(world)


async def test_a_delayed_job_is_replaced_by_the_next_of_its_run(world: World) -> None:
    job = await delayed(world, 600.0)
    again = replace(job, try_number=2, not_before=await world.backend.queue.now() + 0.2)
    await world.backend.queue.publish(job, Revision(1))
    await world.backend.queue.publish(again, Revision(2))
    async with source(world) as jobs:
        delivery = await taken(jobs)
        assert (delivery.job(), delivery.revision) == (again, 2)
        await delivery.ack()
    await emptied(world)


async def test_a_delayed_job_that_was_unscheduled_never_comes(world: World) -> None:
    job, other = await delayed(world, 0.5), await delayed(world, 0.7)
    await world.backend.queue.publish(job, Revision(1))
    await world.backend.queue.unschedule(job.run_id)
    await world.backend.queue.unschedule(job.run_id)
    await world.backend.queue.publish(other, Revision(1))
    async with source(world) as jobs:
        delivery = await taken(jobs)
        assert delivery.job() == other
        await delivery.ack()
    await emptied(world)


async def test_a_job_knows_how_long_it_has_waited(world: World) -> None:
    await world.backend.queue.publish(a_job(), Revision(1))
    await asyncio.sleep(0.3)
    async with source(world) as jobs:
        delivery = await taken(jobs)
        assert await delivery.waited_sec() >= 0.3
        await delivery.ack()


# Timers


async def due(world: World, kind: str) -> Timer:
    async with asyncio.timeout(SOON), aclosing(world.backend.timers.follow(kind)) as timers:
        async for timer in timers:
            return timer
    raise AssertionError("unreachable")


async def test_a_timer_is_due_at_its_time_with_its_key_and_payload(world: World) -> None:
    now = world.backend.shared_clock()
    await world.backend.timers.set("test", "one", now + 0.5, b"first")
    timer = await due(world, "test")
    assert world.backend.shared_clock() >= now + 0.5 - CLOCK_ERROR_SEC
    assert (timer.key, timer.payload) == ("one", b"first")
    await timer.settle()


async def test_a_timer_in_the_past_is_due_now_and_kinds_are_apart(world: World) -> None:
    await world.backend.timers.set("other", "one", world.backend.shared_clock() - 60)
    await world.backend.timers.set("test", "two", world.backend.shared_clock() - 60)
    timer = await due(world, "test")
    assert timer.key == "two"
    await timer.settle()


async def test_a_timer_that_is_set_again_is_due_once_at_its_new_time(world: World) -> None:
    now = world.backend.shared_clock()
    await world.backend.timers.set("test", "one", now + 600, b"first")
    await world.backend.timers.set("test", "one", now + 0.2, b"second")
    timer = await due(world, "test")
    assert timer.payload == b"second"
    await timer.settle()


async def test_a_timer_that_was_cleared_is_never_due(world: World) -> None:
    now = world.backend.shared_clock()
    await world.backend.timers.set("test", "one", now + 0.2)
    await world.backend.timers.clear("test", "one")
    await world.backend.timers.clear("test", "one")
    await world.backend.timers.set("test", "two", now + 0.4)
    timer = await due(world, "test")
    assert timer.key == "two"
    await timer.settle()


async def test_no_worker_gets_a_held_job(world: World) -> None:
    held = replace(a_job(), limits=(RunLimit("two", "a"),), limit_rules="rules")
    assert held.is_held
    await world.backend.queue.publish(held, Revision(1))
    assert await world.backend.queue.publish(held, Revision(1)) is False
    async with source(world) as jobs:
        assert await nothing_comes(jobs)
    [found] = await world.backend.queue.jobs()
    assert (found.run_id, found.is_held, found.is_given_up) == (held.run_id, True, False)
    stored = await world.backend.queue.held(held.run_id)
    assert stored is not None
    assert stored.job == held


async def test_held_jobs_are_removed_up_to_a_sequence(world: World) -> None:
    first = replace(a_job(), limits=(), limit_rules="")
    await world.backend.queue.publish(first, Revision(1))
    before = await world.backend.queue.held(first.run_id)
    assert before is not None
    await world.backend.queue.publish(replace(first, try_number=2, admitted_try=1), Revision(2))
    await world.backend.queue.remove_held(first.run_id, before.sequence)
    left = await world.backend.queue.held(first.run_id)
    assert left is not None
    assert left.job.try_number == 2
    await world.backend.queue.remove_held(first.run_id)
    assert await world.backend.queue.held(first.run_id) is None
    await world.backend.queue.remove_held(first.run_id)


async def test_an_admitted_job_goes_to_its_tag(world: World) -> None:
    admitted = replace(a_job(), limits=(), limit_rules="", admitted_try=1)
    await world.backend.queue.publish(admitted, Revision(1))
    async with source(world) as jobs:
        delivery = await taken(jobs)
        assert delivery.job() == admitted
        await delivery.ack()
