"""Executions as a client sees them, and graphs to carry out."""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import httpx2

from support.waiting import until


def task(flow: str = "chain", **fields: Any) -> dict[str, Any]:
    return {"type": "task", "flow": flow, **fields}


def graph(nodes: dict[str, dict[str, Any]], *edges: str) -> dict[str, Any]:
    """`edges`: each a line of nodes, `"a b c"`."""
    ways = [line.split() for line in edges]
    return {
        "nodes": nodes,
        "edges": [{"from": source, "to": target} for way in ways for source, target in pairwise(way)],
    }


def fork_of(flow: str = "chain", **fields: Any) -> dict[str, Any]:
    """Five nodes with a fork: a task, two branches with a task each, and their join."""
    of_task = task(flow, **fields)
    nodes = {
        "first": of_task,
        "split": {"type": "fork"},
        "left": of_task,
        "right": of_task,
        "gather": {"type": "join"},
    }
    return graph(nodes, "first split left gather", "split right gather")


def attempts_in(events: Iterable[dict[str, Any]]) -> Counter[tuple[str, int | None, int]]:
    """How often each attempt of each node, or iteration of a repeat, began."""
    return Counter(
        (event["payload"]["node_id"], event["payload"].get("iteration"), event["payload"]["attempt"])
        for event in events
        if event["type"] == "NODE_STARTED"
    )


APPROVAL: dict[str, Any] = {
    "nodes": {
        "book": {"type": "task", "external": True, "retry": {"max_attempts": 2}},
        "approve": {"type": "wait", "prompt": "Close ${input.ym}?", "wait_key": "${input.ym}"},
        "report": {"type": "task", "external": True},
    },
    "edges": [{"from": "book", "to": "approve"}, {"from": "approve", "to": "report"}],
}


class Executions:
    """What a client does, with the answers checked."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def register(self, graph_id: str, definition: dict[str, Any]) -> None:
        answer = await self.http.put(f"/graphs/{graph_id}", json=definition)
        assert answer.status_code in (200, 201), answer.text

    async def create(self, graph_id: str = "approval", **fields: Any) -> dict[str, Any]:
        return await self.post("/executions", 201, graph_id=graph_id, **fields)

    async def get(self, execution_id: str, **params: Any) -> dict[str, Any]:
        answer = await self.http.get(f"/executions/{execution_id}", params=params)
        assert answer.status_code == 200, answer.text
        state: dict[str, Any] = answer.json()
        return state

    async def post(
        self, path: str, status: int = 200, headers: dict[str, str] | None = None, **fields: Any
    ) -> dict[str, Any]:
        answer = await self.http.post(path, json=fields, headers=headers or {})
        assert answer.status_code == status, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def node(
        self, execution_id: str, node_id: str, verb: str, status: int = 200, **fields: Any
    ) -> dict[str, Any]:
        return await self.post(f"/executions/{execution_id}/nodes/{node_id}/{verb}", status, **fields)

    async def until_node(self, execution_id: str, node_id: str, status: str) -> dict[str, Any]:
        return await until(
            lambda: self.get(execution_id), lambda state: state["nodes"][node_id]["status"] == status
        )

    async def until_ended(self, execution_id: str) -> dict[str, Any]:
        return await until(lambda: self.get(execution_id), lambda state: state["status"] != "ACTIVE")

    async def events(self, execution_id: str) -> list[dict[str, Any]]:
        answer = await self.http.get(f"/executions/{execution_id}/events")
        assert answer.status_code == 200, answer.text
        events: list[dict[str, Any]] = answer.json()["items"]
        return events

    async def types(self, execution_id: str) -> list[str]:
        return [event["type"] for event in await self.events(execution_id)]
