"""The commands about workflow events."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from pyoco_server.cli.client_params import read_params
from pyoco_server.cli.output import Client, Flag, Output, note, print_json, print_table
from pyoco_server.errors import InvalidCliInput

events = cyclopts.App(name="events", help="Send workflow events, and look at what became of them.")
templates = cyclopts.App(name="templates", help="What events start.")
actions = cyclopts.App(name="actions", help="What templates may do.")

TemplateId = Annotated[str, Parameter(help="The template.")]
JobId = Annotated[str, Parameter(help="The job.")]
ActionKey = Annotated[str, Parameter(help="The action.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StartFields:
    """What a template is started with, by an event or by hand."""

    key: str | None = None
    """Idempotency key: the same key again starts nothing."""

    year: int | None = None
    """The year that the run is about."""

    month: int | None = None
    """The month that the run is about."""

    data: str | None = None
    """A JSON object for the flow, which finds it as params["event"]."""


NOTHING = StartFields()


@events.command
def send(  # noqa: PLR0913 - the fields of an event
    *,
    template_id: str | None = None,
    event_name: str | None = None,
    fields: StartFields = NOTHING,
    source: str | None = None,
    notes: str | None = None,
    data_file: Path | None = None,
    execution_id: str | None = None,
    node_id: str | None = None,
    wait_key: str | None = None,
    token: str | None = None,
    client: Client,
) -> None:
    """Send an event, and print what it started or resumed.

    Parameters
    ----------
    template_id
        The template to start.
    event_name
        Or the action that the template begins with.
    source
        Who sends it.
    notes
        For people.
    data_file
        The data from a file, JSON or YAML.
    execution_id
        With --node-id: no template is started, that node of that execution is resumed with the data.
    node_id
        The node that waits, or is to wait.
    wait_key
        Resume the node that waits with this key.
    token
        The token that the server wants, if it wants one (also: AX_WORKFLOW_EVENT_TOKEN).
    """
    given = fields.data is not None or data_file is not None
    print_json(
        client.events.send(
            token=token or os.environ.get("AX_WORKFLOW_EVENT_TOKEN"),
            template_id=template_id,
            event_name=event_name,
            idempotency_key=fields.key,
            year=fields.year,
            month=fields.month,
            source=source,
            notes=notes,
            data=read_params(data_file, fields.data, ()) if given else None,
            execution_id=execution_id,
            node_id=node_id,
            wait_key=wait_key,
        )
    )


@events.command
def summary(ym: str, *, recent_limit: int | None = None, client: Client) -> None:
    """Print what the events of a month came to.

    Parameters
    ----------
    ym
        The month: YYYY-MM.
    recent_limit
        So many of the latest (up to 200).
    """
    print_json(client.events.summary(ym, recent_limit))


@events.command(name="retry-jobs")
def retry_jobs(*, limit: int | None = None, output: Output = "json", client: Client) -> None:
    """Print the events that are tried again.

    Parameters
    ----------
    limit
        At most so many (up to 200).
    """
    found = client.events.retry_jobs(limit)
    if output == "json":
        print_json(found)
    elif found["jobs"]:
        print_table(
            found["jobs"], ("id", "status", "template_id", "attempts", "last_reason_code", "last_error")
        )
    else:
        note("no retry jobs")


@events.command
def drain(*, limit: int | None = None, force: Flag = False, client: Client) -> None:
    """Try the queued events again now.

    Parameters
    ----------
    limit
        At most so many (up to 50).
    force
        Also those whose time has not come.
    """
    print_json(client.events.drain(limit, force=force))


@events.command
def retry(job_id: JobId, *, client: Client) -> None:
    """Give a retry job all its attempts again, from now on."""
    print_json(client.events.retry_job(job_id))


@events.command
def discard(job_id: JobId, *, client: Client) -> None:
    """Give a retry job up."""
    print_json(client.events.discard_job(job_id))


@events.command
def replay(event_id: str, *, client: Client) -> None:
    """Send an event again.

    Parameters
    ----------
    event_id
        The event, as its answer and the summary name it.
    """
    print_json(client.events.replay(event_id))


@templates.default
@templates.command(name="list")
def list_templates(*, output: Output = "json", client: Client) -> None:
    """Print all templates."""
    _print_list(client.events.list_templates(), ("id", "name", "year", "month"), output)


@templates.command(name="get")
def get_template(template_id: TemplateId, *, client: Client) -> None:
    """Print a template."""
    print_json(client.events.get_template(template_id))


@templates.command(name="put")
def put_template(template_id: TemplateId, *, file: Path, if_match: str | None = None, client: Client) -> None:
    """Make or change a template.

    Parameters
    ----------
    file
        Its definition, JSON or YAML.
    if_match
        Only over the template with this updated_at.
    """
    print_json(client.events.put_template(template_id, read_params(file, None, ()), if_match))


@templates.command(name="delete")
def delete_template(template_id: TemplateId, *, client: Client) -> None:
    """Remove a template."""
    print_json(client.events.delete_template(template_id))


@templates.command(name="start")
def start_template(
    template_id: TemplateId,
    *,
    fields: StartFields = NOTHING,
    client: Client,
) -> None:
    """Start a template by hand."""
    wanted: dict[str, Any] = {"idempotency_key": fields.key, "year": fields.year, "month": fields.month}
    if fields.data is not None:
        wanted["data"] = read_params(None, fields.data, ())
    print_json(client.events.start_template(template_id, **wanted))


@actions.default
@actions.command(name="list")
def list_actions(*, output: Output = "json", client: Client) -> None:
    """Print all actions."""
    _print_list(client.events.list_actions(), ("key", "flow_name", "tag", "graph_id", "concurrency"), output)


@actions.command(name="put")
def put_action(
    key: str,
    *,
    flow_name: str | None = None,
    graph_id: str | None = None,
    tag: str | None = None,
    params: str | None = None,
    one_at_a_time: Flag = False,
    client: Client,
) -> None:
    """Allow an action: a flow, or a registered graph.

    Parameters
    ----------
    key
        The action, as the steps of templates name it.
    flow_name
        The flow it runs.
    graph_id
        Or the graph.
    tag
        The workers that run it.
    params
        A JSON object that every run of it gets.
    one_at_a_time
        While a run of it is active, the next event waits.
    """
    if (flow_name is None) == (graph_id is None):
        raise InvalidCliInput("exactly one of --flow-name and --graph-id is needed")
    wanted: dict[str, Any] = {"flow_name": flow_name, "graph_id": graph_id, "tag": tag}
    wanted["params"] = {} if params is None else read_params(None, params, ())
    wanted["concurrency"] = "one" if one_at_a_time else "allow"
    print_json(client.events.put_action(key, wanted))


@actions.command(name="delete")
def delete_action(key: ActionKey, *, client: Client) -> None:
    """Forbid an action."""
    print_json(client.events.delete_action(key))


def _print_list(found: list[dict[str, Any]], columns: tuple[str, ...], output: Output) -> None:
    if output == "json":
        print_json(found)
    else:
        print_table(found, columns)


APPS = (events, templates, actions)
