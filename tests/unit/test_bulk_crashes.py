"""A gateway dies between two steps of a bulk operation: another carries on, and nothing happens twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace as with_parts
from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.bulk import BulkAction, BulkRecord, BulkStatus
from pyoco_server.domain.dead_letters import DeadLetter, DlqReason
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.http_api.metrics import Metrics
from pyoco_server.memory import MemoryGatewayBackend, open_memory_gateway_backend
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.bulk.start import BulkRequest
from pyoco_server.usecases.executions.query import ExecutionHub
from pyoco_server.usecases.runs.watch import WatchHub
from pyoco_server.wiring.operation_level import OperationLevel, bulk_leases
from pyoco_server.wiring.run_level import ExecutionLevel, RunLevel, Setup, Tuning
from support.builders import NOW, a_snapshot
from support.crashes import Fuse, Fused, Killed

RUNS = [f"0190c0de-0000-7000-8000-{number:012d}" for number in range(5)]
CALLER = Caller()
STEPS = 80
"""More than any of these operations takes."""
PORTS = ("runs", "queue", "bulk_operations", "bulk_chunks", "letter_marks", "change_log", "dead_letters")


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


async def level_on(backend: MemoryGatewayBackend, clock: Clock) -> OperationLevel:
    setup = Setup(config=NatsBackendConfig(), meter=Metrics(), clock=clock, tuning=Tuning(bulk_batch=2))
    runs = RunLevel(backend, setup, WatchHub(10))
    executions = ExecutionLevel(backend, setup, runs, ExecutionHub(10))
    reading = [
        asyncio.ensure_future(read()) for read in (runs.limits.follow.run_definitions, runs.follow_flows.run)
    ]
    await runs.limits.follow.definitions_known()
    for task in reading:
        task.cancel()
    await asyncio.wait(reading)
    return OperationLevel(backend, setup, runs, executions, ExecutionHub(10))


async def carry_out(backend: MemoryGatewayBackend, clock: Clock, operation_id: str, holder: str) -> None:
    lease = bulk_leases(backend, holder)(operation_id)
    assert await lease.take()
    level = await level_on(backend, clock)
    await level.carry_out_bulk.carry_out(operation_id, lease)


@asynccontextmanager
async def a_world(action: BulkAction) -> AsyncIterator[tuple[MemoryGatewayBackend, Clock, list[str]]]:
    """Five items, one of which fails."""
    clock = Clock()
    async with open_memory_gateway_backend(clock=clock, monotonic=clock) as backend:
        usual = RunStatus.PENDING if action is BulkAction.CANCEL else RunStatus.FAILED
        odd = RunStatus.COMPLETED if action is BulkAction.CANCEL else RunStatus.RUNNING
        for number, run_id in enumerate(RUNS):
            run = replace(a_snapshot(odd if number == 3 else usual), run_id=run_id, tag="cpu")
            await backend.runs.create(run_id, run)
            letter = DeadLetter(timestamp=NOW, reason=DlqReason.MAX_DELIVER, error="x", run_id=run_id)
            await backend.dead_letters.publish(letter, "cpu")
        letters = [str(number + 1) for number in range(len(RUNS))]
        yield backend, clock, letters if action is BulkAction.REDRIVE else list(RUNS)


def mortal(backend: MemoryGatewayBackend, fuse: Fuse) -> MemoryGatewayBackend:
    ports: dict[str, Any] = {name: Fused(getattr(backend, name), fuse) for name in PORTS}
    return with_parts(backend, **ports)


async def statuses(backend: MemoryGatewayBackend) -> dict[str, RunStatus]:
    return {
        key: found.value.status
        for key in list(backend.runs._values)
        if (found := await backend.runs.get(key))
    }


async def check(backend: MemoryGatewayBackend, action: BulkAction, operation: BulkRecord) -> None:
    assert (operation.status, operation.total) == (BulkStatus.COMPLETED, 5)
    assert (operation.done, operation.failed, len(operation.errors)) == (4, 1, 1), operation.errors
    runs = await statuses(backend)
    new = [run_id for run_id in runs if run_id not in RUNS]
    old = [runs[run_id] for run_id in RUNS if run_id in runs]
    if action is BulkAction.CANCEL:
        assert (sorted(old), new) == (["CANCELLED"] * 4 + ["COMPLETED"], [])
    elif action is BulkAction.DELETE:
        assert (old, new) == ([RunStatus.RUNNING], [])
    else:
        assert len(new) == 4, "one new run each"
        assert sorted([job.run_id or "" for job in await backend.queue.jobs()]) == sorted(new)
    entries = [entry for _, entry in (await backend.change_log.before(None, 100)).items]
    assert sorted(entry.action for entry in entries) == ["bulk.item_failed", "bulk.start"]


@pytest.mark.parametrize("action", list(BulkAction))
async def test_another_gateway_carries_on_wherever_the_first_died(action: BulkAction) -> None:
    died = 0
    for step in range(STEPS):
        async with a_world(action) as (backend, clock, ids):
            wanted = BulkRequest(action=action, ids=tuple(ids))
            started = await (await level_on(backend, clock)).start_bulk(wanted, CALLER)
            fuse = Fuse(step, is_done=True)
            with suppress(Killed):
                await carry_out(mortal(backend, fuse), clock, started.id, "first")
            died += fuse.is_blown
            clock.now += 60
            await carry_out(backend, clock, started.id, "second")
            found = await backend.bulk_operations.get(started.id)
            assert found is not None
            await check(backend, action, found.value)
            if not fuse.is_blown:
                break
    assert 10 < died < STEPS


async def test_an_operation_is_there_with_all_its_items_or_not_at_all() -> None:
    for step in range(10):
        async with a_world(BulkAction.CANCEL) as (backend, clock, ids):
            fuse = Fuse(step, is_done=False)
            with suppress(Killed):
                level = await level_on(mortal(backend, fuse), clock)
                await level.start_bulk(BulkRequest(action=BulkAction.CANCEL, ids=tuple(ids)), CALLER)
            for operation_id in list(backend.bulk_operations._values):
                await carry_out(backend, clock, operation_id, "second")
                found = await backend.bulk_operations.get(operation_id)
                assert found is not None
                await check(backend, BulkAction.CANCEL, found.value)


async def test_a_redrive_that_died_is_repeated_as_the_same_run() -> None:
    for step in range(12):
        async with a_world(BulkAction.REDRIVE) as (backend, clock, _):
            fuse = Fuse(step, is_done=True)
            with suppress(Killed):
                await (await level_on(mortal(backend, fuse), clock)).redrive("1", CALLER)
            run_id = await (await level_on(backend, clock)).redrive("1", CALLER)
            assert {key for key in await statuses(backend) if key not in RUNS} == {run_id}
            assert [job.run_id for job in await backend.queue.jobs()] == [run_id]
