"""Large values: from the task that returns one to the client that reads it."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pyoco import Flow, task

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.large_values import JSON, ByteRange, NotSatisfiable, owned_by_run, range_in
from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.memory import open_memory_gateway_backend
from pyoco_server.testing import LocalServer
from support.builders import NOW, RUN_ID
from support.gateway import memory_app, memory_gateway, new_key
from support.tables import every_row
from support.virtual_time import virtually

ROWS = [{"row": n, "text": "ä" * 30} for n in range(20_000)]
LARGE = len(json.dumps(ROWS, ensure_ascii=False, separators=(",", ":")).encode())
FORGED = {"$ref": "sha256:" + "0" * 64, "size": 100_000, "type": "application/json"}


@task
def rows() -> Any:
    return ROWS


@task
def count(rows: Any) -> int:
    return len(rows)


@task
def forged() -> Any:
    return FORGED


def flow(name: str, *tasks: Any) -> Flow:
    made = Flow(name=name)
    for one in tasks:
        made = made >> one
    return made


FLOWS = [flow("rows", rows), flow("count", rows, count), flow("forged", forged)]


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer(FLOWS) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: LocalServer) -> PyocoHttpClient:
    return server.client


def run_of(flow_name: str, client: PyocoHttpClient) -> Any:
    """How it ended."""
    run_id = client.submit_run(flow_name)["run_id"]
    *_, last = client.watch_run(run_id)
    assert last["snapshot"]["status"] == "COMPLETED"
    return client.get_run(run_id)


def test_a_large_result_is_stored_beside_its_run(client: PyocoHttpClient) -> None:
    run = run_of("rows", client)
    reference = run["result"]["rows"]
    assert sorted(reference) == ["$ref", "size", "type"]
    assert (reference["size"], reference["type"]) == (LARGE, "application/json")
    assert not run["result_truncated"]
    assert run["warnings"] == []
    assert client.get_value(reference) == ROWS
    assert client.get_value(reference["$ref"]) == ROWS
    assert run["values"] == [["result", "rows"], ["task_records", "rows", "output"]]
    records = client.get_run_with_records(run["run_id"])["task_records"] or {}
    assert records["rows"]["output"] == reference


def test_the_client_returns_the_value_itself(server: LocalServer) -> None:
    assert server.run("rows") == {"rows": ROWS}


def test_what_is_small_stays_in_the_run(server: LocalServer) -> None:
    assert server.run("count") == {"count": len(ROWS)}


def test_a_reference_that_a_task_returns_is_data(server: LocalServer) -> None:
    assert server.run("forged") == {"forged": FORGED}


def test_a_value_is_saved_to_a_file(client: PyocoHttpClient, tmp_path: Path) -> None:
    reference = run_of("rows", client)["result"]["rows"]
    saved = client.download_value(reference, tmp_path / "rows.json")
    assert saved.stat().st_size == LARGE
    assert json.loads(saved.read_text()) == ROWS


def test_above_the_setting_a_result_is_left_out_with_a_warning() -> None:
    """PYOCO_VALUE_MAX_BYTES"""
    config = NatsBackendConfig(value_max_bytes=100_000)
    with LocalServer(FLOWS, config=config) as server:
        run = run_of("rows", server.client)
    assert (run["status"], run["result"], run["result_truncated"]) == ("COMPLETED", None, True)
    (warning,) = run["warnings"]
    assert warning.startswith("task 'rows' returned more than ")
    assert warning.endswith("at most 100,000 bytes are kept (PYOCO_VALUE_MAX_BYTES)")


@every_row(
    ("header", "wanted"),
    [
        (None, None),
        ("bytes=0-0", ByteRange(0, 1)),
        ("bytes=5-", ByteRange(5, 10)),
        ("bytes=5-99", ByteRange(5, 10)),
        ("bytes=-3", ByteRange(7, 10)),
        ("bytes=-99", ByteRange(0, 10)),
        ("bytes=3-1", None),
        ("bytes=-", None),
        ("bytes=0-1,3-4", None),
        ("rows=0-1", None),
    ],
)
def test_one_range_of_bytes_is_read_and_everything_else_ignored(
    header: str | None, wanted: ByteRange | None
) -> None:
    assert range_in(header, 10) == wanted


@every_row("header", ["bytes=10-", "bytes=10-11", "bytes=-0"])
def test_a_range_outside_of_the_value_cannot_be_read(header: str) -> None:
    with pytest.raises(NotSatisfiable):
        range_in(header, 10)


async def test_a_range_of_a_value_is_206_and_one_outside_of_it_416() -> None:
    async with memory_app() as gateway:
        stored = await gateway.backend.values.put(None, owned_by_run(RUN_ID), JSON, _once(b"0123456789"))
        path = f"/values/sha256:{stored.sha256}"

        async def get(**headers: str) -> httpx2.Response:
            return await gateway.client.get(path, headers=headers)

        whole = await get()
        assert (whole.status_code, whole.content, whole.headers["accept-ranges"]) == (
            200,
            b"0123456789",
            "bytes",
        )
        assert whole.headers["x-content-type-options"] == "nosniff"
        assert whole.headers["content-type"] == "application/json"
        part = await get(Range="bytes=2-4")
        assert (part.status_code, part.content) == (206, b"234")
        assert (part.headers["content-range"], part.headers["content-length"]) == ("bytes 2-4/10", "3")
        outside = await get(Range="bytes=10-")
        assert (outside.status_code, outside.headers["content-range"]) == (416, "bytes */10")
        missing = await gateway.client.get("/values/nonsense")
        assert (missing.status_code, missing.json()["err_id"]) == (404, "ERR-PYOCO-0088")


async def test_a_value_needs_a_key_of_its_tenant() -> None:
    async with memory_app(http_auth_mode="api_key") as gateway:
        ours = await new_key(gateway.backend.api_keys, "acme", "key-a")
        theirs = await new_key(gateway.backend.api_keys, "other", "key-b")
        stored = await gateway.backend.values.put("acme", owned_by_run(RUN_ID), JSON, _once(b"[]"))
        path = f"/values/{stored.sha256}"
        codes = [(await gateway.client.get(path, headers=who)).status_code for who in (ours, theirs, {})]
    assert codes == [200, 404, 401]


@virtually
async def test_a_gateway_removes_values_whose_runs_are_gone() -> None:
    """PYOCO_VALUES_SWEEP_SEC"""
    config, now = NatsBackendConfig(values_sweep_sec=60.0), [NOW]
    async with open_memory_gateway_backend(config, clock=lambda: now[0]) as backend:
        stored = await backend.values.put(None, owned_by_run(RUN_ID), JSON, _once(b"[]"))
        async with memory_gateway(backend, config=config) as client:
            path = f"/values/{stored.sha256}"
            await asyncio.sleep(200.0)
            assert (await client.get(path)).status_code == 200, "its run may not be known yet"
            now[0] += 3700.0
            await asyncio.sleep(70.0)
            assert (await client.get(path)).status_code == 200, "its run was missing only once"
            await asyncio.sleep(60.0)
            assert (await client.get(path)).status_code == 404
            assert await backend.values.collect(0.0) == 0, "the content is gone, too"


async def _once(data: bytes) -> Any:
    yield data
