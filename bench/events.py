"""Events a second at one gateway, with keys, receipts and records; and how soon a month is added up."""

import argparse
import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import httpx2

from gateways import HOST, gateway_process, milliseconds, nats_for_a_while
from load import hammer_each, post
from page import Figures, Goal, show, table
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.events.audit import AuditActor, AuditDetails, AuditRecord, StoredEvent
from pyoco_server.wiring import new_run_id, open_events

RATE_GOAL = 300
SUMMARY_GOAL_MS = 200
YM = "2026-02"


def define(http: httpx2.Client) -> None:
    step = {"id": "one", "action": "close", "trigger_kind": "external_event"}
    template = {"name": "Close", "year": 2026, "month": 2, "steps": [step]}
    http.put("/api/workflow-actions/close", json={"flow_name": "f"}).raise_for_status()
    http.put("/api/workflow-templates/close", json=template).raise_for_status()


async def measure_rate(port: int, connections: int, total: int) -> tuple[float, list[float]]:
    numbers = count()

    def request() -> bytes:
        body = f'{{"event_name": "close", "idempotency_key": "k{next(numbers)}", "data": {{"x": 1}}}}'
        return post("/api/workflow-events", body.encode())

    await hammer_each(HOST, port, request, connections=connections, total=300)
    began = time.perf_counter()
    taken = await hammer_each(HOST, port, request, connections=connections, total=total)
    return total / (time.perf_counter() - began), taken


async def write_records(config: NatsBackendConfig, total: int) -> None:
    async with open_events(config, "bench") as events:
        for start in range(0, total, 500):
            await asyncio.gather(*(events.audit.append(a_record(start + n)) for n in range(500)))


def a_record(number: int) -> StoredEvent:
    record = AuditRecord(
        at=f"2026-02-01T00:{number // 60 % 60:02d}:{number % 60:02d}.000Z",
        event_id=new_run_id(),
        ym=YM,
        event_type="workflow_event",
        action="close",
        status="success",
        run_id=new_run_id(),
        actor=AuditActor(ip="127.0.0.1"),
        details=AuditDetails(template_id="close", template_name="Close", idempotency_key=f"k{number}"),
    )
    return StoredEvent(record=record)


def measure_summary(http: httpx2.Client, records: int) -> tuple[float, list[float]]:
    """Seconds until a new gateway has read them all, and then of each request."""
    began = time.perf_counter()
    while (answer := http.get("/api/workflow-events/summary", params={"ym": YM})).status_code == 503:
        time.sleep(0.05)
    until_read = time.perf_counter() - began
    assert answer.json()["total"] >= records, answer.text[:300]
    taken = []
    for _ in range(50):
        started = time.perf_counter()
        http.get("/api/workflow-events/summary", params={"ym": YM, "recent_limit": 200}).raise_for_status()
        taken.append(time.perf_counter() - started)
    return until_read, taken


@contextmanager
def gateway_client(config: NatsBackendConfig) -> Iterator[tuple[int, httpx2.Client]]:
    with (
        gateway_process(config) as gateway,
        httpx2.Client(base_url=f"http://{HOST}:{gateway.port}", timeout=30) as http,
    ):
        yield gateway.port, http


def measure(events: int, records: int, connections: int = 16) -> Figures:
    with nats_for_a_while() as server:
        config = NatsBackendConfig(nats_url=server.url)
        with gateway_client(config) as (port, http):
            define(http)
            rate, taken = asyncio.run(measure_rate(port, connections, events))
        asyncio.run(write_records(config, records))
        with gateway_client(config) as (_, http):
            until_read, asked = measure_summary(http, records)
    worst = milliseconds(asked, 0.99)
    rows = [
        ("events a second", f"{rate:,.0f}"),
        ("one event, p50 and p99", f"{milliseconds(taken):.1f} ms, {milliseconds(taken, 0.99):.1f} ms"),
        (f"summary of {records:,} records, p50 and p99", f"{milliseconds(asked):.1f} ms, {worst:.1f} ms"),
        ("a new gateway has read them after", f"{until_read:.1f} s"),
    ]
    goals = [
        Goal("events a second, one gateway", f"≥ {RATE_GOAL}", f"{rate:,.0f}", rate >= RATE_GOAL),
        Goal(
            f"summary of a month with {records:,} records, p99",
            f"< {SUMMARY_GOAL_MS} ms",
            f"{worst:.1f} ms",
            worst < SUMMARY_GOAL_MS,
        ),
    ]
    return Figures(
        table((f"events with keys, receipts, records; {connections} connections", ""), rows), goals
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--events", type=int, default=4000)
    parser.add_argument("--records", type=int, default=100_000)
    chosen = parser.parse_args()
    show(measure(chosen.events, chosen.records, chosen.connections))


if __name__ == "__main__":
    main()
