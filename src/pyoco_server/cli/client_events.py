"""Commands for workflow events, templates and actions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.client_params import NOW, Timing, read_params
from pyoco_server.cli.output import AS_JSON, Client, Columns, Flag, Limit, Shown
from pyoco_server.environment import secret_variable
from pyoco_server.errors import InvalidCliInput
from pyoco_server.http_client.options import fields_of

events = cyclopts.App(name="events", help="Send workflow events and inspect their results.")
templates = cyclopts.App(name="templates", help="Manage workflow templates.")
actions = cyclopts.App(name="actions", help="Manage the actions that templates may use.")

_STARTED = ("run_id", "execution_id", "node_id")
"""What an event started or resumed."""
_RETRY_JOBS = Columns(
    ("id",),
    ("id", "status", "template_id", "attempts", "last_reason_code", "last_error"),
    ("last_error", "attempts", "last_reason_code", "template_id"),
)
_TEMPLATES = Columns(("id",), ("id", "name", "year", "month"), ("name",))
_ACTIONS = Columns(
    ("key",), ("key", "flow_name", "tag", "graph_id", "concurrency"), ("concurrency", "tag", "graph_id")
)
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
    template_id: str | None = None,
    *,
    event_name: str | None = None,
    fields: StartFields = NOTHING,
    source: str | None = None,
    notes: str | None = None,
    data_file: Path | None = None,
    execution_id: str | None = None,
    node_id: str | None = None,
    wait_key: str | None = None,
    token: str | None = None,
    shown: Shown = AS_JSON,
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
    answer = client.events.send(
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
    shown.one(answer, *_STARTED)


@events.command
def summary(ym: str, *, recent_limit: int | None = None, shown: Shown = AS_JSON, client: Client) -> None:
    """Print the monthly event summary.

    Parameters
    ----------
    ym
        Month as YYYY-MM.
    recent_limit
        Number of recent events to include (up to 200).
    """
    shown.one(client.events.summary(ym, recent_limit), "ym")


@events.command(name="retry-jobs")
def retry_jobs(*, limit: Limit = None, shown: Shown = AS_JSON, client: Client) -> None:
    """Print the retry jobs."""
    found = client.events.retry_jobs(limit)
    shown.list(found, found["jobs"], _RETRY_JOBS, texts.NO_RETRY_JOBS)


@events.command
def drain(*, limit: int | None = None, force: Flag = False, shown: Shown = AS_JSON, client: Client) -> None:
    """Process the retry queue now.

    Parameters
    ----------
    limit
        Maximum number of jobs (up to 50).
    force
        Include jobs that are not due yet.
    """
    shown.one(client.events.drain(limit, force=force))


@events.command
def retry(job_id: JobId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Reset a retry job's attempts and make it due now."""
    shown.one(client.events.retry_job(job_id), "id")


@events.command
def discard(job_id: JobId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Discard a retry job."""
    shown.one(client.events.discard_job(job_id), "id")


@events.command
def replay(event_id: str, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Replay an event.

    Parameters
    ----------
    event_id
        Event id from the response or the summary.
    """
    shown.one(client.events.replay(event_id), *_STARTED)


@templates.default
@templates.command(name="list")
def list_templates(*, shown: Shown = AS_JSON, client: Client) -> None:
    """List all templates."""
    found = client.events.list_templates()
    shown.list(found, found, _TEMPLATES, texts.NO_TEMPLATES)


@templates.command(name="get")
def get_template(template_id: TemplateId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Print a template."""
    shown.one(client.events.get_template(template_id), "id")


@templates.command(name="put")
def put_template(
    template_id: TemplateId,
    file: Path,
    *,
    when: str | None = None,
    no_month: Flag = False,
    if_match: str | None = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Create or update a template.

    Parameters
    ----------
    file
        Template definition, JSON or YAML.
    when
        Filter in CEL; other events start nothing. It reads event, event_name and source.
    no_month
        Events need no year and month.
    if_match
        Update only if the stored template has this updated_at.
    """
    template = read_params(file, None, ())
    if when is not None:
        template["when"] = when
    if no_month:
        template["needs_month"] = False
    shown.one(client.events.put_template(template_id, template, if_match), "id")


@templates.command(name="delete")
def delete_template(template_id: TemplateId, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Delete a template."""
    shown.one(client.events.delete_template(template_id), "id")


@templates.command(name="start")
def start_template(
    template_id: TemplateId,
    *,
    fields: StartFields = NOTHING,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Start a template manually."""
    wanted: dict[str, Any] = {"idempotency_key": fields.key, "year": fields.year, "month": fields.month}
    if fields.data is not None:
        wanted["data"] = read_params(None, fields.data, ())
    shown.one(client.events.start_template(template_id, **wanted), *_STARTED)


@actions.default
@actions.command(name="list")
def list_actions(*, shown: Shown = AS_JSON, client: Client) -> None:
    """List all actions."""
    found = client.events.list_actions()
    shown.list(found, found, _ACTIONS, texts.NO_ACTIONS)


@actions.command(name="put")
def put_action(  # noqa: PLR0913 - the fields of an action
    key: str,
    *,
    flow_name: str | None = None,
    graph_id: str | None = None,
    tag: str | None = None,
    params: str | None = None,
    one_at_a_time: Flag = False,
    timing: Timing = NOW,
    shown: Shown = AS_JSON,
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
    shown.one(client.events.put_action(key, wanted | fields_of(timing.options())), "key")


@actions.command(name="delete")
def delete_action(key: ActionKey, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Delete an action."""
    shown.one(client.events.delete_action(key), "key")


APPS = (events, templates, actions)
