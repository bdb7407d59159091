"""REQ-0018: a flow.yaml over HTTP."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from pyoco_server.domain.codec import decode_job
from support.gateway import RunningGateway, memory_app

FLOW = b"""version: 1
flow:
  graph: |
    a >> b
  defaults: {x: 3}
tasks:
  a: {callable: "mine:a"}
  b: {callable: "mine:b"}
"""


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        yield running


async def post(
    gateway: RunningGateway, workflow: bytes = FLOW, headers: dict[str, str] | None = None, **fields: Any
) -> httpx2.Response:
    return await gateway.client.post(
        "/runs/yaml",
        files={"workflow": ("flow.yaml", workflow)},
        data={"flow_name": "mine", **fields},
        headers=headers,
    )


async def test_the_flow_goes_with_the_job_and_its_digest_stays_in_the_snapshot(
    gateway: RunningGateway,
) -> None:
    answer = await post(gateway, tag="gpu")
    assert (answer.status_code, answer.json()["status"]) == (200, "PENDING")
    run = (await gateway.client.get(f"/runs/{answer.json()['run_id']}")).json()
    digest = hashlib.sha256(FLOW).hexdigest()
    assert (run["flow_name"], run["tag"], run["params"]) == ("mine", "gpu", {"x": 3})
    assert (run["workflow_yaml_sha256"], run["workflow_yaml_bytes"]) == (digest, len(FLOW))
    assert "workflow_yaml" not in run
    delivery = gateway.backend.queue.take(["pyoco.work.gpu"])
    assert delivery is not None
    job = decode_job(delivery.payload)
    assert (job.workflow_yaml, job.workflow_yaml_sha256) == (FLOW.decode(), digest)


async def test_runs_are_found_by_the_digest_of_their_flow(gateway: RunningGateway) -> None:
    run_id = (await post(gateway)).json()["run_id"]
    await post(gateway, FLOW + b"# another\n")
    digest = hashlib.sha256(FLOW).hexdigest()
    found = (await gateway.client.get(f"/runs?workflow_yaml_sha256={digest}")).json()
    assert [run["run_id"] for run in found["items"]] == [run_id]


@pytest.mark.parametrize(
    "workflow",
    [
        b"",
        b"flow: [",
        b"\xff\xfe",
        FLOW + b"flows: {}\n",
        FLOW + b"discovery: {}\n",
        FLOW + b"unknown: 1\n",
        FLOW + b"version: 2\n",
    ],
)
async def test_a_flow_that_is_not_one_is_refused(gateway: RunningGateway, workflow: bytes) -> None:
    """ERR-PYOCO-0002"""
    answer = await post(gateway, workflow)
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    assert await gateway.backend.queue.run_ids() == set()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"a >> b", b"a >> b >> a", "flow.graph: tasks 'a', 'b' would never run: they wait for each other"),
        (b'"mine:b"', b'"mine:b", outputs: [total]', "tasks.b.outputs 'total' would not be kept"),
    ],
)
async def test_a_flow_of_which_a_part_would_be_lost_is_refused(
    gateway: RunningGateway, old: bytes, new: bytes, problem: str
) -> None:
    """ERR-PYOCO-0002"""
    answer = await post(gateway, FLOW.replace(old, new))
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    assert problem in answer.text


@pytest.mark.parametrize(
    "fields", [{"flow_name": ""}, {"flow_name": "x" * 201}, {"tag": "a.b"}, {"tag": "x" * 65}]
)
async def test_fields_have_the_same_rules_as_in_json(gateway: RunningGateway, fields: dict[str, Any]) -> None:
    """ERR-PYOCO-0002"""
    answer = await post(gateway, **fields)
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")


@pytest.mark.parametrize(
    "kind", ["application/json", "multipart/form-data", "multipart/form-data; boundary=x"]
)
async def test_a_body_that_is_no_form_is_refused(gateway: RunningGateway, kind: str) -> None:
    """ERR-PYOCO-0002"""
    answer = await gateway.client.post("/runs/yaml", content=b"{}", headers={"content-type": kind})
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")


async def test_a_form_without_its_file_or_with_too_much_is_refused(gateway: RunningGateway) -> None:
    """ERR-PYOCO-0002"""
    flow = ("flow.yaml", FLOW)
    for files, data in (
        ({"other": flow}, {"flow_name": "f"}),
        ({"workflow": flow, "second": flow}, {"flow_name": "f"}),
        ({"workflow": flow, "flow_name": flow}, {}),
        ({"workflow": flow}, {f"field{n}": "x" for n in range(20)}),
        ({"workflow": flow}, {}),
    ):
        answer = await gateway.client.post("/runs/yaml", files=files, data=data)
        assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002"), answer.text
    assert await gateway.backend.queue.run_ids() == set()


@pytest.mark.parametrize(("over", "expected"), [(0, 200), (1, 413), (1_000_000, 413)])
async def test_a_file_has_a_limit(over: int, expected: int) -> None:
    """ERR-PYOCO-0016, PYOCO_WORKFLOW_YAML_MAX_BYTES"""
    limit = 4096
    async with memory_app(workflow_yaml_max_bytes=limit) as gateway:
        filler = b"#" * (limit + over - len(FLOW))
        answer = await post(gateway, FLOW + filler)
    assert answer.status_code == expected
    if expected == 413:
        assert (answer.json()["err_id"], answer.json()["msg_id"]) == ("ERR-PYOCO-0016", "MSG-PYOCO-0016")


async def test_a_repeat_with_the_same_key_is_the_same_run(gateway: RunningGateway) -> None:
    key = {"Idempotency-Key": "k"}
    first, second = await post(gateway, headers=key), await post(gateway, headers=key)
    assert first.json() == second.json()
    assert (await post(gateway, FLOW + b"#\n", headers=key)).status_code == 422


async def test_a_refused_flow_does_not_use_up_its_key(gateway: RunningGateway) -> None:
    key = {"Idempotency-Key": "k"}
    assert (await post(gateway, headers=key, tag="a.b")).status_code == 422
    assert (await post(gateway, headers=key, tag="gpu")).status_code == 200


async def test_a_file_that_reads_the_environment_is_refused_with_the_place() -> None:
    """D52"""
    reading = FLOW.replace(b'"mine:a"}', b'"mine:a", inputs: {url: $env.PYOCO_NATS_URL}}')
    async with memory_app() as gateway:
        answer = await post(gateway, reading)
    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        "flow.yaml, line 7, column 27: tasks.a.inputs.url reads the environment variable 'PYOCO_NATS_URL' "
        "($env); PYOCO_WORKER_ALLOWED_ENV allows none"
    )
    async with memory_app(worker_allowed_env="PYOCO_NATS_URL") as gateway:
        assert (await post(gateway, reading)).status_code == 200


async def test_a_field_that_nobody_reads_is_refused(gateway: RunningGateway) -> None:
    """D27: params of a flow.yaml are its defaults, so a form that brings others must hear of it."""
    answer = await post(gateway, params='{"x": 4}')
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    assert "unknown field 'params'; known: workflow, flow_name, tag" in answer.json()["detail"]
