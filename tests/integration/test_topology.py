"""REQ-0007: what must exist is created, what exists is kept, what cannot work is refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any

import pytest

from pyoco_server import ensure_resources
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import IncompatibleNats, NatsUnavailable
from pyoco_server.jetstream import nats_server
from pyoco_server.jetstream.admin import restore_stream, save_stream
from pyoco_server.jetstream.connection import ApiError, NatsConnection
from pyoco_server.jetstream.streams import CREATE_ATTEMPTS, ensure_stream, kv_bucket, stream_config
from pyoco_server.wiring import EmbeddedNats, open_backend
from support import flows
from support.captured_logs import capture_logs
from support.gateway import gateway
from support.nats_server import free_port, raw_nats, streams_of, unique_config
from support.waiting import PATIENCE_SEC, until
from support.workers import worker


@asynccontextmanager
async def jetstream(config: NatsBackendConfig) -> AsyncIterator[Any]:
    async with raw_nats(config.nats_url) as client:
        yield client.jetstream()


class ToStartingCluster(NatsConnection):
    """Places no stream at first: a node that has just started is offline until it has reported."""

    refusals = 2
    reply = "no suitable peers for placement, peer offline"

    async def api(self, verb: str, *arguments: Any) -> dict[str, Any]:
        if verb.startswith(("STREAM.CREATE", "STREAM.RESTORE")) and self.refusals:
            self.refusals -= 1
            raise ApiError(10005, self.reply)
        return await super().api(verb, *arguments)


@asynccontextmanager
async def starting_cluster(config: NatsBackendConfig) -> AsyncIterator[ToStartingCluster]:
    connection = ToStartingCluster(config.nats_url, "test")
    await connection.open()
    yield connection
    await connection.close()


async def test_creation_and_restore_wait_for_the_nodes_of_a_cluster(
    config: NatsBackendConfig, tmp_path: Path
) -> None:
    spec = kv_bucket(config.runs_kv_bucket, "runs")
    async with starting_cluster(config) as connection:
        with capture_logs() as logged:
            await ensure_stream(connection, spec, replicas=1)
        assert [entry["action"] for entry in logged] == ["stream.waits_for_nodes"]
        saved = await save_stream(connection, spec.name, tmp_path)
        assert saved is not None
        await connection.api(f"STREAM.DELETE.{spec.name}")
        connection.refusals = 2
        await restore_stream(connection, saved, tmp_path, replicas=1)
        assert connection.refusals == 0
        assert await stream_config(connection, spec.name) is not None


async def test_a_cluster_without_enough_nodes_is_reported_at_once(config: NatsBackendConfig) -> None:
    async with starting_cluster(config) as connection:
        connection.reply = "no suitable peers for placement"
        with pytest.raises(ApiError, match="no suitable peers"):
            await ensure_stream(connection, kv_bucket(config.runs_kv_bucket, "runs"), replicas=1)
        assert connection.refusals == 1


class LosesReplies(NatsConnection):
    """Its first `lost` creations are carried out and not answered, as when a leader changes."""

    lost = 0

    async def api(self, verb: str, *arguments: Any) -> dict[str, Any]:
        answer = await super().api(verb, *arguments)
        if verb.startswith("STREAM.CREATE") and self.lost:
            self.lost -= 1
            raise NatsUnavailable("nats unavailable: no reply in time")
        return answer


@asynccontextmanager
async def losing(config: NatsBackendConfig, replies: int) -> AsyncIterator[NatsConnection]:
    connection = LosesReplies(config.nats_url, "test")
    connection.lost = replies
    await connection.open()
    yield connection
    await connection.close()


async def test_a_creation_that_is_not_answered_is_tried_again(config: NatsBackendConfig) -> None:
    async with losing(config, replies=CREATE_ATTEMPTS - 1) as connection:
        found = await ensure_stream(connection, kv_bucket(config.runs_kv_bucket, "runs"), replicas=1)
        assert found["name"] == f"KV_{config.runs_kv_bucket}"
    async with losing(config, replies=CREATE_ATTEMPTS) as connection:
        with pytest.raises(NatsUnavailable):
            await ensure_stream(connection, kv_bucket(config.workers_kv_bucket, "workers"), replicas=1)


async def test_everything_is_created_once_and_found_again(config: NatsBackendConfig) -> None:
    await ensure_resources(config)
    await ensure_resources(config)
    async with jetstream(config) as js:
        found = {name: (await js.stream_info(name)).config for name in streams_of(config)}
    work, dlq = found[config.work_stream], found[config.dlq_stream]
    assert (work.subjects, work.retention) == ([f"{config.work_subject_prefix}.>"], "workqueue")
    assert (dlq.subjects, dlq.retention) == ([f"{config.dlq_subject_prefix}.>"], "limits")
    assert (dlq.max_age, dlq.max_msgs, dlq.max_bytes) == (604_800, 100_000, 536_870_912)
    for bucket in (config.runs_kv_bucket, config.workers_kv_bucket):
        assert (found[f"KV_{bucket}"].max_msgs_per_subject, found[f"KV_{bucket}"].max_age) == (1, 0)
    assert {stream.num_replicas for stream in found.values()} == {1}


async def test_many_starts_at_once_do_not_get_in_each_others_way(config: NatsBackendConfig) -> None:
    await asyncio.gather(*(ensure_resources(config) for _ in range(5)))
    async with jetstream(config) as js:
        for name in streams_of(config):
            await js.stream_info(name)


async def test_the_buckets_are_those_that_every_client_knows(config: NatsBackendConfig) -> None:
    await ensure_resources(config)
    async with jetstream(config) as js:
        bucket = await js.key_value(config.runs_kv_bucket)
        await bucket.put("key", b"value")
        assert (await bucket.get("key")).value == b"value"
        store = await js.object_store(config.wheel_object_store_bucket)
        await store.put("wheel", b"bytes")


async def test_streams_that_an_operator_tuned_are_kept(config: NatsBackendConfig) -> None:
    async with jetstream(config) as js:
        subjects = [f"{config.work_subject_prefix}.>"]
        await js.add_stream(name=config.work_stream, subjects=subjects, retention="workqueue", max_msgs=77)
        await js.add_stream(name=config.dlq_stream, subjects=[f"{config.dlq_subject_prefix}.>"], max_msgs=5)
        await ensure_resources(config)
        assert (await js.stream_info(config.work_stream)).config.max_msgs == 77
        assert (await js.stream_info(config.dlq_stream)).config.max_msgs == 5


async def test_a_worker_bucket_with_a_ttl_is_respected(config: NatsBackendConfig) -> None:
    async with jetstream(config) as js:
        await js.create_key_value(bucket=config.workers_kv_bucket, ttl=60)
        async with worker(config, {}):
            info = await js.stream_info(f"KV_{config.workers_kv_bucket}")
    assert info.config.max_age == 60


async def test_a_consumer_that_an_operator_tuned_is_kept(config: NatsBackendConfig) -> None:
    await ensure_resources(config)
    async with jetstream(config) as js:
        await js.add_consumer(
            config.work_stream,
            durable_name="pyoco_workers_default",
            ack_policy="explicit",
            ack_wait=123,
            max_deliver=4,
            filter_subject=f"{config.work_subject_prefix}.default",
        )
        async with gateway(config) as client, worker(config, {"chain": flows.chain}) as instance:
            run_id = (await client.post("/runs", json={"flow_name": "chain"})).json()["run_id"]
            assert await instance.run_once(PATIENCE_SEC) == run_id
        tuned = (await js.consumer_info(config.work_stream, "pyoco_workers_default")).config
    assert (tuned.ack_wait, tuned.max_deliver) == (123, 4)


async def test_a_new_consumer_has_the_values_of_the_settings(config: NatsBackendConfig) -> None:
    tuned = replace(
        config,
        consumer_ack_wait_sec=45,
        consumer_max_deliver=7,
        consumer_max_ack_pending=33,
        default_tag="gpu",
    )
    async with worker(tuned, {}), jetstream(config) as js:
        found = (await js.consumer_info(config.work_stream, "pyoco_workers_gpu")).config
    assert (found.ack_wait, found.max_deliver, found.max_ack_pending) == (45, 7, 33)
    assert (found.ack_policy, found.filter_subject) == ("explicit", f"{config.work_subject_prefix}.gpu")


async def test_an_installation_of_an_older_version_gets_settings_of_flows(config: NatsBackendConfig) -> None:
    await ensure_resources(config)
    async with jetstream(config) as js:
        await js.delete_stream(f"KV_{config.flows_kv_bucket}")
    async with gateway(config) as http:
        assert (await http.put("/flows/f", json={"timeout_sec": 5})).status_code == 200
        run_id = (await http.post("/runs", json={"flow_name": "f"})).json()["run_id"]
        assert (await http.get(f"/runs/{run_id}")).json()["timeout_sec"] == 5


async def test_gateways_share_the_settings_of_flows_and_keep_them(config: NatsBackendConfig) -> None:
    async def timeout(http: Any) -> Any:
        run_id = (await http.post("/runs", json={"flow_name": "f"})).json()["run_id"]
        return (await http.get(f"/runs/{run_id}")).json()["timeout_sec"]

    async with gateway(config) as one, gateway(config) as other:
        for body, expected in (({"timeout_sec": 5}, 5), ({"timeout_sec": 6}, 6), ({}, None)):
            assert (await one.put("/flows/f", json=body)).status_code == 200
            assert await timeout(one) == expected
            await until(partial(timeout, other), partial(eq, expected))
        changes = [http.put("/flows/f", json={"owner": f"{n}"}) for n in range(20) for http in (one, other)]
        assert {answer.status_code for answer in await asyncio.gather(*changes)} == {200}

        async def owners() -> set[str]:
            return {(await http.get("/flows/f")).json()["owner"] for http in (one, other)}

        await until(owners, lambda found: len(found) == 1)
        await one.put("/flows/f", json={"timeout_sec": 9})
    async with gateway(config) as later:
        assert await timeout(later) == 9, "also right after a start, before the feed is read"


async def test_an_installation_of_an_older_version_gets_schedules(config: NatsBackendConfig) -> None:
    """Its streams lack those of schedules, and no stream allows timers."""
    await ensure_resources(config)
    async with jetstream(config) as js:
        for bucket in (config.schedules_kv_bucket, config.ticks_kv_bucket):
            await js.delete_stream(f"KV_{bucket}")
        await js.delete_stream(config.timers_stream)
    async with gateway(config) as http:
        body = {"target": {"flow": "f"}, "every_sec": 1}
        assert (await http.put("/schedules/s", json=body)).status_code == 201

        async def last_tick() -> Any:
            return (await http.get("/schedules/s")).json()["last_tick"]

        assert (await until(last_tick, bool))["status"] == "STARTED"


async def test_a_consumer_that_somebody_deleted_is_made_again(config: NatsBackendConfig) -> None:
    async with gateway(config) as client, worker(config, {"chain": flows.chain}) as instance:
        waiting = asyncio.ensure_future(instance.run_once(PATIENCE_SEC))
        async with jetstream(config) as js:
            await js.delete_consumer(config.work_stream, "pyoco_workers_default")
        run_id = (await client.post("/runs", json={"flow_name": "chain"})).json()["run_id"]
        assert await waiting == run_id


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"retention": "limits"}, "retention='limits', but 'workqueue' is required"),
        ({"retention": "workqueue", "subjects": ["elsewhere.>"]}, "subjects="),
    ],
)
async def test_a_stream_that_cannot_work_stops_the_start_with_a_clear_text(
    config: NatsBackendConfig, wrong: dict[str, Any], named: str
) -> None:
    subjects = wrong.pop("subjects", [f"{config.work_subject_prefix}.>"])
    async with jetstream(config) as js:
        await js.add_stream(name=config.work_stream, subjects=subjects, **wrong)
    with pytest.raises(
        IncompatibleNats, match=f"work queue stream {config.work_stream} exists with"
    ) as raised:
        async with gateway(config):
            pass
    assert named in str(raised.value)


async def made_by_nats_py(js: Any, bucket: str) -> None:
    await js.create_key_value(bucket=bucket)


async def made_by_an_old_client(js: Any, bucket: str) -> None:
    """The least that makes a bucket."""
    await js.add_stream(
        name=f"KV_{bucket}", subjects=[f"$KV.{bucket}.>"], max_msgs_per_subject=1, allow_rollup_hdrs=True
    )


@pytest.mark.parametrize("make", [made_by_nats_py, made_by_an_old_client])
async def test_buckets_of_other_makes_work(config: NatsBackendConfig, make: Any) -> None:
    """Without direct gets, and perhaps without TTLs of messages."""
    async with jetstream(config) as js:
        for bucket in (config.runs_kv_bucket, config.workers_kv_bucket):
            await make(js, bucket)
        info = (await js.stream_info(f"KV_{config.runs_kv_bucket}")).config
    assert not info.allow_direct
    async with gateway(config) as client, worker(config, {"chain": flows.chain}) as instance:
        run_id = (await client.post("/runs", json={"flow_name": "chain"})).json()["run_id"]
        assert await instance.run_once(PATIENCE_SEC) == run_id
        assert (await client.get(f"/runs/{run_id}")).json()["status"] == "COMPLETED"
        async with open_backend(config, "test") as backend:
            await backend.runs.remove(run_id, None)
        assert (await client.get(f"/runs/{run_id}")).status_code == 404


async def test_d57_on_a_small_disk_the_logs_reserve_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D57: with 4 GiB free the gateway never got ready: the logs reserve 3.5 GiB, JetStream has three."""
    small = nats_server._CONFIG.replace("jetstream {{", "jetstream {{\n  max_file_store: 1GB")
    monkeypatch.setattr(nats_server, "_CONFIG", small)
    with EmbeddedNats(tmp_path / "nats", durability="fast", port=free_port()) as server:
        config = unique_config(server.url)
        with capture_logs() as logs:
            await ensure_resources(config)
        async with jetstream(config) as js:
            audit = (await js.stream_info(config.audit_stream)).config
    assert 0 < audit.max_bytes < config.audit_max_bytes
    less = [line for line in logs if line["action"] == "stream.reserves_less"]
    assert config.audit_stream in {line["stream"] for line in less}


async def test_d57_a_disk_that_is_too_small_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D57: a clear text instead of an error code."""
    tiny = nats_server._CONFIG.replace("jetstream {{", "jetstream {{\n  max_file_store: 1MB")
    monkeypatch.setattr(nats_server, "_CONFIG", tiny)
    with EmbeddedNats(tmp_path / "nats", durability="fast", port=free_port()) as server:
        config = unique_config(server.url)
        with pytest.raises(NatsUnavailable, match="JetStream has no space for the dead letter stream"):
            await ensure_resources(config)
