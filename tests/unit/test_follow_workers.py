"""F9: whether a worker is alive is not decided by comparing its clock with ours."""

import asyncio
from collections.abc import AsyncGenerator

from msgspec.structs import replace

from pyoco_server.domain.fleet import WorkerRecord
from pyoco_server.usecases.fleet import FollowWorkers
from pyoco_server.usecases.ports.stores import Change, FeedBatch, FeedPosition, Revision
from support.builders import NOW, a_worker

WORKER = a_worker(last_seen_at=NOW - 300)
"""Its clock is five minutes behind."""


class Told:
    """A feed that has said what it had to say."""

    def __init__(self, *changes: Change[WorkerRecord]) -> None:
        self._changes = [*changes]

    stale_sec = 0.0
    missed_sec = 0.0

    async def follow(self, position: FeedPosition | None) -> AsyncGenerator[FeedBatch[WorkerRecord], None]:
        yield FeedBatch(self._changes, FeedPosition("x", Revision(9)), is_reset=True, is_caught_up=True)
        await asyncio.Event().wait()


async def followed(*changes: Change[WorkerRecord], clock: float, store_clock: float) -> FollowWorkers:
    workers = FollowWorkers(Told(*changes), lambda: clock, lambda: store_clock)
    following = asyncio.ensure_future(workers.run())
    while not workers.is_caught_up:  # noqa: ASYNC110
        await asyncio.sleep(0)
    following.cancel()
    return workers


def written(record: WorkerRecord, at: float | None, revision: int = 1) -> Change[WorkerRecord]:
    return Change(record.worker_id, Revision(revision), record, None, at)


async def test_silence_is_measured_by_the_clock_of_the_store() -> None:
    workers = await followed(written(WORKER, NOW), clock=NOW + 900, store_clock=NOW + 3)
    assert workers.silent_for(WORKER) == 3


async def test_what_others_write_into_a_record_is_no_sign_of_life() -> None:
    hidden = replace(WORKER, hidden=True)
    workers = await followed(
        written(WORKER, NOW), written(hidden, NOW + 60, 2), clock=NOW, store_clock=NOW + 61
    )
    assert workers.silent_for(workers.records[WORKER.worker_id]) == 61


async def test_a_store_that_has_no_times_leaves_the_word_of_the_worker() -> None:
    workers = await followed(written(WORKER, None), clock=NOW, store_clock=NOW + 999)
    assert workers.silent_for(WORKER) == 300


async def test_a_worker_that_is_removed_is_forgotten() -> None:
    gone: Change[WorkerRecord] = Change(WORKER.worker_id, Revision(2), None, None)
    workers = await followed(written(WORKER, NOW), gone, clock=NOW, store_clock=NOW)
    assert workers.records == {}


async def test_time_without_contact_is_no_silence_of_the_workers() -> None:
    """D30: after an outage of the store every worker was shown as disconnected."""
    feed = Told(written(WORKER, NOW))
    workers = FollowWorkers(feed, lambda: NOW, lambda: NOW + 63)
    following = asyncio.ensure_future(workers.run())
    while not workers.is_caught_up:  # noqa: ASYNC110
        await asyncio.sleep(0)
    following.cancel()
    assert workers.silent_for(WORKER) == 63
    feed.stale_sec = 60.0
    assert workers.silent_for(WORKER) == 3, "while it lasts"
    feed.stale_sec, feed.missed_sec = 0.0, 60.0
    assert workers.silent_for(WORKER) == 3, "and after it"
