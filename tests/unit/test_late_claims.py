"""A worker that was frozen between its claim and the start of the flow checks that it still has the run."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.runs.changes import RequestCancel
from pyoco_server.domain.runs.jobs import Ending, FlowOutcome, Job, pending
from pyoco_server.domain.runs.model import RunRetry, RunSnapshot
from pyoco_server.engine.executors.pool import Prefetch
from pyoco_server.memory import MemoryBackend, open_memory_backend
from pyoco_server.memory.stores import MemoryStore
from pyoco_server.usecases.consistency import change_run
from pyoco_server.usecases.ports.stores import Revision
from pyoco_server.worker.pipeline import Handled, Pipeline, receive
from support.builders import a_job
from support.virtual_time import virtually

ACK_WAIT_SEC = 10.0
CONFIG = NatsBackendConfig(consumer_ack_wait_sec=ACK_WAIT_SEC, ack_progress_interval_sec=3.0)
RETRY = RunRetry(max_attempts=2, backoff_sec=0.0)


class Flow:
    wheels = ()

    def __init__(self, outcome: FlowOutcome) -> None:
        self._outcome = outcome

    async def outcome(self) -> FlowOutcome:
        return self._outcome

    def cancel(self) -> None:
        self._outcome = FlowOutcome(ending=Ending.CANCELLED, error="stopped")

    def go_live(self) -> None: ...
    def written(self) -> None: ...
    def kill(self) -> bool:
        return True


class Executors:
    """The first try fails, the second completes."""

    capacity = 1
    flows = None
    prefetch = Prefetch(lambda: 0.0)

    def __init__(self) -> None:
        self.started: list[int] = []

    def on_capacity_change(self, callback: Callable[[], None]) -> None: ...
    async def close(self) -> None: ...

    async def start(self, job: Job, _listener: object, _timeout_sec: float) -> Flow:
        self.started.append(job.try_number)
        is_last = job.try_number > 1 or job.retry is None
        return Flow(FlowOutcome(ending=Ending.COMPLETED if is_last else Ending.EXECUTION_ERROR, error="no"))


class Frozen(MemoryStore[RunSnapshot]):
    """The first write is stored, and its answer comes after `meanwhile`."""

    def __init__(self) -> None:
        super().__init__(codec.encode, codec.decode_run)
        self.meanwhile: Callable[[], Awaitable[Any]] | None = None

    async def update(self, key: str, value: RunSnapshot, expected: Revision) -> Revision:
        revision = await super().update(key, value, expected)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return revision


class Installation:
    """Workers on the queue of one run. No background task reports progress of a job: they are frozen."""

    def __init__(self, memory: MemoryBackend) -> None:
        self.runs = Frozen()
        self._backend = replace(memory, runs=self.runs)
        self._executors: dict[str, Executors] = {}
        self._pipelines: dict[str, Pipeline] = {}
        for name in ("frozen", "other"):
            self._executors[name] = Executors()
            self._pipelines[name] = Pipeline(
                self._backend, self._executors[name], CONFIG, lambda: 1.0, name, "instance"
            )

    async def submit(self, **fields: Any) -> str:
        job = a_job(**fields)
        await self._backend.queue.publish(job, await self.runs.create(job.run_id, pending(job)))
        return job.run_id

    async def work(self, name: str) -> Handled:
        source = await self._backend.sources.open(["default"])
        delivery = await source.next(2 * ACK_WAIT_SEC)
        assert delivery is not None
        return await self._pipelines[name].handle(receive(delivery))

    def started(self, name: str) -> list[int]:
        return self._executors[name].started


@virtually
async def test_a_claim_whose_answer_is_late_is_confirmed_and_the_flow_starts() -> None:
    async with open_memory_backend(CONFIG) as memory:
        installed = Installation(memory)
        run_id = await installed.submit()
        installed.runs.meanwhile = lambda: asyncio.sleep(ACK_WAIT_SEC + 1)
        assert (await installed.work("frozen")).ending is Ending.COMPLETED
        assert installed.started("frozen") == [1]
        stored = await installed.runs.get(run_id)
        assert stored is not None
        assert stored.revision == 4, "created, claimed, confirmed, ended"


@virtually
async def test_a_claim_that_is_answered_in_time_costs_one_write() -> None:
    async with open_memory_backend(CONFIG) as memory:
        installed = Installation(memory)
        run_id = await installed.submit()
        installed.runs.meanwhile = lambda: asyncio.sleep(ACK_WAIT_SEC - 1)
        await installed.work("frozen")
        stored = await installed.runs.get(run_id)
        assert stored is not None
        assert stored.revision == 3


@pytest.mark.parametrize(
    ("meanwhile", "ending"),
    [
        (["other"], Ending.FENCED),
        (["other", "other"], Ending.ALREADY_TERMINAL),
        (["other", "frozen"], Ending.ALREADY_TERMINAL),
    ],
    ids=["failed a try", "ended the run", "failed a try, and the worker itself had the next"],
)
@virtually
async def test_the_flow_does_not_start_when_another_worker_has_had_the_job(
    meanwhile: list[str], ending: Ending
) -> None:
    async with open_memory_backend(CONFIG) as memory:
        installed = Installation(memory)
        await installed.submit(retry=RETRY)

        async def take_over() -> None:
            await asyncio.sleep(ACK_WAIT_SEC + 1)
            for name in meanwhile:
                await installed.work(name)

        installed.runs.meanwhile = take_over
        assert (await installed.work("frozen")).ending is ending
        assert installed.started("frozen") == [2] * meanwhile.count("frozen")
        assert installed.started("other") == [1, 2][: meanwhile.count("other")]


@virtually
async def test_a_flow_whose_run_was_cancelled_before_it_started_is_stopped_at_once() -> None:
    async with open_memory_backend(CONFIG) as memory:
        installed = Installation(memory)
        run_id = await installed.submit()

        async def cancel() -> None:
            await asyncio.sleep(ACK_WAIT_SEC + 1)
            await change_run(installed.runs, run_id, RequestCancel(requested_by="me"), lambda: 2.0)

        installed.runs.meanwhile = cancel
        handled = await installed.work("frozen")
        assert (handled.ending, handled.error) == (Ending.CANCELLED, "stopped")
