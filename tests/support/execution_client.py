"""Executions over HTTP, as a client sees them."""

from typing import Any

import httpx2

from support.waiting import until

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

    async def types(self, execution_id: str) -> list[str]:
        answer = await self.http.get(f"/executions/{execution_id}/events")
        return [event["type"] for event in answer.json()["items"]]
