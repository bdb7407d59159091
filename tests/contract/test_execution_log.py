"""The logs of executions: a commit is there once, whole, and behind the one its writer knew."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace
from nats.aio.msg import Msg

from pyoco_server.domain.executions.events import (
    Actor,
    ActorKind,
    Commit,
    ExecutionCreated,
    ExecutionStarted,
    NodeCreated,
    Payload,
)
from pyoco_server.domain.executions.records import LoggedCommit, advance, summarise, tombstone
from pyoco_server.jetstream import executions
from pyoco_server.jetstream.executions import JetStreamExecutionLog
from pyoco_server.usecases.ports.gateway import BEGINNING
from pyoco_server.usecases.ports.stores import Revision, WrongRevision
from support.backends import World
from support.builders import NOW
from support.waiting import until

CREATED: tuple[Payload, ...] = (
    ExecutionCreated(graph_id="g", graph_version=1, input={"ym": "2026-11"}),
    NodeCreated(node_id="only", node_type="task"),
)


def a_commit(
    command_id: str, payloads: tuple[Payload, ...] = CREATED, first: int = 1, of: str = "exec-1"
) -> LoggedCommit:
    commit = Commit(
        execution_id=of,
        command_id=command_id,
        first_sequence=first,
        at=NOW,
        actor=Actor(ActorKind.USER, "somebody"),
        payloads=payloads,
    )
    created = replace(commit, payloads=CREATED, first_sequence=1)
    record = advance(None, created, 1)
    assert record is not None
    return LoggedCommit(commit, summarise(record.state))


async def all_of(world: World, execution_id: str, after: Revision = BEGINNING) -> list[str]:
    return [
        "unreadable" if logged is None else logged.commit.command_id
        async for logged, _ in world.backend.execution_log.read(execution_id, after)
    ]


async def test_a_commit_is_read_as_it_was_written(world: World) -> None:
    logged = a_commit("c-1")
    revision = await world.backend.execution_log.append(logged, BEGINNING)
    read = [entry async for entry in world.backend.execution_log.read("exec-1")]
    assert read == [(logged, revision)]


async def test_an_execution_that_nobody_made_has_an_empty_log(world: World) -> None:
    assert await all_of(world, "nobody") == []


async def test_a_commit_behind_another_one_than_its_writer_knew_is_refused(world: World) -> None:
    log = world.backend.execution_log
    first = await log.append(a_commit("c-1"), BEGINNING)
    with pytest.raises(WrongRevision):
        await log.append(a_commit("c-2"), BEGINNING)
    await log.append(a_commit("c-3", (ExecutionStarted(),), 3), first)
    with pytest.raises(WrongRevision):
        await log.append(a_commit("c-4", (ExecutionStarted(),), 3), first)
    assert await all_of(world, "exec-1") == ["c-1", "c-3"]


async def test_f6_a_command_that_was_decided_twice_is_logged_as_it_was_decided_first(world: World) -> None:
    """F6: its first answer was lost, its repeat was decided later: that must not be told it was written.

    The server answers a known message id with the place of the first message, whatever is in the second; in
    a cluster it does so before it looks at the expected sequence.
    """
    log = world.backend.execution_log
    if not isinstance(log, JetStreamExecutionLog):
        pytest.skip("memory has no message ids")
    first = a_commit("c-1")
    revision = await log.append(first, BEGINNING)
    later = LoggedCommit(replace(first.commit, at=NOW + 9), first.summary)
    with pytest.raises(WrongRevision):
        await log.append(later, revision)
    assert await log.append(first, revision) == revision
    assert [entry async for entry in log.read("exec-1")] == [(first, revision)]


async def test_of_many_writers_at_once_exactly_one_is_first(world: World) -> None:
    log = world.backend.execution_log
    answers = await asyncio.gather(
        *(log.append(a_commit(f"c-{n}"), BEGINNING) for n in range(10)), return_exceptions=True
    )
    assert sum(isinstance(answer, int) for answer in answers) == 1
    assert sum(isinstance(answer, WrongRevision) for answer in answers) == 9


async def test_logs_of_two_executions_do_not_mix(world: World) -> None:
    log = world.backend.execution_log
    first = await log.append(a_commit("c-1"), BEGINNING)
    await log.append(a_commit("c-2", of="exec-2"), BEGINNING)
    await log.append(a_commit("c-3", (ExecutionStarted(),), 3), first)
    assert await all_of(world, "exec-1") == ["c-1", "c-3"]
    assert await all_of(world, "exec-2") == ["c-2"]


async def test_a_reader_goes_on_where_it_stopped(world: World) -> None:
    log = world.backend.execution_log
    first = await log.append(a_commit("c-1"), BEGINNING)
    assert await all_of(world, "exec-1", first) == []
    await log.append(a_commit("c-2", (ExecutionStarted(),), 3), first)
    assert await all_of(world, "exec-1", first) == ["c-2"]


async def test_a_feed_begins_with_the_last_commit_of_each_execution(world: World) -> None:
    log = world.backend.execution_log
    first = await log.append(a_commit("c-1"), BEGINNING)
    await log.append(a_commit("c-2", (ExecutionStarted(),), 3), first)
    await log.append(a_commit("c-3", of="exec-2"), BEGINNING)
    seen: dict[str, str] = {}
    async for batch in world.backend.execution_feed.follow(None):
        for change in batch.changes:
            assert change.value is not None
            seen[change.key] = change.value.commit.command_id
        if batch.is_caught_up:
            break
    assert seen == {"exec-1": "c-2", "exec-2": "c-3"}


async def test_f6_a_replica_that_is_behind_hides_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several replicas any of them answers a scan, also one that has not heard of the execution."""

    async def of_one_that_is_behind(*_: object, **__: object) -> AsyncIterator[Msg]:
        behind: list[Msg] = []
        for message in behind:
            yield message

    log = world.backend.execution_log
    if not isinstance(log, JetStreamExecutionLog):
        pytest.skip("memory has no replicas")
    first = await log.append(a_commit("c-1"), BEGINNING)
    second = await log.append(a_commit("c-2", (ExecutionStarted(),), 3), first)
    monkeypatch.setattr(executions, "scan", of_one_that_is_behind)
    monkeypatch.setattr(log, "_is_replicated", True)
    assert [revision async for _, revision in log.read("exec-1")] == [first, second]
    assert [revision async for _, revision in log.read("exec-1", first)] == [second]
    assert [found async for found in log.read("exec-2")] == []


async def test_a_deleted_execution_leaves_one_commit_that_keeps_its_id_taken(world: World) -> None:
    log = world.backend.execution_log
    first = await log.append(a_commit("c-1"), BEGINNING)
    await log.append(a_commit("c-9", of="exec-2"), BEGINNING)
    record = advance(None, a_commit("c-1").commit, first)
    assert record is not None
    last = tombstone(record, Actor(ActorKind.USER, "somebody"), NOW)
    with pytest.raises(WrongRevision):
        await log.bury(last, Revision(first + 9))
    await log.bury(last, first)
    assert await all_of(world, "exec-1") == ["c-1", "delete-exec-1"]
    await log.erase("exec-1")
    await log.erase("exec-1")
    ((kept, _),) = [entry async for entry in log.read("exec-1")]
    assert kept == last
    assert await all_of(world, "exec-2") == ["c-9"]
    with pytest.raises(WrongRevision):
        await log.append(a_commit("c-2"), BEGINNING)


async def test_the_id_of_an_expired_execution_is_free_after_a_while(world: World) -> None:
    """In memory it stays taken: nothing expires there."""
    log = world.backend.execution_log
    first = await log.append(a_commit("c-1"), BEGINNING)
    record = advance(None, a_commit("c-1").commit, first)
    assert record is not None
    await log.bury(tombstone(record, Actor(ActorKind.SYSTEM, "x"), NOW), first, ttl_sec=1.0)
    await log.erase("exec-1")
    if isinstance(log, JetStreamExecutionLog):
        await until(lambda: all_of(world, "exec-1"), lambda found: found == [])
