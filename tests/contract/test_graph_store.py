"""Graphs: the pages of newest versions, in memory and on JetStream."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.domain.executions.graph_versions import NO_TENANT, GraphRecord, newest_key, version_key
from pyoco_server.memory import open_memory_gateway_backend
from pyoco_server.usecases.ports.runs import GraphStore
from pyoco_server.usecases.ports.stores import Revision
from pyoco_server.wiring import open_gateway_backend
from support.builders import NOW
from support.nats_server import delete_streams_of, unique_config

START = Revision(0)


@pytest.fixture(params=["memory", "jetstream"])
async def graphs(request: pytest.FixtureRequest) -> AsyncIterator[GraphStore]:
    if request.param == "memory":
        async with open_memory_gateway_backend() as memory:
            yield memory.graphs
        return
    config = unique_config(request.getfixturevalue("nats_server").url)
    async with open_gateway_backend(config) as backend:
        yield backend.graphs
    await delete_streams_of(config)


def record(graph_id: str, version: int = 1, tenant_id: str | None = None) -> GraphRecord:
    definition: dict[str, Any] = {"id": graph_id, "nodes": {"a": {"type": "fork"}}, "edges": []}
    return GraphRecord(
        graph_id=graph_id,
        version=version,
        sha256="0" * 64,
        registered_at=NOW,
        registered_by="anonymous",
        tenant_id=tenant_id,
        definition=definition,
    )


async def names(
    graphs: GraphStore, tenant: str = NO_TENANT, after: Revision = START, limit: int = 10
) -> list[str]:
    return [stored.value.graph_id for stored in await graphs.newest(tenant, after, limit)]


async def test_an_empty_bucket_has_an_empty_page(graphs: GraphStore) -> None:
    assert await names(graphs) == []


async def test_only_newest_versions_of_the_tenant_are_listed(graphs: GraphStore) -> None:
    await graphs.create(newest_key(None, "one"), record("one", 2))
    await graphs.create(version_key(None, "one", 1), record("one", 1))
    await graphs.create(newest_key("acme", "theirs"), record("theirs", tenant_id="acme"))
    await graphs.create(newest_key(None, "two"), record("two"))
    assert await names(graphs) == ["one", "two"]
    assert await names(graphs, "acme") == ["theirs"]
    assert await names(graphs, "other") == []


async def test_pages_follow_each_other_in_the_order_of_the_last_change(graphs: GraphStore) -> None:
    revisions = [await graphs.create(newest_key(None, f"g{n}"), record(f"g{n}")) for n in range(5)]
    await graphs.update(newest_key(None, "g1"), record("g1", 2), revisions[1])
    assert await names(graphs) == ["g0", "g2", "g3", "g4", "g1"]
    page = await graphs.newest(NO_TENANT, START, 2)
    assert [stored.value.graph_id for stored in page] == ["g0", "g2"]
    assert await names(graphs, after=page[-1].revision, limit=2) == ["g3", "g4"]
    page = await graphs.newest(NO_TENANT, START, 10)
    assert await names(graphs, after=page[-1].revision) == []


async def test_what_was_removed_is_not_listed(graphs: GraphStore) -> None:
    for name in ("gone", "here"):
        await graphs.create(newest_key(None, name), record(name))
    await graphs.remove(newest_key(None, "gone"), None)
    assert await names(graphs, limit=1) == ["here"]
