"""A7: what a hostile worker writes is checked when it is read. The gateway never answers with a 500, never
believes one run's record to be another's, and goes on showing everybody else's.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import httpx2
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.wiring import new_run_id
from support.builders import OWNER, a_snapshot, a_worker
from support.captured_logs import capture_logs
from support.gateway import gateway
from support.nats_server import raw_nats
from support.waiting import PATIENCE_SEC, until

DEEP = json.loads("[" * 400 + "]" * 400)
VALUES: list[Any] = [
    None,
    True,
    -1,
    2**64,
    2**70,
    1e308,
    -1e308,
    "",
    "x" * 20_000,
    "\x00\x1b[2J\r\n",
    "\ud800",
    "../../etc/passwd",
    "a.b.*.>",
    [],
    ["a.b", "*", ">", ""],
    {"": {"state": "RUNNING"}},
    {"\ud800": "RUNNING"},
    DEEP,
    "COMPLETED",
]
BYTES = [b"", b"{", b"null", b"[]", b"\xff\xfe", b"{}" * 2, b"[" * 100_000, b'"' + b"x" * 100_000 + b'"']


@dataclass
class Site:
    config: NatsBackendConfig
    http: httpx2.AsyncClient
    nats: Any

    async def write(self, subject: str, payload: bytes) -> None:
        await self.nats.request(subject, payload, timeout=PATIENCE_SEC)

    async def write_run(self, key: str, payload: bytes) -> None:
        await self.write(f"$KV.{self.config.runs_kv_bucket}.{key}", payload)

    async def write_worker(self, key: str, payload: bytes) -> None:
        await self.write(f"$KV.{self.config.workers_kv_bucket}.{key}", payload)

    async def statuses(self, *paths: str, method: str = "GET") -> dict[str, int]:
        return {path: (await self.http.request(method, path)).status_code for path in paths}

    async def is_seen(self, run_id: str) -> None:
        """The feed has come as far as this run, past everything written before it."""

        async def listed() -> bool:
            found = (await self.http.get("/runs", params={"limit": 200})).json()
            return any(run["run_id"] == run_id for run in found)

        await until(listed)


@pytest.fixture
async def site(config: NatsBackendConfig) -> AsyncIterator[Site]:
    async with gateway(config) as http, raw_nats(config.nats_url) as nats:
        found = Site(config, http, nats)
        await until(lambda: found.statuses("/ready"), lambda answers: answers == {"/ready": 200})
        yield found


def with_field(record: Any, name: str, value: Any) -> bytes:
    return json.dumps({**json.loads(codec.encode(record)), name: value}).encode()


def a_run(run_id: str) -> Any:
    return a_snapshot(RunStatus.RUNNING, OWNER, run_id=run_id)


RUN_FIELDS = json.loads(codec.encode(a_run(new_run_id()))).keys()
WORKER_FIELDS = json.loads(codec.encode(a_worker())).keys()
LISTS = (
    "/runs",
    "/runs?include=full",
    "/runs?updated_after=0",
    "/workers?scope=all&include_hidden=true",
    "/metrics",
)


def paths_of(run_id: str) -> list[str]:
    return [
        f"/runs/{run_id}{rest}" for rest in ("", "?include=all", "/tasks", "/logs", "/watch?timeout_sec=1")
    ]


EVERY_DAY = [*zip(RUN_FIELDS, cycle(VALUES), strict=False), ("retried_from", "x" * 20_000)]
"""A value for each field; and one for which NATS would end the connection."""


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(EVERY_DAY, id="a value for each"),
        *(
            pytest.param([(name, value) for value in VALUES], id=name, marks=pytest.mark.slow)
            for name in RUN_FIELDS
        ),
    ],
)
async def test_a7_no_field_of_a_snapshot_breaks_a_route(site: Site, cases: list[tuple[str, Any]]) -> None:
    good = (await site.http.post("/runs", json={"flow_name": "good"})).json()["run_id"]
    with capture_logs() as logged:
        for name, value in cases:
            run_id = new_run_id()
            await site.write_run(
                run_id, with_field(a_snapshot(RunStatus.COMPLETED, OWNER, run_id=run_id), name, value)
            )
            answers = await site.statuses(*paths_of(run_id))
            answers |= await site.statuses(f"/runs/{run_id}/cancel", method="POST")
            assert set(answers.values()) <= {200, 404, 503}, (name, value, answers)
        last = (await site.http.post("/runs", json={"flow_name": "good"})).json()["run_id"]
        await site.is_seen(last)
        answers = await site.statuses(*LISTS)
        assert set(answers.values()) == {200}, answers
        await site.is_seen(good)
    assert {"gateway.background", "nats.disconnected"}.isdisjoint(line.get("action") for line in logged)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKER_FIELDS)
async def test_a7_no_field_of_a_worker_breaks_a_route(site: Site, name: str) -> None:
    run_id = new_run_id()
    await site.write_run(run_id, codec.encode(a_run(run_id)))
    with capture_logs() as logged:
        for value in VALUES:
            await site.write_worker(OWNER.worker_id, with_field(a_worker(), name, value))
            answers = await site.statuses(f"/runs/{run_id}", *LISTS)
            assert set(answers.values()) <= {200, 503}, (value, answers)
        await site.write_worker("w-good", codec.encode(a_worker(worker_id="w-good")))

        async def fleet() -> list[str]:
            found = (await site.http.get("/workers?scope=all&include_hidden=true")).json()
            return [worker["worker_id"] for worker in found]

        await until(fleet, lambda ids: "w-good" in ids)
    assert {"gateway.background", "nats.disconnected"}.isdisjoint(line.get("action") for line in logged)


@pytest.mark.parametrize("payload", BYTES, ids=lambda payload: repr(payload[:8]))
async def test_a7_bytes_that_are_nothing_are_left_out(site: Site, payload: bytes) -> None:
    run_id = new_run_id()
    config = site.config
    await site.write_run(run_id, payload)
    await site.write_worker("w-bad", payload)
    await site.write(f"{config.logs_subject_prefix}.{run_id}", payload)
    await site.write(f"{config.dlq_subject_prefix}.default", payload)
    await site.write(f"$KV.{config.wheel_history_kv_bucket}.x", payload)
    await site.write(f"$O.{config.wheel_object_store_bucket}.M.x", payload)
    good = (await site.http.post("/runs", json={"flow_name": "good"})).json()["run_id"]
    await site.is_seen(good)
    answers = await site.statuses(*LISTS, "/wheels", "/wheels/history")
    assert set(answers.values()) == {200}, answers
    answers = await site.statuses(*paths_of(run_id))
    assert set(answers.values()) <= {404, 503}, answers


async def test_a7_a_snapshot_under_another_runs_key_is_not_that_run(site: Site) -> None:
    """A forged run_id, and a forged tenant with it, must not show one run's content as another's."""
    victim, key = new_run_id(), new_run_id()
    await site.write_run(victim, codec.encode(a_run(victim)))
    await site.write_run(
        key, codec.encode(a_snapshot(RunStatus.FAILED, OWNER, run_id=victim, error="forged"))
    )
    last = (await site.http.post("/runs", json={"flow_name": "good"})).json()["run_id"]
    await site.is_seen(last)
    listed = (await site.http.get("/runs", params={"limit": 200})).json()
    assert [run["status"] for run in listed if run["run_id"] == victim] == ["RUNNING"]
    assert (await site.http.get(f"/runs/{victim}")).json()["status"] == "RUNNING"
    for run in (
        (await site.http.get(f"/runs/{key}")).json(),
        *(r for r in listed if r.get("error") == "forged"),
    ):
        assert run["run_id"] == key


@pytest.mark.parametrize("tag", ["a.b", "*", ">", "a b", "", "x" * 65, "\r\n", "ä"])
async def test_a7_a_tag_cannot_become_a_subject(site: Site, tag: str) -> None:
    answer = await site.http.post("/runs", json={"flow_name": "f", "tag": tag})
    assert answer.status_code == 422
    # Labels are free text, and route nothing.
    labelled = await site.http.post("/runs", json={"flow_name": "f", "tags": [tag]})
    if labelled.status_code == 200:
        run = (await site.http.get(f"/runs/{labelled.json()['run_id']}")).json()
        assert (run["tag"], run["tags"]) == ("default", [tag])
    answer = await site.http.get("/runs", params={"tag": tag})
    assert answer.status_code in {200, 422}
