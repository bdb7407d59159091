"""Graphs in graphs over HTTP: pinned versions, cancels and reruns through all levels."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.domain.executions.records import child_id_of
from support.gateway import RunningGateway, memory_app, new_key
from support.http_executions import Executions, graph
from support.waiting import until

EXTERNAL: dict[str, Any] = {"type": "task", "external": True}


def child(graph_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "execution", "graph": graph_id, **more}


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        yield running


@pytest.fixture
async def executions(gateway: RunningGateway) -> Executions:
    """Three levels: `top` executes `middle`, which executes `bottom`."""
    found = Executions(gateway.client)
    await found.register("bottom", graph({"first": EXTERNAL, "work": EXTERNAL}, "first work"))
    await found.register("middle", graph({"below": child("bottom", input={"of": "${input}"})}))
    await found.register(
        "top", graph({"below": child("middle", input="${input.n}", undo="undo"), "undo": EXTERNAL})
    )
    return found


async def below(executions: Executions, execution_id: str) -> str:
    state = await executions.until_node(execution_id, "below", "RUNNING")
    child_id: str = state["nodes"]["below"]["child_execution_id"]
    await until(
        lambda: executions.http.get(f"/executions/{child_id}"), lambda answer: answer.status_code == 200
    )
    return child_id


async def bottom_of(executions: Executions, execution_id: str) -> str:
    return await below(executions, await below(executions, execution_id))


async def do(executions: Executions, execution_id: str, node_id: str, verb: str, **fields: Any) -> None:
    await executions.until_node(execution_id, node_id, "READY")
    await executions.node(execution_id, node_id, "start")
    await executions.node(execution_id, node_id, verb, **fields)


async def test_outputs_flow_up_and_the_way_is_shown(executions: Executions) -> None:
    await executions.create("top", execution_id="e", input={"n": 5})
    middle = await below(executions, "e")
    bottom = await below(executions, middle)
    state = await executions.get(bottom)
    assert (state["input"], state["graph_id"]) == ({"of": 5}, "bottom")
    assert (state["parent_execution_id"], state["parent_node_id"]) == (middle, "below")
    assert (await executions.get(middle))["parent_execution_id"] == "e"
    await do(executions, bottom, "first", "succeed")
    await do(executions, bottom, "work", "succeed", output=7)
    ended = await executions.until_ended("e")
    assert (ended["status"], ended["result"]) == ("COMPLETED", {"below": {"below": {"work": 7}}})
    listed = (await executions.http.get("/executions")).json()["items"]
    assert {item["execution_id"]: item["parent_execution_id"] for item in listed} == {
        "e": None,
        middle: "e",
        bottom: middle,
    }


async def test_versions_are_those_of_the_creation_also_of_a_rerun(executions: Executions) -> None:
    await executions.create("top", execution_id="e", input={"n": 5}, start=False)
    await executions.register("bottom", graph({"other": EXTERNAL}))
    await executions.post("/executions/e/start")
    assert (await executions.get("e"))["graph_versions"] == {"middle": 1, "bottom": 1}
    assert (await executions.get(await bottom_of(executions, "e")))["graph_version"] == 1
    again = (await executions.post("/executions/e/rerun", 201))["execution_id"]
    assert (await executions.get(await bottom_of(executions, again)))["graph_version"] == 1
    await executions.create("top", execution_id="new", input={"n": 5})
    assert (await executions.get(await bottom_of(executions, "new")))["graph_version"] == 2


async def test_a_cancel_reaches_every_level_and_waits_for_it(executions: Executions) -> None:
    await executions.create("top", execution_id="e", input={"n": 5})
    middle = await below(executions, "e")
    bottom = await below(executions, middle)
    await executions.post("/executions/e/cancel", reason="wrong month")
    ended = [await executions.until_ended(one) for one in (bottom, middle, "e")]
    assert [state["status"] for state in ended] == ["CANCELED"] * 3
    assert [state["cancel_requested_by"] for state in ended] == [
        f"execution:{middle}",
        "execution:e",
        "user",
    ]
    assert ended[0]["canceled_at"] <= ended[1]["canceled_at"] <= ended[2]["canceled_at"]


async def test_a_failure_goes_up_and_a_rerun_from_it_goes_down(executions: Executions) -> None:
    await executions.create("top", execution_id="e", input={"n": 5})
    bottom = await bottom_of(executions, "e")
    await do(executions, bottom, "first", "succeed", output="kept")
    await do(executions, bottom, "work", "fail", error="boom")
    ended = await executions.until_ended("e")
    assert (ended["status"], ended["error"]["code"]) == ("FAILED", "EXECUTION_FAILED")
    text = "node below of its execution failed: node work of its execution failed: boom"
    assert ended["error"]["message"] == text
    fields: dict[str, Any] = {"from": "failed"}
    rerun = await executions.post("/executions/e/rerun", 201, **fields)
    again = await bottom_of(executions, rerun["execution_id"])
    state = await executions.get(again)
    assert (state["rerun_of"], state["nodes"]["first"]["carried_from"]) == (bottom, bottom)
    await do(executions, again, "work", "succeed", output=7)
    assert (await executions.until_ended(rerun["execution_id"]))["status"] == "COMPLETED"


async def test_a_child_that_is_cancelled_by_hand_fails_its_node(executions: Executions) -> None:
    await executions.create("middle", execution_id="e", input=1)
    await executions.post(f"/executions/{await below(executions, 'e')}/cancel")
    ended = await executions.until_ended("e")
    assert (ended["status"], ended["error"]["code"]) == ("FAILED", "EXECUTION_CANCELED")


async def test_an_execution_that_took_the_id_of_a_child_is_none(executions: Executions) -> None:
    await executions.create("middle", execution_id="e", start=False)
    await executions.create("bottom", execution_id=child_id_of("e", "below", 1))
    await executions.post("/executions/e/start")
    ended = await executions.until_ended("e")
    assert (ended["status"], ended["error"]["code"]) == ("FAILED", "EXECUTION_REFUSED")


async def test_graphs_that_cannot_be_nested_are_refused_by_node(executions: Executions) -> None:
    async def refused(graph_id: str, *nodes: str) -> str:
        definition = graph(
            {f"n-{name}": child(name) for name in nodes}, " ".join(f"n-{name}" for name in nodes)
        )
        answer = await executions.http.put(f"/graphs/{graph_id}", json=definition)
        assert answer.status_code == 422, answer.text
        text: str = answer.json()["detail"]
        return text

    assert "node n-nobody: graph nobody is not registered" in await refused("g", "nobody")
    assert "node n-top: cycle of graphs: bottom → top → middle → bottom" in await refused("bottom", "top")
    assert "node n-self: cycle of graphs: self → self" in await refused("self", "self")
    for depth in range(4, 9):
        below_it = "top" if depth == 4 else f"g{depth - 1}"
        await executions.register(f"g{depth}", graph({"below": child(below_it)}))
    assert "graphs are nested 9 deep, 8 are allowed: g9 → g8 → " in await refused("g9", "g8")


async def test_a_graph_that_has_become_too_deep_below_starts_nothing(executions: Executions) -> None:
    for depth in range(4, 9):
        await executions.register(
            f"g{depth}", graph({"below": child("top" if depth == 4 else f"g{depth - 1}")})
        )
    await executions.register("deeper", graph({"only": EXTERNAL}))
    await executions.register("bottom", graph({"below": child("deeper")}))
    answer = await executions.http.post("/executions", json={"graph_id": "g8"})
    assert (answer.status_code, "nested 9 deep" in answer.text) == (422, True)


async def test_children_belong_to_the_tenant_of_their_parent() -> None:
    async with memory_app(http_auth_mode="api_key") as running:
        ann, bob = [await new_key(running.backend.api_keys, tenant, tenant) for tenant in ("ann", "bob")]
        running.client.headers.update(ann)
        executions = Executions(running.client)
        await executions.register("bottom", graph({"work": EXTERNAL}))
        await executions.register("middle", graph({"below": child("bottom")}))
        await executions.create("middle", execution_id="e")
        child_id = await below(executions, "e")
        state = await executions.get(child_id)
        assert (state["parent_execution_id"], state["tenant_id"]) == ("e", "ann")
        assert (await running.client.get(f"/executions/{child_id}", headers=bob)).status_code == 404
        answer = await running.client.put("/graphs/top", json=graph({"n": child("bottom")}), headers=bob)
        assert "graph bottom is not registered" in answer.text
        await executions.post("/executions/e/cancel")
        assert (await executions.until_ended("e"))["status"] == "CANCELED"
        assert (await executions.until_ended(child_id))["status"] == "CANCELED"
