"""Commands for workflow events, templates and actions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from pyoco_server.cli.client_params import read_params
from pyoco_server.cli.output import Client, Flag, Output, note, print_json, print_table
from pyoco_server.config import secret_variable
from pyoco_server.errors import InvalidCliInput

events = cyclopts.App(name="events", help="Send workflow events and inspect their results.")
templates = cyclopts.App(name="templates", help="Manage workflow templates.")
actions = cyclopts.App(name="actions", help="Manage the actions that templates may use.")

TemplateId = Annotated[str, Parameter(help="Template id.")]
JobId = Annotated[str, Parameter(help="Retry job id.")]
ActionKey = Annotated[str, Parameter(help="Action key.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StartFields:
    """Fields for starting a template, by an event or manually."""

    key: str | None = None
    """Idempotency key; an event with a known key starts nothing."""

    year: int | None = None
    """Year of the period to process."""

    month: int | None = None
    """Month of the period to process."""

    data: str | None = None
    """JSON object for the flow; available as params["event"]."""


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
    """Send an event and print the run or execution it started or resumed.

    Parameters
    ----------
    template_id
        Template to start.
    event_name
        Alternative to --template-id: the first action of the template.
    source
        Name of the sender.
    notes
        Free text.
    data_file
        File with the data, JSON or YAML.
    execution_id
        With --node-id: resume this execution's node with the data instead of starting a template.
    node_id
        Node to resume; it may not be waiting yet.
    wait_key
        Resume the node waiting with this key.
    token
        Event token, if required (also: AX_WORKFLOW_EVENT_TOKEN, AX_WORKFLOW_EVENT_TOKEN_FILE).
    """
    given = fields.data is not None or data_file is not None
    print_json(
        client.events.send(
            token=token or secret_variable("AX_WORKFLOW_EVENT_TOKEN"),
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
    """Print the monthly event summary.

    Parameters
    ----------
    ym
        Month as YYYY-MM.
    recent_limit
        Number of recent events to include (up to 200).
    """
    print_json(client.events.summary(ym, recent_limit))


@events.command(name="retry-jobs")
def retry_jobs(*, limit: int | None = None, output: Output = "json", client: Client) -> None:
    """Print the retry jobs.

    Parameters
    ----------
    limit
        Maximum number of entries (up to 200).
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
    """Process the retry queue now.

    Parameters
    ----------
    limit
        Maximum number of jobs (up to 50).
    force
        Include jobs that are not due yet.
    """
    print_json(client.events.drain(limit, force=force))


@events.command
def retry(job_id: JobId, *, client: Client) -> None:
    """Reset a retry job's attempts and make it due now."""
    print_json(client.events.retry_job(job_id))


@events.command
def discard(job_id: JobId, *, client: Client) -> None:
    """Discard a retry job."""
    print_json(client.events.discard_job(job_id))


@events.command
def replay(event_id: str, *, client: Client) -> None:
    """Replay an event.

    Parameters
    ----------
    event_id
        Event id from the response or the summary.
    """
    print_json(client.events.replay(event_id))


@templates.default
@templates.command(name="list")
def list_templates(*, output: Output = "json", client: Client) -> None:
    """List all templates."""
    _print_list(client.events.list_templates(), ("id", "name", "year", "month"), output)


@templates.command(name="get")
def get_template(template_id: TemplateId, *, client: Client) -> None:
    """Print a template."""
    print_json(client.events.get_template(template_id))


@templates.command(name="put")
def put_template(template_id: TemplateId, *, file: Path, if_match: str | None = None, client: Client) -> None:
    """Create or update a template.

    Parameters
    ----------
    file
        Template definition, JSON or YAML.
    if_match
        Update only if the stored template has this updated_at.
    """
    print_json(client.events.put_template(template_id, read_params(file, None, ()), if_match))


@templates.command(name="delete")
def delete_template(template_id: TemplateId, *, client: Client) -> None:
    """Delete a template."""
    print_json(client.events.delete_template(template_id))


@templates.command(name="start")
def start_template(
    template_id: TemplateId,
    *,
    fields: StartFields = NOTHING,
    client: Client,
) -> None:
    """Start a template manually."""
    wanted: dict[str, Any] = {"idempotency_key": fields.key, "year": fields.year, "month": fields.month}
    if fields.data is not None:
        wanted["data"] = read_params(None, fields.data, ())
    print_json(client.events.start_template(template_id, **wanted))


@actions.default
@actions.command(name="list")
def list_actions(*, output: Output = "json", client: Client) -> None:
    """List all actions."""
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
    """Register an action that runs a flow or a registered graph.

    Parameters
    ----------
    key
        Action key used in template steps.
    flow_name
        Flow to run.
    graph_id
        Graph to run instead of a flow.
    tag
        Tag of the workers that run it.
    params
        JSON object with params for every run.
    one_at_a_time
        Run one at a time; further events wait.
    """
    if (flow_name is None) == (graph_id is None):
        raise InvalidCliInput("exactly one of --flow-name and --graph-id is required")
    wanted: dict[str, Any] = {"flow_name": flow_name, "graph_id": graph_id, "tag": tag}
    wanted["params"] = {} if params is None else read_params(None, params, ())
    wanted["concurrency"] = "one" if one_at_a_time else "allow"
    print_json(client.events.put_action(key, wanted))


@actions.command(name="delete")
def delete_action(key: ActionKey, *, client: Client) -> None:
    """Delete an action."""
    print_json(client.events.delete_action(key))


def _print_list(found: list[dict[str, Any]], columns: tuple[str, ...], output: Output) -> None:
    if output == "json":
        print_json(found)
    else:
        print_table(found, columns)


APPS = (events, templates, actions)
