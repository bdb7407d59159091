"""What nobody reads is refused, with what may have been meant: it would look accepted."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.logs import exception_fields
from support.captured_logs import capture_logs
from support.gateway import RunningGateway, memory_app
from support.http_executions import APPROVAL, Executions


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        executions = Executions(running.client)
        await executions.register("approval", APPROVAL)
        await executions.create(graph_id="approval", execution_id="e")
        yield running


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/runs", {"flow_name": "f", "parms": {}}, "did you mean 'params'?"),
        ("/runs", {"flow_name": "f", "retry": {"max_attemps": 3}}, "did you mean 'max_attempts'?"),
        ("/runs/batch", {"run": []}, "did you mean 'runs'?"),
        ("/schedules/preview", {"target": {"flow": "f", "tga": "x"}}, "did you mean 'tag'?"),
        (
            "/schedules/preview",
            {"target": {"flow": "f", "retry": {"jiter": 1}}},
            "did you mean 'jitter'?",
        ),
        ("/schedules/preview", {"target": {"flow": "f"}, "corn": "* * * * *"}, "did you mean 'cron'?"),
        ("/executions", {"graph_id": "approval", "inptu": 1}, "did you mean 'input'?"),
        ("/executions/e/cancel", {"raeson": "x"}, "did you mean 'reason'?"),
        ("/executions/e/commands", {"command": "CancelExecution", "raeson": "x"}, "did you mean 'reason'?"),
        ("/executions/e/nodes/book/start", {"workerid": "w"}, "did you mean 'worker_id'?"),
        ("/executions/e/rerun", {"form": "start"}, "did you mean 'from'?"),
        ("/api/workflow-events/retry-jobs/drain", {"limt": 3}, "did you mean 'limit'?"),
        ("/api/workflow-events/notification-settings", {"url": ""}, "known: webhook_url"),
        ("/api/workflow-templates/t/start", {"yaer": 2026}, "did you mean 'year'?"),
    ],
)
async def test_an_unknown_field_is_refused(
    gateway: RunningGateway, path: str, body: dict[str, Any], text: str
) -> None:
    answer = await gateway.client.post(path, json=body)
    assert answer.status_code == 422, answer.text
    assert text in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/executions?graph=approval",
        "/executions/e?at=1",
        "/executions/e/events?since=1",
        "/waits?graph_id=x",
        "/graphs/approval?v=1",
        "/api/workflow-events/retry-jobs?status=queued",
        "/api/workflow-templates?name=x",
    ],
)
async def test_an_unknown_query_parameter_is_refused(gateway: RunningGateway, path: str) -> None:
    answer = await gateway.client.get(path)
    assert answer.status_code == 422, answer.text
    assert "unknown query parameter" in answer.text


async def test_an_event_may_say_more_than_is_read(gateway: RunningGateway) -> None:
    """Its sender decides what it says: it is refused for want of a template, not for its fields."""
    answer = await gateway.client.post("/api/workflow-events?utm=1", json={"event_name": "x", "more": 1})
    assert answer.status_code == 404, answer.text


async def test_a_body_of_unknown_fields_is_answered_briefly(gateway: RunningGateway) -> None:
    answer = await gateway.client.post("/runs", json={f"flow_nam{n}": n for n in range(5_000)})
    assert answer.status_code == 422
    assert len(answer.json()["detail"]) <= 50


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/runs", {"flow_name": "f", "parms": {"password": "hunter2"}}),
        ("/runs", {"flow_name": "f", "params": "hunter2"}),
        ("/executions", {"graph_id": "approval", "input": {}, "execution_id": {"password": "hunter2"}}),
        ("/executions/e/commands", {"command": {"password": "hunter2"}}),
        ("/api/workflow-events", {"event_name": "e", "data": "d", "year": {"password": "hunter2"}}),
    ],
)
async def test_what_a_refused_request_contains_is_not_logged(
    gateway: RunningGateway, path: str, body: dict[str, Any]
) -> None:
    with capture_logs() as logged:
        answer = await gateway.client.post(path, json=body)
    assert answer.is_client_error
    causes = [line["exc_info"] for line in logged if "exc_info" in line]
    assert "hunter2" not in str(logged) + "".join(
        exception_fields(cause)["exc_traceback"] for cause in causes
    )
