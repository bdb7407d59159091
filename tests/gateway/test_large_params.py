"""Params above 256 KiB: stored beside their run, and given to its flow as they were sent."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from pyoco import Flow, task

from pyoco_server.domain.fleet import KEPT_TASKS, RESOLVES
from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.testing import LocalServer
from support.builders import a_worker
from support.gateway import RunningGateway, memory_app
from support.tables import every_row
from support.waiting import until

FAR_AHEAD = 2e9
ROWS = [{"row": n, "text": "ä" * 30} for n in range(20_000)]
TEXT = "x" * 300_000


@task
def seen(rows: Any, month: str, more: Any = None) -> Any:
    return {"rows": len(rows), "last": rows[-1], "month": month, "more": more}


@pytest.fixture(scope="module")
def client() -> Iterator[PyocoHttpClient]:
    with LocalServer(Flow(name="seen") >> seen) as server:
        yield server.client


def test_a_flow_gets_large_params_as_they_were_sent(client: PyocoHttpClient) -> None:
    forged = {"$ref": "sha256:" + "0" * 64}
    result = client.run("seen", {"rows": ROWS, "month": "2026-11", "more": forged})
    assert result == {"seen": {"rows": 20_000, "last": ROWS[-1], "month": "2026-11", "more": forged}}
    (row,) = client.list_runs(limit=1)
    run = client.get_run(row["run_id"])
    assert run["values"] == [["params", "rows"]]
    assert sorted(run["params"]["rows"]) == ["$ref", "size", "type"]
    assert run["params"]["month"] == "2026-11"
    assert client.get_value(run["params"]["rows"]) == ROWS


def test_a_retry_has_the_same_params(client: PyocoHttpClient) -> None:
    run_id = client.submit_run("seen", {"rows": ROWS, "month": "2026-11"})["run_id"]
    *_, last = client.watch_run(run_id)
    again = client.retry_run(run_id)["run_id"]
    *_, last = client.watch_run(again)
    assert last["snapshot"]["status"] == "COMPLETED"
    assert client.get_run(again)["values"] == [["params", "rows"]]


def test_a_repeat_with_the_same_key_is_the_same_run(client: PyocoHttpClient) -> None:
    params = {"rows": ROWS, "month": "2026-12"}
    first, again = (client.submit_run("seen", params, idempotency_key="k1") for _ in range(2))
    assert first["run_id"] == again["run_id"]
    *_, last = client.watch_run(first["run_id"])
    assert last["snapshot"]["status"] == "COMPLETED"


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app(value_max_bytes=400_000) as running:
        yield running


async def post(gateway: RunningGateway, body: bytes | AsyncIterator[bytes]) -> httpx2.Response:
    return await gateway.client.post("/runs", content=body, headers={"Content-Type": "application/json"})


def a_body(**params: Any) -> bytes:
    return json.dumps({"flow_name": "f", "params": params}).encode()


def raw(params: bytes, more: bytes = b"") -> bytes:
    return b'{"flow_name": "f", "params": ' + params.replace(b"TEXT", TEXT.encode()) + more + b"}"


BAD = {
    "too large": (a_body(x="x" * 500_000), 413, "the body has 500"),
    "many small values": (
        a_body(**{f"k{n}": "x" * 900 for n in range(400)}),
        413,
        "many small values; at most 262,144",
    ),
    "a secret beside it": (a_body(x=TEXT, y="${secrets.z}" + "y" * 100), 422, "secret 'z' does not exist"),
    "a secret in it": (a_body(x="${secrets.z}" + TEXT), 413, "because they name secrets"),
    "a large rest": (
        raw(b"{}", b', "flow_name": "TEXT"'.replace(b"TEXT", 2 * TEXT.encode()[:190_000])),
        422,
        "",
    ),
    "a number": (raw(b'{"x": ["TEXT", 18446744073709551616]}'), 422, "64 bits"),
    "a duplicate": (raw(b'{"x": "TEXT", "x": 1}'), 422, "duplicate key 'x'"),
    "not a number": (raw(b'{"x": "TEXT", "n": NaN}'), 422, "NaN"),
    "cut off": (raw(b'{"x": "TEXT"')[:-2], 422, ""),
    "an unknown field": (raw(b'{"x": "TEXT"}', b', "colour": 1'), 422, "colour"),
    "a list": (b"[" + b"1," * 150_000 + b"1]", 422, ""),
    "too deep": (raw(b"[" * 150_000 + b"]" * 150_000), 422, "deep"),
}


@every_row("name", list(BAD))
async def test_what_cannot_be_accepted_is_refused_and_nothing_is_left(name: str) -> None:
    body, status, detail = BAD[name]
    async with memory_app(value_max_bytes=400_000) as gateway:
        answer = await post(gateway, body)
        assert answer.status_code == status, answer.text[:500]
        assert detail in json.dumps(answer.json()["detail"], ensure_ascii=False)
        assert await gateway.backend.values.uses() == []
        assert await gateway.backend.queue.run_ids() == set()


async def test_a_body_without_a_declared_length_may_be_large_or_small(gateway: RunningGateway) -> None:
    async def pieces(body: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(body), 50_000):
            yield body[start : start + 50_000]

    small = await post(gateway, pieces(a_body(x=1)))
    large = await post(gateway, pieces(a_body(x=TEXT)))
    assert (small.status_code, large.status_code) == (200, 200)
    endless = await post(gateway, pieces(a_body(x="x" * 600_000)))
    assert endless.status_code == 413
    for answer, values in ((small, []), (large, [["params", "x"]])):
        run = (await gateway.client.get(f"/runs/{answer.json()['run_id']}")).json()
        assert run["values"] == values


async def test_params_that_a_job_can_hold_stay_whole(gateway: RunningGateway) -> None:
    """Also if the body is larger than they may be: an older worker can run it."""
    answer = await post(gateway, a_body(x="x" * 250_000) + b" " * 50_000)
    run = (await gateway.client.get(f"/runs/{answer.json()['run_id']}")).json()
    assert (run["values"], len(run["params"]["x"])) == ([], 250_000)


async def test_a_tag_with_an_older_worker_gets_no_large_params(gateway: RunningGateway) -> None:
    older = a_worker(worker_id="old", features=(KEPT_TASKS, RESOLVES), last_seen_at=FAR_AHEAD)
    await gateway.backend.workers.create("old", older)
    answer = await until(lambda: post(gateway, a_body(x=TEXT)), lambda found: found.status_code == 422)
    assert answer.json()["detail"] == (
        "params.x is a large value; workers that are too old to read it have the tag 'default': old; "
        "update them"
    )
