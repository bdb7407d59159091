"""Commands for runs."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from cyclopts import Parameter

from pyoco_server.cli import client_texts as texts, language
from pyoco_server.cli.client_params import NOT_FOLLOWED, NOW, Following, Timing, listed, read_params
from pyoco_server.cli.failures import FAILED
from pyoco_server.cli.output import (
    AS_JSON,
    Client,
    Columns,
    Cursor,
    Flag,
    Many,
    Quiet,
    Shown,
    line_text,
    note,
    plain_lines,
    print_json,
    print_json_line,
    printable,
)
from pyoco_server.cli.run_view import (
    LOG_LINES,
    follow as follow_run,
    follow_to_end,
    list_row,
    show_run,
    style_for,
    task_rows,
)
from pyoco_server.errors import InvalidCliInput
from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.http_client.answers import LogLine, Run, Submitted
from pyoco_server.http_client.runs import is_terminal

_RUNS = Columns(
    ("run_id",),
    ("status", "flow_name", "run_id", "tasks", "updated_at", "tag", "worker_id", "error"),
    ("tag", "worker_id", "error", "updated_at", "tasks", "flow_name"),
)
_TASKS = Columns(
    ("task",),
    ("state", "task", "duration", "started_at", "ended_at", "error"),
    ("ended_at", "started_at", "duration", "error"),
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunFilters:
    """Filters of the run lists."""

    status: str | None = None
    """Filter by status: PENDING, RUNNING, COMPLETED, FAILED, CANCELLING or CANCELLED."""

    flow: str | None = None
    """Filter by flow."""

    tag: str | None = None
    """Filter by tag."""

    parent_run_id: str | None = None
    """Filter by the run whose task submitted them."""

    full: Flag = False
    """Include all fields."""

    limit: int | None = None
    """Maximum number of entries (up to 200)."""


ALL_RUNS = RunFilters()
RunId = Annotated[str, Parameter(help="Run id.")]


def submit(  # noqa: PLR0913 - the options of the contract
    flow_name: str,
    *,
    params: str | None = None,
    params_file: Path | None = None,
    param: Many = None,
    tag: str | None = None,
    tags: str | None = None,
    idempotency_key: str | None = None,
    timing: Timing = NOW,
    following: Following = NOT_FOLLOWED,
    shown: Shown = AS_JSON,
    client: Client,
) -> int:
    """Submit a run and print its id.

    Parameters
    ----------
    flow_name
        Flow to run.
    params
        Params as a JSON object, e.g. '{"x": 1}'.
    params_file
        File with the params, JSON or YAML.
    param
        One param as key=value; may be repeated. The last value of a key wins.
    tag
        Tag of the worker to run on.
    tags
        Labels for filtering, e.g. nightly,eu.
    idempotency_key
        Idempotency key; submitting again with the same key and input returns the same run.
    """
    submitted = client.submit_run(
        flow_name,
        read_params(params_file, params, param or []),
        tag,
        None if tags is None else listed(tags),
        idempotency_key=idempotency_key,
        **timing.options(),
    )
    return _print_submitted(client, submitted, following, shown)


def submit_yaml(
    workflow_file: Path,
    *,
    flow_name: str,
    tag: str | None = None,
    timing: Timing = NOW,
    following: Following = NOT_FOLLOWED,
    shown: Shown = AS_JSON,
    client: Client,
) -> int:
    """Submit a flow.yaml and print the run id.

    Parameters
    ----------
    workflow_file
        Path to the flow.yaml.
    flow_name
        Flow name shown in lists.
    tag
        Tag of the worker to run on.
    """
    if not workflow_file.is_file():
        raise InvalidCliInput(texts.NO_WORKFLOW_FILE(path=workflow_file))
    submitted = client.submit_run_yaml(workflow_file, tag, flow_name, **timing.options())
    return _print_submitted(client, submitted, following, shown)


def retry(
    run_id: RunId,
    *,
    from_: Annotated[Literal["start", "failed"], Parameter(name="--from")] = "start",
    param: Many = None,
    following: Following = NOT_FOLLOWED,
    shown: Shown = AS_JSON,
    client: Client,
) -> int:
    """Run an ended run again, as a new run with the same input, and print its id.

    Parameters
    ----------
    from_
        failed: keep the outputs of the tasks that succeeded, and run the others.
    param
        Change one param: key=value; may be repeated.
    """
    params = read_params(None, None, param or [])
    submitted = client.retry_run(run_id, from_=from_, params=params or None)
    return _print_submitted(client, submitted, following, shown)


def rerun(
    run_id: RunId,
    *,
    param: Many = None,
    following: Following = NOT_FOLLOWED,
    shown: Shown = AS_JSON,
    client: Client,
) -> int:
    """Same as retry, from the start.

    Parameters
    ----------
    param
        Change one param: key=value; may be repeated.
    """
    return retry(run_id, param=param, following=following, shown=shown, client=client)


def get(run_id: RunId, *, records: Flag = False, shown: Shown = AS_JSON, client: Client) -> None:
    """Print the current state of a run.

    Parameters
    ----------
    records
        Include task_records.
    """
    is_table = shown.output == "table"
    run = client.get_run(run_id, include=["records"] if records or is_table else [])
    show_run(run, shown, client.get_logs(run_id, limit=LOG_LINES) if is_table and not shown.quiet else [])


def tasks(run_id: RunId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Print the tasks of a run and their records."""
    found = client.get_tasks(run_id)
    shown.list(found, task_rows(found), _TASKS, texts.NO_TASKS)


def logs(
    run_id: RunId,
    *,
    task: str | None = None,
    tail: int | None = None,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative="", show_default=False)] = False,
    output: Literal["text", "json"] = "text",
    client: Client,
) -> None:
    """Print the output of a run.

    Parameters
    ----------
    task
        Filter by task.
    tail
        Number of lines from the end. Default: all stored lines.
    follow
        Print new lines until the run ends.
    output
        text: the raw output (in a terminal without control codes); json: with task, stream and time; one
        object per line with --follow.
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
    """Print the lines and return their number."""
    if output == "json" and not is_growing:
        whole = list(lines)
        print_json(whole)
        return len(whole)
    shown = plain_lines if sys.stdout.isatty() else str
    is_excerpt, count = False, 0
    for count, line in enumerate(lines, 1):  # noqa: B007 - returned below
        if output == "json":
            print_json_line(line)
            continue
        if line.get("is_excerpt", False) is not is_excerpt:
            is_excerpt = not is_excerpt
            note(texts.EXCERPTS_FOLLOW() if is_excerpt else texts.STORED_LINES_FOLLOW())
        print(shown(line_text(line)), end="", flush=is_growing)
    return count


def _check_task(run: Run, task: str) -> None:
    """An unknown task name is an error; a task without output is not."""
    if run["tasks"] and task not in run["tasks"]:
        raise InvalidCliInput(texts.NO_SUCH_TASK(task=task, tasks=", ".join(sorted(run["tasks"]))))


def why(
    run_id: RunId,
    *,
    output: Literal["text", "json"] = "text",
    quiet: Quiet = False,
    client: Client,
) -> None:
    """Explain why a run waits or failed, and what to do.

    Parameters
    ----------
    output
        Output format.
    quiet
        Print the cause only, e.g. no_worker.
    """
    found = client.get_diagnosis(run_id, "en" if output == "json" else language())
    if quiet:
        print(printable(found["cause"]))
        return
    if output == "json":
        print_json(found)
        return
    print(plain_lines(f"{found['summary']}\n{found['details']}".strip()))
    for advice in found["advice"]:
        print(f"→ {printable(advice)}")


def list_(*, filters: RunFilters = ALL_RUNS, shown: Shown = AS_JSON, client: Client) -> None:
    """List runs, newest first."""
    runs: Any = client.list_runs(
        filters.status,
        filters.flow,
        filters.tag,
        full=filters.full,
        limit=filters.limit,
        parent_run_id=filters.parent_run_id,
    )
    shown.list(runs, [*map(list_row, runs)], _RUNS, texts.NO_RUNS)


def list_vnext(
    *,
    filters: RunFilters = ALL_RUNS,
    updated_after: float | None = None,
    updated_before: float | None = None,
    cursor: Cursor = None,
    workflow_yaml_sha256: str | None = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Print one page of runs and the cursor of the next page.

    Parameters
    ----------
    updated_after
        Only runs updated after this Unix time.
    updated_before
        Only runs updated before this Unix time.
    workflow_yaml_sha256
        Filter by the SHA-256 of the flow.yaml.
    """
    page: Any = client.list_runs_vnext(
        filters.status,
        filters.flow,
        filters.tag,
        full=filters.full,
        limit=filters.limit,
        updated_after=updated_after,
        updated_before=updated_before,
        cursor=cursor,
        workflow_yaml_sha256=workflow_yaml_sha256,
        parent_run_id=filters.parent_run_id,
    )
    shown.page(page, _RUNS, texts.NO_RUNS, [*map(list_row, page["items"])])


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
    quiet: Quiet = False,
    client: Client,
) -> int:
    """Watch a run.

    Parameters
    ----------
    records
        Include task_records.
    since
        Only changes after this Unix time.
    timeout_sec
        Stop after this many seconds.
    max_events
        Stop after this many events.
    until_terminal
        Exit with code 1 if the run has not ended when the watch stops.
    output
        live: a view updated in place; status: one line per change; json: one event per line. Default: live in
        a terminal, else json.
    json
        Same as --output json.
    quiet
        Print nothing; the exit code is the result.
    """
    style = "quiet" if quiet else "json" if json else output or style_for(sys.stdout, "json")
    events = client.watch_run(
        run_id, records=records or style == "live", since=since, timeout_sec=timeout_sec
    )
    last = follow_run(client, run_id, events, style, sys.stdout, max_events)
    return FAILED if until_terminal and not is_terminal({"snapshot": last}) else 0


def cancel(
    run_id: RunId,
    *,
    reason: str | None = None,
    wait: Flag = False,
    timeout_sec: float = 60.0,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Cancel a run.

    Parameters
    ----------
    reason
        Reason, stored with the run.
    wait
        Wait until the run ends.
    timeout_sec
        With --wait: timeout in seconds.
    """
    show_run(client.cancel_run(run_id, wait, timeout_sec, reason=reason), shown)


def _print_submitted(
    client: PyocoHttpClient, submitted: Submitted, following: Following, shown: Shown = AS_JSON
) -> int:
    warning = cast("dict[str, Any]", submitted).get("warning")  # absent from older servers
    if warning:
        shown.note(texts.SERVER_WARNS(warning=printable(str(warning))))
    if following.wait:
        return follow_to_end(client, submitted["run_id"], following.timeout_sec, shown)
    shown.one(submitted, "run_id")
    return 0


COMMANDS = {
    "submit": submit,
    "submit-yaml": submit_yaml,
    "retry": retry,
    "rerun": rerun,
    "get": get,
    "tasks": tasks,
    "logs": logs,
    "why": why,
    "list": list_,
    "list-vnext": list_vnext,
    "watch": watch,
    "cancel": cancel,
}
