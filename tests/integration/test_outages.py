"""NATS goes away, stands still or refuses: nothing is lost, nothing is left behind, nobody waits long."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from nats.js.errors import NotFoundError
from pyoco import Flow, task

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.model import RunSnapshot
from pyoco_server.errors import NatsUnavailable
from pyoco_server.jetstream.connection import RECONNECT_WAIT_SEC, NatsConnection
from pyoco_server.wiring import EmbeddedNats, JetStreamBackend, open_backend
from pyoco_server.wiring.gateway import Tuning
from pyoco_server.wiring.worker import WorkerName, open_thread_worker
from support import flows, printing_flows
from support.captured_logs import capture_logs
from support.gateway import gateway
from support.installation import new_lab
from support.nats_server import free_port, jobs_waiting, messages_in, raw_nats, unique_config
from support.programs import Programs, freeze
from support.silent_proxy import silent_proxy
from support.waiting import PATIENCE_SEC, until
from support.workers import entered, worker

IMPATIENT = Tuning(connect_timeout_sec=0.2)


async def post(client: httpx2.AsyncClient, **body: Any) -> httpx2.Response:
    return await client.post("/runs", json={"flow_name": "chain", **body})


def is_unavailable(answer: httpx2.Response) -> bool:
    return answer.status_code == 503 and answer.json()["err_id"] == "ERR-PYOCO-0003"


async def ready(client: httpx2.AsyncClient) -> None:
    await until(lambda: client.get("/ready"), lambda answer: answer.status_code == 200)


async def test_a_submit_without_nats_is_refused_soon_and_leaves_nothing(own_nats: EmbeddedNats) -> None:
    """REQ-0003"""
    config = unique_config(own_nats.url)
    async with gateway(config) as client:
        own_nats.stop()
        async with asyncio.timeout(PATIENCE_SEC):
            answer = await post(client)
        assert is_unavailable(answer)
        assert answer.headers["retry-after"] == "1"
        assert (await client.get("/health")).json() == {"status": "ok", "nats": "unavailable"}
        assert (await client.get("/ready")).status_code == 503
        own_nats.start()
        await ready(client)
        assert await messages_in(config, f"KV_{config.runs_kv_bucket}") == 0
        assert await jobs_waiting(config) == 0
        assert (await post(client)).status_code == 200


async def test_a_submit_while_nats_stands_still_is_refused_and_taken_back(own_nats: EmbeddedNats) -> None:
    """The write is in the server's socket when it is refused; the server will carry it out later."""
    # Not with the patience of other tests: the request times out before the connection does.
    config = unique_config(own_nats.url, jetstream_timeout_sec=2.0)
    async with gateway(config) as client, open_backend(config, "test") as backend:
        freeze(own_nats.pid)
        try:
            answer = await post(client)
        finally:
            os.kill(own_nats.pid, signal.SIGCONT)
        assert is_unavailable(answer)
        await until(lambda: _mark_of_removal(config), bool)
        assert await jobs_waiting(config) == 0
        assert await _stored(config, backend) == []


async def _mark_of_removal(config: NatsBackendConfig) -> bool:
    async with raw_nats(config.nats_url) as client:
        js = client.jetstream()
        last = (await js.stream_info(f"KV_{config.runs_kv_bucket}")).state.last_seq
        if last == 0:
            return False
        try:
            message = await js.get_msg(f"KV_{config.runs_kv_bucket}", last)
        except NotFoundError:  # it was replaced since we asked
            return False
        return (message.headers or {}).get("KV-Operation") == "PURGE"


async def _runs_left(config: NatsBackendConfig) -> int:
    return await messages_in(config, f"KV_{config.runs_kv_bucket}")


async def _stored(config: NatsBackendConfig, backend: JetStreamBackend) -> list[RunSnapshot]:
    async with raw_nats(config.nats_url) as client:
        info = await client.jetstream().stream_info(f"KV_{config.runs_kv_bucket}", subjects_filter=">")
    keys = [subject.rpartition(".")[2] for subject in info.state.subjects or {}]
    found = [await backend.runs.get(key) for key in keys]
    return [stored.value for stored in found if stored is not None]


async def test_a_run_whose_job_is_refused_has_no_snapshot(config: NatsBackendConfig) -> None:
    """REQ-0003: the work stream is gone, so the publish fails after the snapshot was written."""
    async with gateway(config) as client, open_backend(config, "test") as backend:
        async with raw_nats(config.nats_url) as raw:
            await raw.jetstream().delete_stream(config.work_stream)
        answer = await post(client)
        assert is_unavailable(answer)
        assert await _runs_left(config) == 1, "the mark of the removal"
        assert await _stored(config, backend) == []


async def test_a_full_work_queue_refuses_a_run_as_a_whole(config: NatsBackendConfig) -> None:
    async with raw_nats(config.nats_url) as raw:
        await raw.jetstream().add_stream(
            name=config.work_stream,
            subjects=[f"{config.work_subject_prefix}.>"],
            retention="workqueue",
            max_msgs=1,
            discard="new",
        )
    async with gateway(config) as client, open_backend(config, "test") as backend:
        accepted = (await post(client)).json()["run_id"]
        assert is_unavailable(await post(client))
        delayed = await client.post("/runs", json={"flow_name": "f", "delay_sec": 60})
        assert (delayed.status_code, delayed.json()["err_id"]) == (501, "ERR-PYOCO-0047")
        assert [run.run_id for run in await _stored(config, backend)] == [accepted]


async def test_a_worker_survives_a_restart_of_nats_in_the_middle_of_a_run(own_nats: EmbeddedNats) -> None:
    """REQ-0009"""
    config = unique_config(own_nats.url)
    gate = flows.Gate()
    async with gateway(config) as client, worker(config, {"gated": gate.flow}) as instance:
        run_id = (await post(client, flow_name="gated")).json()["run_id"]
        handling = asyncio.ensure_future(instance.run_once(PATIENCE_SEC))
        await entered(gate.entered)
        own_nats.stop()
        gate.open()
        own_nats.start()
        assert await handling == run_id
        await ready(client)
        run = (await client.get(f"/runs/{run_id}")).json()
        assert (run["status"], run["result"], run["attempt"]) == ("COMPLETED", {"after": "after through"}, 1)
        assert await until(lambda: jobs_waiting(config), lambda count: count == 0) == 0
        again = (await post(client, flow_name="gated")).json()["run_id"]
        assert await instance.run_once(PATIENCE_SEC) == again


async def test_a_run_that_ends_while_nats_is_away_is_written_when_it_is_back(own_nats: EmbeddedNats) -> None:
    """REQ-0009, REQ-0010; the operator reads what cannot be done meanwhile (ERR-PYOCO-0008 and -0009)."""
    config = unique_config(own_nats.url, ack_progress_interval_sec=0.1)
    gate = flows.Gate()
    with capture_logs() as logs:

        async def is_told() -> bool:
            told = {(line.get("action"), line.get("err_id")) for line in logs}
            return {("run.end_delayed", "ERR-PYOCO-0008"), ("job.in_progress", "ERR-PYOCO-0009")} <= told

        await _end_while_nats_is_away(own_nats, config, gate, is_told)


async def _end_while_nats_is_away(
    own_nats: EmbeddedNats,
    config: NatsBackendConfig,
    gate: flows.Gate,
    is_told: Callable[[], Awaitable[bool]],
) -> None:
    async with gateway(config) as client, worker(config, {"gated": gate.flow}) as instance:
        run_id = (await post(client, flow_name="gated")).json()["run_id"]
        handling = asyncio.ensure_future(instance.run_once(PATIENCE_SEC))
        await entered(gate.entered)
        own_nats.stop()
        gate.open()
        await until(is_told)
        assert not handling.done(), "the end cannot be written yet"
        own_nats.start()
        assert await handling == run_id
        await ready(client)
        assert (await client.get(f"/runs/{run_id}")).json()["status"] == "COMPLETED"


@pytest.mark.parametrize("how", ["stopped", "frozen"])
async def test_what_is_printed_while_nats_is_away_is_kept(
    own_nats: EmbeddedNats, programs: Programs, how: str
) -> None:
    """D28: also of a run that ends meanwhile, and it is there when the run has ended."""
    async with new_lab(own_nats.url, programs) as lab:
        async with lab.worker(flows=f"{printing_flows.__file__}:resolve"):
            run_id = await lab.submit("prints_until")
            await lab.reached("printing")
            await until(lambda: _lines_of(lab.http, run_id))
            with _away(own_nats, how):
                await asyncio.sleep(AWAY_SEC)
                lab.let("go")  # the run ends without NATS
                await asyncio.sleep(1.0)
            await ready(lab.http)
            assert (await lab.ended(run_id))["status"] == "COMPLETED"
            *lines, last = await _lines_of(lab.http, run_id)
        assert lines == [f"line {number}" for number in range(len(lines))]
        assert last == f"{len(lines)} lines"


AWAY_SEC = 3.0


@contextmanager
def _away(own_nats: EmbeddedNats, how: str) -> Iterator[None]:
    if how == "stopped":
        own_nats.stop()
        yield
        own_nats.start()
    else:
        freeze(own_nats.pid)
        yield
        os.kill(own_nats.pid, signal.SIGCONT)


async def _lines_of(http: httpx2.AsyncClient, run_id: str) -> list[str]:
    answer = await http.get(f"/runs/{run_id}/logs", params={"cursor": "0"})
    assert answer.status_code == 200, answer.text
    return [line["text"].strip() for line in answer.json()["lines"]]


def _talking() -> Flow:
    @task
    def talk() -> None:
        print("hello")  # noqa: T201

    return Flow(name="talking") >> talk


async def test_a_run_ends_also_when_its_log_cannot_be_written(
    config: NatsBackendConfig,
) -> None:
    """D28"""
    name = WorkerName("worker-a", ("default",))
    async with open_thread_worker(config, name, lambda _: _talking(), log_patience_sec=1.0) as instance:
        await instance.open()
        async with gateway(config) as client:
            run_id = (await post(client, flow_name="talking")).json()["run_id"]
        # Without a gateway: it would create the stream again.
        async with raw_nats(config.nats_url) as raw:
            await raw.jetstream().delete_stream(config.logs_stream)
        with capture_logs() as logs:
            await instance.handle_one(PATIENCE_SEC)
        await instance.close()
    async with gateway(config) as client:
        assert (await client.get(f"/runs/{run_id}")).json()["status"] == "COMPLETED"
    (lost,) = [line for line in logs if line["action"] == "run.log_lost"]
    assert (lost["run_id"], lost["lines"]) == (run_id, 1)


async def test_a_waiting_worker_gets_jobs_after_a_restart_of_nats(own_nats: EmbeddedNats) -> None:
    config = unique_config(own_nats.url)
    async with gateway(config) as client, worker(config, {"chain": flows.chain}) as instance:
        waiting = asyncio.ensure_future(instance.run_once(PATIENCE_SEC))
        own_nats.stop()
        await until(lambda: client.get("/ready"), lambda answer: answer.status_code == 503)
        own_nats.start()
        await ready(client)
        run_id = (await post(client)).json()["run_id"]
        async with asyncio.timeout(
            PATIENCE_SEC
        ):  # it asks again by itself, long before its lost request would expire
            assert await waiting == run_id


async def test_a_gateway_may_be_started_before_nats(tmp_path: Any) -> None:
    port = free_port()
    config = unique_config(f"nats://127.0.0.1:{port}")
    async with gateway(config, tuning=IMPATIENT) as client:
        assert (await client.get("/health")).json()["nats"] == "unavailable"
        assert is_unavailable(await post(client))
        with EmbeddedNats(tmp_path / "late", durability="fast", port=port):
            await ready(client)
            assert (await post(client)).status_code == 200


async def test_a_nats_that_cannot_be_used_after_the_start_is_reported_and_tried_again(
    own_nats: EmbeddedNats,
) -> None:
    """At a start without NATS nobody sees yet that it does not fit. Silence would be 503 for ever."""
    config = unique_config(own_nats.url)
    subjects = [f"{config.work_subject_prefix}.>"]
    async with raw_nats(own_nats.url) as client:
        await client.jetstream().add_stream(name=config.work_stream, subjects=subjects, retention="limits")
    own_nats.stop()
    with capture_logs() as lines:
        async with gateway(config, tuning=IMPATIENT) as client:
            own_nats.start()
            reported = await until(partial(_line, lines, "gateway.nats_unusable"), bool)
            assert is_unavailable(await post(client))
            async with raw_nats(own_nats.url) as nats:
                await nats.jetstream().delete_stream(config.work_stream)
            await ready(client)
            assert (await post(client)).status_code == 200
    assert f"stream {config.work_stream} exists with retention='limits'" in reported["reason"]


async def _line(lines: list[dict[str, Any]], action: str) -> dict[str, Any]:
    return next((line for line in lines if line.get("action") == action), {})


async def test_a_gateway_that_never_found_nats_stops_and_leaves_nothing_running() -> None:
    before = asyncio.all_tasks()
    async with gateway(unique_config(f"nats://127.0.0.1:{free_port()}"), tuning=IMPATIENT) as client:
        assert is_unavailable(await post(client))
    if left := asyncio.all_tasks() - before:
        await asyncio.wait(left, timeout=PATIENCE_SEC)
    assert {task for task in left if not task.done()} == set()


async def test_f6_a_server_that_was_cut_off_is_left_for_another_within_seconds(
    own_nats: EmbeddedNats,
) -> None:
    """F6: a cut says nothing, so that it has to be noticed. It took half a minute once."""
    port = urlsplit(own_nats.url).port
    assert port is not None
    async with silent_proxy(port) as one, silent_proxy(port) as other:
        connection = NatsConnection(f"nats://127.0.0.1:{one.port},nats://127.0.0.1:{other.port}", "test")
        await connection.open()
        used, free = (one, other) if one.connections else (other, one)
        used.cut()
        async with asyncio.timeout(15):
            await until(lambda: _is_answered(connection), bool)
        assert free.connections == 1
        await connection.close()


async def _is_answered(connection: NatsConnection) -> bool:
    try:
        await connection.api("INFO")
    except NatsUnavailable:
        return False
    return True


LISTS = ("/runs", "/workers", "/executions", "/waits")


async def test_lists_without_nats_are_refused_unless_old_ones_will_do(own_nats: EmbeddedNats) -> None:
    """D30, REQ-0006: they answered 200 with old rows, and every worker as disconnected. ERR-PYOCO-0003."""
    config = replace(
        unique_config(own_nats.url), worker_disconnect_timeout_sec=3.0, worker_heartbeat_interval_sec=0.5
    )
    async with gateway(config) as client, worker(config, {}, worker_id="w1"):
        await ready(client)
        run_id = (await post(client)).json()["run_id"]
        await until(lambda: client.get("/workers"), lambda answer: len(answer.json()) == 1)
        for path in LISTS:
            answer = await client.get(path, params={"stale": "ok"})
            assert (answer.status_code, "x-pyoco-stale-sec" in answer.headers) == (200, False)
        own_nats.stop()
        for path in LISTS:
            await until(partial(client.get, path), is_unavailable)
        # Longer than a worker may be silent: it is the gateway that is away.
        answer = await until(
            lambda: client.get("/workers?stale=ok"),
            lambda answer: int(answer.headers["x-pyoco-stale-sec"]) > 4,
        )
        assert [(found["worker_id"], found["state"] != "DISCONNECTED") for found in answer.json()] == [
            ("w1", True)
        ]
        answer = await client.get("/runs?stale=ok")
        assert [run["run_id"] for run in answer.json()] == [run_id]
        assert int(answer.headers["x-pyoco-stale-sec"]) > 4
        own_nats.start()
        for path in LISTS:
            answer = await until(partial(client.get, path), lambda answer: answer.status_code == 200)
            assert "x-pyoco-stale-sec" not in answer.headers
        await until(lambda: client.get("/workers"), lambda answer: len(answer.json()) == 1)


async def test_lists_while_nats_stands_still_are_refused(own_nats: EmbeddedNats) -> None:
    """D30: its socket is open, and it says nothing."""
    config = unique_config(own_nats.url)
    async with gateway(config) as client:
        await ready(client)
        freeze(own_nats.pid)
        try:
            await until(lambda: client.get("/runs"), is_unavailable)
            assert (await client.get("/runs?stale=ok")).status_code == 200
        finally:
            os.kill(own_nats.pid, signal.SIGCONT)
        await until(lambda: client.get("/runs"), lambda answer: answer.status_code == 200)


async def test_a_connection_that_is_closed_while_nats_is_away_does_not_reconnect(
    own_nats: EmbeddedNats,
) -> None:
    """Closed at many moments: a cancel that met a refused connection was lost, one time in twenty."""
    connections = [NatsConnection(own_nats.url, "test") for _ in range(150)]
    for connection in connections:
        await connection.open()
    own_nats.stop()

    async def close(number: int) -> None:
        await asyncio.sleep(RECONNECT_WAIT_SEC * (1 + number / len(connections)))
        await connections[number].close()

    await asyncio.gather(*(close(number) for number in range(len(connections))))
    assert [task for task in asyncio.all_tasks() if "_attempt_reconnect" in repr(task)] == []
