"""Settings of the contract (appendix I): from the environment variable to what it changes in a real NATS.

Those that need more than a gateway, a worker and a NATS are named by the tests that show them.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pyoco_server import ensure_resources
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.fleet import WorkerRecord, WorkerState
from pyoco_server.errors import NatsUnavailable
from pyoco_server.usecases.api_keys import IssueApiKey
from pyoco_server.wiring import EmbeddedNats, new_api_key, new_salt, open_backend
from support import flows
from support.gateway import gateway
from support.installation import environment
from support.nats_server import dead_letters, raw_nats, stored_run, unique_config
from support.programs import freeze
from support.waiting import PATIENCE_SEC, until
from support.wheels import a_wheel, wheel_name
from support.workers import entered, worker

FLOWS = {"chain": flows.chain, "failing": flows.failing}
SOON_SEC = 15.0
"""Long for what is set here, short for the defaults."""


def from_env(config: NatsBackendConfig, **texts: str) -> NatsBackendConfig:
    """The names of the test, and these settings as somebody would type them."""
    return NatsBackendConfig.from_env({**environment(config), **texts})


@asynccontextmanager
async def jetstream(config: NatsBackendConfig) -> AsyncIterator[Any]:
    async with raw_nats(config.nats_url) as client:
        yield client.jetstream()


async def submitted(client: Any, flow_name: str) -> str:
    answer = await client.post("/runs", json={"flow_name": flow_name})
    assert answer.status_code == 200, answer.text
    run_id: str = answer.json()["run_id"]
    return run_id


async def status(client: Any, header: str = "X-None", key: str = "") -> int:
    """Of a request for runs, once the gateway has read them."""

    async def asked() -> int:
        code: int = (await client.get("/runs", headers={header: key})).status_code
        return code

    return await until(asked, lambda code: code != 503)


async def test_everything_is_where_its_setting_puts_it(config: NatsBackendConfig) -> None:
    """PYOCO_NATS_URL, PYOCO_WORK_SUBJECT_PREFIX, PYOCO_DEFAULT_TAG, PYOCO_RUNS_KV_BUCKET,
    PYOCO_WORKERS_KV_BUCKET, PYOCO_DLQ_STREAM, PYOCO_DLQ_SUBJECT_PREFIX, PYOCO_WHEEL_OBJECT_STORE_BUCKET and
    PYOCO_WHEEL_HISTORY_KV_BUCKET."""
    chosen = from_env(config, PYOCO_DEFAULT_TAG="gpu")
    async with gateway(chosen) as client, jetstream(chosen) as js:
        run_id = await submitted(client, "failing")
        queued = await js.get_last_msg(chosen.work_stream, f"{config.work_subject_prefix}.gpu")
        assert run_id.encode() in queued.data
        async with worker(chosen, FLOWS, "w1") as instance:
            assert await instance.run_once(PATIENCE_SEC) == run_id
            assert await (await js.key_value(config.workers_kv_bucket)).get("w1")
        files = {"wheel": (wheel_name(), a_wheel())}
        assert (await client.post("/wheels", files=files)).status_code == 200
        assert (await stored_run(config, run_id) or {})["tag"] == "gpu"
        assert [subject for subject, _ in await dead_letters(config)] == [f"{config.dlq_subject_prefix}.gpu"]
        store = await js.object_store(config.wheel_object_store_bucket)
        assert (await store.get_info(wheel_name())).size == len(a_wheel())
        history = await js.key_value(config.wheel_history_kv_bucket)
        assert len(await history.keys()) == 1


async def test_streams_have_the_limits_that_are_set(config: NatsBackendConfig) -> None:
    """PYOCO_DLQ_MAX_AGE_SEC, PYOCO_DLQ_MAX_BYTES, PYOCO_WHEEL_HISTORY_TTL_SEC; and PYOCO_WORKERS_KV_TTL_SEC,
    on which the registry does not depend any more: a silent worker stays in it."""
    chosen = from_env(
        config,
        PYOCO_DLQ_MAX_AGE_SEC="3600",
        PYOCO_DLQ_MAX_BYTES="65536",
        PYOCO_WHEEL_HISTORY_TTL_SEC="7200",
        PYOCO_WORKERS_KV_TTL_SEC="0.5",
    )
    await ensure_resources(chosen)
    async with jetstream(chosen) as js:
        dlq = (await js.stream_info(config.dlq_stream)).config
        history = (await js.stream_info(f"KV_{config.wheel_history_kv_bucket}")).config
        workers = (await js.stream_info(f"KV_{config.workers_kv_bucket}")).config
    assert (dlq.max_age, dlq.max_bytes) == (3600, 65536)
    assert (history.max_age, workers.max_age) == (7200, 0)


async def test_only_so_many_dead_letters_are_kept(config: NatsBackendConfig) -> None:
    """PYOCO_DLQ_MAX_MSGS"""
    chosen = from_env(config, PYOCO_DLQ_MAX_MSGS="2")
    async with gateway(chosen) as client, worker(chosen, FLOWS) as instance:
        for _ in range(3):
            await submitted(client, "failing")
            await instance.run_once(PATIENCE_SEC)
    async with jetstream(chosen) as js:
        assert (await js.stream_info(config.dlq_stream)).state.messages == 2


async def test_consumers_are_made_as_they_are_set(config: NatsBackendConfig) -> None:
    """PYOCO_CONSUMER_ACK_WAIT_SEC, PYOCO_CONSUMER_MAX_DELIVER, PYOCO_CONSUMER_MAX_ACK_PENDING"""
    chosen = from_env(
        config,
        PYOCO_CONSUMER_ACK_WAIT_SEC="45",
        PYOCO_CONSUMER_MAX_DELIVER="7",
        PYOCO_CONSUMER_MAX_ACK_PENDING="11",
    )
    async with worker(chosen, FLOWS), jetstream(chosen) as js:
        (consumer,) = await js.consumers_info(config.work_stream)
    assert (consumer.config.ack_wait, consumer.config.max_deliver) == (45, 7)
    assert consumer.config.max_ack_pending == 11


async def test_a_run_beats_as_often_as_it_is_set(config: NatsBackendConfig) -> None:
    """PYOCO_RUN_HEARTBEAT_INTERVAL_SEC: twenty beats, which take 20 s by default."""
    chosen = from_env(config, PYOCO_RUN_HEARTBEAT_INTERVAL_SEC="0.05")
    gate = flows.Gate()
    seen: set[float] = set()
    async with gateway(chosen) as client, worker(chosen, {"gated": gate.flow}) as instance:
        run_id = await submitted(client, "gated")
        handling = asyncio.ensure_future(instance.run_once(PATIENCE_SEC))
        await entered(gate.entered)
        began = time.monotonic()

        async def beats() -> int:
            seen.add((await stored_run(config, run_id) or {})["heartbeat_at"])
            return len(seen)

        await until(beats, lambda count: count > 20)
        took = time.monotonic() - began
        gate.open()
        await handling
    assert took < SOON_SEC


async def test_a_worker_beats_as_often_as_it_is_set(config: NatsBackendConfig) -> None:
    """PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC: five beats, which take 25 s by default."""
    chosen = from_env(config, PYOCO_WORKER_HEARTBEAT_INTERVAL_SEC="0.1")
    seen: set[float] = set()
    async with worker(chosen, FLOWS, "w1"), open_backend(chosen, "test") as backend:
        began = time.monotonic()

        async def beats() -> int:
            record = await backend.workers.get("w1")
            assert record is not None
            seen.add(record.value.last_heartbeat_at)
            return len(seen)

        await until(beats, lambda count: count > 5)
        assert time.monotonic() - began < SOON_SEC


async def test_a_silent_worker_is_disconnected_when_it_is_set(config: NatsBackendConfig) -> None:
    """PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC: 20 s by default."""
    chosen = from_env(config, PYOCO_WORKER_DISCONNECT_TIMEOUT_SEC="1.5")
    now = time.time()
    silent = WorkerRecord(
        worker_id="w1",
        instance_id="i",
        state=WorkerState.IDLE,
        tags=("default",),
        last_seen_at=now,
        last_heartbeat_at=now,
    )
    async with gateway(chosen) as client, open_backend(chosen, "test") as backend:
        began = time.monotonic()
        await backend.workers.create("w1", silent)

        async def states() -> list[str]:
            found = (await client.get("/workers?scope=all")).json()
            return [one["state"] for one in found]

        await until(states, lambda found: found == ["DISCONNECTED"])
        assert time.monotonic() - began < SOON_SEC


async def test_a_request_to_nats_waits_as_long_as_it_is_set(own_nats: EmbeddedNats) -> None:
    """PYOCO_JETSTREAM_TIMEOUT_SEC"""
    config = unique_config(own_nats.url)
    patient, impatient = (from_env(config, PYOCO_JETSTREAM_TIMEOUT_SEC=text) for text in ("600", "0.05"))
    async with open_backend(patient, "patient") as waiting, open_backend(impatient, "impatient") as leaving:
        freeze(own_nats.pid)
        asked = asyncio.create_task(waiting.runs.get("missing"))
        with pytest.raises(NatsUnavailable, match="timed out"):
            await leaving.runs.get("missing")
        os.kill(own_nats.pid, signal.SIGCONT)
        assert await asked is None


async def test_keys_are_asked_for_as_it_is_set(config: NatsBackendConfig) -> None:
    """PYOCO_HTTP_AUTH_MODE, PYOCO_HTTP_API_KEY_HEADER, PYOCO_AUTH_KV_BUCKET, PYOCO_AUTH_PEPPER"""
    texts = {"PYOCO_HTTP_AUTH_MODE": "api_key", "PYOCO_HTTP_API_KEY_HEADER": "X-Our-Key"}
    chosen = from_env(config, **texts, PYOCO_AUTH_PEPPER="salt of the earth")
    async with open_backend(chosen, "test") as backend, jetstream(chosen) as js:
        issue = IssueApiKey(backend.api_keys, time.time, chosen.auth_pepper)
        issued = await issue("team", new_api_key(), new_salt())
        assert await (await js.key_value(config.auth_kv_bucket)).keys() == [f"api_keys.{issued.key_id}"]
    key = issued.api_key
    async with gateway(from_env(config)) as client:
        assert await status(client) == 200
    async with gateway(chosen) as client:
        assert await status(client) == 401
        assert await status(client, "X-API-Key", key) == 401
        assert await status(client, "X-Our-Key", key) == 200
    async with gateway(from_env(config, **texts, PYOCO_AUTH_PEPPER="another")) as client:
        assert await status(client, "X-Our-Key", key) == 403


@pytest.mark.parametrize(("setting", "letters"), [("no", []), ("yes", ["execution_error"])])
async def test_dead_letters_of_failed_runs_are_written_where_that_is_set(
    config: NatsBackendConfig, setting: str, letters: list[str]
) -> None:
    """PYOCO_DLQ_PUBLISH_EXECUTION_ERROR; D39: yes and no will do."""
    chosen = from_env(config, PYOCO_DLQ_PUBLISH_EXECUTION_ERROR=setting)
    async with gateway(chosen) as client, worker(chosen, FLOWS) as instance:
        await submitted(client, "failing")
        await instance.run_once(PATIENCE_SEC)
    assert [letter["reason"] for _, letter in await dead_letters(config)] == letters
