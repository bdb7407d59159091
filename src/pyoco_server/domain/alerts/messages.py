"""Readable messages, from the body that webhooks get."""

from typing import Any

MAX_LINE = 300
_NAMES = (
    "flow_name", "run_id", "execution_id", "node_id", "schedule_id", "worker_id", "template_id", "limit",
    "tag", "status", "reason", "error", "prompt",
)  # fmt: skip
_TITLES = {
    "run.failed": "a run failed",
    "run.late": "a run is late",
    "run.stuck": "a run is stuck",
    "schedule.skipped": "a schedule skipped a tick",
    "schedule.missed": "a schedule missed a tick",
    "wait.opened": "an execution waits for an answer",
    "wait.overdue": "an execution has been waiting for too long",
    "execution.failed": "an execution failed",
    "worker.lost": "a worker was lost",
    "dead_letter": "a job became a dead letter",
    "limit.waiting": "a run waits for a limit for too long",
    "event.escalated": "a workflow event needs manual action",
}


def title_of(body: dict[str, Any]) -> str:
    data = body["data"]
    what = data.get("flow_name") or data.get("schedule_id") or data.get("worker_id") or data.get("graph_id")
    title = f"pyoco-server: {_TITLES.get(body['type'], body['type'])}"
    return _line(f"{title}: {what}" if what else title)


def text_of(body: dict[str, Any]) -> str:
    data = body["data"]
    lines = [title_of(body), f"alert: {data['alert']}   at: {body['timestamp']}"]
    lines += [f"{name}: {_line(str(data[name]))}" for name in _NAMES if data.get(name) is not None]
    if data["suppressed"]:
        lines.append(f"suppressed before: {data['suppressed']}")
    return "\n".join(lines)


def _line(text: str) -> str:
    """Names and errors come from outside: no links, mentions, mark-up or extra lines."""
    return "".join(c if c.isprintable() and c not in "<>*`~|" else " " for c in text)[:MAX_LINE]
