"""Requests of workers for child runs, to gateways: in memory and over NATS."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pyoco_server.domain.runs.children import ChildAnswer, ChildOrder
from pyoco_server.domain.runs.task_requests import ChildRequest
from pyoco_server.errors import NatsUnavailable, RequestTooLarge
from pyoco_server.memory import MemoryGatewayBackend
from pyoco_server.usecases.ports.runs import ChildRuns
from pyoco_server.wiring.backends import open_worker_backend
from support.backends import World
from support.builders import OWNER, RUN_ID


def order(**params: str) -> ChildOrder:
    return ChildOrder(RUN_ID, OWNER, ChildRequest(key="k", flow_name="child", params=params, tags=("a",)))


@asynccontextmanager
async def asking(world: World) -> AsyncIterator[ChildRuns]:
    """A worker has a connection of its own."""
    if isinstance(world.backend, MemoryGatewayBackend):
        yield world.backend.child_runs
        return
    async with open_worker_backend(world.config, "worker") as worker:
        yield worker.child_runs


async def test_one_gateway_answers_each_request(world: World) -> None:
    heard: list[ChildOrder] = []

    async def answer(order: ChildOrder) -> ChildAnswer:
        heard.append(order)
        return ChildAnswer(run_id=RUN_ID)

    async with asking(world) as children:
        with pytest.raises(NatsUnavailable):
            await children.request(order())
        stops = [await world.backend.child_runs.serve(answer) for _ in range(2)]
        await world.backend.storage.check()  # the subscriptions are in force
        assert await children.request(order(x="ä")) == ChildAnswer(run_id=RUN_ID)
        assert heard == [order(x="ä")]
        for stop in stops:
            await stop()
        await world.backend.storage.check()
        with pytest.raises(NatsUnavailable):
            await children.request(order())


async def test_params_that_no_message_can_hold_are_refused(world: World) -> None:
    async with asking(world) as children:
        stop = await world.backend.child_runs.serve(lambda _: pytest.fail("it does not arrive"))
        with pytest.raises(RequestTooLarge):
            await children.request(order(x="x" * 1_100_000))
        await stop()
