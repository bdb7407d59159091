"""What flows print, over HTTP."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.domain.runs.logs import LogLine
from support.builders import NOW, RUN_ID, a_snapshot
from support.gateway import RunningGateway, memory_app

LOGS = f"/runs/{RUN_ID}/logs"


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        await running.backend.runs.create(RUN_ID, a_snapshot())
        yield running


def line(n: int, task: str | None = "t", attempt: int = 1) -> LogLine:
    return LogLine(attempt=attempt, n=n, task=task, stream="stdout", text=f"{attempt}.{n}\n", ts=NOW)


async def texts(gateway: RunningGateway, query: str = "") -> list[str]:
    answer = await gateway.client.get(f"{LOGS}?{query}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["run_id"] == RUN_ID
    return [shown["text"] for shown in answer.json()["lines"]]


async def test_a_run_that_printed_nothing_has_no_lines(gateway: RunningGateway) -> None:
    assert await texts(gateway) == []


async def test_lines_come_in_the_order_in_which_they_were_printed(gateway: RunningGateway) -> None:
    await gateway.backend.task_logs.append(RUN_ID, [line(2), line(1), line(1, attempt=2), line(3)])
    assert await texts(gateway) == ["1.1\n", "1.2\n", "1.3\n", "2.1\n"]
    assert await texts(gateway, "limit=2") == ["1.3\n", "2.1\n"], "the last ones"


async def test_lines_of_one_task_can_be_asked_for(gateway: RunningGateway) -> None:
    await gateway.backend.task_logs.append(RUN_ID, [line(1), line(2, "other"), line(3, None)])
    assert await texts(gateway, "task=other") == ["1.2\n"]
    assert await texts(gateway, "task=unknown") == []


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "limit=x"])
async def test_what_cannot_be_asked_is_refused(gateway: RunningGateway, query: str) -> None:
    """ERR-PYOCO-0002"""
    answer = await gateway.client.get(f"{LOGS}?{query}")
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")


@pytest.mark.parametrize("run_id", ["nonsense", "*", RUN_ID[:-1] + "2"])
async def test_a_run_that_does_not_exist_is_not_found(gateway: RunningGateway, run_id: str) -> None:
    """ERR-PYOCO-0005"""
    answer = await gateway.client.get(f"/runs/{run_id}/logs")
    assert (answer.status_code, answer.json()["err_id"]) == (404, "ERR-PYOCO-0005")


async def page(gateway: RunningGateway, query: str) -> dict[str, Any]:
    answer = await gateway.client.get(f"{LOGS}?{query}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_the_whole_log_is_read_page_by_page(gateway: RunningGateway) -> None:
    """D28"""
    for start in range(0, 25, 5):
        await gateway.backend.task_logs.append(RUN_ID, [line(n) for n in range(start, start + 5)])
    cursor, found, sizes = "0", [], []
    has_more = True
    while has_more:
        answer = await page(gateway, f"cursor={cursor}&limit=7")
        cursor, has_more = answer["next_cursor"], answer["has_more"]
        found += [shown["n"] for shown in answer["lines"]]
        sizes.append(len(answer["lines"]))
    assert found == list(range(25))
    assert sizes == [7, 7, 7, 4]
    nothing_new = await page(gateway, f"cursor={cursor}")
    assert (nothing_new["lines"], nothing_new["next_cursor"]) == ([], cursor)
    await gateway.backend.task_logs.append(RUN_ID, [line(25)])
    assert [shown["n"] for shown in (await page(gateway, f"cursor={cursor}"))["lines"]] == [25]


async def test_the_last_lines_say_whether_there_are_earlier_ones(gateway: RunningGateway) -> None:
    """D28"""
    await gateway.backend.task_logs.append(RUN_ID, [line(n) for n in range(10)])
    assert (await page(gateway, "limit=10"))["has_earlier"] is False
    last = await page(gateway, "limit=3")
    assert last["has_earlier"] is True
    assert (await page(gateway, f"cursor={last['next_cursor']}"))["lines"] == []


async def test_pages_of_one_task_have_its_lines_alone(gateway: RunningGateway) -> None:
    """D28"""
    await gateway.backend.task_logs.append(RUN_ID, [line(n, "ab"[n % 2]) for n in range(10)])
    found, answer = [], await page(gateway, "cursor=0&task=b&limit=3")
    while answer["has_more"]:
        found += answer["lines"]
        answer = await page(gateway, f"cursor={answer['next_cursor']}&task=b&limit=3")
    assert [shown["n"] for shown in [*found, *answer["lines"]]] == [1, 3, 5, 7, 9]


async def test_a_line_that_was_stored_twice_is_shown_once(gateway: RunningGateway) -> None:
    """D28: the answer to a write was lost, and the write repeated."""
    for _ in range(2):
        await gateway.backend.task_logs.append(RUN_ID, [line(1), line(2)])
    assert await texts(gateway) == ["1.1\n", "1.2\n"]
    assert await texts(gateway, "cursor=0") == ["1.1\n", "1.2\n"]


async def test_a_mark_of_what_was_cut_is_shown(gateway: RunningGateway) -> None:
    """D28"""
    mark = LogLine(
        attempt=1, n=1, task="t", stream="stdout", text="… cut …\n", ts=NOW, cut_lines=2, cut_bytes=9
    )
    await gateway.backend.task_logs.append(RUN_ID, [line(0), mark])
    first, second = (await page(gateway, "cursor=0"))["lines"]
    assert "cut_lines" not in first
    assert (second["cut_lines"], second["cut_bytes"]) == (2, 9)


@pytest.mark.parametrize("cursor", ["x", "-1", "1.", "1.2.3", "9" * 20, "%D9%A1"])
async def test_a_cursor_of_somebody_else_is_refused(gateway: RunningGateway, cursor: str) -> None:
    """D28, ERR-PYOCO-0002"""
    answer = await gateway.client.get(f"{LOGS}?cursor={cursor}")
    assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0002")
    assert "cursor" in answer.json()["detail"]
