"""Graphs on a real nats-server: registered by several gateways at once, kept over restarts."""

import asyncio
from dataclasses import replace
from typing import Any

from pyoco_server.config import NatsBackendConfig
from support.gateway import gateway
from support.nats_server import raw_nats


def flow_graph(flow: str) -> dict[str, Any]:
    return {"nodes": {"only": {"type": "task", "flow": flow}}}


async def test_two_gateways_that_register_at_once_lose_no_version(config: NatsBackendConfig) -> None:
    async with gateway(config) as first, gateway(config) as second:
        clients = [first, second] * 6
        answers = await asyncio.gather(
            *(client.put("/graphs/g", json=flow_graph(f"f{n}")) for n, client in enumerate(clients))
        )
        assert {answer.status_code for answer in answers} == {201}
        assert sorted(answer.json()["version"] for answer in answers) == list(range(1, 13))
        for number, answer in enumerate(answers):
            for client in (first, second):
                stored = await client.get(f"/graphs/g?version={answer.json()['version']}")
                assert stored.json()["definition"]["nodes"]["only"]["flow"] == f"f{number}"
                assert stored.json()["sha256"] == answer.json()["sha256"]


async def test_graphs_outlive_the_gateway_and_are_listed_by_pages(config: NatsBackendConfig) -> None:
    async with gateway(config) as client:
        for number in range(5):
            put = await client.put(f"/graphs/g{number}", json=flow_graph("f"))
            assert put.status_code == 201
        await client.put("/graphs/g2", json=flow_graph("other"))
    async with gateway(config) as client:
        page = (await client.get("/graphs?limit=3")).json()
        rest = (await client.get("/graphs", params={"limit": 3, "cursor": page["next_cursor"]})).json()
        found = [(item["graph_id"], item["version"]) for item in page["items"] + rest["items"]]
        assert found == [("g0", 1), ("g1", 1), ("g3", 1), ("g4", 1), ("g2", 2)]
        assert rest["next_cursor"] is None
        same = await client.put("/graphs/g2", json=flow_graph("other"))
        assert (same.status_code, same.json()["version"]) == (200, 2)


async def test_the_largest_graph_fits_a_message(config: NatsBackendConfig) -> None:
    params = {"x": "é" * 200 * 1024}
    graph = {"nodes": {"only": {"type": "task", "flow": "f", "params": params}}}
    async with gateway(config) as client:
        assert (await client.put("/graphs/g", json=graph)).status_code == 201
        assert (await client.put("/graphs/g", json=flow_graph("f"))).status_code == 201
        stored = (await client.get("/graphs/g?version=1")).json()
        assert stored["definition"]["nodes"]["only"]["params"] == params


async def test_what_somebody_else_wrote_into_the_bucket_is_passed_over_in_lists(
    config: NatsBackendConfig,
) -> None:
    async with gateway(config) as client:
        await client.put("/graphs/good", json=flow_graph("f"))
        async with raw_nats(config.nats_url) as nats:
            bucket = await nats.jetstream().key_value(config.graphs_kv_bucket)
            await bucket.put("=.bad", b"nonsense")
        await client.put("/graphs/better", json=flow_graph("f"))
        items = (await client.get("/graphs")).json()["items"]
        assert [item["graph_id"] for item in items] == ["good", "better"]
        assert (await client.get("/graphs/bad")).status_code == 503


async def test_another_bucket_has_other_graphs(config: NatsBackendConfig) -> None:
    async with gateway(config) as client:
        await client.put("/graphs/g", json=flow_graph("f"))
    other = replace(config, graphs_kv_bucket=f"{config.graphs_kv_bucket}_2")
    try:
        async with gateway(other) as client:
            assert (await client.get("/graphs/g")).status_code == 404
    finally:
        async with raw_nats(config.nats_url) as nats:
            await nats.jetstream().delete_stream(f"KV_{other.graphs_kv_bucket}")
