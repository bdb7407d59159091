"""What flows print, over HTTP."""

from collections.abc import AsyncIterator

import pytest

from pyoco_server.domain.task_logs import LogLine
from support.gateway import RunningGateway, memory_app
from support.things import NOW, RUN_ID, a_snapshot

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
