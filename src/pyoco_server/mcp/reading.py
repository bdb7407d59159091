"""The tools that read: runs, executions, waits, workers, queues, flows, statistics."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from pyoco_server.domain.executions.model import ExecutionStatus, NodeStatus
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.http_client.answers import Flow, LogLine, Stats, StatsPoint, StatsSeries
from pyoco_server.http_client.client import ClientCalls
from pyoco_server.http_client.options import seconds_of
from pyoco_server.mcp.answers import Line, answer, chosen, iso, log_from, log_head_and_tail
from pyoco_server.mcp.connection import Gateway

MAX_PAGE = 50
MAX_POINTS = 240
"""Of all series together; the latest of each."""
MIN_POINTS = 6
MAX_WORKERS = 500
_ALIVE = ("RUNNING", "IDLE")
_COLOURS = re.compile(r"\x1b\[[\d;:?]*[A-Za-z]")

RunId = Annotated[str, Field(description="Id of the run")]
ExecutionId = Annotated[str, Field(description="Id of the execution")]
Cursor = Annotated[
    str | None, Field(description="next_cursor of the previous page; keep the other arguments")
]
Limit = Annotated[int, Field(ge=1, le=MAX_PAGE, description="Entries per page")]
Since = Annotated[str | None, Field(description="How long ago (90s, 15m, 6h, 2d), or a time in ISO 8601")]

_SUMMARY = (
    "run_id",
    "flow_name",
    "status",
    "error",
    "tag",
    "worker_id",
    "attempt",
    "submitted_at",
    "not_before",
    "start_time",
    "end_time",
    "execution_id",
    "node_id",
    "schedule_id",
    "parent_run_id",
)
_RUN = (
    *_SUMMARY,
    "priority",
    "waited_sec",
    "waiting_for",
    "worker_alive",
    "timeout_sec",
    "retry",
    "tries",
    "failure",
    "cancel_requested_at",
    "cancel_requested_by",
    "cancel_reason",
    "retried_from",
    "retried_as",
    "warnings",
    "tasks",
    "params",
    "result",
    "result_truncated",
)
_EVIDENCE = ("queue", "worker", "gone_workers", "flow", "log", "wheels", "same_error", "last_completed")
_EXECUTION = (
    "execution_id",
    "graph_id",
    "graph_version",
    "status",
    "phase",
    "error",
    "failed_node_id",
    "handled_failures",
    "created_at",
    "started_at",
    "ended_at",
    "completed_at",
    "failed_at",
    "canceled_at",
    "cancel_requested_at",
    "cancel_requested_by",
    "cancel_reason",
    "archived_at",
    "rerun_of",
    "node_counts",
    "input",
    "result",
)
_NODE = (
    "status",
    "error",
    "prompt",
    "wait_key",
    "deadline",
    "run_id",
    "run_status",
    "attempt",
    "retry_at",
    "started_at",
    "waiting_at",
    "ended_at",
    "output",
)
_URGENT = (NodeStatus.FAILED, NodeStatus.WAITING, NodeStatus.RUNNING, NodeStatus.READY)
_WAIT = ("execution_id", "graph_id", "node_id", "prompt", "wait_key", "waiting_at", "deadline")
_WORKER = ("worker_id", "state", "tags", "slots", "current_run_id", "last_heartbeat_at", "stop_reason")
_FLOW = (
    "name",
    "success_rate",
    "p50_sec",
    "p95_sec",
    "paused",
    "tags",
    "workers",
    "wheel_version",
    "schedules",
    "limits",
)
_FLOW_SETTINGS = (
    "description",
    "owner",
    "params_schema",
    "timeout_sec",
    "start_within_sec",
    "retry",
    "priority",
)


class Reading:
    """Each method is a tool; its docstring and arguments are what the agent is shown."""

    def __init__(self, gateway: Gateway) -> None:
        self._calls = gateway.calls

    async def find_runs(
        self,
        ctx: Context,
        *,
        status: RunStatus | None = None,
        flow: Annotated[str | None, Field(description="Name of the flow")] = None,
        tag: Annotated[str | None, Field(description="Tag of the workers that may run it")] = None,
        changed_since: Since = None,
        cursor: Cursor = None,
        limit: Limit = 20,
    ) -> str:
        """List runs, the last changed first. A run that failed an hour ago was changed an hour ago."""
        async with self._calls(ctx) as calls:
            page = await calls.list_runs_vnext(
                status,
                flow,
                tag,
                limit=limit,
                updated_after=None if changed_since is None else timestamp("changed_since", changed_since),
                cursor=cursor,
            )
        items = [{**chosen(run, *_SUMMARY), **_progress(run)} for run in page["items"]]
        return answer({"runs": items, "next_cursor": page["next_cursor"]})

    async def get_run(self, ctx: Context, run_id: RunId) -> str:
        """Read a run: its state, tasks, params, result, and a diagnosis with the cause and advice.

        The diagnosis explains why a run waits or why it failed, with the last lines of its log.
        """
        async with self._calls(ctx) as calls:
            run, diagnosis = await asyncio.gather(calls.get_run(run_id), calls.get_diagnosis(run_id))
        explained = chosen(diagnosis, "cause", "summary", "details", "advice")
        evidence = chosen(diagnosis["evidence"], *_EVIDENCE)
        return answer({**chosen(run, *_RUN), "diagnosis": {**explained, "evidence": evidence}})

    async def read_log(
        self,
        ctx: Context,
        run_id: RunId,
        task: Annotated[str | None, Field(description="Only what this task printed")] = None,
        contains: Annotated[str | None, Field(description="Only lines with this text, in any case")] = None,
        first_line: Annotated[
            int | None, Field(ge=1, description="Start at the line with this number")
        ] = None,
    ) -> str:
        """Read what a run printed, as numbered lines.

        A long log is shown with its beginning and its end. To read what was left out, pass first_line or
        contains.
        """
        async with self._calls(ctx) as calls:
            stored = await calls.get_logs(run_id, task)
        lines = _numbered(stored, has_task=task is None)
        found = [line for line in lines if contains is None or contains.lower() in line.text.lower()]
        shown = log_head_and_tail(found) if first_line is None else log_from(found, first_line)
        head = f"{len(lines):,} lines" + ("" if contains is None else f", {len(found):,} of them match")
        return "\n".join([head, *shown])

    async def find_executions(
        self,
        ctx: Context,
        status: ExecutionStatus | None = None,
        graph_id: Annotated[str | None, Field(description="Id of the graph")] = None,
        cursor: Cursor = None,
        limit: Limit = 20,
    ) -> str:
        """List executions (graphs of runs), the newest first, with their nodes counted by status."""
        async with self._calls(ctx) as calls:
            page = await calls.executions.list(status, graph_id, cursor=cursor, limit=limit)
        items = [chosen(execution, *_EXECUTION) for execution in page["items"]]
        return answer({"executions": items, "next_cursor": page["next_cursor"]})

    async def get_execution(self, ctx: Context, execution_id: ExecutionId) -> str:
        """Read an execution and its nodes: what failed, waits or runs comes first.

        Nodes that were not reached are only counted. A node's run_id is the id of its run.
        """
        async with self._calls(ctx) as calls:
            execution = await calls.executions.get(execution_id)
        nodes: dict[str, dict[str, Any]] = execution["nodes"]
        reached = {name: node for name, node in nodes.items() if node["status"] != NodeStatus.IDLE}
        shown = {
            name: chosen(reached[name], *_NODE) for name in sorted(reached, key=lambda n: _rank(reached[n]))
        }
        not_reached = len(nodes) - len(reached)
        return answer({**chosen(execution, *_EXECUTION), "nodes": shown, "nodes_not_reached": not_reached})

    async def list_waits(self, ctx: Context, cursor: Cursor = None, limit: Limit = 20) -> str:
        """List the nodes of executions that wait for an answer, the oldest first."""
        async with self._calls(ctx) as calls:
            page = await calls.executions.waits(cursor, limit)
        items = [chosen(wait, *_WAIT) for wait in page["items"]]
        return answer({"waits": items, "next_cursor": page["next_cursor"]})

    async def get_health(
        self,
        ctx: Context,
        flow: Annotated[str | None, Field(description="Only this flow, with its params_schema")] = None,
        cursor: Annotated[str | None, Field(description="flows_next_cursor of the previous answer")] = None,
    ) -> str:
        """Check the installation: workers, queues, and flows with success rate and durations.

        Lost workers come first. A queue with waiting runs and no workers needs a worker with its tag.
        """
        async with self._calls(ctx) as calls:
            if flow is not None:
                details = await calls.flows.get(flow)
                return answer({**_flow(details), **chosen(details, *_FLOW_SETTINGS)})
            return answer(await _health(calls, cursor))

    async def get_stats(
        self,
        ctx: Context,
        *,
        by: Annotated[Literal["status", "flow", "tag"], Field(description="One series for each")] = "status",
        bucket: Annotated[Literal["minute", "hour"], Field(description="minute: kept for a day")] = "minute",
        since: Since = None,
        flow: str | None = None,
        tag: str | None = None,
        status: Annotated[Literal["COMPLETED", "FAILED", "CANCELLED"] | None, Field()] = None,
    ) -> str:
        """Count the runs that ended per minute or hour, with quantiles of waiting time and duration.

        Without since: of the last hour, or with bucket=hour of the last day.
        """
        async with self._calls(ctx) as calls:
            start = None if since is None else timestamp("since", since)
            stats = await calls.stats(by, bucket, since=start, flow=flow, tag=tag, status=status)
        return answer(_stats(stats))


def timestamp(name: str, text: str) -> float:
    """A time before now, or a time; UTC unless it has a zone. Raises ToolError."""
    if (seconds := _duration(name, text)) is not None:
        return time.time() - seconds
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ToolError(
            f"{name} {text!r}: neither a duration (90s, 15m, 6h, 2d) nor an ISO 8601 time"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _duration(name: str, text: str) -> float | None:
    try:
        return seconds_of(name, text)
    except ValueError:
        return None


def _progress(run: Mapping[str, Any]) -> dict[str, str]:
    return {"tasks_done": f"{run['tasks_done']} of {run['tasks_total']}"} if run["tasks_total"] else {}


def _numbered(stored: Sequence[LogLine], *, has_task: bool) -> list[Line]:
    attempts = {line["attempt"] for line in stored}
    return [
        Line(
            n,
            _origin(line, has_task=has_task, has_attempt=len(attempts) > 1),
            line["stream"],
            _COLOURS.sub("", line["text"].rstrip("\r\n")),
        )
        for n, line in enumerate(stored, 1)
    ]


def _origin(line: LogLine, *, has_task: bool, has_attempt: bool) -> str | None:
    parts = [line["task"] if has_task else None, f"attempt {line['attempt']}" if has_attempt else None]
    return ", ".join(part for part in parts if part) or None


def _rank(node: Mapping[str, Any]) -> int:
    return _URGENT.index(node["status"]) if node["status"] in _URGENT else len(_URGENT)


async def _health(calls: ClientCalls, cursor: str | None) -> dict[str, Any]:
    gateway, workers, queues, flows = await asyncio.gather(
        calls.get_health(),
        calls.get_workers("all", limit=MAX_WORKERS),
        calls.list_queues(),
        calls.list_flows(cursor, MAX_PAGE),
    )
    workers.sort(key=lambda worker: (worker["state"] != "DISCONNECTED", worker["state"] not in _ALIVE))
    return {
        "gateway": gateway,
        "workers_alive": sum(worker["state"] in _ALIVE for worker in workers),
        "workers": [chosen(worker, *_WORKER) for worker in workers],
        "queues": queues["items"],
        "flows": [_flow(flow) for flow in sorted(flows["items"], key=_success)],
        "flows_next_cursor": flows["next_cursor"],
    }


def _success(flow: Flow) -> float:
    """Those that fail first."""
    return 1.0 if flow["success_rate"] is None else flow["success_rate"]


def _flow(flow: Any) -> dict[str, Any]:
    statuses = [run["status"] for run in flow["last_runs"]]
    return {**chosen(flow, *_FLOW), "last_runs": ", ".join(statuses)}


def _stats(stats: Stats) -> dict[str, Any]:
    most = max(MIN_POINTS, MAX_POINTS // max(1, len(stats["series"])))
    return {
        **chosen(stats, "bucket", "since", "until"),
        "columns": "at, runs, wait p50/p95 sec, duration p50/p95 sec",
        "series": [_series(stats["by"], one, most) for one in stats["series"]],
    }


def _series(by: str, series: StatsSeries, most: int) -> dict[str, Any]:
    points = series["points"]
    return {
        by: series["key"],
        "runs": sum(point["count"] for point in points),
        "earlier_points_left_out": max(0, len(points) - most) or None,
        "points": [_row(point) for point in points[-most:]],
    }


def _row(point: StatsPoint) -> str:
    """JSON would repeat the names for each."""
    quantiles = (f"{_sec(one['p50'])}/{_sec(one['p95'])}" for one in (point["wait"], point["duration"]))
    return ", ".join([iso(point["at"]), str(point["count"]), *quantiles])


def _sec(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
