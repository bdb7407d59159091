"""Commands for flows: list them, and set defaults for their runs."""

from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import Parameter

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.client_params import read_document
from pyoco_server.cli.output import AS_JSON, Client, Columns, Cursor, Shown
from pyoco_server.cli.run_view import duration
from pyoco_server.errors import InvalidCliInput
from pyoco_server.http_client.answers import Flow
from pyoco_server.http_client.options import options_of

app = cyclopts.App(name="flows", help="List flows, and set defaults for their runs.")

_FLOWS = Columns(
    ("name",),
    ("flow", "tags", "workers", "last_run", "ended_at", "success", "p50", "p95"),
    ("p95", "ended_at", "workers", "p50", "tags", "success"),
)
FlowName = Annotated[str, Parameter(help="Flow name.")]
Unset = Annotated[list[str] | None, Parameter(negative="", consume_multiple=False)]


@app.default
@app.command(name="list")
def list_flows(
    *, cursor: Cursor = None, limit: int | None = None, shown: Shown = AS_JSON, client: Client
) -> None:
    """List the flows that workers report, that have runs, or that have defaults.

    Parameters
    ----------
    limit
        Maximum number of entries (up to 200).
    """
    page = client.flows.list(cursor, limit)
    shown.page(page, _FLOWS, texts.NO_FLOWS, [*map(_row, page["items"])])


@app.command
def show(name: FlowName, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Print a flow and its defaults."""
    shown.one(client.flows.get(name), "name")


@app.command(name="set")
def set_flow(  # noqa: PLR0913 - one option per default
    name: FlowName,
    *,
    file: Path | None = None,
    timeout: str | None = None,
    start_within: str | None = None,
    retries: int | None = None,
    priority: Literal["high", "normal", "low"] | None = None,
    params_schema: Path | None = None,
    description: str | None = None,
    owner: str | None = None,
    unset: Unset = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Set defaults for the runs of a flow. Other defaults stay.

    Parameters
    ----------
    file
        Replace all defaults by those in this file, YAML or JSON.
    timeout
        Timeout of each try, e.g. 1h.
    start_within
        Fail if no worker has started the run in this time.
    retries
        Try again up to this many times after a failure, with growing pauses.
    priority
        Start before other runs that wait for the same tag (high), or after them (low).
    params_schema
        File with a JSON Schema for the params, JSON or YAML.
    description
        What the flow does.
    owner
        Who to ask about the flow.
    unset
        Remove a default, e.g. retry; may be repeated.
    """
    try:
        timing = options_of(timeout=timeout, start_within=start_within, retries=retries, priority=priority)
        schema = None if params_schema is None else read_document(params_schema, str(params_schema))
        wanted = {**timing, "params_schema": schema, "description": description, "owner": owner}
        replaced = None if file is None else read_document(file, str(file))
        shown.one(client.flows.change(name, wanted, unset=unset or (), replaced=replaced), "name")
    except ValueError as error:
        raise InvalidCliInput(str(error)) from error


def _row(flow: Flow) -> dict[str, Any]:
    last = flow["last_runs"][0] if flow["last_runs"] else None
    rate, p50, p95 = flow["success_rate"], flow["p50_sec"], flow["p95_sec"]
    return {
        **flow,
        "flow": flow["name"],
        "last_run": None if last is None else last["status"],
        "ended_at": None if last is None else last["end_time"],
        "success": None if rate is None else f"{rate:.0%}",
        "p50": None if p50 is None else duration(p50),
        "p95": None if p95 is None else duration(p95),
    }
