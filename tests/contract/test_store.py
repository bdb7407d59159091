"""Store: every write says what it expects to replace. REQ-0011 for what is stored."""

import asyncio

import pytest

from pyoco_server.domain.runs.model import RunStatus, TaskRecord, TaskState
from pyoco_server.usecases.ports.stores import Revision, WrongRevision
from support.backends import World, Worlds
from support.builders import OWNER, RUN_ID, a_snapshot, a_worker


async def test_what_was_created_is_read_with_its_revision(world: World) -> None:
    revision = await world.backend.runs.create(RUN_ID, a_snapshot())
    stored = await world.backend.runs.get(RUN_ID)
    assert stored is not None
    assert (stored.value, stored.revision) == (a_snapshot(), revision)


async def test_a_key_that_nobody_wrote_is_none(world: World) -> None:
    assert await world.backend.runs.get(RUN_ID) is None


@pytest.mark.parametrize("key", ["", ".", "a..b", "*", ">", "a b", "\r\nPUB x 0\r\n", "x" * 20_000, "\ud800"])
async def test_what_cannot_be_a_key_has_no_value(world: World, key: str) -> None:
    await world.backend.runs.create(RUN_ID, a_snapshot())
    assert await world.backend.runs.get(key) is None


async def test_a_key_that_exists_cannot_be_created(world: World) -> None:
    await world.backend.runs.create(RUN_ID, a_snapshot())
    with pytest.raises(WrongRevision):
        await world.backend.runs.create(RUN_ID, a_snapshot(RunStatus.RUNNING))
    stored = await world.backend.runs.get(RUN_ID)
    assert stored is not None
    assert stored.value.status is RunStatus.PENDING


async def test_an_update_replaces_the_value_it_expects(world: World) -> None:
    first = await world.backend.runs.create(RUN_ID, a_snapshot())
    second = await world.backend.runs.update(RUN_ID, a_snapshot(RunStatus.RUNNING), first)
    stored = await world.backend.runs.get(RUN_ID)
    assert stored is not None
    assert (stored.value.status, stored.revision) == (RunStatus.RUNNING, second)
    assert second > first


async def test_an_update_of_a_value_that_changed_is_refused(world: World) -> None:
    first = await world.backend.runs.create(RUN_ID, a_snapshot())
    await world.backend.runs.update(RUN_ID, a_snapshot(RunStatus.RUNNING), first)
    with pytest.raises(WrongRevision):
        await world.backend.runs.update(RUN_ID, a_snapshot(RunStatus.FAILED), first)
    stored = await world.backend.runs.get(RUN_ID)
    assert stored is not None
    assert stored.value.status is RunStatus.RUNNING


async def test_an_update_of_a_key_that_does_not_exist_is_refused(world: World) -> None:
    with pytest.raises(WrongRevision):
        await world.backend.runs.update(RUN_ID, a_snapshot(), Revision(7))


async def test_of_two_updates_at_once_exactly_one_succeeds(world: World) -> None:
    first = await world.backend.runs.create(RUN_ID, a_snapshot())
    answers = await asyncio.gather(
        *(world.backend.runs.update(RUN_ID, a_snapshot(status), first) for status in RunStatus),
        return_exceptions=True,
    )
    assert sorted(isinstance(answer, WrongRevision) for answer in answers) == [False, *[True] * 5]


@pytest.mark.parametrize("knows_revision", [True, False])
async def test_what_was_removed_is_gone(world: World, *, knows_revision: bool) -> None:
    revision = await world.backend.runs.create(RUN_ID, a_snapshot())
    await world.backend.runs.remove(RUN_ID, revision if knows_revision else None)
    assert await world.backend.runs.get(RUN_ID) is None


async def test_a_value_that_changed_is_not_removed(world: World) -> None:
    first = await world.backend.runs.create(RUN_ID, a_snapshot())
    await world.backend.runs.update(RUN_ID, a_snapshot(RunStatus.RUNNING), first)
    with pytest.raises(WrongRevision):
        await world.backend.runs.remove(RUN_ID, first)
    assert await world.backend.runs.get(RUN_ID) is not None


async def test_removing_whatever_is_there_is_fine_when_nothing_is(world: World) -> None:
    await world.backend.runs.remove(RUN_ID, None)
    await world.backend.runs.remove(RUN_ID, None)
    assert await world.backend.runs.get(RUN_ID) is None


async def test_a_removed_key_can_be_created_again(world: World) -> None:
    first = await world.backend.runs.create(RUN_ID, a_snapshot())
    await world.backend.runs.remove(RUN_ID, first)
    second = await world.backend.runs.create(RUN_ID, a_snapshot(RunStatus.RUNNING))
    assert second > first
    with pytest.raises(WrongRevision):
        await world.backend.runs.create(RUN_ID, a_snapshot())


async def test_an_update_of_a_removed_value_is_refused(world: World) -> None:
    first = await world.backend.runs.create(RUN_ID, a_snapshot())
    await world.backend.runs.remove(RUN_ID, first)
    with pytest.raises(WrongRevision):
        await world.backend.runs.update(RUN_ID, a_snapshot(), first)


async def test_keys_do_not_see_each_other(world: World) -> None:
    await world.backend.workers.create("host.one", a_worker(worker_id="host.one"))
    await world.backend.workers.create("host.two", a_worker(worker_id="host.two"))
    one = await world.backend.workers.get("host.one")
    assert one is not None
    assert one.value.worker_id == "host.one"
    assert await world.backend.workers.get("host") is None


async def test_a_snapshot_that_is_too_large_is_stored_without_its_records(new_world: Worlds) -> None:
    """REQ-0011, PYOCO_MAX_RUN_SNAPSHOT_BYTES"""
    world = await new_world(max_run_snapshot_bytes=2_048)
    record = TaskRecord(state=TaskState.SUCCEEDED, output="x" * 5_000)
    snapshot = a_snapshot(
        RunStatus.RUNNING, OWNER, tasks={"t": TaskState.SUCCEEDED}, task_records={"t": record}
    )
    await world.backend.runs.create(RUN_ID, snapshot)
    stored = await world.backend.runs.get(RUN_ID)
    assert stored is not None
    assert stored.value.tasks == {"t": TaskState.SUCCEEDED}
    assert stored.value.task_records == {"t": TaskRecord(state=TaskState.SUCCEEDED)}
    assert stored.value.task_records_truncated


async def test_a_snapshot_that_cannot_be_made_small_enough_is_stored_all_the_same(new_world: Worlds) -> None:
    """A run whose end could not be written would be RUNNING for ever."""
    world = await new_world(max_run_snapshot_bytes=1_024)
    await world.backend.runs.create(RUN_ID, a_snapshot(params={"big": "x" * 5_000}))
    stored = await world.backend.runs.get(RUN_ID)
    assert stored is not None
    assert stored.value.params == {"big": "x" * 5_000}
