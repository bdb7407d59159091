"""A gateway that dies between any two steps of a resume: the event is neither lost nor used twice."""

from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.executions import commands as c
from pyoco_server.memory import MemoryGatewayBackend, open_memory_gateway_backend
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import ANONYMOUS
from pyoco_server.usecases.events.executions import ExecutionWaits
from pyoco_server.usecases.executions.commands import CommandExecution, Writing
from pyoco_server.usecases.executions.create import CreateExecutions, NewExecution
from pyoco_server.usecases.executions.graphs import ManageGraphs
from pyoco_server.usecases.executions.repository import ExecutionRepository
from pyoco_server.usecases.values import UseValues
from pyoco_server.wiring import new_run_id
from support.crashes import Fuse, FusedBackend, Killed
from support.events import EventsLab, FakeClock, on_memory, post
from support.executions import ANN

CONFIG = NatsBackendConfig(audit_log_path="")
GRAPH = b'{"nodes": {"approve": {"type": "wait"}}, "edges": []}'
NAMED = {"execution_id": "e1", "node_id": "approve", "wait_key": "k1"}
BY_KEY = {"wait_key": "k1"}


class Quiet:
    def rejected(self, code: str) -> None:
        pass

    def execution_ended(self, status: str) -> None:
        pass


class Site:
    """A gateway: its commands on executions, and its use cases of events. Nothing runs beside them."""

    def __init__(self, backend: Any, stores: MemoryGatewayBackend, clock: FakeClock) -> None:
        records = ExecutionRepository(backend.execution_log, backend.execution_cache, backend.execution_index)
        self.graphs = ManageGraphs(stores.graphs, clock, AuditTrail(stores.change_log, clock, new_run_id))
        writing = Writing(
            records, backend.execution_log, self.graphs, clock, new_run_id, lambda _: None, Quiet()
        )
        self.command = CommandExecution(writing)
        self.create = CreateExecutions(writing, stores.claims, UseValues(stores.values))
        waits = ExecutionWaits(backend.execution_index, records, self.command, None)  # type: ignore[arg-type]
        self.lab: EventsLab = on_memory(backend, CONFIG, clock, waits=waits)

    async def begin(self, execution_id: str) -> None:
        await self.graphs.register("g", GRAPH, "application/json", ANONYMOUS)
        await self.create(NewExecution(graph_id="g", execution_id=execution_id), ANONYMOUS, ANN)

    async def let_wait(self, execution_id: str) -> None:
        for command in (
            c.MarkNodeReady(actor=ANN, node_id="approve"),
            c.StartNode(actor=ANN, node_id="approve"),
            c.PutNodeWaiting(actor=ANN, node_id="approve", wait_key="k1"),
        ):
            await self.command(execution_id, command, ANONYMOUS)


async def resumed(backend: MemoryGatewayBackend) -> list[str]:
    return [
        execution_id
        for execution_id in ("e1", "e2")
        async for logged, _ in backend.execution_log.read(execution_id)
        if logged is not None
        for event in logged.commit.events()
        if event.type == "NODE_RESUMED"
    ]


async def prepared(backend: MemoryGatewayBackend, clock: FakeClock, *, is_early: bool) -> Site:
    site = Site(backend, backend, clock)
    for execution_id in ("e1", "e2"):
        await site.begin(execution_id)
        if not is_early:
            await site.let_wait(execution_id)
            clock.advance(1)
    return site


async def steps_of(work: Any, *, is_early: bool) -> int:
    async with open_memory_gateway_backend(CONFIG) as backend:
        clock = FakeClock()
        site = await prepared(backend, clock, is_early=is_early)
        fuse = Fuse(10_000, is_done=True)
        await work(site, Site(FusedBackend(backend, fuse), backend, clock))
        return 10_000 - fuse.left


@pytest.mark.parametrize("is_done", [False, True], ids=["before the step", "after the step"])
@pytest.mark.parametrize("target", [NAMED, BY_KEY], ids=["named", "by key"])
@pytest.mark.parametrize("repeats", [True, False], ids=["the sender repeats", "nobody repeats"])
async def test_dying_while_the_node_waits(target: dict[str, Any], *, repeats: bool, is_done: bool) -> None:
    async def arrive(_: Site, dying: Site) -> None:
        await post(dying.lab, **target)

    steps = await steps_of(arrive, is_early=False)
    assert steps >= 6
    for step in range(steps):
        async with open_memory_gateway_backend(CONFIG) as backend:
            clock = FakeClock()
            site = await prepared(backend, clock, is_early=False)
            dying = Site(FusedBackend(backend, Fuse(step, is_done=is_done)), backend, clock)
            with pytest.raises(Killed):
                await arrive(site, dying)
            was_stored = bool(await backend.events.resumes.list_values()) or bool(await resumed(backend))
            after = Site(backend, backend, clock)
            await after.lab.use_cases.resume_waits.deliver_kept(check_all=True)
            if repeats:
                answer = await post(after.lab, **target)
                assert answer.resumed is not None, f"step {step}"
                assert answer.resumed.place is not None
                assert answer.resumed.place.execution_id == "e1", f"step {step}"
            is_expected = repeats or was_stored
            assert await resumed(backend) == (["e1"] if is_expected else []), f"step {step}"
            assert await backend.events.resumes.list_values() == [], f"step {step}"


@pytest.mark.parametrize("is_done", [False, True], ids=["before the step", "after the step"])
@pytest.mark.parametrize("target", [NAMED, BY_KEY], ids=["named", "by key"])
@pytest.mark.parametrize("key", ["k", None], ids=["with a key", "without"])
async def test_dying_while_a_kept_event_is_used(
    target: dict[str, Any], key: str | None, *, is_done: bool
) -> None:
    async def use(site: Site, dying: Site) -> None:
        answer = await post(site.lab, key, **target)
        assert answer.resumed is not None
        assert answer.resumed.is_kept
        for execution_id in ("e1", "e2"):
            await site.let_wait(execution_id)
            site.lab.clock.advance(1)
        await dying.lab.use_cases.resume_waits.deliver_kept(check_all=False)

    steps = await steps_of(use, is_early=True)
    assert steps >= 4
    for step in range(steps):
        async with open_memory_gateway_backend(CONFIG) as backend:
            clock = FakeClock()
            site = await prepared(backend, clock, is_early=True)
            dying = Site(FusedBackend(backend, Fuse(step, is_done=is_done)), backend, clock)
            with pytest.raises(Killed):
                await use(site, dying)
            after = Site(backend, backend, clock)
            await after.lab.use_cases.resume_waits.deliver_kept(check_all=True)
            assert await resumed(backend) == ["e1"], f"step {step}"
            assert await backend.events.resumes.list_values() == [], f"step {step}"


@pytest.mark.parametrize("is_done", [False, True], ids=["before the step", "after the step"])
async def test_dying_while_a_repeat_arrives(*, is_done: bool) -> None:
    async def repeat(site: Site, dying: Site) -> None:
        await post(site.lab, **BY_KEY)
        await post(dying.lab, **BY_KEY)

    for step in range(await steps_of(repeat, is_early=False)):
        async with open_memory_gateway_backend(CONFIG) as backend:
            clock = FakeClock()
            site = await prepared(backend, clock, is_early=False)
            with pytest.raises(Killed):
                await repeat(site, Site(FusedBackend(backend, Fuse(step, is_done=is_done)), backend, clock))
            await Site(backend, backend, clock).lab.use_cases.resume_waits.deliver_kept(check_all=True)
            assert await resumed(backend) == ["e1"], f"step {step}"
            assert await backend.events.resumes.list_values() == [], f"step {step}"


async def test_two_gateways_that_use_one_kept_event_use_it_once() -> None:
    """One has read it, the other is faster."""
    async with open_memory_gateway_backend(CONFIG) as backend:
        clock = FakeClock()
        site = await prepared(backend, clock, is_early=True)
        await post(site.lab, **BY_KEY)
        for execution_id in ("e1", "e2"):
            await site.let_wait(execution_id)
            clock.advance(1)
        slow, fast = (Site(backend, backend, clock).lab.use_cases.resume_waits for _ in range(2))
        (listed,) = await backend.events.resumes.list_values()
        await fast.deliver_kept(check_all=False)
        await slow._try(listed)
        assert await resumed(backend) == ["e1"]


async def test_an_event_that_nobody_waited_for_is_given_up_after_its_time() -> None:
    async with open_memory_gateway_backend(CONFIG) as backend:
        clock = FakeClock()
        site = await prepared(backend, clock, is_early=True)
        kept = await post(site.lab, **BY_KEY)
        resumes = site.lab.use_cases.resume_waits
        clock.advance(7 * 86_400)
        await resumes.deliver_kept(check_all=True)
        assert len(await backend.events.resumes.list_values()) == 1
        clock.advance(1)
        await resumes.deliver_kept(check_all=True)
        assert await backend.events.resumes.list_values() == []
        told = [event.record for event in backend.events.audit.events][-1]
        assert (told.event_type, told.status) == ("workflow_event_resume", "rejected")
        assert (told.details.reason_code, told.details.kept_event_id) == ("resume_expired", kept.event_id)
        anew = await post(site.lab, **BY_KEY)
        assert anew.resumed is not None
        assert not anew.resumed.is_duplicate
