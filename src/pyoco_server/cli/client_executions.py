"""Commands for executions, and the inbox: `waits` and `resume`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import Parameter

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.client_graphs import GraphId
from pyoco_server.cli.client_params import read_params
from pyoco_server.cli.failures import FAILED, report_failure, wants_json
from pyoco_server.cli.output import (
    AS_JSON,
    Client,
    Columns,
    Cursor,
    Flag,
    Limit,
    Many,
    Quiet,
    Shown,
    note,
    print_json_line,
    print_record,
    print_table,
    printable,
)
from pyoco_server.domain.inputs import Refused, decode_json
from pyoco_server.errors import InvalidCliInput

app = cyclopts.App(name="executions", help="Start, watch and control graph executions.")

_COLUMNS = ("execution_id", "status", "graph_id", "graph_version", "created_at", "ended_at", "error")
_HANDLED = "handled_failures"
_EXPENDABLE = ("graph_version", _HANDLED, "error", "ended_at", "created_at")
_EVENTS = Columns(("event_id",), ("sequence", "occurred_at", "type", "details"), ("occurred_at",))
_NODES = Columns(
    ("node_id",),
    ("status", "node_id", "run_id", "started_at", "ended_at", "error"),
    ("started_at", "ended_at", "run_id"),
)
_ITEMS = Columns(
    ("index",),
    ("index", "status", "attempt", "run_id", "execution_id", "carried_from"),
    ("carried_from", "execution_id", "run_id"),
)
_WAITS = Columns(
    ("execution_id", "node_id"),
    ("waiting_at", "execution_id", "node_id", "prompt", "wait_key", "deadline"),
    ("deadline", "wait_key", "waiting_at"),
)
ExecutionId = Annotated[str, Parameter(help="Execution id.")]
Reason = Annotated[str | None, Parameter(help="Reason, stored with the execution.")]


@app.command
def create(  # noqa: PLR0913 - one option per field
    graph_id: GraphId,
    *,
    input_file: Path | None = None,
    input_json: Annotated[str | None, Parameter(name="--input")] = None,
    param: Many = None,
    execution_id: str | None = None,
    graph_version: int | None = None,
    no_start: Flag = False,
    wait: Flag = False,
    idempotency_key: str | None = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> int:
    """Start an execution of a graph.

    Parameters
    ----------
    input_file
        File with the input, JSON or YAML.
    input_json
        Input as JSON.
    param
        One input value as key=value; may be repeated. The last value of a key wins.
    execution_id
        Execution id to use. Default: a generated id.
    graph_version
        Graph version. Default: the latest.
    no_start
        Create the execution without starting it; start it later with: executions command ID StartExecution
    wait
        Wait until the execution ends; exit code 1 unless it completed.
    idempotency_key
        Idempotency key; repeated calls with the same key create one execution.
    """
    wanted = read_params(input_file, input_json, param or ())
    execution = client.executions.create(
        graph_id,
        wanted or None,
        execution_id=execution_id,
        graph_version=graph_version,
        start=not no_start,
        idempotency_key=idempotency_key,
    )
    if not wait:
        _show(execution, shown)
        return 0
    return _follow_to_end(client, execution["execution_id"], shown)


def _follow_to_end(client: Client, execution_id: str, shown: Shown) -> int:
    has_progress = not (shown.quiet or wants_json(sys.argv))
    try:
        for event in client.executions.watch(execution_id):
            if has_progress:
                note(printable(_line(event)))
    except KeyboardInterrupt:
        report_failure(
            texts.EXECUTION_GOES_ON(execution_id=execution_id), advice=None, execution_id=execution_id
        )
        raise
    ended = client.executions.get(execution_id)
    _show(ended, shown)
    if ended["status"] == "COMPLETED":
        return 0
    if wants_json(sys.argv):
        reason = (ended.get("error") or {}).get("message") or ended["status"]
        report_failure(reason, execution_id=execution_id, execution_status=ended["status"])
    return FAILED


def _show(execution: dict[str, Any], shown: Shown) -> None:
    if shown.quiet or shown.output == "json":
        shown.one(execution, "execution_id")
        return
    nodes = execution["nodes"]
    print_record({name: value for name, value in execution.items() if name not in _NOT_IN_A_TABLE})
    if nodes:
        print()
        print_table([_node_row(name, node) for name, node in nodes.items()], _NODES.shown, _NODES.expendable)


_NOT_IN_A_TABLE = ("nodes", "edges", "graph", "definition")


def _node_row(node_id: str, node: dict[str, Any]) -> dict[str, Any]:
    return {**node, "node_id": node_id, "error": (node.get("error") or {}).get("message")}


@app.command
def get(
    execution_id: ExecutionId,
    *,
    at_sequence: int | None = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Print the state of an execution.

    Parameters
    ----------
    at_sequence
        State after the event with this sequence number.
    """
    _show(client.executions.get(execution_id, at_sequence), shown)


@app.default
@app.command(name="list")
def list_executions(
    *,
    status: Literal["ACTIVE", "COMPLETED", "FAILED", "CANCELED"] | None = None,
    graph_id: str | None = None,
    archived: Flag = False,
    cursor: Cursor = None,
    limit: Limit = 50,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """List executions, newest first.

    Parameters
    ----------
    status
        Filter by status.
    graph_id
        Filter by graph.
    archived
        List archived executions only.
    """
    page = client.executions.list(status, graph_id, archived=archived or None, cursor=cursor, limit=limit)
    rows = [*map(_row, page["items"])]
    shown.page(page, _columns(rows), texts.NO_EXECUTIONS, rows)


@app.command
def events(
    execution_id: ExecutionId,
    *,
    after: int = 0,
    limit: int | None = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Print the event log of an execution.

    Parameters
    ----------
    after
        Only events after this sequence number.
    limit
        Maximum number of events (up to 1000).
    """
    page = client.executions.events(execution_id, after, limit)
    rows = [{**event, "details": _details(event)} for event in page["items"]]
    shown.list(page, rows, _EVENTS, texts.NO_EVENTS)


@app.command
def items(
    execution_id: ExecutionId,
    node_id: str,
    *,
    status: Literal["IDLE", "RUNNING", "SUCCEEDED", "FAILED", "CANCELED"] | None = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """List the items of a map node, in order.

    Parameters
    ----------
    node_id
        Node of type map.
    status
        Only items with this status.
    """
    page = client.executions.items(execution_id, node_id, status=status, cursor=cursor, limit=limit)
    shown.page(page, _ITEMS, texts.NO_ITEMS)


@app.command
def watch(
    execution_id: ExecutionId,
    *,
    after: int = 0,
    output: Literal["json", "status"] = "json",
    quiet: Quiet = False,
    client: Client,
) -> None:
    """Watch an execution until it ends.

    Parameters
    ----------
    after
        Only events after this sequence number.
    output
        json: one event per line; status: one short line per event.
    quiet
        Print nothing.
    """
    for event in client.executions.watch(execution_id, after):
        if quiet:
            continue
        if output == "json":
            print_json_line(event)
        else:
            print(printable(_line(event)), flush=True)


@app.command
def cancel(
    execution_id: ExecutionId, *, reason: Reason = None, shown: Shown = AS_JSON, client: Client
) -> None:
    """Cancel an execution. Once accepted, the execution ends as CANCELED."""
    _show(client.executions.cancel(execution_id, reason), shown)


@app.command
def archive(
    execution_id: ExecutionId, *, reason: Reason = None, shown: Shown = AS_JSON, client: Client
) -> None:
    """Archive an ended execution: hide it from the default list."""
    _show(client.executions.archive(execution_id, reason), shown)


@app.command
def rerun(
    execution_id: ExecutionId,
    *,
    start_from: Annotated[Literal["start", "failed"], Parameter(name="--from")] = "start",
    idempotency_key: str | None = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Run an execution again as a new one with the same graph version and input.

    Parameters
    ----------
    start_from
        start: run every node again; failed: reuse the outputs of succeeded nodes.
    idempotency_key
        Idempotency key; repeated calls with the same key create one execution.
    """
    _show(client.executions.rerun(execution_id, start_from, idempotency_key=idempotency_key), shown)


@app.command
def command(
    execution_id: ExecutionId,
    name: str,
    *,
    field: Many = None,
    fields: str | None = None,
    idempotency_key: str | None = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Send any command, such as StartExecution, StartNode, SucceedNode or FailNode.

    Parameters
    ----------
    name
        Command name.
    field
        One command field as key=value; may be repeated: --field node_id=book --field worker_id=me
    fields
        All command fields as JSON.
    idempotency_key
        Idempotency key; repeated calls with the same key take effect once.
    """
    values = read_params(None, fields, field or ())
    answer = client.executions.command(execution_id, name, idempotency_key=idempotency_key, **values)
    _show(answer, shown)


@app.command
def message(
    execution_id: ExecutionId,
    name: str,
    *,
    data: str | None = None,
    idempotency_key: str | None = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Send a message to a node that waits for it; one that comes early is kept.

    Parameters
    ----------
    name
        Name of the message.
    data
        Its data as JSON; becomes the output of the node.
    idempotency_key
        Idempotency key; repeated calls with the same key take effect once.
    """
    answer = client.executions.send_message(execution_id, name, _json(data), idempotency_key=idempotency_key)
    shown.one(answer, "sequence")


def waits(*, cursor: Cursor = None, limit: Limit = 50, shown: Shown = AS_JSON, client: Client) -> None:
    """List nodes waiting for a person, oldest first."""
    page = client.executions.waits(cursor, limit)
    shown.page(page, _WAITS, texts.NO_WAITING_NODES)


def resume(
    execution_id: ExecutionId,
    node_id: str,
    *,
    data: str | None = None,
    key: str | None = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Resume a waiting node.

    Parameters
    ----------
    node_id
        Waiting node.
    data
        Resume data as JSON; becomes the output of a wait node.
    key
        The node's wait_key, if it has one.
    """
    _show(client.executions.resume(execution_id, node_id, _json(data), key), shown)


def _columns(rows: Sequence[dict[str, Any]]) -> Columns:
    """Omit the handled_failures column when it is empty, to leave room for the others."""
    has_handled = any(row[_HANDLED] for row in rows)
    expendable = [name for name in _EXPENDABLE if has_handled or name != _HANDLED]
    return Columns(("execution_id",), (*_COLUMNS, _HANDLED) if has_handled else _COLUMNS, expendable)


def _row(execution: dict[str, Any]) -> dict[str, Any]:
    handled = ", ".join(execution.get("handled_failures", ()))
    return {**execution, "handled_failures": handled or None}


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return decode_json(text.encode())
    except (Refused, UnicodeEncodeError) as error:
        raise InvalidCliInput(texts.DATA_NOT_JSON(reason=error)) from error


def _line(event: dict[str, Any]) -> str:
    return f"{event['sequence']:>4} {event['type']} {_details(event)}".rstrip()


def _details(event: dict[str, Any]) -> str:
    payload = event["payload"]
    details = [payload.get("node_id"), payload.get("run_id"), payload.get("reason")]
    error = payload.get("error")
    if isinstance(error, dict):
        details.append(f"{error.get('code', 'FAILED')}: {error.get('message', '')}")
    return " ".join(str(item) for item in details if item)


COMMANDS = {"waits": waits, "resume": resume}
