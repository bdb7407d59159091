"""Lanes on a real NATS: workers that learn of them, room for many deliveries, undeliverable jobs."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.queues import Lane, with_lane
from pyoco_server.domain.runs.model import Priority
from pyoco_server.usecases.ports.stores import Revision
from pyoco_server.usecases.queues import change_record
from pyoco_server.wiring import open_gateway_backend
from pyoco_server.wiring.gateway_backend import JetStreamGatewayBackend
from support.builders import a_job, a_worker
from support.gateway import gateway
from support.nats_server import raw_nats
from support.waiting import PATIENCE_SEC, until

HIGH = Lane("default", priority=Priority.HIGH)


@pytest.fixture
async def backend(config: NatsBackendConfig) -> AsyncIterator[JetStreamGatewayBackend]:
    async with open_gateway_backend(config) as opened:
        yield opened


async def consumer(config: NatsBackendConfig, lane: Lane) -> dict[str, Any]:
    async with raw_nats(config.nats_url) as client:
        info = await client.jetstream().consumer_info(config.work_stream, lane.durable)
        found: dict[str, Any] = vars(info.config)
        return found


async def test_a_worker_that_waits_gets_the_first_job_of_a_new_lane_at_once(
    config: NatsBackendConfig, backend: JetStreamGatewayBackend
) -> None:
    async with open_gateway_backend(config) as other:
        source = await other.sources.open(("default",))
        waiting = asyncio.ensure_future(source.next(PATIENCE_SEC))
        await backend.lanes.open(HIGH, None)
        await change_record(backend.queues, "default", lambda record: with_lane(record, HIGH))
        job = a_job(priority=Priority.HIGH, lane="high")
        await backend.queue.publish(job, Revision(1))
        delivery = await waiting
        assert delivery is not None
        assert (delivery.job(), delivery.num_delivered) == (job, 1)
        await delivery.ack()
        assert source.has_lanes
        await source.close()


async def test_lanes_cost_nothing_until_there_is_a_job_for_one(
    config: NatsBackendConfig, backend: JetStreamGatewayBackend
) -> None:
    source = await backend.sources.open(("default",))
    await backend.queue.publish(a_job(), Revision(1))
    assert await source.next(PATIENCE_SEC) is not None
    async with raw_nats(config.nats_url) as client:
        found = await client.jetstream().consumers_info(config.work_stream)
        assert [one.name for one in found] == ["pyoco_workers_default"]
        assert found[0].num_waiting <= 1
    await source.close()


async def test_a_thousand_slots_of_one_tag_can_all_be_busy(config: NatsBackendConfig) -> None:
    async with gateway(config) as http, open_gateway_backend(config) as backend:
        source = await backend.sources.open(("default",))
        body = {"runs": [{"flow_name": "f"}] * 1_000}
        assert (await http.post("/runs/batch", json=body)).json()["accepted"] == 1_000
        await backend.workers.create("big", replace(a_worker(worker_id="big"), slots=1_000))
        await until(
            lambda: consumer(config, Lane("default")), lambda found: found["max_ack_pending"] >= 3_000
        )
        held = [await source.next(PATIENCE_SEC, 1_000) for _ in range(1_000)]
        assert None not in held, "all of them are held at the same time"
        await source.close()


async def test_a_limit_that_was_set_by_hand_stays(
    config: NatsBackendConfig, backend: JetStreamGatewayBackend
) -> None:
    await backend.lanes.open(HIGH, None)
    await backend.lanes.make_room(HIGH, 900)
    assert (await consumer(config, HIGH))["max_ack_pending"] == 900
    await backend.lanes.make_room(HIGH, 500)
    assert (await consumer(config, HIGH))["max_ack_pending"] == 900, "never lowered"
    async with raw_nats(config.nats_url) as client:
        js = client.jetstream()
        found = (await js.consumer_info(config.work_stream, HIGH.durable)).config
        found.max_ack_pending = 7
        await js.add_consumer(config.work_stream, found)
    await backend.lanes.make_room(HIGH, 5_000)
    assert (await consumer(config, HIGH))["max_ack_pending"] == 7, (
        "less than the setting: somebody wants that"
    )


async def test_a_high_job_that_uses_up_its_deliveries_ends_its_run(config: NatsBackendConfig) -> None:
    async with gateway(config) as http, open_gateway_backend(config) as backend:
        answer = await http.post("/runs", json={"flow_name": "f", "priority": "high"})
        run_id = answer.json()["run_id"]
        source = await backend.sources.open(("default",))
        for _ in range(config.consumer_max_deliver):
            delivery = await source.next(PATIENCE_SEC)
            assert delivery is not None
            assert delivery.subject.endswith("._high.default")
            await delivery.nak(0)

        async def run() -> dict[str, Any]:
            await source.next(0.1)
            found: dict[str, Any] = (await http.get(f"/runs/{run_id}")).json()
            return found

        ended = await until(run, lambda run: run["status"] == "FAILED")
        assert (ended["failure"]["kind"], ended["priority"]) == ("max_deliver", "high")
        await source.close()
