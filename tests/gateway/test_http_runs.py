"""REQ-0001, REQ-0002, REQ-0004: the gateway's runs and health, on the memory backend."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

from pyoco_server.domain.codec import decode_job
from pyoco_server.domain.fleet import WorkerState
from pyoco_server.domain.runs.jobs import Job
from pyoco_server.domain.runs.model import RunStatus, TaskRecord, TaskState
from pyoco_server.memory import MemoryGatewayBackend
from pyoco_server.wiring.gateway import Tuning
from support.builders import NOW, OWNER, RUN_ID, a_snapshot, a_worker
from support.gateway import memory_app, new_memory_gateway
from support.virtual_time import virtually
from support.waiting import until
from support.watching import stream


class World:
    def __init__(self, client: httpx2.AsyncClient, backend: MemoryGatewayBackend) -> None:
        self.client = client
        self.backend = backend

    async def post(self, body: bytes, **headers: str) -> httpx2.Response:
        return await self.client.post("/runs", content=body, headers=headers)

    def jobs(self, tag: str = "default") -> list[Job]:
        taken = iter(lambda: self.backend.queue.take([f"pyoco.work.{tag}"]), None)
        return [decode_job(delivery.payload) for delivery in taken]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with new_memory_gateway() as (client, backend):
        yield World(client, backend)


@pytest.fixture
async def impatient() -> AsyncIterator[World]:
    """It expects workers from the beginning."""
    async with new_memory_gateway(tuning=Tuning(first_worker_sec=0.0)) as (client, backend):
        yield World(client, backend)


async def test_health_says_that_the_process_is_there_and_nats_too(world: World) -> None:
    """REQ-0001"""
    assert (await world.client.get("/health")).json() == {"status": "ok", "nats": "ok"}
    assert (await world.client.get("/ready")).status_code == 200


@virtually
async def test_a_gateway_stops_at_once() -> None:
    async with new_memory_gateway() as (client, _):
        assert (await client.get("/health")).status_code == 200
        stops_at = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - stops_at < 0.1, "it waited for something"


async def test_a_submitted_run_has_a_snapshot_and_a_job(world: World) -> None:
    """REQ-0002"""
    body = {"flow_name": "f", "params": {"x": [1, None]}, "tag": "gpu", "tags": ["a", "b"]}
    answer = await world.client.post("/runs", json=body)
    assert answer.status_code == 200
    assert answer.json()["status"] == "PENDING"
    run_id = answer.json()["run_id"]
    (job,) = world.jobs("gpu")
    assert (job.run_id, job.flow_name, job.params) == (run_id, "f", {"x": [1, None]})
    assert job.tags == ("a", "b")
    run = (await world.client.get(f"/runs/{run_id}")).json()
    assert (run["status"], run["tag"], run["tags"]) == ("PENDING", "gpu", ["a", "b"])


async def test_a_run_without_a_tag_goes_to_the_default_one(world: World) -> None:
    await world.client.post("/runs", json={"flow_name": "f"})
    (job,) = world.jobs("default")
    assert (job.tag, job.tags, job.params) == ("default", ("default",), {})


async def test_two_equal_posts_are_two_runs(world: World) -> None:
    ids = {(await world.client.post("/runs", json={"flow_name": "f"})).json()["run_id"] for _ in range(2)}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, ["body", "flow_name"]),
        ({"flow_name": ""}, ["body", "flow_name"]),
        ({"flow_name": "x" * 201}, ["body", "flow_name"]),
        ({"flow_name": 3}, ["body", "flow_name"]),
        ({"flow_name": "f", "params": []}, ["body", "params"]),
        ({"flow_name": "f", "params": None}, ["body", "params"]),
        ({"flow_name": "f", "tag": "a.b"}, ["body", "tag"]),
        ({"flow_name": "f", "tag": "x" * 65}, ["body", "tag"]),
        ({"flow_name": "f", "tag": "ends\n"}, ["body", "tag"]),
        ({"flow_name": "f", "tag": ""}, ["body", "tag"]),
        ({"flow_name": "f", "tags": "a"}, ["body", "tags"]),
        ({"flow_name": "f", "tags": ["a", "b\tc"]}, ["body", "tags", 1]),
        ({"flow_name": "f", "tags": ["a\u2028"]}, ["body", "tags", 0]),
        ({"flow_name": "f", "tags": [""]}, ["body", "tags", 0]),
        ({"flow_name": "f", "tags": ["x" * 65]}, ["body", "tags", 0]),
        ({"flow_name": "f", "tags": [f"t{n}" for n in range(33)]}, ["body", "tags"]),
        ([], ["body"]),
    ],
)
async def test_a_body_of_the_wrong_shape_is_refused_with_the_place(
    world: World, body: Any, place: list[Any]
) -> None:
    answer = await world.client.post("/runs", json=body)
    assert answer.status_code == 422
    assert answer.json()["err_id"] == "ERR-PYOCO-0002"
    assert [problem["loc"] for problem in answer.json()["detail"]] == [place]
    assert world.jobs() == []


LABELS = ["env:prod", "月次", "team/data", "a b", "x" * 64, "*", "a.b.>"]


async def test_tags_are_free_labels(world: World) -> None:
    """D35: only `tag`, which is part of a subject, has a pattern."""
    answer = await world.client.post("/runs", json={"flow_name": "f", "tags": LABELS})
    assert answer.status_code == 200, answer.text
    batch = await world.client.post("/runs/batch", json={"runs": [{"flow_name": "f", "tags": LABELS}]})
    assert batch.json()["accepted"] == 1
    assert [job.tags for job in world.jobs()] == [tuple(LABELS)] * 2
    for label in LABELS:
        found = (await world.client.get("/runs", params={"tag": label})).json()
        assert [run["tags"] for run in found] == [LABELS] * 2


@pytest.mark.parametrize(
    ("body", "meant"),
    [
        ({"flow_nam": "f"}, "did you mean 'flow_name'?"),
        ({"flow_name": "f", "parms": {}}, "did you mean 'params'?"),
        (
            {"flow_name": "f", "urgency": 3},
            "unknown field 'urgency'; known: flow_name, params, tag",
        ),
        ({"flow_name": "f", "status": "COMPLETED"}, "unknown field 'status'"),
        ({"flow_name": "f", "run_id": "x"}, "unknown field 'run_id'"),
    ],
)
async def test_a_field_that_nobody_reads_is_refused_with_a_suggestion(
    world: World, body: dict[str, Any], meant: str
) -> None:
    """D27: it was accepted, and the run started now, without it. ERR-PYOCO-0002."""
    field = list(body)[-1]
    answer = await world.client.post("/runs", json=body)
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    (problem,) = [found for found in answer.json()["detail"] if found["loc"] == ["body", field]]
    assert meant in problem["msg"]
    batch = (await world.client.post("/runs/batch", json={"runs": [body]})).json()
    assert batch["refused"] == 1
    assert meant in batch["results"][0]["error"]["detail"]
    assert (await world.client.post("/runs/batch", json={"runs": [], "run": []})).status_code == 422
    assert world.jobs() == []


@pytest.mark.parametrize("path", ["/runs", "/runs/batch", "/runs/yaml"])
async def test_what_a_submit_says_in_its_query_is_refused(world: World, path: str) -> None:
    """D27"""
    answer = await world.client.post(f"{path}?tag=gpu", json={"flow_name": "f"})
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    assert answer.json()["detail"][0]["msg"] == "unknown query parameter 'tag'; known: none"
    assert world.jobs() == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"flow_name": "f", "params": {"x": NaN}}',
        b'{"flow_name": "f", "params": {"x": Infinity}}',
        b'{"flow_name": "f", "params": {"x": 1e999}}',
        b'{"flow_name": "\xff"}',
        b'{"flow_name": "\\ud800"}',
        b'{"flow_name": "f", "params": {"x": %s' % (b"[" * 100_000),
        b'{"flow_name": "f"} trailing',
    ],
)
async def test_what_is_not_strict_json_is_refused(world: World, body: bytes) -> None:
    answer = await world.post(body)
    assert answer.status_code == 422
    assert answer.json()["err_id"] == "ERR-PYOCO-0002"
    assert answer.json()["detail"][0]["type"] == "json_invalid"
    assert world.jobs() == []


@pytest.mark.parametrize(
    ("params", "place", "problem"),
    [
        (b'{"v": 18446744073709551616}', "params.v", "has more than 64 bits; write it in quotes"),
        (b'{"v": 9223372036854775808}', "params.v", "has more than 64 bits"),
        (b'{"v": -9223372036854775809}', "params.v", "has more than 64 bits"),
        (b'{"a": [1, {"v": %s}]}' % (b"9" * 5_000), "params.a.1.v", "has more than 64 bits"),
        (b'{"v": NaN}', "params.v", "NaN is not a number that JSON has"),
        (b'{"v": [-Infinity]}', "params.v.0", "-Infinity is not a number"),
        (b'{"v": 1e999}', "params.v", "is too large"),
        (b'{"a": {"v": 1, "v": 2}}', "params.a.v", "duplicate key 'v'"),
        (b'{"v": %s1%s}' % (b"[" * 60, b"]" * 60), "params.v.0", "nested more than 50 deep"),
    ],
)
@pytest.mark.parametrize("key", [None, "one"])
async def test_params_that_few_can_read_are_refused_with_their_place(
    world: World, params: bytes, place: str, problem: str, key: str | None
) -> None:
    """D48"""
    headers = {} if key is None else {"Idempotency-Key": key}
    answer = await world.post(b'{"flow_name": "f", "params": %s}' % params, **headers)
    assert answer.status_code == 422
    assert answer.json()["err_id"] == "ERR-PYOCO-0002"
    (detail,) = answer.json()["detail"]
    assert detail["msg"].startswith(f"{place}: ")
    assert problem in detail["msg"]
    assert ".".join(map(str, detail["loc"])) == f"body.{place}"
    assert world.jobs() == []


async def test_the_largest_numbers_of_64_bits_and_colons_in_texts_are_fine(world: World) -> None:
    """D48"""
    answer = await world.post(
        b'{"flow_name": "f", "params": {"a": 9223372036854775807, "b": -9223372036854775808,'
        b' "c": "x:\\"y\\":z", "d": 12345678901234567890.5, "e": "99999999999999999999"}}'
    )
    assert answer.status_code == 200
    assert world.jobs()[0].params == {
        "a": 2**63 - 1,
        "b": -(2**63),
        "c": 'x:"y":z',
        "d": 12345678901234567890.5,
        "e": "99999999999999999999",
    }


async def test_every_route_refuses_json_that_few_can_read(world: World) -> None:
    """D48: params, inputs of executions, data of events, outputs and resume data of nodes, definitions."""
    document = (await world.client.get("/openapi.json")).json()
    routes = [
        (method, path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    ]
    assert len(routes) > 10
    for method, path in routes:
        for body in (b'{"x": {"v": 18446744073709551616}}', b'{"x": {"v": 1, "v": 2}}'):
            answer = await world.client.request(
                method,
                re.sub(r"{[^}]*}", RUN_ID, path),
                content=body,
                headers={"Content-Type": "application/json"},
            )
            assert (answer.status_code, path) == (422, path), answer.text
            assert "x.v" in answer.text, (path, answer.text)


async def test_a_body_that_is_declared_too_large_is_refused_unread(world: World) -> None:
    answer = await world.post(b"{}", **{"content-length": str(10**12)})
    assert answer.status_code == 413
    assert answer.json()["err_id"] == "ERR-PYOCO-0002"


async def test_a_body_that_grows_too_large_is_refused(world: World) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(1_000):
            yield b" " * 1_024

    answer = await world.client.post("/runs/batch", content=endless())
    assert answer.status_code == 422, "a batch may be larger"
    async with memory_app(value_max_bytes=400_000) as gateway:
        answer = await gateway.client.post("/runs", content=endless())
    assert answer.status_code == 413


@pytest.mark.parametrize(("size", "expected"), [(256 * 1024, 200), (256 * 1024 + 1, 413)])
async def test_params_of_a_run_in_a_batch_have_a_limit_of_their_own(
    world: World, size: int, expected: int
) -> None:
    filler = "x" * (size - len(msgspec.json.encode({"x": ""})))
    run = {"flow_name": "f", "params": {"x": filler}}
    (result,) = (await world.client.post("/runs/batch", json={"runs": [run]})).json()["results"]
    assert result.get("http_status", 200) == expected
    assert len(world.jobs()) == (1 if expected == 200 else 0)


@pytest.mark.parametrize("run_id", [RUN_ID, "nonsense", "a.b", "*", "%3E", "x" * 500, RUN_ID.upper()])
async def test_a_run_that_does_not_exist_is_not_found(world: World, run_id: str) -> None:
    answer = await world.client.get(f"/runs/{run_id}", headers={"Accept-Language": "ja"})
    assert answer.status_code == 404
    assert answer.json() == {
        "detail": "run not found",
        "err_id": "ERR-PYOCO-0005",
        "msg_id": "MSG-PYOCO-0005",
        "message": "runが見つかりません",
    }


@pytest.mark.parametrize(
    ("include", "shown"),
    [("", False), ("include=records", True), ("include=full", True), ("include=all", True)],
)
async def test_records_are_shown_on_request_only(world: World, include: str, *, shown: bool) -> None:
    record = TaskRecord(state=TaskState.SUCCEEDED, output=3)
    snapshot = a_snapshot(RunStatus.COMPLETED, OWNER, task_records={"t": record}, result={"t": 3})
    await world.backend.runs.create(RUN_ID, snapshot)
    run = (await world.client.get(f"/runs/{RUN_ID}?{include}")).json()
    assert ("task_records" in run) is shown
    assert run["result"] == {"t": 3}


async def test_what_cannot_be_included_is_refused(world: World) -> None:
    await world.backend.runs.create(RUN_ID, a_snapshot())
    assert (await world.client.get(f"/runs/{RUN_ID}?include=x")).status_code == 422


@pytest.mark.parametrize(
    ("seconds_ago", "state", "alive"),
    [
        (0, WorkerState.RUNNING, True),
        (21, WorkerState.RUNNING, False),
        (0, WorkerState.STOPPED_GRACEFUL, False),
    ],
)
async def test_a_held_run_says_whether_its_worker_is_alive(
    seconds_ago: float, state: WorkerState, *, alive: bool
) -> None:
    seen = NOW - seconds_ago
    async with new_memory_gateway(clock=lambda: NOW) as (client, backend):
        await backend.runs.create(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER))
        await backend.workers.create(
            OWNER.worker_id, a_worker(state=state, last_seen_at=seen, last_heartbeat_at=seen, tags=("gpu",))
        )
        await until(lambda: client.get("/workers?scope=all"), lambda answer: bool(answer.json()))
        run = (await client.get(f"/runs/{RUN_ID}")).json()
    assert (run["worker_alive"], run["worker_heartbeat_at"], run["worker_tags"]) == (alive, seen, ["gpu"])


async def _items(client: httpx2.AsyncClient, path: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client.get(path)).json()
    return items


@pytest.mark.parametrize(("instance_id", "later"), [(OWNER.instance_id, 7), ("restarted", 0)])
async def test_every_reader_gets_the_newer_heartbeat_of_a_run_and_its_worker(
    instance_id: str, later: float
) -> None:
    """The heartbeat of a run that a worker wrote may be 20 s old; another instance does not run it."""
    async with memory_app(given={"clock": lambda: NOW}) as world:
        await world.backend.runs.create(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER))
        await world.backend.workers.create(
            OWNER.worker_id,
            a_worker(state=WorkerState.RUNNING, instance_id=instance_id, last_heartbeat_at=NOW + 7),
        )
        await until(lambda: world.client.get("/workers"), lambda answer: bool(answer.json()))
        (listed,) = await until(lambda: _items(world.client, "/runs"))
        (full,) = await _items(world.client, "/runs?include=full")
        read = (await world.client.get(f"/runs/{RUN_ID}")).json()
        async with stream(world.app, f"/runs/{RUN_ID}/watch") as watched:
            event = await watched.next()
        assert [one["heartbeat_at"] for one in (listed, full, read, event.data["snapshot"])] == [
            NOW + later
        ] * 4
        assert listed["updated_at"] == full["updated_at"], "only the heartbeat is another one"


@pytest.mark.parametrize("worker_id", ["unknown", "a name with blanks", "*", ""])
async def test_a_run_held_by_a_worker_that_nobody_knows_is_shown_all_the_same(
    world: World, worker_id: str
) -> None:
    await world.backend.runs.create(RUN_ID, a_snapshot(RunStatus.RUNNING, worker_id=worker_id))
    run = (await world.client.get(f"/runs/{RUN_ID}")).json()
    assert (run["worker_id"], run["worker_alive"]) == (worker_id, None)


async def test_a_run_that_has_ended_does_not_speak_of_its_worker(world: World) -> None:
    await world.backend.runs.create(RUN_ID, a_snapshot(RunStatus.COMPLETED, OWNER))
    await world.backend.workers.create(OWNER.worker_id, a_worker())
    assert (await world.client.get(f"/runs/{RUN_ID}")).json()["worker_alive"] is None


async def test_a_worker_that_was_started_with_the_server_has_a_moment_to_register(world: World) -> None:
    answer = await world.client.post("/runs", json={"flow_name": "f"})
    assert "warning" not in answer.json()


async def test_a_run_that_no_worker_can_take_is_accepted_with_a_warning(impatient: World) -> None:
    """D45: a mistyped tag waited for ever, and only doctor knew why."""
    world = impatient

    async def warning(**body: Any) -> str | None:
        answer = await world.client.post("/runs", json={"flow_name": "f", **body})
        assert answer.status_code == 200
        found: str | None = answer.json().get("warning")
        return found

    await until(warning, lambda found: found is not None)  # once the fleet has been read
    assert await warning() == "no worker is running: the run waits until one comes"
    seen = {"last_seen_at": time.time(), "last_heartbeat_at": time.time()}
    for worker_id, tags in (("w1", ("default", "gpu")), ("w2", ("cpu",))):
        await world.backend.workers.create(worker_id, a_worker(worker_id=worker_id, tags=tags, **seen))
    await until(warning, lambda found: found is None)
    assert await warning(tag="cpu") is None
    meant = "no live worker has the tag 'gpuu' (did you mean 'gpu'?); the run waits for one"
    assert await warning(tag="gpuu") == meant
    batch = {"runs": [{"flow_name": "f", "tag": "gpuu"}, {"flow_name": "f"}]}
    results = (await world.client.post("/runs/batch", json=batch)).json()["results"]
    assert [result.get("warning") for result in results] == [meant, None]
