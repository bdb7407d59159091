"""The first start with a retention: what has expired is removed gently, and no request waits for it."""

import asyncio
import json
import time
from dataclasses import replace as configured
from functools import partial

import pytest
from msgspec.structs import replace

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.errors import NatsUnavailable
from pyoco_server.usecases.consistency import change_value
from pyoco_server.usecases.services.retention import BUSY_SEC, MARGIN_SEC, RUNS_AT_ONCE
from pyoco_server.wiring import EmbeddedNats, open_backend
from support.builders import a_snapshot
from support.gateway_process import GatewayProcess, gateway_process
from support.loop_lag import LoopLag
from support.nats_server import delete_streams_of, unique_config
from support.programs import Programs
from support.waiting import load_factor, until, until_now

AT_ONCE = 100
COUNT = 20_000
TURNS = 4
KEEP_SEC = 1.0
LAG_SEC = 0.1


def an_ended_run(number: int) -> RunSnapshot:
    return replace(a_snapshot(RunStatus.COMPLETED), run_id=f"0190c0de-0000-7000-8000-{number:012d}")


async def store_ended_runs(config: NatsBackendConfig, count: int) -> None:
    async with open_backend(config, "test") as backend:

        async def is_stored(number: int) -> bool:
            run = an_ended_run(number)
            try:
                await change_value(backend.runs, run.run_id, lambda known: run if known is None else None)
            except NatsUnavailable:
                return False
            return True

        for start in range(0, count, AT_ONCE):
            part = range(start, min(count, start + AT_ONCE))
            await asyncio.gather(*(until(partial(is_stored, number)) for number in part))


def removed_by(gateway: GatewayProcess) -> list[int]:
    """Of each turn."""
    lines = [line for line in gateway.program.output.splitlines() if '"retention.removed"' in line]
    return [json.loads(line)["count"] for line in lines]


@pytest.mark.long
def test_twenty_thousand_expired_runs_hold_up_no_request_at_the_first_start(
    nats_server: EmbeddedNats, programs: Programs
) -> None:
    """Stored without a retention, as before an upgrade. Their age is that of their record in the store."""
    config = unique_config(nats_server.url, runs_retention_sec=0.0)
    try:
        asyncio.run(store_ended_runs(config, COUNT))
        expired_at = time.monotonic() + KEEP_SEC + MARGIN_SEC + 1
        until_now(lambda: time.monotonic() > expired_at)
        with gateway_process(programs, configured(config, runs_retention_sec=KEEP_SEC)) as gateway:
            began = time.monotonic()
            with LoopLag(gateway) as lag:
                until_now(lambda: removed_by(gateway), lambda counts: len(counts) >= TURNS)
            took = time.monotonic() - began
            assert set(removed_by(gateway)[:TURNS]) == {RUNS_AT_ONCE}
        print(f"{TURNS} turns in {took:.1f} s, /health at most {lag.worst_sec * 1000:.0f} ms")  # noqa: T201
        assert lag.polls > 0
        assert lag.worst_sec <= LAG_SEC * load_factor()
        assert took >= (TURNS - 1) * BUSY_SEC
    finally:
        asyncio.run(delete_streams_of(config))
