"""REQ-0010: what has to be done again and again goes on, whatever one of those who are called does."""

import asyncio
from contextlib import ExitStack

from pyoco_server.errors import NatsUnavailable, ProgressNotSent
from pyoco_server.worker.pipeline import PeriodicCalls
from support.captured_logs import capture_logs
from support.waiting import until


async def test_a_bug_in_one_beat_is_logged_as_one_and_stops_no_other() -> None:
    """D17"""
    beaten = 0

    async def buggy() -> None:
        raise TypeError("a bug of ours")

    async def away() -> None:
        raise NatsUnavailable

    async def healthy() -> None:
        nonlocal beaten
        beaten += 1

    async def count() -> int:
        return beaten

    pulse = PeriodicCalls(lambda: 0.01, "job.in_progress", ProgressNotSent)
    with capture_logs() as logged, ExitStack() as registered:
        for beat in (buggy, away, healthy):
            registered.enter_context(pulse.calling(beat))
        running = asyncio.ensure_future(pulse.run())
        await until(count, lambda beats: beats > 2)
        running.cancel()
    errors = [line for line in logged if line["log_level"] == "error"]
    warnings = [line for line in logged if line["log_level"] == "warning"]
    assert {(type(line["exc_info"]), line.get("err_id")) for line in errors} == {(TypeError, None)}
    assert {(type(line["exc_info"]), line["err_id"]) for line in warnings} == {
        (NatsUnavailable, "ERR-PYOCO-0009")
    }
