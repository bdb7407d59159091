"""What a session writes: progress that no heartbeat replaces, and an end that always fits."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from pyoco_server.domain import codec
from pyoco_server.domain.runs.changes import Claim
from pyoco_server.domain.runs.jobs import Ending, FlowOutcome, FlowProgress, pending
from pyoco_server.domain.runs.model import Owner, RunSnapshot, RunStatus, TaskState
from pyoco_server.errors import NatsUnavailable, SnapshotTooLarge
from pyoco_server.memory import open_memory_backend
from pyoco_server.memory.stores import MemoryStore
from pyoco_server.usecases.consistency import change_run
from pyoco_server.usecases.ports.stores import Revision, Versioned
from pyoco_server.wiring.backends import encode_within
from pyoco_server.worker.session import RunSession
from support.builders import a_job

TIMEOUT_SEC = 20.0
PROGRESS = FlowProgress({"first": TaskState.RUNNING})


class GatedRuns(MemoryStore[RunSnapshot]):
    """Its writes wait for the gate; then `failures` of them fail."""

    def __init__(self) -> None:
        super().__init__(codec.encode, codec.decode_run)
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_writing = asyncio.Event()
        self.failures = 0

    async def update(self, key: str, value: RunSnapshot, expected: Revision) -> Revision:
        self.is_writing.set()
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise NatsUnavailable
        return await super().update(key, value, expected)


class Signals:
    """Keeps the callback, for the test to call."""

    def __init__(self) -> None:
        self.foreign_write: asyncio.Future[Callable[[], None]] = asyncio.get_running_loop().create_future()

    async def on_foreign_write(
        self, _run_id: str, callback: Callable[[], None]
    ) -> Callable[[], Awaitable[None]]:
        self.foreign_write.set_result(callback)

        async def stop() -> None:
            pass

        return stop


class Flow:
    wheels = ()

    def __init__(self) -> None:
        self.ended: asyncio.Future[FlowOutcome] = asyncio.get_running_loop().create_future()
        self.report_is_written = asyncio.Event()

    async def outcome(self) -> FlowOutcome:
        return await self.ended

    def cancel(self) -> None:
        pass

    def go_live(self) -> None:
        pass

    def written(self) -> None:
        self.report_is_written.set()

    def kill(self) -> bool:
        return True


@pytest.mark.parametrize("failures", [0, 1])
@pytest.mark.parametrize("is_report_first", [False, True])
async def test_a_heartbeat_does_not_replace_a_progress_report(
    failures: int, *, is_report_first: bool
) -> None:
    async with open_memory_backend() as memory:
        runs, signals, flow = GatedRuns(), Signals(), Flow()
        backend = replace(memory, runs=runs, run_signals=signals)  # type: ignore[arg-type]
        job, owner = a_job(), Owner("w", "i", 1)
        await runs.create(job.run_id, pending(job))
        claimed = await change_run(runs, job.run_id, Claim(owner, 1), lambda: 1.0)
        assert isinstance(claimed, Versioned)
        session = RunSession(backend, lambda: 2.0, owner, claimed, grace=1.0)
        following = asyncio.ensure_future(session.follow(flow))
        async with asyncio.timeout(TIMEOUT_SEC):
            foreign_write = await signals.foreign_write
            runs.is_writing.clear()
            runs.gate.clear()
            runs.failures = failures
            if is_report_first:
                session.progressed(PROGRESS)
            else:
                foreign_write()
            await runs.is_writing.wait()
            if not is_report_first:
                session.progressed(PROGRESS)
            foreign_write()
            runs.gate.set()
            await flow.report_is_written.wait()
            flow.ended.set_result(FlowOutcome(ending=Ending.COMPLETED))
            await following
        stored = await runs.get(job.run_id)
        assert stored is not None
        assert stored.value.tasks == PROGRESS.tasks


MESSAGE_BYTES = 20_000


class NarrowRuns(MemoryStore[RunSnapshot]):
    """Its server takes messages of 20 kB."""

    def __init__(self) -> None:
        super().__init__(partial(encode_within, MESSAGE_BYTES), codec.decode_run)

    async def update(self, key: str, value: RunSnapshot, expected: Revision) -> Revision:
        if len(encode_within(MESSAGE_BYTES, value)) > MESSAGE_BYTES:
            raise SnapshotTooLarge
        return await super().update(key, value, expected)


@pytest.mark.parametrize(("result", "is_kept"), [({"last": "x"}, True), ({"last": "x" * 30_000}, False)])
async def test_a_run_with_too_many_tasks_for_a_message_keeps_its_result_or_a_mark(
    result: dict[str, Any], *, is_kept: bool
) -> None:
    tasks = {f"task number {number}": TaskState.SUCCEEDED for number in range(2_000)}
    async with open_memory_backend() as memory:
        runs = NarrowRuns()
        job, owner = a_job(), Owner("w", "i", 1)
        await runs.create(job.run_id, pending(job))
        claimed = await change_run(runs, job.run_id, Claim(owner, 1), lambda: 1.0)
        assert isinstance(claimed, Versioned)
        session = RunSession(replace(memory, runs=runs), lambda: 2.0, owner, claimed, grace=1.0)
        async with asyncio.timeout(TIMEOUT_SEC):
            await session.conclude(
                FlowOutcome(ending=Ending.COMPLETED, progress=FlowProgress(tasks), result=result)
            )
        stored = await runs.get(job.run_id)
    assert stored is not None
    found = stored.value
    assert (found.status, found.tasks, found.task_records_truncated) == (RunStatus.COMPLETED, {}, True)
    assert (found.result, found.result_truncated) == ((result, False) if is_kept else (None, True))
    assert bool(found.warnings) is not is_kept
