"""The commands about runs."""

from pathlib import Path
from typing import Any, Literal

from pyoco_server.cli.client_output import Client, note, print_json, print_table
from pyoco_server.cli.client_params import read_params
from pyoco_server.cli.failures import FAILED
from pyoco_server.cli.options import Flag, Output
from pyoco_server.errors import InvalidCliInput
from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.http_client.answers import Run, RunEvent

_COLUMNS = (
    "status",
    "flow_name",
    "run_id",
    "tag",
    "worker_id",
    "tasks_done",
    "tasks_total",
    "updated_at",
    "error",
)


def submit(  # noqa: PLR0913 - the options of the contract
    *,
    flow_name: str,
    params: str | None = None,
    params_file: Path | None = None,
    param: list[str] | None = None,
    tag: str | None = None,
    tags: str | None = None,
    idempotency_key: str | None = None,
    wait: Flag = False,
    timeout_sec: float | None = None,
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
    wait
        Follow the run to its end; the exit code is 0 if it completed.
    timeout_sec
        With --wait: stop waiting after so many seconds.
    """
    submitted = client.submit_run(
        flow_name,
        read_params(params_file, params, param or []),
        tag,
        _list(tags),
        idempotency_key=idempotency_key,
    )
    if not wait:
        print_json(submitted)
        return 0
    return _follow(client, submitted["run_id"], timeout_sec)


def submit_yaml(
    *,
    workflow_file: Path,
    flow_name: str,
    tag: str | None = None,
    wait: Flag = False,
    timeout_sec: float | None = None,
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
    wait
        Follow the run to its end; the exit code is 0 if it completed.
    timeout_sec
        With --wait: stop waiting after so many seconds.
    """
    if not workflow_file.is_file():
        raise InvalidCliInput(f"--workflow-file {workflow_file}: there is no such file")
    submitted = client.submit_run_yaml(workflow_file, flow_name, tag)
    if not wait:
        print_json(submitted)
        return 0
    return _follow(client, submitted["run_id"], timeout_sec)


def get(run_id: str, *, records: Flag = False, client: Client) -> None:
    """Print the latest state of a run.

    Parameters
    ----------
    run_id
        The run.
    records
        With the records of its tasks.
    """
    print_json(client.get_run(run_id, include=["records"] if records else []))


def tasks(run_id: str, *, client: Client) -> None:
    """Print the tasks of a run and their records.

    Parameters
    ----------
    run_id
        The run.
    """
    print_json(client.get_tasks(run_id))


def logs(
    run_id: str, *, task: str | None = None, output: Literal["text", "json"] = "text", client: Client
) -> None:
    """Print what a run's flow printed.

    Parameters
    ----------
    run_id
        The run.
    task
        Of this task only.
    output
        text: as it was printed; json: with task, stream and time.
    """
    lines = client.get_logs(run_id, task)
    if output == "json":
        print_json(lines)
        return
    for line in lines:
        print(line["text"], end="")


def list_(
    *,
    status: str | None = None,
    flow: str | None = None,
    tag: str | None = None,
    full: Flag = False,
    limit: int | None = None,
    output: Output = "json",
    client: Client,
) -> None:
    """Print runs, newest first.

    Parameters
    ----------
    status
        Only these: PENDING, RUNNING, COMPLETED, FAILED, CANCELLING or CANCELLED.
    flow
        Only runs of this flow.
    tag
        Only runs with this tag.
    full
        With everything that is known of each.
    limit
        At most so many (up to 200).
    output
        json for programs, table for people.
    """
    runs: Any = client.list_runs(status, flow, tag, full=full, limit=limit)
    _show(runs, output)


def list_vnext(  # noqa: PLR0913 - the options of the contract
    *,
    status: str | None = None,
    flow: str | None = None,
    tag: str | None = None,
    full: Flag = False,
    limit: int | None = None,
    updated_after: float | None = None,
    cursor: str | None = None,
    workflow_yaml_sha256: str | None = None,
    output: Output = "json",
    client: Client,
) -> None:
    """Print one page of runs and the cursor of the next.

    Parameters
    ----------
    status
        Only these: PENDING, RUNNING, COMPLETED, FAILED, CANCELLING or CANCELLED.
    flow
        Only runs of this flow.
    tag
        Only runs with this tag.
    full
        With everything that is known of each.
    limit
        Runs on the page (up to 200).
    updated_after
        Only what changed after this time, in unix seconds.
    cursor
        next_cursor of the page before.
    workflow_yaml_sha256
        Only runs of this flow.yaml.
    output
        json for programs, table for people.
    """
    page: Any = client.list_runs_vnext(
        status,
        flow,
        tag,
        full=full,
        limit=limit,
        updated_after=updated_after,
        cursor=cursor,
        workflow_yaml_sha256=workflow_yaml_sha256,
    )
    if output == "json":
        print_json(page)
        return
    _show(page["items"], output)
    if page["next_cursor"]:
        note(f"more: --cursor {page['next_cursor']}")


def watch(  # noqa: PLR0913 - the options of the contract
    run_id: str,
    *,
    records: Flag = False,
    since: float | None = None,
    timeout_sec: float | None = None,
    max_events: int | None = None,
    until_terminal: Flag = False,
    output: Literal["json", "status"] = "json",
    client: Client,
) -> int:
    """Follow a run as it changes.

    Parameters
    ----------
    run_id
        The run.
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
        json: one event a line; status: one line for each change.
    """
    told, last = 0, None
    for event in client.watch_run(run_id, records=records, since=since, timeout_sec=timeout_sec):
        last = event.get("snapshot", last)
        told += _tell(event, output)
        if max_events is not None and told >= max_events:
            break
    return FAILED if until_terminal and not _has_ended(last) else 0


def cancel(
    *,
    run_id: str,
    reason: str | None = None,
    wait: Flag = False,
    timeout_sec: float = 60.0,
    client: Client,
) -> None:
    """Cancel a run.

    Parameters
    ----------
    run_id
        The run.
    reason
        Why; it is kept with the run.
    wait
        Return when the run has ended.
    timeout_sec
        With --wait: fail after so many seconds.
    """
    print_json(client.cancel_run(run_id, wait, timeout_sec, reason=reason))


def _follow(client: PyocoHttpClient, run_id: str, timeout_sec: float | None) -> int:
    """To its end, with a line for each change on stderr; 0 if it completed."""
    note(f"run {run_id}")
    last: Run | None = None
    for event in client.watch_run(run_id, timeout_sec=timeout_sec):
        last = event.get("snapshot", last)
        if event["event"] == "snapshot":
            note(_status_line(event))
        for line in event.get("lines", []):
            note(f"  {line['task'] or '-'} | {line['text'].rstrip()}")
    print_json(last)
    return 0 if last is not None and last["status"] == "COMPLETED" else FAILED


def _tell(event: RunEvent, output: str) -> int:
    """How many events were told: heartbeats are none."""
    if event["event"] == "heartbeat":
        return 0
    if output == "json":
        print_json(event)
    elif event["event"] == "snapshot":
        print(_status_line(event), flush=True)
    return 1


def _status_line(event: RunEvent) -> str:
    run = event["snapshot"]
    return "  ".join([run["status"], *(f"{task}={state}" for task, state in run["tasks"].items())])


def _has_ended(run: Run | None) -> bool:
    return run is not None and run["status"] in ("COMPLETED", "FAILED", "CANCELLED")


def _show(runs: list[dict[str, Any]], output: Output) -> None:
    if output == "json":
        print_json(runs)
    elif runs:
        print_table(runs, _COLUMNS)
    else:
        note("no runs; submit one with: pyoco-client submit --flow-name …")


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
