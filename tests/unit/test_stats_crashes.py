"""Gateways that count ended runs die between any two steps, and two count at once: each end counts once."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.domain import codec
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.domain.stats.records import (
    Bucket,
    CountPosition,
    RunEnd,
    decode_count_position,
    decode_run_end,
)
from pyoco_server.domain.stats.series import StatsQuery, series_of
from pyoco_server.errors import NotCountedYet
from pyoco_server.http_api.metrics import Metrics
from pyoco_server.memory.stores import MemoryStats, MemoryStore
from pyoco_server.usecases.concurrency import cancelled
from pyoco_server.usecases.ports.stores import Change, FeedBatch, FeedPosition, Revision
from pyoco_server.usecases.services.shared_feed import JoinedFeed, SharedFeed
from pyoco_server.usecases.stats.count import POSITION, CountedEnds, CountEnds, ends_in
from support.builders import NOW, a_snapshot
from support.crashes import Fuse, Fused, Killed
from support.seeds import shares
from support.virtual_time import virtually

STEPS = 60
"""More than a gateway takes for the runs of these tests."""
MINUTES = (0, 30, 90, 4000)
"""Seconds before now when runs end: three minutes, two hours."""


class RunBucket:
    """The run bucket as JetStream delivers it: of every key the last message, or its delete marker."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._last: dict[str, tuple[int, RunSnapshot | None]] = {}
        self._news = asyncio.Event()
        self.revision = 0
        self.created = "first"

    def put(self, run_id: str, run: RunSnapshot | None) -> int:
        self.revision += 1
        self._last[run_id] = (self.revision, run)
        self._news.set()
        return self.revision

    def get(self, run_id: str) -> tuple[int, RunSnapshot | None]:
        return self._last[run_id]

    stale_sec = missed_sec = 0.0

    async def follow(self, position: FeedPosition | None) -> AsyncGenerator[FeedBatch[RunSnapshot], None]:
        is_reset = position is None or position.stream_created != self.created or self._chance.random() < 0.2
        seen = 0 if is_reset or position is None else position.last_revision
        horizon = Revision(self.revision if is_reset else 0)
        yield FeedBatch([], self._at(seen), is_reset, is_caught_up=False, horizon=horizon)
        while True:
            left = [change for change in self._changes() if change.revision > seen]
            changes = left[: self._chance.randint(1, 4)]
            if not changes:
                self._news.clear()
                await self._news.wait()
                continue
            await asyncio.sleep(self._chance.random() / 10)
            seen = changes[-1].revision
            yield FeedBatch(changes, self._at(seen), is_reset=False, is_caught_up=changes == left)

    def _at(self, seen: int) -> FeedPosition:
        return FeedPosition(self.created, Revision(seen))

    def _changes(self) -> list[Change[RunSnapshot]]:
        found = sorted((revision, key, run) for key, (revision, run) in self._last.items())
        return [Change(key, Revision(at), run, None) for at, key, run in found]


class EndsAlone:
    """The same, as a counting gateway reads it by itself."""

    stale_sec = missed_sec = 0.0

    def __init__(self, runs: RunBucket) -> None:
        self._runs = runs

    async def follow(self, position: FeedPosition | None) -> AsyncGenerator[FeedBatch[RunEnd], None]:
        async for batch in self._runs.follow(position):
            changes = [
                Change(one.key, one.revision, None if one.value is None else _as_end(one.value), None)
                for one in batch.changes
            ]
            yield FeedBatch(
                changes, batch.position, batch.is_reset, batch.is_caught_up, horizon=batch.horizon
            )


def _as_end(run: RunSnapshot) -> RunEnd:
    return decode_run_end(codec.encode(run))


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - reproducible
        self.runs = RunBucket(self.chance)
        self.records = MemoryStats()
        self.positions: MemoryStore[CountPosition] = MemoryStore(codec.encode, decode_count_position)
        self.ended: Counter[str] = Counter()
        self.ids = 0

    def end(self) -> str:
        self.ids += 1
        run_id, at = f"run-{self.ids}", NOW - self.chance.choice(MINUTES)
        tenant = self.chance.choice(["acme", "other"])
        run = a_snapshot(RunStatus.COMPLETED, run_id=run_id, tenant_id=tenant, end_time=at)
        self.runs.put(run_id, run)
        self.ended[tenant] += 1
        return run_id

    def beat(self) -> None:
        self.runs.put("running", a_snapshot(RunStatus.RUNNING))

    async def change(self, run_id: str, *, delete: bool) -> bool:
        """Delete an ended run or link it to a retry, if that is allowed now."""
        revision, run = self.runs.get(run_id)
        if run is None or await self.positions.get(POSITION) is None:
            return False  # before counting begins, a deleted run is one that never was
        try:
            stored: Any = _Stored(run, revision)
            await CountedEnds(self.positions).require(stored, patience_sec=0)
        except NotCountedYet:
            return False
        self.runs.put(run_id, None if delete else replace(run, retried_as="later"))
        return True

    def counting(self, fuse: Fuse) -> "asyncio.Future[None]":
        """A gateway that counts until it dies."""
        records, positions = (
            _Slow(Fused(port, fuse), self.chance) for port in (self.records, self.positions)
        )
        shared = SharedFeed(self.runs)
        count = CountEnds(
            feed=JoinedFeed(shared, EndsAlone(self.runs), ends_in, max_kept=self.chance.choice([2, 1000])),
            records=records,
            positions=positions,
            clock=lambda: NOW,
            meter=Metrics(),
        )
        return asyncio.ensure_future(self._living(count, shared))

    async def _living(self, count: CountEnds, shared: SharedFeed[RunSnapshot]) -> None:
        """It reads the runs for its index, too."""
        reading = asyncio.ensure_future(self._keep_reading(shared))
        try:
            await count.run()
        finally:
            await cancelled(reading)

    async def _keep_reading(self, shared: SharedFeed[RunSnapshot]) -> None:
        """Its index is lost now and then: it begins again."""
        while True:
            async with aclosing(shared.follow(None)) as batches:
                async for _ in batches:
                    if self.chance.random() < 0.05:
                        break

    async def finished(self, counting: "asyncio.Future[None]") -> bool:
        """Whether it counted everything; False: it died."""
        last = max(
            (revision for revision, run in self.runs._last.values() if run and run.status.is_terminal),
            default=0,
        )
        while not counting.done():
            found = await self.positions.get(POSITION)
            if found is not None and (found.value.stream_created, found.value.revision >= last) == (
                self.runs.created,
                True,
            ):
                return True
            await asyncio.sleep(0.1)
        with suppress(Killed):
            counting.result()
        return False

    async def check(self) -> None:
        for bucket in Bucket:
            for tenant, ended in self.ended.items():
                stored = await self.records.between(tenant, bucket, 0, 2 * NOW)
                (series,) = series_of(StatsQuery(bucket=bucket), stored, _fail)
                assert sum(point.count for point in series.points) == ended, (bucket, tenant)


def _fail(_start: int, error: Exception) -> None:
    raise error


class _Stored:
    def __init__(self, value: RunSnapshot, revision: int) -> None:
        self.value, self.revision = value, revision


class _Slow:
    """A port whose answers may come after those of others."""

    def __init__(self, port: Fused, chance: random.Random) -> None:
        self._port = port
        self._chance = chance

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)

        async def call(*given: Any) -> Any:
            await asyncio.sleep(self._chance.random() / 5)
            return await found(*given)

        return call


async def stop(*tasks: "asyncio.Future[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("is_done", [False, True])
@virtually
async def test_wherever_a_gateway_dies_another_goes_on(*, is_done: bool) -> None:
    """Between a step and the next, what has been counted may be deleted, and more runs end."""
    died = 0
    for step in range(STEPS):
        world = World(step)
        runs = [world.end() for _ in range(6)]
        fuse = Fuse(step, is_done=is_done)
        first = world.counting(fuse)
        for number in range(4):
            world.beat()
            runs.append(world.end())
            await asyncio.sleep(world.chance.random())
            await world.change(runs[number], delete=bool(number % 2))
        await world.finished(first)
        died += fuse.is_blown
        kept = [run_id for run_id in runs if world.runs.get(run_id)[1] is not None]
        changed = [await world.change(run_id, delete=True) for run_id in kept]
        world.end()
        second = world.counting(Fuse(10_000, is_done=True))
        assert await world.finished(second)
        await stop(first, second)
        await world.check()
        if not fuse.is_blown:
            assert all(changed), "what was counted may be deleted"
            break
    assert 10 < died < STEPS


@pytest.mark.parametrize("worlds", shares(12, slow=240, long=6000, share=12))
@virtually
async def test_many_gateways_die_and_count_at_once(worlds: range) -> None:
    for seed in worlds:
        await _live(World(seed))


async def _live(world: World) -> None:
    runs, gateways = [world.end()], []
    for _ in range(60):
        what = world.chance.random()
        if what < 0.4:
            runs.append(world.end())
        elif what < 0.7:
            await world.change(world.chance.choice(runs), delete=what < 0.55)
        elif what < 0.8:
            gateways.append(world.counting(Fuse(world.chance.randint(0, 25), is_done=what < 0.75)))
        elif what < 0.82 and gateways:
            await stop(gateways.pop())
        else:
            world.beat()
        await asyncio.sleep(world.chance.random())
    last = world.counting(Fuse(100_000, is_done=True))
    assert await world.finished(last)
    await stop(last, *gateways)
    await world.check()


@virtually
async def test_an_end_that_is_not_counted_is_neither_deleted_nor_linked() -> None:
    world = World(1)
    gateway = world.counting(Fuse(10_000, is_done=True))
    world.end()
    assert await world.finished(gateway)
    await stop(gateway)
    late = world.end()
    assert not await world.change(late, delete=True)
    assert not await world.change(late, delete=False)
