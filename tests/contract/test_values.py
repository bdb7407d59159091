"""Large values in their store, and the sweep that removes them: in memory and on JetStream."""

import hashlib
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from pyoco_server.domain.large_values import (
    ARTIFACT,
    JSON,
    ByteRange,
    owned_as_artifact,
    owned_by_execution,
    owned_by_run,
)
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.errors import ValueNotFound
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.ports.stores import Change, FeedPosition, Revision
from pyoco_server.usecases.values import ReadValue, SweepValues
from support.backends import World
from support.builders import RUN_ID, a_snapshot

OTHER_RUN = RUN_ID[:-1] + ("0" if RUN_ID[-1] != "0" else "1")
DATA = bytes(range(256)) * 2_000
SHA256 = hashlib.sha256(DATA).hexdigest()


async def pieces(data: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def content(world: World, sha256: str, tenant_id: str | None = None) -> bytes | None:
    found = await world.backend.values.find(tenant_id, sha256)
    return None if found is None else b"".join([part async for part in world.backend.values.read(found)])


async def test_a_value_is_found_by_its_hash_and_read_in_pieces(world: World) -> None:
    stored = await world.backend.values.put(None, owned_by_run(RUN_ID), JSON, pieces(DATA))
    assert (stored.sha256, stored.size, stored.type) == (SHA256, len(DATA), JSON)
    assert await content(world, SHA256) == DATA
    assert await content(world, "0" * 64) is None


async def test_a_hash_opens_nothing_of_another_tenant(world: World) -> None:
    values = world.backend.values
    await values.put("acme", owned_by_run(RUN_ID), JSON, pieces(DATA))
    assert await content(world, SHA256, "acme") == DATA
    for stranger in ("other", None):
        assert await values.find(stranger, SHA256) is None
    read = ReadValue(values)
    with pytest.raises(ValueNotFound):
        await read.find(SHA256, Caller(tenant_id="other"))
    assert (await read.find(f"sha256:{SHA256}", Caller(tenant_id="acme"))).sha256 == SHA256
    assert (await read.find(SHA256, Caller())).sha256 == SHA256, "without auth there are no tenants"


async def test_the_same_content_of_one_tenant_is_stored_once(world: World) -> None:
    values = world.backend.values
    first = await values.put("acme", owned_by_run(RUN_ID), JSON, pieces(DATA))
    again = await values.put("acme", owned_by_run(OTHER_RUN), JSON, pieces(DATA, 70_000))
    theirs = await values.put("other", owned_by_run(OTHER_RUN), JSON, pieces(DATA))
    assert first.content == again.content != theirs.content
    assert sorted((use.tenant, use.owner) for use in await values.uses()) == sorted(
        [
            ("acme", owned_by_run(RUN_ID)),
            ("acme", owned_by_run(OTHER_RUN)),
            ("other", owned_by_run(OTHER_RUN)),
        ]
    )


async def test_a_value_remains_until_its_last_use_is_released(world: World) -> None:
    values = world.backend.values
    await values.put(None, owned_by_run(RUN_ID), JSON, pieces(DATA))
    await values.put(None, owned_by_run(OTHER_RUN), JSON, pieces(DATA))
    first, last = await values.uses()
    await values.release(first)
    assert await values.collect(0.0) == 0
    assert await content(world, SHA256) == DATA
    await values.release(last)
    assert await values.find(None, SHA256) is None
    assert await values.collect(3600.0) == 0, "an upload may be under way"
    assert await values.collect(0.0) == 1
    assert await values.collect(0.0) == 0


async def test_an_upload_that_fails_leaves_no_value(world: World) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield DATA
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="gone"):
        await world.backend.values.put(None, owned_by_run(RUN_ID), JSON, broken())
    assert await world.backend.values.uses() == []
    assert await world.backend.values.collect(0.0) == 0


@pytest.mark.parametrize("wanted", [(0, 1), (99_999, 100_001), (131_071, 262_145), (511_999, 512_000)])
async def test_a_range_is_read_without_the_rest(world: World, wanted: tuple[int, int]) -> None:
    stored = await world.backend.values.put(None, owned_by_run(RUN_ID), JSON, pieces(DATA))
    read = ReadValue(world.backend.values)
    parts = [part async for part in read.read(stored, ByteRange(*wanted))]
    assert b"".join(parts) == DATA[slice(*wanted)]


async def test_a_sweep_removes_values_whose_runs_are_gone_and_no_others(world: World) -> None:
    values, index = world.backend.values, world.backend.run_index
    for run_id in (RUN_ID, OTHER_RUN):
        await values.put(None, owned_by_run(run_id), JSON, pieces(DATA + run_id.encode()))
    known = replace(a_snapshot(RunStatus.COMPLETED), run_id=OTHER_RUN)
    index.apply([Change(OTHER_RUN, Revision(1), known, None)], FeedPosition("created", Revision(1)))
    young = SweepValues(values, index, world.backend.execution_index, 1.0)
    for _ in range(3):
        await young.sweep()
    assert len(await values.uses()) == 2, "a gateway may not have seen these runs yet"

    sweep = SweepValues(values, index, world.backend.execution_index, 1.0, settled_sec=-1.0, upload_sec=-1.0)
    await sweep.sweep()
    assert len(await values.uses()) == 2, "only what was unneeded twice is removed"
    await sweep.sweep()
    assert [use.owner for use in await values.uses()] == [owned_by_run(OTHER_RUN)]
    assert await content(world, hashlib.sha256(DATA + RUN_ID.encode()).hexdigest()) is None
    assert await content(world, hashlib.sha256(DATA + OTHER_RUN.encode()).hexdigest()) is not None
    assert await values.collect(-1.0) == 0, "the sweep removed the content, too"


async def test_a_value_may_have_more_users_that_never_uploaded_it(world: World) -> None:
    values, execution = world.backend.values, owned_by_execution("e-1")
    assert await values.use("acme", execution, SHA256) is None, "nobody has it"
    stored = await values.put("acme", owned_by_run(RUN_ID), JSON, pieces(DATA))
    assert await values.use("other", execution, SHA256) is None, "another tenant's"
    for _ in range(2):
        assert await values.use("acme", execution, SHA256) == stored
    first = next(use for use in await values.uses() if use.owner == owned_by_run(RUN_ID))
    await values.release(first)
    assert await values.collect(-1.0) == 0
    assert await content(world, SHA256, "acme") == DATA
    await values.withdraw("acme", execution, SHA256)
    assert await values.use("acme", owned_by_run(RUN_ID), SHA256) is None, "its content is gone"


async def test_a_sweep_keeps_the_values_of_executions_until_they_are_deleted(world: World) -> None:
    values, executions = world.backend.values, KnownExecutions()
    await values.put(None, owned_by_execution("e-1"), JSON, pieces(DATA))
    await values.put(None, "newer.1", JSON, pieces(DATA[1:]))
    sweep = SweepValues(values, world.backend.run_index, executions, 1.0, settled_sec=-1.0, upload_sec=-1.0)
    for _ in range(3):
        await sweep.sweep()
    assert await content(world, SHA256) == DATA
    executions.deleted.add("e-1")
    for _ in range(2):
        await sweep.sweep()
    assert [use.owner for use in await values.uses()] == ["newer.1"], "of a kind that a newer version has"
    assert await content(world, SHA256) is None


class KnownExecutions:
    def __init__(self) -> None:
        self.deleted: set[str] = set()

    def version(self, execution_id: str) -> int:
        return 1 if execution_id == "e-1" else 0

    def is_deleted(self, execution_id: str) -> bool:
        return execution_id in self.deleted


async def test_content_that_an_owner_gives_up_stays_for_others(world: World) -> None:
    values, owner = world.backend.values, owned_as_artifact(RUN_ID)
    await values.put("acme", owner, JSON, pieces(DATA))
    await values.put("acme", owned_by_run(OTHER_RUN), JSON, pieces(DATA))
    await values.put("acme", owner, JSON, pieces(DATA[1:]))
    await values.put("acme", owned_as_artifact(OTHER_RUN), JSON, pieces(DATA[1:]))
    await values.put("other", owner, JSON, pieces(DATA[:5]))
    assert await values.bytes_used("acme", ARTIFACT) == 2 * len(DATA) - 1, "equal content counts once"
    await values.withdraw("acme", owner, SHA256)
    await values.withdraw("acme", owner, SHA256)
    assert await values.bytes_used("acme", ARTIFACT) == len(DATA) - 1
    assert await content(world, SHA256, "acme") == DATA, "a value of another run"
    await values.withdraw("acme", owned_by_run(OTHER_RUN), SHA256)
    assert await content(world, SHA256, "acme") is None
    again = await values.put("acme", owner, JSON, pieces(DATA))
    assert again.sha256 == SHA256
    assert await content(world, SHA256, "acme") == DATA, "no use names what was given up"
