"""Commands for flows and limits: list them, set defaults, pause, limit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import Parameter

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.client_params import FOR_NOW, Pause, put_definition, read_document
from pyoco_server.cli.output import AS_JSON, Client, Columns, Cursor, Limit, Shown
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
def list_flows(*, cursor: Cursor = None, limit: Limit = None, shown: Shown = AS_JSON, client: Client) -> None:
    """List the flows that workers report, that have runs, or that have defaults."""
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


@app.command
def pause(name: FlowName, *, wanted: Pause = FOR_NOW, shown: Shown = AS_JSON, client: Client) -> None:
    """Pause a flow: its runs are accepted and wait."""
    shown.one(client.flows.pause(name, wanted.reason, wanted.until), "flow")


@app.command
def resume(name: FlowName, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Resume a paused flow. The runs that waited go on."""
    shown.one(client.flows.resume(name), "flow")


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


# Limits

limits_app = cyclopts.App(name="limits", help="Limit how many runs are active, and how fast they start.")
_LIMITS = Columns(
    ("name",),
    ("name", "places", "rate", "on_full", "holders", "waiting", "admitted"),
    ("admitted", "on_full"),
)
_KEYS = Columns(("key",), ("key", "holders", "waiting"))
LimitName = Annotated[str, Parameter(help="Limit name.")]


@limits_app.command(name="put")
def put_limit(file: Path, *, name: str | None = None, shown: Shown = AS_JSON, client: Client) -> None:
    """Create or change a limit from a file.

    Parameters
    ----------
    file
        Limit definition, YAML or JSON.
    name
        Limit name. Default: the name in the file, else the file name without extension.
    """
    shown.one(put_definition(client.limits.put, file, "match", texts.NO_MATCH, name), "name")


@limits_app.command(name="list")
def list_limits(*, cursor: Cursor = None, limit: Limit = 50, shown: Shown = AS_JSON, client: Client) -> None:
    """List limits by name, with their holders and waiting runs."""
    page = client.limits.list(cursor, limit)
    shown.page(page, _LIMITS, texts.NO_LIMITS, [_limit_row(item) for item in page["items"]])


@limits_app.command(name="show")
def show_limit(name: LimitName, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Print a limit."""
    shown.one(client.limits.get(name), "name")


@limits_app.command(name="keys")
def list_keys(
    name: LimitName,
    *,
    cursor: Cursor = None,
    limit: Limit = 50,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """List the keys of a limit that are in use."""
    page = client.limits.keys(name, cursor, limit)
    shown.page(page, _KEYS, texts.NO_KEYS, page["items"])


@limits_app.command(name="delete")
def delete_limit(name: LimitName, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Delete a limit. Runs that wait for it go on."""
    shown.one(client.limits.delete(name), "name")


def _limit_row(limit: Mapping[str, Any]) -> dict[str, Any]:
    rate = limit["rate"]
    return {
        **limit,
        "places": limit["max_running"],
        "rate": None if rate is None else f"{rate['count']} per {rate['per_sec']:g} s",
    }
