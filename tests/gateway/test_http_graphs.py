"""Graphs over HTTP: versions, tenants, pages, and what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.domain.executions.graph_versions import newest_key, version_key
from pyoco_server.domain.executions.graphs import Graph
from pyoco_server.errors import GraphNotFound, NatsUnavailable
from pyoco_server.memory.stores import MemoryChangeLog, MemoryGraphs
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import ANONYMOUS
from pyoco_server.usecases.executions.graphs import ManageGraphs
from pyoco_server.usecases.ports.stores import Revision
from support.gateway import RunningGateway, another_gateway, memory_app, new_key

YAML = """
id: close
nodes:
  first: {type: task, flow: extract, tag: cpu}
  ask: {type: wait, prompt: "Close ${input.ym}?"}
  undo: {type: task, external: true}
edges:
  - {from: first, to: ask}
  - {from: first, to: undo, on: failure}
"""
DEFINITION = {
    "id": "close",
    "nodes": {
        "first": {"type": "task", "flow": "extract", "tag": "cpu"},
        "ask": {"type": "wait", "prompt": "Close ${input.ym}?"},
        "undo": {"type": "task", "external": True},
    },
    "edges": [{"from": "first", "to": "ask"}, {"from": "first", "to": "undo", "on": "failure"}],
}
TRAIL = AuditTrail(MemoryChangeLog(), lambda: 1.0, lambda: "change")
AS_YAML = {"Content-Type": "application/yaml"}


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        yield running


def flow_graph(flow: str, **more: Any) -> dict[str, Any]:
    return {"nodes": {"only": {"type": "task", "flow": flow}}, **more}


async def test_a_graph_is_registered_and_read(gateway: RunningGateway) -> None:
    put = await gateway.client.put("/graphs/close", content=YAML, headers=AS_YAML)
    assert put.status_code == 201, put.text
    summary = put.json()
    assert (summary["graph_id"], summary["version"], summary["nodes"]) == ("close", 1, 3)
    assert (summary["registered_by"], summary["tenant_id"]) == ("anonymous", None)
    got = await gateway.client.get("/graphs/close")
    assert got.status_code == 200
    assert got.json()["definition"] == DEFINITION
    assert {k: v for k, v in got.json().items() if k != "definition"} == {
        k: v for k, v in summary.items() if k != "nodes"
    }


async def test_the_same_content_keeps_its_version_and_other_content_is_the_next(
    gateway: RunningGateway,
) -> None:
    first = await gateway.client.put("/graphs/close", content=YAML, headers=AS_YAML)
    same = await gateway.client.put("/graphs/close", json=DEFINITION)
    assert (same.status_code, same.json()) == (200, first.json())
    other = await gateway.client.put("/graphs/close", json=flow_graph("f"))
    assert (other.status_code, other.json()["version"]) == (201, 2)
    back = await gateway.client.put("/graphs/close", json=DEFINITION)
    assert (back.status_code, back.json()["version"]) == (201, 3)


async def test_a_preview_is_what_would_be_stored(gateway: RunningGateway) -> None:
    client = gateway.client
    preview = (await client.post("/graphs/preview", content=YAML, headers=AS_YAML)).json()
    assert (await client.get("/graphs/close")).status_code == 404
    await client.put("/graphs/close", json=DEFINITION)
    stored = (await client.get("/graphs/close")).json()
    assert (preview["definition"], preview["sha256"]) == (stored["definition"], stored["sha256"])
    nameless = (await client.post("/graphs/preview", json=flow_graph("f"))).json()
    assert nameless["definition"]["id"] == "preview"
    for body, problem in ((flow_graph("f", id="a b"), "graph id 'a b'"), ({"nodes": {}}, "nodes")):
        refused = await client.post("/graphs/preview", json=body)
        assert refused.status_code == 422
        assert problem in refused.text


async def test_every_version_can_be_read_and_never_changes(gateway: RunningGateway) -> None:
    for number in range(1, 5):
        await gateway.client.put("/graphs/g", json=flow_graph(f"f{number}"))
        for version in range(1, number + 1):
            got = (await gateway.client.get(f"/graphs/g?version={version}")).json()
            assert (got["version"], got["definition"]["nodes"]["only"]["flow"]) == (version, f"f{version}")
        assert (await gateway.client.get("/graphs/g")).json()["version"] == number


@pytest.mark.parametrize("path", ["/graphs/nobody", "/graphs/a.b", "/graphs/*", "/graphs/g?version=2"])
async def test_what_is_not_there_is_404(gateway: RunningGateway, path: str) -> None:
    """ERR-PYOCO-0034"""
    await gateway.client.put("/graphs/g", json=flow_graph("f"))
    answer = await gateway.client.get(path)
    assert (answer.status_code, answer.json()["err_id"]) == (404, "ERR-PYOCO-0034")


@pytest.mark.parametrize("version", ["0", "-1", "x", str(2**60)])
async def test_a_version_that_is_none_is_422(gateway: RunningGateway, version: str) -> None:
    assert (await gateway.client.get(f"/graphs/g?version={version}")).status_code == 422


@pytest.mark.parametrize(
    ("body", "headers", "detail"),
    [
        (b"", AS_YAML, "graph, line 1, column 1: the file is empty"),
        (b"nodes: [", AS_YAML, "graph, line 2, column 1: "),
        (b"{", {"Content-Type": "application/json"}, "graph, line 1, column 2"),
        (b"\xff", AS_YAML, "the file is not UTF-8"),
        (b"id: other\nnodes: {a: {type: fork}}", AS_YAML, "graph g: the id in the body is 'other'"),
        (b"id: 7\nnodes: {a: {type: fork}}", AS_YAML, "graph g: the id in the body is '7'"),
        (
            b"nodes: {a: {type: taks}}",
            AS_YAML,
            "graph g: node a: type 'taks' is unknown (did you mean 'task'?)",
        ),
    ],
)
async def test_what_is_wrong_is_said(
    gateway: RunningGateway, body: bytes, headers: dict[str, str], detail: str
) -> None:
    """ERR-PYOCO-0002"""
    answer = await gateway.client.put("/graphs/g", content=body, headers=headers)
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    assert detail in answer.json()["detail"]
    assert (await gateway.client.get("/graphs/g")).status_code == 404


async def test_an_id_that_cannot_be_one_is_422(gateway: RunningGateway) -> None:
    answer = await gateway.client.put("/graphs/a.b", json=flow_graph("f"))
    assert (answer.status_code, answer.json()["detail"]) == (
        422,
        "graph id 'a.b' must match [A-Za-z0-9_-]{1,64}",
    )


@pytest.mark.parametrize("size", [600 * 1024, 2 * 1024 * 1024])
async def test_what_is_too_large_is_413(gateway: RunningGateway, size: int) -> None:
    body = {"nodes": {"a": {"type": "task", "flow": "f", "params": {"x": "y" * size}}}}
    answer = await gateway.client.put("/graphs/g", json=body)
    assert (answer.status_code, answer.json()["err_id"]) == (413, "ERR-PYOCO-0002")


async def test_pages_show_each_graph_once(gateway: RunningGateway) -> None:
    for number in range(7):
        await gateway.client.put(f"/graphs/g{number}", json=flow_graph("f"))
    await gateway.client.put("/graphs/g0", json=flow_graph("other"))
    seen: list[tuple[str, int]] = []
    cursor: str | None = None
    while True:
        query = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = (await gateway.client.get("/graphs", params=query)).json()
        assert len(page["items"]) <= 3
        seen += [(item["graph_id"], item["version"]) for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [*((f"g{number}", 1) for number in range(1, 7)), ("g0", 2)]


async def test_a_page_that_is_full_and_the_last_has_no_cursor(gateway: RunningGateway) -> None:
    assert (await gateway.client.get("/graphs")).json() == {"items": [], "next_cursor": None}
    await gateway.client.put("/graphs/g", json=flow_graph("f"))
    page = (await gateway.client.get("/graphs?limit=1")).json()
    assert (len(page["items"]), page["next_cursor"]) == (1, None)


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "cursor=nonsense"])
async def test_a_bad_list_query_is_refused(gateway: RunningGateway, query: str) -> None:
    """ERR-PYOCO-0017"""
    answer = await gateway.client.get(f"/graphs?{query}")
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0017")


async def test_each_tenant_has_its_own_graphs() -> None:
    """ERR-PYOCO-0034, ERR-PYOCO-0017"""
    async with memory_app(http_auth_mode="api_key") as gateway:
        keys = gateway.backend.api_keys
        ours, theirs = await new_key(keys, "acme", "key-a"), await new_key(keys, "other", "key-b")
        for number in range(2):
            await gateway.client.put(f"/graphs/g{number}", json=flow_graph("f"), headers=ours)
        put = await gateway.client.put("/graphs/g0", json=flow_graph("secret"), headers=ours)
        assert (put.json()["tenant_id"], put.json()["registered_by"]) == ("acme", "api_key:key-a")
        for path in ("/graphs/g0", "/graphs/g0?version=1"):
            missing = await gateway.client.get("/graphs/nobody", headers=theirs)
            foreign = await gateway.client.get(path, headers=theirs)
            assert (foreign.status_code, foreign.content) == (404, missing.content)
        assert (await gateway.client.get("/graphs", headers=theirs)).json()["items"] == []
        own = await gateway.client.put("/graphs/g0", json=flow_graph("mine"), headers=theirs)
        assert (own.status_code, own.json()["version"]) == (201, 1)
        assert (await gateway.client.get("/graphs/g0", headers=ours)).json()["version"] == 2
        page = (await gateway.client.get("/graphs?limit=1", headers=ours)).json()
        answer = await gateway.client.get(f"/graphs?cursor={page['next_cursor']}", headers=theirs)
        assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0017")


async def test_two_gateways_that_register_at_once_lose_no_version(gateway: RunningGateway) -> None:
    async with another_gateway(gateway) as second:
        clients = [gateway.client, second.client] * 5
        answers = await asyncio.gather(
            *(client.put("/graphs/g", json=flow_graph(f"f{n}")) for n, client in enumerate(clients))
        )
    assert sorted(answer.json()["version"] for answer in answers) == list(range(1, 11))
    for number, answer in enumerate(answers):
        stored = await gateway.client.get(f"/graphs/g?version={answer.json()['version']}")
        assert stored.json()["definition"]["nodes"]["only"]["flow"] == f"f{number}"


async def test_equal_registrations_at_once_are_one_version(gateway: RunningGateway) -> None:
    answers = await asyncio.gather(*(gateway.client.put("/graphs/g", json=flow_graph("f")) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert {answer.json()["version"] for answer in answers} == {1}


class Counting(MemoryGraphs):
    """Counts what is asked for; loses the moment between two writes of a registration on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.fails_to_move_on = False

    async def get(self, key: str) -> Any:
        self.reads += 1
        return await super().get(key)

    async def update(self, key: str, value: Any, expected: Revision) -> Revision:
        if self.fails_to_move_on:
            raise NatsUnavailable
        return await super().update(key, value, expected)


async def register(graphs: ManageGraphs, flow: str) -> int:
    text = json.dumps(flow_graph(flow)).encode()
    return (await graphs.register("g", text, "application/json", ANONYMOUS)).record.version


async def test_a_registration_that_broke_off_leaves_nothing_behind() -> None:
    store = Counting()
    graphs = ManageGraphs(store, lambda: 1.0, TRAIL)
    await register(graphs, "one")
    store.fails_to_move_on = True
    with pytest.raises(NatsUnavailable):
        await register(graphs, "two")
    store.fails_to_move_on = False
    assert (await graphs.find("g", None, ANONYMOUS)).version == 1
    with pytest.raises(GraphNotFound):
        await graphs.find("g", 2, ANONYMOUS)
    assert await register(graphs, "three") == 2
    kept = await store.get(version_key(None, "g", 1))
    assert kept.value.definition["nodes"]["only"]["flow"] == "one"


async def test_a_version_is_read_and_parsed_once() -> None:
    store = Counting()
    graphs = ManageGraphs(store, lambda: 1.0, TRAIL)
    await register(graphs, "one")
    await register(graphs, "two")
    parsed = await graphs.read(None, "g", 1)
    assert isinstance(parsed.graph, Graph)
    assert (parsed.version, parsed.graph.nodes["only"].flow) == (1, "one")
    store.reads = 0
    assert await graphs.read(None, "g", 1) is parsed
    assert store.reads == 0
    newest = await graphs.read(None, "g")
    assert (newest.version, newest.graph.nodes["only"].flow) == (2, "two")
    await register(graphs, "three")
    assert (await graphs.read(None, "g")).version == 3
    with pytest.raises(GraphNotFound):
        await graphs.read("acme", "g", 1)


async def test_the_parsed_versions_that_are_kept_are_bounded() -> None:
    store = Counting()
    graphs = ManageGraphs(store, lambda: 1.0, TRAIL, max_cached=2)
    for flow in ("one", "two", "three"):
        await register(graphs, flow)
    first = await graphs.read(None, "g", 1)
    await graphs.read(None, "g", 2)
    assert await graphs.read(None, "g", 1) is first
    await graphs.read(None, "g", 3)
    store.reads = 0
    await graphs.read(None, "g", 1)
    assert store.reads == 0, "what was used last stays"
    await graphs.read(None, "g", 2)
    assert store.reads > 0


async def test_an_unreadable_graph_is_503_and_not_a_crash(gateway: RunningGateway) -> None:
    """ERR-PYOCO-0003"""
    await gateway.client.put("/graphs/g", json=flow_graph("f"))
    values = gateway.backend.graphs._values
    key = newest_key(None, "g")
    values[key] = (b"nonsense", values[key][1])
    answer = await gateway.client.get("/graphs/g")
    assert (answer.status_code, answer.json()["err_id"]) == (503, "ERR-PYOCO-0003")
