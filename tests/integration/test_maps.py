"""A map in a graph in a graph, on JetStream, with a worker, while the gateway is replaced."""

import asyncio
import threading
from collections import Counter
from typing import Any

from pyoco import Flow, task

from pyoco_server.config import NatsBackendConfig
from support.gateway import gateway
from support.http_executions import Executions, graph
from support.nats_server import jobs_waiting
from support.waiting import PATIENCE_SEC, until
from support.workers import worker

N, HELD_FROM = 150, 60


class Held:
    """A flow that doubles its number, and waits for the test from a certain number on."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.calls: Counter[int] = Counter()

    def flow(self) -> Flow:
        @task
        def doubled(n: int) -> int:
            self.calls[n] += 1
            if n >= HELD_FROM and not self.opened.wait(PATIENCE_SEC):
                raise TimeoutError("nobody opened it")
            return 2 * n

        return Flow(name="held") >> doubled


async def runs_of(executions: Executions) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = (await executions.http.get("/runs", params={"limit": 200})).json()
    return runs


async def test_every_item_runs_once_although_the_gateway_is_replaced(config: NatsBackendConfig) -> None:
    held = Held()
    each = {"type": "map", "over": "${input}", "node": {"flow": "held", "params": {"n": "${item}"}}}
    async with worker(config, {"held": held.flow}) as instance:
        working = asyncio.ensure_future(instance.run())
        async with gateway(config) as client:
            executions = Executions(client)
            await until(lambda: client.get("/ready"), lambda answer: answer.status_code == 200)
            await executions.register("below", graph({"each": {**each, "max_parallel": 8}}))
            above = {"type": "execution", "graph": "below", "input": "${input}"}
            await executions.register("above", graph({"all": above}))
            await executions.create("above", execution_id="e", input=list(range(N)))
            await until(lambda: runs_of(executions), lambda runs: len(runs) == HELD_FROM + 8)
        async with gateway(config) as client:
            executions = Executions(client)
            await until(lambda: client.get("/ready"), lambda answer: answer.status_code == 200)
            held.opened.set()
            ended = await executions.until_ended("e")
            child = await executions.get(ended["nodes"]["all"]["child_execution_id"])
            types = Counter(await executions.types(child["execution_id"]))
            runs = await runs_of(executions)
        instance.stop()
        await working
    assert (ended["status"], ended["result"]) == (
        "COMPLETED",
        {"all": {"each": [{"doubled": 2 * n} for n in range(N)]}},
    )
    assert child["nodes"]["each"]["items"]["succeeded"] == N
    assert (len(runs), {run["attempt"] for run in runs}, held.calls) == (N, {1}, Counter(range(N)))
    assert types["MAP_ITEMS_ENDED"] < N / 4
    assert await jobs_waiting(config) == 0
