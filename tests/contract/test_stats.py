"""Statistics: records by tenant and time, and the ends of runs, in memory and on JetStream."""

import asyncio
import time
from contextlib import suppress

from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.domain.stats.records import (
    Bucket,
    CountPosition,
    StatsRecord,
    Tally,
    decode_stats,
    record_key,
)
from pyoco_server.domain.stats.series import StatsQuery
from pyoco_server.http_api.metrics import Metrics
from pyoco_server.usecases.stats.count import POSITION, CountedEnds, CountEnds
from pyoco_server.usecases.stats.read import ReadStats
from pyoco_server.wiring import new_run_id
from support.backends import World
from support.builders import a_snapshot
from support.waiting import until

NOW = int(time.time()) // 3600 * 3600


def a_record(count: int) -> StatsRecord:
    tally = Tally("f", "cpu", RunStatus.FAILED, count, (1, 2, 300, 1), (7, 3))
    return StatsRecord(epoch=1, revision=9, tallies=(tally,))


async def test_records_are_read_by_tenant_and_time(world: World) -> None:
    records = world.backend.stats_records
    for tenant, bucket, start, count in (
        ("acme", Bucket.MINUTE, NOW, 1),
        ("acme", Bucket.MINUTE, NOW - 60, 2),
        ("acme", Bucket.MINUTE, NOW - 120, 3),
        ("acme", Bucket.HOUR, NOW, 4),
        ("other", Bucket.MINUTE, NOW, 5),
        (None, Bucket.MINUTE, NOW, 6),
    ):
        await records.create(record_key(tenant, bucket, start), a_record(count))
    await world.backend.count_positions.create(POSITION, CountPosition(stream_created="x"))
    acme = await records.between("acme", Bucket.MINUTE, NOW - 60, NOW + 1)
    assert [(start, decode_stats(data)) for start, data in acme] == [
        (NOW - 60, a_record(2)),
        (NOW, a_record(1)),
    ]
    everybody = await records.between(None, Bucket.MINUTE, NOW, NOW + 60)
    assert sorted(decode_stats(data).tallies[0].count for _, data in everybody) == [1, 5, 6]
    assert await records.between("acme", Bucket.HOUR, NOW - 3600, NOW) == []
    assert await records.between("nobody", Bucket.HOUR, NOW, NOW + 1) == []


async def counted(world: World, ended: int) -> dict[str, int]:
    read = ReadStats(world.backend.stats_records, world.backend.shared_clock)

    async def look() -> dict[str, int]:
        found = await read(StatsQuery(), None, time.time() + 3600)
        return {one.key: sum(point.count for point in one.points) for one in found.series}

    return await until(look, lambda counts: sum(counts.values()) == ended)


async def test_ends_are_counted_from_where_the_last_gateway_stopped(world: World) -> None:
    """Runs that ended before there were statistics, later ones, and none of them twice."""
    backend = world.backend

    async def end(status: RunStatus = RunStatus.COMPLETED) -> str:
        run_id = new_run_id()
        revision = await backend.runs.create(run_id, a_snapshot(run_id=run_id))
        ended = a_snapshot(status, run_id=run_id, end_time=time.time())
        await backend.runs.update(run_id, ended, revision)
        return run_id

    async def counting(ended: int) -> dict[str, int]:
        count = CountEnds(
            feed=backend.run_end_feed,
            records=backend.stats_records,
            positions=backend.count_positions,
            clock=backend.shared_clock,
            meter=Metrics(),
        )
        task = asyncio.ensure_future(count.run())
        try:
            return await counted(world, ended)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    first = await end()
    await backend.runs.create(running := new_run_id(), a_snapshot(RunStatus.RUNNING, run_id=running))
    assert await counting(1) == {"COMPLETED": 1}
    await end(RunStatus.FAILED)
    assert await counting(2) == {"COMPLETED": 1, "FAILED": 1}
    run = await backend.runs.get(first)
    assert run is not None
    await CountedEnds(backend.count_positions).require(run)
    await backend.runs.remove(first, run.revision)
    await end()
    assert await counting(3) == {"COMPLETED": 2, "FAILED": 1}
