"""Commands for executions and graphs, and the inbox: `waits` and `resume`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import Parameter

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.client_params import read_params
from pyoco_server.cli.failures import FAILED
from pyoco_server.cli.output import (
    Client,
    Flag,
    Many,
    Output,
    note,
    print_json,
    print_json_line,
    print_table,
    printable,
)
from pyoco_server.domain.executions.graph_model import graph_definition
from pyoco_server.domain.strict_json import Refused, decode_json
from pyoco_server.errors import InvalidCliInput, InvalidRequest

app = cyclopts.App(name="executions", help="Start, watch and control graph executions.")

_COLUMNS = (
    "execution_id",
    "status",
    "graph_id",
    "graph_version",
    "created_at",
    "ended_at",
    "error",
    "handled_failures",
)
_EXPENDABLE = ("graph_version", "handled_failures", "error", "ended_at", "created_at")
_WAIT_EXPENDABLE = ("deadline", "wait_key", "waiting_at")
_WAIT_COLUMNS = ("waiting_at", "execution_id", "node_id", "prompt", "wait_key", "deadline")
ExecutionId = Annotated[str, Parameter(help="Execution id.")]


@app.command
def create(  # noqa: PLR0913 - one option per field
    graph_id: str,
    *,
    input_file: Path | None = None,
    input_json: Annotated[str | None, Parameter(name="--input")] = None,
    param: Many = None,
    execution_id: str | None = None,
    graph_version: int | None = None,
    no_start: Flag = False,
    wait: Flag = False,
    idempotency_key: str | None = None,
    client: Client,
) -> int:
    """Start an execution of a graph.

    Parameters
    ----------
    graph_id
        Graph id.
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
        print_json(execution)
        return 0
    return _follow_to_end(client, execution["execution_id"])


def _follow_to_end(client: Client, execution_id: str) -> int:
    for event in client.executions.watch(execution_id):
        note(printable(_line(event)))
    ended = client.executions.get(execution_id)
    print_json(ended)
    return 0 if ended["status"] == "COMPLETED" else FAILED


@app.command
def get(execution_id: ExecutionId, *, at_sequence: int | None = None, client: Client) -> None:
    """Print the state of an execution.

    Parameters
    ----------
    at_sequence
        State after the event with this sequence number.
    """
    print_json(client.executions.get(execution_id, at_sequence))


@app.command(name="list")
def list_executions(
    *,
    status: Literal["ACTIVE", "COMPLETED", "FAILED", "CANCELED"] | None = None,
    graph_id: str | None = None,
    archived: Flag = False,
    cursor: str | None = None,
    limit: int = 50,
    output: Output = "json",
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
    cursor
        next_cursor of the previous page.
    limit
        Maximum number of entries (up to 200).
    """
    page = client.executions.list(status, graph_id, archived=archived or None, cursor=cursor, limit=limit)
    if output == "json":
        print_json(page)
    elif page["items"]:
        rows = [*map(_row, page["items"])]
        _print_page({**page, "items": rows}, _columns(rows), _EXPENDABLE)
    else:
        note(texts.NO_EXECUTIONS())


@app.command
def events(execution_id: ExecutionId, *, after: int = 0, limit: int | None = None, client: Client) -> None:
    """Print the event log of an execution.

    Parameters
    ----------
    after
        Only events after this sequence number.
    limit
        Maximum number of events (up to 1000).
    """
    print_json(client.executions.events(execution_id, after, limit))


@app.command
def watch(
    execution_id: ExecutionId, *, after: int = 0, output: Literal["json", "status"] = "json", client: Client
) -> None:
    """Watch an execution until it ends.

    Parameters
    ----------
    after
        Only events after this sequence number.
    output
        json: one event per line; status: one short line per event.
    """
    for event in client.executions.watch(execution_id, after):
        if output == "json":
            print_json_line(event)
        else:
            print(printable(_line(event)), flush=True)


@app.command
def cancel(execution_id: ExecutionId, *, reason: str | None = None, client: Client) -> None:
    """Cancel an execution. Once accepted, the execution ends as CANCELED.

    Parameters
    ----------
    reason
        Reason, stored with the execution.
    """
    print_json(client.executions.cancel(execution_id, reason))


@app.command
def archive(execution_id: ExecutionId, *, reason: str | None = None, client: Client) -> None:
    """Archive an ended execution: hide it from the default list.

    Parameters
    ----------
    reason
        Reason, stored in the event log.
    """
    print_json(client.executions.archive(execution_id, reason))


@app.command
def rerun(
    execution_id: ExecutionId,
    *,
    start_from: Annotated[Literal["start", "failed"], Parameter(name="--from")] = "start",
    idempotency_key: str | None = None,
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
    print_json(client.executions.rerun(execution_id, start_from, idempotency_key=idempotency_key))


@app.command
def command(
    execution_id: ExecutionId,
    name: str,
    *,
    field: Many = None,
    fields: str | None = None,
    idempotency_key: str | None = None,
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
    print_json(client.executions.command(execution_id, name, idempotency_key=idempotency_key, **values))


def waits(*, cursor: str | None = None, limit: int = 50, output: Output = "json", client: Client) -> None:
    """List nodes waiting for a person, oldest first.

    Parameters
    ----------
    cursor
        next_cursor of the previous page.
    limit
        Maximum number of entries (up to 200).
    """
    page = client.executions.waits(cursor, limit)
    if output == "json":
        print_json(page)
    elif page["items"]:
        _print_page(page, _WAIT_COLUMNS, _WAIT_EXPENDABLE)
    else:
        note(texts.NO_WAITING_NODES())


def resume(
    execution_id: ExecutionId,
    node_id: str,
    *,
    data: str | None = None,
    key: str | None = None,
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
    print_json(client.executions.resume(execution_id, node_id, _json(data), key))


def _columns(rows: Sequence[dict[str, Any]]) -> Sequence[str]:
    """Omit the handled_failures column when it is empty, to leave room for the others."""
    return _COLUMNS if any(row["handled_failures"] for row in rows) else _COLUMNS[:-1]


def _row(execution: dict[str, Any]) -> dict[str, Any]:
    handled = ", ".join(execution.get("handled_failures", ()))
    return {**execution, "handled_failures": handled or None}


def _print_page(page: dict[str, Any], columns: Sequence[str], expendable: Sequence[str]) -> None:
    print_table(page["items"], columns, expendable)
    if page["next_cursor"] is not None:
        note(texts.MORE(cursor=page["next_cursor"]))


def _json(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return decode_json(text.encode())
    except (Refused, UnicodeEncodeError) as error:
        raise InvalidCliInput(texts.DATA_NOT_JSON(reason=error)) from error


def _line(event: dict[str, Any]) -> str:
    payload = event["payload"]
    details = [payload.get("node_id"), payload.get("run_id"), payload.get("reason")]
    error = payload.get("error")
    if isinstance(error, dict):
        details.append(f"{error.get('code', 'FAILED')}: {error.get('message', '')}")
    return " ".join([f"{event['sequence']:>4}", event["type"], *(str(item) for item in details if item)])


COMMANDS = {"waits": waits, "resume": resume}


# Graphs

graphs_app = cyclopts.App(name="graphs", help="Register and inspect graphs.")

_GRAPH_COLUMNS = ("graph_id", "version", "nodes", "registered_at", "registered_by")
_GRAPH_EXPENDABLE = ("registered_by", "registered_at", "nodes")


@graphs_app.command
def put(
    file: Path, *, graph_id: Annotated[str | None, Parameter(name="--id")] = None, client: Client
) -> None:
    """Register a graph as its next version; an unchanged graph keeps its version.

    Parameters
    ----------
    file
        Graph definition: YAML, or JSON if named *.json.
    graph_id
        Graph id. Default: the id in the file, else the file name without extension.
    """
    if not file.is_file():
        raise InvalidCliInput(texts.NO_SUCH_FILE(path=file))
    content_type = "application/json" if file.suffix.lower() == ".json" else "application/yaml"
    try:
        definition = graph_definition(file.read_bytes(), content_type)
    except InvalidRequest as error:
        raise InvalidCliInput(f"{file}: {error.detail}") from error
    wanted = graph_id or definition.get("id") or file.stem
    print_json(client.put_graph(str(wanted), definition))


@graphs_app.command(name="get")
def get_graph(graph_id: str, *, version: int | None = None, client: Client) -> None:
    """Print a graph.

    Parameters
    ----------
    graph_id
        Graph id.
    version
        Graph version. Default: the latest.
    """
    print_json(client.get_graph(graph_id, version))


@graphs_app.command(name="list")
def list_graphs(
    *, limit: int = 50, cursor: str | None = None, output: Output = "json", client: Client
) -> None:
    """List the latest version of each graph.

    Parameters
    ----------
    limit
        Maximum number of entries (up to 200).
    cursor
        next_cursor of the previous page.
    """
    page: Any = client.list_graphs(cursor, limit)
    if output == "json":
        print_json(page)
    elif page["items"]:
        print_table(page["items"], _GRAPH_COLUMNS, _GRAPH_EXPENDABLE)
    else:
        note(texts.NO_GRAPHS())
