"""REQ-0006: lists of runs over HTTP, and the pages that follow."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.domain.runs.model import RunStatus, TaskRecord, TaskState
from pyoco_server.wiring import new_run_id
from support.builders import NOW, OWNER, a_snapshot
from support.gateway import RunningGateway, another_gateway, memory_app
from support.waiting import PATIENCE_SEC, until


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        yield running


async def put(gateway: RunningGateway, status: RunStatus = RunStatus.PENDING, **fields: Any) -> str:
    run_id: str = fields.pop("run_id", None) or new_run_id()
    await gateway.backend.runs.create(run_id, a_snapshot(status, run_id=run_id, **fields))
    return run_id


async def change(gateway: RunningGateway, run_id: str, **fields: Any) -> None:
    stored = await gateway.backend.runs.get(run_id)
    assert stored is not None
    await gateway.backend.runs.update(run_id, a_snapshot(run_id=run_id, **fields), stored.revision)


async def listed(gateway: RunningGateway, query: str = "", count: int | None = None) -> list[str]:
    """The ids of a page, once it has `count` of them."""

    async def look() -> list[str]:
        answer = await gateway.client.get(f"/runs?{query}")
        assert answer.status_code == 200, answer.text
        found = answer.json()
        return [run["run_id"] for run in (found if isinstance(found, list) else found["items"])]

    return await until(look, lambda found: count is None or len(found) == count)


async def pages(gateway: RunningGateway, query: str, limit: int) -> list[list[str]]:
    """Every page of a list, by its cursors."""
    found: list[list[str]] = []
    cursor: str | None = None
    while cursor is not None or not found:
        url = f"/runs?{query}&updated_after=0&limit={limit}" + (f"&cursor={cursor}" if cursor else "")
        page = (await gateway.client.get(url)).json()
        found.append([run["run_id"] for run in page["items"]])
        cursor = page["next_cursor"]
    return found


async def test_where_nothing_is_yet_the_list_is_empty(gateway: RunningGateway) -> None:
    answer = await gateway.client.get("/runs")
    assert (answer.status_code, answer.json()) == (200, [])
    answer = await gateway.client.get("/runs?updated_after=0")
    assert (answer.status_code, answer.json()) == (200, {"items": [], "next_cursor": None})


async def test_a_list_shows_what_was_just_submitted_newest_first(gateway: RunningGateway) -> None:
    for n in range(5):
        answer = await gateway.client.post("/runs", json={"flow_name": f"f{n}"})
        (newest, *_) = (await gateway.client.get("/runs")).json()
        assert newest["run_id"] == answer.json()["run_id"]
    assert [run["flow_name"] for run in (await gateway.client.get("/runs")).json()] == [
        "f4",
        "f3",
        "f2",
        "f1",
        "f0",
    ]


async def test_an_item_is_a_summary(gateway: RunningGateway) -> None:
    record = TaskRecord(state=TaskState.SUCCEEDED, output="long")
    tasks = {"a": TaskState.SUCCEEDED, "b": TaskState.RUNNING}
    await put(gateway, RunStatus.RUNNING, owner=OWNER, tasks=tasks, task_records={"a": record})
    await listed(gateway, count=1)
    (item,) = (await gateway.client.get("/runs")).json()
    assert {"run_id", "status", "updated_at", "flow_name", "worker_id"} <= set(item)
    assert (item["tasks_total"], item["tasks_done"]) == (2, 1)
    assert not {"params", "tasks", "task_records", "result"} & set(item)


@pytest.mark.parametrize("word", ["full", "all"])
async def test_the_full_form_has_params_and_records(gateway: RunningGateway, word: str) -> None:
    record = TaskRecord(state=TaskState.SUCCEEDED, output=[1, 2])
    await put(gateway, RunStatus.COMPLETED, task_records={"a": record}, tasks={"a": TaskState.SUCCEEDED})
    await listed(gateway, count=1)
    (item,) = (await gateway.client.get(f"/runs?include={word}")).json()
    assert (item["params"], item["task_records"]["a"]["output"]) == ({"x": 1}, [1, 2])


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("status=FAILED", ["b"]),
        ("flow=special", ["c"]),
        ("tag=gpu", ["b", "c"]),
        ("tag=extra", ["c"]),
        ("tag=gpu&status=PENDING", ["c"]),
        ("workflow_yaml_sha256=abc", ["d"]),
        ("workflow_yaml_sha256=nobody", []),
        (f"updated_after={NOW + 2}", ["d"]),
        (f"updated_after={NOW + 3}", []),
        (f"updated_before={NOW + 1}&updated_after=0", ["a"]),
        (f"updated_after={NOW}&updated_before={NOW + 2}", ["b"]),
        (f"status=PENDING&flow=sample&updated_after={NOW}", ["d"]),
        ("flow=", []),
        ("tag=%00", []),
    ],
)
async def test_filters_narrow_the_list(gateway: RunningGateway, query: str, expected: list[str]) -> None:
    names = {
        await put(gateway, updated_at=NOW, tag="default"): "a",
        await put(gateway, RunStatus.FAILED, updated_at=NOW + 1, tag="gpu", tags=("gpu",)): "b",
        await put(gateway, updated_at=NOW + 2, tag="gpu", tags=("extra",), flow_name="special"): "c",
        await put(gateway, updated_at=NOW + 3, tag="default", workflow_yaml_sha256="abc"): "d",
    }
    await listed(gateway, count=4)
    assert sorted(names[run_id] for run_id in await listed(gateway, query)) == expected


@pytest.mark.parametrize("extra", ["updated_after=0", "workflow_yaml_sha256=abc"])
async def test_a_list_that_can_go_on_is_an_object(gateway: RunningGateway, extra: str) -> None:
    for _ in range(3):
        await put(gateway, workflow_yaml_sha256="abc")
    await listed(gateway, count=3)
    first = (await gateway.client.get(f"/runs?{extra}&limit=2")).json()
    assert (len(first["items"]), bool(first["next_cursor"])) == (2, True)
    last = (await gateway.client.get(f"/runs?{extra}&limit=2&cursor={first['next_cursor']}")).json()
    assert (len(last["items"]), last["next_cursor"]) == (1, None)


async def test_a_page_that_is_exactly_full_is_the_last(gateway: RunningGateway) -> None:
    for _ in range(4):
        await put(gateway)
    await listed(gateway, count=4)
    assert [len(page) for page in await pages(gateway, "", 2)] == [2, 2]


async def test_runs_of_the_same_moment_are_ordered_by_their_ids(gateway: RunningGateway) -> None:
    ids = sorted([await put(gateway) for _ in range(7)], reverse=True)
    await listed(gateway, count=7)
    assert [run_id for page in await pages(gateway, "", 2) for run_id in page] == ids


async def test_pages_never_repeat_or_skip_what_did_not_change(gateway: RunningGateway) -> None:
    ids = [await put(gateway, updated_at=NOW + n // 3) for n in range(30)]
    await listed(gateway, count=30)
    changed, added, seen = set(), set(), []
    page: dict[str, Any] = {"next_cursor": ""}
    for step in range(10):
        cursor = f"&cursor={page['next_cursor']}" if page["next_cursor"] else ""
        page = (await gateway.client.get(f"/runs?limit=4&updated_after=0{cursor}")).json()
        seen += [run["run_id"] for run in page["items"]]
        if page["next_cursor"] is None:
            break
        changed.add(ids[step * 3])
        await change(gateway, ids[step * 3], updated_at=NOW + 100 + step)
        added.add(await put(gateway, updated_at=NOW + 200 + step))
        await until(lambda: listed(gateway, "limit=200"), lambda found: added <= set(found))
    assert page["next_cursor"] is None
    assert len(seen) == len(set(seen))
    assert set(ids) - changed <= set(seen)


async def test_a_cursor_leads_on_at_another_gateway(gateway: RunningGateway) -> None:
    ids = sorted([await put(gateway) for _ in range(5)], reverse=True)
    await listed(gateway, count=5)
    first = (await gateway.client.get("/runs?updated_after=0&limit=3")).json()
    async with another_gateway(gateway) as second:
        await listed(second, count=5)
        rest = await listed(second, f"cursor={first['next_cursor']}")
    assert rest == ids[3:]


@pytest.mark.parametrize(
    "other", ["status=PENDING", "flow=sample", "tag=default", "workflow_yaml_sha256=abc", "status=FAILED"]
)
async def test_a_cursor_leads_nowhere_in_another_list(gateway: RunningGateway, other: str) -> None:
    """ERR-PYOCO-0017"""
    for _ in range(3):
        await put(gateway, tag="default")
    await listed(gateway, count=3)
    first = (await gateway.client.get("/runs?updated_after=0&limit=1")).json()
    answer = await gateway.client.get(f"/runs?{other}&cursor={first['next_cursor']}")
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0017")


@pytest.mark.parametrize(
    "query",
    [
        "cursor=",
        "cursor=nonsense",
        "cursor=%E3%81%82",
        "cursor=W10",
        "cursor=%00",
        "updated_after=yesterday",
        "updated_after=nan",
        "updated_after=inf",
        "updated_after=",
        "limit=0",
        "limit=201",
        "limit=-1",
        "limit=many",
        "limit=1.5",
        "status=DONE",
        "status=pending",
        "include=records",
        "include=everything",
    ],
)
async def test_what_a_list_cannot_be_asked_is_refused(gateway: RunningGateway, query: str) -> None:
    """ERR-PYOCO-0017"""
    answer = await gateway.client.get(f"/runs?{query}")
    assert answer.status_code == 422
    assert (answer.json()["err_id"], answer.json()["msg_id"]) == ("ERR-PYOCO-0017", "MSG-PYOCO-0017")
    assert answer.json()["detail"].startswith("invalid list query")


async def test_a_page_has_50_runs_and_at_most_200(gateway: RunningGateway) -> None:
    for _ in range(205):
        await put(gateway)
    await listed(gateway, "limit=200", count=200)
    assert len(await listed(gateway)) == 50
    assert len(await listed(gateway, "limit=1")) == 1


async def test_a_run_that_was_removed_leaves_the_list(gateway: RunningGateway) -> None:
    run_id = await put(gateway)
    kept = await put(gateway)
    await listed(gateway, count=2)
    await gateway.backend.runs.remove(run_id, None)
    assert await listed(gateway, count=1) == [kept]


async def test_a_changed_run_moves_to_the_front_and_changes_its_lists(gateway: RunningGateway) -> None:
    first = await put(gateway, tag="old", tags=("old",))
    await put(gateway, updated_at=NOW + 1)
    await listed(gateway, count=2)
    await change(gateway, first, updated_at=NOW + 2, status=RunStatus.COMPLETED, tag="new", tags=("new",))
    await until(lambda: listed(gateway), lambda found: found[0] == first)
    assert await listed(gateway, "tag=old") == []
    assert await listed(gateway, "tag=new&status=COMPLETED") == [first]


async def test_a_heartbeat_does_not_reorder_the_list(gateway: RunningGateway) -> None:
    first = await put(gateway)
    second = await put(gateway, updated_at=NOW + 1)
    await listed(gateway, count=2)
    await change(gateway, first, heartbeat_at=NOW + 50)
    await until(
        lambda: gateway.client.get("/runs"), lambda answer: answer.json()[1]["heartbeat_at"] == NOW + 50
    )
    assert await listed(gateway) == [second, first]


async def test_a_list_after_a_write_that_never_arrives_waits_once_only(gateway: RunningGateway) -> None:
    """Somebody made the bucket anew: the revisions that this gateway wrote will never be reached."""
    runs = gateway.app.state.gateway.levels.runs
    runs.list._own_writes.wrote(10**9)
    await gateway.client.get("/runs")
    assert runs.list._own_writes._latest == 0
    assert len(runs.follow._waiting) <= 1


@pytest.mark.parametrize(
    ("query", "err_id"),
    [
        ("/runs?staus=FAILED", "ERR-PYOCO-0017"),
        ("/runs?flow=f&tags=a", "ERR-PYOCO-0017"),
        ("/runs/watch?status=FAILED", "ERR-PYOCO-0017"),
        ("/workers?tag=gpu", "ERR-PYOCO-0019"),
        ("/wheels/history?name=a.whl", "ERR-PYOCO-0002"),
        ("/executions?graph=monthly", "ERR-PYOCO-0002"),
        ("/waits?graph_id=monthly", "ERR-PYOCO-0002"),
        ("/executions/e1/events?from=3", "ERR-PYOCO-0002"),
        ("/graphs?name=monthly", "ERR-PYOCO-0017"),
        ("/graphs/monthly?versoin=1", "ERR-PYOCO-0002"),
        ("/runs/0190aaaa-bbbb-7ccc-8ddd-eeeeffff0001?includes=records", "ERR-PYOCO-0002"),
    ],
)
async def test_a_filter_that_does_not_exist_is_refused(
    gateway: RunningGateway, query: str, err_id: str
) -> None:
    """D27: a mistyped filter answered with everything."""
    async with asyncio.timeout(PATIENCE_SEC):  # a watch that is not refused would go on
        answer = await gateway.client.get(query)
    assert (answer.status_code, answer.json()["err_id"]) == (422, err_id)
    assert "unknown query parameter" in answer.text


async def test_a_mistyped_filter_comes_with_the_one_that_was_meant(gateway: RunningGateway) -> None:
    """D27"""
    answer = await gateway.client.get("/runs?staus=FAILED")
    assert "unknown query parameter 'staus' (did you mean 'status'?)" in answer.json()["detail"]
