"""Runs that tasks submit: with the rights of their parent, once, and by the rules for all runs."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from pyoco import Flow, task

from pyoco_server import current_run, submit
from pyoco_server.domain.runs.children import ChildAnswer, ChildOrder
from pyoco_server.domain.runs.model import Owner, RunStatus
from pyoco_server.domain.runs.task_requests import ChildRequest
from pyoco_server.testing import LocalServer
from support.builders import OWNER, RUN_ID, a_snapshot
from support.gateway import RunningGateway, memory_app, new_key
from support.tables import every_row

ENDED: dict[str, Any] = {"status": RunStatus.COMPLETED}
LATER = Owner("worker-b", "instance-7", OWNER.attempt + 1)


def child(key: str = "k", flow_name: str = "child", **changes: Any) -> ChildRequest:
    return replace(ChildRequest(key=key, flow_name=flow_name, params={"n": 1}), **changes)


async def ask(gateway: RunningGateway, request: ChildRequest, owner: Owner = OWNER) -> ChildAnswer:
    return await gateway.backend.child_runs.request(ChildOrder(RUN_ID, owner, request))


async def with_parent(gateway: RunningGateway, **changes: Any) -> None:
    fields = {"status": RunStatus.RUNNING, "owner": OWNER, "tag": "gpu", "tenant_id": "acme", **changes}
    await gateway.backend.runs.create(RUN_ID, a_snapshot(**fields))


async def test_a_child_has_the_rights_of_its_parent_and_is_started_once() -> None:
    async with memory_app(http_auth_mode="api_key") as gateway:
        await with_parent(gateway, api_key_id="key-1")
        first = await ask(gateway, child())
        assert (await ask(gateway, child())).run_id == first.run_id
        assert len(await gateway.backend.queue.jobs()) == 1
        other = await ask(gateway, child("other", tag="cpu"))
        headers = await new_key(gateway.backend.api_keys, "acme", "key-2")
        strangers = await new_key(gateway.backend.api_keys, "other", "key-3")
        run = (await gateway.client.get(f"/runs/{first.run_id}", headers=headers)).json()
        found = {name: run[name] for name in ("parent_run_id", "tag", "tenant_id", "api_key_id", "params")}
        assert found == {
            "parent_run_id": RUN_ID,
            "tag": "gpu",
            "tenant_id": "acme",
            "api_key_id": "key-1",
            "params": {"n": 1},
        }
        wanted = {"parent_run_id": RUN_ID}
        listed = (await gateway.client.get("/runs", params=wanted, headers=headers)).json()
        assert [one["run_id"] for one in listed] == [other.run_id, first.run_id]
        assert {one["parent_run_id"] for one in listed} == {RUN_ID}
        of_tag = (await gateway.client.get("/runs", params=wanted | {"tag": "cpu"}, headers=headers)).json()
        assert [one["run_id"] for one in of_tag] == [other.run_id]
        assert (await gateway.client.get("/runs", params=wanted, headers=strangers)).json() == []


async def test_a_child_whose_job_was_not_queued_gets_it_at_the_next_request() -> None:
    async with memory_app() as gateway:
        await with_parent(gateway)
        run_id = (await ask(gateway, child())).run_id
        taken = gateway.backend.queue.take(["pyoco.work.gpu"])
        assert taken is not None
        await taken.ack()
        assert (await ask(gateway, child())).run_id == run_id
        assert (await ask(gateway, child(params={"n": 2}))).error is not None


@every_row(
    ("parent", "owner", "error", "is_passing"),
    [
        ({"status": RunStatus.CANCELLING}, OWNER, "the run was cancelled", False),
        (ENDED, OWNER, "the run has ended, or another worker executes it", False),
        ({"owner": LATER}, OWNER, "the run has ended, or another worker executes it", False),
        ({}, LATER, "the run has ended, or another worker executes it", True),
        (None, OWNER, "the run does not exist any more", True),
    ],
)
async def test_only_the_worker_that_executes_the_parent_starts_children(
    parent: dict[str, Any] | None, owner: Owner, error: str, *, is_passing: bool
) -> None:
    async with memory_app() as gateway:
        if parent is not None:
            await with_parent(gateway, **parent)
        answer = await ask(gateway, child(), owner)
        assert answer == ChildAnswer(error=error, is_passing=is_passing)
        assert await gateway.backend.queue.jobs() == []


async def test_limits_hold_for_children() -> None:
    async with memory_app() as gateway:
        await with_parent(gateway, tenant_id=None)
        limit = {"match": {"flow": "child"}, "max_running": 1, "max_waiting": 1}
        assert (await gateway.client.put("/limits/one", json=limit)).status_code == 201
        answers = [await ask(gateway, child(key)) for key in "abc"]
        assert [answer.error is None for answer in answers] == [True, True, False]
        assert answers[2].error is not None
        assert "limit" in answers[2].error


async def test_what_no_run_may_have_is_refused_with_its_reason() -> None:
    async with memory_app() as gateway:
        await with_parent(gateway)
        answer = await ask(gateway, child(tag="not a tag"))
        assert answer.error is not None
        assert "not a tag" in answer.error
        assert "ERR-PYOCO-0002" in answer.error


# The whole way, from a task


@task
def double(n: int) -> int:
    return 2 * n


@task
def parent() -> list[str]:
    return [submit("double", {"n": n}) for n in (1, 2, 2)] + [submit("double", {"n": 9}, key="mine")]


@task
def refused(what: dict[str, Any], made: str = "") -> str:
    """`made`: params that a request cannot carry."""
    values = {"object": object(), "nan": float("nan"), "long": "x" * 300_000}
    try:
        return submit(**what, params={"x": values[made]} if made else {})
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


@task
def above() -> Any:
    run = current_run()
    return None if run is None else run.parent_run_id


def leaf() -> Flow:
    return Flow(name="leaf") >> above


@task
def starts_leaf() -> str:
    return submit("leaf")


FLOWS = [
    Flow(name="double") >> double,
    Flow(name="parent") >> parent,
    Flow(name="refused") >> refused,
    Flow(name="starts_leaf") >> starts_leaf,
    leaf(),
]


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer(FLOWS) as running:
        yield running


def test_a_task_starts_runs_and_gets_their_ids(server: LocalServer) -> None:
    run_id = server.client.submit_run("parent")["run_id"]
    server.settle()
    children = server.client.get_run(run_id)["result"]["parent"]
    assert len(set(children)) == 4
    listed = server.client.list_runs(parent_run_id=run_id)
    assert sorted(run["run_id"] for run in listed) == sorted(children)
    assert [server.client.get_run(one)["result"] for one in children] == [
        {"double": n} for n in (2, 4, 4, 18)
    ]
    assert len(server.client.list_runs_vnext(parent_run_id=run_id, limit=3)["items"]) == 3
    above = server.run("starts_leaf")["starts_leaf"]
    server.settle()
    assert server.client.get_run(above)["result"]["above"] == server.client.get_run(above)["parent_run_id"]


@every_row(
    ("made", "what", "error"),
    [
        ("object", {}, "ValueError: submit('double'): params.x: an object is not JSON"),
        ("nan", {}, "params.x: NaN is not JSON; use null or a string"),
        ("long", {}, "at most 262,144 are allowed"),
        ("", {"delay_sec": -1}, "ValueError: submit('double'): Expected `float` >= 0"),
        ("", {"priority": "huge"}, "Invalid enum value 'huge'"),
        ("", {"flow_name": ""}, "RuntimeError: submit('') was refused: flow_name must have 1 to"),
    ],
)
def test_what_cannot_be_submitted_raises_in_the_task(
    server: LocalServer, made: str, what: dict[str, Any], error: str
) -> None:
    found = server.run("refused", {"what": {"flow_name": "double"} | what, "made": made})["refused"]
    assert error in found


def test_outside_of_a_run_nothing_is_submitted() -> None:
    with pytest.raises(RuntimeError, match=r"submit\('double'\) works in a task of a run only"):
        submit("double")
