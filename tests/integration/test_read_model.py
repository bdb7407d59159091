"""REQ-0006, REQ-0014: the gateway's picture of the runs on a real server, whatever happens to either."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from nats.aio.msg import Msg

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.runs.changes import Beat, Claim, Conclude, RunChange, decide
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.http_api import create_app
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.feed import _Reading
from pyoco_server.wiring import EmbeddedNats, JetStreamBackend, new_run_id, open_backend
from pyoco_server.wiring.gateway import Tuning
from support.builders import NOW, OWNER, a_snapshot
from support.captured_logs import capture_logs
from support.gateway import gateway, running
from support.nats_server import raw_nats, unique_config
from support.waiting import until
from support.watching import stream

SOON = Tuning(expire_interval_sec=0.1)


async def put(backend: JetStreamBackend, **fields: Any) -> str:
    run_id = new_run_id()
    await backend.runs.create(run_id, a_snapshot(run_id=run_id, **fields))
    return run_id


async def write_raw(config: NatsBackendConfig, values: dict[str, bytes]) -> None:
    """Many records at once, as writers of any make would leave them."""
    async with raw_nats(config.nats_url) as client:
        for key, data in values.items():
            await client.publish(f"$KV.{config.runs_kv_bucket}.{key}", data)
        await client.flush()


def a_record(run_id: str, **fields: Any) -> bytes:
    return codec.encode(a_snapshot(run_id=run_id, **fields))


async def listed(client: httpx2.AsyncClient, more: str = "") -> list[str]:
    answer = await client.get(f"/runs?limit=200{more}")
    return [run["run_id"] for run in answer.json()] if answer.status_code == 200 else []


async def count(client: httpx2.AsyncClient) -> float:
    answer = await client.get("/metrics")
    if answer.status_code != 200:
        return -1
    lines = [line for line in answer.text.splitlines() if line.startswith("pyoco_runs_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def shows(client: httpx2.AsyncClient, *run_ids: str) -> None:
    await until(lambda: count(client), lambda found: found == len(run_ids))
    await until(lambda: listed(client), lambda found: set(found) == set(run_ids))


@asynccontextmanager
async def opened(
    config: NatsBackendConfig, **given: Any
) -> AsyncIterator[tuple[httpx2.AsyncClient, JetStreamBackend]]:
    async with gateway(config, **given) as client, open_backend(config, "test") as backend:
        yield client, backend


async def test_two_gateways_see_each_others_runs(config: NatsBackendConfig) -> None:
    async with gateway(config) as one, gateway(config) as two:
        first = (await one.post("/runs", json={"flow_name": "f"})).json()["run_id"]
        second = (await two.post("/runs", json={"flow_name": "f"})).json()["run_id"]
        for client in (one, two):
            await shows(client, first, second)
        await one.post(f"/runs/{second}/cancel")
        await until(
            lambda: two.get("/runs?status=CANCELLED"),
            lambda answer: [run["run_id"] for run in answer.json()] == [second],
        )


async def test_a_cursor_of_one_gateway_leads_on_at_another(config: NatsBackendConfig) -> None:
    async with gateway(config) as one, gateway(config) as two:
        ids = [(await one.post("/runs", json={"flow_name": "f"})).json()["run_id"] for _ in range(5)]
        page = (await one.get("/runs?updated_after=0&limit=3")).json()
        await shows(two, *ids)
        rest = (await two.get(f"/runs?limit=3&cursor={page['next_cursor']}")).json()
    assert [run["run_id"] for run in page["items"] + rest["items"]] == ids[::-1]


async def test_a_watch_at_another_gateway_is_told_of_every_change(config: NatsBackendConfig) -> None:
    """REQ-0019"""
    app = create_app(config)
    async with gateway(config) as one, running(app):
        run_id = (await one.post("/runs", json={"flow_name": "f"})).json()["run_id"]
        async with stream(app, f"/runs/{run_id}/watch") as watching:
            assert (await watching.next()).data["snapshot"]["status"] == "PENDING"
            await one.post(f"/runs/{run_id}/cancel")
            events = await watching.rest()
        assert events[-1].data["snapshot"]["status"] == "CANCELLED"


async def test_what_is_there_before_the_start_is_read_before_ready(config: NatsBackendConfig) -> None:
    """503 while the list is incomplete, never a list that leaves something out."""
    async with open_backend(config, "test"):
        pass
    await write_raw(config, {run_id: a_record(run_id) for run_id in (new_run_id() for _ in range(3000))})
    async with gateway(config) as client:
        seen: list[tuple[int, int]] = []

        async def look() -> bool:
            ready, answer = await client.get("/ready"), await client.get("/runs?limit=200")
            seen.append((ready.status_code, answer.status_code))
            if answer.status_code == 200:
                assert await count(client) == 3000
            else:
                assert answer.json()["err_id"] == "ERR-PYOCO-0003"
                assert answer.headers["retry-after"] == "1"
            return ready.status_code == 200

        await until(look)
    assert seen[0] == (503, 503), "there is a lot to read"
    assert seen[-1] == (200, 200)


async def test_the_picture_survives_a_restart_of_nats(own_nats: EmbeddedNats) -> None:
    config = unique_config(own_nats.url)
    async with opened(config) as (client, backend):
        first = await put(backend)
        await shows(client, first)
        own_nats.stop()
        await until(lambda: client.get("/ready"), lambda answer: answer.status_code == 503)
        assert await listed(client, "&stale=ok") == [first], "what is known is shown to who asks for it"
        own_nats.start()
        await until(lambda: client.get("/ready"), lambda answer: answer.status_code == 200)
        second = (await client.post("/runs", json={"flow_name": "f"})).json()["run_id"]
        await shows(client, first, second)


@pytest.fixture
def leak(monkeypatch: pytest.MonkeyPatch, config: NatsBackendConfig) -> "Leak":
    """Messages of runs that are sent and never arrive, while it is open."""
    found = Leak(f"$KV.{config.runs_kv_bucket}.")
    receive = _Reading._receive

    def receive_or_lose(reading: "_Reading[Any]", message: Msg) -> None:
        if found.is_open and message.subject.startswith(found.prefix):
            found.lost.append((message.subject.removeprefix(found.prefix), reading._connection))
        else:
            receive(reading, message)

    monkeypatch.setattr(_Reading, "_receive", receive_or_lose)
    return found


@dataclass
class Leak:
    prefix: str
    is_open: bool = False
    lost: list[tuple[str, NatsConnection]] = field(default_factory=list)

    async def has_taken(self, run_id: str) -> bool:
        return run_id in [key for key, _ in self.lost]


async def test_what_was_lost_on_the_way_is_read_again_with_the_next_news(
    config: NatsBackendConfig, leak: Leak
) -> None:
    async with opened(config) as (client, backend):
        first = await put(backend)
        await shows(client, first)
        leak.is_open = True
        second = await put(backend)
        await until(lambda: leak.has_taken(second))
        leak.is_open = False
        third = await put(backend)
        await shows(client, first, second, third)


async def test_f6_what_was_lost_on_the_way_is_read_again_though_nothing_follows(
    config: NatsBackendConfig, leak: Leak
) -> None:
    """F6: between two nodes, of which ours is not the one that was cut off. The heartbeats tell."""
    async with opened(config) as (client, backend):
        first = await put(backend)
        await shows(client, first)
        leak.is_open = True
        second = await put(backend)
        await until(lambda: leak.has_taken(second))
        leak.is_open = False
        await shows(client, first, second)


async def test_what_was_lost_on_the_way_is_read_again_after_a_reconnect(
    config: NatsBackendConfig, leak: Leak
) -> None:
    async with opened(config) as (client, backend):
        first = await put(backend)
        await shows(client, first)
        leak.is_open = True
        second = await put(backend)
        await until(lambda: leak.has_taken(second))
        leak.is_open = False
        leak.lost[0][1]._client._transport.close()  # type: ignore[union-attr]
        await shows(client, first, second)


async def test_a_deleted_bucket_is_made_again_and_the_picture_with_it(config: NatsBackendConfig) -> None:
    async with opened(config) as (client, backend):
        for _ in range(5):
            await client.post("/runs", json={"flow_name": "f"})
        async with raw_nats(config.nats_url) as raw:
            await raw.jetstream().delete_stream(f"KV_{config.runs_kv_bucket}")
        await shows(client)
        run_id = await put(backend)
        await shows(client, run_id)
        began = time.perf_counter()
        for _ in range(10):
            await client.get("/runs")
        assert time.perf_counter() - began < 5, "nobody waits for revisions of the old bucket"


async def test_a_watch_in_a_deleted_bucket_ends(config: NatsBackendConfig) -> None:
    app = create_app(config)
    async with running(app) as client:
        run_id = (await client.post("/runs", json={"flow_name": "f"})).json()["run_id"]
        async with stream(app, f"/runs/{run_id}/watch") as watching:
            await watching.next()
            async with raw_nats(config.nats_url) as raw:
                await raw.jetstream().delete_stream(f"KV_{config.runs_kv_bucket}")
            await watching.rest()


async def test_a_purge_of_the_whole_bucket_is_noticed_at_the_next_start(
    config: NatsBackendConfig, tmp_path: Path
) -> None:
    filed = replace(config, read_model_path=str(tmp_path / "index.db"))
    async with opened(filed) as (client, backend):
        await shows(client, await put(backend), await put(backend))
    async with raw_nats(config.nats_url) as raw:
        await raw.jetstream().purge_stream(f"KV_{config.runs_kv_bucket}")
    async with gateway(filed) as client:
        await shows(client)


async def test_a_restart_goes_on_from_the_file(config: NatsBackendConfig, tmp_path: Path) -> None:
    filed = replace(config, read_model_path=str(tmp_path / "sub" / "index.db"))
    async with opened(filed) as (client, backend):
        kept, ended, removed = await put(backend), await put(backend), await put(backend)
        await shows(client, kept, ended, removed)
    async with open_backend(config, "test") as backend:
        stored = await backend.runs.get(ended)
        assert stored is not None
        snapshot = a_snapshot(RunStatus.COMPLETED, OWNER, run_id=ended, updated_at=NOW + 1)
        await backend.runs.update(ended, snapshot, stored.revision)
        await backend.runs.remove(removed, None)
        added = await put(backend, updated_at=NOW + 2)
    app = create_app(filed)
    async with running(app) as client:
        await shows(client, added, ended, kept)
        (first,) = (await client.get("/runs?status=COMPLETED")).json()
        assert first["run_id"] == ended
        position = app.state.gateway.levels.runs.index.position
    assert position.last_revision == 6


async def test_a_restart_goes_on_from_the_file_of_executions(
    config: NatsBackendConfig, tmp_path: Path
) -> None:
    """It reads what another gateway has written meanwhile: one that is new, an end and a delete."""
    filed = replace(config, read_model_path=str(tmp_path / "index.db"))
    graph = {"nodes": {"ask": {"type": "wait", "prompt": "?"}}, "edges": []}

    async def start(client: httpx2.AsyncClient) -> str:
        answer = await client.post("/executions", json={"graph_id": "g"})
        return str(answer.json()["execution_id"])

    async def states(client: httpx2.AsyncClient) -> dict[str, str]:
        answer = await client.get("/executions?limit=50")
        items = answer.json()["items"] if answer.status_code == 200 else ()  # not ready yet
        return {one["execution_id"]: one["status"] for one in items}

    async with gateway(filed) as client:
        (await client.put("/graphs/g", json=graph)).raise_for_status()
        kept, ended, deleted = [await start(client) for _ in range(3)]
        await until(lambda: states(client), lambda found: len(found) == 3)
    async with gateway(config) as other:
        added = await start(other)
        for one in (ended, deleted):
            await other.post(f"/executions/{one}/commands", json={"command": "CancelExecution"})
        await until(lambda: states(other), lambda found: list(found.values()).count("CANCELED") == 2)
        await other.post(f"/executions/{deleted}/commands", json={"command": "ArchiveExecution"})
        (await other.delete(f"/executions/{deleted}")).raise_for_status()
    with capture_logs() as logs:
        async with gateway(filed) as client:
            await until(lambda: states(client), lambda found: len(found) == 3)
            assert await states(client) == {kept: "ACTIVE", added: "ACTIVE", ended: "CANCELED"}
            assert len((await client.get("/waits")).json()["items"]) == 2
    opened_files = {line["index"]: line["path"] for line in logs if line.get("action") == "index.opened"}
    assert opened_files["executions"] == str(tmp_path / "index-executions.db")


@pytest.mark.parametrize("damage", ["deleted", "corrupt", "truncated"])
async def test_a_damaged_file_costs_a_rebuild_only(
    config: NatsBackendConfig, tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "index.db"
    filed = replace(config, read_model_path=str(path))
    async with opened(filed) as (client, backend):
        ids = [await put(backend) for _ in range(20)]
        await shows(client, *ids)
    if damage == "deleted":
        path.unlink()
    elif damage == "corrupt":
        content = path.read_bytes()
        path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    else:
        path.write_bytes(path.read_bytes()[:6000])
    async with gateway(filed) as client:
        await shows(client, *ids)


async def test_a_file_of_another_nats_is_not_believed(
    config: NatsBackendConfig, own_nats: EmbeddedNats, tmp_path: Path
) -> None:
    filed = replace(config, read_model_path=str(tmp_path / "index.db"))
    async with opened(filed) as (client, backend):
        await shows(client, await put(backend))
    async with opened(replace(filed, nats_url=own_nats.url)) as (client, backend):
        await shows(client)
        await shows(client, await put(backend))


async def test_unreadable_records_are_left_out_and_told(config: NatsBackendConfig) -> None:
    good, bad = new_run_id(), new_run_id()
    with capture_logs() as logs:
        async with gateway(config) as client:
            await write_raw(config, {"k1": b"no json", "k2": b"{}", bad: a_record(bad), good: a_record(good)})
            await shows(client, good, bad)
            await write_raw(config, {bad: b"\xff"})
            await shows(client, good)
            answer = await client.get("/runs?include=full")
            assert [run["run_id"] for run in answer.json()] == [good], "one bad record spoils no list"
            answer = await client.get(f"/runs/{bad}")
            assert (answer.status_code, answer.json()["err_id"]) == (503, "ERR-PYOCO-0003")
    told = {line["key"] for line in logs if line.get("action") == "feed.unreadable"}
    assert told == {"k1", "k2", bad}


async def test_a_record_under_a_foreign_key_spoils_nothing(config: NatsBackendConfig) -> None:
    one, two = new_run_id(), new_run_id()
    async with gateway(config) as client:
        await write_raw(config, {one: a_record(one), two: a_record(one)})
        await shows(client, one, two)


@pytest.mark.parametrize("how", ["delete", "purge", "withdraw"])
async def test_a_removed_run_leaves_the_picture(config: NatsBackendConfig, how: str) -> None:
    async with opened(config) as (client, backend):
        run_id, kept = await put(backend), await put(backend)
        await shows(client, run_id, kept)
        if how == "withdraw":
            await backend.runs.remove(run_id, None)
        else:
            async with raw_nats(config.nats_url) as raw:
                bucket = await raw.jetstream().key_value(config.runs_kv_bucket)
                await (bucket.delete(run_id) if how == "delete" else bucket.purge(run_id))
        await shows(client, kept)
        assert (await client.get(f"/runs/{run_id}")).status_code == 404


async def test_runs_that_have_ended_expire_and_leave_list_and_counts(
    config: NatsBackendConfig,
) -> None:
    short = replace(config, runs_retention_sec=1.0)
    async with opened(short, tuning=SOON) as (client, backend):
        pending = await put(backend)
        ids = [await put(backend) for _ in range(3)]
        for run_id, status in zip(
            ids, (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED), strict=True
        ):
            stored = await backend.runs.get(run_id)
            assert stored is not None
            await backend.runs.update(run_id, a_snapshot(status, run_id=run_id), stored.revision)
        await shows(client, pending, *ids)
        await shows(client, pending)
        for run_id in ids:
            await until(
                lambda run_id=run_id: client.get(f"/runs/{run_id}"),  # type: ignore[misc]
                lambda answer: answer.status_code == 404,
            )


async def test_a_run_that_expired_while_the_gateway_was_down_is_not_shown(
    config: NatsBackendConfig, tmp_path: Path
) -> None:
    filed = replace(config, runs_retention_sec=1.0, read_model_path=str(tmp_path / "index.db"))
    async with opened(filed, tuning=SOON) as (client, backend):
        kept, run_id = await put(backend), new_run_id()
        await backend.runs.create(run_id, a_snapshot(RunStatus.COMPLETED, run_id=run_id))
        await until(lambda: listed(client), lambda found: run_id in found)
    await asyncio.sleep(1.5)
    async with gateway(filed, tuning=SOON) as client:
        await shows(client, kept)


async def test_twenty_posts_with_one_key_on_two_gateways_are_one_run(config: NatsBackendConfig) -> None:
    """REQ-0002"""
    async with gateway(config) as one, gateway(config) as two:
        answers = await asyncio.gather(
            *(
                (one, two)[n % 2].post("/runs", json={"flow_name": "f"}, headers={"Idempotency-Key": "k"})
                for n in range(20)
            )
        )
        (run_id,) = {answer.json()["run_id"] for answer in answers}
        await shows(one, run_id)
        await shows(two, run_id)


async def test_a_full_page_is_read_from_the_store(config: NatsBackendConfig) -> None:
    async with opened(config) as (client, backend):
        ids = {await put(backend, params={"n": n}) for n in range(200)}
        await shows(client, *ids)
        answer = await client.get("/runs?include=full&limit=200")
    found: list[RunSnapshot] = [codec.decode_run(codec.encode(run)) for run in answer.json()]
    assert {run.run_id for run in found} == ids
    assert sorted(run.params["n"] for run in found) == list(range(200))


class Poller:
    """Asks for what was updated after the newest that it has seen."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}
        self._mark = 0.0

    async def poll(self, client: httpx2.AsyncClient, **query: str) -> dict[str, str]:
        answer = await client.get("/runs", params={"updated_after": self._mark, **query})
        for run in answer.json()["items"] if answer.status_code == 200 else []:
            self.seen[run["run_id"]] = run["status"]
            self._mark = max(self._mark, run["updated_at"])
        return self.seen


async def write(backend: JetStreamBackend, run_id: str, change: RunChange, now: float) -> None:
    stored = await backend.runs.get(run_id)
    assert stored is not None
    changed = decide(stored.value, change, now)
    assert isinstance(changed, RunSnapshot)
    await backend.runs.update(run_id, changed, stored.revision)


@pytest.mark.parametrize("off_sec", [-300.0, 300.0])
async def test_a_poller_sees_every_change_whatever_the_clocks_of_its_writers(
    config: NatsBackendConfig, off_sec: float
) -> None:
    """D12: of a worker whose clock is minutes off, at two gateways."""
    poller, workers_clock = Poller(), time.time() + off_sec
    times = {"updated_at": time.time(), "heartbeat_at": time.time()}
    async with gateway(config) as first, gateway(config) as second, open_backend(config, "test") as backend:
        ids = [await put(backend, **times) for _ in range(2)]
        await until(lambda: poller.poll(first), lambda seen: set(seen) == set(ids))
        for run_id in ids:
            await write(backend, run_id, Claim(OWNER), workers_clock)
            await until(lambda: poller.poll(second, include="full"), has(run_id, "RUNNING"))
            await write(backend, run_id, Beat(OWNER), workers_clock + 1)
            await write(backend, run_id, Conclude(owner=OWNER, status=RunStatus.FAILED), workers_clock + 1)
            await until(lambda: poller.poll(first), has(run_id, "FAILED"))


def has(run_id: str, status: str) -> Callable[[dict[str, str]], bool]:
    return lambda seen: seen.get(run_id) == status
