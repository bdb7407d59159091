"""Large values in executions: from node to node by reference, and looked into where a graph asks for it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pyoco import Flow, task

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.executions.stored import MAX_OPENED_BYTES
from pyoco_server.domain.fleet import KEPT_TASKS, RESOLVES
from pyoco_server.domain.large_values import owned_by_execution, owned_by_run
from pyoco_server.domain.runs.jobs import pending
from pyoco_server.usecases.values import SweepValues
from pyoco_server.wiring import new_thread_executors
from pyoco_server.wiring.worker import WorkerName, new_worker
from support.builders import a_job, a_worker
from support.gateway import RunningGateway, memory_app
from support.http_executions import Executions, graph
from support.waiting import until

CONFIG = NatsBackendConfig(cancel_grace_period_sec=0.3)
TEXT = "ä" * 300_000
"""More than a snapshot holds."""
FAR_AHEAD = 2e9
FORGED = {"$ref": "sha256:" + "0" * 64, "size": 100_000, "type": "application/json"}


@task
def rows(n: int = 3, pad: int = 300_000) -> Any:
    return {"rows": [{"id": index, "tags": ["a", "b"]} for index in range(n)], "text": "ä" * pad}


@task
def given(value: Any = None, more: Any = None) -> Any:
    return {"value": value, "more": more}


@task
def kinds(value: Any = None, more: Any = None) -> Any:
    """What a task got, small."""
    return {"value": _kind(value), "more": _kind(more)}


@task
def forged() -> Any:
    return FORGED


@task
def texts(n: int = 3) -> Any:
    return [{"id": index, "text": "ä" * 100_000} for index in range(n)]


@task
def large(id: int = 0) -> Any:  # noqa: A002 - the key of the items
    return [id, TEXT]


@task
def fail_once(value: Any = None, flag: str = "") -> Any:
    if not Path(flag).exists():
        Path(flag).touch()
        raise ValueError("not yet")
    return len(value)


def _kind(value: Any) -> Any:
    return f"{len(value)} characters" if isinstance(value, str) and len(value) > 100 else value


FLOWS = {
    "rows": rows,
    "given": given,
    "kinds": kinds,
    "forged": forged,
    "texts": texts,
    "large": large,
    "fail_once": fail_once,
}


def flow(name: str) -> Flow:
    return Flow(name=name) >> FLOWS[name]


def graph_of(nodes: dict[str, Any], *edges: str | dict[str, str]) -> dict[str, Any]:
    """Edges with a condition are written out."""
    made = graph(nodes, *(edge for edge in edges if isinstance(edge, str)))
    return {**made, "edges": [*made["edges"], *(edge for edge in edges if isinstance(edge, dict))]}


@asynccontextmanager
async def working(gateway: RunningGateway, directory: Path) -> AsyncIterator[None]:
    executors = new_thread_executors(flow, CONFIG, values_dir=str(directory))
    name = WorkerName("w", ("default",))
    worker = new_worker(CONFIG, gateway.backend, executors, name, values_dir=str(directory))
    await worker.open()
    running = asyncio.ensure_future(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running
        await worker.close()
        await executors.close()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    directory = tmp_path / "values"
    directory.mkdir()
    async with memory_app(cancel_grace_period_sec=0.3) as running, working(running, directory):
        yield running
    assert list(directory.iterdir()) == [], "no file is left"


@pytest.fixture
def executions(gateway: RunningGateway) -> Executions:
    return Executions(gateway.client)


def task_of(name: str, **params: Any) -> dict[str, Any]:
    return {"type": "task", "flow": name, "params": params}


async def ended(executions: Executions, nodes: dict[str, Any], *edges: Any, **created: Any) -> dict[str, Any]:
    await executions.register("g", graph_of(nodes, *edges))
    await executions.create("g", execution_id="e", **created)
    return await executions.until_ended("e")


async def result_of(executions: Executions, nodes: dict[str, Any], *edges: Any, **created: Any) -> Any:
    found = await ended(executions, nodes, *edges, **created)
    assert found["status"] == "COMPLETED", found["error"]
    return found["result"]


async def run_of(executions: Executions, node_id: str) -> dict[str, Any]:
    run_id = (await executions.get("e"))["nodes"][node_id]["run_id"]
    answer: dict[str, Any] = (await executions.http.get(f"/runs/{run_id}?include=records")).json()
    return answer


async def test_a_node_gets_the_large_output_of_the_one_before(executions: Executions) -> None:
    made = await ended(
        executions,
        {
            "a": task_of("rows"),
            "b": task_of("given", value="${nodes.a.output.rows.text}", more="${nodes.a.output.rows.rows[1]}"),
            "c": task_of("kinds", value="${nodes.b.output.given.value}", more="${nodes.b.output.given.more}"),
        },
        "a b c",
    )
    assert made["status"] == "COMPLETED", made["error"]
    assert made["result"] == {
        "c": {"kinds": {"value": "300000 characters", "more": {"id": 1, "tags": ["a", "b"]}}}
    }
    node = made["nodes"]["a"]
    assert sorted(node["output"]["rows"]) == ["$ref", "size", "type"]
    assert node["values"] == [["output", "rows"]]
    assert made["values"] == []
    run = await run_of(executions, "b")
    assert run["values"][:2] == [["params", "value"], ["params", "more"]]
    assert run["params"]["value"] == node["output"]["rows"] | {"part": ["text"]}
    assert run["params"]["more"] == node["output"]["rows"] | {"part": ["rows", 1]}
    assert len(json.dumps(made)) < 20_000, "the log has the references alone"


async def test_a_whole_output_may_have_large_values_and_others(executions: Executions) -> None:
    result = await result_of(
        executions,
        {
            "a": task_of("rows"),
            "b": task_of("given", value={"all": ["${nodes.a.output}"]}),
            "c": task_of("kinds", value="${nodes.b.output.given.value.all[0].rows.text}"),
        },
        "a b c",
    )
    assert result["c"]["kinds"]["value"] == "300000 characters"
    assert (await run_of(executions, "b"))["values"][0] == ["params", "value", "all", "0", "rows"]


async def test_the_result_of_an_execution_may_be_large(executions: Executions) -> None:
    made = await ended(executions, {"a": task_of("rows")})
    assert made["values"] == [["result", "a", "rows"]]
    reference = made["result"]["a"]["rows"]
    answer = await executions.http.get(f"/values/{reference['$ref']}")
    assert len(answer.json()["text"]) == 300_000


async def test_a_reference_that_a_task_or_a_client_wrote_is_data(executions: Executions) -> None:
    result = await result_of(
        executions,
        {
            "a": task_of("forged"),
            "b": task_of("kinds", value="${nodes.a.output.forged}", more="${input.x}"),
        },
        "a b",
        input={"x": FORGED},
    )
    assert result["b"]["kinds"] == {"value": FORGED, "more": FORGED}
    assert (await run_of(executions, "b"))["values"] == []


async def test_a_part_that_does_not_exist_fails_the_node_with_its_place(executions: Executions) -> None:
    made = await ended(
        executions,
        {"a": task_of("rows"), "b": task_of("kinds", value="${nodes.a.output.rows.rows[7].id}")},
        "a b",
    )
    assert (made["status"], made["failed_node_id"]) == ("FAILED", "b")
    assert made["error"]["message"] == "params.value: there is no [7] in a list at .rows of the large value"


async def test_a_condition_looks_into_a_large_value(executions: Executions) -> None:
    when = "nodes.a.output.rows.rows.size() == 3 && nodes.a.output.rows.rows[1].id == 1"
    made = await ended(
        executions,
        {"a": task_of("rows"), "yes": task_of("kinds"), "no": task_of("kinds")},
        {"from": "a", "to": "yes", "when": when},
        {"from": "a", "to": "no", "when": f"!({when})"},
    )
    assert made["status"] == "COMPLETED", made["error"]
    assert sorted(made["result"]) == ["yes"]
    edges = (await executions.http.get("/executions/e?include=edges")).json()["edges"]
    assert {edge["to"]: edge["fate"] for edge in edges} == {"yes": "taken", "no": "not taken"}


async def test_a_condition_that_would_open_too_much_fails_its_node(executions: Executions) -> None:
    made = await ended(
        executions,
        {"a": task_of("rows", pad=1_100_000), "b": task_of("kinds")},
        {"from": "a", "to": "b", "when": "nodes.a.output.rows.rows.size() == 3"},
    )
    assert (made["status"], made["error"]["code"]) == ("FAILED", "CONDITION_FAILED")
    assert "nodes.a.output.rows is a stored value of 2,200," in made["error"]["message"]
    assert f"can look into {MAX_OPENED_BYTES:,} bytes" in made["error"]["message"]
    assert made["failed_node_id"] == "b"


async def test_a_condition_on_the_status_opens_nothing(executions: Executions) -> None:
    await result_of(
        executions,
        {"a": task_of("rows", pad=1_100_000), "b": task_of("kinds")},
        {"from": "a", "to": "b", "when": "nodes.a.status == 'SUCCEEDED'"},
    )


async def test_a_large_value_is_put_into_a_text_if_it_is_not_too_large(executions: Executions) -> None:
    nodes = {
        "a": task_of("rows"),
        "b": task_of("kinds", value="first: ${nodes.a.output.rows.rows[0].id}"),
        "c": task_of("kinds", value="all: ${nodes.a.output.rows}"),
    }
    result = await result_of(executions, nodes, "a b", "a c")
    assert result["b"]["kinds"]["value"] == "first: 0"
    assert result["c"]["kinds"]["value"].endswith(" characters")
    nodes["a"] = task_of("rows", pad=1_100_000)
    await executions.register("g", graph_of(nodes, "a b", "a c"))
    await executions.create("g", execution_id="e2")
    failed = await executions.until_ended("e2")
    assert failed["error"]["code"] == "TEMPLATE_FAILED"
    assert "is a stored value of 2,200," in failed["error"]["message"]


async def test_a_map_over_a_large_list(executions: Executions) -> None:
    node = {"flow": "kinds", "params": {"value": "${item.id}", "more": "${item.text}"}}
    result = await result_of(
        executions,
        {"a": task_of("texts"), "m": {"type": "map", "over": "${nodes.a.output.texts}", "node": node}},
        "a m",
    )
    assert [item["kinds"] for item in result["m"]] == [
        {"value": index, "more": "100000 characters"} for index in range(3)
    ]


@pytest.mark.parametrize("batch", [None, 2])
async def test_the_items_of_a_map_may_have_large_outputs(executions: Executions, batch: int | None) -> None:
    one = {"type": "map", "over": [0, 1, 2], "node": {"flow": "large", "params": {"id": "${item}"}}}
    value = "${item.large}" if batch is None else "${items}"
    two = {
        "type": "map",
        "over": "${nodes.m.output}",
        "node": {"flow": "kinds", "params": {"value": value}},
        **({} if batch is None else {"batch": batch}),
    }
    made = await ended(executions, {"m": one, "n": two}, "m n")
    assert made["status"] == "COMPLETED", made["error"]
    assert made["nodes"]["m"]["values"] == [["output", str(index), "large"] for index in range(3)]
    got = [item["kinds"]["value"] for item in await opened(executions, made["result"]["n"], made, "n")]
    if batch is None:
        assert got == [[index, TEXT] for index in range(3)]
    else:
        assert [[one["large"] for one in items] for items in got] == [
            [[0, TEXT], [1, TEXT]],
            [[2, TEXT]],
        ]


async def opened(executions: Executions, value: Any, made: dict[str, Any], node_id: str) -> Any:
    """With the values in place of references."""
    for _, of_node, *place in made["values"]:
        if of_node == node_id:
            *above, last = [int(step) if step.isdigit() else step for step in place]
            at = value
            for step in above:
                at = at[step]
            at[last] = (await executions.http.get(f"/values/{at[last]['$ref']}")).json()
    return value


async def test_a_repeat_may_return_large_values_until_its_condition_holds(executions: Executions) -> None:
    node = {"flow": "rows", "params": {"n": "${iteration}"}}
    made = await ended(
        executions,
        {
            "r": {"type": "repeat", "node": node, "until": "output.rows.rows.size() >= 2", "max": 3},
            "b": task_of("kinds", value="${nodes.r.output.rows.rows}"),
        },
        "r b",
    )
    assert made["status"] == "COMPLETED", made["error"]
    assert len(made["result"]["b"]["kinds"]["value"]) == 2


async def test_a_graph_in_a_graph_gets_and_returns_large_values(executions: Executions) -> None:
    inner = {"b": task_of("given", value="${input.all.text}", more="${input.first}")}
    await executions.http.put("/graphs/inner", json=graph(inner) | {"id": "inner"})
    made = await ended(
        executions,
        {
            "a": task_of("rows"),
            "x": {
                "type": "execution",
                "graph": "inner",
                "input": {"all": "${nodes.a.output.rows}", "first": "${nodes.a.output.rows.rows[0].tags}"},
            },
            "c": task_of(
                "kinds", value="${nodes.x.output.b.given.value}", more="${nodes.x.output.b.given.more[1]}"
            ),
        },
        "a x c",
    )
    assert made["status"] == "COMPLETED", made["error"]
    assert made["result"]["c"]["kinds"] == {"value": "300000 characters", "more": "b"}
    child = await executions.get(made["nodes"]["x"]["child_execution_id"])
    assert child["values"] == [["input", "all"], ["input", "first"], ["result", "b", "given"]]


async def test_a_rerun_carries_large_outputs_over(executions: Executions, tmp_path: Path) -> None:
    made = await ended(
        executions,
        {
            "a": task_of("rows"),
            "b": task_of("fail_once", value="${nodes.a.output.rows.text}", flag=str(tmp_path / "flag")),
        },
        "a b",
    )
    assert made["status"] == "FAILED"
    answer = await executions.http.post("/executions/e/rerun", json={"from": "failed"})
    again = await executions.until_ended(answer.json()["execution_id"])
    assert again["nodes"]["a"]["carried_from"] == "e"
    assert again["result"] == {"b": {"fail_once": 300_000}}


async def test_a_value_lives_as_long_as_a_run_or_an_execution_uses_it(
    gateway: RunningGateway, executions: Executions
) -> None:
    made = await ended(
        executions,
        {"a": task_of("rows"), "b": task_of("kinds", value="${nodes.a.output.rows.text}")},
        "a b",
    )
    runs = [made["nodes"][name]["run_id"] for name in ("a", "b")]
    values = gateway.backend.values
    owners = {owned_by_execution("e"), *map(owned_by_run, runs)}
    assert {use.owner for use in await values.uses()} == owners
    backend = gateway.backend
    sweep = SweepValues(
        values, backend.run_index, backend.execution_index, 1.0, settled_sec=-1.0, upload_sec=-1.0
    )
    for run_id in runs:
        assert (await executions.http.delete(f"/runs/{run_id}")).status_code == 200
    for _ in range(2):
        await sweep.sweep()
    assert {use.owner for use in await values.uses()} == {owned_by_execution("e")}
    reference = made["nodes"]["a"]["output"]["rows"]["$ref"]
    assert (await executions.http.get(f"/values/{reference}")).status_code == 200
    await executions.post("/executions/e/archive")
    assert (await executions.http.delete("/executions/e")).status_code == 200
    for _ in range(2):
        await sweep.sweep()
    assert await values.uses() == []
    assert (await executions.http.get(f"/values/{reference}")).status_code == 404


async def test_a_node_with_large_params_is_refused_while_its_tag_has_an_older_worker(
    gateway: RunningGateway, executions: Executions
) -> None:
    older = a_worker(worker_id="old", features=(KEPT_TASKS, RESOLVES), last_seen_at=FAR_AHEAD)
    await gateway.backend.workers.create("old", older)
    nodes = {"a": task_of("rows"), "b": task_of("kinds", value="${nodes.a.output.rows}")}
    await executions.register("g", graph_of(nodes, "a b"))

    async def error() -> dict[str, Any]:
        created = await executions.http.post("/executions", json={"graph_id": "g"})
        made = await executions.until_ended(created.json()["execution_id"])
        return made["error"] or {"code": "", "message": ""}

    refused = await until(error, lambda found: found["code"] == "RUN_REFUSED")
    assert refused["message"] == (
        "params.value is a large value; workers that are too old to read it have the tag 'default': old; "
        "update them"
    )


async def test_a_large_value_that_is_gone_fails_its_run_with_its_place(
    gateway: RunningGateway, executions: Executions
) -> None:
    gone = "sha256:" + "1" * 64
    job = a_job(params={"value": {"$ref": gone, "size": 5}}, values=(("params", "value"),), flow_name="kinds")
    revision = await gateway.backend.runs.create(job.run_id, pending(job))
    await gateway.backend.queue.publish(job, revision)

    async def run() -> Any:
        return (await executions.http.get(f"/runs/{job.run_id}")).json()

    ended_run = await until(run, lambda found: found.get("status") == "FAILED")
    assert ended_run["error"] == "params.value: its stored value does not exist any more"
    assert ended_run["failure"]["kind"] == "invalid_job"
