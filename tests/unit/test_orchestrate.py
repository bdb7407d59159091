"""The orchestrator between its ports: what was cut off is done in the end, whoever interrupts."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.executions.events import (
    ORCHESTRATOR,
    Actor,
    ActorKind,
    Commit,
    NodeReady,
    NodeStarted,
    NodeSucceeded,
)
from pyoco_server.domain.executions.model import ExecutionStatus
from pyoco_server.domain.executions.records import (
    DispatchRun,
    ExecutionRecord,
    LoggedCommit,
    advance,
    run_id_of,
    summarise,
)
from pyoco_server.domain.runs.jobs import Job
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.errors import NatsUnavailable
from pyoco_server.http_api.metrics import Metrics
from pyoco_server.memory import MemoryGatewayBackend, open_memory_gateway_backend
from pyoco_server.memory.stores import MemoryExecutionLog
from pyoco_server.read_model.executions import SqliteExecutionIndex
from pyoco_server.read_model.runs import SqliteRunIndex
from pyoco_server.usecases.auth import ANONYMOUS
from pyoco_server.usecases.coordination import SharedClock
from pyoco_server.usecases.executions.create import NewExecution
from pyoco_server.usecases.executions.repository import ExecutionRepository
from pyoco_server.usecases.ports.stores import FeedBatch, FeedPosition, Revision
from pyoco_server.wiring.gateway import Levels, Setup
from support import virtual_time

ANN = Actor(ActorKind.USER, "ann")
CONFIG = NatsBackendConfig(audit_log_path="")
BEFORE_THE_SWEEP_SEC = 20.0
GRAPH = {"id": "g", "nodes": {"only": {"type": "task", "flow": "f"}}, "edges": []}


def loop_time() -> float:
    """The time of the virtual loop, for what asks the clock."""
    return asyncio.get_running_loop().time()


class LoopServer:
    async def now(self) -> float:
        return loop_time()


async def levels_on(backend: MemoryGatewayBackend) -> Levels:
    """On a clock that goes with the virtual loop."""
    levels = Levels(Setup(config=CONFIG, meter=Metrics()))
    clock = SharedClock(LoopServer(), wall=loop_time, monotonic=loop_time)
    await levels.connect(replace(backend, shared_clock=clock))
    return levels


@asynccontextmanager
async def orchestrating(
    backend: MemoryGatewayBackend, graph: Mapping[str, Any] = GRAPH
) -> AsyncIterator[Levels]:
    levels = await levels_on(backend)
    await levels.executions.graphs.register("g", msgspec.json.encode(graph), "application/json", ANONYMOUS)
    work = [asyncio.ensure_future(start()) for start in levels.background().values()]
    try:
        yield levels
    finally:
        for task in work:
            task.cancel()
        await asyncio.wait(work)


@asynccontextmanager
async def another(backend: MemoryGatewayBackend) -> AsyncIterator[MemoryGatewayBackend]:
    """The same stores, as another gateway sees them that knows nothing yet."""
    runs, executions = SqliteRunIndex(None, tenants=False), SqliteExecutionIndex(None, tenants=False)
    yield replace(backend, run_index=runs, execution_index=executions)
    runs.close()
    executions.close()


def logged(commit: Commit, record: ExecutionRecord) -> tuple[LoggedCommit, Revision]:
    after = advance(record, commit, 0)
    assert after is not None
    return LoggedCommit(commit, summarise(after.state)), Revision(record.log_revision)


async def has_job(backend: MemoryGatewayBackend, run_id: str) -> bool:
    """In the time that there is before a sweep gives the run up."""
    for _ in range(int(BEFORE_THE_SWEEP_SEC)):
        if run_id in await backend.queue.run_ids():
            return True
        await asyncio.sleep(1.0)
    return False


def test_a_dispatch_that_was_cut_off_is_mended_though_its_run_is_heard_of_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> bool:
        async with open_memory_gateway_backend(CONFIG) as backend, orchestrating(backend) as levels:
            publish, failures = backend.queue.publish, iter([NatsUnavailable("nats unavailable")])

            async def unanswered_once(job: Job, revision: Revision, **options: Any) -> bool:
                for failure in failures:
                    raise failure
                return await publish(job, revision, **options)

            monkeypatch.setattr(backend.queue, "publish", unanswered_once)
            await levels.executions.create(NewExecution(graph_id="g", execution_id="e"), ANONYMOUS, ANN)
            return await has_job(backend, run_id_of("e", "only", 1))

    assert virtual_time.run(main())


def test_what_another_orchestrator_has_begun_and_not_dispatched_is_dispatched() -> None:
    """It was killed behind its commit, and the one who took over hears of the commit late."""

    async def main() -> bool:
        async with open_memory_gateway_backend(CONFIG) as backend, orchestrating(backend) as levels:
            await asyncio.sleep(1.0)
            wanted = NewExecution(graph_id="g", execution_id="e", start=True)
            others = ExecutionRepository(
                backend.execution_log, backend.execution_cache, backend.execution_index
            )
            run_id = run_id_of("e", "only", 1)
            attend = levels.executions.orchestrate._react

            async def late(execution_id: str, due: Any) -> None:
                """Between the create and the first look, somebody else has looked."""
                record = await others.fresh(execution_id)
                assert record is not None
                if record.state.nodes["only"].run_id is None:
                    started = NodeStarted(node_id="only", attempt=1, run_id=run_id)
                    await backend.execution_log.append(
                        *logged(
                            Commit(
                                execution_id="e",
                                command_id="of-another",
                                first_sequence=record.state.version + 1,
                                at=record.state.updated_at,
                                actor=ORCHESTRATOR,
                                payloads=(NodeReady(node_id="only"), started),
                            ),
                            record,
                        )
                    )
                await attend(execution_id, due)

            levels.executions.orchestrate._react = late  # type: ignore[method-assign]
            await levels.executions.create(wanted, ANONYMOUS, ANN)
            return await has_job(backend, run_id)

    assert virtual_time.run(main())


def test_f6_an_execution_of_another_gateway_is_attended_though_it_was_read_here_before() -> None:
    """F6: with a feed that is behind, a client asked for it before the feed told of it."""

    async def main() -> bool:
        async with (
            open_memory_gateway_backend(CONFIG) as backend,
            orchestrating(backend) as levels,
            another(backend) as elsewhere,
        ):
            await asyncio.sleep(1.0)
            other = await levels_on(elsewhere)
            await other.executions.create(NewExecution(graph_id="g", execution_id="e"), ANONYMOUS, ANN)
            assert backend.execution_index.version("e") == 0, "the feed is behind"
            await levels.executions.read.state("e", ANONYMOUS)
            return await has_job(backend, run_id_of("e", "only", 1))

    assert virtual_time.run(main())


def test_a_run_whose_time_is_up_is_cancelled_though_the_first_cancel_was_not_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The execution has ended by then: nothing of it but its run is left to look at."""

    async def main() -> RunStatus:
        timed = {**GRAPH, "nodes": {"only": {"type": "task", "flow": "f", "timeout_sec": 5}}}
        async with (
            open_memory_gateway_backend(CONFIG) as backend,
            orchestrating(backend, timed) as levels,
        ):
            cancel, failures = levels.runs.cancel.of_system, iter([NatsUnavailable("nats unavailable")])

            async def unheard_once(*args: Any) -> Any:
                for failure in failures:
                    raise failure
                return await cancel(*args)

            monkeypatch.setattr(levels.runs.cancel, "of_system", unheard_once)
            await levels.executions.create(NewExecution(graph_id="g", execution_id="e"), ANONYMOUS, ANN)
            await asyncio.sleep(5.0 + BEFORE_THE_SWEEP_SEC)
            run = await backend.runs.get(run_id_of("e", "only", 1))
            assert run is not None
            return run.value.status

    assert virtual_time.run(main()) is RunStatus.CANCELLED


def test_who_takes_over_cancels_the_runs_that_nothing_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before died between the end of the execution and the cancel of its run."""

    async def main() -> RunStatus:
        timed = {**GRAPH, "nodes": {"only": {"type": "task", "flow": "f", "timeout_sec": 5}}}
        async with open_memory_gateway_backend(CONFIG) as backend:
            async with orchestrating(backend, timed) as dying:

                async def unheard(*_: Any) -> None:
                    raise NatsUnavailable("nats unavailable")

                monkeypatch.setattr(dying.runs.cancel, "of_system", unheard)
                await dying.executions.create(NewExecution(graph_id="g", execution_id="e"), ANONYMOUS, ANN)
                await asyncio.sleep(6.0)
                state = await dying.executions.read.state("e", ANONYMOUS)
                assert state.status is ExecutionStatus.FAILED
            async with another(backend) as living, orchestrating(living, timed):
                await asyncio.sleep(BEFORE_THE_SWEEP_SEC)
                run = await backend.runs.get(run_id_of("e", "only", 1))
        assert run is not None
        return run.value.status

    assert virtual_time.run(main()) is RunStatus.CANCELLED


class WithheldFeed:
    """A log whose feed stops delivering at a moment of the test's choice."""

    def __init__(self, plain: MemoryExecutionLog) -> None:
        self._plain = plain
        self.append = plain.append
        self.read = plain.read
        self.is_withheld = False

    async def follow(self, after: FeedPosition | None) -> AsyncGenerator[FeedBatch[LoggedCommit], None]:
        async for batch in self._plain.follow(after):
            if self.is_withheld:
                await asyncio.Event().wait()
            yield batch


TWO_TASKS = {
    "id": "g",
    "nodes": {"first": {"type": "task", "flow": "f"}, "second": {"type": "task", "flow": "f"}},
    "edges": [{"from": "first", "to": "second"}],
}


async def go_on_elsewhere(elsewhere: MemoryGatewayBackend) -> str:
    """Another orchestrator ends `first`, and begins and dispatches `second`."""
    other = await levels_on(elsewhere)
    following = asyncio.ensure_future(other.runs.limits.follow.run_definitions())
    records = ExecutionRepository(
        elsewhere.execution_log, elsewhere.execution_cache, elsewhere.execution_index
    )
    record = await records.fresh("e")
    assert record is not None
    run_id = run_id_of("e", "second", 1)
    commit = Commit(
        execution_id="e",
        command_id="of-another",
        first_sequence=record.state.version + 1,
        at=record.state.updated_at,
        actor=ORCHESTRATOR,
        payloads=(
            NodeSucceeded(node_id="first"),
            NodeReady(node_id="second"),
            NodeStarted(node_id="second", attempt=1, run_id=run_id),
        ),
    )
    after = await records.append(record, commit)
    wanted = DispatchRun(run_id=run_id, node_id="second", flow="f", tag=None, params={})
    await other.executions.orchestrate._node_work.dispatch(after.state, wanted)
    following.cancel()
    return run_id


def test_a_run_that_a_stale_state_does_not_know_is_not_cancelled() -> None:
    """D06: the runs feed reports a run that another orchestrator began; the executions feed is withheld."""

    async def main() -> RunStatus:
        async with open_memory_gateway_backend(CONFIG) as plain, another(plain) as elsewhere:
            feed = WithheldFeed(plain.execution_log)
            backend = replace(plain, execution_log=feed)  # type: ignore[arg-type]
            async with orchestrating(backend, TWO_TASKS) as levels:
                await asyncio.sleep(1.0)
                new = NewExecution(graph_id="g", execution_id="e")
                await levels.executions.create(new, ANONYMOUS, ANN)
                assert await has_job(backend, run_id_of("e", "first", 1))
                feed.is_withheld = True
                run_id = await go_on_elsewhere(elsewhere)
                await asyncio.sleep(BEFORE_THE_SWEEP_SEC)
                run = await backend.runs.get(run_id)
        assert run is not None
        return run.value.status

    assert virtual_time.run(main()) is RunStatus.PENDING


def test_a_sleep_goes_on_after_a_restart_of_the_server() -> None:
    graph = {"id": "g", "nodes": {"night": {"type": "sleep", "for_sec": 7_200}}, "edges": []}

    async def main() -> tuple[float, float]:
        async with open_memory_gateway_backend(CONFIG) as backend:
            async with orchestrating(backend, graph) as levels:
                await levels.executions.create(NewExecution(graph_id="g", execution_id="e"), ANONYMOUS, ANN)
                began = loop_time()
                await asyncio.sleep(60.0)
            async with another(backend) as elsewhere, orchestrating(elsewhere, graph) as levels:
                state = await levels.executions.read.state("e", ANONYMOUS)
                while state.status is ExecutionStatus.ACTIVE:
                    await asyncio.sleep(5.0)
                    state = await levels.executions.read.state("e", ANONYMOUS)
                assert state.completed_at is not None
                return began, state.completed_at

    began, ended = virtual_time.run(main())
    assert 7_200 <= ended - began < 7_260
