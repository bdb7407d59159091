"""The commands about runs."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from cyclopts import Parameter
from rich.console import Console

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.client_params import read_params
from pyoco_server.cli.failures import FAILED
from pyoco_server.cli.output import (
    Client,
    Flag,
    Many,
    Output,
    note,
    plain_lines,
    print_json,
    print_json_line,
    print_table,
    printable,
)
from pyoco_server.cli.run_view import LOG_LINES, RunView, duration, style_for, warnings_of
from pyoco_server.cli.run_view import follow as follow_run
from pyoco_server.errors import InvalidCliInput
from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.http_client.answers import LogLine, Run, RunTasks, Submitted
from pyoco_server.http_client.runs import is_terminal

_COLUMNS = ("status", "flow_name", "run_id", "tasks", "updated_at", "tag", "worker_id", "error")
_EXPENDABLE = ("tag", "worker_id", "error", "updated_at", "tasks", "flow_name")
_TASK_COLUMNS = ("state", "task", "duration", "started_at", "ended_at", "error")
_TASK_EXPENDABLE = ("ended_at", "started_at", "duration", "error")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunFilters:
    """Which runs a list has."""

    status: str | None = None
    """Only these: PENDING, RUNNING, COMPLETED, FAILED, CANCELLING or CANCELLED."""

    flow: str | None = None
    """Only runs of this flow."""

    tag: str | None = None
    """Only runs with this tag."""

    full: Flag = False
    """With everything that is known of each."""

    limit: int | None = None
    """At most so many (up to 200)."""


ALL_RUNS = RunFilters()
RunId = Annotated[str, Parameter(help="The run.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Following:
    """Whether a submitted run is waited for."""

    wait: Flag = False
    """Follow the run to its end; the exit code is 0 if it completed."""

    timeout_sec: float | None = None
    """With --wait: stop waiting after so many seconds."""


NOT_FOLLOWED = Following()


def submit(  # noqa: PLR0913 - the options of the contract
    *,
    flow_name: str,
    params: str | None = None,
    params_file: Path | None = None,
    param: Many = None,
    tag: str | None = None,
    tags: str | None = None,
    idempotency_key: str | None = None,
    following: Following = NOT_FOLLOWED,
    client: Client,
) -> int:
    """Submit a run and print its id.

    Parameters
    ----------
    flow_name
        The flow to run.
    params
        Its params as a JSON object, e.g. '{"x": 1}'.
    params_file
        A file with the params, JSON or YAML.
    param
        One param as key=value; may be repeated. Of a param that is given twice, the last one counts.
    tag
        Run it on a worker with this tag.
    tags
        Tags to find it by, e.g. nightly,eu.
    idempotency_key
        Submitting again with the same key and input is the same run.
    """
    submitted = client.submit_run(
        flow_name,
        read_params(params_file, params, param or []),
        tag,
        _list(tags),
        idempotency_key=idempotency_key,
    )
    return _answered(client, submitted, following)


def submit_yaml(
    *,
    workflow_file: Path,
    flow_name: str,
    tag: str | None = None,
    following: Following = NOT_FOLLOWED,
    client: Client,
) -> int:
    """Submit a flow.yaml and print the run's id.

    Parameters
    ----------
    workflow_file
        The file.
    flow_name
        How the flow is called in lists.
    tag
        Run it on a worker with this tag.
    """
    if not workflow_file.is_file():
        raise InvalidCliInput(texts.NO_WORKFLOW_FILE(path=workflow_file))
    submitted = client.submit_run_yaml(workflow_file, tag, flow_name)
    return _answered(client, submitted, following)


def get(run_id: RunId, *, records: Flag = False, output: Output = "json", client: Client) -> None:
    """Print the latest state of a run.

    Parameters
    ----------
    records
        With the records of its tasks.
    """
    if output == "json":
        print_json(client.get_run(run_id, include=["records"] if records else []))
        return
    view = RunView(client.get_run_with_records(run_id), fits_height=False)
    view.add_lines(client.get_logs(run_id, limit=LOG_LINES))
    Console(highlight=False).print(view)


def tasks(run_id: RunId, *, output: Output = "json", client: Client) -> None:
    """Print the tasks of a run and their records."""
    found = client.get_tasks(run_id)
    if output == "json":
        print_json(found)
        return
    print_table(_task_rows(found), _TASK_COLUMNS, _TASK_EXPENDABLE)


def logs(
    run_id: RunId,
    *,
    task: str | None = None,
    tail: int | None = None,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative="")] = False,
    output: Literal["text", "json"] = "text",
    client: Client,
) -> None:
    """Print what a run's flow printed.

    Parameters
    ----------
    task
        Lines of this task only.
    tail
        Only the last so many lines; default: all that are kept.
    follow
        Go on with new lines until the run has ended.
    output
        text: as it was printed (to a terminal: without control codes); json: with task, stream and time,
        with --follow one object a line.
    """
    if tail is not None and tail < 0:
        raise InvalidCliInput(texts.NEGATIVE_TAIL(tail=tail))
    if follow:
        lines: Iterable[LogLine] = client.follow_logs(run_id, task, tail=tail)
    else:
        lines = client.get_logs(run_id, task, tail) if tail != 0 else []
    count = _print_lines(lines, output, is_growing=follow)
    if not count and task is not None:
        _check_task(client.get_run(run_id), task)


def _print_lines(lines: Iterable[LogLine], output: Literal["text", "json"], *, is_growing: bool) -> int:
    """How many."""
    if output == "json" and not is_growing:
        whole = list(lines)
        print_json(whole)
        return len(whole)
    shown = plain_lines if sys.stdout.isatty() else str
    is_excerpt, count = False, 0
    for count, line in enumerate(lines, 1):  # noqa: B007 - it is the answer
        if output == "json":
            print_json_line(line)
            continue
        if line.get("is_excerpt", False) is not is_excerpt:
            is_excerpt = not is_excerpt
            note(texts.EXCERPTS_FOLLOW() if is_excerpt else texts.STORED_LINES_FOLLOW())
        print(shown(line["text"]), end="", flush=is_growing)
    return count


def _check_task(run: Run, task: str) -> None:
    """A name that is not there is a mistake; a task that printed nothing is not."""
    if run["tasks"] and task not in run["tasks"]:
        raise InvalidCliInput(texts.NO_SUCH_TASK(task=task, tasks=", ".join(sorted(run["tasks"]))))


def list_(*, filters: RunFilters = ALL_RUNS, output: Output = "json", client: Client) -> None:
    """Print runs, newest first."""
    runs: Any = client.list_runs(
        filters.status, filters.flow, filters.tag, full=filters.full, limit=filters.limit
    )
    _show(runs, output)


def list_vnext(
    *,
    filters: RunFilters = ALL_RUNS,
    updated_after: float | None = None,
    cursor: str | None = None,
    workflow_yaml_sha256: str | None = None,
    output: Output = "json",
    client: Client,
) -> None:
    """Print one page of runs and the cursor of the next.

    Parameters
    ----------
    updated_after
        Only what changed after this time, in unix seconds.
    cursor
        Where the page before this one ended: its next_cursor.
    workflow_yaml_sha256
        Only runs of this flow.yaml.
    """
    page: Any = client.list_runs_vnext(
        filters.status,
        filters.flow,
        filters.tag,
        full=filters.full,
        limit=filters.limit,
        updated_after=updated_after,
        cursor=cursor,
        workflow_yaml_sha256=workflow_yaml_sha256,
    )
    if output == "json":
        print_json(page)
        return
    _show(page["items"], output)
    if page["next_cursor"]:
        note(texts.MORE(cursor=page["next_cursor"]))


def watch(  # noqa: PLR0913 - the options of the contract
    run_id: RunId,
    *,
    records: Flag = False,
    since: float | None = None,
    timeout_sec: float | None = None,
    max_events: int | None = None,
    until_terminal: Flag = False,
    output: Literal["json", "status", "live"] | None = None,
    json: Flag = False,
    client: Client,
) -> int:
    """Follow a run as it changes.

    Parameters
    ----------
    records
        With the records of its tasks.
    since
        Do not repeat what did not change after this time, in unix seconds.
    timeout_sec
        Stop after so many seconds.
    max_events
        Stop after so many events.
    until_terminal
        Fail (exit code 1) if the run has not ended when the watch does.
    output
        live: a picture that is drawn anew; status: one line for each change; json: one event a line.
        Default: live in a terminal, json anywhere else.
    json
        The same as --output json.
    """
    style = "json" if json else output or style_for(sys.stdout, "json")
    events = client.watch_run(
        run_id, records=records or style == "live", since=since, timeout_sec=timeout_sec
    )
    last = follow_run(client, run_id, events, style, sys.stdout, max_events)
    return FAILED if until_terminal and not is_terminal({"snapshot": last}) else 0


def cancel(
    *,
    run_id: RunId,
    reason: str | None = None,
    wait: Flag = False,
    timeout_sec: float = 60.0,
    client: Client,
) -> None:
    """Cancel a run.

    Parameters
    ----------
    reason
        Why; it is kept with the run.
    wait
        Return when the run has ended.
    timeout_sec
        With --wait: fail after so many seconds.
    """
    print_json(client.cancel_run(run_id, wait, timeout_sec, reason=reason))


def _answered(client: PyocoHttpClient, submitted: Submitted, following: Following) -> int:
    warning = cast("dict[str, Any]", submitted).get("warning")  # older servers send none
    if warning:
        note(texts.SERVER_WARNS(warning=printable(str(warning))))
    if following.wait:
        return _follow(client, submitted["run_id"], following.timeout_sec)
    print_json(submitted)
    return 0


def _follow(client: PyocoHttpClient, run_id: str, timeout_sec: float | None) -> int:
    """To its end, shown on stderr; then the run on stdout. 0 if it completed."""
    note(f"run {run_id}")
    style = style_for(sys.stderr, "status")
    events = client.watch_run(run_id, records=True, timeout_sec=timeout_sec)
    last = follow_run(client, run_id, events, style, sys.stderr)
    if style == "status":  # a picture has them
        for warning in warnings_of(last):
            note(printable(warning))
    print_json(_without_records(last))
    if not is_terminal({"snapshot": last}):
        note(texts.NOT_ENDED_IN_TIME(seconds=f"{timeout_sec or 0:g}", run_id=run_id))
    return 0 if last["status"] == "COMPLETED" else FAILED


def _without_records(run: Run) -> dict[str, Any]:
    """As `get` answers: what tasks got and returned is for those who ask for it."""
    return {name: value for name, value in run.items() if name != "task_records"}


def _task_rows(found: RunTasks) -> list[dict[str, Any]]:
    """In the order of their start."""
    records: dict[str, Any] = {**(found["task_records"] or {})}
    rows = []
    for task, state in found["tasks"].items():
        record = records.get(task, {})
        took = record.get("duration_ms")
        shown = None if took is None else duration(took / 1000)
        rows.append({**record, "task": task, "state": state, "duration": shown})
    return sorted(rows, key=lambda row: row.get("started_at") or float("inf"))


def _show(runs: list[dict[str, Any]], output: Output) -> None:
    if output == "json":
        print_json(runs)
    elif runs:
        print_table([{**run, "tasks": _progress(run)} for run in runs], _COLUMNS, _EXPENDABLE)
    else:
        note(texts.NO_RUNS())


def _progress(run: dict[str, Any]) -> str:
    """A full run has its tasks, a summary their number."""
    tasks = run.get("tasks")
    if isinstance(tasks, dict):
        return f"{sum(state not in ('PENDING', 'RUNNING') for state in tasks.values())}/{len(tasks)}"
    return f"{run['tasks_done']}/{run['tasks_total']}"


def _list(text: str | None) -> list[str] | None:
    return None if text is None else [item.strip() for item in text.split(",") if item.strip()]


COMMANDS = {
    "submit": submit,
    "submit-yaml": submit_yaml,
    "get": get,
    "tasks": tasks,
    "logs": logs,
    "list": list_,
    "list-vnext": list_vnext,
    "watch": watch,
    "cancel": cancel,
}
