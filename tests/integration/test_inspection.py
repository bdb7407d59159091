"""REQ-0021: what the doctor sees of a real NATS. It changes nothing there."""

from dataclasses import replace

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import NatsUnavailable
from pyoco_server.wiring import ensure_resources, inspect_nats
from support.nats_server import free_port, put_message, raw_nats, streams_of


async def test_what_is_missing_is_reported_and_not_made(config: NatsBackendConfig) -> None:
    for _ in range(2):
        report = await inspect_nats(config)
        assert {stream.state for stream in report.streams} == {"missing"}
        assert (report.workers, report.waiting) == ([], {})


async def test_what_is_as_configured_is_fine(config: NatsBackendConfig) -> None:
    await ensure_resources(config)
    report = await inspect_nats(config)
    assert {stream.state for stream in report.streams} == {"ok"}
    assert set(streams_of(config)) <= {stream.name for stream in report.streams}
    assert abs(report.clock_ahead_sec) < 1, "it is the same machine"


async def test_settings_that_do_not_hold_are_named(config: NatsBackendConfig) -> None:
    await ensure_resources(config)
    report = await inspect_nats(replace(config, dlq_max_msgs=5))
    (different,) = [stream for stream in report.streams if stream.state != "ok"]
    assert (different.name, different.state) == (config.dlq_stream, "different")
    assert different.differences == "max_msgs 100000 not 5"


async def test_a_stream_with_which_the_product_cannot_work_is_named(config: NatsBackendConfig) -> None:
    async with raw_nats(config.nats_url) as client:
        await client.jetstream().add_stream(name=config.work_stream, subjects=["something.else"])
    report = await inspect_nats(config)
    (unusable,) = [stream for stream in report.streams if stream.state == "unusable"]
    assert unusable.name == config.work_stream
    assert "subjects ['something.else'] not" in unusable.differences


async def test_waiting_jobs_are_counted_by_tag(config: NatsBackendConfig) -> None:
    await ensure_resources(config)
    for tag in ("gpu", "gpu", "cpu"):
        await put_message(config, b"{}", tag)
    assert (await inspect_nats(config)).waiting == {"gpu": 2, "cpu": 1}


async def test_a_nats_that_is_not_there_is_told(config: NatsBackendConfig) -> None:
    with pytest.raises(NatsUnavailable, match="no NATS server responds"):
        await inspect_nats(replace(config, nats_url=f"nats://127.0.0.1:{free_port()}"))
