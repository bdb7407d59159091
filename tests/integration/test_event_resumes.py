"""Events that resume waiting nodes, on a real NATS with several gateways."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from support.events import URL, lines_of
from support.gateway import gateway
from support.http_executions import Executions
from support.nats_server import messages_in
from support.waiting import until

GRAPH: dict[str, Any] = {
    "nodes": {
        "book": {"type": "task", "external": True},
        "approve": {"type": "wait", "wait_key": "${input.ym}"},
    },
    "edges": [{"from": "book", "to": "approve"}],
}


@pytest.fixture
async def two(config: NatsBackendConfig) -> AsyncIterator[list[Executions]]:
    async with AsyncExitStack() as stack:
        found = []
        for number in (1, 2):
            own = replace(config, audit_log_path=f"audit-{number}.jsonl")
            found.append(Executions(await stack.enter_async_context(gateway(own))))
        await found[0].register("g", GRAPH)
        yield found


async def begin(executions: Executions, execution_id: str) -> None:
    await executions.create("g", execution_id=execution_id, input={"ym": "2026-11"})
    await executions.until_node(execution_id, "book", "READY")


async def book(executions: Executions, execution_id: str) -> None:
    await executions.node(execution_id, "book", "start")
    await executions.node(execution_id, "book", "succeed")


async def kept(config: NatsBackendConfig) -> int:
    return await messages_in(config, f"KV_{config.workflow_resumes_kv_bucket}")


async def all_used(config: NatsBackendConfig) -> None:
    await until(lambda: kept(config), lambda count: count == 0)


async def test_early_events_on_one_gateway_resume_what_waits_on_the_other(
    two: list[Executions], config: NatsBackendConfig
) -> None:
    names = [f"e{number}" for number in range(10)]
    for name in names:
        await begin(two[0], name)
        named = {"execution_id": name, "node_id": "approve", "wait_key": "2026-11"}
        answer = await two[1].post(URL, **named, idempotency_key=name, data=name)  # type: ignore[arg-type]
        assert (answer["kept"], answer["execution_id"]) == (True, name)
    assert await kept(config) == 10
    await asyncio.gather(*(book(two[number % 2], name) for number, name in enumerate(names)))
    for name in names:
        ended = await two[1].until_ended(name)
        assert (ended["status"], ended["result"]) == ("COMPLETED", {"approve": name})
        assert (await two[0].types(name)).count("NODE_RESUMED") == 1
    await all_used(config)


async def test_equal_events_on_two_gateways_resume_one_of_the_nodes_that_wait(
    two: list[Executions], config: NatsBackendConfig
) -> None:
    for name in ("first", "second"):
        await begin(two[0], name)
        await book(two[0], name)
        await two[1].until_node(name, "approve", "WAITING")
    posts = [two[number % 2].post(URL, wait_key="2026-11", idempotency_key="k") for number in range(50)]
    answers = await asyncio.gather(*posts)
    assert Counter(answer["duplicate"] for answer in answers) == {False: 1, True: 49}
    places = {answer["execution_id"] for answer in answers if not answer["kept"]}
    assert places == {"first"}
    await two[0].until_ended("first")
    assert (await two[0].get("second"))["nodes"]["approve"]["status"] == "WAITING"
    assert await messages_in(config, config.audit_stream) >= 50
    written = [line for number in (1, 2) for line in lines_of(f"audit-{number}.jsonl")]
    assert Counter(line["event_type"] for line in written)["workflow_event"] == 50
    await all_used(config)


async def test_a_gateway_that_starts_uses_what_was_kept_while_none_was_there(
    config: NatsBackendConfig,
) -> None:
    async with gateway(config) as http:
        executions = Executions(http)
        await executions.register("g", GRAPH)
        await begin(executions, "e1")
        assert (await executions.post(URL, wait_key="2026-11", data=1))["kept"] is True
    deaf = replace(config, workflow_resumes_kv_bucket=f"{config.workflow_resumes_kv_bucket}-other")
    async with gateway(deaf) as http:  # it lets the node wait, and does not know of the event
        executions = Executions(http)
        await book(executions, "e1")
        await executions.until_node("e1", "approve", "WAITING")
    async with gateway(config) as http:
        ended = await Executions(http).until_ended("e1")
        assert ended["result"] == {"approve": 1}
        await all_used(config)
